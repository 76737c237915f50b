"""A pipelined step of a real model: the FLOPs of its stages, and the last one with the head."""

import pytest
from cases import refused

from scaleout.spec.pipeline import Action
from scaleout.spec.transformer import PRESETS, flops
from scaleout.timing import pipeline_seconds as seconds
from scaleout.timing.pipeline import Costs, even, step, summary, timeline
from scaleout.timing.pipeline_waits import blocked

LLAMA = PRESETS["llama-3-8b"]


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_stages_carry_all_flops_of_a_micro_batch_once(checkpointing):
    work = flops(LLAMA, 2, 4096, checkpointing)
    costs = seconds.costs(LLAMA, 2, 4096, 1e12, (8, 8, 8, 8), checkpointing=checkpointing)
    assert sum(costs.forward) == pytest.approx(work["forward"] / 1e12)
    assert sum(costs.backward) == pytest.approx((work["backward"] + work["recompute"]) / 1e12)


def test_the_head_makes_the_last_stage_the_straggler_and_fewer_blocks_mend_it():
    """By multiplications alone the head is 1.4 blocks of 2,048 tokens more; `mended` takes from it what that is."""
    each = seconds.mended(LLAMA, 4, 2048)
    assert sum(each) == 32 and each[-1] < 8
    found = []
    for blocks in ((8, 8, 8, 8), each):
        costs = seconds.costs(LLAMA, 1, 2048, 1e14, blocks)
        slowest = max(map(sum, zip(costs.forward, costs.backward, strict=True)))
        found.append(summary("1f1b", 4, 16, 1, costs))
        if blocks == (8, 8, 8, 8):  # filling by three others, then the last without a pause
            fill = sum(costs.forward[:3]) + sum(costs.backward[:3])
            assert found[0].seconds == pytest.approx(16 * slowest + fill)
    assert found[1].seconds < found[0].seconds and found[1].bubble < found[0].bubble


def test_what_cannot_be():
    with pytest.raises(ValueError, match="5 stages do not divide 32 layers: use 4 stages"):
        seconds.blocks(32, 5)
    with pytest.raises(ValueError, match="the stages have 30 blocks, the model 32"):
        seconds.costs(LLAMA, 1, 2048, 1e12, (8, 8, 8, 6))
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
        (lambda: seconds.costs(LLAMA, 1, 2048, 1e12, 8), "each must be a Sequence, not 8"),
    ],
)
def test_nonsense_is_one_line(call, words):
    refused(call, words)


def test_no_stages_are_refused():
    refused(lambda: seconds.costs(LLAMA, 1, 2048, 1e12, ()), "the stages have 0 blocks, the model 32")
