"""The widget of `memory` shows what the account says, for every model and at the edges of every control."""

import xml.etree.ElementTree as ET

import pytest

from scaleout import views
from scaleout.memory import allocator
from scaleout.memory.accounts import KINDS, Layout, Recipe, account
from scaleout.spec.hardware import DEVICES
from scaleout.spec.transformer import PRESETS
from scaleout.views import memory
from scaleout.views.choices import NAMES

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg):
    """Widths of the stacked bars' parts by row, top to bottom, as {y: {title's kind: width}}."""
    out = {}
    for rect in ET.fromstring(svg).iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None:
            out.setdefault(float(rect.get("y")), {})[title.text.split(":")[0]] = float(rect.get("width"))
    return [out[y] for y in sorted(out)]


def test_values_are_the_account():
    values = views.render("memory", {"model": "llama-3-8b", "batch": 2, "seq": 4096, "zero": 1, "gpus": 8})[
        "values"
    ]
    held = account(PRESETS["llama-3-8b"], 2, 4096, Recipe(buckets="beside"), Layout(dp=8, zero=1))
    assert values["peak_gb"] == held.peak_bytes / 1e9
    assert values["peak_gib"] == held.peak_bytes / 2**30
    assert sum(values[f"{kind}_gb"] for kind in KINDS) == pytest.approx(values["peak_gb"], rel=1e-12)
    assert values["of_device"] == held.peak_bytes / DEVICES["h100-sxm"].memory_bytes
    assert values["fits"] is allocator.fits(held.peak_bytes, DEVICES["h100-sxm"].memory_bytes)


def test_bars_are_to_scale():
    held = account(PRESETS["llama-2-7b"], 1, 2048)
    rows = bars(views.render("memory", {})["svg"])
    assert len(rows) == len(held.moments) == 6
    widest = sum(rows[list(held.moments).index(held.peak_moment)].values())
    for row, kinds in zip(rows, held.moments.values(), strict=True):
        assert sum(row.values()) / widest == pytest.approx(sum(kinds.values()) / held.peak_bytes, abs=2e-3)
        for kind, width in row.items():
            assert width / widest == pytest.approx(kinds[kind] / held.peak_bytes, abs=1e-3)


def test_every_kind_has_a_colour_and_every_preset_a_name():
    assert set(memory.COLOURS) == set(KINDS)
    assert len(set(memory.COLOURS.values())) == len(KINDS)
    assert set(NAMES) == set(PRESETS)


def test_sentence_says_fit_and_lever():
    small = views.render("memory", {"model": "gpt2", "seq": 1024})
    assert small["values"]["fits"] and "It fits on one H100" in small["sentence"]
    large = views.render("memory", {})
    assert not large["values"]["fits"] and "It does not fit: 1.58 times what one H100" in large["sentence"]
    assert "The largest part is optimizer (40%). Try ZeRO-" in large["sentence"]


def test_a_position_table_cuts_the_sequence_and_says_so():
    asked = views.render("memory", {"model": "gpt2", "seq": 131072})
    assert asked["values"] == views.render("memory", {"model": "gpt2", "seq": 1024})["values"]
    assert "1,024 positions" in asked["sentence"]
