"""A real Chromium, pages with live widgets, and a watch that tolerates no error and no foreign host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlparse

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import live_page  # noqa: E402
from driver import READY  # noqa: E402

from scaleout import exercises, views  # noqa: E402
from scaleout.page import form  # noqa: E402

SPECIMEN = Path(__file__).parent / "views" / "specimen.py"
views.__path__.append(str(SPECIMEN.parent))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The address of a folder with a page for each view and one of exercises, in light and in dark."""
    folder = tmp_path_factory.mktemp("site")
    live_page.assemble(folder, {"scaleout/views/specimen.py": SPECIMEN})
    tasks = [form.exercise("memory", task.key) for task in exercises.catalogue("memory")]
    for theme in ("light", "dark"):
        for stem in views.stems():
            live_page.write_page(folder / f"{stem}-{theme}.html", form.html(form.view(stem)), theme)
        live_page.write_page(folder / f"exercises-{theme}.html", "\n".join(map(form.html, tasks)), theme)
    with live_page.serve(folder) as address:
        yield address


@pytest.fixture(scope="session")
def context():
    """Chromium with a fresh profile. Without one the tests skip, or fail where REQUIRE_BROWSER=1."""
    manager = live_page.chromium(viewport={"width": 1000, "height": 1100})
    try:
        opened = manager.__enter__()
    except ValueError as error:
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
    opened.set_default_timeout(90_000)  # a busy machine needs half a minute to start Python
    yield opened
    manager.__exit__(None, None, None)


class Watch:
    """What a page did that it must not. `allow` takes words of messages that a test provokes."""

    def __init__(self, page, host: str):
        self.found: list[str] = []
        self.allowed: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: message.type == "error" and self.found.append(message.text))
        page.on("pageerror", lambda error: self.found.append(str(error)))
        page.on("request", lambda request: self._request(request.url, host))

    def allow(self, *words: str) -> None:
        self.allowed += words

    def _request(self, url: str, host: str) -> None:
        self.requests.append(url)
        parts = urlparse(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != host:
            self.found.append(f"foreign request: {url}")

    def unexpected(self) -> list[str]:
        return [line for line in self.found if not any(word in line for word in self.allowed)]


@pytest.fixture
def page(context, site):
    """A fresh page with an empty memory; `page.watch` holds what went wrong, and the test fails with it."""
    opened = context.new_page()
    opened.watch = Watch(opened, urlparse(site).netloc)
    opened.goto(f"{site}/specimen-light.html")
    opened.evaluate("localStorage.clear()")
    opened.goto("about:blank")  # so that the next visit is one, even where only the fragment differs
    yield opened
    found = opened.watch.unexpected()
    opened.close()
    assert found == []


@pytest.fixture
def visit(page, site):
    """Open a page by name and wait for its widgets: `visit("specimen-light", "#live-specimen?count=3")`."""

    def go(name: str, fragment: str = ""):
        page.goto(f"{site}/{name}.html{fragment}")
        page.wait_for_selector(".live-widget[data-mounted]")
        return page

    return go


@pytest.fixture
def opened(visit):
    """The specimen with its guess skipped and Python running."""
    page = visit("specimen-light")
    page.get_by_role("button", name="Show me without a guess").click()
    page.wait_for_function(READY)
    return page
