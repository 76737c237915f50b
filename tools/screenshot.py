"""Take the README's picture: the live view of `memory` on the built site, after its guess was skipped.

    .venv/bin/python tools/screenshot.py        writes book/static/screenshot.png

Build the site first. Needs Chromium.
"""

from __future__ import annotations

import sys
import threading

import live_page
import serve

TARGET = live_page.page_sphinx.ROOT / "book" / "static" / "screenshot.png"
PAGE = "notebooks/01_memory.html"


def take(address: str) -> None:
    """Open the chapter, skip the guess, wait for Python, and picture the view."""
    with live_page.chromium(viewport={"width": 1200, "height": 780}) as browser:
        tab = browser.new_page()
        tab.goto(f"{address}/{PAGE}")
        view = tab.locator(".live-widget").first
        view.get_by_role("button", name="Show me without a guess").click()
        tab.wait_for_function("document.querySelector('.live-widget').live.runtime.state === 'ready'")
        tab.wait_for_timeout(500)  # the picture's transition
        tab.evaluate("top => scrollTo(0, top)", view.bounding_box()["y"] + tab.evaluate("scrollY") - 70)
        tab.wait_for_timeout(500)  # the contents at the side follow
        tab.screenshot(path=str(TARGET))


def main() -> int:
    """Serve the site for as long as it takes; the exit code."""
    try:
        site = serve.server(live_page.page_sphinx.ROOT / "_build" / "html")
        threading.Thread(target=site.serve_forever, daemon=True).start()
        take(f"http://127.0.0.1:{site.server_port}")
    except ValueError as error:
        print(f"screenshot: {error}", file=sys.stderr)
        return 2
    print(f"{TARGET.relative_to(live_page.page_sphinx.ROOT)}: {TARGET.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
