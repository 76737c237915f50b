"""The view of recomputation: its numbers are the models', its areas are seconds, its levers keep their word."""

import re
from itertools import pairwise

import pytest
from drawn import marks
from view_settings import by_chance

from scaleout import views
from scaleout.draw import svg
from scaleout.memory import accounts, allocator
from scaleout.memory import recompute as held
from scaleout.timing import job as timing_job
from scaleout.timing import knapsack
from scaleout.timing import recompute as timing
from scaleout.views import recompute
from scaleout.views.recompute import levers
from scaleout.views.recompute.setting import STEP, Setting

WIDTHS = [svg.WIDE, svg.NARROW]
ORDERS = ("cheapest", "as it runs", "dearest")


def shown(width=svg.WIDE, **params):
    return views.render("recompute", params, width)


def setting(**params):
    return Setting.of(views.defaults("recompute") | params)


def policy(one):
    """What a setting drops, as the models take it."""
    counts = {name: n for name, n in one.counts.items() if n}
    return timing.policy(one.case.z, knapsack.Choice(counts, one.freed, one.recompute_seconds))


# --- numbers ------------------------------------------------------------------------------------------------------


def test_the_opening_needs_40_per_cent():
    found = shown()["values"]
    assert found["block_mb"] == pytest.approx(2655.1, abs=0.1) and found["all_percent"] == 30.5
    assert not found["fits"] and found["fits_from_percent"] == 40
    assert shown(dropped=40)["values"]["fits"] and not shown(dropped=40 - STEP)["values"]["fits"]
    assert "try **40% freed**" in shown()["sentence"].lower()


def test_the_answer_is_the_step_with_full_recomputation():
    job = setting().case.job
    share = timing_job.step(job.other(checkpointing="full")).seconds / timing_job.step(job).seconds - 1
    assert recompute.draw(views.defaults("recompute"), svg.WIDE)["values"]["all_percent"] == round(100 * share, 1)
    assert shown(dropped=100)["values"]["longer_percent"] == pytest.approx(100 * share)


def test_values_are_those_of_the_models():
    """The step that is walked block by block, and its seconds under the same policy."""
    for params in by_chance("recompute", 16, 4):
        one, found = setting(**params), shown(**params)["values"]
        case, chosen = one.case, policy(one)
        job = case.job
        of = (job.shape, job.batch, job.seq, job.recipe, job.layout)
        held_most = accounts.account(*of, policy=chosen).peak_bytes
        assert found["held_gb"] == pytest.approx(held_most / 1e9, rel=0.025), params
        assert found["fits"] is allocator.fits(held_most, case.card.memory_bytes)
        assert found["kept_gb"] == pytest.approx(held.kept(case.z, chosen) / 1e9)
        assert found["plain_seconds"] == timing_job.step(job).seconds
        if params["way"] == "rebuild":
            assert found["seconds"] == pytest.approx(timing.step(job, chosen).seconds, rel=0.01), params


def test_a_budget_is_met_by_whole_tiles_and_a_part_of_one():
    for params in by_chance("recompute", 30, 8):
        one = setting(**params)
        parts = [one.counts[item.name] for item in one.tiles]
        partial = [n for n in parts if 0 < n < one.case.blocks]
        assert len(partial) <= 1 and parts == sorted(parts, reverse=True)
        most = max(item.bytes for item in one.tiles)
        assert (
            0 <= one.freed - one.requested_bytes < most
            and one.requested_bytes >= one.case.blocks * one.case.block * one.dropped / 100
        )


def test_the_core_of_attention_is_70_per_cent_of_gpt_3_s_block():
    """5as/h of 34 + 5as/h bytes, 80 of 114 (arXiv 2205.05198, section 5)."""
    found = shown(model="gpt-3-175b", attention="naive", dropout=True, tp=1)["values"]
    core = found["tiles"]["scores"][0] + found["tiles"]["dropped scores"][0]
    assert core / found["block_mb"] == pytest.approx(80 / 114, abs=0.005)


def test_no_order_is_cheaper_than_the_cheapest_first():
    """But for what a whole tile too many costs."""
    for params in by_chance("recompute", 10, 2):
        for dropped in (20, 50, 80, 100):
            took = {order: setting(**params | {"order": order, "dropped": dropped}) for order in ORDERS}
            a_tile = max(item.seconds for item in took["cheapest"].tiles)
            assert took["cheapest"].recompute_seconds <= min(one.recompute_seconds for one in took.values()) + a_tile
    assert len({shown(dropped=100, order=order)["values"]["longer_percent"] for order in ORDERS}) == 1


