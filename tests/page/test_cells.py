"""Cells that run in the page: what a run gives, in the kernel as on the page, and their frame on the site."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.utils import new_document
from sphinx.errors import SphinxError

from scaleout.page import cells, live
from scaleout.page.widget import answer


def execute(source, *above):
    return live.call("execute", {"source": source, "above": above})


def test_a_cell_prints_and_ends_in_a_value_as_in_a_notebook():
    for source, output in {
        "print('a', 'b')\nprint('c')": "a b\nc\n",
        "x = 3\nx * 2": "6\n",
        "print('first')\n'it'": "first\n'it'\n",
        "None": "",
        "x = 3": "",
        "": "",
        "import sys\nprint('to', file=sys.stderr)": "to\n",
        "__name__": "'__main__'\n",
        "def f(x: int): ...\nf.__annotations__": "{'x': <class 'int'>}\n",  # no __future__ of the book's own
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    b: int\nA(1)": "A(b=1)\n",
    }.items():
        assert execute(source) == {"output": output, "error": "", "cell": 0}, source


def test_a_cell_builds_on_those_above_and_leaves_nothing_behind():
    above = "def twice(x):\n    return 2 * x\nprint('dropped')", "two = twice(1)"
    assert execute("twice(two)", *above) == {"output": "4\n", "error": "", "cell": 2}
    assert execute("two")["error"] == "line 1: NameError: name 'two' is not defined"


def test_an_error_is_one_line_with_its_number_and_its_cell():
    for source, words in {
        "x = 1\nprint('so far')\nx / 0": "line 3: ZeroDivisionError: division by zero",
        "x = (1,\ny = 2": "line 1: '(' was never closed",
        "\ndef f(x)\n    pass": "line 2: expected ':'",
        "raise ValueError('two\\nlines')": "line 1: ValueError: two lines",
        "import sys\nsys.exit(3)": "line 2: SystemExit: 3",
        "raise KeyboardInterrupt": "line 1: KeyboardInterrupt",
        "def f():\n    return f()\nf()": "line 2: RecursionError: maximum recursion depth exceeded",
        "class A:\n    def __repr__(self):\n        return 1 / 0\nA()": "line 3: ZeroDivisionError: division by zero",
    }.items():
        assert execute(source)["error"] == words, source
    assert execute("print('so far')\n1 / 0")["output"] == "so far\n"
    fails = "def f(x):\n    return 1 / x", "print('dropped')\nf(0)"
    assert execute("1", *fails) == {
        "output": "",
        "error": "line 2: ZeroDivisionError: division by zero",
        "cell": 1,
    }
    assert execute("\n\nf(0)", fails[0])["error"].startswith("line 3: ")  # the reader looks at this cell


def test_output_has_a_length():
    full = execute("for _ in range(10**5): print('0123456789')")
    assert len(full["output"]) == live.CELL_OUTPUT + len("\n… and more") and full["output"].endswith("\n… and more")
    assert json.loads(live.call_json("execute", '{"source": "chr(0xd800)"}'))["error"] == ""


def test_the_kernel_ends_a_cell_that_does_not_end():
    assert answer("execute", {"source": "print(1 + 1)"}) == {"output": "2\n", "error": "", "cell": 0}
    assert live.runs_learner_code("execute", {})


def test_the_first_comment_is_the_name():
    assert cells.name_and_code("# Ring all-reduce\n\nx = 1") == ("Ring all-reduce", "x = 1")
    assert cells.name_and_code("x = 1  # one") == ("Python", "x = 1  # one")
    before, after = cells.frame("a </script> & b")
    assert "a &lt;/script&gt; &amp; b" in before
    assert json.loads(re.search(r"<script[^>]*>(.*?)</script>", after).group(1))["name"] == "a </script> & b"


def hidden(mode, kind, prompt="The book's words"):
    """A document with one cell that hides a part, and gives text or a picture."""
    given = nodes.container("", nodes.container(mime_type=kind))
    cell = nodes.container("", nodes.container(), given, hide_mode=mode, prompt_show=prompt, prompt_hide="Hide")
    document = new_document("page")
    document += cell
    return document, cell


@pytest.mark.parametrize(
    ("mode", "kind", "prompt", "words"),
    [
        ("all", "image/png", "The book's words", "The book's words"),
        ("input", "text/plain", "The book's words", "The book's words"),
        ("input", "image/svg+xml", "The book's words", "How this figure was drawn"),
        ("output", "text/plain", "The book's words", "What it prints"),
        ("output", "text/plain", "The cell's own", "The cell's own"),
    ],
)
def test_a_fold_says_what_is_in_it(mode, kind, prompt, words):
    document, cell = hidden(mode, kind, prompt)
    app = SimpleNamespace(config=SimpleNamespace(nb_code_prompt_show="The book's words"))
    cells.name_folds(app, document)
    assert (cell["prompt_show"], cell["prompt_hide"]) == (words, words)


def test_hidden_code_stands_beneath_what_it_gives():
    for mode, swapped in (("input", True), ("output", False), ("all", False)):
        document, cell = hidden(mode, "text/plain")
        code, given = cell.children
        cells.fold_beneath(None, document, "page")
        assert cell.children == ([given, code] if swapped else [code, given])


def page(output, tag="tag_live"):
    """A document with one cell."""
    document = new_document("page")
    code = nodes.container("", nodes.literal_block("", "# A name\nx = 1"), classes=["cell_input"])
    document += nodes.container("", code, nodes.container("", output), classes=["cell", tag])
    return document


def test_live_cells_get_a_frame_and_no_others():
    document = page(nodes.literal_block("", "1"))
    cells.frame_live_cells(None, document, "page")
    before, code, output, after = document[0].children
    assert 'data-form="cell"' in before.astext() and "live-data" in after.astext()
    assert (code.astext(), output.astext()) == ("x = 1", "1")
    plain = page(nodes.literal_block("", "1"), "tag_hide-input")
    cells.frame_live_cells(None, plain, "page")
    assert plain[0][0].astext() == "# A name\nx = 1"
    with pytest.raises(SphinxError, match="page: a live cell shows text"):
        cells.frame_live_cells(None, page(nodes.image()), "page")
