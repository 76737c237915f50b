"""The widget of `collectives`: seconds by size, the words, and the reader's own run, as the cost model has them."""

import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from scaleout import views
from scaleout.collectives import nccl
from scaleout.draw import svg
from scaleout.spec.topology import cluster
from scaleout.views import collectives as view
from scaleout.views.collectives import links as on_links
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
    for params, halves in [
        ({"protocols": True}, 3),
        ({"link": "own"}, 1),
        ({"link": "ib-ndr", "algorithm": "ring", "protocols": True}, 1),
    ]:
        found, drawn = on_links.band(on(params), params.get("algorithm", "ring")), render(**params)
        assert len(found.halves) == drawn["svg"].count('data-mark="half-') == halves
        assert drawn["values"]["half_bytes"] == found.halves[-1]
        for at in found.halves:
            below, above = (on(params).way("ring", at * ratio).share for ratio in (0.95, 1.05))
            assert min(below, above) < 0.5 < max(below, above), (params, at)
    drawn = render(protocols=True, size=1e4)["svg"]
    assert "half and half, last at 7.68 MB" in drawn and "half and half: " in render(link="own")["svg"]
    near = render(protocols=True, size=400)["svg"]  # where the line of the present size is in the way
    assert "half, last: 7.68 MB" in near and "half and half" not in near


def test_by_default_the_band_has_one_falling_curve_of_the_least_latency():
    for params in settings(30):
        links, algorithm = on(params), params["algorithm"]
        found = on_links.band(links, algorithm)
        smooth, exact = found.shares(False), found.shares(True)
        assert exact == [(size, way.share) for size, way, _ in found.points]
        if not found.protocols:
            assert smooth == exact
            continue
        least = min(way.cost.latency_seconds for _, way, _ in found.points)
        for (size, share), (_, own_share) in zip(smooth, exact, strict=True):
            seconds = links.way(algorithm, size).cost.seconds  # by the protocol that NCCL takes
            assert share == least / seconds <= own_share
        assert all(low[1] >= high[1] for low, high in pairwise(smooth)), params
        assert len(on_links.halves(smooth)) <= 1


def test_protocols_are_shown_where_asked():
    names = ("NCCL: LL", "LL128", "Simple")
    plain, asked = render(), render(protocols=True)
    assert not [name for name in names if name in plain["svg"]] and all(name in asked["svg"] for name in names)
    assert "lowest latency: 14 hops" in plain["svg"] and ">latency: 14 hops" in asked["svg"]
    assert plain["svg"].count('data-mark="half-') == 1 and "half and half: 752 kB" in plain["svg"]
    assert plain["sentence"] == asked["sentence"] and plain["law"] == asked["law"]
    assert plain["values"] | {"protocols_shown": ["LL", "LL128", "Simple"]} == asked["values"]
    for params in ({"link": "own"}, {"algorithm": "naive"}):
        found, also = render(**params), render(**params, protocols=True)
        assert "off" in found["levers"]["protocols"] and found["svg"] == also["svg"]


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
    assert ">a tie<" in render()["svg"] and "ring fastest" not in render()["svg"]


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
    assert result["values"]["seconds"] > 0 and {*result["levers"]} == {"step", "protocols"}


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
        "The ring takes **4.92 ms** for 1 GB over 8 GPUs on NVLink 4, 99% of it spent moving bytes. "
        "Try **switches** that add, so that each GPU sends 1.125 GB: 3.75 ms."
    )
    assert found["law"][1] == "2 × (8 − 1)/8 × 1 GB = 1.75 GB"
    assert found["law"][2] == "at 360 GB/s: 4.86 ms, and 14 hops: 56.0 µs"


def test_the_lever_is_no_part_of_what_the_picture_says_of_itself():
    for params in settings(40):
        bare, advice = (
            views.render("collectives", params, advise=False)["sentence"],
            views.advice("collectives", params),
        )
        assert not re.search(r"\btry\b", bare, re.IGNORECASE) and bare.endswith("."), bare
        assert render(**params)["sentence"] == f"{bare} {advice}".strip()


@pytest.mark.parametrize("algorithm", ["naive", "halving-doubling"])
def test_what_nccl_never_does_is_said_so_beside_what_it_does(algorithm):
    said = render(algorithm=algorithm)["sentence"]
    assert said.startswith("NCCL, NVIDIA’s library, never all-reduces this way; it would take **")
    assert said.endswith(". Try **switches** that add, so that each GPU sends 1.125 GB: 3.75 ms.")


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


def test_each_control_changes_the_values_or_says_why_not():
    for params in settings(12):
        found = render(**params)
        for control in view.CONTROLS[1:]:
            top = {"step": 0, "ranks": 1024, "size": 1e4, "alpha": 1e5, "rate": 1e3}.get(control.name)
            others = [name for name, _ in control.options] or [top, control.lo if control.name != "step" else 2]
            others = [True, False] if control.kind == "toggle" else others
            moved = any(render(**params | {control.name: one})["values"] != found["values"] for one in others)
            assert moved is ("off" not in found["levers"].get(control.name, {})), (control.name, params)
