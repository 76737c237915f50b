"""What a stored notebook must be. That its outputs are current is nbval's to say (`make test`)."""

import configparser
import json
import re

import house
import nbformat
import pytest
import repo

import notebooks
from scaleout.page import cells, live, plots

NOTEBOOKS = [name for name in repo.with_suffix(".ipynb") if name.startswith("notebooks/")]
ARC = ["The limit", "Predict", "Build it", "Use it", "Measure it", "What it costs", "Diagnose it",
       "Check yourself", "Sources"]  # fmt: skip
TAGS = {"nbval-ignore-output", "live", "hide-cell", "hide-input", "hide-output", "remove-input", "remove-cell",
        "remove-output", "scroll-output"}  # fmt: skip
MAX_BYTES = 1_000_000
LIVE_LINES, LIVE_COLUMNS = 30, 72  # of a cell that a reader reads, changes and runs
ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:home|root|work|tmp|usr|opt|Users|mnt|var|private)/\w")
GOOD_ID = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+")


@pytest.fixture(params=NOTEBOOKS)
def name(request):
    return request.param


@pytest.fixture
def notebook(name):
    return json.loads(repo.text(name))


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def tags(cell):
    return set(cell["metadata"].get("tags", []))


def test_there_is_a_notebook():
    assert "notebooks/01_memory.ipynb" in NOTEBOOKS


def test_every_cell_ran_in_order(notebook):
    counts = [cell["execution_count"] for cell in code(notebook)]
    assert counts == list(range(1, len(counts) + 1))


def test_no_cell_failed(notebook):
    outputs = [output for cell in code(notebook) for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]


def test_ids_are_names_that_stay(name, notebook):
    stem = re.fullmatch(r"notebooks/\d\d_(\w+)\.ipynb", name).group(1)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert not [one for one in ids if not GOOD_ID.fullmatch(one) or not one.startswith(stem)]


def test_no_widget_state_is_stored(notebook):
    assert "widgets" not in notebook["metadata"]
    assert "application/vnd.jupyter.widget-view+json" not in json.dumps(notebook["cells"])


def test_outputs_hold_no_path_of_a_machine(notebook):
    for cell in code(notebook):
        found = ABSOLUTE.search(json.dumps(cell["outputs"]))
        assert not found, f"{cell['id']}: {found.group()}"


def test_it_is_small(name):
    assert (repo.ROOT / name).stat().st_size < MAX_BYTES


def test_only_known_tags(notebook):
    for cell in notebook["cells"]:
        assert tags(cell) <= TAGS, cell["id"]


def test_it_reads_in_any_editor(name):
    stored, again = (nbformat.reads(repo.text(name), as_version=4) for _ in range(2))
    notebooks.make_readable(again)
    assert [cell.id for cell, was in zip(again.cells, stored.cells, strict=True) if cell != was] == [], (
        f"run .venv/bin/python tools/notebooks.py {name}"
    )


def test_an_output_that_is_not_compared_is_asserted_next(notebook):
    cells = code(notebook)
    for cell, following in zip(cells, [*cells[1:], None], strict=True):
        if "nbval-ignore-output" in tags(cell):
            assert following and "assert" in "".join(following["source"]), cell["id"]


def test_a_live_cell_is_short_pure_and_shows_what_a_run_on_the_page_gives(notebook):
    above = []
    for cell in (cell for cell in code(notebook) if "live" in tags(cell)):
        source = cells.name_and_code("".join(cell["source"]))[1]
        lines = source.splitlines()
        assert len(lines) <= LIVE_LINES and max(map(len, lines)) <= LIVE_COLUMNS, cell["id"]
        shown = "\n".join("".join(one.get("text") or one["data"]["text/plain"]) for one in cell["outputs"])
        ran = live.execute(source, above)
        assert (ran["error"], ran["output"].split()) == ("", shown.split()), cell["id"]
        assert house.foreign({"scaleout.page.live": source}, house.FLOORS) == [], cell["id"]
        above.append(source)


def test_a_figure_is_in_the_palette_as_wide_as_a_phone_can_show_and_said_in_words(notebook):
    for cell in code(notebook):
        for figure in ("".join(one.get("data", {}).get("image/svg+xml", "")) for one in cell["outputs"]):
            if figure:
                assert plots.strange(figure) == set(), cell["id"]
                assert 'width="360pt"' in figure, cell["id"]
                assert len(cell["metadata"]["mystnb"]["image"]["alt"]) > 40, cell["id"]


def test_the_arc_is_whole_and_in_order(notebook):
    markdown = [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    prose = "\n".join("".join(cell["source"]) for cell in markdown)
    assert re.findall(r"^## (.+?)\s*$", prose, re.M) == ARC


def test_it_says_how_it_was_run(notebook):
    run = notebook["metadata"]["execution"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
    assert run["seconds"] > 0 and "Python 3" in run["versions"] and "cores" in run["machine"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_in_the_contents(name):
    assert f"file: {name.removesuffix('.ipynb')}\n" in repo.text("_toc.yml")


def test_only_the_names_of_clip_paths_are_not_compared():
    """In a stored figure the replacement meets clip paths and what refers to them, and no coordinate."""
    config = configparser.ConfigParser()
    config.read_string(repo.text("tests/nbval.cfg"))
    (section,) = config.sections()
    found = re.compile(config[section]["regex"])
    figure = '<clipPath id="p62ffc591ef"><rect x="57.45776" y="7.2"/></clipPath><path clip-path="url(#p62ffc591ef)"/>'
    assert found.sub("p-clip", figure) == figure.replace("p62ffc591ef", "p-clip")
    cells = [cell for name in NOTEBOOKS for cell in code(json.loads(repo.text(name)))]
    stored = [
        "".join(out["data"]["image/svg+xml"])
        for cell in cells
        for out in cell["outputs"]
        if "image/svg+xml" in out.get("data", {})
    ]
    assert len(stored) > 5 and {one for plot in stored for one in found.findall(plot)} == {
        one for plot in stored for one in re.findall(r'clipPath id="([^"]*)"', plot)
    }
