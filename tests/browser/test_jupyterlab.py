"""The notebook form in a real JupyterLab: run the cell, move the slider by keyboard, watch the picture; and a
chapter as it opens, before anything ran."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from driver import violations
from repo import ROOT

from scaleout import exercises, views

CELLS = (
    "from scaleout import show, show_exercise",
    "show('memory', batch=2)",
    "show_exercise('memory', 'states-function')",
    "show('memory', 'again')",
)
CHAPTER = ROOT / "notebooks" / "10_collectives.ipynb"
THEME = "lab/user-settings/@jupyterlab/apputils-extension/themes.jupyterlab-settings"  # in the folder of settings
PAGE = "labconfig/page_config.json"  # a chapter reads without that extension, which an older environment may have
PAPER = "rgb(20, 23, 27)"  # of palette.css, in the dark
VIEW = "document.querySelector('#live-memory').live"

# Of each code cell that is there: its place, and whether its code is folded.
SHOWN = """cells => cells.map((cell) =>
  [Number(cell.dataset.windowedListIndex), Boolean(cell.querySelector('.jp-InputPlaceholder'))])"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def notebook() -> dict:
    cells = [
        {
            "cell_type": "code",
            "id": f"cell-{at}",
            "source": source,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for at, source in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A dark JupyterLab with its own folder and settings, a token, on loopback: the address of a notebook in it."""
    home = tmp_path_factory.mktemp("lab")
    (home / "live.ipynb").write_text(json.dumps(notebook()), encoding="utf-8")
    shutil.copy(CHAPTER, home)
    (home / "CONFIG" / THEME).parent.mkdir(parents=True)
    (home / "CONFIG" / THEME).write_text('{"theme": "JupyterLab Dark"}', encoding="utf-8")
    (home / "CONFIG" / PAGE).parent.mkdir()
    (home / "CONFIG" / PAGE).write_text('{"disabledExtensions": {"jupyterlab-myst": true}}', encoding="utf-8")
    port, token = free_port(), secrets.token_hex(16)
    own = {f"JUPYTER_{name}_DIR": str(home / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        f"--ServerApp.root_dir={home}",
        f"--IdentityProvider.token={token}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    server = subprocess.Popen(
        command,
        env={**os.environ, **own, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=(home / "log").open("w"),
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(150):
            try:
                urllib.request.urlopen(f"{address}/api?token={token}", timeout=1)
                break
            except OSError:
                time.sleep(0.2)
        else:
            pytest.fail(f"JupyterLab did not start: {(home / 'log').read_text()[-2000:]}")
        opened = lambda name: f"{address}/lab/tree/{name}?token={token}&reset"  # noqa: E731 (with a folder beside it)
        opened.home = home
        yield opened
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


@pytest.fixture
def notebook_page(context, lab):
    """The notebook, opened and run."""
    page = context.new_page()
    page.set_default_timeout(90_000)  # a busy machine: an endless loop may have six times its 5 seconds
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(lab("live.ipynb"))
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.get_by_role("menuitem", name="Run").click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    yield page
    page.close()
    assert [error for error in errors if "live" in error.lower()] == []


def test_the_widget_lives_in_jupyterlab(notebook_page):
    page = notebook_page
    widget = page.locator("#live-memory[data-mounted]")
    pictures = widget.locator(".live-stage")
    before = pictures.inner_html()
    assert page.evaluate(f"{VIEW}.values") == views.render("memory", {"batch": 2})["values"]
    widget.locator("[data-name=batch] input").focus()
    page.keyboard.press("ArrowRight")  # JupyterLab would take the key, were it let
    page.keyboard.press("ArrowRight")
    want = views.render("memory", {"batch": 4})
    page.wait_for_function(
        "([words]) => document.querySelector('.live-sentence').textContent === words",
        arg=[want["sentence"].replace("**", "")],
    )
    assert page.evaluate(f"{VIEW}.values") == want["values"]
    assert pictures.inner_html() != before
    assert page.evaluate("document.activeElement.type") == "range"
    check_code(page)
    check_look(page)


def check_code(page) -> None:
    """The exercise beside it: an endless loop is stopped, the kernel lives on, the solution is right."""
    task = page.locator("#live-memory-states-function[data-mounted]")
    area = task.get_by_role("textbox", name="Your code")
    area.fill("while True:\n    pass\n")
    area.press("Control+Enter")
    message = "document.querySelector('#live-memory-states-function .live-message')"
    page.wait_for_function(f"{message}.textContent.includes('topped after 5')")
    solution = exercises.spec("memory", "states-function")["solution"].split("```python\n")[1].split("```")[0]
    area.fill(solution)
    area.press("Control+Enter")
    page.wait_for_function(f"{message}.dataset.ok === 'true'")


def check_look(page) -> None:
    """All of them: dark and to be read, as wide as their cells, each with its own controls."""
    widgets = page.locator(".live-widget")
    assert widgets.evaluate_all("all => all.map((one) => getComputedStyle(one).backgroundColor)") == [PAPER] * 3
    assert violations(page, ("color-contrast",), ".jp-Notebook .live-widget") == []
    room = "all => all.map((one) => one.closest('.jp-OutputArea-output').clientWidth - one.offsetWidth)"
    assert widgets.evaluate_all(room) == [0] * 3
    assert page.locator(".live-segments").count() == page.locator(".live-segments:has(:checked)").count() > 1


def test_a_chapter_reads_before_it_is_run(context, lab):
    page = context.new_page()
    page.set_viewport_size({"width": 1280, "height": 3000})  # what is not near it is not there
    page.goto(lab(CHAPTER.name))
    page.get_by_role("heading", name="Build it").wait_for()
    box = page.locator("div.admonition", has=page.locator("strong", has_text="When you are done"))
    assert "explain ring all-reduce" in box.inner_text()
    for summary in re.findall("<summary>(.+)</summary>", CHAPTER.read_text(encoding="utf-8"))[:2]:
        text = page.locator("details", has_text=summary)  # what a word means, and what the reader should have seen
        assert text.get_attribute("open") is None and text.locator("mjx-container").count() > 3
    assert page.locator("div.admonition.ineq mjx-container[display=true]").count() == 1
    text = page.locator(".jp-Notebook").inner_text()
    assert [raw for raw in (":::", ":class:", "{term}", "{cite", "```") if raw in text] == []
    assert "/book/glossary.md" in page.get_by_role("link", name="rank", exact=True).get_attribute("href")
    assert "rank 0rank 1" not in text and page.get_by_text("Run this cell to see the picture.").count() > 0
    assert page.locator(".live-stage:visible").count() == 0 < page.get_by_text("Run this cell to use it.").count()
    cells = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    shown = page.locator(".jp-CodeCell").evaluate_all(SHOWN)
    assert {at: folded(cells[at]) for at, _ in shown} == dict(map(tuple, shown)) != {}
    check_unchanged(page, lab.home / CHAPTER.name)
    page.close()


def check_unchanged(page, file) -> None:
    """Who reads a chapter and saves it leaves the file as it was, but for the version of another Python."""
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()  # what the kernel says of itself is in the file then
    before = file.stat().st_mtime_ns
    page.get_by_role("menuitem", name="File").click()
    saved = re.compile(rf"/api/contents/{re.escape(file.name)}\?")
    with page.expect_response(lambda one: one.request.method == "PUT" and saved.search(one.url)):
        page.get_by_role("menuitem", name=re.compile("^Save Notebook(?! As)")).click()
    assert file.stat().st_mtime_ns > before
    stored, read = (json.loads(one.read_text(encoding="utf-8")) for one in (CHAPTER, file))
    for notebook_ in (stored, read):
        del notebook_["metadata"]["language_info"]["version"]
    assert read == stored


def folded(cell: dict) -> bool:
    return bool({"hide-cell", "hide-input", "remove-cell", "remove-input"} & set(cell["metadata"].get("tags", ())))
