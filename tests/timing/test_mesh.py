"""A step on a mesh: what it is without one of its axes, and what each axis adds."""

from dataclasses import replace
from math import log, sqrt

import pytest
from cases import over, refused

from scaleout.spec.hardware import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, flops
from scaleout.timing import mesh_replicas
from scaleout.timing.ddp import queued
from scaleout.timing.mesh import PARTS, STRAGGLE, step
from scaleout.timing.mesh_machine import machine
from scaleout.timing.mesh_work import block_work
from scaleout.timing.pipeline import summary
from scaleout.timing.tensor import step_seconds
from scaleout.timing.tensor_machine import machine as tensor_machine

H100, LLAMA = DEVICES["h100-sxm"], PRESETS["llama-3-8b"]
RECIPE = Recipe("bf16-master", main_gradients="instead")


def timed(layout, shape=LLAMA, batch=1, seq=8192, recipe=RECIPE, gpus=8, **options):
    return step(shape, batch, seq, layout, H100, cluster(-(-layout.ranks // gpus), min(gpus, layout.ranks)), recipe,
                **options)  # fmt: skip


@over(tp=[1, 2, 8], checkpointing=["none", "selective", "full"], overlap=["none", "backward", "chunked"])
def test_without_pipeline_and_context_a_rank_computes_what_tensor_parallelism_says(tp, checkpointing, overlap):
    layout = Layout(dp=16 // tp, tp=tp, zero=1, sequence_parallel=True, micro_batches=4)
    recipe = replace(RECIPE, checkpointing=checkpointing)
    ours = timed(layout, recipe=recipe, overlap=overlap)
    on = tensor_machine(H100, cluster(2, 8), layout)
    theirs = step_seconds(LLAMA, 1, 8192, layout, on, recipe, overlap=overlap, accumulation=4)
    assert ours.parts["compute"] + ours.parts["recompute"] == pytest.approx(
        sum(theirs.parts[name] for name in ("products", "attention", "other kernels"))
    )
    # they add the gradients of norms, once a step
    assert ours.parts["exposed tensor"] == pytest.approx(theirs.parts["exposed tensor"], rel=0.02)
    assert ours.parts["update"] == pytest.approx(theirs.parts["update"])
    assert [ours.parts[name] for name in ("imbalance", "bubble", "hops", "exposed context")] == [0] * 4


@over(pp=[2, 4], v=[1, 2], batch=[1, 2])
def test_the_pipeline_is_its_orders_over_stages_of_their_own_length(pp, v, batch):
    layout = Layout(pp=pp, micro_batches=8, chunks=v, schedule="interleaved" if v > 1 else "1f1b")
    ours = timed(layout, batch=batch)
    done = summary(layout.schedule, pp, 8, v, ours.costs)
    up_to_the_update = sum(ours.parts[name] for name in PARTS if name not in ("exposed data", "update", "stragglers"))
    assert up_to_the_update == pytest.approx(done.seconds)
    assert ours.costs.forward[-1] > ours.costs.forward[0], "the head"
    assert len(set(ours.costs.forward[:-1])) == 1
    assert ours.parts["compute"] == pytest.approx(sum(done.work) / pp)
    assert ours.parts["imbalance"] == pytest.approx(max(done.work) - sum(done.work) / pp)


def test_halved_backwards_fill_the_bubble():
    """Zero-bubble schedules take the weights' gradients, which are the products' third of a step, into the bubble."""
    bubbles = {}
    for schedule, v in (("1f1b", 1), ("zb1", 1), ("zbv", 2), ("dualpipev", 2)):
        ours = timed(Layout(pp=4, chunks=v, schedule=schedule, micro_batches=16))
        assert sum(ours.parts.values()) == pytest.approx(ours.seconds)
        bubbles[schedule] = ours.parts["bubble"] + ours.parts["imbalance"]
    assert bubbles["zbv"] < bubbles["zb1"] < bubbles["1f1b"]


def test_blocks_moved_off_the_last_stage_mend_its_head():
    even = timed(Layout(pp=4, micro_batches=32))
    mended = timed(Layout(pp=4, micro_batches=32), each=(8, 9, 8, 7))
    assert mended.seconds < even.seconds and mended.parts["imbalance"] < even.parts["imbalance"]
    assert mended.parts["compute"] == pytest.approx(even.parts["compute"])


@over(cp=[2, 4], tp=[1, 2])
def test_ranks_of_a_context_share_one_sequence_evenly(cp, tp):
    """Their products and their attention are a cp-th of the whole: the same FLOPs, in as many seconds of all ranks."""
    alone = timed(Layout(tp=tp, sequence_parallel=True, micro_batches=4))
    ours = timed(Layout(cp=cp, tp=tp, sequence_parallel=True, micro_batches=4))
    assert cp * ours.parts["compute"] == pytest.approx(alone.parts["compute"])
    assert ours.parts["exposed context"] > 0 == alone.parts["exposed context"]
    assert ours.mfu < alone.mfu


def test_a_ring_hides_beside_attention_what_a_gather_does_not():
    layout = Layout(cp=4, micro_batches=4)
    ring, gather = (timed(layout, seq=32_768, context=way).parts["exposed context"] for way in ("ring", "gather"))
    assert ring < gather / 2
    short = timed(layout, seq=1024, context="ring")
    assert short.parts["exposed context"] / short.seconds > ring / timed(layout, seq=32_768).seconds


def test_what_is_passed_takes_longer_between_nodes():
    layout = Layout(dp=8, cp=2, micro_batches=4)
    near, far = (timed(layout, order=order) for order in (("pp", "dp", "cp", "tp"), ("pp", "cp", "dp", "tp")))
    assert near.crossing == ("dp",) and far.crossing == ("cp",)
    assert far.parts["exposed context"] > near.parts["exposed context"]


@pytest.mark.parametrize("outermost", ["pp", "dp", "tp"])
def test_the_order_of_axes_says_what_waits_for_the_network(outermost):
    layout = Layout(dp=4, tp=4, pp=2, zero=1, sequence_parallel=True, micro_batches=8)
    order = (outermost, *(axis for axis in ("pp", "dp", "cp", "tp") if axis != outermost))
    base, ours = timed(layout, overlap="none"), timed(layout, overlap="none", order=order)
    if outermost == "tp":
        assert ours.seconds > 1.3 * base.seconds and "tp" in ours.crossing
        assert ours.parts["exposed tensor"] > 4 * base.parts["exposed tensor"]
    assert ours.parts["compute"] == pytest.approx(base.parts["compute"])


def test_chunks_of_messages_stay_in_a_node():
    order, layout = ("tp", "pp", "dp", "cp"), Layout(dp=8, tp=2, sequence_parallel=True)
    chunked, backward = (timed(layout, order=order, overlap=way).seconds for way in ("chunked", "backward"))
    assert chunked == backward
    assert timed(layout, overlap="chunked").seconds < timed(layout, overlap="backward").seconds


def test_recomputation_is_forward_once_more():
    none, full = (timed(Layout(dp=8, zero=1), recipe=replace(RECIPE, checkpointing=how)) for how in ("none", "full"))
    assert none.parts["recompute"] == 0
    share = full.parts["recompute"] / full.parts["compute"]
    work = flops(LLAMA, 1, 8192, "full")
    assert share == pytest.approx(work["recompute"] / (work["forward"] + work["backward"]), rel=0.12)
    assert full.mfu < none.mfu and full.hfu > full.mfu and none.hfu == none.mfu


def test_mfu_counts_every_rank_once():
    ours = timed(Layout(dp=2, cp=2, tp=2, pp=2, sequence_parallel=True, micro_batches=4))
    work = flops(LLAMA, 8, 8192)
    assert ours.mfu * ours.seconds * 16 * 989.4e12 == pytest.approx(work["forward"] + work["backward"])
    assert ours.tokens_per_second * ours.seconds == pytest.approx(8 * 8192)


def test_stragglers_grow_with_the_root_of_the_logarithm():
    ours = timed(Layout(dp=64, zero=1))
    rest = ours.seconds - ours.parts["stragglers"]
    assert ours.parts["stragglers"] / rest == pytest.approx(STRAGGLE * sqrt(2 * log(64)))
    assert timed(Layout()).parts["stragglers"] == 0


# --- replicas -------------------------------------------------------------------------------------------------------


@over(v=[1, 2, 5], pp=[1, 4], pieces=[1, 3, 8], size=[1.0, 30.0, 300.0, 3000.0])
def test_late_messages_are_those_of_a_queue(v, pp, pieces, size):
    if pp == 1 and v > 1:
        return
    schedule = "interleaved" if v > 1 else "1f1b"
    layout = Layout(dp=2, pp=pp, chunks=v, schedule=schedule, micro_batches=8)
    chunk = 12.0 / v
    ready = sorted(-left * pp * chunk - chunk * (pieces - 1 - piece) / pieces
                   for left in range(v) for piece in range(pieces))  # fmt: skip
    wire = size / 40 / v / pieces
    last = queued([1000 + at for at in ready], [wire] * len(ready))[-1][1] - 1000  # a lane is free from 0 on
    late = mesh_replicas.late_seconds(size, "all_gather", layout, lambda _, size: size / 40, 12.0, pieces)
    assert late == pytest.approx(max(0.0, last))


def test_what_each_zero_stage_exposes():
    late = [timed(Layout(dp=64, zero=zero, micro_batches=4), batch=1, seq=2048).parts["exposed data"]
            for zero in (0, 1, 2, 3)]  # fmt: skip
    assert late[1] < late[2] < late[3], "scattered once, with every micro-batch, and gathered before each pass too"
    assert late[0] > late[1], "an all-reduce is a scatter and a gather behind one backward"
    bare = timed(Layout(dp=64, zero=1, micro_batches=4), seq=2048, hide_data=False).parts["exposed data"]
    assert bare > 5 * late[1]


def test_interleaving_hides_more_of_what_replicas_send():
    one, four = (
        timed(Layout(dp=64, pp=4, zero=1, micro_batches=8, chunks=v, schedule="interleaved" if v > 1 else "1f1b"),
              seq=512).parts["exposed data"] for v in (1, 4)
    )  # fmt: skip
    assert four < one


def test_buckets_grow_with_the_replicas():
    assert [mesh_replicas.bucket(n) for n in (1, 40, 512)] == [40_000_000, 40_000_000, 512_000_000]


def test_llama_3s_order_has_the_pipeline_between_its_replicas():
    """[TP, CP, PP, DP] from the inside (arXiv 2407.21783, section 3.3.2): of data alone the outermost axis waits for
    the network's slowest part, and nothing else of a step changes where every axis but tp leaves its node."""
    layout = Layout(dp=4, tp=8, pp=4, cp=2, zero=1, sequence_parallel=True, micro_batches=8)
    theirs, ours = (timed(layout, PRESETS["llama-3-70b"], order=order)
                    for order in (("dp", "pp", "cp", "tp"), ("pp", "dp", "cp", "tp")))
    assert theirs.crossing == ("dp", "pp", "cp") and ours.seconds == pytest.approx(theirs.seconds)
    inside = replace(layout, tp=2)
    spread, side = (timed(inside, PRESETS["llama-3-70b"], order=order).parts["hops"]
                    for order in (("dp", "pp", "cp", "tp"), ("pp", "dp", "cp", "tp")))
    assert spread == side, "two stages on a node, and still a hop between nodes"


def test_what_cannot_be():
    refused(lambda: timed(Layout(cp=2), context="tree"), "context must be one of ring, gather")
    refused(lambda: timed(Layout(cp=2), seq=1023), "use 1,024")
    refused(lambda: timed(Layout(cp=2), recipe=replace(RECIPE, attention="naive")), "use attention sdpa, not naive")
    refused(lambda: timed(Layout(tp=2), overlap="chunked"), "it needs sequence_parallel=True")
    refused(lambda: timed(Layout(pp=2), each=(16, 15)), "2 stages of 32 blocks in all")
    refused(lambda: step(LLAMA, 1, 64, Layout(dp=4), H100, cluster(1, 8)), "the cluster has 8 GPUs, the layout 4 ranks")
    on = tensor_machine(H100, cluster(1, 2), Layout(dp=2))
    refused(lambda: step_seconds(LLAMA, 1, 64, Layout(dp=2, cp=2), on), "use cp 1, not 2")
    one = machine(H100, cluster(1, 2), Layout(tp=2))
    refused(lambda: block_work(LLAMA, 1, 64, Layout(tp=2), one, RECIPE, "late"), "overlap must be one of none")
