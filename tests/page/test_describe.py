"""What a search engine says of each page: one line a page, short enough to be shown whole, no two alike."""

import pytest
import yaml
from repo import ROOT, text

from scaleout.page import cards, describe, projector

CONTENTS = yaml.safe_load(text("_toc.yml"))
LONGEST = 180  # characters that are shown


def pages():
    """Names of all pages of the contents, of the cards and of the projector pages."""

    def inside(entry):
        yield entry.get("file") or entry.get("root")
        for part in ("parts", "chapters", "sections"):
            for one in entry.get(part, ()):
                yield from inside(one)

    return [
        *(name for name in inside(CONTENTS) if name),
        *(f"cards/{stem}" for stem in cards.stems()),
        *(f"projector/{stem}" for stem in projector.stems()),
    ]


def test_every_page_has_one_of_its_own_that_is_shown_whole():
    found = {name: describe.description(name) for name in pages()}
    assert len(found) > 40 and len({*found.values()}) == len(found)
    for name, words in found.items():
        assert 60 <= len(words) <= LONGEST and words.endswith(".") and "  " not in words, (name, len(words))
    assert "Explain pipeline bubbles and the 1F1B schedule." in found["notebooks/04_pipeline"]
    assert {*describe.PAGES} <= {*found}, "described, and not there"


def test_a_page_that_nobody_has_described_is_named():
    with pytest.raises(ValueError, match="book/new has no description: give it one in scaleout/page/describe"):
        describe.description("book/new")
    with pytest.raises(ValueError, match="notebooks/99_nothing has no description"):
        describe.description("notebooks/99_nothing")


def test_cards_and_projector_pages_have_it_in_their_heads():
    for name, page in (("cards/tensor", cards.sheet_html("tensor")), ("projector/zero", projector.page_html("zero"))):
        assert f"\n{describe.meta(name)}\n" in page and page.index("<meta name=") < page.index("</head>")
    assert (ROOT / "book" / "cards" / "tensor.yml").is_file()