def test_tiles_of_all_blocks_are_cheaper_than_all_tiles_of_some():
    """Every second block drops half of the bytes, as torchtitan's selective option of 2 does."""
    one = setting(dropped=50)
    case = one.case
    chosen = held.every_kth(case.z, 2)
    half = timing.step(case.job, chosen).seconds / case.plain.seconds - 1
    size = sum(held.dropped_bytes(case.z, chosen))
    assert one.by_blocks * size / one.freed == pytest.approx(half) and one.share < half / 2
    for way in ("rebuild", "offload"):
        found = shown(dropped=100, way=way)["values"]
        assert found["by_blocks_percent"] == pytest.approx(shown(dropped=100)["values"]["longer_percent"])


def test_the_wire_costs_what_it_cannot_hide():
    """At a fifth nothing; beyond what both hide a byte costs its way there and back."""
    assert shown(way="offload", dropped=20)["values"]["longer_percent"] == 0
    one, more = (setting(way="offload", dropped=dropped) for dropped in (80, 100))
    assert more.longer - one.longer == pytest.approx(2 * (more.freed - one.freed) / one.case.slot)
    assert 45e9 < one.case.slot < 63e9  # PCIe 5 x16, one way
    assert more.share > 5 * setting(dropped=100).share


def test_the_law_adds_up():
    """The tile that goes last, from its terms."""
    units = {"TFLOP": 1e12, "GB": 1e9, "MB": 1e6, "TFLOP/s": 1e12, "TB/s": 1e12, "GB/s": 1e9, "ms": 1e-3, "µs": 1e-6}
    for params in (
        {},
        {"dropped": 0},
        {"dropped": 60},
        {"dropped": 75},
        {"dropped": 100},
        {"order": "dearest"},
        {"way": "offload", "dropped": 25},
    ):
        _, formula, _ = shown(**params)["law"]
        terms, total = formula.split(" = ")
        said = [re.findall(r"([\d.,]+) (\S+)", term) for term in (*terms.split(" + "), total)]
        amounts = [[float(number.replace(",", "")) * units[unit] for number, unit in term] for term in said]
        assert sum(work / rate for work, rate in amounts[:-1]) == pytest.approx(amounts[-1][0], rel=0.006), formula


# --- the picture --------------------------------------------------------------------------------------------------


def size(mark, *names):
    return [float(mark.get(name)) for name in names]


@pytest.mark.parametrize("width", WIDTHS)
def test_areas_are_seconds_and_widths_bytes(width):
    for params in ({}, *by_chance("recompute", 8, 6)):
        one, found = setting(**params), marks(shown(width, **params)["svg"])
        widths, areas = [], []
        for item in one.tiles:
            wide, high = size(found[f"tile {item.name}"], "width", "height")
            if high > 2.01 and wide > 1:  # the least that can be seen
                widths.append((wide + 1.5) / item.bytes)
                areas.append((wide + 1.5) * high / item.seconds)
        assert max(widths) <= 1.01 * min(widths) and max(areas) <= 1.02 * min(areas), params


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("way", ["rebuild", "offload"])
def test_what_is_gone_ends_at_the_cut_and_so_does_the_curve(width, way):
    for dropped in (0, 25, 60, 100):
        drawn = shown(width, dropped=dropped, way=way)
        found, kind = marks(drawn["svg"]), {"rebuild": "gone", "offload": "away"}[way]
        gone = sum(size(found[f"{kind} {name}"], "width")[0] for name in drawn["values"]["tiles"])
        left, wide = size(found["so far"], "x", "width")
        (cut,) = size(found["cut"], "x1")
        assert left + wide == pytest.approx(cut, abs=0.05) and size(found["now"], "cx")[0] == pytest.approx(cut)
        assert gone == pytest.approx(cut - left, abs=20)  # less the gaps
        assert ("kept" in found) is (dropped < 100) and ("dropped" in found) is (dropped >= 25)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_guess_and_the_curve_share_a_scale(width):
    for params in ({}, {"attention": "naive"}, {"way": "offload"}):
        drawn, one = shown(width, **params)["svg"], setting(**params)
        stops = [[*map(float, pair.split(":"))] for pair in re.search(r'data-stops="([^"]+)"', drawn)[1].split()]
        ends = [[*map(float, pair.split(","))] for pair in re.search(r'points="([^"]+)"[^>]*"ahead"', drawn)[1].split()]
        share = 100 * one.other(dropped=100).share
        if share <= stops[-1][0]:
            (low, from_), (high, to) = next(pair for pair in pairwise(stops) if share <= pair[1][0])
            assert from_ + (to - from_) * (share - low) / (high - low) == pytest.approx(ends[-1][1], abs=0.1)
        assert stops[0][0] == 0 and stops[-1][0] == 100


