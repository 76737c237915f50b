"""The card of rung 01: its formulas and numbers are the package's."""

import json

import pytest
from repo import text
from tex import value

from scaleout import views
from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes, block_kept
from scaleout.memory.allocator import usable
from scaleout.page import cards
from scaleout.spec.devices import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, total_parameters

CARD = cards.load("memory")
CARD_BYTES = DEVICES["h100-sxm"].memory_bytes
LOSS, UPDATE, MASTER, BLOCKS, LOGITS = (one["tex"] for one in CARD["formulas"])


def total(kinds):
    return sum(kinds.values())


@pytest.mark.parametrize(("stem", "tokens"), [("gpt2", 1024), ("gpt2-xl", 256)])
def test_the_two_moments_are_the_accounts(stem, tokens):
    shape, recipe = PRESETS[stem], Recipe("fp32")
    n, found = total_parameters(shape), account(PRESETS[stem], 1, tokens, recipe)
    made = total(found.moments["loss"]) - total(found.rest)
    assert value(LOSS, N=n, A=made) == pytest.approx(total(found.moments["loss"]), rel=1e-6)
    assert value(UPDATE, N=n) == pytest.approx(total(found.moments["optimizer"]), rel=1e-3)
    states = account(shape, 1, tokens, Recipe("bf16-master")).states
    assert value(MASTER, N=n) == pytest.approx(total(states), rel=1e-5)


@pytest.mark.parametrize("tokens", [128, 1024])
def test_what_tokens_cost_is_what_blocks_and_logits_are(tokens):
    shape = PRESETS["gpt2-large"]
    sizes = Sizes(shape, 1, tokens, Recipe("fp32"), Layout())
    kept = shape.layers * total(block_kept(sizes, "none"))
    assert value(BLOCKS, h=shape.hidden, L=shape.layers, T=tokens) == pytest.approx(kept, rel=0.01)
    assert value(LOGITS, V=shape.vocab, T=tokens) == sizes.vocab32


def test_numbers_are_the_packages():
    opening = views.render("memory", {})["values"]
    published = json.loads(text("tests/published/bytes_per_parameter.json"))["cases"]
    sixteen = sorted({one["bytes"] for one in published if one["precision"] == "bf16-master"})
    assert opening["peak_moment"] == "optimizer"
    assert [one["value"] for one in CARD["numbers"]] == [
        ", ".join(map(str, sixteen)),
        f"{opening['peak_gb']:.1f} GB",
        f"{CARD_BYTES / 1e9:.1f} and {usable(CARD_BYTES) / 1e9:.1f} GB",
        f"{usable(CARD_BYTES) / 16 / 1e9:.1f} billion",
        f"{2**30 / 1e9 - 1:.1%}",
    ]
