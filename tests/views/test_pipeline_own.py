"""The reader's own order in the widget of `pipeline`: timed, measured by the orders of the menu, or named where it
never ends."""

import re

import pytest
from cases import over
from drawn import marks, number

from scaleout import views
from scaleout.draw import svg
from scaleout.spec.pipeline import orders
from scaleout.timing.pipeline import even, step
from scaleout.views import pipeline
from scaleout.views.pipeline.frame import LEFT


def shown(width=svg.WIDE, **params):
    result = views.render("pipeline", params, width, advise=False)
    return result, marks(result["svg"])


def setting(**params):
    return pipeline.Setting.of(views.clean("pipeline", params))


def moved(*moves):
    """The opening order after moves of an item of a row to a place, as a hand makes them."""
    rows = [[*row] for row in views.rows_of(views.defaults("pipeline")["order"])]
    for row, item, place in moves:
        rows[row].remove(item)
        rows[row].insert(place, item)
    return views.order(rows)


ZB1 = views.order([[f"{one.kind}{one.micro}" for one in row] for row in orders("zb1", 3, 4)])


def test_your_own_begins_as_1f1b_and_can_become_zb1():
    """Halves of a backward, each rank's whole ones in 1F1B's order: 16 slots for 18. ZB1 has 3 m + p - 1."""
    opened, _ = shown(schedule="yours")
    rows = views.rows_of(views.defaults("pipeline")["order"])
    whole = [[item.replace("I", "B") for item in row if item[0] != "W"] for row in rows]
    assert whole == [[f"{one.kind}{one.micro}" for one in row] for row in orders("1f1b", 3, 4)]
    assert opened["values"]["slots"] == 16 and opened["values"]["held"] == [3, 2, 1]
    found, named = shown(schedule="yours", order=ZB1)
    assert found["values"]["slots"] == step("zb1", 3, 4, 1, even(3)).seconds == 3 * 4 + 2
    assert found["values"]["held"] == [3, 3, 3]
    assert sum(name.endswith(("-rank0", "-rank1", "-rank2")) for name in named) == 3 * 4 * 3
    assert set(opened["levers"]) == {"lit", "ranks", "micro_batches", "chunks", "blocking"}


@over(row=({}, {"hop": 0.5}, {"head": 1.0, "backward": 1.5}))
def test_your_own_is_measured_by_the_orders_of_the_menu(row):
    """On the same costs, three ranks and four micro-batches; the best of them is the goal."""
    values = shown(schedule="yours", **row)[0]["values"]
    menu = {}
    for schedule in ("gpipe", "1f1b", "zb1"):
        rival = shown(schedule=schedule, ranks=3, micro_batches=4, chunks=1, **row)[0]["values"]
        menu[schedule] = [rival["slots"], *rival["held"]]
    assert values["rivals"] == menu
    assert values["goal"] == min([slots, held] for slots, held, *_ in menu.values())


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_the_way_in_the_goal_and_the_ways_out_are_in_the_picture(width):
    result, found = shown(width)
    assert found["own-order"].get("data-press") == "schedule=yours" and "goal" not in found
    assert ">Make your own order: move blocks<" in result["svg"]
    assert "own-order" not in views.question("pipeline")["pictures"][width == svg.NARROW]
    result, found = shown(width, schedule="yours")
    assert "own-order" not in found and "back-order" not in found, "nothing to be put back"
    assert found["back-schedule"].get("data-press") == "schedule=1f1b"
    assert [found[f"nudge{by}"].get("data-nudge") for by in (-1, 1)] == ["-1", "1"]
    assert ">Goal: 14 slots, at most 3 in flight on rank 0<" in result["svg"]
    assert ">16 slots; in flight: 3, 2, 1<" in result["svg"] and ">18 slots; in flight: 4, 4, 4<" in result["svg"]
    [goal], [end] = number(found["goal"], "x1"), number(found["finish"], "x1")
    assert (goal - LEFT) / (end - LEFT) == pytest.approx(14 / 16, abs=1e-3)
    for name, slots in {"yours": 16, "gpipe": 18, "1f1b": 18, "zb1": 14}.items():
        assert number(found[f"ends-{name}"], "width")[0] / (end - LEFT) == pytest.approx(slots / 16, abs=1e-3)
    result, found = shown(width, schedule="yours", order=ZB1)
    assert found["back-order"].get("data-press") == f"order={views.defaults('pipeline')['order']}"
    assert "eached: 14 slots, at most 3 in flight on rank 0<" in result["svg"]


@over(
    case=(
        (
            [(2, "F3", 0)],
            "**Deadlock**: rank 1 waits at input gradient 0 for input gradient 0 of rank 2, "
            "and rank 2 waits at forward 3 for forward 3 of rank 1.",
        ),
        (
            [(1, "I0", 1), (2, "F1", 0)],
            "**Deadlock**: rank 1 waits at input gradient 0 for input gradient 0 of rank 2, "
            "and rank 2 waits at forward 1 for forward 1 of rank 1.",
        ),
        (
            [(0, "W2", 0)],
            "**A broken dependency**: rank 0 has weight gradient 2 before input gradient 2, which it needs.",
        ),
        ([(2, "I1", 0)], "**A broken dependency**: rank 2 has input gradient 1 before forward 1, which it needs."),
    )
)
def test_what_never_ends_is_named(case):
    moves, words = case
    result, found = shown(schedule="yours", order=moved(*moves))
    assert result["values"]["waits"] and result["values"]["bubble"] == 1 and not result["values"]["reached"]
    assert result["sentence"] == words
    assert "finish" not in found and "F1-rank2" in found and ">never ends<" in result["svg"]
    first = re.match(r"\*\*(.*?)\*\*", words)[1]
    assert f">{first}: the step never ends.<" in result["svg"]


def test_three_moves_reach_the_goal_and_the_puzzle_says_what_is_left():
    def advice(**params):
        return pipeline.advice(views.clean("pipeline", {"schedule": "yours", **params}))

    assert advice() == "Goal: **14 slots, at most 3 in flight on rank 0**; now 2 slots too long."
    gpipe = views.order([[f"F{n}" for n in range(4)] + [f"{kind}{n}" for n in range(4) for kind in "IW"]] * 3)
    assert advice(order=gpipe).endswith("now 2 slots too long and 1 too many in flight on rank 0.")
    three = moved((1, "W0", 11), (2, "W0", 11), (2, "W2", 11))
    values = shown(schedule="yours", order=three)[0]["values"]
    assert (values["slots"], values["held"], values["reached"]) == (14, [3, 3, 3], True)
    reached = "**Goal reached**: no order is shorter, because one rank is never idle once it has begun."
    assert advice(order=three) == advice(order=ZB1) == reached
    assert advice(order=ZB1, hop=0.5).startswith("**As good as zero-bubble ZB1**")
    assert advice(order=moved((2, "F3", 0))) == "Move a framed block to a later place in its row."
    assert setting(schedule="yours", order=moved((2, "F3", 6))).waits == (), "which helps"


@over(given=({}, {"hop": 0.75}, {"head": 1.0}, {"backward": 1.5, "hop": 0.25}, {"blocking": True, "hop": 1.0}))
def test_no_order_is_below_the_least(given):
    for order in (views.defaults("pipeline")["order"], ZB1, moved((2, "W1", 8), (0, "W0", 11))):
        now = setting(schedule="yours", order=order, **given)
        assert now.slots >= now.least - 1e-9
