"""The view of number formats: its numbers are those of the recorded gradients, its levers keep their word."""

import math
import re

import pytest
from cases import refused
from drawn import marks
from view_settings import by_chance

from scaleout import views
from scaleout.draw import svg
from scaleout.numerics.blocks import BLOCKS
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.octaves import fate, kept_bits, together
from scaleout.numerics.recorded import GRADIENTS, LARGEST
from scaleout.numerics.scaling import Scaler, search
from scaleout.numerics.shared import shared
from scaleout.views import precision
from scaleout.views.precision import levers
from scaleout.views.precision.setting import MOST_OCTAVES, Setting

WIDTHS = [svg.WIDE, svg.NARROW]
OPENING = GRADIENTS["last step"]["activations"]["block 4, queries and keys"]


def shown(width=svg.WIDE, **params):
    return views.render("precision", params, width)


def setting(**params):
    return Setting.of(views.defaults("precision") | params)


# --- numbers ------------------------------------------------------------------------------------------------------


def test_the_opening_loses_41_per_cent():
    found = shown()["values"]
    assert found["zero_percent"] == 41.2 == round(100 * OPENING.below(-25), 1)
    assert (found["zero_below_log2"], found["bits"], found["middle_bits"]) == (-25, 11, 0)
    by_part = found["zero_percent_by_part"]
    assert [round(by_part[f"block {i}, queries and keys"]) for i in (1, 2, 3, 4)] == [3, 14, 27, 41]
    assert shown(format="bf16")["values"]["zero_percent"] == 0


def test_values_are_those_of_the_recorded_gradients():
    for params in by_chance("precision", 60, 4):
        one, found = setting(**params), shown(**params)["values"]
        if one.shares:
            continue
        every = GRADIENTS[params["moment"]][params["kind"]]
        part = {"head": "head" if params["kind"] == "activations" else "embeddings"}.get(params["part"], params["part"])
        h = together(every.values()) if part == "all" else every[part]
        wanted = fate(h, FORMATS[params["format"]], found["scale_log2"] - params["smaller"])
        assert found["zero_percent"] == round(100 * wanted.zero, 1)
        assert found["few_percent"] == pytest.approx(100 * wanted.few, abs=1e-3)
        assert found["beyond_percent"] == pytest.approx(100 * wanted.beyond, abs=1e-3)
        middle = h.middle() + found["scale_log2"] - params["smaller"]
        assert found["middle_bits"] == kept_bits(middle, FORMATS[params["format"]])


def test_a_loss_scale_slides_and_the_largest_of_all_decides():
    """65,504 / 2^16 is between 0.5 and 1; the largest gradient of the last step is 0.84."""
    found = {k: shown(scale=k)["values"] for k in (0, 16, 17)}
    assert found[16]["largest_log2"] == pytest.approx(found[0]["largest_log2"] + 16)
    assert not found[16]["overflows"] and found[17]["overflows"] and found[17]["beyond_percent"] == 0
    largest = max(h.largest for kinds in GRADIENTS["last step"].values() for h in kinds.values())
    assert found[0]["largest_of_all_log2"] == pytest.approx(math.log2(largest), abs=1e-6)


def test_what_is_infinite_is_a_share_of_the_picture_or_said_to_be_elsewhere():
    """The step is left out for one gradient of the model, which need not be of the part that is drawn."""
    elsewhere = 0
    for params in [{"scale": k} for k in (17, 18, 19, 24)] + [
        {"scale": 17, "part": "block 1, values and output", "kind": kind} for kind in ("weights", "activations")
    ]:
        result = shown(**params)
        said, beyond = result["sentence"], result["values"]["beyond_percent"]
        assert "**the step is skipped**" in said
        if beyond:
            assert " are infinite, so" in said and "none of" not in said
        else:
            assert "none of the gradients" in said
            assert "is infinite, but the gradient of a weight in values and output in block 1 is, so " in said
        elsewhere += not beyond
    assert elsewhere == 5


