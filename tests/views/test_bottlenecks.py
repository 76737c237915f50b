"""The view of bottlenecks: bars that add up to the step, levers that move the wall, and what it says of them."""

import math
import re

import pytest

from scaleout import views
from scaleout.timing import job as timing
from scaleout.views.bottlenecks import levers
from scaleout.views.bottlenecks.setting import FIXED, INPUT, NETWORK, RESOURCES, RUNS, Setting


def setting(**changes):
    return Setting.of(views.defaults("bottlenecks") | changes)


def values(**changes):
    return views.render("bottlenecks", changes)["values"]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_bars_add_up_to_the_step_of_the_one_model(run, recompute):
    chosen = setting(run=run, recompute=recompute)
    bars = chosen.seconds_by
    assert list(bars) == list(RESOURCES) and all(seconds >= 0 for seconds in bars.values())
    step = timing.step(chosen.job).seconds
    assert math.fsum(bars.values()) == pytest.approx(step + bars[INPUT], rel=1e-9)
    assert values(run=run, recompute=recompute)["seconds"] == pytest.approx(math.fsum(bars.values()))


def test_each_run_has_its_own_wall():
    walls = {run: values(run=run)["tallest"] for run in RUNS}
    assert walls["ethernet"] == "network" and walls["loader"] == "input" and walls["host"] == "fixed overhead"
    assert walls["node"] == walls["large"] == "arithmetic"


def test_a_network_32_times_as_fast_makes_the_run_less_than_five_times_as_fast():
    before, after = values(), values(link="faster")
    assert before["tallest"] == "network" and after["tallest"] == "arithmetic"
    gain = before["seconds"] / after["seconds"]
    assert 4 < gain < 5 and before["faster_link_gain"] == pytest.approx(gain)
    one, other = (
        setting(link=link).job.cluster.across.bytes_per_s * adapters for link, adapters in (("same", 1), ("faster", 8))
    )
    assert other / one == pytest.approx(32)  # what the question says
    share = before["by_resource"]["network"] / before["seconds"]
    assert f"{share:.0%}" in views.spec("bottlenecks")["controls"][0]["label"]


def test_recomputation_frees_memory_and_adds_arithmetic():
    stored, full = values(run="node"), values(run="node", recompute="full")
    assert not stored["fits"] and full["fits"]
    assert full["by_resource"]["arithmetic"] > 1.25 * stored["by_resource"]["arithmetic"]


def test_splitting_the_states_frees_memory_and_adds_communication():
    copied, split = values(states="copy"), values()
    assert not copied["fits"] and split["fits"]
    assert split["by_resource"]["network"] > copied["by_resource"]["network"]
    assert split["by_resource"]["memory bandwidth"] < copied["by_resource"]["memory bandwidth"]  # a smaller update


def test_a_larger_batch_hides_communication_but_not_a_fixed_cost():
    small, large = (setting(run="ethernet", recompute="full", batch=batch) for batch in (1, 8))
    assert (
        large.seconds_by[NETWORK] < small.seconds_by[NETWORK] and large.tokens_per_second > 4 * small.tokens_per_second
    )
    one, eight = (setting(run="host", recompute="full", batch=batch).seconds_by[FIXED] for batch in (1, 8))
    assert one == pytest.approx(eight)


def test_loader_workers_help_until_the_input_is_hidden():
    seconds = [values(run="loader", workers=workers)["by_resource"]["input"] for workers in (1, 2, 4, 8)]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 2 * seconds[1] > 0


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("batch", [1, 4])
def test_the_lever_that_is_named_does_what_is_said(run, recompute, batch):
    chosen = setting(run=run, recompute=recompute, batch=batch)
    lever, words = levers.advice(chosen), levers.sentence(chosen)
    if lever is None:
        assert not words.startswith("Try")
        return
    after = chosen.other(**lever.change)
    assert after.fits and words.startswith(f"Try **{lever.words}**")
    if chosen.fits:
        gain = float(re.search(r"([\d.]+) times the tokens", words)[1])
        assert gain == pytest.approx(after.tokens_per_second / chosen.tokens_per_second, rel=0.05) and gain >= 1.05


def test_what_changes_nothing_says_why():
    assert "one node" in views.render("bottlenecks", {"run": "node"})["levers"]["link"]["off"]
    assert "already" in views.render("bottlenecks", {"run": "large"})["levers"]["link"]["off"]
    assert "link" not in views.render("bottlenecks", {})["levers"]
    taken = views.render("bottlenecks", {"run": "loader", "tp": 8})["levers"]["tp"]["takes"]
    assert taken.startswith("4") and setting(run="loader", tp=8).job.layout.tp == 4


def test_wrong_guesses_are_named():
    slips = dict(views.question("bottlenecks")["slips"])
    assert 32.0 in slips and "only its own bar" in slips[32.0]
    answer = views.question("bottlenecks")["answer"]
    assert all(abs(value / answer - 1) > 0.1 for value in slips)
