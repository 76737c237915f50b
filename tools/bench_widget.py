"""Print how fast and how heavy the live widgets are, in a real Chromium on the built site.

    .venv/bin/python tools/bench_widget.py [--views ddp,memory] [--moves 200] [--seed 0] [--smallest]

Every view is measured on its own page of _build/html. Bytes are those of the files a page asks for; "gzip" is what a
host that compresses would send (level 6).

A redraw is timed from the browser's input event to just after the frame that shows the new picture. Chromium
puts all messages after a key press behind the next frame, a worker's answer too, so a key costs one frame more
than a step of a drag. "At random settings" is one move of a slider, drawn by chance, while every other control stands
at a value drawn by chance.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import live_page
import view_settings

from scaleout import views
from scaleout.page import form, live

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
GOAL = 33.0  # milliseconds: two frames at 60 Hz
AT_THE_VIEW = 10  # seconds
LEAST = 20  # redraws, for a 95th percentile

# The view of a stem on its page, and a list of the milliseconds of its redraws.
LISTEN = """(stem) => {
  const all = [...document.querySelectorAll(".live-widget[data-form=view]")].map((root) => root.live);
  window.view = all.find((one) => one.data.stem === stem);
  window.taken = [];
  let at = null;
  view.root.addEventListener("input", (event) => { at = event.timeStamp; }, true);
  view.root.addEventListener("live-paint", () => {
    const from = at;
    at = null;  // a picture that no slider asked for is not timed
    if (from === null) return;
    requestAnimationFrame(() => {
      const {port1, port2} = new MessageChannel();
      port1.onmessage = () => window.taken.push(performance.now() - from);
      port2.postMessage(0);
    });
  });
}"""

# From a settled state, move one slider as a hand does: an input event at the start of a frame.
MOVE = """async ([state, name, value]) => {
  const {root, built} = window.view;
  const {input, set} = built.get(name);
  window.view.set(state);
  await window.view.redraw();
  const before = window.taken.length;
  await new Promise(requestAnimationFrame);
  set(value);
  input.dispatchEvent(new Event("input", {bubbles: true}));
  await new Promise((done) => root.addEventListener("live-paint", done, {once: true}));
  while (window.taken.length === before) await new Promise(requestAnimationFrame);
}"""


def stems() -> list[str]:
    """The views that have a slider to move."""
    return [stem for stem in views.stems() if sliders(stem)]


def sliders(stem: str) -> list:
    return [one for one in view_settings.controls(stem).values() if one.kind in ("slider", "play")]


def pages() -> dict[str, str]:
    """Stem of each view -> its page, relative to the built site. ValueError where one is on none."""
    found = {}
    for path in sorted(HTML.glob("*/*.html")):
        for rest in path.read_text("utf-8").split(form.DATA)[1:]:
            data = json.loads(rest[: rest.index("</script>")])
            if data["form"] == "view":
                found.setdefault(data["stem"], str(path.relative_to(HTML)))
    missing = [stem for stem in stems() if stem not in found]
    if missing:
        raise ValueError(f"no page of _build/html shows the view {', '.join(missing)}: run make site")
    return found


def weigh(folder: Path, requests: list[str]) -> tuple[float, float]:
    """Bytes of the files behind some addresses: (as they are, gzipped)."""
    files = {folder / unquote(urlparse(url).path).lstrip("/") for url in requests if url.startswith("http")}
    contents = [file.read_bytes() for file in sorted(files) if file.is_file()]
    return sum(map(len, contents)), sum(len(gzip.compress(one, 6)) for one in contents)


def start(page, address: str, stem: str) -> tuple[float, float]:
    """Load a page and touch its view: milliseconds to the first painted content, and from touch to Python."""
    page.goto(address)
    page.wait_for_selector(".live-widget[data-form=view][data-mounted]")
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    live_page.rest(page)
    page.evaluate(LISTEN, stem)
    ready = page.evaluate("""async () => {
      const {runtime, data} = window.view;
      const from = performance.now();
      runtime.start();
      const answer = await runtime.call("draw", {stem: data.stem, params: {}});
      return answer.svg ? performance.now() - from : 0;
    }""")
    return painted, ready


def touch(page, address: str, stem: str) -> float:
    """Milliseconds from the first touch to the picture, of a reader who has been at the view for ten seconds, on a line
    that is not metered."""
    page.goto(address)
    page.wait_for_selector(".live-widget[data-form=view][data-mounted]")
    page.evaluate(LISTEN, stem)
    page.evaluate("window.view.root.scrollIntoView()")
    page.wait_for_timeout(1000 * AT_THE_VIEW)
    page.evaluate("window.view.root.querySelector('.live-lock .live-plain')?.click()")
    slider(page)
    page.evaluate(MOVE, [{}, *settings(stem, 1, 0)[0][1:]])
    return page.evaluate("window.taken")[-1]


def settings(stem: str, count: int, seed: int) -> list[tuple[dict, str, object]]:
    """(values of all controls, a slider's name, the value it is moved to): by chance, the same for the same seed.
    Only what the view can draw, before and after; a view that can draw less than a tenth is a ValueError."""
    dice, out = random.Random(seed), []
    for state in view_settings.by_chance(stem, 10 * count, seed):
        moved = dice.choice(sliders(stem))
        to = dice.choice(view_settings.values(moved))
        drawn = [live.call("draw", {"stem": stem, "params": one}) for one in (state, {**state, moved.name: to})]
        if to != state[moved.name] and all("svg" in one for one in drawn):
            out.append((state, moved.name, to))
        if len(out) == count:
            return out
    raise ValueError(f"{stem}: of {10 * count} random settings only {len(out)} can be drawn")


def slider(page):
    """The view's first slider, in sight: a pointer moves nothing that is below the window's edge."""
    found = page.evaluate_handle("window.view.root.querySelector('input[type=range]')").as_element()
    found.scroll_into_view_if_needed()
    page.evaluate("window.taken = []")
    return found


def keys(page, count: int) -> list[float]:
    """Milliseconds of each redraw, for arrow keys on the first slider."""
    slider(page).focus()
    page.keyboard.press("Home")
    page.wait_for_timeout(200)
    page.evaluate("window.taken = []")
    for press in range(count):
        page.keyboard.press("ArrowRight" if press % 6 < 3 else "ArrowLeft")
        page.wait_for_function(f"window.taken.length > {press}")
    return page.evaluate("window.taken")


def drag(page, count: int) -> list[float]:
    """Milliseconds of each redraw, for a thumb pulled to and fro by a pointer."""
    box = slider(page).bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 5, middle)
    page.mouse.down()
    for step in range(count):
        there = abs((step * 0.17) % 2 - 1)  # 0 to 1 and back
        page.mouse.move(box["x"] + 5 + there * (box["width"] - 10), middle)
        page.wait_for_timeout(35)
    page.mouse.up()
    page.wait_for_timeout(200)
    return page.evaluate("window.taken")


def at_random(page, stem: str, count: int, seed: int) -> list[float]:
    """Milliseconds of each redraw, for moves of any slider while all controls stand anywhere."""
    page.evaluate("window.taken = []")
    for move in settings(stem, count, seed):
        page.evaluate(MOVE, list(move))
    return page.evaluate("window.taken")


def show(what: str, value: float, unit: str, note: str = "") -> None:
    """One figure. ValueError where it is none: a measurement that did not happen is no zero."""
    if not value > 0:
        raise ValueError(f"{what}: nothing was measured")
    print(f"{what:<44}{value:>11,.1f} {unit:<2}  {note}".rstrip(), flush=True)


def speed(words: str, taken: list[float]) -> None:
    """Median and 95th percentile of redraws."""
    if len(taken) < LEAST:
        raise ValueError(f"{words}: only {len(taken)} redraws were seen, so there is no percentile to give")
    p95 = statistics.quantiles(taken, n=20)[-1]
    verdict = "met" if p95 < GOAL else "MISSED"
    show(f"slider to redraw, {words}, median", statistics.median(taken), "ms", f"{len(taken)} redraws")
    show(f"slider to redraw, {words}, p95", p95, "ms", f"goal: under {GOAL:g} ms, {verdict}")


def measure(stem: str, name: str, moves: int, seed: int) -> None:
    """Measure one view on its page of the site and print the table."""
    requests: list[str] = []
    with live_page.serve(HTML) as site, live_page.chromium(viewport={"width": 1200, "height": 1000}) as context:
        page, other = context.new_page(), context.new_page()
        touched = touch(other, f"{site}/{name}", stem)
        other.close()
        page.add_init_script(live_page.METERED)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{site}/{name}")
        live_page.rest(page)
        before = list(requests)
        page.context.new_cdp_session(page).send("Network.clearBrowserCache")
        for cache in ("cold", "warm"):
            painted, ready = start(page, f"{site}/{name}?{cache}", stem)
            show(f"page to painted picture, {cache} cache", painted, "ms")
            show(f"first touch to Python's first answer, {cache} cache", ready, "ms")
        show(f"touch to picture after {AT_THE_VIEW} s at the view", touched, "ms", "not metered")
        page.evaluate("window.view.root.querySelector('.live-lock .live-plain')?.click()")
        speed("dragged", drag(page, moves))
        speed("by key", keys(page, max(LEAST, moves // 2)))
        speed("at random settings", at_random(page, stem, max(LEAST, moves // 2), seed))
    python = [url for url in requests if urlparse(url).path not in {urlparse(one).path for one in before}]
    for words, urls in (("before the first touch", before), ("for Python", python)):
        raw, packed = weigh(HTML, urls)
        show(f"bytes {words}", raw / 1e6, "MB", f"{packed / 1e6:.2f} MB gzip (MB = 10^6 bytes)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the live widgets in Chromium.")
    parser.add_argument("--views", help="stems with commas between (default: all, with --smallest the last)")
    parser.add_argument("--moves", type=int, default=200, help="steps of the drag (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the random settings (default 0)")
    parser.add_argument("--smallest", action="store_true", help="as few moves as give every figure")
    options = parser.parse_args()
    moves = 60 if options.smallest else options.moves
    if not 60 <= moves <= 10_000:
        parser.error(f"--moves {moves}: use a number from 60 to 10000")
    try:
        where = pages()
        for stem in options.views.split(",") if options.views else stems()[-1 if options.smallest else 0 :]:
            if stem not in stems():
                raise ValueError(f"{stem!r} is no view with a slider: use {', '.join(stems())}")
            print(f"\nview {stem}, on {where[stem]} of the built site", flush=True)
            measure(stem, where[stem], moves, options.seed)
    except ValueError as error:
        print(f"bench_widget: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
