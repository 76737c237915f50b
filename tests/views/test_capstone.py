"""The scaling explorer shows what the step models say, at the edges of every control."""

import re
import xml.etree.ElementTree as ET

import pytest
from view_settings import pick

from scaleout import views
from scaleout.spec import topology
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import GPU_WATTS
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS
from scaleout.timing.job import step
from scaleout.timing.price import run_cost
from scaleout.views import capstone
from scaleout.views.capstone import levers, lower, speedup

SVG = "{http://www.w3.org/2000/svg}"


def shown(params=None):
    return views.render("capstone", params or {})


def circles(svg):
    """Titles of the points."""
    return [one.find(f"{SVG}title").text for one in ET.fromstring(svg).iter(f"{SVG}circle") if len(one)]


JOB = Job(
    PRESETS["llama-3-8b"],
    4096,
    DEVICES["h100-sxm"],
    topology.cluster(1, 1),
    4,
    Layout(zero=3),
    Recipe("autocast-bf16"),
    PROGRAMS["compiled"],
)


def test_values_are_those_of_the_step():
    values = shown({"world": 64, "batch": 256})["values"]
    one = step(JOB.other(cluster=topology.cluster(8, 8)))
    assert values["strong_seconds"] == one.seconds and values["strong_mfu"] == pytest.approx(one.mfu, rel=1e-12)
    assert values["strong_tokens_per_second"] == one.tokens_per_second
    assert values["strong_exposed"] == one.parts["exposed data"] / one.seconds
    cost = run_cost(1e9, one.tokens_per_second, 64, GPU_WATTS, 2.5)
    for key, of in (("hours", "hours"), ("kwh", "kwh"), ("price", "price"), ("gpu_hours", "gpu_hours")):
        assert values[f"strong_{key}"] == pytest.approx(getattr(cost, of))


def test_one_gpu_is_the_plain_step_in_all_three():
    """One sequence after another, in passes of four."""
    values = shown({"world": 1, "batch": 64})["values"]
    one = step(JOB.other(micro_batches=16))
    assert values["strong_seconds"] == values["weak_seconds"] == one.seconds
    assert values["strong_efficiency"] == values["weak_efficiency"] == 1
    assert "do the work of" not in shown({"world": 1})["sentence"]


def test_strong_and_weak_meet_at_the_chosen_number():
    result = shown({"world": 128, "batch": 512})
    values = result["values"]
    assert values["strong_tokens_per_second"] == values["weak_tokens_per_second"]
    assert values["weak_batch"] == 512 and values["sequences_each"] == 4
    assert values["strong_efficiency"] == values["weak_efficiency"], "both against one GPU on the same batch"
    counts = [n for n, *_ in values["curve"]]
    assert counts == sorted({*speedup.WORLDS, 128})
    first, strong, weak = values["curve"][0]
    assert (first, strong) == (1, 1.0) and weak < 1, "one GPU with 4 sequences per step updates for those alone"


def test_a_last_round_that_some_gpus_sit_out_is_no_work():
    """511 GPUs make two rounds of 512 sequences, and are no faster than 256."""
    found = shown({"world": 511, "batch": 512, "seq": "4096"})["values"]
    assert found["strong_tokens_per_second"] == pytest.approx(512 * 4096 / found["strong_seconds"])
    even = shown({"world": 512, "batch": 512})["values"]
    assert found["strong_tokens_per_second"] < 0.6 * even["strong_tokens_per_second"]


def test_the_law_counts_the_gpus_that_are_idle():
    laws = [views.render("capstone", {"world": n})["law"][0] for n in (512, 1024)]
    assert laws[0].startswith("None is idle: 512 GPUs ≤ 512 sequences. ")
    assert laws[1].startswith("512 idle: 1,024 GPUs > 512 sequences. ")


def test_gpus_without_a_sequence_are_idle():
    busy, idle = (shown({"world": n, "batch": 512})["values"] for n in (512, 2048))
    assert idle["busy"] == 512 and idle["strong_tokens_per_second"] == busy["strong_tokens_per_second"]
    assert idle["strong_efficiency"] == pytest.approx(busy["strong_efficiency"] / 4)
    assert idle["strong_mfu"] == pytest.approx(busy["strong_mfu"] / 4)
    assert idle["strong_price"] == pytest.approx(4 * busy["strong_price"]), "all are paid for"
    assert "512 sequences for 2,048 GPUs; 1,536 of them have none" in shown({"world": 2048, "batch": 512})["sentence"]


