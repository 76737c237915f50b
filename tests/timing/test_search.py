"""The search: every cut is a job, priced or refused, its leaders by `timing.job`; each loser loses for a reason."""

import random
from dataclasses import replace

import pytest
from cases import over, refused, refuses_nonsense
from searches import ASKED, FOUND, H100, job, key

from scaleout.memory.allocator import fits, usable
from scaleout.memory.job import fullest
from scaleout.spec import frameworks
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.timing.job import PARTS, step
from scaleout.timing.plan import WORDS
from scaleout.timing.quick import TOLERANCE
from scaleout.timing.search import ALIKE, LEADERS, _Search, chunks, cut, even, search


@pytest.mark.parametrize("name", ASKED)
def test_plans_are_jobs_sorted_and_each_cut_is_there_once(name):
    found, (asked, sequences) = FOUND[name], ASKED[name]
    assert [p.seconds for p in found.plans] == sorted(p.seconds for p in found.plans)
    assert [p.bytes for p in found.over] == sorted(p.bytes for p in found.over)
    assert all(p.fits for p in found.plans) and not any(p.fits for p in found.over)
    every = [*found.plans, *found.over]
    assert len({key(p) for p in every}) == len(every) > 50
    for plan in every:
        one = plan.job
        assert (one.shape, one.seq, one.sequences, one.device, one.cluster, one.program) == (
            asked.shape,
            asked.seq,
            sequences,
            asked.device,
            asked.cluster,
            asked.program,
        )
        assert even(one.shape.layers, one.layout.stages) and one.layout.tp <= 8 and "tp" not in plan.crossing
        assert fits(plan.bytes, H100.memory_bytes) is plan.fits and plan.over == plan.bytes - usable(H100.memory_bytes)
        assert frameworks.refusal(one) == plan.cannot == ""


@pytest.mark.parametrize("name", ASKED)
def test_the_leaders_and_the_best_have_the_seconds_of_step(name):
    """Exactly; the others a closed form's, which lets none of them be faster than the fastest."""
    found = FOUND[name]
    inside = [p for p in found.plans if found.equal(p)]
    assert found.best in inside and inside == list(found.plans[: len(inside)])
    assert sum(p.exact for p in inside) >= min(LEADERS, len(inside)) - 1 and found.plans[0].exact and found.best.exact
    for plan in (p for p in found.plans if p.exact):
        exact = step(plan.job)
        assert (plan.seconds, plan.parts, plan.mfu) == (exact.seconds, exact.parts, exact.mfu)
    for plan in random.Random(5).sample([p for p in found.plans if not p.exact], 8):
        exact = step(plan.job)
        near = plan.seconds == pytest.approx(exact.seconds, rel=TOLERANCE)
        assert near or exact.parts["exposed data"] > 0.6 * exact.seconds, key(plan)
        assert exact.seconds > found.plans[0].seconds
    assert found.best.bytes == fullest(found.best.job).peak_bytes


