"""The widget of `collectives`: seconds by size, the words, and the reader's own run, as the cost model has them."""

import json
import math
import random
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
from cases import refused
from drawn import SVG

from scaleout import views
from scaleout.collectives import nccl
from scaleout.draw import svg
from scaleout.spec import sweeps
from scaleout.spec.topology import cluster
from scaleout.views import collectives as view
from scaleout.views.collectives import links as on_links
from scaleout.views.collectives import record as own
from scaleout.views.collectives.words import size as in_words
from scaleout.words.amounts import took

RECORDS = Path(__file__).parents[2] / "labs" / "results" / "collectives"
PUBLISHED = Path(__file__).parents[1] / "published"


def render(width=svg.WIDE, **params):
    return views.render("collectives", params, width)


# --- where the time goes ------------------------------------------------------------------------------------------


def test_values_are_the_model():
    values = render(size=200, ranks=32)["values"]
    real = cluster(4, 8)
    textbook = ("naive", "halving-doubling", "hierarchical")
    wanted = {name: nccl.textbook("all_reduce", name, 2e8, real) for name in textbook}
    for one in nccl.choices("all_reduce", 2e8, real):
        if one.algorithm not in wanted or one.seconds < wanted[one.algorithm].seconds:
            wanted[one.algorithm] = one.cost
    assert values["seconds_by_algorithm"] == {name: one.seconds for name, one in wanted.items()}
    assert values["winner"] == nccl.price("all_reduce", 2e8, real).algorithm
    ring = wanted["ring"]
    assert values["seconds"] == ring.seconds and values["latency_share"] == ring.latency_seconds / ring.seconds
    assert values["busbw_gb_per_s"] == pytest.approx(2e8 / ring.seconds * 2 * 31 / 32 / 1e9)
    assert values["ring_sent_gb"] == pytest.approx(0.2 * 2 * 31 / 32)
    for amount, seconds, share in values["by_size"]:
        rings = [one for one in nccl.choices("all_reduce", amount, real) if one.algorithm == "ring"]
        one = min(rings, key=lambda one: one.seconds)
        assert (seconds, share) == (one.seconds, one.cost.latency_seconds / one.seconds)


def test_bytes_decide_at_the_default_and_starts_for_a_small_message():
    large, small = (render(size=size)["values"] for size in (1000, 0.01))
    assert large["latency_share"] < 0.02 < 0.98 < small["latency_share"]
    assert large["winner"] == "in-network" and large["ahead"] > 0.3
    assert render(size=0.01, ranks=32)["values"]["winner"] == "tree"


def settings(n):
    rng = random.Random(4)
    for _ in range(n):
        yield {
            "link": rng.choice([*on_links.LINKS, view.OWN_LINK]),
            "ranks": round(2 ** rng.uniform(1, 10)),
            "size": 10 ** rng.uniform(-3, 4),
            "alpha": 10 ** rng.uniform(-1, 5),
            "rate": 10 ** rng.uniform(-2, 3),
            "algorithm": rng.choice(view.SHOWN),
        }


def on(params):
    chosen = {**views.defaults("collectives"), **params}
    return on_links.Setting.of(chosen)


def test_the_half_is_where_half_of_the_time_is_latency_and_less_beyond():
    for params in settings(25):
        at, algorithm = render(**params)["values"]["half_bytes"], params["algorithm"]
        shares = [on(params).way(algorithm, size).share for size in on_links.GRID]
        falls = shares[-1] < 0.5 and any(share >= 0.5 for share in shares)
        assert (at is not None) == falls or at, params
        if at:
            assert max(on(params).way(algorithm, at / ratio).share for ratio in (1.03, 1.1)) > 0.47, params
            later = [at * 1.1, *(size for size in on_links.GRID if size > at * 1.1)]
            assert all(on(params).way(algorithm, size).share < 0.53 for size in later), params


