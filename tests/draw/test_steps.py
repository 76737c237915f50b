"""Steps drawn under one another: each is to scale on the axis that they share, and the label has its seconds."""

import xml.etree.ElementTree as ET

import pytest

from scaleout.draw import steps
from scaleout.timing.ddp import Layer, ddp_step

SVG = "{http://www.w3.org/2000/svg}"
LAYERS = [Layer(f"l{i}", 0.1, 0.2, 30 * 2**20) for i in range(4)]


def step(rate):
    return ddp_step(LAYERS, lambda size: size / rate)


@pytest.mark.parametrize("width", [680, 354])
def test_each_step_is_as_wide_as_its_seconds(width):
    fast, slow = step(1e9), step(5e7)
    picture = steps.draw(width, [("fast", fast), ("slow", slow)])
    root = ET.fromstring(picture)
    scale = (width - 2 * steps.LEFT) / (1.12 * slow.seconds)
    rows = {}
    for one in root.iter(f"{SVG}rect"):
        if one.find(f"{SVG}title") is not None:
            rows.setdefault(float(one.get("y")), []).append(float(one.get("x")) + float(one.get("width")))
    ends = [max(rows[y]) for y in sorted(rows)]  # compute and wire of the first, then of the second
    sent = [one.passes[0].messages[-1][1] for one in (fast, slow)]
    wanted = [fast.seconds, sent[0], slow.seconds, sent[1]]
    assert [(end - steps.LEFT) / scale for end in ends] == pytest.approx(wanted, abs=0.01)
    assert f"slow: {slow.seconds:.2f} s, of which {slow.exposed_seconds:.2f} s exposed." in root.get("aria-label")


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="no step"):
        steps.draw(680, [])
