"""Blocks that share a scale: against torchao's numbers (tests/published/number_formats.json), and what must hold."""

import json
import math
import random
from pathlib import Path

import pytest

from scaleout.numerics.blocks import BLOCKS, RULES, quantized, relative_error, scale_of
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.rounding import rounded

TORCHAO = json.loads((Path(__file__).parents[1] / "published" / "number_formats.json").read_text())["torchao"]
CHANCE = random.Random(4)
NORMAL = [CHANCE.gauss(0, 1e-3) for _ in range(8192)]


@pytest.mark.parametrize("case", [case for case in TORCHAO if " " in case])
def test_what_comes_back_is_torchaos_to_the_bit(case):
    name, rule = case.split()
    found, wanted = quantized(TORCHAO["values"], BLOCKS[name], rule), TORCHAO[case]
    assert list(found.scales) == wanted["scales"]
    if name != "nvfp4":
        assert list(found.values) == wanted["values"]
        assert (found.clipped > 0) == (rule == "floor")
        return
    assert found.tensor == wanted["tensor"]
    for i, element in enumerate(wanted["elements"]):
        assert found.values[i] == pytest.approx(element * found.scales[i // 16] * found.tensor, rel=1e-15)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_rule_up_clips_nothing_and_a_scale_is_a_number_of_its_format(name):
    b = BLOCKS[name]
    for rule in RULES:
        found = quantized(NORMAL, b, rule)
        assert all(rounded(scale, b.scale) == scale for scale in found.scales)
        assert len(found.scales) == (math.ceil(len(NORMAL) / b.size) if b.size else 1)
        if b.scale.mantissa == 0:
            assert (found.clipped == 0) == (rule == "up")


def test_rounding_up_is_nearer_and_smaller_blocks_are():
    """Of normal numbers, as arXiv 2506.08027 (rounding up) and 2509.25149 (NVFP4 beside MXFP4) have it."""
    error = {
        (name, rule): relative_error(quantized(NORMAL, BLOCKS[name], rule).values, NORMAL)
        for name in ("mxfp8", "mxfp4", "nvfp4")
        for rule in RULES
    }
    assert error["mxfp8", "up"] < error["mxfp8", "floor"]
    assert error["nvfp4", "floor"] == error["nvfp4", "up"] < 0.9 * error["mxfp4", "floor"]
    assert 0.02 < error["mxfp8", "up"] < 0.03
    assert 0.08 < error["nvfp4", "up"] < 0.1 < error["mxfp4", "floor"] < 0.13


def test_scales_by_hand():
    assert scale_of(448.0, BLOCKS["mxfp8"], "floor") == scale_of(448.0, BLOCKS["mxfp8"], "up") == 1.0
    assert scale_of(449.0, BLOCKS["mxfp8"], "floor") == 1.0
    assert scale_of(449.0, BLOCKS["mxfp8"], "up") == 2.0
    assert scale_of(300.0, BLOCKS["mxfp8"], "up") == scale_of(300.0, BLOCKS["mxfp8"]) == 1.0
    assert scale_of(7.9, BLOCKS["mxfp4"], "floor") == 1.0
    assert scale_of(0.0, BLOCKS["mxfp4"]) == scale_of(1e-45, BLOCKS["mxfp4"]) == 2.0**-127
    assert scale_of(3e38, BLOCKS["mxfp4"], "up") == 2.0**126
    assert scale_of(12.0, BLOCKS["nvfp4"]) == 2.0
    assert scale_of(0.0, BLOCKS["nvfp4"]) == FORMATS["e4m3"].smallest_normal


def test_one_outlier_flushes_its_block_and_no_other():
    values = [1e-3] * 32 + [1e-3] * 31 + [100.0]
    found = quantized(values, BLOCKS["mxfp4"])
    assert found.flushed == 31
    assert all(found.values[:32])
    whole = quantized(values, BLOCKS["fp8-tensor"])
    assert whole.flushed == 0
    assert quantized([1e-5, 100.0], BLOCKS["fp8-tensor"]).flushed == 1


def test_bits_of_a_number():
    assert {name: b.bits() for name, b in BLOCKS.items()} == {
        "mxfp8": 8.25,
        "mxfp8-e5m2": 8.25,
        "mxfp6": 6.25,
        "mxfp6-e3m2": 6.25,
        "mxfp4": 4.25,
        "nvfp4": 4.5,
        "fp8-tensor": 8.0,
        "fp8-tensor-e5m2": 8.0,
    }
    assert BLOCKS["nvfp4"].bits(3200) == 4.51
    assert BLOCKS["fp8-tensor"].bits(32) == 9


def test_what_blocks_cannot_hold_is_refused():
    for bad in (math.inf, math.nan, 1e39):
        for name in ("mxfp8", "nvfp4", "fp8-tensor"):
            with pytest.raises(ValueError, match="blocks hold finite numbers, of fp32 at most: look for what overflow"):
                quantized([1.0, bad], BLOCKS[name])
    with pytest.raises(ValueError, match="rule must be one of floor, up, not 'ceil'"):
        scale_of(1.0, BLOCKS["mxfp8"], "ceil")
    with pytest.raises(ValueError, match="rule must be one of floor, up, not 'ceil'"):
        quantized([], BLOCKS["fp8-tensor"], "ceil")
    with pytest.raises(ValueError, match="tensor must be a finite number above 0, not 0"):
        scale_of(1.0, BLOCKS["nvfp4"], tensor=0)
    with pytest.raises(ValueError, match="count must be a whole number of at least 1, not -1"):
        BLOCKS["nvfp4"].bits(-1)
    assert quantized([], BLOCKS["mxfp8"]).values == ()
    assert relative_error([0.0], [0.0]) == 0


def test_a_part_of_a_tensor_takes_the_tensors_largest_number():
    whole, part = NORMAL[:512], NORMAL[256:320]
    most = max(map(abs, whole))
    assert most > max(map(abs, part))
    for name in ("fp8-tensor", "nvfp4"):
        found, every = quantized(part, BLOCKS[name], largest=most), quantized(whole, BLOCKS[name])
        assert found.values == every.values[256:320] and found.tensor == every.tensor
        assert found.values != quantized(part, BLOCKS[name]).values
    assert quantized(part, BLOCKS["mxfp8"], largest=most) == quantized(part, BLOCKS["mxfp8"]), "blocks have their own"
    with pytest.raises(ValueError, match="blocks hold finite numbers"):
        quantized(part, BLOCKS["nvfp4"], largest=math.inf)
