"""A view with every kind of control, for the tests of the machinery. It is not part of the book."""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.exercises.engine.function import FILE
from scaleout.views import code, guess, number, play, select, slider, toggle

TITLE = "Every kind of control"

CODE = "def height(x):\n    return x * x\n"

CONTROLS = (
    guess(label="How tall is the last bar?", unit="mm", answer="last"),
    slider("count", "Bars", 6, 2, 12, help="How many bars there are."),
    slider("gain", "Gain", 8.0, 0.001, 1000.0, step=0.001, unit="mm", log=True),
    select("hue", "Colour", "c1", [("c1", "blue"), ("c2", "orange"), ("c3", "green")]),
    select("power", "Power", 1, [(1, "one"), (2, "two")]),
    toggle("frame", "Show a frame", False, help="A line around the picture."),
    number("offset", "Offset", 1.5, -10.0, 10.0, step=0.5, unit="mm"),
    play("time", "Time", 0, 0, 5, unit="s"),
    code("source", "The height of bar x", CODE),
)


def draw(params: dict) -> dict:
    space: dict = {}
    exec(compile(params["source"], FILE, "exec"), space)
    raw = [float(space["height"]((x + params["time"]) / 10)) for x in range(params["count"])]
    heights = [params["offset"] + params["gain"] * height ** params["power"] for height in raw]
    top = max(1e-9, *(abs(h) for h in heights))
    wide = 440 / params["count"]
    bars = [
        svg.rect(20 + i * wide, 200 - 180 * abs(h) / top, wide * 0.8, 180 * abs(h) / top, params["hue"])
        for i, h in enumerate(heights)
    ]
    if params["frame"]:
        bars += [svg.line(10, y, 470, y, "ink") for y in (10, 210)]
    words = f"{params['count']} bars; the last is {heights[-1]:.3f} mm tall."
    label = svg.text(20, 235, "x from left to right")
    return {
        "svg": svg.figure(480, 250, "".join(bars) + label, words),
        "sentence": words,
        "values": {"heights": heights, "last": heights[-1]},
    }