@pytest.mark.parametrize("name", ASKED)
def test_a_cut_has_the_fewest_chunks_of_those_as_fast(name):
    asked, found = ASKED[name], FOUND[name]
    for plan in random.Random(3).sample([p for p in (*found.plans, *found.over) if p is not found.best], 10):
        ask = _Search(*asked, None)
        base = replace(plan.layout, chunks=1, schedule="1f1b", micro_batches=asked[1] // plan.layout.dp)
        ways = [way for way in ask.ways(base) if not ask.cannot(way, plan.checkpointing)]
        sized = {way: ask.price.peak(way, plan.checkpointing) for way in ways}
        some = [way for way in ways if sized[way] <= usable(H100.memory_bytes)]
        assert plan.fits is bool(some) or abs(plan.over) < 0.01 * plan.bytes
        if not some:
            assert sized[next(way for way in ways if way.job.layout == plan.layout)] == min(sized.values())
            continue
        seconds = {
            (way.job.layout.chunks, -way.job.batch): sum(ask.price.parts(way, plan.checkpointing).values())
            for way in some
        }
        near = [name for name, one in seconds.items() if one <= (1 + ALIKE) * min(seconds.values())]
        assert (plan.layout.chunks, -plan.job.batch) == min(near), key(plan)


def test_parts_add_up():
    for plan in FOUND["405B"].plans:
        assert tuple(plan.parts) == PARTS and sum(plan.parts.values()) == pytest.approx(plan.seconds)
        assert min(plan.parts.values()) >= -1e-9
    assert set(WORDS) == set(PARTS)


def test_what_fits_on_one_node_needs_no_pipeline():
    assert FOUND["8B"].best.layout.pp == 1 and FOUND["8B"].best.checkpointing == "none"


def test_tensor_parallelism_leaves_a_node_only_where_nothing_else_fits():
    """405B on nodes of 2 GPUs: with 50 GB something fits inside them, with 40 only what goes across two."""
    pairs = job("llama-3-405b", 256, nodes=cluster(128, 2), seq=1024)
    near, wide = (search(pairs, 256, usable=size * 10**9) for size in (50, 40))
    assert near.best and not near.across and {plan.layout.tp for plan in near.plans + near.over} == {1, 2}
    assert wide.across and wide.best.layout.tp == 4 and all("tp" in plan.crossing for plan in wide.plans)
    own = cut(pairs, 256, tp=4, pp=64, zero=1)
    assert own.crossing == ("pp", "tp") and own.loses_by(near.best).endswith("tp across nodes")


def test_each_loser_has_one_reason_with_its_amount():
    found = FOUND["405B"]
    reasons = {found.reason(plan).rstrip("0123456789.%GB ") for plan in (*found.plans, *found.over)}
    assert {"does not fit by", "pipeline bubble", "recomputation", "equal within the band"} <= reasons
    assert found.reason(found.best) == ""
    for plan in found.over:
        words = found.reason(plan).split()
        assert words[:4] == ["does", "not", "fit", "by"] and float(words[4]) == pytest.approx(
            max(0.1, plan.over / 1e9), abs=0.51
        )


def test_a_reason_names_what_the_plan_has_most_more_of():
    found = FOUND["70B"]
    for plan in found.plans:
        reason = found.reason(plan)
        if reason.startswith("pipeline bubble"):
            more = {part: plan.parts[part] - found.best.parts[part] for part in PARTS}
            assert max(more, key=more.get) == "bubble"
            assert reason == f"pipeline bubble {100 * plan.parts['bubble'] / plan.seconds:.0f}%"
    full = [p for p in found.plans if p.checkpointing == "full" and not found.equal(p)]
    assert sum(found.reason(p).startswith("recomputation") for p in full) > len(full) / 2


def test_what_cannot_be_a_cut_is_counted_by_its_reason():
    assert set(FOUND["405B"].refused) == {
        "the sequences do not fall to the replicas",
        "fewer sequences than stages",
        "more stages than blocks",
    }
    ninety_six = FOUND["70B on 96"].refused
    assert "cp 3 does not divide the sequence" in ninety_six and "uneven stages" in ninety_six
    assert "torchtitan splits gradients too, so it has no ZeRO 1 here" in FOUND["70B compiled"].refused
    twelve_heads = search(job("gpt2", 8, seq=1024), 8)
    assert twelve_heads.refused["tp 8 does not divide the model"] == 1
    few = search(job("llama-3-70b", 7168), 8)
    assert few.plans == few.over == () and few.best is None


def test_a_framework_s_layouts_are_its_own():
    """torchtitan: ZeRO 3 without a pipeline, 1 with it; Accelerate: no pipeline; neither has Megatron's others."""
    titan = {(p.layout.pp > 1, p.layout.zero) for p in FOUND["70B compiled"].plans}
    assert titan <= {(False, 3), (False, 0), (True, 1), (True, 0)} and (True, 1) in titan and (False, 3) in titan
    assert not any(p.layout.gather_again for p in FOUND["70B compiled"].plans)
    faces = search(job(program="huggingface"), 128)
    assert faces.plans and all(p.layout.pp == 1 and not p.layout.sequence_parallel for p in faces.plans)


def test_more_memory_never_hurts_and_none_at_all_leaves_nothing():
    asked, sequences = ASKED["70B"]
    less, more = (search(asked, sequences, usable=size) for size in (40 * 10**9, 140 * 10**9))
    found = FOUND["70B"]
    assert len(less.plans) < len(found.plans) < len(more.plans)
    assert less.plans[0].seconds >= (1 - ALIKE) * found.plans[0].seconds >= (1 - ALIKE) ** 2 * more.plans[0].seconds
    nothing = search(asked, sequences, usable=10**9)
    assert nothing.plans == () and nothing.best is None and not nothing.across
    assert nothing.limit == 0 and not nothing.equal(found.best), "where nothing fits, nothing is as fast as the fastest"
    assert nothing.reason(nothing.over[0]).startswith("does not fit by ")
    assert nothing.over[0].bytes == fullest(nothing.over[0].job).peak_bytes


def test_a_slower_network_moves_what_crosses_it():
    asked, sequences = ASKED["70B"]
    slow = search(replace(asked, cluster=cluster(8, 8, across="ethernet-100g", nics=1)), sequences)
    fast = FOUND["70B"]
    assert slow.plans[0].seconds > fast.plans[0].seconds
    by = {key(p): p for p in slow.plans}
    crossing = [p for p in fast.plans if p.layout.zero == 3 and p.layout.replicas > 8]
    assert crossing and all(by[key(p)].seconds > 1.5 * p.seconds for p in crossing if key(p) in by)


@over(layers=[80, 96, 126], pp=[2, 4, 8, 16])
def test_chunks_leave_whole_numbers_of_blocks(layers, pp):
    for v in chunks(layers, pp):
        assert v > 1 and v * pp <= layers
        assert layers % (v * pp) == 0 or (layers + 2) % (v * pp) == 0
    assert (80 // pp in chunks(80, pp)) == (80 % pp == 0)
    assert chunks(126, 8) == (2, 4, 8) and chunks(80, 4) == (2, 4, 5, 10, 20)


@pytest.mark.parametrize("name", ["8B", "70B", "405B", "70B compiled"])
def test_one_cut_is_the_job_that_the_search_has(name):
    found, (asked, sequences) = FOUND[name], ASKED[name]
    for plan in (found.plans[0], found.plans[-1], *found.over[:1]):
        if plan is found.best:
            continue  # with as few chunks as lie in the band
        at = plan.layout
        one = cut(asked, sequences, tp=at.tp, cp=at.cp, pp=at.pp, zero=at.zero, checkpointing=plan.checkpointing)
        assert one.job == plan.job and one.exact and one.seconds == step(plan.job).seconds
        assert one.bytes == fullest(plan.job).peak_bytes
    assert (
        cut(asked, sequences, tp=at.tp, cp=at.cp, pp=at.pp, zero=at.zero, checkpointing=plan.checkpointing).cannot == ""
    )


def test_a_cut_that_a_framework_cannot_run_is_priced_and_says_so():
    one = cut(job(program="compiled"), 128, tp=2, zero=1)
    assert one.cannot.startswith("torchtitan splits gradients too, so it has no ZeRO 1 here: use zero 2 or 3")
    assert one.seconds == step(one.job).seconds
    assert FOUND["70B compiled"].reason(replace(one, over=0)) == one.cannot.split(":")[0]


def test_a_cut_that_cannot_be_is_told_what_would_work():
    one, sequences = ASKED["70B on 96"]
    refused(
        lambda: cut(one, sequences, tp=8, pp=5),
        "tp 8 x cp 1 x pp 5 does not divide 96 GPUs: the nearest that works is tp 8, cp 1, pp 6",
    )
    refused(lambda: cut(one, sequences, tp=7), "tp 7 does not divide 64 heads: the nearest that works is 8")
    refused(lambda: cut(one, sequences, cp=3), "cp 3 cuts a sequence into 6 pieces, not 8,192 tokens: use 8,190")
    refused(lambda: cut(one, sequences, pp=96), "use at most 80 stages")
    refuses_nonsense(
        lambda tp, cp, pp, zero, how: cut(one, sequences, tp=tp, cp=cp, pp=pp, zero=zero, checkpointing=how),
        8,
        1,
        4,
        1,
        "none",
        allowed=((3, 0),),
    )
    refused(
        lambda: cut(one, 64, tp=4, pp=4),
        "6 replicas of 4 stages take a multiple of 6 sequences, at least 24: use 66, not 64",
    )
    refused(lambda: cut(one, 64, tp=4), "24 replicas take a multiple of 24 sequences: use 72, not 64")
    refused(lambda: cut(one, 64, checkpointing="some"), "checkpointing must be one of none, selective, full")


def test_one_gpu_is_one_layout():
    found = search(job("gpt2", 1, seq=1024), 8)
    assert {key(p)[:5] for p in found.plans} == {(1, 1, 1, 1, 0)} and len(found.plans) == 3


def test_what_cannot_be():
    refused(lambda: search(job(), 0), "sequences must be a whole number of at least 1")
    refused(lambda: search(job(), usable=0), "usable must be a whole number of at least 1")
    refused(lambda: search(job(), most_cp=0), "most_cp must be a whole number of at least 1")
    refused(lambda: search(job(recipe=Recipe("bf16-master"))), "micro-batches accumulate gradients")
    refused(lambda: search(job(recipe=Recipe("bf16-master", gradients="kept", adapter="lora"))), "and no adapter")
    refused(lambda: search("8B"), "job must be a Job, not '8B'")
