"""Take the README's picture: the live view of `memory` on the built site, beside a guess.

    .venv/bin/python tools/screenshot.py        writes book/static/screenshot.png

Build the site first. Needs Chromium.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import live_page
import serve

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "book" / "static" / "screenshot.png"
GUESS = "108"  # GB: 16 bytes for each of 6.74 billion parameters, as textbooks have it
PAGE = "notebooks/01_memory.html"


def take(address: str) -> None:
    """Open the chapter, commit the guess, and picture the view once all that moves has come to rest."""
    with live_page.chromium(viewport={"width": 1280, "height": 900}) as browser:
        tab = browser.new_page()
        tab.goto(f"{address}/{PAGE}")
        view = tab.locator("#live-predict")  # exercises stand before it
        view.get_by_label("Your guess in GB").fill(GUESS)
        view.get_by_role("button", name="Commit").click()
        tab.wait_for_function("document.querySelector('#live-predict').live.runtime.state === 'ready'")
        tab.wait_for_timeout(1500)
        view.screenshot(path=str(TARGET))


def main() -> int:
    """Serve the site for as long as it takes; the exit code."""
    try:
        site = serve.server(ROOT / "_build" / "html")
        threading.Thread(target=site.serve_forever, daemon=True).start()
        take(f"http://127.0.0.1:{site.server_port}")
    except ValueError as error:
        print(f"screenshot: {error}", file=sys.stderr)
        return 2
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
