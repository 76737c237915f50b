"""Markup of notebooks, there and back."""

import pytest

from scaleout.page import markup

YOUNG = "https://doi.org/10.1145/361147.361115"
PAIRS = (
    ("so {cite}`young1974`.", f"so ([Young, 1974]({YOUNG}))."),
    ("- {cite:t}`young1974` and {cite:t}`patarasuk2009`:",
     f"- [Young (1974)]({YOUNG}) and [Patarasuk and Yuan (2009)](https://doi.org/10.1016/j.jpdc.2008.09.002):"),
    ("{cite}`jeaugey2019`{cite}`sanders2009`",
     "([Jeaugey, 2019](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/))"
     "([Sanders et al., 2009](https://doi.org/10.1016/j.parco.2009.09.001))"),
    ("all {term}`ranks <rank>`, {term}`Young's interval`",
     "all [ranks](../book/glossary.md#rank), [Young's interval](../book/glossary.md#Young%27s%20interval)"),
    (":::{source} scaleout/parallel/ring.py::exchange\n**How it sends**\n:::",
     "**How it sends** ([`scaleout/parallel/ring.py::exchange`](../scaleout/parallel/ring.py))"),
    ("Before.\n\n:::{margin}\nOne.\n\n**Two**.\n:::\n\nAfter.", "Before.\n\n> One.\n> \n> **Two**.\n\nAfter."),
    ("::::{dropdown} What you should have seen\n\n1. One.\n2. Two {term}`ranks <rank>`.\n::::\n\nAfter.",
     "<details>\n<summary>What you should have seen</summary>\n\n1. One.\n2. Two "
     "[ranks](../book/glossary.md#rank).\n\n</details>\n\nAfter."),
    ("::::{admonition} A limit\n:class: ineq\n\n$$T \\ge 2R\\beta$$\n\nIf it holds.\n::::",
     '<div class="admonition ineq">\n\n**A limit**\n\n$$T \\ge 2R\\beta$$\n\nIf it holds.\n\n</div>'),
    ("::::{dropdown} Code\n\n:::{source} scaleout/parallel/ring.py\n**How it sends**\n:::\n::::",
     "<details>\n<summary>Code</summary>\n\n**How it sends** "
     "([`scaleout/parallel/ring.py`](../scaleout/parallel/ring.py))\n\n</details>"),
)  # fmt: skip


@pytest.mark.parametrize(("myst", "plain"), PAIRS)
def test_there_and_back(myst, plain):
    assert markup.to_plain(myst) == plain
    assert markup.to_plain(plain) == plain
    assert markup.to_myst(plain) == myst


def test_the_card_is_a_link_to_its_file():
    card = ":::{chapter-card} collectives\n:::"
    assert "(../book/cards/collectives.yml)" in markup.to_plain(card)
    assert markup.to_myst(markup.to_plain(card)) == card


def test_an_author_may_write_three_colons_and_no_class():
    assert markup.to_plain(":::{dropdown} A\nb\n:::\n\n:::{dropdown} C\n\nd\n:::") == (
        "<details>\n<summary>A</summary>\n\nb\n\n</details>\n\n<details>\n<summary>C</summary>\n\nd\n\n</details>"
    )
    assert markup.to_plain(":::{admonition} A\n\nb\n:::") == '<div class="admonition note">\n\n**A**\n\nb\n\n</div>'


@pytest.mark.parametrize(
    "text",
    [
        "[a listing](https://github.com/NVIDIA/nccl/issues/1264)",
        "([somebody, 2020](https://example.org/a))",
        "[rung 06](06_fsdp.ipynb)",
        "1 > 0",
        "a list [1, 2](x)",
    ],
)
def test_other_links_stay(text):
    assert markup.to_plain(text) == markup.to_myst(text) == text


SITE = "https://a.github.io/b/"


@pytest.mark.parametrize(
    ("files", "there"),
    [
        (
            "[rung 06](06_fsdp.ipynb) and [a sweep](10_collectives.ipynb#a-sweep)",
            f"[rung 06]({SITE}notebooks/06_fsdp.html) and [a sweep]({SITE}notebooks/10_collectives.html#a-sweep)",
        ),
        (
            "[here](../book/running.md) [torch](../book/running.md#the-driver), [plan](../book/instructor/ddp.md)",
            f"[here]({SITE}book/running.html) [torch]({SITE}book/running.html#the-driver), "
            f"[plan]({SITE}book/instructor/ddp.html)",
        ),
        (
            "[ranks](../book/glossary.md#rank) [it](../book/glossary.md#Young%27s%20interval)",
            f"[ranks]({SITE}book/glossary.html#term-rank) [it]({SITE}book/glossary.html#term-Young-s-interval)",
        ),
    ],
)
def test_links_to_pages_lead_to_the_site_once_there_is_one(files, there):
    assert markup.to_site(files, SITE) == there and markup.to_files(there, SITE) == files
    assert markup.to_site(there, SITE) == there and markup.to_plain(there) == there
    assert markup.to_site(files, "") == markup.to_files(files, "") == files


def test_a_term_is_found_whatever_its_capitals_and_code_is_no_page():
    there = f"[it]({SITE}book/glossary.html#term-Muon)"
    assert markup.to_site("[it](../book/glossary.md#muon)", SITE) == there
    assert markup.to_files(there, SITE) == "[it](../book/glossary.md#Muon)"
    code = "**How it sends** ([`scaleout/parallel/ring.py`](../scaleout/parallel/ring.py))"
    assert markup.to_site(code, SITE) == code


@pytest.mark.parametrize("key", ["nobody2020", "radford2019gpt2", "young1974,daly2006"])
def test_a_source_that_cannot_be_linked_is_named(key):
    with pytest.raises(ValueError, match=f"`{key}`: book/references.bib has no entry of that key with a url"):
        markup.to_plain(f"{{cite}}`{key}`")


def test_no_two_sources_have_one_address():
    assert len(markup.keys()) == sum("url" in entry.fields for entry in markup.entries().values())
