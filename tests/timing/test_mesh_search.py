"""The search: every cut is priced or refused, as the whole models price it, and each loser loses for a reason."""

import random
from dataclasses import replace

import pytest
from cases import over, refused, refuses_nonsense

from scaleout.memory.allocator import fits
from scaleout.memory.mesh import fullest
from scaleout.spec.hardware import DEVICES
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import mesh_search
from scaleout.timing.mesh import PARTS
from scaleout.timing.mesh_plan import Pricer
from scaleout.timing.mesh_search import ALIKE, Job, chunks, cut, plans

H100 = DEVICES["h100-sxm"]


def job(model="llama-3-70b", gpus=64, sequences=128, **options):
    return Job(PRESETS[model], 8192, sequences, H100, cluster(-(-gpus // 8), min(8, gpus)), **options)


JOBS = {"8B": job("llama-3-8b", 8), "70B": job(), "405B": job("llama-3-405b", 16_384, 2048),
        "70B on 96": job(gpus=96, sequences=192)}  # fmt: skip
FOUND = {name: plans(one) for name, one in JOBS.items()}


def key(plan):
    at = plan.layout
    return at.tp, at.cp, at.pp, at.dp, at.zero, plan.recipe.checkpointing


@pytest.mark.parametrize("name", JOBS)
def test_plans_are_sorted_and_each_cut_is_there_once(name):
    found, gpus = FOUND[name], JOBS[name].cluster.ranks
    assert [p.seconds for p in found.plans] == sorted(p.seconds for p in found.plans)
    assert [p.bytes for p in found.over] == sorted(p.bytes for p in found.over)
    assert all(p.fits for p in found.plans) and not any(p.fits for p in found.over)
    every = [*found.plans, *found.over]
    assert len({key(p) for p in every}) == len(every)
    for plan in every:
        assert plan.layout.ranks == gpus and sum(plan.each) == JOBS[name].shape.layers
        assert plan.batch * plan.layout.m * plan.layout.dp == JOBS[name].sequences
        assert fits(plan.bytes, H100.memory_bytes) is plan.fits


@pytest.mark.parametrize("name", JOBS)
def test_seconds_and_bytes_are_those_of_the_whole_models(name):
    """The closed form of the pipeline within 2% of every action timed, the peak within 1% of the account's."""
    found, dice = FOUND[name], random.Random(7)
    some = [*found.plans[:3], *dice.sample([*found.plans, *found.over], 12)]
    for plan in some:
        exact = JOBS[name].time(plan)
        assert plan.seconds == pytest.approx(exact.seconds, rel=0.02), key(plan)
        for part in ("compute", "recompute", "exposed tensor", "exposed context", "imbalance", "exposed data"):
            assert plan.parts[part] == pytest.approx(exact.parts[part], abs=0.002 * exact.seconds), (part, key(plan))
        assert plan.crossing == exact.crossing and plan.each == exact.blocks
    for plan in some[:6]:
        held = JOBS[name].accounts(plan)
        assert plan.bytes == pytest.approx(held[fullest(held)].peak_bytes, rel=0.01), key(plan)
        assert held[plan.rank].peak_bytes == pytest.approx(held[fullest(held)].peak_bytes, rel=0.01)


@pytest.mark.parametrize("name", JOBS)
def test_a_cut_has_the_fastest_of_its_chunks_and_micro_batches(name):
    """The search leaves out what cannot win: with every one priced it is the same plan, or where none fits one as
    small, and of those as small with such micro-batches the fastest."""
    one, fit, over = JOBS[name], FOUND[name].plans, FOUND[name].over
    for plan in random.Random(3).sample(fit, min(12, len(fit))) + random.Random(3).sample(over, min(12, len(over))):
        base = replace(plan.layout, chunks=1, schedule="1f1b", micro_batches=one.sequences // plan.layout.dp)
        price, how = Pricer(one), plan.recipe.checkpointing
        ways = [price.way(*way) for way in mesh_search._ways(one, base)]
        every = [price.plan(way, how, *price.peak(way, how)) for way in ways]
        if plan.fits:
            assert plan == min((p for p in every if p.fits), key=lambda p: p.seconds), key(plan)
        else:
            same = [p for p in every if p.bytes == plan.bytes and p.batch == plan.batch]
            assert plan.bytes == min(p.bytes for p in every) and plan == min(same, key=lambda p: p.seconds), key(plan)


def test_a_tied_table_is_priced_in_one_cut_as_in_every_action():
    tied = Job(PRESETS["gpt-3-175b"], 2048, 64, H100, cluster(8, 8))
    plan = cut(tied, tp=4, pp=8, zero=1)
    hops, exact = plan.parts["hops"], tied.time(plan).parts["hops"]
    loose = replace(tied, shape=replace(tied.shape, tied_head=False))
    more = hops - cut(loose, tp=4, pp=8, zero=1).parts["hops"]
    assert more == pytest.approx(exact - loose.time(plan).parts["hops"], rel=1e-6) and more > 0.01


def test_parts_add_up():
    for plan in FOUND["405B"].plans:
        assert tuple(plan.parts) == PARTS and sum(plan.parts.values()) == pytest.approx(plan.seconds)
        assert min(plan.parts.values()) >= -1e-9


def test_70b_on_64_gpus_is_cut_as_nvidia_cuts_it():
    """TP 4, CP 2, PP 4 with an interleaved pipeline (tests/published/mesh.json), found without being told."""
    best = FOUND["70B"].best
    assert key(best) == (4, 2, 4, 2, 1, "none") and best.layout.chunks > 1 and best.batch == 1


def test_what_fits_on_one_node_needs_no_pipeline():
    assert FOUND["8B"].best.layout.pp == 1 and FOUND["8B"].best.recipe.checkpointing == "none"


def test_405b_is_cut_inside_the_node_first_and_into_few_stages():
    best = FOUND["405B"].best
    assert best.layout.tp == 8 and best.layout.pp in (8, 16) and "tp" not in best.crossing
    assert (best.layout.stages, best.each[0], best.each[1]) == (64, 1, 2)


def test_each_loser_has_one_reason_with_its_amount():
    found = FOUND["405B"]
    reasons = {found.reason(plan).rstrip("0123456789.%GB ") for plan in (*found.plans, *found.over)}
    assert {"does not fit by", "bubble", "recomputes", "dp waits"} <= reasons
    assert any(FOUND["70B"].reason(plan).startswith("unequal stages") for plan in FOUND["70B"].plans)
    assert found.reason(found.best) == ""
    far = [p for p in found.plans if p.layout.tp == 16]
    assert far and any("tp across nodes" in found.reason(p) for p in far)
    for plan in found.over:
        words = found.reason(plan).split()
        assert words[:4] == ["does", "not", "fit", "by"] and float(words[4]) == pytest.approx(
            max(0.1, plan.over / 1e9), abs=0.51
        )
    near = [p for p in found.plans if p is not found.best and p.seconds <= found.plans[0].seconds * (1 + ALIKE / 2)]
    assert all("as fast as the best" in found.reason(p) for p in near)


def test_a_reason_names_what_the_plan_has_most_more_of():
    found = FOUND["70B"]
    for plan in found.plans:
        reason = found.reason(plan)
        if reason.startswith("bubble"):
            more = {part: plan.parts[part] - found.best.parts[part] for part in PARTS}
            assert max(more, key=more.get) == "bubble"
            assert reason == f"bubble {100 * plan.parts['bubble'] / plan.seconds:.0f}%"
    full = [p for p in found.plans if p.recipe.checkpointing == "full"]
    assert sum(found.reason(p).startswith("recomputes") for p in full) > len(full) / 2


def test_what_cannot_be_a_cut_is_counted_by_its_reason():
    found = FOUND["405B"].refused
    assert set(found) == {"the sequences do not fall to the replicas", "fewer sequences than stages",
                          "more stages than blocks"}  # fmt: skip
    assert "cp 3 does not divide the sequence" in FOUND["70B on 96"].refused
    twelve_heads = plans(Job(PRESETS["gpt2"], 1024, 8, H100, cluster(1, 8)))
    assert twelve_heads.refused["tp 8 does not divide the model"] == 1
    assert all(count > 0 for count in found.values())


def test_more_memory_never_hurts_and_none_at_all_leaves_nothing():
    less, more = (plans(replace(JOBS["70B"], memory_bytes=size)) for size in (40 * 10**9, 140 * 10**9))
    assert len(less.plans) < len(FOUND["70B"].plans) < len(more.plans)
    assert less.plans[0].seconds >= FOUND["70B"].plans[0].seconds >= more.plans[0].seconds
    nothing = plans(replace(JOBS["70B"], memory_bytes=10**9))
    assert nothing.plans == () and nothing.best is None
    assert nothing.reason(nothing.over[0]).startswith("does not fit by ")
    assert sum(map(len, (less.plans, less.over))) == sum(map(len, (more.plans, more.over)))


def test_a_slower_network_moves_the_axes_that_cross_it():
    slow = plans(replace(JOBS["70B"], cluster=cluster(8, 8, across="ethernet-100g", nics=1)))
    fast = FOUND["70B"]
    assert slow.plans[0].seconds > fast.plans[0].seconds
    by = {key(p): p for p in slow.plans}
    crossing = [p for p in fast.plans if "tp" in p.crossing and p.layout.tp == 16]
    assert all(by[key(p)].seconds > 1.5 * p.seconds for p in crossing if key(p) in by)


def test_the_best_is_the_plainest_of_those_as_fast():
    for found in FOUND.values():
        near = [p for p in found.plans if p.seconds <= (1 + ALIKE) * found.plans[0].seconds]
        assert found.best in near and found.best.axes == min(p.axes for p in near)


@over(layers=[80, 96, 126], pp=[2, 4, 8, 16])
def test_chunks_make_stages_alike(layers, pp):
    for v in chunks(layers, pp):
        assert v > 1 and v * pp <= layers
        assert layers % (v * pp) == 0 or (layers + 2) % (v * pp) == 0
    assert (80 // pp in chunks(80, pp)) == (80 % pp == 0)
    assert chunks(126, 8) == (2, 4, 8)


@pytest.mark.parametrize("name", ["8B", "70B", "405B"])
def test_one_cut_is_priced_as_the_search_prices_it(name):
    found = FOUND[name]
    for plan in (found.best, found.plans[-1], found.over[0]):
        at = plan.layout
        assert cut(JOBS[name], at.tp, at.cp, at.pp, at.zero, plan.recipe.checkpointing) == plan


def test_a_cut_that_cannot_be_is_told_what_would_work():
    one = JOBS["70B on 96"]
    refused(lambda: cut(one, tp=8, pp=5), "tp 8 x cp 1 x pp 5 does not divide 96 GPUs: the nearest that works is tp 8, "
                                          "cp 1, pp 6")  # fmt: skip
    refused(lambda: cut(one, tp=7), "tp 7 does not divide 64 heads: the nearest that works is 8")
    refused(lambda: cut(one, cp=3), "cp 3 cuts a sequence into 6 pieces, not 8,192 tokens: use 8,190")
    refused(lambda: cut(one, pp=96), "use at most 80 stages")
    refuses_nonsense(lambda *degrees: cut(one, *degrees), 8, 1, 4, 1, "none", allowed=((3, 0),))
    few = replace(one, sequences=64)
    refused(lambda: cut(few, tp=4, pp=4), "6 replicas of 4 stages take a multiple of 6 sequences, at least 24: use 66, "
                                          "not 64")  # fmt: skip
    refused(lambda: cut(few, tp=4), "24 replicas take a multiple of 24 sequences: use 72, not 64")
    refused(lambda: cut(one, checkpointing="some"), "checkpointing must be one of none, selective, full")


def test_overlap_and_context_change_what_waits():
    exposed = {
        way: max(p.parts["exposed tensor"] / p.seconds for p in plans(job(gpus=64, overlap=way)).plans)
        for way in ("none", "chunked")
    }
    assert exposed["chunked"] < exposed["none"]
    ring, gather = (cut(job(context=way), tp=4, cp=4, pp=4) for way in ("ring", "gather"))
    assert ring.parts["exposed context"] < gather.parts["exposed context"] and ring.bytes < gather.bytes


def test_one_gpu_is_one_layout():
    found = plans(Job(PRESETS["gpt2"], 1024, 8, H100, cluster(1, 1)))
    assert {key(p)[:5] for p in found.plans} == {(1, 1, 1, 1, 0)} and len(found.plans) == 3


def test_what_cannot_be():
    refused(lambda: job(sequences=0), "sequences must be a whole number of at least 1")
    refused(lambda: job(memory_bytes=0), "memory_bytes must be a whole number of at least 1")
    refused(lambda: job(recipe=Recipe("bf16-master")), "micro-batches add up gradients")
    refused(lambda: job(recipe=Recipe("bf16-master", gradients="kept", adapter="lora")), "and no adapter")
    refused(lambda: job(overlap="all"), "overlap must be one of None, none, backward, chunked")
    refused(lambda: job(context="tree"), "context must be one of ring, gather")
    refused(lambda: job(order=("dp", "tp", "pp")), "the order names pp, dp, cp, tp, each once, not dp, tp, pp")
    refused(lambda: Job("8B", 8192, 8, H100, cluster(1, 8)), "shape must be a Shape, not '8B'")
