"""The best of a search: of equals the simplest that none of them dominates."""

import random
from dataclasses import replace

import pytest
from searches import ASKED, FOUND, job, key

from scaleout.spec.transformer import PRESETS
from scaleout.timing.band import band
from scaleout.timing.plan import exact
from scaleout.timing.search import _Search, cut, search


@pytest.mark.parametrize("name", ASKED)
def test_of_equals_the_best_is_the_simplest_that_none_dominates(name):
    """What is simpler is dominated, by a listed layout or by other chunks and micro-batches of its own kind."""
    asked, found = ASKED[name], FOUND[name]
    ask, limit = _Search(*asked, None), found.limit
    equal = [p for p in found.plans if found.equal(p)]
    assert found.best in equal
    order = (*found.best.simple, found.best.layout.stages)
    kinds = {p.simple for p in equal if p.simple <= found.best.simple}
    for kind in kinds:
        ways = [way for p in equal if p.simple == kind for way in ask._alternatives(p, limit)]
        rivals = [p for p in (*found.plans, *ways) if kind[0] or not p.axes]
        for way in (exact(way) for way in ways if (*kind, way.layout.stages) < order):
            assert way.seconds > limit or any(one.dominates(way) for one in rivals), key(way)
    assert found.band == band(ASKED[name][0])


def by_chance(seed):
    """(job, sequences): a model on a cluster that may hold it, run by any program."""
    rng = random.Random(seed)
    model = rng.choice(["llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-3-70b", "gpt-3-175b"])
    gpus = 2 ** rng.randint(*{"gpt-3-175b": (9, 11), "llama-3-70b": (6, 11)}.get(model, (3, 9)))
    program = rng.choice(["megatron", "megatron", "compiled", "eager", "huggingface"])
    seq = 2048 if model == "gpt-3-175b" else rng.choice([2048, 4096, 8192])
    return job(model, gpus, program, seq), gpus * 2 ** rng.randint(0, 4) // 2


@pytest.mark.parametrize("seed", range(8))
def test_no_listed_layout_dominates_the_best(seed):
    """Not slower, not larger, and clearly less of one. Without tp, cp and pp the best is compared with its kind."""
    asked, sequences = by_chance(seed)
    found = search(asked, sequences)
    print(f"seed {seed}: {asked}, {sequences} sequences")
    if best := found.best:
        assert not [key(p) for p in found.plans if p.dominates(best) and (best.axes or not p.axes)]
        assert found.equal(best) and best.exact and best.fits
        alone = [p for p in found.plans if found.equal(p) and not p.axes]
        assert not alone or not best.axes, "data parallelism alone comes first"


def test_the_optimizer_of_the_best_is_sharded_where_that_costs_nothing():
    """70B on 512: with ZeRO-1 it is faster and a third smaller than the same without, if that fits at all."""
    best = search(job(gpus=512), 1024).best
    at = best.layout
    whole = cut(job(gpus=512), 1024, tp=at.tp, cp=at.cp, pp=at.pp, zero=0)
    assert at.zero == 1 and best.bytes < 0.7 * whole.bytes and (best.seconds < whole.seconds or not whole.fits)
    assert at.chunks < 80 // at.pp, "more than a block in each"


def test_fsdp_alone_comes_before_tensor_parallelism_with_zero_1():
    """Where the band does not tell them apart, as compiled torch's does not."""
    for model, gpus, sequences in (("llama-3-8b", 64, 128), ("llama-2-7b", 8, 32)):
        seq = min(4096, PRESETS[model].max_seq) if model == "llama-2-7b" else 8192
        best = search(job(model, gpus, "compiled", seq), sequences).best
        assert key(best)[:3] == (1, 1, 1) and best.layout.zero in (0, 3)


def test_axes_are_those_that_cut_the_model_and_its_optimizer_is_none():
    asked, sequences = ASKED["8B"]
    some = [
        cut(asked, sequences, **one)
        for one in (
            {"zero": 0},
            {"zero": 1},
            {"zero": 3},
            {"zero": 3, "checkpointing": "full"},
            {"tp": 2, "zero": 0},
            {"tp": 2, "zero": 1},
            {"tp": 2, "pp": 2, "cp": 2, "zero": 0},
        )
    ]
    assert [plan.axes for plan in some] == [0, 0, 0, 0, 1, 1, 3]
    assert [plan.simple for plan in some] == sorted(plan.simple for plan in some)
    assert some[0].simple == some[1].simple < some[2].simple < some[3].simple < some[4].simple == some[5].simple


def test_a_layout_is_dominated_by_what_is_no_slower_and_no_larger_and_clearly_less_of_one():
    plan = cut(*ASKED["8B"])
    for faster, smaller, clearly in ((0.99, 0.99, True), (0.995, 0.995, False), (0.975, 1, True), (1, 0.975, True),
                                     (1, 1, False), (0.9, 1.001, False), (1.001, 0.5, False)):  # fmt: skip
        other = replace(plan, seconds=faster * plan.seconds, bytes=round(smaller * plan.bytes))
        assert other.dominates(plan) is clearly and not plan.dominates(other), (faster, smaller)
