"""A pipelined step of a real model: the FLOPs of its stages, and the last one with the head."""

import pytest
from cases import refused

from scaleout.spec.hardware import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.pipeline import Action
from scaleout.spec.topology import Cluster, cluster, wire
from scaleout.spec.transformer import PRESETS, flops
from scaleout.timing import pipeline_seconds as seconds
from scaleout.timing.pipeline import Costs, even, step, timeline
from scaleout.timing.pipeline_waits import blocked

LLAMA, H100 = PRESETS["llama-3-8b"], DEVICES["h100-sxm"]


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_stages_carry_all_flops_of_a_micro_batch_once(checkpointing):
    work = flops(LLAMA, 2, 4096, checkpointing)
    costs = seconds.costs(LLAMA, 2, 4096, 1e12, (8, 8, 8, 8), checkpointing=checkpointing)
    assert sum(costs.forward) == pytest.approx(work["forward"] / 1e12)
    assert sum(costs.backward) == pytest.approx((work["backward"] + work["recompute"]) / 1e12)


def test_the_head_makes_the_last_stage_the_straggler_and_fewer_blocks_mend_it():
    layout, one = Layout(pp=4, micro_batches=16), cluster(1, 4)
    even = seconds.from_device(LLAMA, 1, 2048, layout, H100, one)
    each = seconds.mended(LLAMA, 4, 2048)
    better = seconds.from_device(LLAMA, 1, 2048, layout, H100, one, each=each)
    assert sum(each) == 32 and each[-1] < 8
    slowest = [max(map(sum, zip(run.costs.forward, run.costs.backward, strict=True))) for run in (even, better)]
    assert even.step.seconds == pytest.approx(  # filling by three others, then the last without a pause
        16 * slowest[0] + sum(even.costs.forward[:3]) + sum(even.costs.backward[:3]) + 6 * even.costs.hop
    )
    assert better.step.seconds < even.step.seconds and better.step.bubble < even.step.bubble
    assert better.mfu / even.mfu == pytest.approx(even.step.seconds / better.step.seconds)
    assert even.tokens_per_second == pytest.approx(16 * 2048 / even.step.seconds)


def test_a_hop_is_the_residual_stream_over_the_slowest_wire():
    assert seconds.hop_bytes(PRESETS["gpt-3-175b"], 1, 2048) == 2048 * 12_288 * 2
    near, far = wire("nvlink4"), wire("ib-ndr")
    two = Cluster(2, 2, near, far, 2)
    found = seconds.from_device(LLAMA, 1, 2048, Layout(pp=4), H100, two)
    assert found.costs.hop == far.seconds(2048 * 4096 * 2) > near.seconds(2048 * 4096 * 2)


def test_what_cannot_be():
    with pytest.raises(ValueError, match="5 stages do not divide 32 layers: use 4 stages"):
        seconds.blocks(32, 5)
    with pytest.raises(ValueError, match="the stages have 30 blocks, the model 32"):
        seconds.costs(LLAMA, 1, 2048, 1e12, (8, 8, 8, 6))
    with pytest.raises(ValueError, match="use a layout and a cluster of 4 ranks, not 8 and 4"):
        seconds.from_device(LLAMA, 1, 2048, Layout(dp=2, pp=4), H100, cluster(1, 4))
    with pytest.raises(ValueError, match="use at most 32 stages"):
        seconds.mended(LLAMA, 33, 2048)


@pytest.mark.parametrize("each", [(8.0, 8, 8, 8), (8.5, 7.5, 8, 8), (-1, 17, 8, 8), ("8", 8, 8, 8), (True, 15, 8, 8)])
def test_blocks_are_whole(each):
    refused(lambda: seconds.costs(LLAMA, 1, 2048, 1e12, each), "the blocks of a stage must be a whole number")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Costs(1.0, 1.0, 1.0), "one number for each stage: give as many of each"),
        (lambda: Costs((1.0,), (1.0,), ("1",)), "weight must be a finite number from 0 up, not '1'"),
        (lambda: even(2, forward=[1.0, 1.0]), "forward must be a finite number from 0 up"),
        (lambda: timeline(None, even(2)), "give one such list a rank"),
        (lambda: blocked([Action("F", 0, 0)] * 2 + [0]), "give one such list a rank"),
        (lambda: blocked(4), "give one such list a rank"),
        *(
            (lambda look=look: look(step("1f1b", 4, 8, 1, even(4))), "rank must be a whole number from 0 to 3, not 4")
            for look in (lambda t: t.held(4), lambda t: t.lane(4), lambda t: t.window(4, 0.0, 1.0))
        ),
        (lambda: seconds.mended("llama-3-8b", 4, 2048), "shape must be a Shape, not 'llama-3-8b'"),
        (lambda: seconds.hop_bytes("llama-3-8b", 1, 2048), "shape must be a Shape, not 'llama-3-8b'"),
        (lambda: seconds.costs(LLAMA, 1, 2048, 1e12, 8), "each must be a Sequence, not 8"),
    ],
)
def test_nonsense_is_one_line(call, words):
    refused(call, words)


def test_no_stages_and_no_bytes_are_refused():
    layout = Layout(pp=4)
    refused(lambda: seconds.costs(LLAMA, 1, 2048, 1e12, ()), "the stages have 0 blocks, the model 32")
    refused(lambda: seconds.from_device(LLAMA, 1, 2048, layout, H100, cluster(1, 4), each=()), "have 0 blocks")
    refused(lambda: seconds.hop_bytes(LLAMA, -1, 2048), "batch must be a whole number")
    refused(lambda: seconds.hop_bytes(LLAMA, 1, 2048, -2), "dtype_bytes must be a whole number")
