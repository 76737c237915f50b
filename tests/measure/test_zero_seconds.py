"""Seconds of the lab's ways on a calibrated machine, by hand."""

from types import SimpleNamespace

import pytest

from scaleout.measure.zero_seconds import by_profile, message_seconds, sends
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape, total_parameters
from scaleout.timing.job import update_bytes

O = SimpleNamespace(shape=Shape(2, 64, 4, 256), seq=64, micro_batch=1, accumulation=1)  # noqa: E741
N = total_parameters(O.shape)
LINES = {
    name: {"alpha_seconds": alpha, "seconds_per_byte": 1e-9}
    for name, alpha in (("all_reduce", 0.5), ("all_gather", 0.125), ("reduce_scatter", 2.0), ("broadcast", 0.25))
}
PROFILE = {"matmul_flops_per_second": {"fp32": 1e10}, "copy_bytes_per_second": 1e9, "collectives": LINES}
PASSES = PROGRAMS["eager"].update_passes  # of eager torch's optimizer, in bytes of a fused one


def test_what_a_way_adds_to_compute():
    """Half of the update is spared by the owners, and each message takes its latency."""
    update = PASSES * N * update_bytes(Recipe("fp32")) / 1e9
    bare = {}
    for via in ("ddp", "stage-1", "stage-2", "stage-3", "zero-redundancy", "keep", "reshard"):
        owned = update if via == "ddp" else update / 2
        bare[via] = by_profile(PROFILE, O, 2, via) - message_seconds(sends(O, 2, via, 1), PROFILE) - owned
    assert all(one == pytest.approx(bare["ddp"], rel=1e-9) for one in bare.values())
    alone = by_profile(PROFILE, O, 1, "ddp")
    assert alone == pytest.approx(bare["ddp"] + update) and sends(O, 1, "ddp", 1) == ()


def test_a_way_that_was_measured_whole_is_not_added_up():
    """Its seconds per unit and per byte, in place of messages; implementations that were not keep theirs."""
    point = {
        "units": 3,
        "bytes": 4 * N,
        "tensors": 10,
        "parameters": N,
        "forward": 0.25,
        "backward": 0.5,
        "rest": 0.125,
    }
    known = PROFILE | {"kernels": {"units": {"stage 3": [point | {"update": 1.0}]}}, "world": 2}
    quick = known | {"kernels": {"units": {"stage 3": [point | {"update": 1.0, "backward": 1e-9}]}}}
    longer = by_profile(known, O, 2, "stage-3") - by_profile(quick, O, 2, "stage-3")
    assert longer == pytest.approx(0.5)  # 2 blocks and the rest are 3 units
    for via in ("ddp", "stage-1", "zero-redundancy", "reshard"):
        assert by_profile(known, O, 2, via) == by_profile(quick, O, 2, via)


def test_messages_come_one_after_another():
    """One bucket of an all-reduce; or a tensor at a time from its owner."""
    assert message_seconds(sends(O, 2, "ddp", 1), PROFILE) == pytest.approx(0.5 + 4e-9 * N)
    reduced, spread = sends(O, 2, "zero-redundancy", 1)
    assert (reduced.collective, spread.collective) == ("all_reduce", "broadcast")
    found = message_seconds((reduced, spread), PROFILE)
    assert found == pytest.approx(reduced.count * 0.5 + spread.count * 0.25 + 8e-9 * N)


def test_twice_the_passes_compute_twice():
    twice = SimpleNamespace(**{**vars(O), "accumulation": 2})
    update = PASSES * N * update_bytes(Recipe("fp32")) / 1e9
    one, two = (by_profile(PROFILE, o, 1, "ddp") - update for o in (O, twice))
    assert two == pytest.approx(2 * one)
    assert by_profile(PROFILE, O, 2, "deepspeed-1") is None
    with pytest.raises(ValueError, match="holds no all_reduce"):
        by_profile(PROFILE | {"collectives": {}}, O, 2, "ddp")
