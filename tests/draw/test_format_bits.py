"""The bits of rung 08's number are those that struct and torch write."""

import math
import re
from struct import pack, unpack

import pytest
from cases import refused

from scaleout.draw import format_bits as bits
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.rounding import rounded

NUMBERS = (bits.NUMBER, 1.0, 0.3, 511.9, 65504.0, 2.0**-14, 3.14159)


@pytest.mark.parametrize("x", NUMBERS)
@pytest.mark.parametrize(("name", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_the_bits_are_those_that_torch_stores(x, name, dtype):
    torch = pytest.importorskip("torch")
    stored = torch.tensor(x, dtype=getattr(torch, dtype)).view(torch.int16).item()
    assert "".join(bits.fields(x, FORMATS[name]).values()) == f"{stored:016b}"


def test_the_bits_are_those_that_struct_writes():
    said = bits.fields(bits.NUMBER, FORMATS["fp16"])
    assert int("".join(said.values()), 2) == unpack("H", pack("e", bits.NUMBER))[0]
    assert list(map(len, said.values())) == [1, 5, 10] and said["mantissa"] == f"{977:010b}"


@pytest.mark.parametrize("x", [0.0, -1.0, 1e9, 1e-6, math.nan])
def test_what_is_no_normal_number_above_0_is_refused(x):
    refused(lambda: bits.fields(x, FORMATS["fp16"]), "is no normal number above 0 of fp16")


@pytest.mark.parametrize("width", [680, 354])
def test_a_tick_is_a_number_of_the_format_and_a_dot_is_the_nearest(width):
    picture = bits.bits(width)
    for name, count in (("fp16", 19), ("bf16", 3)):
        f = FORMATS[name]
        ticks = [float(x) for x in re.findall(rf'x1="([\d.]+)"[^>]*data-mark="{name} tick"', picture)]
        assert len(ticks) == count and len(re.findall(f'data-mark="{name} (?:sign|exponent|mantissa)"', picture)) == 16
        at = lambda value: bits.LEFT + (value - bits.LO) / (bits.HI - bits.LO) * (width - bits.LEFT - 4)  # noqa: E731
        found = [bits.LO + (x - bits.LEFT) / (width - bits.LEFT - 4) * (bits.HI - bits.LO) for x in ticks]
        assert all(abs(rounded(one, f) - one) < 0.02 for one in found)
        dots = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', picture)]
        assert min(abs(x - at(rounded(bits.NUMBER, f))) for x in dots) < 0.01
    assert "1,000.5<" in picture and "step 977 of 1,024" in picture and "step 122 of 128" in picture
