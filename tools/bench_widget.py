"""Print how fast and how heavy the live widgets are, in a real Chromium on the built site.

    .venv/bin/python tools/bench_widget.py [--views ddp,memory] [--moves 120] [--seed 0] [--smallest]

Every view is measured on its own page of _build/html. Bytes are those of the files a page asks for; "gzip" is what a
host that compresses would send (level 6).

What a redraw is, and what its parts are, tools/redraws.py says. Chromium puts all messages after a key press behind the
next frame, a worker's answer too, so a key costs one frame more than a step of a drag, unless its picture was drawn
ahead. "At random settings" is one move of a slider, drawn by chance, while every other control stands at a value drawn
by chance; in a view without a slider it is a change of any control, and where that takes a search a figure of its own.
It is what a finger pays. "Pressed by a mouse at random settings" is such a move by a mouse, which rests over the place
of the new value for 120 ms and is pressed there: its picture is drawn ahead (scaleout/page/static/ahead.js).
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import live_page
from redraws import LISTEN, at_random, control, drag, keys, pressed, sliders, stems, unlock

from scaleout import views
from scaleout.page import form

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
GOAL = 33.0  # milliseconds: two frames at 60 Hz
SEARCH = 2000.0  # where the question is another one: of a model on as many GPUs as there are
AT_THE_VIEW = 10  # seconds
LEAST = 20  # redraws, for a 95th percentile


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
    unlock(page)
    box = control(page).bounding_box()
    if sliders(stem):
        page.mouse.click(box["x"] + 0.8 * box["width"], box["y"] + box["height"] / 2)
    else:
        page.keyboard.press("ArrowDown")
    page.wait_for_function("window.taken.length")
    return page.evaluate("window.taken[0].whole")


def show(what: str, value: float, unit: str, note: str = "") -> None:
    """One figure. ValueError where it is none: a measurement that did not happen is no zero."""
    if not value > 0:
        raise ValueError(f"{what}: nothing was measured")
    print(f"{what:<62}{value:>11,.1f} {unit:<2}  {note}".rstrip(), flush=True)


def speed(words: str, taken: list[dict], goal: float = GOAL) -> None:
    """Median and 95th percentile of redraws, and the parts of those about as slow."""
    if len(taken) < LEAST:
        raise ValueError(f"{words}: only {len(taken)} redraws were seen, so there is no percentile to give")
    taken = sorted(taken, key=lambda one: one["whole"])
    whole = [one["whole"] for one in taken]
    p95 = statistics.quantiles(whole, n=20)[-1]
    verdict = "met" if p95 < goal else "MISSED"
    tenth = len(taken) // 10
    show(f"slider to redraw, {words}, median", statistics.median(whole), "ms", f"{len(taken)} redraws{parts(taken)}")
    show(f"slider to redraw, {words}, p95", p95, "ms", f"goal: under {goal:g} ms, {verdict}{parts(taken[-tenth:])}")


def parts(taken: list[dict]) -> str:
    """The parts of redraws, each at its median."""
    names = [name for name in taken[0] if name != "whole"]
    return "; " + ", ".join(f"{name} {statistics.median(one[name] for one in taken):.1f}" for name in names)


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
        unlock(page)
        if sliders(stem):
            speed("dragged", drag(page, moves))
            speed("by key", keys(page, max(LEAST, moves // 2)))
        speed("at random settings", at_random(page, stem, max(LEAST, moves // 2), seed))
        taken = pressed(page, stem, max(LEAST, moves // 2), seed)
        if len(taken) >= LEAST:
            speed("pressed by a mouse at random settings", taken)
        else:
            print(f"slider to redraw, pressed by a mouse: no figure, for only {len(taken)} random settings allow it")
        if views.search_controls(stem):
            speed("another question", at_random(page, stem, max(LEAST, moves // 2), seed, questions=True), SEARCH)
    python = [url for url in requests if urlparse(url).path not in {urlparse(one).path for one in before}]
    for words, urls in (("before the first touch", before), ("for Python", python)):
        raw, packed = weigh(HTML, urls)
        show(f"bytes {words}", raw / 1e6, "MB", f"{packed / 1e6:.2f} MB gzip (MB = 10^6 bytes)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the live widgets in Chromium.")
    parser.add_argument("--views", help="stems with commas between (default: all, with --smallest the last)")
    parser.add_argument("--moves", type=int, default=120, help="steps of the drag (default 120)")
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
                raise ValueError(f"there is no view {stem!r}: use {', '.join(stems())}")
            print(f"\nview {stem}, on {where[stem]} of the built site", flush=True)
            measure(stem, where[stem], moves, options.seed)
    except ValueError as error:
        print(f"bench_widget: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