def test_the_sentence_names_what_limits_and_a_change_that_keeps_its_promise():
    slow = {"model": "llama-2-7b", "world": 64, "link": "node-100g", "checkpointing": "full"}
    sentence = shown(slow)["sentence"]
    assert "The limit is communication" in sentence
    words, times = re.search(r"Try \*\*(.+)\*\*: ([\d.]+) times the tokens/s", sentence).groups()
    assert words == "nodes of 8 with InfiniBand"
    rates = [shown(slow | more)["values"]["strong_tokens_per_second"] for more in ({}, {"link": "node-ib"})]
    assert rates[1] / rates[0] == pytest.approx(float(times), rel=0.01)
    alone = shown({"world": 8, "checkpointing": "full"})["sentence"]
    assert "The limit is the GPU, at 41% of its peak; communication takes 4.8% of a step." in alone
    eager = shown({"world": 8, "checkpointing": "full", "program": "eager"})["sentence"]
    assert "Try **torch.compile**: 1.2" in eager


def test_what_does_not_fit_is_drawn_and_said():
    chosen = shown({"sharding": "ddp"})
    assert "But each GPU would need" in chosen["sentence"] and chosen["values"]["weak_efficiency"] > 0.4
    assert chosen["values"]["peak_gb"] > 16 * 8.03, "states alone: 16 bytes for each of 8.03 billion parameters"
    small = shown({"model": "gpt2-xl", "batch": 8192, "sharding": "ddp"})
    assert small["values"]["fits"] and small["values"]["weak_efficiency"] > 0.5
    crowded = shown({"model": "llama-3-70b", "world": 8})
    assert not crowded["values"]["fits"]
    assert "It fits with **full checkpointing, 1 sequence per micro-batch and 32 GPUs**." in crowded["sentence"]


def test_what_is_said_to_make_it_fit_does():
    """A model that does not fit: the changes that the sentence names, made one by one on the controls."""
    said = {
        ("llama-3-8b", "ddp", 512): {"sharding": "full"},
        ("llama-3-70b", "full", 64): {"checkpointing": "full"},
        ("llama-3-70b", "full", 8): {"checkpointing": "full", "each": 1, "world": 32},
    }
    for (model, sharding, world), change in said.items():
        start = {"model": model, "sharding": sharding, "world": world}
        assert not shown(start)["values"]["fits"] and shown(start | change)["values"]["fits"], model
        words = shown(start)["sentence"].split("It fits with ")[1]
        assert words.count(" and ") + words.count(", ") == len(change) - 1


def test_a_batch_that_does_not_divide_is_said():
    found = shown({"world": 500})
    assert "512 sequences do not divide among 500 GPUs. A step is as long as 2 sequences" in found["sentence"]
    assert "49% of the GPU time is idle" in found["sentence"] and found["values"]["strong_efficiency"] < 0.5


def test_sharding_over_all_wins_until_its_latency_shows():
    """One sequence of 4,096 tokens per GPU. Copies across nodes all-reduce; a ring over all has more hops than time."""
    found = {
        (n, kind): shown({"world": n, "batch": n, "sharding": kind})["values"]
        for n in (512, 1024, 2048, 4096)
        for kind in ("full", "hybrid")
    }
    strong = {key: round(values["strong_efficiency"], 2) for key, values in found.items()}
    assert strong == {
        (512, "full"): 0.65,
        (512, "hybrid"): 0.59,
        (1024, "full"): 0.61,
        (1024, "hybrid"): 0.59,
        (2048, "full"): 0.53,
        (2048, "hybrid"): 0.58,
        (4096, "full"): 0.32,
        (4096, "hybrid"): 0.58,
    }
    full, hybrid = found[4096, "full"], found[4096, "hybrid"]
    assert full["weak_efficiency"] < 0.4 < 0.55 < hybrid["weak_efficiency"]
    states = 12 * 8.03 / 8  # fp32 weights and two moments of 8.03 billion parameters, an eighth of them
    assert hybrid["peak_gb"] > full["peak_gb"] + 0.9 * states


# --- the advice ---------------------------------------------------------------------------------------------------

LEVERS = {
    "2 times the batch, if the loss allows": lambda at: {"batch": 2 * at["batch"]},
    "4 times the batch, if the loss allows": lambda at: {"batch": 4 * at["batch"]},
    "nodes of 8 with InfiniBand": lambda at: {"link": "node-ib"},
    "torch.compile": lambda at: {"program": "compiled"},
} | {words: lambda at, key=key: {"sharding": key} for key, words in levers.SHARDINGS.items()}