def test_16_bits_take_in_weights_gradients_and_8_bits_do_not():
    inputs = max(h.largest for h in GRADIENTS["last step"]["activations"].values())
    found = shown(format="e5m2")["values"]["largest_of_all_log2"]
    assert found == pytest.approx(math.log2(inputs), abs=1e-6) and found < shown()["values"]["largest_of_all_log2"]


def test_the_search_is_the_scalers():
    for interval in (1, 8, 2000):
        course = search(LARGEST, FORMATS["fp16"], Scaler(interval=interval), repeats=True)
        for step in (1, 5, 22, 48):
            found, now = shown(step=step, interval=interval)["values"], course[step - 1]
            assert found["scales"] == [one.scale for one in course]
            assert found["scale_log2"] == math.log2(now.scale) and found["skipped"] is now.skipped
            assert found["skipped_so_far"] == sum(one.skipped for one in course[:step])
            assert found["overflows"] is found["skipped"]
    said = shown(step=22)["sentence"]
    assert said.startswith("Step 22, loss scale 2¹⁷: the largest gradient is infinite. **The step is skipped**")


def test_the_scaler_is_fp16s_and_has_the_loss_scale_in_hand():
    levers_ = shown(step=12, scale=3)["levers"]
    assert levers_["scale"]["takes"] == 15 and "off" in levers_["scale"] and "interval" not in levers_
    for name in ("bf16", "e5m2", "e4m3", "e2m1"):
        found = shown(step=12, scale=3, format=name)
        assert found["values"]["scale_log2"] == 3 and "off" in found["levers"]["step"]


def test_gradients_of_a_later_step_take_a_larger_scale():
    scales = [shown(step=48, smaller=k, interval=1)["values"]["scales"][-1] for k in (0, 3, 6)]
    assert scales == sorted(scales) and scales[-1] > scales[0]
    assert shown(smaller=4)["values"]["zero_percent"] == shown(smaller=4, scale=0)["values"]["zero_percent"] > 41.2
    assert shown(smaller=4, scale=4)["values"]["zero_percent"] == 41.2


def test_shared_scales_are_those_of_the_blocks():
    for params, b, rule in (
        ({"format": "e4m3", "shared": "floor"}, BLOCKS["mxfp8"], "floor"),
        ({"format": "e2m1", "shared": "up"}, BLOCKS["mxfp4"], "up"),
        ({"format": "e2m1", "shared": "nv", "block": 16}, BLOCKS["nvfp4"], "floor"),
        ({"format": "e5m2", "shared": "tensor"}, BLOCKS["fp8-tensor-e5m2"], "floor"),
    ):
        found, wanted = shown(**params)["values"], shared(OPENING, b, rule)
        assert found["zero_percent"] == round(100 * wanted.zero, 1)
        assert found["beyond_percent"] == pytest.approx(100 * wanted.clipped, abs=1e-3)
        assert found["error_percent"] == pytest.approx(100 * wanted.error, abs=1e-3)
        assert found["bits_a_number"] == pytest.approx(b.bits(OPENING.total))
        assert found == shown(**params, scale=9)["values"], "a loss scale changes nothing then"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"format": "fp32"}, "format must be one of fp16, bf16, e5m2, e4m3, e2m1"),
        ({"block": 4}, "block must be from 8"),
        ({"scale": 25}, "scale must be from 0 to 24"),
        ({"part": "block 5, MLP"}, "part must be one of all, block 1"),
    ],
)
def test_what_cannot_be_set_is_refused_in_a_line(params, words):
    refused(lambda: shown(**params), words)


def test_what_blocks_are_called():
    said = {
        "MXFP8 (e4m3)": ("e4m3", "up", 32),
        "MXFP4": ("e2m1", "floor", 32),
        "NVFP4": ("e2m1", "nv", 16),
        "e4m3": ("e4m3", "up", 64),
    }
    for name, (element, scales, block) in said.items():
        found = shown(format=element, shared=scales, block=block)["sentence"]
        assert found.startswith(f"{name}, one scale per {block} numbers: ")


