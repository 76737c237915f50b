"""What `precision`'s exercises say of numbers in few bits, of loss scales and of copies of weights, in torch."""

import math
import random

import answers
import pytest
import torch
from cases import each

from scaleout import exercises
from scaleout.exercises.precision import ends, sums
from scaleout.exercises.precision.ranks import master
from scaleout.numerics.formats import FORMATS


def test_a_gradient_halved_eleven_times_is_zero():
    gradient = torch.tensor(2.0**-14, dtype=torch.float16)
    path = [gradient := gradient / 2 for _ in range(11)]
    assert all(number > 0 for number in path[:10]) and path[10] == 0


def test_three_numbers_in_two_formats():
    x = torch.tensor(ends.THREE)
    assert x.bfloat16().float().tolist()[:2] == [1.0, 99840.0] and x.bfloat16()[2] > 0
    assert x.half().float().tolist() == pytest.approx([1.0029297, math.inf, 0.0])


def test_scales_are_those_of_grad_scaler():
    scales, draw = answers.solution("precision", "scale-by-step"), random.Random(2)
    for interval in (1, 2, 3, 5):
        overflowed = [draw.random() < 0.3 for _ in range(25)]
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler, expected = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=interval), []
        for overflow in overflowed:
            expected.append(scaler.get_scale())
            scaler.scale((weight * (math.inf if overflow else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scales(overflowed, 1024.0, interval) == expected


@each([("as asked", True, 1.0), ("clipped first", False, 0.7 * 2**15)])
def test_clipping_before_unscaling_makes_the_step_too_small(name, unscale, times):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)
    scaler.scale((weight * torch.tensor([0.42, 0.56])).sum()).backward()  # a gradient of norm 0.7
    if unscale:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    scaler.step(optimizer)
    assert 0.7 / float(weight.detach().norm()) == pytest.approx(times, rel=1e-5)


def test_a_weight_in_bf16_stops():
    weight = torch.tensor(sums.BEGIN).bfloat16()
    for _ in range(2000):
        weight = (weight.float() + sums.UPDATE).bfloat16()
    assert float(weight) == 0.125
    ones = torch.ones(8, dtype=torch.bfloat16)
    assert torch.equal((ones.float() - 6e-4).bfloat16(), ones)


@each([("fp16", torch.float16), ("bf16", torch.bfloat16), ("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_rounding_is_torchs_cast(name, dtype):
    round_to, f = answers.solution("precision", "round-to"), FORMATS[name]
    x = torch.randn(500, generator=torch.Generator().manual_seed(1)) * torch.exp2(
        torch.randint(-20, 4, (500,), generator=torch.Generator().manual_seed(2))
    )
    cast = x.to(dtype).float()
    assert [round_to(number, f.exponent, f.mantissa) for number in x.tolist()] == cast.tolist()


def test_an_update_that_bf16_loses_is_in_the_copy():
    """What the checker of the copy stands on: the answer is AdamW's in torch, and bf16 alone moves nothing."""
    for rank in range(2):
        right, begin = master.reference(rank).bfloat16(), master.weights(rank)
        assert int((right != begin).sum()) > master.SIZE / 2
        assert int((master.trained(rank).bfloat16() != right).sum()) <= master.BORDER
        part = torch.nn.Parameter(begin.clone())
        optimizer = torch.optim.AdamW(
            [part], lr=master.LR, betas=master.BETAS, eps=master.EPS, weight_decay=master.DECAY
        )
        for step in range(1, master.STEPS + 1):
            part.grad = master.gradient(step, rank)
            optimizer.step()
        assert torch.equal(part.detach(), begin)
        differing = {slip: int((rows.bfloat16() != right).sum()) for slip, _, rows in master._known(rank)}
        assert min(differing.values()) > 10 * master.BORDER and len(differing) == 5


def test_the_lab_exercises_are_two():
    labs = [exercise.key for exercise in exercises.catalogue("precision") if exercise.kind == "torch"]
    assert labs == ["master-copy", "scaled-step"]
