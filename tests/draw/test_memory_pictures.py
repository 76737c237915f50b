"""The pictures of rung 01: bars are as high as the account, cells are full where bytes are, rows are to scale."""

import re
import xml.etree.ElementTree as ET

import pytest

from scaleout.draw import dealt, kinds, moments, stacks, svg
from scaleout.memory.accounts import account
from scaleout.memory.allocator import usable
from scaleout.spec.devices import DEVICES
from scaleout.spec.transformer import PRESETS

SVG = "{http://www.w3.org/2000/svg}"
WIDTHS = (680, 354)
SHAPE = PRESETS["gpt2-large"]


def filled(picture):
    """(colour, x, width, height) of each bar that has a fill of its own."""
    return [(one.get("fill"), *(float(one.get(name)) for name in ("x", "width", "height")))
            for one in ET.fromstring(picture).iter(f"{SVG}rect") if one.get("fill") not in (None, "none")]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_bar_is_as_high_as_its_moment_and_the_fullest_is_named(width):
    found = {n: account(SHAPE, n, 1024) for n in moments.SEQUENCES}
    picture = moments.opening(width)
    high = 190 if width > 500 else 150
    above = usable(DEVICES["rtx-4090"].memory_bytes) / (1 - moments.WORDS / high)
    scale = high / max(above, 1.08 * max(one.peak_bytes for one in found.values()))
    drawn = sum(height for fill, *_, height in filled(picture) if fill == svg.colour("c3"))
    held = sum(kinds.apart(one, moment)["activations"] for one in found.values() for moment in one.moments)
    assert drawn - 10 == pytest.approx(scale * held, abs=1)  # the key has a swatch of 10
    assert "1 sequence: fullest at the update, 15.5 GB; 8 sequences: fullest at the loss, 31.0 GB" in picture
    assert picture.count(">fullest<") == 2


def test_a_first_step_has_no_averages_before_its_update():
    found = account(SHAPE, 2, 1024)
    first = moments.step("first", found, without=["optimizer"])
    assert first.total("loss") == sum(found.moments["loss"].values()) - found.states["optimizer"]
    assert first.total("optimizer") == sum(found.moments["optimizer"].values())
    with pytest.raises(ValueError, match="no step"):
        moments.draw(680, [])


@pytest.mark.parametrize("width", WIDTHS)
def test_as_many_cells_are_full_as_the_bytes_fill(width):
    each = usable(DEVICES["h100-sxm"].memory_bytes)
    picture = dealt.opening(width)
    cells = [float(one.get("width")) for one in ET.fromstring(picture).iter(f"{SVG}rect") if one.get("fill") == "none"]
    assert len(cells) == 96
    swatches = 4 * 10  # of the key, which are bars as well
    assert (sum(wide for _, _, wide, _ in filled(picture)) - swatches) / cells[0] == pytest.approx(
        16 * 405e9 / each, abs=0.02)  # fmt: skip


def test_pieces_are_cut_where_a_gpu_is_full_and_none_is_lost():
    found = dealt.pieces([("weights", 25.0), ("optimizer", 10.0)], 10.0)
    assert [(one.kind, one.start, one.end) for one in found] == [
        ("weights", 0.0, 1.0), ("weights", 1.0, 2.0), ("weights", 2.0, 2.5), ("optimizer", 2.5, 3.0),
        ("optimizer", 3.0, 3.5)]  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_on_one_scale_and_over_the_limit_is_hatched(width):
    rows = [stacks.Row("a", (("weights", 30.0), ("activations", 30.0)), "60"),
            stacks.Row("b", (("weights", 15.0),), "15")]
    picture = stacks.draw(width, rows, "Bytes.", limit=("room: 50", 50.0))
    long, short = [wide for fill, _, wide, high in filled(picture) if fill == svg.colour("c1") and high == stacks.THICK]
    assert long == pytest.approx(2 * short, abs=0.02)
    over = re.findall(r'width="([\d.]+)"[^>]*data-mark="over"', picture)
    assert [float(one) for one in over] == pytest.approx([long / 3], abs=0.02)
    assert 'aria-label="Bytes. a: 60; b: 15."' in picture
    with pytest.raises(ValueError, match="no row"):
        stacks.draw(width, [], "")
