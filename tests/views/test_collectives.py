"""The widget of `collectives`: the circle shows what the messages do, the bar and the band what the cost model says."""

import json
import random
import re
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from cases import refused

from scaleout import views
from scaleout.collectives import alpha_beta as c
from scaleout.collectives import messages, nccl
from scaleout.draw import parcels, ramp, rank_circle, svg
from scaleout.spec.topology import Wire, cluster
from scaleout.timing import profile
from scaleout.views import collectives as view
from scaleout.views import collectives_own as own
from scaleout.views import collectives_setting as on_links
from scaleout.views.collectives_words import size as in_words

SVG = "{http://www.w3.org/2000/svg}"
RECORDS = Path(__file__).parents[2] / "labs" / "results" / "collectives"


def render(width=svg.WIDE, **params):
    return views.render("collectives", params, width)


def marks(drawn):
    """{name: element} of what has a name in a picture; every name once."""
    found = [(one.get("data-mark"), one) for one in ET.fromstring(drawn).iter() if one.get("data-mark")]
    assert len({name for name, _ in found}) == len(found)
    return dict(found)


def place(group):
    return tuple(map(float, re.fullmatch(r"translate\((\S+) (\S+)\)", group.get("transform")).groups()))


# --- the circle ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", view.SHOWN)
@pytest.mark.parametrize("ranks", [2, 3, 8, 11])
def test_what_is_drawn_is_what_the_messages_do(algorithm, ranks):
    shown = parcels.frames(algorithm, ranks)
    moves = messages.messages("all_reduce", algorithm, ranks, parcels.BLOCKS)
    states = messages.run(moves, messages.start("all_reduce", ranks, shown.chunks, algorithm == "in-network"))
    held = [[[Counter(q for q in range(ranks) if cell >> q & 1) for cell in rank] for rank in state]
            for state in shown.held]  # fmt: skip
    assert held == [[list(rank) for rank in state] for state in states]
    for step, under_way in enumerate(shown.parcels):
        sent = [(one.source, one.target, chunk, one.adds) for one in under_way for chunk in one.chunks]
        assert sorted(sent) == sorted((m.source, m.target, m.chunk, m.adds) for m in moves if m.step == step)
    values = render(algorithm=algorithm, ranks=ranks, step=30)["values"]
    assert values["step"] == values["steps"] == shown.steps and values["complete_cells"] == ranks * shown.chunks
    assert values["contributors"] == [[ranks] * shown.chunks] * ranks


def stripes(shown, step, on, rank):
    """(columns with a stripe in them, pale ones) of a rank's card, by the colour's rank: what a reader sees."""
    places = [on.place(one, shown.ranks) for one in range(len(shown.held[0]))]
    left, top = (at - on.card / 2 + 3 for at in places[rank])
    drawn = ET.fromstring(rank_circle._stripes(shown, step, places, on))
    wide, high = on.pitch(shown.chunks), on.pitch(shown.ranks)
    found = {False: set(), True: set()}
    for path in drawn.iter("path"):
        for x, y, long in re.findall(r"M(\S+) (\S+?)h([\d.]+)", path.get("d")):
            first, row = round((float(x) - left) / wide), (float(y) - top) / high - 0.5
            last = first + round(float(long) / wide)
            if 0 <= first < last <= shown.chunks and -0.5 < row < shown.ranks - 0.5:
                assert path.get("stroke") == ramp.colour(round(row), shown.ranks)
                found[float(path.get("opacity")) < 1] |= {(chunk, round(row)) for chunk in range(first, last)}
    return found[False], found[True]


def test_a_card_has_a_stripe_for_each_rank_in_a_sum_and_pales_where_the_sum_went_on():
    shown, on = parcels.frames("ring", 8), rank_circle.Circle(169, 180, 132, 132, 60)
    for step in range(15):
        for rank in range(8):
            strong, pale = stripes(shown, step, on, rank)
            cells = shown.held[step][rank]
            assert strong | pale == {(k, q) for k in range(8) for q in range(8) if cells[k] >> q & 1}
            # in lap 1 rank r passes on r, r - 1, ...: out of date until lap 2 brings their sums
            gone = {(rank - k) % 8 for k in range(min(7, step + 1))} if step else set()
            assert {k for k, _ in pale} == {k for k in gone if cells[k] != shown.full}


def test_parcels_keep_their_names_from_rank_to_rank():
    for ranks in (2, 7, 16):
        shown = parcels.frames("ring", ranks)
        assert all(len({one.name for one in step}) == ranks for step in shown.parcels)
        for before, after in pairwise(shown.parcels):
            at = {one.name: one.source for one in before}
            assert {one.name: one.source for one in after} == {n: (r + 1) % ranks for n, r in at.items()}
    a, b = (marks(render(step=step)["svg"]) for step in (4, 5))
    moving = [name for name in a if name.startswith("parcel-")]
    assert len(moving) == 8 and all(place(a[name]) != place(b[name]) for name in moving)
    assert {"now", "dot", "level", "half", "block-3", *(f"card-{r}" for r in range(8))} <= {*a} & {*b}
    assert not [name for name in marks(render(step=14)["svg"]) if name.startswith("parcel-")]


