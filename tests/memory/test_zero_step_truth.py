"""A step of ZeRO by hand: what must hold of its bytes. tests/ranks/test_zero.py holds them against real ranks."""

import pytest

from scaleout.measure.zero_step import zero_step
from scaleout.spec.transformer import Shape, total_parameters

SHAPE = Shape(3, 64, 4, 100, max_seq=32)


def peak(ranks, stage, batch=1):
    return max(sum(kinds.values()) for kinds in zero_step(SHAPE, batch, 32, ranks, stage).values())


def test_each_stage_needs_less_and_more_ranks_need_less():
    for ranks in (2, 4, 8):
        assert peak(ranks, 1) > peak(ranks, 2) > peak(ranks, 3)
        for stage in (1, 2, 3):
            assert peak(ranks, stage) > peak(2 * ranks, stage)


def test_activations_are_not_split():
    more = [peak(ranks, 3, batch=64) - peak(ranks, 3, batch=32) for ranks in (2, 8)]
    assert more[0] == more[1] > 0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_step_ends_with_shards_of_the_gradients(stage):
    n = total_parameters(SHAPE)
    update = zero_step(SHAPE, 1, 32, 4, stage)["optimizer"]
    assert update["whole gradients"] == update["buffers"] == update["gathered"] == 0
    assert update["gradients"] == pytest.approx(4 * n / 4, rel=0.001)
    assert update["weights"] == pytest.approx(4 * n / (4 if stage == 3 else 1), rel=0.001)
    assert update["optimizer"] == pytest.approx(8 * n / 4, rel=0.001)


@pytest.mark.parametrize(("given", "said"), [((0, 1), "ranks must be"), ((2, 0), "stage must be 1, 2 or 3, not 0")])
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        zero_step(SHAPE, 1, 32, *given)
