"""The card of rung 13: its formulas and numbers are the package's, and those of published measurements."""

import json
import math
import re

import pytest
from repo import text
from tex import value

from scaleout.exercises.kernels import online
from scaleout.page import cards
from scaleout.timing import kernels
from scaleout.timing.kernels import GENERATIONS, TILE, Attention

CARD = cards.load("kernels")
MATMUL, EXPONENTIALS, MERGED, PROBABILITY, AMDAHL = (one["tex"] for one in CARD["formulas"])
PUBLISHED = json.loads(text("tests/published/attention.json"))


def powers(tex, **of):
    """The number that a formula with powers of e gives."""
    found = re.findall(r"e\^\{([^}]*)\}", tex)
    for i, exponent in enumerate(found):
        tex = tex.replace(f"e^{{{exponent}}}", f"p_{i}")
        of[f"p_{i}"] = math.exp(value(exponent, **of))
    return value(tex.replace("\\ell", "s"), **of)


@pytest.mark.parametrize("chip", ["a100", "h100", "b200", "b300"])
def test_cycles_are_the_models(chip):
    one = GENERATIONS[chip]
    for d in (64, 128, 256):
        found = kernels.clocks(one, Attention(4096, d, 8))
        assert value(MATMUL, M=TILE, N=TILE, d=d, F_c=one.flop[2]) == found.matmul
        assert value(EXPONENTIALS, M=TILE, N=TILE, E_c=one.exponentials) == found.exponentials
        back = kernels.clocks(one, Attention(4096, d, 8), "backward").matmul
        assert back == 10 / 4 * found.matmul


def test_merging_is_that_of_the_exercise():
    (m1, l1, _), (m2, l2, _) = online.FIRST, online.SECOND
    m, total, _ = online.merged(list(online.FIRST), list(online.SECOND))
    assert powers(MERGED, m_1=m1, m_2=m2, m=m, s_1=l1, s_2=l2) == pytest.approx(total)


def test_a_probability_is_exp_of_score_minus_log_sum_exp():
    scores = [0.3, 1.2, 2.5]
    total = math.log(math.fsum(map(math.exp, scores)))
    assert math.fsum(powers(PROBABILITY, x=x, L=total) for x in scores) == pytest.approx(1)


def test_amdahl():
    assert value(AMDAHL, q=0.6, r=1.72) == pytest.approx(1 / (0.4 + 0.6 / 1.72))


def test_numbers_are_the_packages():
    h100, b200 = GENERATIONS["h100"], GENERATIONS["b200"]
    shown = [one["value"] for one in CARD["numbers"]]
    assert shown[0] == f"{h100.flop[2]:,} and {h100.exponentials}"
    assert f"{b200.flop[2]:,} and {b200.exponentials}" in CARD["numbers"][0]["words"]
    matmuls = {kernel: sum(kernels.MATMULS[kernel].values()) for kernel in kernels.KERNELS}
    assert shown[1] == f"{matmuls['fused']}/{matmuls['naive']}"
    assert shown[2] == f"{kernels.ceiling(b200, Attention(16384, 64, 32)):.0%}"
    said = PUBLISHED["pr2109_fp8_d64"]
    gains = [fp8 / bf16 for fp8, bf16 in zip(said["fp8_TFLOPs"], said["bf16_TFLOPs"], strict=True)]
    assert shown[3] == f"{min(gains):.2f} to {max(gains):.2f}×"
    titan = PUBLISHED["torchtitan_8b_8_h100"]
    assert shown[4] == f"{titan['compiled_fp8'] / titan['compiled']:.2f}×"
