"""Drawings of what ranks hold and when they are busy: each says what the list of messages says."""

import re
from math import isclose

import pytest

from scaleout.collectives import messages
from scaleout.draw import busy, nodes, patterns, squares, svg
from scaleout.page.prose import UNIT
from scaleout.spec.topology import Wire
from scaleout.writeup.drawings import NARROW, WIDE, drawing

DRAWN = {
    "busy": lambda width: busy.draw(width, 13_500_000_000, 8, 50e9), "six": patterns.six, "three": patterns.three,
    "ring": patterns.ring, "nodes": nodes.draw,
}  # fmt: skip


@pytest.mark.parametrize("way", busy.WAYS)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_card_is_busy_for_the_bytes_of_its_messages(way, ranks):
    size, rate = 10**9, 5e9
    moves, parts = messages.messages("all_reduce", way, ranks), messages.sizes("all_reduce", way, size, ranks)
    found = busy.spans(way, size, ranks, rate)
    for rank, sent in enumerate(messages.sent(moves, parts, ranks)):
        took = sum(end - start for one, does, start, end in found if (one, does) == (rank, "sends"))
        assert isclose(took * rate, sent, rel_tol=1e-6)  # parts differ by a byte
    assert isclose(max(end for *_, end in found), messages.seconds(moves, parts, Wire(0.0, rate)))


def test_all_to_one_keeps_one_card_busy_and_a_ring_all():
    both = {way: busy.spans(way, 8 * 10**9, 8, 1e9) for way in busy.WAYS}
    assert [one for one in both["naive"] if one[0] == 0] == [(0, "receives", 0, 56), (0, "sends", 56, 112)]
    assert [one for one in both["naive"] if one[0] == 7] == [(7, "receives", 104, 112), (7, "sends", 48, 56)]
    assert all(span[2:] == (0, 14) for span in both["ring"]) and len(both["ring"]) == 16
    picture = busy.draw(WIDE, 8 * 10**9, 8, 1e9)
    assert ">110 s<" in picture and ">14 s<" in picture and ">86% of the time<" in picture


def test_the_ring_is_drawn_after_every_step_with_what_leaves_next():
    assert patterns.ring(WIDE).count(f'stroke="{svg.colour("c4")}"') == 4 * 6  # a part from each rank, six times
    whole = squares.draw([(0, 0, [{0, 1, 2, 3}] * 4)], 40, 4)
    assert [path.count("M") for path in re.findall(r'<path d="([^"]*)"', whole)] == [4, 4, 4, 4]


def test_only_a_share_crosses_between_the_nodes():
    share = nodes.GPUS
    before, inside, across, after = nodes.states()
    assert all(part == {rank} for rank, parts in enumerate(before) for part in parts)
    for rank, parts in enumerate(inside):
        node = set(range(rank // share * share, rank // share * share + share))
        assert [part for part in parts if part] == [node] * (len(parts) // share)
        assert [bool(part) for part in across[rank]] == [bool(part) for part in parts]
    everyone = set(range(nodes.RANKS))
    assert all(part in (set(), everyone) for parts in across for part in parts)
    assert all(part == everyone for parts in after for part in parts)
    assert sum(nodes.sent()) == 2 * (nodes.RANKS - 1) / nodes.RANKS, "as few bytes as a ring"


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_words_in_a_drawing_fit_its_width_and_can_be_read(name, width):
    picture = DRAWN[name](width)
    assert f'viewBox="0 0 {width} ' in picture
    for attributes, words in re.findall(r"<text ([^>]*)>([^<]*)<", picture):
        read = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        size = float(read.get("font-size", svg.FONT))
        assert size >= 11, words
        long = svg.measure(words, size, bold="font-weight" in read)
        left = float(read["x"]) - {"start": 0, "middle": long / 2, "end": long}[read["text-anchor"]]
        assert left > -6 and left + long < width + 6, words


def test_a_drawing_reads_anywhere():
    made = drawing(patterns.six, "**Six** of `dist`.")
    html = made._repr_html_()
    assert html.count("<svg") == html.count("var(--paper, #fff)") == 2
    assert html.count('hidden="hidden"><svg') == 2, "no words of a picture where it cannot be shown"
    assert "<figcaption><strong>Six</strong> of <code>dist</code>.</figcaption>" in html
    assert repr(made) == "Six collectives on four ranks, each before and after\nSix of dist."


def test_a_number_keeps_its_unit():
    for words in ("13.5 GB", "50 GB/s", "4 µs", "8 H200", "32 GPUs", "16 GiB", "400 Gbit/s", "14 steps", "2 minutes"):
        assert bool(UNIT.search(words)) == (words not in ("8 H200", "2 minutes")), words
