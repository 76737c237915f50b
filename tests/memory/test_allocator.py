"""What a card holds, and what fits it: one definition, in every view, exercise and chapter."""

import re
import xml.etree.ElementTree as ET

import pytest

from scaleout import views
from scaleout.memory import allocator
from scaleout.spec.devices import DEVICES
from scaleout.views.capstone import speedup

GIB = 2**30
H100 = DEVICES["h100-sxm"].memory_bytes
SVG = "{http://www.w3.org/2000/svg}"

# torch's total_memory and deviceQuery's: what is left of it once the driver has its own part. H100: thamada/nvidia-smi
# (nvsim/H100SXMx8_deviceQuery.py); A100 40 GB: bottlerocket-os/bottlerocket pull request 3873. Bytes.
SEEN_BY_PROGRAMS = {"h100-sxm": 85_045_477_376, "a100-40gb": 42_298_834_944}


@pytest.mark.parametrize("key", SEEN_BY_PROGRAMS)
def test_what_the_driver_keeps_is_within_the_context_of_the_band(key):
    kept = DEVICES[key].memory_bytes - SEEN_BY_PROGRAMS[key]
    assert 0 < kept < allocator.CONTEXT[1]
    assert allocator.usable(DEVICES[key].memory_bytes) < SEEN_BY_PROGRAMS[key]


@pytest.mark.parametrize("key", DEVICES)
def test_it_fits_if_the_upper_end_of_the_band_does(key):
    memory = DEVICES[key].memory_bytes
    room = allocator.usable(memory)
    low, high = allocator.band(room)
    assert low < high <= memory < allocator.band(room + 10)[1]
    assert allocator.fits(room, memory) and not allocator.fits(room + 1, memory)
    assert allocator.verdict(room, memory) == "fits" and allocator.verdict(room + 1, memory) == "may fit"
    most = memory - (low - room)
    assert allocator.verdict(most - 10, memory) == "may fit" and allocator.verdict(most + 10, memory) == "does not fit"
    assert 0.13 < 1 - room / memory < 0.2, "a smaller card gives more of itself"


def test_a_card_smaller_than_the_context_has_no_room():
    assert allocator.usable(10**9) == 0 and allocator.verdict(1, 10**8) == "does not fit"


def test_the_figures_of_the_chapters():
    assert (round(H100 / GIB, 1), round(H100 / 1e9, 1)) == (79.6, 85.5)
    assert (round(allocator.usable(H100) / GIB, 1), round((H100 - allocator.usable(H100)) / GIB, 1)) == (68.4, 11.3)


# --- the views -------------------------------------------------------------------------------------------------------

SETTINGS = [
    ("memory", {"model": "gpt2"}), ("memory", {"model": "gpt2-xl", "batch": 16, "seq": "1024"}), ("memory", {}),
    ("fsdp", {}), ("fsdp", {"reshard": "no"}), ("fsdp", {"batch": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("stem", "params"), SETTINGS, ids=str)
def test_views_say_what_the_definition_says(stem, params):
    found = views.render(stem, params)
    values, sentence = found["values"], found["sentence"]
    said = allocator.verdict(values["peak_gib"] * GIB, H100)
    assert values["fits"] == (said == "fits") and values["usable_gib"] == allocator.usable(H100) / GIB
    words = {"fits": "It fits", "may fit": "It may fit", "does not fit": "It does not fit"}
    assert [key for key, text in words.items() if text in sentence] == [said]


def test_all_three_verdicts_are_among_the_settings():
    said = {allocator.verdict(views.render(s, p)["values"]["peak_gib"] * GIB, H100) for s, p in SETTINGS}
    assert said == {"fits", "may fit", "does not fit"}


@pytest.mark.parametrize("params", [{}, {"checkpointing": "full"}, {"link": "node-100g"}, {"device": "h200"}], ids=str)
def test_the_spare_is_the_real_one(params):
    found = views.render("fsdp", params)
    spare = 1 - found["values"]["peak_gib"] / found["values"]["usable_gib"]
    assert f"fits, with {100 * spare:.0f}% to spare" in found["sentence"]
    peak, most = map(float, re.search(r"peaks at ([\d.]+) of ([\d.]+) GiB", found["sentence"]).groups())
    assert 1 - peak / most == pytest.approx(spare, abs=0.005), "the share is of the capacity that is named"


def test_at_the_opening_setting_a_twelfth_is_spare():
    assert "It fits, with 8% to spare," in views.render("fsdp", {})["sentence"]


def test_the_reserve_is_a_line():
    """The thin line is where the reserve begins: as far from zero as `usable_gib` on the scale of the other line."""
    found = views.render("fsdp", {})
    accents = [line for line in ET.fromstring(found["svg"]).iter(f"{SVG}line") if "accent" in line.get("stroke")]
    lines = [line for line in accents if float(line.get("x2")) - float(line.get("x1")) > 200]  # no leaders of words
    thick, thin = (float(line.get("y1")) for line in sorted(lines, key=lambda one: -float(one.get("stroke-width"))))
    room, card = found["values"]["usable_gib"], H100 / GIB
    zero = _bottom(found["svg"])
    assert (thin - zero) / (thick - zero) == pytest.approx(room / card, abs=0.005)
    assert f"this GPU {card:.1f}<" in found["svg"] and f"usable {room:.1f}<" in found["svg"]


def test_the_reserve_is_a_line_of_the_tank():
    found = views.render("memory", {"gib": True})
    named = {one.get("data-mark"): one for one in ET.fromstring(found["svg"]).iter() if one.get("data-mark")}
    rim, room = (float(named[name].get("y1")) for name in ("rim", "room"))
    _right(rim, room, max(float(y) for y in re.findall(r",([\d.]+)", named["wall"].get("points"))) - 1.5, found)


def _right(thick: float, thin: float, zero: float, found: dict) -> None:
    room, card = found["values"]["usable_gib"], H100 / GIB
    assert (thin - zero) / (thick - zero) == pytest.approx(room / card, abs=0.005)
    assert f"{card:.1f} GiB; it fits" in found["svg"] and f"{room:.1f}</text>" in found["svg"]


def _bottom(svg: str) -> float:
    """Where 0 GiB is drawn: the lowest of the short ticks beside the vertical axis."""
    lines = ET.fromstring(svg).iter(f"{SVG}line")
    return max(float(line.get("y1")) for line in lines if float(line.get("x2")) - float(line.get("x1")) == 4)


def test_curves_and_levers_use_the_same_definition():
    setting = speedup.Setting("llama-2-7b", "h100-sxm", 4096, 16, "node-ib", "full", 16, 1, "full", "compiled")
    for kind in ("full", "ddp"):
        assert speedup.fits(setting, kind) == allocator.fits(speedup.peak_bytes_of(setting, kind), H100)
    assert setting.usable == allocator.usable(H100)
