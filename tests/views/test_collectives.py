"""The widget of `collectives`: the circle and the bar show what the messages do."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from drawn import SVG, marks

from scaleout import views
from scaleout.collectives import alpha_beta as c
from scaleout.collectives import messages
from scaleout.draw import parcels, ramp, rank_circle, svg
from scaleout.spec.topology import Wire
from scaleout.views import collectives as view

RECORDS = Path(__file__).parents[2] / "labs" / "results" / "collectives"


def render(width=svg.WIDE, **params):
    return views.render("collectives", params, width)


def place(group):
    return tuple(map(float, re.fullmatch(r"translate\((\S+) (\S+)\)", group.get("transform")).groups()))


# --- the circle ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", view.SHOWN)
@pytest.mark.parametrize("ranks", [2, 3, 8, 11])
def test_what_is_drawn_is_what_the_messages_do(algorithm, ranks):
    shown = parcels.frames(algorithm, ranks)
    moves = messages.messages("all_reduce", algorithm, ranks, parcels.BLOCKS)
    states = messages.run(moves, messages.start("all_reduce", ranks, shown.chunks, algorithm == "in-network"))
    held = [
        [[Counter(q for q in range(ranks) if cell >> q & 1) for cell in rank] for rank in state] for state in shown.held
    ]
    assert held == [[list(rank) for rank in state] for state in states]
    for step, under_way in enumerate(shown.parcels):
        sent = [(one.source, one.target, chunk, one.adds) for one in under_way for chunk in one.chunks]
        assert sorted(sent) == sorted((m.source, m.target, m.chunk, m.adds) for m in moves if m.step == step)
    values = render(algorithm=algorithm, ranks=ranks, step=30)["values"]
    assert values["step"] == values["steps"] == shown.steps and values["complete_cells"] == ranks * shown.chunks
    assert values["contributors"] == [[ranks] * shown.chunks] * ranks


def stripes(shown, step, on, rank):
    """(columns with a stripe in them, pale ones) of a rank's card, by the colour's rank: what a reader sees."""
    places = [on.place(one, shown.ranks) for one in range(len(shown.held[0]))]
    left, top = (at - on.card / 2 + 3 for at in places[rank])
    drawn = ET.fromstring(rank_circle._stripes(shown, step, places, on))
    wide, high = on.pitch(shown.chunks), on.pitch(shown.ranks)
    found = {False: set(), True: set()}
    for path in drawn.iter("path"):
        for x, y, long in re.findall(r"M(\S+) (\S+?)h([\d.]+)", path.get("d")):
            first, row = round((float(x) - left) / wide), (float(y) - top) / high - 0.5
            last = first + round(float(long) / wide)
            if 0 <= first < last <= shown.chunks and -0.5 < row < shown.ranks - 0.5:
                assert path.get("stroke") == ramp.colour(round(row), shown.ranks)
                found[float(path.get("opacity")) < 1] |= {(chunk, round(row)) for chunk in range(first, last)}
    return found[False], found[True]


def test_a_card_has_a_stripe_for_each_rank_in_a_sum_and_pales_where_the_sum_went_on():
    shown, on = parcels.frames("ring", 8), rank_circle.Circle(169, 180, 132, 132, 60)
    for step in range(15):
        for rank in range(8):
            strong, pale = stripes(shown, step, on, rank)
            cells = shown.held[step][rank]
            assert strong | pale == {(k, q) for k in range(8) for q in range(8) if cells[k] >> q & 1}
            # in lap 1 rank r passes on r, r - 1, ...: out of date until lap 2 brings their sums
            gone = {(rank - k) % 8 for k in range(min(7, step + 1))} if step else set()
            assert {k for k, _ in pale} == {k for k in gone if cells[k] != shown.full}


def test_parcels_keep_their_names_from_rank_to_rank():
    for ranks in (2, 7, 16):
        shown = parcels.frames("ring", ranks)
        assert all(len({one.name for one in step}) == ranks for step in shown.parcels)
        for before, after in pairwise(shown.parcels):
            at = {one.name: one.source for one in before}
            assert {one.name: one.source for one in after} == {n: (r + 1) % ranks for n, r in at.items()}
    a, b = (marks(render(step=step)["svg"]) for step in (4, 5))
    moving = [name for name in a if name.startswith("parcel-")]
    assert len(moving) == 8 and all(place(a[name]) != place(b[name]) for name in moving)
    assert {"now", "dot", "level", "half-0", "block-3", *(f"card-{r}" for r in range(8))} <= {*a} & {*b}
    assert not [name for name in marks(render(step=14)["svg"]) if name.startswith("parcel-")]


def test_what_comes_in_goes_on_under_its_name():
    for algorithm in view.SHOWN:
        for before, after in pairwise(parcels.frames(algorithm, 8).parcels):
            came = {one.name: one for one in before}
            for one in after:
                if one.name in came:
                    assert came[one.name].target == one.source and {*came[one.name].chunks} & {*one.chunks}


def test_above_sixteen_ranks_sixteen_are_drawn_and_it_says_so():
    for width in (svg.WIDE, svg.NARROW):
        drawn = render(width, ranks=1024)["svg"]
        assert "drawn with 16 of 1,024" in drawn and drawn.count('data-mark="card-') == 16
    values = render(ranks=1024)["values"]
    assert values["ring_sent_gb"] == values["sent_gb"] == pytest.approx(2 * 1023 / 1024) and values["steps"] == 30
    assert "2 nodes of 8" in render(ranks=16)["svg"] and "drawn with" not in render(ranks=16)["svg"]


def test_steps_end_where_the_algorithm_ends():
    ends = {name: [parcels.frames(name, ranks).steps for ranks in range(2, 17)] for name in view.SHOWN}
    assert next(one for one in view.CONTROLS if one.name == "step").hi == max(map(max, ends.values()))
    for name in view.SHOWN:
        assert render(algorithm=name, ranks=12)["levers"]["step"] == {"hi": ends[name][10]}


def test_the_owner_of_a_piece_is_who_has_its_sum_first():
    assert render()["values"]["owners"] == [7, 0, 1, 2, 3, 4, 5, 6]
    assert render(algorithm="naive")["values"]["owners"] == [0]
    assert render(algorithm="in-network")["values"]["owners"] == [8] * 8


# --- what one rank has sent ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", view.SHOWN)
@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
def test_what_is_sent_by_the_end_is_what_the_formula_says(algorithm, ranks):
    shown = parcels.frames(algorithm, ranks)
    found = c.cost("all_reduce", algorithm, 1, ranks, Wire(1e-6, 1e9)).sent_bytes
    assert sum(shown.sent) == pytest.approx(found)
    values = render(algorithm=algorithm, ranks=ranks, step=30, link="own")["values"]
    assert values["sent_so_far_gb"] == pytest.approx(values["sent_gb"]) == pytest.approx(found)


def test_the_bar_fills_a_block_a_step_and_two_of_sixteen_stay_empty():
    for width, way in ((svg.WIDE, "height"), (svg.NARROW, "width")):
        for step in (0, 5, 14):
            drawn = render(width, step=step)
            blocks = [one for name, one in marks(drawn["svg"]).items() if name.startswith("block-")]
            full = [one for one in blocks if one.get("fill-opacity") is None]
            assert len(full) == step and drawn["values"]["sent_so_far_gb"] == pytest.approx(step / 8)
            assert len({one.get(way) for one in full}) <= 1
    dashed = [one for one in ET.fromstring(render()["svg"]).iter(f"{SVG}rect") if one.get("stroke-dasharray")]
    assert len(dashed) == 2
    assert "2 GB: never reached" in render()["svg"] and "1.998 GB" in render(ranks=1024)["svg"]
    assert "7 GB" in render(algorithm="naive")["svg"]


def test_the_guess_lies_on_the_bar():
    for width, way in ((svg.WIDE, "y"), (svg.NARROW, "x")):
        for drawn in (render(width, step=14)["svg"], views.question("collectives")["pictures"][width == svg.NARROW]):
            mark = re.search(rf'data-way="{way}" data-stops="([^"]+)"', drawn)[1]
            stops = dict(tuple(map(float, one.split(":"))) for one in mark.split())
            assert [*stops] == [0, 2] and drawn.rindex("live-mark") > drawn.rindex("data-mark")
        last = marks(render(width, step=14)["svg"])["block-13"]
        at = float(last.get(way)) + (float(last.get("width")) if way == "x" else 0)
        assert at == pytest.approx(stops[0] + (stops[2] - stops[0]) * 1.75 / 2, abs=1.5)


def test_the_locked_picture_does_not_hold_the_answer():
    asked = views.question("collectives")
    assert asked["answer"] == 1.75 and asked["words"] == "1.75 GB"
    for drawn in asked["pictures"]:
        words = re.sub(r'data-stops="[^"]*"', "", drawn)
        assert not re.search(r"1\.75|14 hops|7 of 8|lap|never|block-|polyline|\d [mµ]?s\b", words)
        assert all(f'data-mark="card-{rank}"' in drawn for rank in range(8))


def test_slips_are_what_they_say():
    p, message = 8, 1.0
    assert [value for value, _ in view.slips(views.defaults("collectives"))] == [
        message / p,
        2 * message / p,
        (p - 1) / p * message,
        message,
        2 * message,
        (p - 1) * message,
    ]
    words = dict(views.question("collectives")["slips"])
    assert words[0.875] == "one lap of two" and 1.75 not in words


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, "NCCL’s, a chain in the node"),
        ({"ranks": 32}, "NCCL’s, a chain in each node and two trees between nodes"),
        ({"link": "ib-ndr"}, "computed by levels, as in NCCL"),
        ({"link": "own"}, "computed with the number that is fastest"),
    ],
)
def test_of_a_tree_it_is_said_what_is_drawn_and_what_is_priced(params, words):
    found = render(algorithm="tree", **params)
    hops = int(re.search(r"([\d,]+) hops", found["law"][2])[1].replace(",", ""))
    assert hops != found["values"]["steps"] and words in found["law"][0] and found["law"][0].startswith("drawn")