def test_what_is_drawn_is_what_the_format_has():
    """Blocks for 8 bits and fewer, a search for fp16."""
    for params in by_chance("precision", 40, 12):
        values, small = shown(**params)["values"], params["format"] in ("e5m2", "e4m3", "e2m1")
        assert ("error_percent" in values) is (small and params["shared"] != "none")
        assert ("scales" in values) is (params["format"] == "fp16" and params["step"] > 0)


# --- the law ------------------------------------------------------------------------------------------------------

SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--")


def test_the_law_adds_up():
    for name in ("fp16", "bf16", "e5m2", "e4m3", "e2m1"):
        words, formula, _ = shown(format=name)["law"]
        sum_, power = formula.translate(SUPER).split(" = ")
        terms = [*map(int, re.findall(r"-?\d+", re.search(r"\((.*)\)", sum_)[1].replace("- ", "-")))]
        assert sum(terms) == int(power[1:]) == shown(format=name)["values"]["zero_below_log2"]
        assert words.startswith(f"The lowest normal exponent of {name} is")
    assert "gradients of 2⁻⁴¹" in shown(scale=16)["law"][2]
    top, largest, bears = map(float, re.findall(r"[\d.]+", shown(step=22)["law"][1].replace(",", "")))
    assert top / largest == pytest.approx(bears, rel=0.005) and bears < 2**17
    assert shown(format="e4m3", shared="floor")["law"][2].startswith("8 + 8/32 = 8.25 bits per number.")
    assert shown(format="e2m1", shared="nv", block=16)["law"][1] == "m / 6"


# --- the question and the levers ----------------------------------------------------------------------------------


def test_the_locked_picture_ends_at_the_normal_numbers():
    for width in WIDTHS:
        locked = precision.locked(views.defaults("precision"), width)
        found = marks(locked)
        assert not {"zero line", "strip", "middle", "share zero"} & found.keys() and "--accent" in locked
        assert all("--c6" in one.get("fill") for name, one in found.items() if name.startswith("bar "))
        assert "data-press" not in locked and locked.count(">?<") == 5
        assert "41" not in re.sub(r' [\w-]+="[^"]*"', "", locked)
    assert views.question("precision")["words"] == "41.2%"


def test_slips_say_what_they_count():
    said = {round(value, 1): words for value, words in precision.slips(views.defaults("precision"))}
    assert said.keys() == {100, 0, round(100 * OPENING.below(-24), 1), 4.9}
    assert OPENING.below(-14) > 0.999 and fate(OPENING, FORMATS["bf16"]).zero == 0
    whole = fate(together(GRADIENTS["last step"]["activations"].values()), FORMATS["fp16"]).zero
    assert round(100 * whole, 1) == 4.9


def test_the_lever_that_is_named_keeps_its_promise():
    seen = set()
    for params in (
        {},
        {"scale": 20},
        {"scale": 3, "format": "e5m2"},
        {"format": "e4m3", "shared": "floor"},
        {"step": 9},
        {"format": "e2m1", "shared": "tensor"},
        *by_chance("precision", 80, 9),
    ):
        now = setting(**params)
        found, said = levers.advice(now), shown(**params)["sentence"]
        if found is None:
            assert said.endswith("Nothing here loses less."), params
            continue
        then = setting(**params | found.change)
        assert said.endswith(f"Try **{found.words}**: {found.gives}.") and then != now
        if now.shares:
            assert then.shared_fate.error < levers.BETTER * now.shared_fate.error
        elif now.searches:
            assert then.format == "bf16" and not then.leaves_out
        elif now.leaves_out:
            assert not then.leaves_out and found.change == {"scale": now.best}
            assert now.best == MOST_OCTAVES or setting(**params | {"scale": now.best + 1}).leaves_out
        else:
            zero = then.shared_fate.zero if then.shares else then.lost
            assert zero < now.lost or then.fate.few < now.fate.few
            assert not then.leaves_out
        seen |= found.change.keys()
    assert {"scale", "shared", "format", "block"} <= seen, seen


def test_nothing_is_worth_trying_where_nothing_is_lost():
    assert shown(format="bf16")["sentence"].endswith("keeps **all 8 bits**. Nothing here loses less.")
    assert shown(scale=16)["sentence"].endswith("Nothing here loses less.")
