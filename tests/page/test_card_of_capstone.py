"""The card of rung 11: its formulas and numbers are the package's."""

import pytest
from tex import value

from scaleout import views
from scaleout.page import cards
from scaleout.spec.sharding import Sharding, units
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.timing import reliability
from scaleout.timing.fsdp import volume

CARD = cards.load("capstone")
LLAMA = PRESETS["llama-3-8b"]


def sides(formula):
    return formula.split(r"\le")


@pytest.mark.parametrize("ranks", [64, 512])
def test_formulas_are_the_models(ranks):
    _, hide, interval, lost = (one["tex"] for one in CARD["formulas"])
    left, right = sides(hide)
    count = len(units(LLAMA, Sharding(ranks=ranks, parameter="bf16")))
    n = total_parameters(LLAMA)
    sent = volume(LLAMA, Sharding(ranks=ranks, parameter="bf16"))["total"]
    # the root, embedding and head, is gathered once
    assert value(left, N=n, beta=1, L=LLAMA.layers, W=ranks, alpha=0) == pytest.approx(sent, rel=0.06)
    assert value(left, N=n, beta=0, L=LLAMA.layers, W=ranks, alpha=1) == (3 * count - 1) * (ranks - 1)
    assert value(right, N=n, T=4096, R=1) == pytest.approx(6 * n * 4096)
    for cost, between in ((30, 11_000), (2, 9e5)):
        best = reliability.young(cost, between)
        assert value(interval, delta=cost, M=between) == pytest.approx(best)
        at_best = value(lost, delta=cost, M=between, tau=best)
        assert at_best == pytest.approx(2 * cost / best)
        assert all(value(lost, delta=cost, M=between, tau=best * off) > at_best for off in (0.8, 1.25))


def test_numbers_are_the_packages():
    opening = views.render("capstone", {})["values"]
    between = 54 * 24 / 419
    best = reliability.young(30, 3600 * between)
    added = [reliability.overhead(at, 30, 3600 * between, restart_seconds=300) for at in (best, 3600)]
    sent, starts, works = (1e3 * opening[f"weak_{name}_seconds"] for name in ("byte", "start", "compute"))
    assert [one["value"] for one in CARD["numbers"]] == [
        f"{opening['strong_speed_up']:.0f}",
        f"{sent:.0f} + {starts:.0f} ms",
        f"{between:.1f} hours",
        f"{best / 60:.0f} minutes",
        f"{added[0]:.0%}",
    ]
    words = [one["words"] for one in CARD["numbers"]]
    assert f"compute {works:.0f} ms" in words[1] and f"{added[1]:.0%} if saved each hour" in words[4]
