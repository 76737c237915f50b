"""The card of rung 16: its formulas and numbers are the package's, and those of a published experiment."""

import json

import pytest
from repo import text
from tex import value

from scaleout import views
from scaleout.page import cards
from scaleout.timing.budget import FORWARD, LAWS, TRAIN, Budget, pass_at

CARD = cards.load("budget")
COST, LEFT, LAW, PASS = (one["tex"] for one in CARD["formulas"])
PUBLISHED = json.loads(text("tests/published/self_distillation.json"))


@pytest.mark.parametrize(("flops", "answers", "k"), [(3e21, 1e10, 64), (1e20, 3e8, 5)])
def test_the_parts_of_a_budget(flops, answers, k):
    plan = Budget(flops, answers).best(LAWS["besiroglu"], k)
    of = {"N": plan.parameters, "Q": answers, "k": k}
    cost, limit = COST.split(r" \le ")
    assert limit == "C" and value(cost, D=plan.tokens, **of) == pytest.approx(flops)
    assert value(LEFT, C=flops, **of) == pytest.approx(plan.tokens)


def test_the_law_is_written_with_its_five_constants():
    assert LAW == r"E + \frac{A}{N^\alpha} + \frac{B}{D^\beta}"
    law = LAWS["besiroglu"]
    by_hand = law.floor + law.model * 1e9**-law.model_power + law.data * 2e10**-law.data_power
    assert law.loss(1e9, 2e10) == pytest.approx(by_hand)


def test_pass_at_k_is_a_ratio_of_beta_functions():
    assert PASS == r"1 - \frac{\mathrm B(a,\ b+k)}{\mathrm B(a,\ b)}"
    assert pass_at(2, 1.0, 1.0) == pytest.approx(1 - 1 / 3)  # B(1, 3) / B(1, 1)


def test_numbers_are_the_packages():
    one, many = (views.render("budget", {"samples": k})["values"] for k in (1, 64))
    toy = views.render("budget", {"show": "writes"})["values"]
    optimal = Budget(3e21, 0).best(LAWS["besiroglu"], 1).per_parameter
    assert [found["value"] for found in CARD["numbers"]] == [
        f"{TRAIN} and {FORWARD}",
        f"{round(optimal, -1):.0f}",
        f"{one['best_billions']:.1f} to {many['best_billions']:.1f}",
        f"{many['tokens_per_parameter']:.0f}",
        f"{toy['best_before'][1]:.1f} to {toy['best_after'][1]:.1f}%",
        f"{PUBLISHED['without_truncation']['samples_without_code']:.0%}",
    ]