def test_every_size_at_which_half_is_latency_has_its_dot():
    for params, halves in [({}, 3), ({"link": "own"}, 1), ({"link": "ib-ndr", "algorithm": "ring"}, 1)]:
        found, drawn = on_links.band(on(params), params.get("algorithm", "ring")), render(**params)
        assert len(found.halves) == drawn["svg"].count('data-mark="half-') == halves
        assert drawn["values"]["half_bytes"] == found.halves[-1]
        for at in found.halves:
            below, above = (on(params).way("ring", at * ratio).share for ratio in (0.95, 1.05))
            assert min(below, above) < 0.5 < max(below, above), (params, at)
    assert "half and half, last at 7.68 MB" in render()["svg"] and "half and half: " in render(link="own")["svg"]


def test_the_crossover_is_where_ring_and_tree_take_the_same_time():
    for params in ({"ranks": 32}, {"link": "own", "ranks": 64}, {"link": "ib-ndr", "ranks": 96}, {"ranks": 64}):
        at = render(**params)["values"]["crossover_bytes"]
        here, below, above = (on(params).costs(size) for size in (at, at * 0.9, at * 2))
        assert here["ring"].seconds == pytest.approx(here["tree"].seconds, rel=2e-2)
        assert below["ring"].seconds > below["tree"].seconds and above["ring"].seconds < above["tree"].seconds


def test_no_algorithm_is_named_fastest_that_leads_by_less_than_prices_are_off():
    """In one node NCCL's tree is a chain, of as many starts as a ring: for small messages neither leads."""
    small = on_links.Setting("node-ib", 8)
    ring, tree = (small.way(name, 1e4).cost for name in ("ring", "tree"))
    assert ring.steps == tree.steps == 14 and tree.seconds / ring.seconds < 1.02
    assert small.fastest(1e4) == "" and on_links.Setting("node-ib", 32).fastest(1e4) == "tree"
    assert ">no lead<" in render()["svg"] and "ring fastest" not in render()["svg"]


def test_ranks_fill_nodes_evenly_and_none_is_priced_that_is_not_there():
    for ranks in range(2, 200):
        for key in on_links.LINKS:
            found = on_links.Setting(key, ranks).cluster
            assert found.ranks == ranks and found.gpus_per_node <= on_links.LINKS[key][0]
    assert on_links.Setting("node-ib", 20).words == "4 nodes of 5 GPUs on InfiniBand NDR"


def test_switches_reach_the_measured_rate_and_are_no_choice_where_they_do_not_add():
    result = render(size=10_000, algorithm="in-network")
    assert result["values"]["winner"] == "in-network" and result["sentence"].startswith("Switches that add take")
    assert result["values"]["busbw_gb_per_s"] == pytest.approx(476, rel=0.01)
    for params in ({"link": "pcie"}, {"link": "own"}, {"link": "ib-ndr"}):
        result = render(**params, algorithm="in-network")
        assert "in-network" not in result["values"]["seconds_by_algorithm"] and "do not add" in result["sentence"]


@pytest.mark.parametrize(("alpha", "rate"), [(0.1, 0.01), (0.1, 1000), (100_000, 0.01), (100_000, 1000)])
@pytest.mark.parametrize("algorithm", view.SHOWN)
def test_the_edges_of_the_own_link_draw(algorithm, alpha, rate):
    result = render(link="own", alpha=alpha, rate=rate, ranks=1024, algorithm=algorithm)
    assert result["values"]["seconds"] > 0 and "off" not in str(result["levers"])


# --- what it says -------------------------------------------------------------------------------------------------


def test_the_lever_works_when_tried():
    seen = Counter()
    for params in settings(120):
        result = render(**params)
        said, seconds = result["sentence"], result["values"]["seconds"]
        assert len(said.replace("**", "")) <= 230 and "fastest" not in said, said
        bold = re.findall(r"\*\*(.+?)\*\*", said)
        if "do not add" in said or "It has" in said:  # what is drawn cannot be had, and nothing that can is as fast
            algorithm = next(name for name, words in view.SHORT.items() if f"**{words}**" in said)
            tried = render(**params | {"algorithm": algorithm})["values"]
            assert tried["winner"] == algorithm and took(tried["seconds"]) in said, said
            continue
        if len(bold) < 2:
            assert said.endswith("Nothing here is faster.")
            continue
        algorithm = next((name for name, words in view.SHORT.items() if words == bold[1]), None)
        link = next((key for key, (*_, words) in on_links.LINKS.items() if words == bold[1]), None)
        if algorithm or link:
            tried = render(**params | ({"algorithm": algorithm} if algorithm else {"link": link}))["values"]["seconds"]
            assert tried < 0.991 * seconds, said
        else:
            size = float(bold[1].split()[0]) * {"kB": 1e-3, "MB": 1, "GB": 1e3}[bold[1].split()[1]]
            tried = render(**params | {"size": min(size, 1e4)})["values"]["seconds"]
            assert tried < seconds if "bf16" in said else tried < 9 * seconds, said
        seen[("algorithm" if algorithm else "link" if link else "size")] += 1
    assert min(seen.values()) > 5 and len(seen) == 3


