"""A real Chromium, pages with live widgets, and a watch that tolerates no error and no foreign host.

Starting Python in a page takes seconds, so tests share a page wherever they do not ask how a page starts: its widgets
are made anew for each of them, and its Python stays.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path

import live_page
import pytest
from driver import ALONE, HTML, READY, SKIP, WIDE, watched
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from scaleout import exercises, views
from scaleout.page import cells, form

SPECIMEN = Path(__file__).parent / "views" / "specimen.py"

# The page's widgets as its file has them, brought to life by the Python that is there. A reader's code has a minute: a
# busy machine takes longer than the seconds that it has for a reader.
ANEW = """async (forget) => {
  const text = await (await fetch(location.pathname)).text();
  const { mount } = await import(new URL("_static/live/mount.js", location.href));
  const { runtime } = document.querySelector(".live-widget").live;
  if (forget) localStorage.clear();
  const written = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  document.querySelector("main").replaceWith(written);
  for (const root of written.querySelectorAll(".live-widget")) {
    mount(root, runtime.book ?? runtime);
    root.live.data.seconds = 60;
  }
}"""


DOUBLES = 'def double(x):\n    return 2 * x\nprint("doubles")'


def cell(name: str, source: str, output: str) -> str:
    """A live cell as Sphinx writes it."""
    before, after = cells.frame(name)
    code = highlight(source, PythonLexer(), HtmlFormatter())
    shown = f'<div class="output"><div class="highlight"><pre>{output}\n</pre></div></div>'
    inside = f'<div class="cell_input">{code}</div><div class="cell_output">{shown}</div>'
    return f'<div class="cell tag_live">{before}{inside}{after}</div>'


def missing(reason: str) -> None:
    """Skip, or fail where REQUIRE_BROWSER=1."""
    (pytest.fail if os.environ.get("REQUIRE_BROWSER") == "1" else pytest.skip)(reason)


@contextmanager
def specimen():
    """The specimen is one of the views: here, and not for the tests of the book's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "__path__", [*views.__path__, str(SPECIMEN.parent)])
        yield


@pytest.fixture(scope="module", autouse=True)
def with_specimen():
    with specimen():
        yield


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The address of a folder with pages of widgets: the specimen, exercises, and every view."""
    folder = tmp_path_factory.mktemp("site")
    live_page.assemble(folder, {"scaleout/views/specimen.py": SPECIMEN})
    with specimen():
        tasks = [form.exercise("memory", task.key) for task in exercises.catalogue("memory")]
        asks = [form.view("specimen", ask=True)]
        guesses = [form.view("recompute", ask=True)]
        pages = {"specimen": asks, "guesses": guesses, "exercises": tasks, "views": map(form.view, views.stems())}
        for name, widgets in pages.items():
            live_page.write_page(folder / f"{name}.html", "\n".join(map(form.html, widgets)))
    tabs = form.tabs([("A cluster", form.view("kernels")), ("One GPU", form.view("finetune"))])
    live_page.write_page(folder / "tabs.html", tabs)
    written = [cell("Doubles", DOUBLES, "doubles"), cell("Python", "double(21)", "42")]
    live_page.write_page(folder / "cells.html", "\n".join(written))
    with live_page.serve(folder) as address:
        yield address


@pytest.fixture(scope="session")
def book():
    """The address of the built site."""
    if not (HTML / "index.html").is_file():
        missing("no site: run make site")
    with live_page.serve(HTML) as address:
        yield address


@pytest.fixture(scope="session")
def context():
    """Chromium with a fresh profile."""
    manager = live_page.chromium(viewport=WIDE)
    try:
        opened = manager.__enter__()
    except ValueError as error:
        missing(str(error))
    opened.set_default_timeout(90_000)  # a busy machine needs half a minute to start Python
    yield opened
    manager.__exit__(None, None, None)


@pytest.fixture
def page(context, site):
    """A fresh page with an empty memory; the test fails with what went wrong on it."""
    opened = watched(context, site)
    opened.goto(f"{site}/index.html")
    opened.evaluate("localStorage.clear()")
    yield opened
    found = opened.watch.unexpected()
    context.unroute_all()
    opened.close()
    assert found == []


@pytest.fixture
def reader(context, book):
    """A fresh page for the built site, of a reader who chose the light theme."""
    opened = watched(context, book)
    opened.add_init_script("for (const key of ['mode', 'theme']) localStorage.setItem(key, 'light');")
    yield opened
    found = opened.watch.unexpected()
    opened.close()
    assert found == []


@pytest.fixture
def visit(page, site):
    """Open a page by name and wait for its widgets: `visit("specimen", "#live-specimen?count=3")`. Alone: its Python
    starts from nothing."""

    def go(name: str, fragment: str = "", alone: bool = False):
        if alone:
            page.add_init_script(ALONE)
        page.goto(f"{site}/{name}.html{fragment}")
        page.wait_for_selector(".live-widget[data-mounted]")
        return page

    return go


@pytest.fixture(scope="session")
def kept():
    """Name -> the page that tests share."""
    return {}


@pytest.fixture
def shared(context, site, kept):
    """Open a page that others have used, its widgets as nobody has touched them: `shared("exercises")`.

    `page.anew(forget=False)` makes them once more, as a reader who comes again finds them.
    """
    used = []

    def go(name: str):
        page = kept.get(name)
        if page is None:
            page = kept[name] = watched(context, site)
            page.goto(f"{site}/{name}.html")
            page.anew = lambda forget=True: page.evaluate(ANEW, forget)
        used.append(name)
        page.watch.again()
        page.bring_to_front()  # only what is in front has the focus, and the clipboard
        page.set_viewport_size(WIDE)
        page.wait_for_selector(".live-widget[data-mounted]")
        page.anew()
        return page

    yield go
    for name in used:
        if found := kept[name].watch.unexpected():
            kept.pop(name).close()  # what went wrong there is no fault of the next test
            pytest.fail("\n".join(found))


@pytest.fixture
def locked(shared):
    """The specimen before the guess."""
    return shared("specimen")


@pytest.fixture
def opened(locked):
    """The specimen with its guess skipped, all its controls in sight and Python running."""
    locked.get_by_role("button", name=SKIP).click()
    locked.get_by_text("More:").click()
    locked.evaluate("document.querySelector('.live-widget').live.status.touch()")
    locked.wait_for_function(READY)
    return locked


@pytest.fixture
def tasks(shared):
    """The exercises of `memory`."""
    return shared("exercises")
