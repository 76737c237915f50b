"""A step of a job cut along several axes: what each axis adds, and what published layouts show."""

from dataclasses import replace
from math import fsum, log2

import measured
import pytest
from cases import over

from scaleout.memory.job import fullest
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, flops
from scaleout.timing import pipeline_exchange
from scaleout.timing.ddp import queued
from scaleout.timing.job import PARTS, balanced_blocks, step
from scaleout.timing.pipeline import summary
from scaleout.timing.pipeline_exchange import Calls

LLAMA = PRESETS["llama-3-8b"]


def job(layout, shape=LLAMA, seq=8192, gpus=8, batch=1, **options):
    wide = cluster(-(-layout.ranks // gpus), min(gpus, layout.ranks))
    return Job(shape, seq, DEVICES["h100-sxm"], wide, batch, layout, **options)


def parts(layout, *given, **options):
    return step(job(layout, *given, **options)).parts


def interleaved(v):
    return {"chunks": v, "schedule": "interleaved" if v > 1 else "1f1b"}


@over(pp=[2, 4], v=[1, 2], batch=[1, 2])
def test_the_pipeline_is_its_orders_over_stages_of_their_own_length(pp, v, batch):
    layout = Layout(pp=pp, micro_batches=8, **interleaved(v))
    ours = step(job(layout, batch=batch))
    done = summary(layout.schedule, pp, 8, v, ours.costs)
    after = ("exposed data", "update", "host", "stragglers")
    actions = 8 * v * 2 * ours.job.program.action_seconds  # in the costs of stages, and told among the hops
    up_to_the_update = fsum(ours.parts[name] for name in PARTS if name not in after)
    assert up_to_the_update == pytest.approx(done.seconds)
    assert ours.costs.forward[-1] > ours.costs.forward[0], "the head"
    assert len(set(ours.costs.forward[1:-1])) <= 1
    assert ours.parts["compute"] + ours.parts["launches"] == pytest.approx(fsum(done.work) / pp - actions)
    assert ours.parts["imbalance"] == pytest.approx(max(done.work) - fsum(done.work) / pp)


def test_halved_backwards_fill_the_bubble():
    """Zero-bubble schedules take the weights' gradients, a third of a step's matmuls, into the bubble."""
    bubbles = {}
    for schedule, v in (("1f1b", 1), ("zb1", 1), ("zbv", 2), ("dualpipev", 2)):
        ours = parts(Layout(pp=4, chunks=v, schedule=schedule, micro_batches=16))
        bubbles[schedule] = ours["bubble"] + ours["imbalance"]
    assert bubbles["zbv"] < bubbles["zb1"] < bubbles["1f1b"]


def test_a_block_less_on_the_last_stage_makes_up_for_its_head():
    even, moved = (step(job(Layout(pp=4, micro_batches=32), blocks=blocks)) for blocks in (None, (8, 9, 8, 7)))
    assert moved.seconds < even.seconds and moved.parts["imbalance"] < even.parts["imbalance"]
    assert moved.parts["compute"] == pytest.approx(even.parts["compute"])


@over(cp=[2, 4], tp=[1, 2])
def test_ranks_of_a_context_share_one_sequence(cp, tp):
    """Smaller matmuls waste a little more of each multiprocessor, and launch as many kernels."""
    alone, ours = (step(job(Layout(cp=degree, tp=tp, sequence_parallel=True, micro_batches=4))) for degree in (1, cp))
    assert 1 <= cp * ours.parts["compute"] / alone.parts["compute"] < 1.2
    assert ours.parts["exposed context"] > 0 == alone.parts["exposed context"]
    assert ours.parts["launches"] == pytest.approx(alone.parts["launches"]) and ours.mfu < alone.mfu


def test_a_ring_hides_beside_attention_what_a_gather_does_not():
    layout = Layout(cp=4, micro_batches=4)
    ring, gather = (parts(layout, seq=32_768, context=way)["exposed context"] for way in ("ring", "gather"))
    assert ring < gather / 2


def test_what_is_passed_takes_longer_between_nodes():
    layout = Layout(dp=8, cp=2, micro_batches=4)
    near, far = (
        parts(layout, order=order)["exposed context"] for order in (("pp", "dp", "cp", "tp"), ("pp", "cp", "dp", "tp"))
    )
    assert far > near


def test_the_order_of_axes_says_what_waits_for_the_network():
    layout = Layout(dp=4, tp=4, pp=2, zero=1, sequence_parallel=True, micro_batches=8)
    base, turned = (step(job(layout, order=order)) for order in (("pp", "dp", "cp", "tp"), ("tp", "pp", "dp", "cp")))
    assert turned.seconds > 1.3 * base.seconds
    assert turned.parts["exposed tensor"] > 4 * base.parts["exposed tensor"]
    assert turned.parts["compute"] == pytest.approx(base.parts["compute"])


def test_recomputation_is_forward_once_more():
    none, full = (step(job(Layout(dp=8, zero=1)).other(checkpointing=how)) for how in ("none", "full"))
    assert none.parts["recompute"] == 0
    work = flops(LLAMA, 1, 8192, "full")
    share = full.parts["recompute"] / full.parts["compute"]
    assert share == pytest.approx(work["recompute"] / (work["forward"] + work["backward"]), rel=0.12)
    assert full.mfu < none.mfu and full.hfu > full.mfu and none.hfu == none.mfu


def test_the_head_makes_the_last_stage_the_slowest_and_fewer_blocks_there_mend_it():
    """Llama 3 8B's head takes 2.4 blocks' time: no split into four makes a shorter step than `balanced_blocks`."""
    even = Job(LLAMA, 8192, DEVICES["h100-sxm"], cluster(1, 4), layout=Layout(pp=4, micro_batches=16))
    found = step(even)
    assert found.pipeline.work.index(max(found.pipeline.work)) == 3
    each = balanced_blocks(even)
    assert sum(each) == 32 and each[-1] == 6
    best = step(even.other(blocks=each)).seconds
    splits = [(a, b, c, 32 - a - b - c) for a in (8, 9, 10) for b in (8, 9, 10) for c in (8, 9)]
    assert best == min(step(even.other(blocks=one)).seconds for one in splits) < found.seconds


def test_mfu_counts_every_rank_once():
    ours = step(job(Layout(dp=2, cp=2, tp=2, pp=2, sequence_parallel=True, micro_batches=4)))
    work = flops(LLAMA, 8, 8192)
    assert ours.mfu * ours.seconds * 16 * 989.4e12 == pytest.approx(work["forward"] + work["backward"], rel=1e-4)


def test_llama_3s_order_has_the_pipeline_between_its_replicas():
    """[TP, CP, PP, DP] from the inside (arXiv 2407.21783, section 3.3.2): where every axis but tp leaves its node
    nothing else of a step changes."""
    layout = Layout(dp=4, tp=8, pp=4, cp=2, zero=1, sequence_parallel=True, micro_batches=8)
    theirs, ours = (
        step(job(layout, PRESETS["llama-3-70b"], order=order)).seconds
        for order in (("dp", "pp", "cp", "tp"), ("pp", "dp", "cp", "tp"))
    )
    assert theirs == pytest.approx(ours)


# --- replicas -------------------------------------------------------------------------------------------------------


@over(v=[1, 2, 5], pp=[1, 4], pieces=[1, 3, 8], size=[1.0, 30.0, 300.0, 3000.0])
def test_late_messages_are_those_of_a_queue(v, pp, pieces, size):
    if pp == 1 and v > 1:
        return
    layout = Layout(dp=2, pp=pp, micro_batches=8, **interleaved(v))
    chunk = 12.0 / v
    ready = sorted(
        -left * pp * chunk - chunk * (pieces - 1 - piece) / pieces for left in range(v) for piece in range(pieces)
    )
    wire = size / 40 / v / pieces
    last = queued([1000 + at for at in ready], [wire] * len(ready))[-1][1] - 1000  # a lane is free from 0 on
    assert pipeline_exchange.tail(layout, Calls(1, pieces, wire), 12.0) == pytest.approx(max(0.0, last))


def test_what_each_zero_stage_exposes_in_a_pipeline():
    late = [parts(Layout(dp=16, pp=4, zero=zero, micro_batches=4), seq=2048)["exposed data"] for zero in (0, 1, 2, 3)]
    assert late[1] < late[2] < late[3], "scattered once, with every micro-batch, and gathered before each pass too"


def test_interleaving_hides_more_of_what_replicas_send():
    one, four = (
        parts(Layout(dp=64, pp=4, zero=1, micro_batches=8, **interleaved(v)), seq=512)["exposed data"] for v in (1, 4)
    )
    assert four < one


def test_buckets_grow_with_the_replicas():
    assert [pipeline_exchange.bucket_parameters(n) for n in (1, 40, 512)] == [40_000_000, 40_000_000, 512_000_000]


# --- published layouts ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nvidia():
    """{model: its step on the fewest GPUs}, of NVIDIA's tables."""
    found = {}
    for row in measured.rows():
        if row.series.startswith("dgxc"):
            found.setdefault(row.name.split(",")[0].removeprefix("nvidia "), step(row.job))
    return found


def test_parts_show_where_published_layouts_differ(nvidia):
    share = {name: {part: spent / one.seconds for part, spent in one.parts.items()} for name, one in nvidia.items()}
    assert share["15B"]["bubble"] == 0 < share["15B"]["exposed tensor"]
    assert share["340B"]["imbalance"] > share["175B"]["imbalance"] > 0, "vocabularies of 256,000 and 51,200"
    assert share["340B"]["recompute"] > 0 == share["175B"]["recompute"]


def test_jitter_is_what_weak_scaling_loses_beside_its_communication():
    """NVIDIA's series from the fewest GPUs to the most, each time the nodes double, as spec/program.py says."""
    ends, lost = {}, {}
    for row in measured.rows():
        if row.series.startswith("dgxc"):
            ends.setdefault(row.name.split(",")[0].removeprefix("nvidia "), []).append(row)
    for name, (few, *_, many) in ends.items():
        still = replace(few.job.program, jitter=0.0)
        longer = (many.seconds / measured.seconds(many, still)) / (few.seconds / measured.seconds(few, still))
        lost[name] = (longer - 1) / log2(many.job.cluster.nodes / few.job.cluster.nodes)
    assert {name: round(100 * share, 2) for name, share in lost.items()} == {"175B": 0.48, "15B": 0.55, "340B": 0.63}
    assert few.job.program.jitter == round(min(lost.values()), 3) == 0.005


def test_what_ran_is_told_to_fit_with_gradients_of_16_bits(nvidia):
    """As 175B and 340B had them. 340B on two replicas is told to need 1% more than the GPU has: fused kernels keep less
    than torch's own operations, of which the account is."""
    peaks = {}
    for name, one in nvidia.items():
        half = one.job.other(main_gradients="none", gradients="kept")
        peaks[name] = fullest(half).peak_bytes / half.device.memory_bytes
    assert {name for name, share in peaks.items() if share > 1} <= {"340B"} and peaks["340B"] < 1.02
