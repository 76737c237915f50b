"""The commands behind make: what they do with good input, and the one line they print for bad."""

import json
import os
import subprocess
import sys
import threading
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import repo
from cases import refused

sys.path.insert(0, str(repo.ROOT / "tools"))

import build_site
import serve

import notebooks
from scaleout import exercises


def cell(source, **more):
    return {
        "cell_type": "code",
        "id": "a-b",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": source,
    } | more


def test_a_notebook_names_what_may_be_used_of_its_machine(monkeypatch):
    """As labs count it: a container's limit, and not all that the host has."""
    monkeypatch.setattr(notebooks.limits, "cores", lambda: 3)
    monkeypatch.setattr(notebooks.limits, "memory", lambda: 5 * 2**30)
    assert notebooks.machine().endswith(", 3 cores, 5 GiB")


@pytest.fixture
def draft(tmp_path):
    """Write a notebook of these code cells; its path."""

    def write(*sources):
        path = tmp_path / "draft.ipynb"
        content = {
            "cells": [cell(text, id=f"draft-{i}") for i, text in enumerate(sources)],
            "metadata": {"widgets": {"x": 1}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        path.write_text(json.dumps(content))
        return path

    return write


def test_a_notebook_is_run_and_stored_without_the_kernel_form_of_widgets(draft):
    path = draft(
        "from IPython.display import display\n"
        "display({'text/html': '<b>1</b>', 'application/vnd.jupyter.widget-view+json': {}}, raw=True)",
        "import sys\nfor i in range(3):\n    print(i, flush=True)\nprint('e', file=sys.stderr)\n1 + 1",
    )
    assert notebooks.run(path) > 0
    stored = json.loads(path.read_text())
    first, second = stored["cells"]
    assert [first["execution_count"], second["execution_count"]] == [1, 2]
    assert list(first["outputs"][0]["data"]) == ["text/html"]
    printed, warned, result = second["outputs"]
    assert result["data"]["text/plain"] == ["2"]
    assert (printed["output_type"], warned["output_type"]) == ("stream", "stream")
    assert "".join(printed["text"]) == "0\n1\n2\n", "in one piece"
    assert [first["id"], second["id"]] == ["draft-0", "draft-1"]
    assert set(stored["metadata"]) == {"execution", "kernelspec", "language_info"}
    assert "execution" not in first["metadata"]
    assert "cores" in stored["metadata"]["execution"]["machine"]


def test_widgets_are_stored_again_without_running_the_rest(draft):
    call = 'show_exercise("memory", "weights-70b")'
    path = draft("from scaleout import show_exercise", call, "1 / 0", f"x = {call}")
    before = notebooks.read(path)
    assert notebooks.renew_widgets(path) > 0
    after = notebooks.read(path)
    assert [bool(cell.outputs) for cell in after.cells] == [False, True, False, False]
    shown = after.cells[1].outputs[-1]
    assert exercises.exercise("memory", "weights-70b").title in shown["data"]["text/html"]
    assert notebooks.WIDGET not in shown["data"] and shown.get("execution_count", 2) == 2
    assert [cell.execution_count for cell in after.cells] == [1, 2, 3, 4], "as if all had run"
    assert [cell.source for cell in after.cells] == [cell.source for cell in before.cells]


def test_a_notebook_whose_cell_fails_is_left_as_it_was(draft):
    path = draft("1", "1 / 0")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"(?s)was not stored.*ZeroDivisionError"):
        notebooks.run(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("tags", "metadata"),
    [
        ([], {}),
        (["nbval-ignore-output"], {}),
        (["hide-output"], {"collapsed": True, "jupyter": {"outputs_hidden": True}}),
        (["remove-input"], {"cellView": "form", "jupyter": {"source_hidden": True}}),
        (
            ["hide-cell"],
            {"cellView": "form", "collapsed": True, "jupyter": {"outputs_hidden": True, "source_hidden": True}},
        ),
    ],
)
def test_what_a_tag_hides_on_the_site_is_folded_in_editors(tags, metadata):
    made = notebooks.nbformat.from_dict(cell("1", metadata={"tags": tags, "cellView": "form", "jupyter": {"x": 1}}))
    notebooks.fold(made)
    assert made.metadata == {"tags": tags, **metadata}


def test_a_check_that_is_folded_says_that_it_is_one():
    made = notebooks.nbformat.from_dict(cell("assert 1", metadata={"tags": ["remove-cell"]}))
    notebooks.fold(made)
    notebooks.fold(made)
    assert made.source == "# Checks what the text says\nassert 1"


def test_a_directive_of_prose_stands_between_colons():
    fenced = "```{admonition} A\n:class: done\n1. b\n```\nc\n\n```{chapter-card} d\n```\n"
    assert notebooks.colons(fenced) == ":::{admonition} A\n:class: done\n\n1. b\n:::\nc\n\n:::{chapter-card} d\n:::\n"
    for kept in ("```python\n1\n```", "```{code-block} text\n1\n```", notebooks.colons(fenced)):
        assert notebooks.colons(kept) == kept


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"nbformat": 4}'])
def test_what_is_no_notebook_is_refused(tmp_path, content):
    path = tmp_path / "x.ipynb"
    path.write_text(content)
    refused(lambda: notebooks.run(path), "is no notebook")


