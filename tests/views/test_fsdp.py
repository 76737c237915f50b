"""The widget of `fsdp` shows what the models of memory and of time say, at the edges of every control."""

import re
import xml.etree.ElementTree as ET

import pytest
from cases import over
from fsdp_views import GIB, SVG, setting

from scaleout import views
from scaleout.draw import fsdp_hill, svg
from scaleout.memory.fsdp import fsdp_account
from scaleout.memory.fsdp_tape import KINDS
from scaleout.spec import topology
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import program
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import PRESETS
from scaleout.timing.fsdp import volume
from scaleout.timing.job import step
from scaleout.views import fsdp
from scaleout.views.fsdp import words
from scaleout.words.amounts import quantity


def test_values_are_the_account_and_the_step():
    given = {
        "model": "llama-2-7b",
        "device": "a100-80gb",
        "ranks": "16",
        "over": "node",
        "batch": 4,
        "seq": "1024",
        "checkpointing": "full",
        "prefetch": 2,
        "link": "node-100g",
    }
    values = views.render("fsdp", given)["values"]
    shape, sharding = PRESETS["llama-2-7b"], Sharding(8, 2, "block", prefetch=2, parameter="bf16")
    account = fsdp_account(shape, 4, 1024, Recipe(precision="fp32", checkpointing="full"), sharding)
    nodes = topology.cluster(2, 8, "nvlink3", "ethernet-100g", 1, rdma=False)
    job = Job(
        shape,
        1024,
        DEVICES["a100-80gb"],
        nodes,
        4,
        Layout(dp=16, zero=3),
        Recipe(checkpointing="full"),
        program("compiled"),
        Replicas(prefetch=2, shards=8),
    )
    time = step(job)
    assert values["peak_gib"] == account.peak_bytes / GIB and values["peak_phase"] == account.peak_moment.phase
    assert sum(values[f"{name}_gib"] for name in fsdp_hill.STACK) == pytest.approx(values["peak_gib"])
    assert (values["step_seconds"], values["mfu"]) == (time.seconds, time.mfu)
    assert values["exposed_seconds"] == time.timeline.exposed_seconds
    assert values["exposed_seconds"] + values["beside_seconds"] == pytest.approx(time.parts["exposed data"])
    assert values["exposed_percent"] == pytest.approx(100 * values["exposed_seconds"] / values["step_seconds"])
    assert (values["units"], values["gathers"], values["scatters"]) == (33, 65, 33)
    assert values["sent_gb"] == volume(shape, sharding)["total"] / 1e9


def test_every_kind_has_one_colour():
    kinds = [kind for *_, some in fsdp_hill.STACK.values() for kind in some]
    assert sorted(kinds) == sorted(KINDS)
    assert len({(fill, opacity) for fill, opacity, _ in fsdp_hill.STACK.values()}) == len(fsdp_hill.STACK)


@pytest.mark.parametrize(
    ("params", "parameter", "kept"),
    [
        ({"reshard": "no"}, "bf16", 1),
        ({"reshard": "node"}, "bf16", 8),
        ({"reshard": "node", "ranks": "8"}, "bf16", 8),
        ({"precision": "fp32"}, "fp32", 16),
        ({"over": "node", "reshard": "node"}, "bf16", 8),
    ],
)
def test_settings_are_shardings(params, parameter, kept):
    found = setting(**params).sharding
    assert (found.parameter, found.kept_ranks) == (parameter, kept)
    assert found.world == int(params.get("ranks", "16"))


# --- the sentence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "words", "change"),
    [
        ({"ranks": "1"}, "Try **4 GPUs and full checkpointing**", {"ranks": "4", "checkpointing": "full"}),
        (
            {"wrap": "model", "checkpointing": "full", "model": "llama-2-13b"},
            "Try **wrapping by block**",
            {"wrap": "block"},
        ),
        ({"model": "llama-3-70b", "ranks": "64"}, "Try **full checkpointing**", {"checkpointing": "full"}),
        ({"batch": 16, "checkpointing": "full"}, "Try **8 sequences per GPU**", {"batch": 8}),
    ],
)
def test_what_does_not_fit_gets_levers_that_make_it_fit(params, words, change):
    sentence = views.render("fsdp", params)["sentence"]
    assert "It does not fit." in sentence and words in sentence
    after = views.render("fsdp", {**params, **change})["values"]
    assert after["fits"]
    assert f": {quantity(after['peak_gib'])} GiB." in sentence, "and what they promise"


@pytest.mark.parametrize(
    ("params", "words", "change"),
    [
        ({"prefetch": 0}, "Try **prefetching one unit**", {"prefetch": 1}),
        ({"link": "node-100g"}, "Try **nodes of 8 with InfiniBand**", {"link": "node-ib"}),
        (
            {"model": "gpt2-xl", "link": "ethernet-100g"},
            "Try **64 sequences per GPU with full checkpointing**",
            {"batch": 64, "checkpointing": "full"},
        ),
    ],
)
def test_what_merely_fits_gets_a_lever_that_makes_it_fast(params, words, change):
    sentence = views.render("fsdp", params)["sentence"]
    assert "It merely fits" in sentence and words in sentence
    after = views.render("fsdp", {**params, **change})["values"]
    assert after["verdict"] == "healthy"
    assert f"it waits for {after['waiting_percent']:.1f}%" in sentence


