"""The card of rung 06: its formulas and numbers are the package's."""

import pytest
from tex import value

from scaleout import views
from scaleout.draw import fsdp_wraps
from scaleout.memory.fsdp import fsdp_account
from scaleout.page import cards
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import COMPUTE_SHARE, LINKS
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.timing.fsdp import volume
from scaleout.views.fsdp import words

CARD = cards.load("fsdp")
SHAPE, SUSTAINED = PRESETS["llama-3-8b"], COMPUTE_SHARE * DEVICES["h100-sxm"].bf16_flop_per_s


def beta(link):
    return 1 / (LINKS[link].one_way_bytes_per_s * LINKS[link].reached)


@pytest.mark.parametrize("ranks", [2, 7, 64])
def test_formulas_are_the_models(ranks):
    shards, sent, held, tokens = (one["tex"] for one in CARD["formulas"])
    n = total_parameters(SHAPE)
    plan = Sharding(ranks)
    account = fsdp_account(SHAPE, 1, 1024, Recipe("fp32"), plan)
    assert value(shards, N=n, W=ranks) == pytest.approx(sum(account.states.values()), rel=2e-3)  # padding
    root = n - 32 * 218_112_000
    for reshard, part in ((True, sent), (False, CARD["formulas"][1]["words"].split("$")[3])):
        twice = value(r"2\frac{W-1}{W}n", n=4 * root, W=ranks)  # the root's, which is kept
        blocks = value(part, n=4 * (n - root), W=ranks)
        assert twice + blocks == pytest.approx(volume(SHAPE, Sharding(ranks, reshard=reshard))["total"], rel=2e-3)
    units = sum(account.peak[kind] for kind in ("gathered", "buffers", "whole gradients"))
    own = sum(account.peak[kind] for kind in ("activations", "logits", "temporaries"))
    most = value(held, N=n, W=ranks, U=units, A=own)
    gradients = account.states["gradients"]
    assert most - gradients * 1.01 <= account.peak_bytes <= most * 1.001
    at = value(tokens, R=SUSTAINED, beta=beta("ib-ndr"))
    assert 4 * n * at / SUSTAINED == pytest.approx((2 + 4) * n * beta("ib-ndr")), "backward: a gather and a reduction"


def test_numbers_are_the_packages():
    opening = views.render("fsdp", {})["values"]
    units = ", ".join(f"{fsdp_wraps.most(wrap):.1f}" for wrap in fsdp_wraps.NAMES)
    nvlink, card = (1.5 * SUSTAINED * beta(link) for link in ("nvlink4", "ib-ndr"))
    assert [one["value"] for one in CARD["numbers"]] == [
        f"{opening['peak_gib']:.1f} GiB", f"{words.parts(opening)[2] / opening['peak_gib']:.0%}", f"{units} GiB",
        str(opening["gathers"]), f"{round(nvlink, -1):,.0f}", f"{round(card, -2):,.0f}",
    ]  # fmt: skip
    assert opening["units"] == 33 and views.defaults("fsdp")["batch"] * 4096 == 8192