# Where each is the best one; what FSDP over all GPUs would help seldom fits without it.
BEST = {
    "2 times the batch, if the loss allows": {},
    "4 times the batch, if the loss allows": {"model": "gpt2", "world": 64},
    "nodes of 8 with InfiniBand": {"device": "b200", "link": "node-100g", "world": 16},
    "torch.compile": {"program": "eager", "each": 1},
    levers.SHARDINGS["ddp"]: {"model": "gpt2-xl", "batch": 4096, "each": 1},
    levers.SHARDINGS["hybrid"]: {"world": 4096, "batch": 8192, "each": 1},
}


def test_the_lever_that_is_named_fits_and_keeps_its_promise_when_tried():
    """Settings by chance beside those of BEST. A larger batch than the slider has is no advice."""
    every = {one.name: [value for value, _ in one.options] for one in capstone.CONTROLS if one.kind == "select"}
    every["model"] = ["gpt2", "gpt2-xl", "llama-2-7b", "llama-3-8b", "llama-2-70b"]
    every["link"] = ["node-ib", "node-100g", "ib"]
    every |= {"world": [2**n for n in range(4, 13)], "batch": [2**n for n in range(6, 14)], "each": [1, 4]}
    by_chance = ({name: pick(some, n, name) for name, some in every.items()} for n in range(80))
    for best, at in (*BEST.items(), ("", {"batch": 512}), *(("", at) for at in by_chance)):
        said = re.search(r"Try \*\*(.+)\*\*: ([\d.,]+) times the tokens/s", shown(at)["sentence"])
        assert said or not best
        if not said:
            continue
        assert said[1] == best or not best
        now, then = (shown(at | more)["values"] for more in ({}, LEVERS[said[1]](views.defaults("capstone") | at)))
        gain = then["strong_tokens_per_second"] / now["strong_tokens_per_second"]
        assert gain == pytest.approx(float(said[2].replace(",", "")), rel=0.01) and gain > 1.04, at
        assert then["fits"] and now["fits"], at
    assert set(BEST) | {levers.SHARDINGS["full"]} == set(LEVERS)


# --- the reader's own runs ----------------------------------------------------------------------------------------


def test_own_runs_are_points_against_the_fewest():
    result = shown({"own_1": 9000, "own_2": 16_200, "own_4": 27_000})
    assert result["values"]["own"] == [[1, 1.0], [2, pytest.approx(0.9)], [4, pytest.approx(0.75)]]
    assert {"your run on 2: 90.0%", "your run on 4: 75.0%"} <= set(circles(result["svg"]))
    assert "your runs on 1, 2, 4" in result["svg"]
    assert shown()["values"]["own"] == [] and "your run" not in shown()["svg"]
    assert shown({"own_2": 10, "own_8": 20})["values"]["own"] == [[2, 1.0], [8, pytest.approx(0.5)]]


# --- the lower chart ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("under", list(lower.NAMES))
def test_the_lower_chart(under):
    result = shown({"lower": under, "world": 64})
    assert lower.NAMES[under] in result["svg"]
    of = {"hours": "strong_hours", "price": "strong_price", "energy": "strong_kwh"}.get(under)
    setting = speedup.Setting("llama-3-8b", "h100-sxm", 4096, 64, "node-ib", "full", 512, 4, "none", "compiled")
    found = dict(capstone.amounts(speedup.curves(setting).strong, under, (GPU_WATTS, 2.5)))
    values = result["values"]
    assert found[64] == pytest.approx(values[of] if of else 100 * values["strong_mfu"])


def test_nothing_to_pay_is_said():
    assert "price per billion tokens, EUR: 0" in shown({"price": 0.0})["svg"]


def test_a_redraw_prices_few_jobs(monkeypatch):
    """What a slider costs: a job for each number of GPUs, shared or with the same work, and nothing a second time."""
    priced, real = [], speedup.step
    monkeypatch.setattr(speedup, "step", lambda job: priced.append(job) or real(job))
    speedup.size.cache_clear()
    shown({"model": "llama-3-405b", "world": 1536})
    assert 0 < len(priced) <= 2 * (len(speedup.WORLDS) + 1) and len(set(priced)) == len(priced)
    before = len(priced)
    shown({"model": "llama-3-405b", "world": 1536, "price": 4.0})
    assert len(priced) == before


def test_passes_share_a_batch():
    own = speedup.Setting("gpt2", "h100-sxm", 1024, 1, "node-ib", "full", 512, 4, "none", "compiled")
    assert [own.passes(n) for n in (1, 64, 128, 256, 1024)] == [(4, 128), (4, 2), (4, 1), (2, 1), (1, 1)]
    assert own.passes(100) == (3, 2), "six sequences, a little more than the batch, in even passes"
    assert [speedup.nodes_of(n, 8) for n in (1, 6, 8, 20, 64)] == [(1, 1), (1, 6), (1, 8), (4, 5), (8, 8)]