def test_one_gpu_offload_and_what_no_lever_helps():
    alone = views.render("fsdp", {"ranks": "1", "model": "gpt2-medium"})
    assert "One GPU has nothing to all-gather." in alone["sentence"]
    assert alone["values"]["gathers"] == alone["values"]["exposed_seconds"] == alone["values"]["sent_gb"] == 0
    away = views.render("fsdp", {"offload": True, "model": "llama-2-7b", "checkpointing": "full"})
    assert away["values"]["weights_gib"] == away["values"]["optimizer_gib"] == 0
    assert "CPU memory holds" in away["law"][2] and "the update there takes 23% of the step" in away["law"][2]
    assert away["values"]["host_gib"] == pytest.approx(16 * 6_738_415_616 / 16 / GIB, rel=1e-3), (
        "16 bytes per parameter"
    )
    hopeless = views.render("fsdp", {"model": "llama-3-405b", "device": "t4", "ranks": "1"})
    assert "still too much" in hopeless["sentence"]


def test_units_ahead_say_nothing_of_one_gpu_and_price_the_advice_for_more():
    seen = {ahead: views.render("fsdp", {"ranks": "1", "prefetch": ahead}) for ahead in (0, 1, 4)}
    promised = {"ranks": "4", "checkpointing": "full"}
    after = {ahead: views.render("fsdp", {**promised, "prefetch": ahead})["values"]["peak_gib"] for ahead in seen}
    assert len(set(after.values())) == 3
    for ahead, one in seen.items():
        assert (one["values"], one["svg"]) == (seen[1]["values"], seen[1]["svg"])
        assert one["sentence"].endswith(f"full checkpointing**: {quantity(after[ahead])} GiB.")


def test_resharding_trades_memory_for_messages():
    yes, no, node = (views.render("fsdp", {"reshard": r, "ranks": "64"})["values"] for r in ("yes", "no", "node"))
    assert yes["peak_gib"] < node["peak_gib"] < no["peak_gib"]
    assert (yes["gathers"], node["gathers"], no["gathers"]) == (65, 65, 33)
    assert yes["sent_gb"] > node["sent_gb"] > no["sent_gb"]


# --- the law, the question ------------------------------------------------------------------------------------------


@over(params=[{}, {"over": "node", "ranks": "64"}, {"offload": True}, {"wrap": "model"}, {"ranks": "1"}])
def test_the_law_adds_up_to_the_peak(params):
    found = views.render("fsdp", params)
    parts, total = found["law"][1].removesuffix(" GiB").split(" = ")
    assert sum(float(one.replace(",", "")) for one in parts.split(" + ")) == pytest.approx(float(total), rel=0.01)
    assert float(total) == pytest.approx(found["values"]["peak_gib"], rel=0.005)
    split = words.parts(found["values"])[0]
    states = setting(**params).account.states
    assert split * GIB <= sum(states.values()) and (split == 0) == bool(params.get("offload"))


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_the_locked_picture_is_the_same_whatever_is_held(width):
    """Tokens and recipe change the peak, and nothing beneath the lanes. A guess stands on the axis of what is held."""
    base, hill = views.defaults("fsdp"), "at the peak?"
    asked = [fsdp.locked({**base, **change}, width) for change in ({}, {"batch": 8}, {"checkpointing": "full"})]
    stops = [re.search(r'data-stops="([^"]+)"', one)[1] for one in asked]
    assert len({one[one.index(hill) :].count("<rect") for one in asked}) == len(set(stops)) == 1
    assert len({one[one.index(hill) :].count("<path") for one in asked}) == 1
    assert "activations<" in asked[0]
    (_, bottom), (most, top) = (map(float, pair.split(":")) for pair in stops[0].split())
    result = views.render("fsdp", {}, width)
    every = ET.fromstring(result["svg"]).iter(f"{SVG}line")
    line = next(one for one in every if one.get("stroke-dasharray") == "5 4")
    card = bottom - (bottom - top) * result["values"]["device_gib"] / most
    assert float(line.get("y1")) == pytest.approx(card, abs=0.02)


def test_slips_are_what_they_say():
    values = views.render("fsdp")["values"]
    slips = {words: value for value, words in fsdp.slips(views.defaults("fsdp"))}
    assert slips["in GB, not in GiB"] == values["peak_gb"]
    without = views.render("fsdp", {"ranks": "1", "offload": True})["values"]
    assert slips["as if nothing were sharded"] > without["peak_gib"]
    held = sum(setting().account.states.values()) - setting().account.states["gradients"]
    assert slips["the sharded states alone"] == pytest.approx(held / GIB)


@over(wrap=list(fsdp.WRAPS), reshard=list(fsdp.RESHARD), checkpointing=("none", "full"), model=("gpt2-xl", "gpt2"))
def test_the_first_and_the_last_of_blocks_alike_have_the_peak(wrap, reshard, checkpointing, model):
    """What a page waits for: not the moments of every block, and the same peak to the byte."""
    for ranks, ahead in (("1", 0), ("16", 3)):
        one = setting(wrap=wrap, reshard=reshard, checkpointing=checkpointing, model=model, ranks=ranks, prefetch=ahead)
        account = one.account
        most = max(account.moments, key=lambda moment: moment.bytes)
        assert account.peak == most.held
        peak = account.peak_moment
        assert (most.phase, most.unit, most.activity) == (peak.phase, peak.unit, peak.activity)
        for some in (account.ends, account.sampled(5)):
            assert max(moment.bytes for moment in some) == most.bytes
            gathered = [max(moment.held["gathered"] for moment in moments) for moments in (some, account.moments)]
            assert gathered[0] == gathered[1]
