"""The card of rung 02: its formulas and numbers are the package's."""

import pytest
from tex import value

from scaleout import views
from scaleout.collectives.alpha_beta import cost
from scaleout.page import cards
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import COMPUTE_SHARE, LINKS
from scaleout.spec.topology import Wire
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.timing.ddp import BUCKET_CAP, FIRST_BUCKET_CAP, MIB

CARD = cards.load("ddp")
SUSTAINED = COMPUTE_SHARE * DEVICES["h100-sxm"].bf16_flop_per_s


def beta(link):
    return 1 / (LINKS[link].one_way_bytes_per_s * LINKS[link].reached)


@pytest.mark.parametrize("ranks", [2, 7, 512])
def test_formulas_are_the_models(ranks):
    sent, backward, tokens, kept = (one["tex"] for one in CARD["formulas"])
    n = 10**9
    assert value(sent, W=ranks, N=n) == pytest.approx(cost("all_reduce", "ring", 4 * n, ranks, Wire(0, 1)).sent_bytes)
    at = value(tokens, R=SUSTAINED, beta=beta("ib-ndr"))
    assert value(backward, N=n, T=at) / SUSTAINED == pytest.approx(2 * 4 * n * beta("ib-ndr"))
    found = views.render("ddp", {"ranks": ranks})["values"]
    added = found["exposed_seconds"] + found["slowed_seconds"] + found["straggler_seconds"]
    assert value(kept, C=found["alone_seconds"], X=added) == pytest.approx(found["efficiency"])


def test_numbers_are_the_packages():
    opening = views.render("ddp", {})["values"]
    tokens = [f"{round(2 * SUSTAINED * beta(link), -2):,.0f}" for link in ("nvlink4", "ib-ndr", "ethernet-100g")]
    assert [one["value"] for one in CARD["numbers"]] == [
        f"{4 * total_parameters(PRESETS['gpt2-xl']) / 1e9:.1f} GB", *tokens,
        f"{BUCKET_CAP / MIB:g} MiB, {FIRST_BUCKET_CAP / MIB:g} MiB", f"{opening['exposed_percent']:.0f}%",
    ]  # fmt: skip
    assert opening["tokens_per_gpu"] == 16_384
