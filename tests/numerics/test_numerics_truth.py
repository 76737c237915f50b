"""Rounding and loss scaling against torch: every value of the small formats, a million random fp32 into fp16 and bf16,
and GradScaler step by step."""

import math
import random
from itertools import pairwise

import pytest
import torch

from scaleout.numerics.blocks import BLOCKS, quantized
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.rounding import decode, encode, numbers, rounded
from scaleout.numerics.scaling import Scaler, search

DTYPES = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "e8m0": torch.float8_e8m0fnu,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
BYTES = {1: torch.uint8, 2: torch.int16}
MILLION = 1_000_000


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def around(f):
    """fp32 numbers where rounding decides: every number of a format, the middles between two, and what lies beside."""
    row = numbers(f) if f.bits < 16 else numbers(f)[::37]
    middles = [(a + b) / 2 for a, b in pairwise(row)] + [f.largest * k for k in (1.03, 1.2, 3)]
    x = torch.tensor([*row, *middles, 0.0], dtype=torch.float32)
    x = torch.cat([x, torch.nextafter(x, torch.tensor(0.0)), torch.nextafter(x, torch.tensor(math.inf))])
    ends = torch.tensor([math.inf, math.nan])
    return torch.cat([x, ends, -x, -ends]) if f.signed else torch.cat([x[x >= 0], ends])


@pytest.mark.parametrize("name", DTYPES)
def test_every_code_is_torchs(name):
    f, dtype = FORMATS[name], DTYPES[name]
    codes = torch.arange(2**f.bits, dtype=torch.int32).to(BYTES[dtype.itemsize]).view(dtype).float().tolist()
    assert all(same(decode(code, f), x) for code, x in enumerate(codes))
    info = torch.finfo(dtype)
    if f.signed:
        assert (f.largest, f.smallest_normal) == (info.max, info.smallest_normal)
        after_1 = min(x for x in codes if x > 1)
        assert f.epsilon == after_1 - 1
        assert f.epsilon == info.eps or name == "e5m2fnuz"  # of which finfo says 0.125, and casts say 0.25


@pytest.mark.parametrize("name", DTYPES)
def test_casts_are_torchs_where_rounding_decides(name):
    f, x = FORMATS[name], around(FORMATS[name])
    if name == "e8m0":  # torch takes every subnormal fp32 above 2^-127 for 2^-126: it rounds between 0 and that
        x = x[~((x > 2**-127) & (x < 2**-126 * 0.75))]
    cast = x.to(DTYPES[name])
    for value, wanted, code in zip(
        x.tolist(), cast.float().tolist(), cast.view(BYTES[cast.itemsize]).tolist(), strict=True
    ):
        assert same(rounded(value, f), wanted), value
        assert math.isnan(wanted) or encode(value, f) == code % 2**f.bits, value


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_a_million_random_numbers(name):
    """Random bits, so every octave of fp32 comes as often; for fp16 the octaves that it has, and some on each side."""
    f, chance = FORMATS[name], torch.Generator().manual_seed(8)
    bits = torch.randint(-(2**31), 2**31, (MILLION,), generator=chance).to(torch.int32)
    if name == "fp16":
        octave = torch.randint(127 - 28, 127 + 18, (MILLION,), generator=chance).to(torch.int32)
        bits = (bits & ~0x7F800000) | (octave << 23)
    x = bits.view(torch.float32)
    x = x[x.isfinite()]
    found = torch.tensor([rounded(value, f) for value in x.tolist()], dtype=torch.float32)
    assert len(x) > 0.99 * MILLION
    assert torch.equal(found, x.to(DTYPES[name]).float())


def test_the_scaler_is_torchs():
    """Thirty steps with gradients that overflow fp16 by chance."""
    chance, weight = random.Random(3), torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    words = {"init_scale": 2.0**10, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 3}
    torchs, ours = torch.amp.GradScaler("cpu", **words), Scaler(2.0**10, 3.0, 0.25, 3)
    gradients = [2.0 ** chance.uniform(-4, 8) for _ in range(30)]
    for gradient, step in zip(gradients, search(gradients, FORMATS["fp16"], ours), strict=True):
        scale = torchs.scale(torch.ones(())).item()
        weight.grad = torch.tensor([gradient * scale]).half().float()
        overflowed = not weight.grad.isfinite().all()
        torchs.step(optimizer)
        torchs.update()
        assert (scale, overflowed, torchs.get_scale()) == (step.scale, step.skipped, step.after)
    assert len({step.scale for step in search(gradients, FORMATS["fp16"], ours)}) > 5
    defaults = torch.amp.GradScaler("cpu").state_dict()
    assert defaults == {
        "scale": Scaler().scale,
        "growth_factor": Scaler().growth,
        "_growth_tracker": 0,
        "backoff_factor": Scaler().backoff,
        "growth_interval": Scaler().interval,
    }


def test_a_tensor_scale_and_the_products_of_scaled_mm():
    """torch's FP8 product of what `fp8-tensor` stores is the product of what it gives back."""
    chance = torch.Generator().manual_seed(1)
    a, b = torch.randn(16, 32, generator=chance), torch.randn(16, 32, generator=chance) * 1e-4
    stored = [quantized(x.flatten().tolist(), BLOCKS["fp8-tensor"]) for x in (a, b)]
    back = [torch.tensor(q.values).view(16, 32) for q in stored]
    scales = [torch.tensor(q.scales[0]) for q in stored]
    codes = [(x / scale).to(torch.float8_e4m3fn) for x, scale in zip((a, b), scales, strict=True)]
    found = torch._scaled_mm(codes[0], codes[1].t(), *scales, out_dtype=torch.float32)
    wanted = back[0] @ back[1].t()
    # Some processors' kernels go through 16 bits, which is 2^-9 of a number; another scale or rounding is 2% off.
    assert (found - wanted).norm() < 2**-8 * wanted.norm()
