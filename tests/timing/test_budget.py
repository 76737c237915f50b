"""Scaling laws with the cost of answers, against published optima and derivations of another kind."""

import json
import math
from random import Random

import pytest
import repo
from cases import each

from scaleout.timing import budget
from scaleout.timing.budget import LAWS, Budget, beta_fit, beta_of, pass_at

PUBLISHED = json.loads(repo.text("tests/published/scaling_laws.json"))
FIT = LAWS["besiroglu"]


@each(["besiroglu", "hoffmann"])
def test_constants_are_the_papers(name):
    law, fit = LAWS[name], PUBLISHED["fits"][name]
    assert [law.floor, law.model, law.model_power, law.data, law.data_power] == list(fit.values())
    assert tuple(PUBLISHED["runs"]["parameters"]) == budget.FITTED_PARAMETERS
    assert tuple(PUBLISHED["runs"]["tokens"]) == budget.FITTED_TOKENS
    assert PUBLISHED["runs"]["largest_budget_flops"] == budget.FITTED_FLOPS


@each(PUBLISHED["optimal_by_approach_1"])
def test_without_answers_the_best_model_is_that_of_another_method(row):
    """Hoffmann's first approach fits no formula of the loss: it takes the lowest point of training curves."""
    best = Budget(row["flops"], 0).best(FIT, 1)
    assert best.parameters == pytest.approx(row["parameters"], rel=0.15)
    assert best.tokens == pytest.approx(row["tokens"], rel=0.15)
    assert 17 < best.per_parameter < 27


@each(["besiroglu", "hoffmann"])
@each([1e19, 3e21, 1e25])
def test_without_answers_the_search_gives_the_closed_form(name, flops):
    law = LAWS[name]
    powers = law.model_power + law.data_power
    scale = (law.model_power * law.model / (law.data_power * law.data)) ** (1 / powers)
    wanted = scale * (flops / 6) ** (law.data_power / powers)
    assert Budget(flops, 0).best(law, 1).parameters == pytest.approx(wanted, rel=1e-4)


def test_the_exponent_of_the_best_size_is_the_papers():
    small, large = (Budget(flops, 0).best(FIT, 1).parameters for flops in (1e20, 1e24))
    found = math.log(large / small) / math.log(1e4)
    assert found == pytest.approx(PUBLISHED["besiroglu_exponent_of_the_best_size"], abs=1e-3)


@each([(3e21, 1e10, 1), (3e21, 1e10, 64), (1e23, 3e10, 256), (1e20, 1e9, 16)])
def test_no_other_size_is_better(flops, answers, samples):
    life = Budget(flops, answers)
    best = life.best(FIT, samples)
    lowest = FIT.loss(best.parameters, best.tokens)
    assert best.training + best.answering == pytest.approx(flops)
    assert best.training == pytest.approx(6 * best.parameters * best.tokens)
    assert best.answering == pytest.approx(2 * best.parameters * answers * samples)
    for factor in (0.3, 0.9, 0.99, 1.01, 1.1, 3):
        other = life.plan(factor * best.parameters, samples)
        assert other is None or FIT.loss(other.parameters, other.tokens) >= lowest


def test_more_samples_make_the_best_model_smaller_and_train_it_longer():
    for law in LAWS.values():
        plans = [Budget(3e21, 1e10).best(law, k) for k in (1, 4, 16, 64, 256)]
        sizes, ratios = [plan.parameters for plan in plans], [plan.per_parameter for plan in plans]
        losses = [law.loss(plan.parameters, plan.tokens) for plan in plans]
        assert sizes == sorted(sizes, reverse=True) and ratios == sorted(ratios) and losses == sorted(losses)
    assert Budget(3e21, 1e10).plan(1e12, 64) is None


def test_the_runs_of_the_fit_are_told_from_others():
    assert FIT.fitted(1e9, 1e11) and not FIT.fitted(1e8, 6e11) and not FIT.fitted(2e10, 1e11)


@each([(0.5, 2.0), (0.2, 0.8), (3.0, 1.0), (1.0, 1.0)])
def test_pass_at_k_is_what_drawing_questions_gives(a, b):
    random, n = Random(11), 40_000
    accuracies = [random.betavariate(a, b) for _ in range(n)]
    for k in (1, 3, 16):
        drawn = sum(1 - (1 - p) ** k for p in accuracies) / n
        assert pass_at(k, a, b) == pytest.approx(drawn, abs=0.01)


def test_pass_at_k_grows_from_the_mean_and_is_a_product():
    for a, b in ((0.5, 2.0), (0.05, 0.95), (4.0, 9.0)):
        assert pass_at(1, a, b) == pytest.approx(a / (a + b))
        wrong = 1.0
        for k in range(1, 30):
            wrong *= (b + k - 1) / (a + b + k - 1)
            assert pass_at(k, a, b) == pytest.approx(1 - wrong)
    alike, apart = (pass_at(16, *beta_of(0.1, spread)) for spread in (1e6, 0.5))
    assert alike == pytest.approx(1 - 0.9**16, rel=1e-4) and apart < alike / 2


def test_a_beta_has_the_mean_and_variance_of_what_it_was_fitted_to():
    random = Random(2)
    accuracies = [random.betavariate(0.4, 1.7) for _ in range(5000)]
    a, b = beta_fit(accuracies)
    mean = sum(accuracies) / 5000
    assert a / (a + b) == pytest.approx(mean)
    variance = sum((p - mean) ** 2 for p in accuracies) / 5000
    assert a * b / ((a + b) ** 2 * (a + b + 1)) == pytest.approx(variance)
    assert (a, b) == pytest.approx((0.4, 1.7), rel=0.1)


def test_accuracy_falls_with_the_loss_and_the_tokens_that_decide():
    assert budget.accuracy(0, 5) == 1 and budget.accuracy(0.5, 4) == pytest.approx(math.exp(-2))
    assert budget.accuracy(0.4, 4) > budget.accuracy(0.5, 4) > budget.accuracy(0.5, 5)