@pytest.mark.parametrize("width", WIDTHS)
def test_the_bar_is_what_a_step_holds(width):
    for params in by_chance("recompute", 12, 6):
        drawn = shown(width, **params)
        found, values = marks(drawn["svg"]), drawn["values"]
        bars = [one for name, one in found.items() if name.startswith("held ")]
        left, limit = size(bars[0], "x")[0], size(found["limit"], "x1")[0]
        scale = (limit - left) / values["usable_gb"]
        assert sum(size(one, "width")[0] for one in bars) == pytest.approx(values["held_gb"] * scale, abs=0.2)
        assert size(found["over"], "width")[0] == pytest.approx(
            max(0, values["held_gb"] - values["usable_gb"]) * scale, abs=0.2
        )
        parts = sum(size(found[f"part {name}"], "width")[0] for name in values["parts"])
        name = [*values["parts"]][-1]
        share = size(found[f"part {name}"], "width")[0] / parts
        assert share == pytest.approx(values["parts"][name] / values["seconds"], abs=0.001)


def test_where_it_fits_is_said_and_drawn():
    assert ">fits from 40% on<" in shown()["svg"]
    assert "fits from" not in shown(batch=1)["svg"] and shown(batch=1)["values"]["fits_from_percent"] == 0
    never = shown(device="a100-40gb", batch=16)
    assert never["values"]["fits_from_percent"] is None and "fits from" not in never["svg"]


# --- the question and the levers ----------------------------------------------------------------------------------


def test_the_locked_picture_keeps_all_and_draws_no_curve():
    for width in WIDTHS:
        locked = recompute.locked(views.defaults("recompute"), width)
        found = marks(locked)
        assert not {"cut", "so far", "ahead", "now", "longer"} & found.keys()
        assert not any(name.startswith("gone ") for name in found)
    assert views.question("recompute")["words"] == "30.5%"


def test_slips_say_what_they_count():
    said = dict(recompute.slips(views.defaults("recompute")))
    assert {100, 50, 25} < said.keys() and any(abs(value - 100 / 3) < 1e-9 for value in said)
    block = setting().case.plain.work[0]
    forward, backward = block.forward_seconds, block.backward_seconds
    assert backward == pytest.approx(2 * forward, rel=0.15), "a backward takes as long as two forwards"


def test_the_lever_that_is_named_keeps_its_promise():
    seen = set()
    for params in (
        {},
        {"dropped": 60, "order": "dearest"},
        {"dropped": 60, "batch": 1},
        {"way": "offload", "dropped": 60},
        {"attention": "naive"},
        {"seq": "16384", "device": "a100-40gb"},
        *by_chance("recompute", 50, 9),
    ):
        now = setting(**params)
        found, said = levers.advice(now), shown(**params)["sentence"]
        if found is None:
            least = now.fits and now.dropped == now.least > 0
            end = "the least that fits." if least else "1% of the time." if now.fits else "makes it fit."
            assert said.endswith(end), params
            continue
        then = setting(**params | found.change)
        assert then.fits and f"Try **{found.words}**: {found.gives}." in said and then != now, params
        if now.fits:
            assert levers.pace(then) < 0.99 * levers.pace(now)
        else:
            assert f"{levers.longer(then)}." in said and "fits, and is" in said
        seen |= found.change.keys()
    assert {"dropped", "order", "attention", "way", "batch"} <= seen, seen


def test_marks_stay_few():
    for params in by_chance("recompute", 20, 3):
        drawn = shown(**params)["svg"]
        assert drawn.count("<") - drawn.count("</") < 250