def test_a_notebook_that_is_not_there_is_one_line_and_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["notebooks.py", "no-such.ipynb"])
    assert notebooks.main() == 2
    assert capsys.readouterr().err.startswith("\nnotebooks: no-such.ipynb is no notebook: ")


@pytest.fixture
def site(tmp_path):
    """A served folder with a first page, a module and a page for what is missing."""
    for name, text in {"index.html": "first", "404.html": "none", "m.mjs": "", "p.wasm": ""}.items():
        (tmp_path / name).write_text(text)
    running = serve.server(tmp_path)
    threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()


@pytest.mark.parametrize(("name", "kind"), [("m.mjs", "text/javascript"), ("p.wasm", "application/wasm")])
def test_modules_and_wasm_are_served_as_such(site, name, kind):
    assert urlopen(f"{site}/{name}").headers["Content-Type"] == kind


def test_a_missing_page_is_the_sites_own(site):
    with pytest.raises(HTTPError) as caught:
        urlopen(f"{site}/no/such/page.html")
    assert caught.value.code == 404
    assert caught.value.read() == b"none"


def test_a_port_in_use_is_passed_over(tmp_path):
    (tmp_path / "index.html").write_text("x")
    with serve.server(tmp_path) as first, serve.server(tmp_path, first.server_port) as second:
        assert second.server_port > first.server_port


def run(command, folder, **more):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, **more)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["tools/serve.py", "no-such-folder"], "run make site first"),
        (["tools/serve.py", "_build", "--port", "99999"], "from 1 to 65000"),
        (["tools/bench.py", "no-such-part"], "use"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command, words):
    done = run([sys.executable, *command], repo.ROOT)
    assert done.returncode == 2
    assert words in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("programs", "words"),
    [((), "git is missing"), (("git",), "Python 3.11 or newer is missing")],
)
def test_setup_says_what_is_missing(tmp_path, programs, words):
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    setup = repo.ROOT / "tools" / "setup.sh"
    done = run(["/bin/sh", str(setup)], tmp_path, env={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert words in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_make_shows_why_npm_failed(tmp_path):
    """Of a registry that nobody answers for, in npm's own words."""
    (tmp_path / "book").mkdir()
    for name in ("Makefile", "book/package.json", "book/package-lock.json"):
        (tmp_path / name).write_text(repo.text(name))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    (tmp_path / ".venv" / ".ready").touch()
    nowhere = {
        "npm_config_registry": "http://127.0.0.1:1/",
        "npm_config_cache": str(tmp_path / "cache"),
        "npm_config_fetch_retries": "0",
    }
    apart = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of a make outside
    done = run(["make", "-o", ".venv/.ready", "book/node_modules/.ready"], tmp_path, env={**apart, **nowhere})
    assert done.returncode == 2 and done.stdout == ""
    said = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert any("ECONNREFUSED" in line for line in said[:-1])
    assert said[-1] == "make: npm could not install book/package.json: its reason is above"


def test_a_log_is_cut_down_to_what_is_wrong():
    log = "Run\n\x1b[91m/x/a.md:3: WARNING: no term\x1b[39m\nTraceback\nSphinx error:\nno page\nRuntimeError"
    assert build_site.problems(log) == ["/x/a.md:3: WARNING: no term", "no page"]
