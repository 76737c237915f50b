"""Print how fast and how heavy a live widget is, in a real Chromium on this machine.

    .venv/bin/python tools/bench_widget.py [--moves 200]

Takes the page of the first chapter from _build/html when it is built, else a bare page with the same widget.
Bytes are those of the files a page asks for; "gzip" is what a host that compresses would send (level 6).

A redraw is timed from the browser's input event to just after the frame that shows the new picture. Chromium
puts all messages after a key press behind the next frame, a worker's answer too, so a key costs one frame more
than a step of a drag.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlparse

import live_page

from scaleout import form, views

ROOT = Path(__file__).resolve().parents[1]
GOAL = 33.0  # milliseconds: two frames at 60 Hz
SLIDER = ".live-widget[data-form=view] input[type=range]"
VIEW = "document.querySelector('.live-widget[data-form=view]').live"

LISTEN = """() => {
  window.taken = [];
  let at = null;
  const {root} = document.querySelector(".live-widget[data-form=view]").live;
  root.addEventListener("input", (event) => { at = event.timeStamp; }, true);
  root.addEventListener("live-paint", () => {
    const from = at;
    requestAnimationFrame(() => {
      const {port1, port2} = new MessageChannel();
      port1.onmessage = () => window.taken.push(performance.now() - from);
      port2.postMessage(0);
    });
  });
}"""


def weigh(folder: Path, requests: list[str]) -> tuple[float, float]:
    """Bytes of the files behind some addresses: (as they are, gzipped)."""
    files = {folder / unquote(urlparse(url).path).lstrip("/") for url in requests if url.startswith("http")}
    contents = [file.read_bytes() for file in sorted(files) if file.is_file()]
    return sum(map(len, contents)), sum(len(gzip.compress(one, 6)) for one in contents)


def start(page, address: str) -> tuple[float, float]:
    """Load a page and touch its view: milliseconds to the first painted content, and from touch to Python."""
    page.goto(address)
    page.wait_for_selector(".live-widget[data-mounted]")
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.wait_for_load_state("networkidle")
    ready = page.evaluate(f"""async () => {{
      const {{runtime}} = {VIEW};
      const from = performance.now();
      runtime.start();
      await runtime.call("draw", {{stem: {VIEW}.data.stem, params: {{}}}});
      return performance.now() - from;
    }}""")
    return painted, ready


def keys(page, count: int) -> list[float]:
    """Milliseconds of each redraw, for arrow keys on the first slider."""
    page.locator(SLIDER).first.focus()
    page.keyboard.press("Home")
    page.wait_for_timeout(200)
    page.evaluate("window.taken = []")
    for press in range(count):
        page.keyboard.press("ArrowRight" if press % 20 < 10 else "ArrowLeft")
        page.wait_for_function(f"window.taken.length > {press}")
    return page.evaluate("window.taken")


def drag(page, count: int) -> list[float]:
    """Milliseconds of each redraw, for a thumb pulled to and fro by a pointer."""
    page.evaluate("window.taken = []")
    box = page.locator(SLIDER).first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 5, middle)
    page.mouse.down()
    for step in range(count):
        there = abs((step * 0.07) % 2 - 1)  # 0 to 1 and back
        page.mouse.move(box["x"] + 5 + there * (box["width"] - 10), middle)
        page.wait_for_timeout(35)
    page.mouse.up()
    page.wait_for_timeout(200)
    return page.evaluate("window.taken")


def show(what: str, value: str, note: str = "") -> None:
    print(f"{what:<44}{value:>14}  {note}".rstrip())


def speed(words: str, taken: list[float]) -> None:
    """Median and 95th percentile of redraws."""
    if len(taken) < 20:
        raise ValueError(f"{words}: only {len(taken)} redraws were seen, so there is no percentile to give")
    p95 = statistics.quantiles(taken, n=20)[-1]
    verdict = "met" if p95 < GOAL else "MISSED"
    show(f"slider to redraw, {words}, median", f"{statistics.median(taken):.1f} ms", f"{len(taken)} redraws")
    show(f"slider to redraw, {words}, p95", f"{p95:.1f} ms", f"goal: under {GOAL:g} ms, {verdict}")


def measure(folder: Path, name: str, moves: int) -> None:
    """Measure one page of a served folder and print the table."""
    requests: list[str] = []
    with live_page.serve(folder) as site, live_page.chromium(viewport={"width": 1200, "height": 1000}) as context:
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{site}/{name}")
        page.wait_for_load_state("networkidle")
        before = list(requests)
        page.close()
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.context.new_cdp_session(page).send("Network.clearBrowserCache")
        cold = start(page, f"{site}/{name}")
        warm = start(page, f"{site}/{name}?warm")
        page.evaluate(LISTEN)
        page.locator(".live-lock .live-plain").click()
        speed("dragged", drag(page, moves))
        speed("by key", keys(page, moves // 2))
    python = [url for url in requests if urlparse(url).path not in {urlparse(one).path for one in before}]
    for words, at in (("page to painted picture", 0), ("first touch to Python's first answer", 1)):
        show(f"{words}, cold cache", f"{cold[at]:,.0f} ms")
        show(f"{words}, warm cache", f"{warm[at]:,.0f} ms")
    for words, urls in (("before the first touch", before), ("for Python", python)):
        raw, packed = weigh(folder, urls)
        show(f"bytes {words}", f"{raw / 1e6:.2f} MB", f"{packed / 1e6:.2f} MB gzip (MB = 10^6 bytes)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the live widget in Chromium.")
    parser.add_argument("--moves", type=int, default=200, help="steps of the drag (default 200)")
    options = parser.parse_args()
    if not 60 <= options.moves <= 10_000:
        parser.error(f"--moves {options.moves}: use a number from 60 to 10000")
    try:
        html = ROOT / "_build" / "html"
        chapters = [page for page in sorted((html / "notebooks").glob("*.html")) if "live-lock" in page.read_text()]
        for page in chapters:
            print(f"\npage: {page.relative_to(html)} of the built site")
            measure(html, str(page.relative_to(html)), options.moves)
        for stem in [] if chapters else views.stems():
            print(f"\npage: a bare one with the view {stem} (no page of _build shows a widget)")
            with tempfile.TemporaryDirectory() as folder:
                live_page.assemble(Path(folder))
                live_page.write_page(Path(folder) / f"{stem}.html", form.html(form.view(stem)))
                measure(Path(folder), f"{stem}.html", options.moves)
    except ValueError as error:
        print(f"bench_widget: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
