"""One table in four forms."""

from scaleout.words import tables

HEAD, ROWS = ("link", "GB/s"), (("NVLink", "450"), ("PCIe", "64"))


def test_markdown_says_which_columns_are_words():
    assert tables.markdown(HEAD, ROWS, ("link",)).splitlines() == [
        "| link | GB/s |",
        "| :--- | ---: |",
        "| NVLink | 450 |",
        "| PCIe | 64 |",
    ]


def test_text_is_aligned_to_either_side():
    assert tables.aligned(HEAD, ROWS, (False, True)).splitlines() == [
        "link    GB/s",
        "------  ----",
        "NVLink   450",
        "PCIe      64",
    ]
    assert tables.aligned(HEAD, (), (False, True)) == "link  GB/s\n----  ----"


def test_columns_are_as_wide_as_told():
    assert tables.columns([("", "A", "B"), ("GPUs", 8, 64)], 6, 4) == "         A   B\nGPUs     8  64"


def test_html_names_its_rows_where_they_have_names():
    assert tables.html(("", "a"), [("<b>", "1")], str.upper, named=True) == (
        '<table><thead><tr><td></td><th scope="col">A</th></tr></thead>'
        '<tbody><tr><th scope="row"><B></th><td>1</td></tr></tbody></table>'
    )
    assert tables.html((), [("x", "1")], str) == "<table><tbody><tr><td>x</td><td>1</td></tr></tbody></table>"
