"""The pages for a room: one for each view that asks, with the picture that does not hold the answer."""

from html.parser import HTMLParser

import pytest
from cases import refused

from scaleout import views
from scaleout.page import projector


class Read(HTMLParser):
    """Words outside scripts, and the addresses that a page names."""

    def __init__(self, text):
        super().__init__()
        self.words, self.named, self.tag = "", [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tag = tag
        self.named += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data):
        self.words += "" if self.tag == "script" else data


@pytest.mark.parametrize("stem", projector.stems())
def test_a_page_asks_and_does_not_answer(stem):
    read = Read(projector.page_html(stem))
    question = next(one for one in views._view(stem).CONTROLS if one.kind == "guess").label.replace("**", "")
    assert question in " ".join(read.words.split())
    answer = views.question(stem)["words"]
    assert answer not in read.words or answer.split()[-1].isdigit()  # a count may be of something else
    assert views.render(stem)["sentence"].replace("**", "") not in read.words
    assert read.named and all(one.startswith("../") for one in read.named)


def test_what_asks_nothing_has_no_page():
    assert "front" not in projector.stems() and "collectives" in projector.stems()
    with pytest.raises(StopIteration):
        projector.page_html("front")
    refused(lambda: views.question("front"), "front asks for no guess")


def test_an_instructor_finds_the_question_and_the_card(monkeypatch):
    markup = projector.room_html("collectives", "../../")
    assert 'href="../../projector/collectives.html"' in markup and 'href="../../cards/collectives.html"' in markup
    monkeypatch.setattr(projector.cards, "stems", list)  # no chapter has one
    assert "cards/" not in projector.room_html("collectives", "../../")