def test_the_sentence_and_the_law_at_the_default():
    found = render()
    assert found["sentence"] == (
        "The ring takes **4.92 ms** for 1 GB among 8 GPUs on NVLink 4, 99% of it moving bytes. "
        "Try **switches**, which add on the way, 1.125 GB from each: 3.75 ms."
    )
    assert found["law"][1] == "2 × (8 − 1)/8 × 1 GB = 1.75 GB"
    assert found["law"][2] == "at 360 GB/s: 4.86 ms, and 14 starts: 56.0 µs"


@pytest.mark.parametrize("algorithm", ["naive", "halving-doubling"])
def test_what_nccl_never_does_is_said_so_beside_what_it_does(algorithm):
    said = render(algorithm=algorithm)["sentence"]
    assert said.startswith("NCCL, NVIDIA’s library, never all-reduces this way; it would take **")
    assert said.endswith(". Try **switches**, which add on the way, 1.125 GB from each: 3.75 ms.")


def test_the_law_gives_what_the_model_says():
    for params in settings(60):
        found = render(**params)
        formula, said = found["law"][1].replace("−", "-").replace("×", "*").replace(",", "").split(" = ")
        factor = eval(re.sub(r" \* [\d.]+ [kMG]?B(ytes)?$", "", formula.strip()))
        assert factor * round(params["size"] * 1e6) / 1e9 == pytest.approx(found["values"]["sent_gb"], rel=1e-3)
        assert said == in_words(found["values"]["sent_gb"] * 1e9, 4).replace(",", "")


def test_bytes_for_people_take_the_next_unit_in_time():
    assert [in_words(size) for size in (1, 1800, 999.4e6, 999.6e6, 1.125e9, 1e12)] == [
        "1 bytes",
        "1.8 kB",
        "999 MB",
        "1 GB",
        "1.13 GB",
        "1 TB",
    ]


# --- the reader's own run -----------------------------------------------------------------------------------------


def record(name="cpu-cpu-2"):
    return json.loads((RECORDS / f"{name}.json").read_text())


def circles(drawn):
    key = [one for one in ET.fromstring(drawn).iter(f"{SVG}circle") if one.get("stroke") == svg.colour("key")]
    return [(float(one.get("cx")), float(one.get("cy"))) for one in key]


OWN_LINK = {"link": "own", "ranks": 2, "alpha": 125.0, "rate": 1.4}


@pytest.mark.parametrize(
    ("algorithm", "sweep", "words"), [("ring", "backend", "gloo as a ring"), ("naive", "naive", "naive by hand")]
)
def test_own_points_lie_where_the_latency_of_the_run_puts_them(algorithm, sweep, words):
    found = views.measured("collectives", record())
    assert (found["ranks"], found["backend"]) == (2, "gloo") and {*found["sweeps"]} == {"backend", *own.BY_HAND}
    points = [(a, s) for a, s in found["sweeps"][sweep] if a >= 1e3]
    drawn = views.render("collectives", OWN_LINK | {"algorithm": algorithm}, svg.WIDE, found)["svg"]
    left, top, width, height = 6, 345 + 37 + 15, 588, 54
    for (x, y), (amount, seconds) in zip(circles(drawn), points, strict=True):
        assert x == pytest.approx(left + width * view.band.AXIS.part(amount), abs=0.02)
        share = min(took for _, took in found["sweeps"][sweep]) / seconds  # of the run, whatever the model's latency is
        assert y == pytest.approx(top + height * (1 - share), abs=0.02)
    assert f"your run: {words}, 2 × 2-core x86-64 CPU" in drawn
    slow = found | {"sweeps": {"backend": [[1024.0, 19e-3], [2.0**20, 21e-3], [2.0**30, 1.0]]}}  # on a link of 25 µs
    low, *_, high = (top + height - y for _, y in circles(views.render("collectives", OWN_LINK, svg.WIDE, slow)["svg"]))
    assert low == pytest.approx(height, abs=0.02) and high < 0.05 * height