def test_what_comes_in_goes_on_under_its_name():
    for algorithm in view.SHOWN:
        for before, after in pairwise(parcels.frames(algorithm, 8).parcels):
            came = {one.name: one for one in before}
            for one in after:
                if one.name in came:
                    assert came[one.name].target == one.source and {*came[one.name].chunks} & {*one.chunks}


def test_above_sixteen_ranks_sixteen_are_drawn_and_it_says_so():
    for width in (svg.WIDE, svg.NARROW):
        drawn = render(width, ranks=1024)["svg"]
        assert "drawn with 16 of 1,024" in drawn and drawn.count('data-mark="card-') == 16
    values = render(ranks=1024)["values"]
    assert values["ring_sent_gb"] == values["sent_gb"] == pytest.approx(2 * 1023 / 1024) and values["steps"] == 30
    assert "2 nodes of 8" in render(ranks=16)["svg"] and "drawn with" not in render(ranks=16)["svg"]


def test_steps_end_where_the_algorithm_ends():
    ends = {name: [parcels.frames(name, ranks).steps for ranks in range(2, 17)] for name in view.SHOWN}
    assert next(one for one in view.CONTROLS if one.name == "step").hi == max(map(max, ends.values()))
    for name in view.SHOWN:
        assert render(algorithm=name, ranks=12)["levers"]["step"] == {"hi": ends[name][10]}


def test_the_owner_of_a_piece_is_who_has_its_sum_first():
    assert render()["values"]["owners"] == [7, 0, 1, 2, 3, 4, 5, 6]
    assert render(algorithm="naive")["values"]["owners"] == [0]
    assert render(algorithm="in-network")["values"]["owners"] == [8] * 8


# --- what one rank has sent ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", view.SHOWN)
@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
def test_what_is_sent_by_the_end_is_what_the_formula_says(algorithm, ranks):
    shown = parcels.frames(algorithm, ranks)
    found = c.cost("all_reduce", algorithm, 1, ranks, Wire(1e-6, 1e9)).sent_bytes
    assert sum(shown.sent()) == pytest.approx(found)
    values = render(algorithm=algorithm, ranks=ranks, step=30, link="own")["values"]
    assert values["sent_so_far_gb"] == pytest.approx(values["sent_gb"]) == pytest.approx(found)


def test_the_bar_fills_a_block_a_step_and_two_of_sixteen_stay_empty():
    for width, way in ((svg.WIDE, "height"), (svg.NARROW, "width")):
        for step in (0, 5, 14):
            drawn = render(width, step=step)
            blocks = [one for name, one in marks(drawn["svg"]).items() if name.startswith("block-")]
            full = [one for one in blocks if one.get("fill-opacity") is None]
            assert len(full) == step and drawn["values"]["sent_so_far_gb"] == pytest.approx(step / 8)
            assert len({one.get(way) for one in full}) <= 1
    dashed = [one for one in ET.fromstring(render()["svg"]).iter(f"{SVG}rect") if one.get("stroke-dasharray")]
    assert len(dashed) == 2
    assert "2 GB: never reached" in render()["svg"] and "1.998 GB" in render(ranks=1024)["svg"]
    assert "7 GB" in render(algorithm="naive")["svg"]


def test_the_guess_lies_on_the_bar():
    for width, way in ((svg.WIDE, "y"), (svg.NARROW, "x")):
        for drawn in (render(width, step=14)["svg"], views.question("collectives")["pictures"][width == svg.NARROW]):
            mark = re.search(rf'data-way="{way}" data-stops="([^"]+)"', drawn)[1]
            stops = dict(tuple(map(float, one.split(":"))) for one in mark.split())
            assert [*stops] == [0, 2, 8] and drawn.rindex("live-mark") > drawn.rindex("data-mark")
        last = marks(render(width, step=14)["svg"])["block-13"]
        at = float(last.get(way)) + (float(last.get("width")) if way == "x" else 0)
        assert at == pytest.approx(stops[0] + (stops[2] - stops[0]) * 1.75 / 2, abs=1.5)


def test_the_locked_picture_does_not_hold_the_answer():
    asked = views.question("collectives")
    assert asked["answer"] == 1.75 and asked["words"] == "1.75 GB"
    for drawn in asked["pictures"]:
        words = re.sub(r'data-stops="[^"]*"', "", drawn)
        assert not re.search(r"1\.75|14 starts|7 of 8|lap|never|block-|polyline|\d [mµ]?s\b", words)
        assert all(f'data-mark="card-{rank}"' in drawn for rank in range(8))


