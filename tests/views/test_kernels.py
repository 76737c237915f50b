"""The view of kernels: its cycles are the model's, published kernels lie where it says, and its advice holds."""

import json
import re

import pytest
from repo import text

from scaleout import views
from scaleout.timing import kernels
from scaleout.timing.kernels import GENERATIONS, Attention
from scaleout.views.kernels import setting as chosen
from scaleout.views.kernels import words
from scaleout.views.kernels.setting import Setting

SERIES = {one["series"]: one for one in json.loads(text("tests/published/kernels.json"))["series"]}


def setting(**changes):
    return Setting.of(views.defaults("kernels") | changes)


def values(**changes):
    return views.render("kernels", changes)["values"]


@pytest.mark.parametrize("chip", GENERATIONS)
@pytest.mark.parametrize("head", [64, 128, 256])
def test_cycles_and_milliseconds_are_the_models(chip, head):
    a = Attention(16384, head, 2048 // head)
    found = values(chip=chip, head=head)
    assert found["cycles"] == kernels.clocks(GENERATIONS[chip], a).by_unit
    assert found["ms"] == pytest.approx(1e3 * kernels.seconds(GENERATIONS[chip], a))
    assert found["share_percent"] == pytest.approx(100 * kernels.ceiling(GENERATIONS[chip], a))


def test_fp8_takes_the_whole_time_where_exponentials_decide_and_half_where_matmuls_do():
    assert values()["fp8_percent"] == 100 and values()["tallest"] == "exponentials"
    assert values(chip="b300", head=128)["fp8_percent"] == 50 and values(chip="h100", head=256)["fp8_percent"] == 50
    assert values(chip="h100", head=128, kernel="turn")["fp8_percent"] == pytest.approx(200 / 3)
    for chip in ("h100", "b200", "b300"):
        a = Attention(16384, 64, 32)
        assert values(chip=chip)["fp8_percent"] == pytest.approx(100 / kernels.fp8_gain(GENERATIONS[chip], a))


def test_each_generation_finds_another_unit_tallest():
    tallest = {chip: values(chip=chip, head=128)["tallest"] for chip in GENERATIONS}
    assert tallest["a100"] == tallest["h100"] == tallest["b300"] == "tensor cores"
    assert values(chip="b200", head=64)["tallest"] == "exponentials"
    assert values(chip="b200", head=128, direction="backward")["tallest"] == "shared memory"
    assert values(chip="b200", kernel="naive")["tallest"] == "HBM"
    assert values(chip="h100", head=128, seq=512)["tallest"] == "HBM"  # too few queries per key that is read


def test_published_rates_are_the_files():
    h100, fp8, b200 = (SERIES[name] for name in ("attention H100, FlashAttention-3's figures",
                       "attention H100, FP8 forward", "attention B200 (taken), FlashAttention-4 forward"))  # fmt: skip
    for (chip, head, width, kernel), (rate, _) in chosen.PUBLISHED.items():
        if chip == "b200":
            rows = [row for row in b200["rows"] if row[0] == head and not row[1] and row[3] == 16384]
            assert rate == rows[0][-1] or f"{rate} (64, not causal)" in b200["note"]
            continue
        name = "fa2" if kernel == "turn" else "fa3"
        start = [head, 0, name] if width == 1 else [head, 0, "fwd", name]
        rows = fp8["rows"] if width == 1 else h100["rows"]
        assert [rate] == [row[-1] for row in rows if row[: len(start)] == start]
    peaks = {peak for _, peak in chosen.PUBLISHED.values()}
    assert peaks == {*(GENERATIONS["h100"].device.matmul_flop_per_s(one) / 1e12 for one in ("bf16", "fp8")), 2500}


@pytest.mark.parametrize("chip", GENERATIONS)
@pytest.mark.parametrize("kernel", ["naive", "turn", "overlap"])
@pytest.mark.parametrize("head", [64, 256])
def test_the_lever_that_is_named_does_what_is_said(chip, kernel, head):
    now = setting(chip=chip, kernel=kernel, head=head)
    said, best = words.advice(now), words._best(now)
    if best is None:
        assert not said.startswith("Try")
        return
    gain = float(re.search(r"([\d.]+) times as fast", said)[1])
    assert said.startswith(f"Try **{best.words}**") and gain >= 1.05
    assert gain == pytest.approx(now.seconds / now.other(**best.change).seconds, rel=0.05)


def test_units_that_take_equally_long_are_named():
    """On an H100 with heads of 64: both matrix multiplications and exponentials, or in the backward shared memory."""
    for direction, other in (("forward", "exponentials"), ("backward", "shared memory")):
        found = views.render("kernels", {"chip": "h100", "head": 64, "direction": direction})
        assert found["sentence"].startswith(f"**Tensor cores and {other} take equally long")
        assert found["values"]["cycles"]["tensor cores"] == found["values"]["cycles"][other]


@pytest.mark.parametrize("chip", GENERATIONS)
@pytest.mark.parametrize("kernel", ["naive", "turn", "overlap"])
def test_no_kernel_is_above_the_peak(chip, kernel):
    """A naive backward has four matrix multiplications, not the five that benchmarks count."""
    assert 0 < values(chip=chip, kernel=kernel, head=256, direction="backward")["share_percent"] <= 100


def test_what_changes_nothing_says_why():
    assert "no FP8" in views.render("kernels", {"chip": "a100"})["levers"]["precision"]["off"]
    assert "B200" in views.render("kernels", {"chip": "h100"})["levers"]["emulated"]["off"]
    assert views.render("kernels", {})["levers"] == {}


def test_the_law_is_the_longest_bar():
    for change in ({}, {"head": 256}, {"kernel": "naive"}, {"head": 128, "direction": "backward"}, {"emulated": 25}):
        found = views.render("kernels", change)
        shown = found["law"][1].split(" = ")
        product = shown[0].replace(",", "").replace("128²", "16384").replace("×", "*").replace("%", "/100")
        assert eval(product) == pytest.approx(float(shown[1].replace(",", "")), rel=0.01)
        assert found["law"][0] == f"Longest bar, {found['values']['tallest']}:"


def test_wrong_guesses_are_named():
    slips = dict(views.question("kernels")["slips"])
    assert views.question("kernels")["answer"] == 100 and {50.0, 25.0} < set(slips)
    in_turn = next(value for value, says in slips.items() if "in turn" in says)
    assert in_turn == pytest.approx(values(kernel="turn")["fp8_percent"])
