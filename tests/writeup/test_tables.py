"""The table at the end of a notebook's cell: its HTML, its text, what it refuses."""

import re

import pytest

from scaleout.writeup import tables


def made():
    return tables.table(
        ["Way", ("rate", "GB/s"), "share"],
        [("ring", 1234.5, "41%"), (("tree", "by <hand>"), 7, None)],
        caption="**Two** ranks. A `file`.",
        best=(0, 1),
    )


def test_numbers_stand_on_the_right_and_the_best_is_marked():
    html = made()._repr_html_()
    cells = re.findall(r"<t[hd]([^>]*)>(.*?)</t[hd]>", html)
    sides = ["right" if 'class="number' in marks and "text-align:right" in marks else "left" for marks, _ in cells]
    assert sides == ["left", "right", "right"] * 3
    assert [words for marks, words in cells if "best" in marks] == ["<strong>1,234.5</strong>"]
    assert 'rate<small style="display:block">GB/s</small>' in html
    assert "by &lt;hand&gt;" in html and "<hand>" not in html
    assert "<caption><strong>Two</strong> ranks. A <code>file</code>.</caption>" in html
    assert 'role="region" aria-label="Two ranks"' in html and 'tabindex="0"' in html


def test_as_text_it_is_aligned():
    assert repr(made()).splitlines() == [
        "Way             rate GB/s  share",
        "--------------  ---------  -----",
        "ring              1,234.5    41%",
        "tree by <hand>          7      –",
        "Two ranks. A file.",
    ]


@pytest.mark.parametrize(
    ("cells", "number"),
    [
        (("1", "2.5", "-3", "−3", "1e-3", "12%", "1.5 ×", "< 1", "–", ""), True),
        (("1 GB",), False),
        (("1", "none"), False),
        (("v2",), False),
    ],
)
def test_a_column_of_numbers(cells, number):
    assert tables.table(["a"], [(cell,) for cell in cells]).numbers() == [number]
    assert tables.table(["a", "a"], [(cell, cell) for cell in cells], left=1).numbers() == [False, True]


def test_a_table_that_does_not_fit_together_is_refused():
    with pytest.raises(ValueError, match="row 1 has 1 cells under 2 columns"):
        tables.table(["a", "b"], [(1, 2), (3,)])
    with pytest.raises(ValueError, match="best is row 2, column 0: the table has 1 and 2"):
        tables.table(["a", "b"], [(1, 2)], best=[(0, 1), (2, 0)])
    assert repr(tables.table(["a"], [])) == "a\n-"