def test_own_points_have_their_times_and_only_what_ran_there():
    found = views.measured("collectives", record())
    points = found["sweeps"]["backend"]
    drawn = views.render("collectives", OWN_LINK, svg.WIDE, found)["svg"]
    (low, early), (high, late) = ((a, s) for a, s in points if 8e6 < a < 2e7)  # around 10 MB
    assert took(early * (late / early) ** (math.log(1e7 / low) / math.log(high / low))) in drawn
    assert "gloo’s own" in views.render("collectives", OWN_LINK | {"algorithm": "in-network"}, svg.WIDE, found)["svg"]
    elsewhere = views.render("collectives", {"ranks": 2}, svg.WIDE, found)["svg"]
    assert "your run used gloo: join by “my own”" in elsewhere and not circles(elsewhere)
    assert circles(views.render("collectives", {"ranks": 2}, svg.WIDE, found | {"backend": "nccl"})["svg"])


def test_a_run_of_other_ranks_says_so_and_draws_nothing():
    found = views.measured("collectives", record("smoke-cpu-4"))
    for width in (svg.WIDE, svg.NARROW):
        other = views.render("collectives", {"ranks": 8}, width, found)
        assert "set Ranks to 4" in other["svg"] and not circles(other["svg"])
        assert circles(views.render("collectives", {"ranks": 4, "link": "own"}, width, found)["svg"])
        assert other["values"] == render(width)["values"]


@pytest.mark.parametrize(
    "change",
    [
        {"stem": "ddp"},
        {"device_count": 1},
        {"device_count": "two"},
        {"measurement": []},
        {"measurement": {}},
        {"device": None},
        {"measurement": {"gloo all_reduce, 1024 B: seconds, its line": -1.0}},
        {"measurement": {"ring all_reduce, 1024 B: seconds, its line": 1e-3}},
        {"measurement": {"ring all_reduce, 1024 B: seconds, its line": 10**400}},
    ],
)
def test_another_record_is_refused_in_one_line(change):
    refused(lambda: views.measured("collectives", record() | change), "no Record of labs/collectives.py")


def test_each_control_changes_the_values_or_says_why_not():
    for params in settings(12):
        found = render(**params)
        for control in view.CONTROLS[1:]:
            top = {"step": 0, "ranks": 1024, "size": 1e4, "alpha": 1e5, "rate": 1e3}.get(control.name)
            others = [name for name, _ in control.options] or [top, control.lo if control.name != "step" else 2]
            moved = any(render(**params | {control.name: one})["values"] != found["values"] for one in others)
            assert moved is ("off" not in found["levers"].get(control.name, {})), (control.name, params)


def test_published_sweeps_stand_beside_the_ring_that_they_measured():
    named = {8: "8 H100, ring", 32: "4 nodes of 8 H100", 64: "8 nodes of 8 H100"}
    published = {one["name"]: one for one in json.loads((PUBLISHED / "nccl_sweeps.json").read_text())["sweeps"]}
    for ranks, sweep in sweeps.SWEEPS.items():
        assert [list(row) for row in sweep.rows] == published[named[ranks]]["rows"]
        picture = views.render("collectives", {"ranks": ranks})["svg"]
        assert f"measured: {sweep.words} ({sweep.source})" in picture
    eight = views.render("collectives", {"ranks": 8})
    assert eight["svg"].count('r="3.5"') == 13 and ">4.87 ms<" in eight["svg"]
    assert eight["values"]["seconds"] == pytest.approx(4.87e-3, rel=0.02), "prediction beside measurement"
    for other in ({"ranks": 16}, {"ranks": 8, "algorithm": "tree"}, {"ranks": 8, "link": "pcie"}):
        assert "measured:" not in views.render("collectives", other)["svg"]
    assert all("measured" not in one for one in views.question("collectives")["pictures"])
