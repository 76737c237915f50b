"""No page asks another host for anything, and no code that a reader writes in one can: the browser refuses.

Here the site is as a static host serves it. Elsewhere playwright's own `eval` is let through (tools/live_page.py).
"""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler

import live_page
import pytest
from driver import HTML, watched
from serve import Handler, Server

from scaleout import exercises
from scaleout.page import repairs

CHAPTER = "notebooks/10_collectives.html"
REFUSED = re.compile("Content.Security.Policy")
# What a worker can ask with: each is tried in the reader's Python, which goes on where it is refused.
WORKER = {
    "fetch": "js.fetch(other)",
    "XMLHttpRequest": "request = js.XMLHttpRequest.new(); request.open('GET', other, False); request.send()",
    "WebSocket": "js.WebSocket.new(other.replace('http', 'ws'))",
    "EventSource": "js.EventSource.new(other)",
    "open_url": "import pyodide.http; pyodide.http.open_url(other)",
}
TRY = """import js
other, refused = {other!r}, []
try:
    {way}
except BaseException as error:
    refused.append(type(error).__name__)
for _ in range(20):  # and what was sent meanwhile would have come there
    request = js.XMLHttpRequest.new()
    request.open("GET", "{own}", False)
    request.send()
print("{name}", request.status, refused)"""
# What a page can ask with, beside that.
PAGE = {
    "fetch": "fetch(other)",
    "import": "import(other)",
    "image": "new Promise((yes, no) => Object.assign(new Image(), {onload: yes, onerror: no, src: other}))",
    "script": "new Promise((yes, no) => document.head.append(Object.assign(document.createElement('script'), "
              "{onload: yes, onerror: no, src: other})))",
    "style": "new Promise((yes, no) => document.head.append(Object.assign(document.createElement('link'), "
             "{rel: 'stylesheet', onload: yes, onerror: no, href: other})))",
}  # fmt: skip


class Other(BaseHTTPRequestHandler):
    """Another host, which gives everybody what they ask for."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def other():
    """Another host: `asked` has what reached it."""
    running = Server(("127.0.0.1", 0), Other)
    running.asked, running.address = [], f"http://127.0.0.1:{running.server_port}/x"
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture(scope="module")
def strict(book):
    """The address of the built site, where there is a `book`, as it is."""
    with live_page.serve(HTML, Handler) as address:
        yield address


@pytest.fixture
def chapter(context, strict):
    """A chapter as a reader has it; `refused`: what the browser has said of its policy."""
    page = watched(context, strict)
    page.refused = []
    page.on("console", lambda message: REFUSED.search(message.text) and page.refused.append(message.text))
    page.goto(f"{strict}/{CHAPTER}")
    page.evaluate("localStorage.clear()")
    yield page
    page.close()


def ran(cell, source: str, shown: str) -> None:
    """Run code in a live cell; wait until its output is this."""
    cell.get_by_role("textbox").fill(source)
    cell.get_by_role("button", name="Run", exact=True).click()
    cell.locator(".cell_output", has_text=shown).wait_for()


def test_a_chapter_works_under_the_policy(chapter):
    """Formulas, a view, an exercise and a live cell, with the Python of the page; and nothing was refused."""
    chapter.locator("mjx-container").first.wait_for(state="attached")
    cell = chapter.locator("[data-form=cell]").first
    ran(cell, "import sys\nprint(sys.platform, sum(range(10)))", "emscripten 45")
    task = chapter.locator("#live-collectives-chunk-to-send")
    area = task.get_by_role("textbox", name="Your code")
    area.fill(exercises.spec("collectives", "chunk-to-send")["solution"].split("```python\n")[1].split("```")[0])
    task.get_by_role("button", name="Check").click()
    task.locator(".live-message[data-ok=true]").wait_for()
    view = chapter.locator(".live-widget[data-form=view]").first
    view.get_by_role("button", name="Show me without a guess").click()
    sentence = view.locator(".live-sentence")
    sentence.filter(has_text=re.compile(r"\w")).wait_for()
    before = sentence.inner_text()
    view.locator("[data-name=ranks] input").press("ArrowRight")
    sentence.filter(has_not_text=before).wait_for()
    assert chapter.refused == [] == chapter.watch.unexpected()


def test_a_readers_code_reaches_no_other_host(chapter, other, strict):
    cell = chapter.locator("[data-form=cell]").first
    for way, line in WORKER.items():
        at_once = "['JsException']" if way in ("XMLHttpRequest", "open_url") else "[]"
        source = TRY.format(name=way, way=line, other=other.address, own=f"{strict}/_static/favicon.svg")
        ran(cell, source, f"{way} 200 {at_once}")  # its own host answers
        assert other.asked == [], way


def test_nor_does_anything_else_in_the_page(chapter, other):
    for way, call in PAGE.items():
        asked = f"(other) => {call}.then(() => 'reached', () => 'refused')"
        assert chapter.evaluate(asked, other.address) == "refused" and other.asked == [], way


class Lax(Handler):
    """The site without its policy."""

    def copyfile(self, source, outputfile) -> None:
        outputfile.write(source.read().replace(b"Content-Security-Policy", b"Content-Security-Nothin"))


def test_without_the_policy_it_would(context, book, other):
    with live_page.serve(HTML, Lax) as address:
        page = watched(context, address)
        page.goto(f"{address}/{CHAPTER}")
        source = TRY.format(
            name="lax", way=WORKER["XMLHttpRequest"], other=other.address, own=f"{address}/_static/favicon.svg"
        )
        ran(page.locator("[data-form=cell]").first, source, "lax 200 []")
        page.close()
    assert other.asked == ["/x"]


def test_every_page_of_the_site_says_so_before_anything_else_that_loads(strict):
    pages = [path for path in HTML.rglob("*.html") if "_static" not in path.parts and path != HTML / "index.html"]
    assert len(pages) > 40
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert 0 < text.find(repairs.META) < re.search("<script|<link|<style", text).start(), path.relative_to(HTML)
        assert text.count("Content-Security-Policy") == 1, path.relative_to(HTML)
    assert re.fullmatch(
        r'<meta http-equiv="Refresh" content="0; url=book/index.html" />\s*',
        (HTML / "index.html").read_text(encoding="utf-8"),
    )
