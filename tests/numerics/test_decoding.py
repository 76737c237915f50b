"""Temperature, truncation and the toy that is trained on its own text, against the paper's figures."""

import json
import math
from itertools import pairwise
from random import Random

import pytest
import repo
from cases import each

from scaleout.numerics import decoding
from scaleout.numerics.decoding import RIGHT, TOY, decoded, entropy

PUBLISHED = json.loads(repo.text("tests/published/self_distillation.json"))["toy"]


def best(toy):
    """(success, temperature) at the best temperature, to a thousandth."""
    return max((toy.success(i / 1000), i / 1000) for i in range(300, 3000))


@each(["root", "fork", "lock"])
def test_the_toys_heads_are_the_papers(name):
    p = getattr(TOY, name)
    assert list(p[:4]) == PUBLISHED[name] and len(p) == PUBLISHED["tokens"] and sum(p) == pytest.approx(1)
    assert all(later == pytest.approx(decoding.TAIL * sooner) for sooner, later in pairwise(p[4:]))


def test_training_on_its_own_text_gives_the_papers_figures():
    before, after = best(TOY), best(TOY.trained())
    assert tuple(PUBLISHED["trained_at"].values()) == decoding.WRITTEN
    assert PUBLISHED["answers_at_top_p"] == decoding.TOP_P
    assert before[0] == pytest.approx(PUBLISHED["before"]["success"], abs=1.5e-4)
    assert before[1] == pytest.approx(PUBLISHED["before"]["temperature"], abs=1e-3)
    assert after[0] == pytest.approx(PUBLISHED["after"]["success"], abs=1e-4)
    assert after[1] == pytest.approx(PUBLISHED["after"]["temperature"], abs=5e-3)


def test_text_without_a_cut_is_only_another_temperature():
    """What the paper reports for temperature 2 without truncation (a gain) is nothing that this toy shows."""
    hot = TOY.trained(2.0, 1.0)
    for temperature in (0.2, 0.32, 0.7, 1.3):
        assert hot.success(temperature) == pytest.approx(TOY.success(2 * temperature))


def test_right_tokens_of_root_and_fork_are_not_the_likeliest():
    likeliest = {name: p.index(max(p)) for name, p in TOY.positions.items()}
    assert {name: likeliest[name] in RIGHT[name] for name in RIGHT} == {"root": False, "fork": False, "lock": True}
    assert {name: len(right) for name, right in RIGHT.items()} == {"root": 2, "fork": 1, "lock": 1}


def test_success_is_what_drawing_answers_gives():
    random, seen = Random(3), TOY.decoded(1.0)
    draw = {name: lambda p=p: random.choices(range(len(p)), p)[0] for name, p in seen.positions.items()}
    right = 0
    for _ in range(20_000):
        right += all(draw[name]() in RIGHT[name] for name in ("root", "fork", *["lock"] * decoding.LOCKS))
    assert right / 20_000 == pytest.approx(TOY.success(1.0), abs=0.008)


def test_a_sampler_keeps_the_fewest_likely_tokens():
    random = Random(5)
    for _ in range(200):
        p = [random.random() for _ in range(random.randint(1, 12))]
        p = [x / sum(p) for x in p]
        temperature, top_p = random.uniform(0.2, 3), random.uniform(0.05, 1)
        whole, cut = decoded(p, temperature), decoded(p, temperature, top_p)
        kept = [x for x, y in zip(whole, cut, strict=True) if y]
        dropped = [x for x, y in zip(whole, cut, strict=True) if not y]
        assert sum(cut) == pytest.approx(1) and min(kept) >= max(dropped, default=0)
        assert sum(kept) >= top_p - 1e-9 and sum(kept) - min(kept) < top_p
        logits = [math.log(x) / temperature for x in p]
        total = math.fsum(map(math.exp, logits))
        assert whole == pytest.approx([math.exp(z) / total for z in logits])


def test_entropy_rises_with_the_temperature_up_to_all_alike():
    for p in TOY.positions.values():
        rising = [entropy(decoded(p, t)) for t in (0.2, 0.5, 1, 2, 5, 1000)]
        assert rising == sorted(rising) and rising[-1] == pytest.approx(math.log(len(p)), abs=1e-3)
        assert entropy(decoded(p, 1.0)) == pytest.approx(entropy(p))


def test_training_sharpens_locks_more_than_forks():
    student = TOY.trained()
    falls = {name: entropy(student.positions[name]) / entropy(p) for name, p in TOY.positions.items()}
    assert falls["lock"] < 0.25 and falls["fork"] > 0.75 and falls["root"] > 0.7


def test_text_that_is_neither_cut_nor_at_another_temperature_changes_nothing():
    same = TOY.trained(1.0, 1.0)
    for name, p in same.positions.items():
        assert p == pytest.approx(TOY.positions[name])
