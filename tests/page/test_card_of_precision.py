"""The card of rung 08: its formulas and numbers are the package's."""

import json
import math
import re

import pytest
from repo import ROOT
from tex import value

from scaleout.numerics.blocks import BLOCKS
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.rounding import beyond, rounded
from scaleout.numerics.scaling import Scaler
from scaleout.page import cards

CARD = cards.load("precision")
FORMULAS = [one["tex"] for one in CARD["formulas"]]
SIXTEEN = [FORMATS["fp16"], FORMATS["bf16"]]


def power(tex, **of):
    """2 to what stands over it."""
    return 2.0 ** value(re.fullmatch(r"2\^\{(.*)\}", tex)[1], **of)


def test_fp16_holds_what_lies_between_its_ends():
    low, _, high = FORMULAS[0].split(" < ")
    f = FORMATS["fp16"]
    assert rounded(power(low), f) == 0 < rounded(power(low) * 1.001, f)
    assert beyond(power(high), f) and not beyond(f.largest, f) and f.largest > 0.999 * power(high)


@pytest.mark.parametrize("f", SIXTEEN, ids=lambda f: f.name)
def test_rounding_is_off_by_half_a_step_at_most(f):
    most = power(FORMULAS[1], m=f.mantissa)
    tries = [1 + i * f.epsilon / 16 for i in range(64)]
    off = max(abs(rounded(x, f) / x - 1) for x in tries)
    assert 0.9 * most < off <= most


@pytest.mark.parametrize("f", SIXTEEN, ids=lambda f: f.name)
def test_below_half_of_the_smallest_number_is_zero(f):
    end = power(FORMULAS[2], e=f.lowest_octave, m=f.mantissa)
    assert end == f.smallest / 2 and rounded(end, f) == 0 < rounded(end * 1.001, f)


@pytest.mark.parametrize("f", SIXTEEN, ids=lambda f: f.name)
def test_the_smallest_update_that_ever_reaches_a_weight(f):
    """Of its size: just below a power of two that is enough, just above one it takes twice as much."""
    least = power(FORMULAS[3], m=f.mantissa)
    assert rounded(1 - least, f) == 1.0 > rounded(1 - 1.001 * least, f)
    weights = [1 + i * f.epsilon for i in range(2**f.mantissa)]
    assert all(rounded(w * (1 + sign * least * 0.999), f) == w for w in weights for sign in (-1, 1))
    above, below = weights[1], weights[-1]
    assert rounded(below * (1 - 1.01 * least), f) < below
    assert rounded(above * (1 - 1.9 * least), f) == above > rounded(above * (1 - 2.01 * least), f)


@pytest.mark.parametrize(("share", "times"), [(0.75, 2), (0.66, 1.72), (1, 3)])
def test_a_part_that_is_quicker(share, times):
    assert value(FORMULAS[4], q=share, r=times) == pytest.approx(1 / ((1 - share) + share / times))


def test_numbers_are_the_packages():
    said = json.loads((ROOT / "tests/published/fp8.json").read_text())["steps"]
    gains = [
        bf16 / fp8
        for name in said
        if name != "source"
        for bf16, fp8 in zip(said[name]["bf16_seconds"], said[name]["fp8_seconds"], strict=True)
    ]
    both, scaler = [FORMATS["e4m3"], FORMATS["e5m2"]], Scaler()
    assert [one["value"] for one in CARD["numbers"]] == [
        f"{FORMATS['fp16'].largest:,.0f}",
        " and ".join(str(f.digits) for f in SIXTEEN),
        " and ".join(f"{f.largest:,.0f}" for f in both),
        f"{scaler.scale:,.0f}; {scaler.interval:,}",
        f"{BLOCKS['mxfp8'].bits():g} and {BLOCKS['nvfp4'].bits():g}",
        f"{min(gains):.1f} to {max(gains):.1f}",
    ]


def test_symbols_say_what_formats_have():
    words = {one["tex"]: one["words"] for one in CARD["symbols"]}
    assert words["m"] == "bits of mantissa: {} in fp16, {} in bf16, {} and {} in FP8".format(
        *(FORMATS[name].mantissa for name in ("fp16", "bf16", "e4m3", "e5m2"))
    )
    octaves = [str(f.lowest_octave).replace("-", "−") for f in SIXTEEN]
    assert words["e"].endswith("{} in fp16, {} in bf16".format(*octaves)) and math.isfinite(FORMATS["bf16"].smallest)
