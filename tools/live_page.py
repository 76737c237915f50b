"""Pages with live widgets outside the book: for the browser tests and the bench.

`assemble` writes what the site's `_static` holds, `write_page` a page around widgets; `serve` serves a folder
on loopback; `chromium` opens the browser of this machine.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serve import Handler, server

from scaleout.page import repairs, sphinx

PAGE = """<!doctype html>
<html lang="en" data-theme="{theme}">
<head>{policy}<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Live</title><link rel="icon" href="data:,"><link rel="stylesheet" href="_static/live/live.css">
<style>
body {{ margin: 0; font-family: system-ui, sans-serif; background: #fff; color: #222; }}
html[data-theme="dark"] body {{ background: #14171b; color: #e8e6e1; }}
main {{ max-width: 61.25rem; margin: 0 auto; padding: 1rem; }}
</style>
<script type="module" src="_static/live/host.js"></script></head>
<body><main class="bd-content"><h1>A page</h1><div class="cell_output"><div class="text_html">
{body}
</div></div></main></body></html>
"""

# No request of the browser's own may be taken for one of the page's.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

# A reader who asked to save data: Python waits for the first touch.
METERED = "Object.defineProperty(navigator, 'connection', {value: {saveData: true}});"


def write_page(path: Path, body: str, theme: str = "light") -> None:
    """A page around the HTML form of widgets."""
    path.write_text(PAGE.format(theme=theme, body=body, policy=repairs.META), encoding="utf-8")


def assemble(folder: Path, extra: dict[str, Path] | None = None) -> None:
    """Write `_static` into `folder` as the site has it. `extra` maps names in the Python archive to files.

    Raises ValueError when the npm packages are not installed.
    """
    static = folder / "_static"
    for package, pattern, target in sphinx.VENDORED:
        if package != "pyodide":
            continue
        found = sorted((sphinx.NPM / package).glob(pattern))
        if not found:
            raise ValueError(f"{sphinx.NPM / package} is missing {pattern}: run `make site` once")
        for file in found:
            (static / target).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, static / target / file.name)
    shutil.copytree(sphinx.PACKAGE / "page" / "static", static / "live", dirs_exist_ok=True)
    archive = static / "live" / "scaleout.zip"
    sphinx.write_zip(archive)
    with zipfile.ZipFile(archive, "a") as opened:
        for name, file in (extra or {}).items():
            opened.write(file, name)
    write_page(folder / "index.html", "")


class Watched(Handler):
    """The site as it is, but that playwright, whose waiting is `eval`, may do so; as long as before, byte by byte."""

    def copyfile(self, source, outputfile) -> None:
        strict = b"'wasm-unsafe-eval'"
        page = self.path.partition("?")[0].endswith((".html", "/"))
        outputfile.write(source.read().replace(strict, b"'unsafe-eval'".ljust(len(strict))) if page else source.read())


@contextmanager
def serve(folder: Path, handler: type[Handler] = Watched) -> Iterator[str]:
    """Serve a folder with an index.html on a free port; gives its address, without a slash at the end."""
    running = server(folder, handler=handler)
    # a page that is closed drops what it was still loading: no news
    running.handle_error = lambda *_request: None
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        running.server_close()


def rest(page) -> None:
    """Wait until a page has loaded and has nothing left to do, its widgets included."""
    page.wait_for_load_state("load")
    page.wait_for_function("!document.querySelector('.live-widget:not([data-mounted])')")
    page.evaluate("new Promise((done) => requestIdleCallback(() => done()))")


@contextmanager
def chromium(**options: object) -> Iterator[object]:
    """A Chromium with a fresh profile, as playwright's persistent context (`options` go to it).

    Raises ValueError where playwright or a browser is missing.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise ValueError("playwright is missing: pip install playwright") from error
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        try:
            context = playwright.chromium.launch_persistent_context(
                profile, executable_path=binary, headless=True, args=list(FLAGS), **options
            )
        except Error as error:
            line = str(error).strip().splitlines()[0]
            raise ValueError(f"no Chromium: install it, or `playwright install chromium` ({line})") from error
        try:
            yield context
        finally:
            context.close()
