"""Cards: what is on them is so, and the box and the sheet are of one source."""

import json
import re

import pytest
from cases import refused
from repo import text
from tex import value

from scaleout.collectives import messages
from scaleout.collectives.alpha_beta import bus_bandwidth, bus_factor, cost
from scaleout.draw import patterns
from scaleout.page import cards
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import ALPHA_SECONDS, LINKS
from scaleout.spec.topology import Wire

CARD = cards.load("collectives")
RATE, NVLINK = LINKS["ib-ndr"].one_way_bytes_per_s, LINKS["nvlink4"].one_way_bytes_per_s
BF16 = DEVICES["h100-sxm"].bf16_flop_per_s
INSIDE, BETWEEN = ALPHA_SECONDS["between GPUs"], ALPHA_SECONDS["between nodes"]


def ring(ranks, size=10**9, alpha=0.0):
    return cost("all_reduce", "ring", size, ranks, Wire(alpha, RATE))


def measured():
    return json.loads(text("tests/published/allreduce_measured.json"))["h200_8_gpus_16GiB"]["all_reduce_ring"]


def test_every_number_is_the_packages():
    found = [
        ", ".join(f"{ring(ranks).sent_bytes / 1e9:.2f}" for ranks in (2, 4, 8)),
        f"{NVLINK / 1e9:.0f} GB/s",
        f"{RATE / 1e9:.0f} GB/s",
        f"{INSIDE * 1e6:.1f} and {BETWEEN * 1e6:.1f} µs",
        f"{BETWEEN * RATE / 1e3:.0f} kB",
        f"{measured() / (NVLINK / 1e9):.0%}",
        f"{round(BF16 / RATE, -3):,.0f}",
        f"{round(BF16 / NVLINK, -2):,.0f}",
    ]
    assert [one["value"] for one in CARD["numbers"]] == found
    assert RATE * 8 == 400e9


@pytest.mark.parametrize(("ranks", "size"), [(2, 10**6), (4, 10**9), (7, 12_345_678)])
def test_formulas_give_what_the_model_gives(ranks, size):
    by_tex = [one["tex"] for one in CARD["formulas"]]
    of = {"W": ranks, "n": size, "alpha": BETWEEN, "beta": 1 / RATE}
    message, sent, seconds, bound = (tex.removeprefix("t = ") for tex in by_tex)
    assert value(message, **of) == pytest.approx(cost("send", "direct", size, 2, Wire(BETWEEN, RATE)).seconds)
    assert value(sent, **of) == pytest.approx(ring(ranks, size).sent_bytes)
    assert value(seconds, **of) == pytest.approx(ring(ranks, size, BETWEEN).seconds)
    assert bound == r"\frac{n}{W} > \frac{\alpha}{\beta}"
    at_the_bound = ring(ranks, ranks * BETWEEN * RATE, BETWEEN)  # there the two terms are equal
    assert at_the_bound.latency_seconds == pytest.approx(at_the_bound.seconds / 2)


def test_bus_bandwidth_is_algorithm_bandwidth_times_the_rings_share():
    words = next(one["words"] for one in CARD["symbols"] if "busbw" in one["tex"])
    assert words.startswith(r"$2(W-1)/W \cdot \text{algbw}$")
    for ranks in (2, 3, 8):
        assert bus_factor("all_reduce", ranks) == 2 * (ranks - 1) / ranks
        assert bus_bandwidth("all_reduce", 10**9, ranks, 0.5) == pytest.approx(2e9 * 2 * (ranks - 1) / ranks)


def test_the_table_counts_what_the_messages_do():
    names = {
        "all to one, and back": "naive",
        "ring": "ring",
        "double tree": "tree",
        "halving-doubling": "halving-doubling",
        "switches that add": "in-network",
    }
    rows = CARD["tables"][0]["rows"]
    assert [row[0] for row in rows] == list(names)
    for name, starts, sends, _ in rows:
        for ranks in (4, 8, 16):
            moves = messages.messages("all_reduce", names[name], ranks)
            parts = messages.sizes("all_reduce", names[name], 10**9, ranks)
            of = {"W": ranks, "n": 10**9}
            assert value(sends.strip("$"), **of) == pytest.approx(max(messages.sent(moves, parts, ranks + 1)[:ranks]))
            wanted = (
                cost("all_reduce", names[name], 10**9, ranks, Wire(0, 1e9)).steps
                if "add" in name
                else (1 + max(move.step for move in moves))
            )
            assert value(starts.strip("$"), **of) == wanted, name


@pytest.mark.parametrize("stem", cards.stems())
def test_symbols_are_the_notations(stem):
    """Of the book, or of this one chapter."""
    everywhere, own = text("book/notation.md").split("## In one chapter")
    rows = re.split(r"^\| \[(\d\d)\]", own, flags=re.M)
    mine = dict(zip(rows[1::2], rows[2::2], strict=True)).get(cards.title(stem)[0], "")
    known = set(re.findall(r"\$([^$]+)\$", "".join(re.findall(r"^\| (\$.+?\$) \|", everywhere, re.M))))
    known |= set(re.findall(r"\$([^$]+)\$", "".join(re.findall(r"\| (\$.+?\$) \|", mine)))) | {r"R\beta"}
    for one in cards.load(stem)["symbols"]:
        wanted = re.split(r",\\?\s*", one["tex"])
        assert {*wanted} <= known or one["tex"].startswith(r"\text"), (one, known)


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("broadcast", "tree"), ("reduce_scatter", "ring"), ("all_gather", "ring"), ("all_reduce", "ring")],
)
def test_a_pattern_is_what_its_messages_do(collective, algorithm):
    before, after = patterns.states(collective)
    moves = messages.messages(collective, algorithm, patterns.RANKS)
    chunks = messages.chunk_count(collective, algorithm, patterns.RANKS)
    start = tuple(tuple(messages.Counter(parts[c]) for c in range(chunks)) for parts in before)
    end = messages.run(moves, start)[-1]
    for rank, parts in enumerate(after):
        for part in range(chunks):
            # what a reduce-scatter has passed on stays where it was, and is out of date
            assert not parts[part] or set(end[rank][part]) == parts[part]
    assert patterns.states("reduce_scatter")[1] == patterns.states("all_gather")[0]


def test_the_sheet_and_the_box_are_of_one_source():
    sheet, box = cards.sheet_html("collectives"), cards.box_html("collectives", "../cards/collectives.html")
    assert sheet.count("<math") > 20 and "\\(" not in sheet and "<script" not in sheet
    assert box.count('class="math') > 10 and 'href="../cards/collectives.html"' in box
    for one in CARD["numbers"]:
        assert f"<dt>{one['value']}</dt>" in sheet and f"<dt>{one['value']}</dt>" in box
    assert sheet.count("<svg") == 6 and 'href="../notebooks/10_collectives.html#card-collectives"' in sheet
    assert all(line.split("$")[-1].strip() in sheet for line in CARD["yours"]["lines"])


def test_what_is_no_card_is_refused():
    refused(
        lambda: cards.load("zero_g"),
        "there is no card 'zero_g': use one of architecture, bottlenecks, budget, capstone",
    )