def test_slips_are_what_they_say():
    p, message = 8, 1.0
    assert [value for value, _ in view.slips(views.defaults("collectives"))] == [
        message / p, 2 * message / p, (p - 1) / p * message, message, 2 * message, (p - 1) * message]  # fmt: skip
    words = dict(views.question("collectives")["slips"])
    assert words[0.875] == "one lap of two" and 1.75 not in words


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
            "link": rng.choice([*on_links.LINKS, view.OWN]), "ranks": round(2 ** rng.uniform(1, 10)),
            "size": 10 ** rng.uniform(-3, 4), "alpha": 10 ** rng.uniform(-1, 5), "rate": 10 ** rng.uniform(-2, 3),
            "algorithm": rng.choice(view.SHOWN),
        }  # fmt: skip


def on(params):
    chosen = {**views.defaults("collectives"), **params}
    return on_links.setting(*(chosen[key] for key in ("link", "ranks", "alpha", "rate")))


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


def test_the_crossover_is_where_ring_and_tree_take_the_same_time():
    for params in ({"ranks": 32}, {"link": "own", "ranks": 64}, {"link": "ib-ndr", "ranks": 96}, {"ranks": 64}):
        at = render(**params)["values"]["crossover_bytes"]
        here, below, above = (on(params).costs(size) for size in (at, at * 0.9, at * 2))
        assert here["ring"].seconds == pytest.approx(here["tree"].seconds, rel=2e-2)
        assert below["ring"].seconds > below["tree"].seconds and above["ring"].seconds < above["tree"].seconds


def test_ranks_fill_nodes_evenly_and_none_is_priced_that_is_not_there():
    for ranks in range(2, 200):
        for key in on_links.LINKS:
            found = on_links.setting(key, ranks).cluster
            assert found.ranks == ranks and found.gpus_per_node <= on_links.LINKS[key][0]
    assert on_links.setting("node-ib", 20).words == "4 nodes of 5 GPUs on InfiniBand NDR"


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


def test_the_law_gives_what_the_model_says():
    for params in settings(60):
        found = render(**params)
        formula, said = found["law"][1].replace("−", "-").replace("×", "*").replace(",", "").split(" = ")
        factor = eval(re.sub(r" \* [\d.]+ [kMG]?B(ytes)?$", "", formula.strip()))
        assert factor * round(params["size"] * 1e6) / 1e9 == pytest.approx(found["values"]["sent_gb"], rel=1e-3)
        assert said == in_words(found["values"]["sent_gb"] * 1e9, 4).replace(",", "")


def test_bytes_for_people_take_the_next_unit_in_time():
    assert [in_words(size) for size in (1, 1800, 999.4e6, 999.6e6, 1.125e9, 1e12)] == [
        "1 bytes", "1.8 kB", "999 MB", "1 GB", "1.13 GB", "1,000 GB"]  # fmt: skip


# --- the reader's own run -----------------------------------------------------------------------------------------


def record(name="cpu-cpu-2"):
    return json.loads((RECORDS / f"{name}.json").read_text())


def circles(drawn):
    key = [one for one in ET.fromstring(drawn).iter(f"{SVG}circle") if one.get("stroke") == svg.colour("key")]
    return [(float(one.get("cx")), float(one.get("cy"))) for one in key]


def test_own_points_lie_at_their_size_and_their_share_of_latency():
    found = views.measured("collectives", record())
    assert (found["ranks"], found["backend"]) == (2, "gloo") and {*found["sweeps"]} == {"backend", *own.BY_HAND}
    points = [(a, s) for a, s in found["sweeps"]["ring"] if a >= 1e3]
    alpha = profile.fit(found["sweeps"]["ring"])["alpha_seconds"]
    drawn = views.render("collectives", {"ranks": 2}, svg.WIDE, found)["svg"]
    left, top, width, height = 6, 345 + 37 + 15, 588, 54
    for (x, y), (amount, seconds) in zip(circles(drawn), points, strict=True):
        assert x == pytest.approx(left + width * view.band.AXIS.part(amount), abs=0.02)
        assert y == pytest.approx(top + height * (1 - min(1, alpha / seconds)), abs=0.02)
    assert "your run: ring by hand, 2 × 2-core x86-64 CPU" in drawn and "48.2 ms" in drawn
    assert "gloo’s own" in views.render("collectives", {"ranks": 2, "algorithm": "in-network"}, svg.WIDE, found)["svg"]


def test_a_run_of_other_ranks_says_so_and_draws_nothing():
    found = views.measured("collectives", record("smoke-cpu-4"))
    for width in (svg.WIDE, svg.NARROW):
        other = views.render("collectives", {"ranks": 8}, width, found)
        assert "set Ranks to 4" in other["svg"] and not circles(other["svg"])
        assert circles(views.render("collectives", {"ranks": 4}, width, found)["svg"])
        assert other["values"] == render(width)["values"]


@pytest.mark.parametrize("change", [
    {"stem": "ddp"}, {"device_count": 1}, {"device_count": "two"}, {"measurement": []}, {"measurement": {}},
    {"device": None}, {"measurement": {"gloo all_reduce, 1024 B: seconds, its line": -1.0}},
    {"measurement": {"ring all_reduce, 1024 B: seconds, its line": 1e-3}},
    {"measurement": {"ring all_reduce, 1024 B: seconds, its line": 10**400}},
])  # fmt: skip
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
