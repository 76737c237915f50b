"""The card of rung 03: its formulas and numbers are the package's."""

import pytest

from scaleout.collectives.tensor import block
from scaleout.memory.activations import Sizes, block_kept
from scaleout.page import cards
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import LINKS
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS

CARD = cards.load("tensor")
FORMULAS = [one["tex"] for one in CARD["formulas"]]
GPT3 = PRESETS["gpt-3-175b"]
REACHED = DEVICES["h100-sxm"].bf16_flop_per_s / 2
NVLINK, NIC = (LINKS[name].reached * LINKS[name].one_way_bytes_per_s for name in ("nvlink4", "ib-ndr"))


def sent(one):
    return one.sent("forward") + one.sent("backward")


@pytest.mark.parametrize(("t", "b", "s"), [(2, 1, 128), (4, 3, 2048), (8, 2, 64)])
def test_bytes_and_the_ratio_of_messages_to_products(t, b, s):
    assert FORMULAS[1:3] == [r"4 \cdot 2\,\frac{t-1}{t}\,b\,s\,h \cdot 2", r"\frac{2}{9}\,(t-1)\,\frac{R\beta}{h}"]
    one, h = block(GPT3, b, s, t), GPT3.hidden
    assert sent(one) == pytest.approx(4 * 2 * (t - 1) / t * b * s * h * 2)
    products = 3 * sum(weight.flops for weight in one.weights) / REACHED
    assert sent(one) / NVLINK / products == pytest.approx(2 / 9 * (t - 1) * REACHED / NVLINK / h)


@pytest.mark.parametrize("t", [1, 2, 8])
def test_a_block_keeps_what_the_formula_says(t):
    assert FORMULAS[4] == r"s\,b\,h\left(10 + \frac{24}{t} + 5\,\frac{a\,s}{h\,t}\right)"
    shape, s, b = GPT3, 2048, 1
    z = Sizes(shape, b, s, Recipe("bf16", attention="naive", dropout=0.1), Layout(tp=t))
    korthikanti = s * b * shape.hidden * (10 + 24 / t + 5 * shape.heads * s / (shape.hidden * t))
    assert sum(block_kept(z, "none").values()) == pytest.approx(korthikanti, rel=0.01)  # which leaves out
    # a norm's two numbers per token, and the mask


def test_numbers_are_the_packages():
    one = block(GPT3, 1, 2048, 4)
    counts = [sum(one.counts(phase).values()) for phase in ("forward", "backward")]
    assert [found["value"] for found in CARD["numbers"]] == [
        f"{counts[0]} + {counts[1]}",
        f"{round(REACHED / NVLINK, -1):,.0f}",
        f"{round(REACHED / NIC, -2):,.0f}",
        f"{round(1.1 * 7 * REACHED / NVLINK, -2):,.0f}",
        f"{sent(one) / 1e6:.0f} MB",
    ]
