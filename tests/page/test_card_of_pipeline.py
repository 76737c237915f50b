"""The card of rung 04: its formulas and numbers are the package's."""

import pytest
from tex import value

from scaleout.memory import pipeline as held
from scaleout.page import cards
from scaleout.spec.pipeline import orders
from scaleout.spec.transformer import PRESETS, linears
from scaleout.timing import pipeline
from scaleout.timing.pipeline import even

CARD = cards.load("pipeline")


def step(schedule, p=4, m=8, v=1, hop=0.0):
    return pipeline.step(schedule, p, m, v, even(p * v, *[1 / v] * 3, hop=hop))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (7, 20)])
def test_formulas_give_what_the_schedules_give(p, m):
    step_, of_work, chunks, split, held_ = (one["tex"] for one in CARD["formulas"])
    for schedule in ("gpipe", "1f1b"):
        assert value(step_, p=p, m=m, F=1, B=2) == pytest.approx(step(schedule, p, m).seconds)
        assert value(of_work, p=p, m=m) == pytest.approx(step(schedule, p, m).bubble_of_ideal)
    whole = m - m % p
    assert value(chunks, p=p, m=whole, v=3) == pytest.approx(step("interleaved", p, whole, 3).bubble_of_ideal)
    assert value(split, p=p, m=whole) == pytest.approx(step("zb1", p, whole).bubble)
    most = [max(held.held(row)) for row in orders("1f1b", p, m)]
    assert most == [value(held_, p=p, r=r, m=m) for r in range(p)]


def test_numbers_are_the_packages():
    ways = (("interleaved", 2), ("gpipe", 1), ("1f1b", 1))
    hops = ", ".join(f"{step(name, v=v, hop=0.5).seconds:g}" for name, v in ways)
    shape = PRESETS["llama-3-8b"]
    blocks = shape.vocab * shape.hidden / sum(a * b for a, b in linears(shape).values())
    most = [max(held.held(orders(name, 4, 8)[0])) for name in ("gpipe", "1f1b")]
    assert [one["value"] for one in CARD["numbers"]] == [
        f"{step('1f1b').seconds:g} slots",
        f"{step('gpipe').bubble:.0%}",
        f"{step('interleaved', v=2).seconds:g}",
        hops,
        f"{most[0]} and {most[1]}",
        "10 (p − 1)",
        f"{blocks:.1f} blocks",
    ]
