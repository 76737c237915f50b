"""A view with every kind of control, for the tests of the machinery. It is not part of the book."""

from __future__ import annotations

from scaleout.draw import guess as hand
from scaleout.draw import svg
from scaleout.exercises.engine.function import FILE
from scaleout.views import arrange, code, guess, more, number, play, rows_of, select, slider, toggle

TITLE = "Every kind of control"

CODE = "def height(x):\n    return x * x\n"
LETTERS = [(letter, f"the letter {letter} of an alphabet") for letter in "abcdef"]

CONTROLS = (
    guess("How **tall** is the last bar?", "last", "mm", lo=0, hi=6, step=0.1),
    slider("count", "Bars", 6, 2, 12, help="How many bars there are."),
    slider("gain", "Gain", 8.0, 0.001, 1000.0, step=0.001, unit="mm", log=True),
    select("hue", "Colour", "c1", [("c1", "blue"), ("c2", "orange"), ("c3", "green")]),
    select("power", "Power", 1, [(1, "one"), (2, "two")]),
    *more(
        select("letter", "Letter", "a", LETTERS),
        toggle("frame", "Show a frame", False, help="A line around the picture."),
        number("offset", "Offset", 1.5, -10.0, 10.0, step=0.5, unit="mm"),
        code("source", "The height of bar x", CODE),
        arrange("order", "Order of the blocks", [["a", "b", "c"], ["b", "c"]]),
    ),
    play("time", "Time", 0, 0, 5, unit="s"),
)


def measured(record: dict) -> dict:
    if not isinstance(record.get("height"), (int, float)):
        raise ValueError("this is no Record of the specimen: its height is missing")
    return {"height": record["height"]}


def draw(params: dict, width: int, own: dict | None) -> dict:
    heights = _heights(params)
    words = f"{params['count']} bars; the last is {heights[-1]:.3f} mm tall."
    return {
        "svg": _picture(params, width, heights, own, words),
        "sentence": f"{words} Try **two** as the power.",
        "values": {"heights": heights, "last": heights[-1], "own": own and own["height"], "order": params["order"]},
        "law": ["the last of them:", f"{heights[-1]:.3f} mm", "and no more"],
        "levers": {
            "time": {"hi": min(5, params["count"])},
            **({"letter": {"off": "There are no letters without a frame."}} if not params["frame"] else {}),
        },
    }


def locked(params: dict, width: int) -> str:
    return _picture(params, width, [], None, "an empty picture")


def slips(params: dict) -> list[tuple[float, str]]:
    return [(7, "one for each day of the week")]


def _heights(params: dict) -> list[float]:
    space: dict = {}
    exec(compile(params["source"], FILE, "exec"), space)
    raw = [float(space["height"]((x + params["time"]) / 10)) for x in range(params["count"])]
    return [params["offset"] + params["gain"] * height ** params["power"] for height in raw]


def _picture(params: dict, width: int, heights: list[float], own: dict | None, words: str) -> str:
    top = max(1e-9, *(abs(h) for h in heights)) if heights else 6
    pitch = (width - 40) / params["count"]
    tall = [180 * abs(h) / top for h in heights]
    bars = [
        svg.rect(20 + i * pitch, 200 - high, pitch * 0.8, high, params["hue"], mark=f"bar-{i}")
        for i, high in enumerate(tall)
    ]
    if params["frame"]:
        bars += [svg.line(10, y, width - 10, y, "ink") for y in (10, 210)]
    if own:
        bars.append(svg.text(20, 225, f"your run: {own['height']:g} mm", fill="key", size=svg.SMALL))
    if heights:
        bars.append(_hands(params))
    label = svg.text(20, 245, "x from left to right")
    return svg.figure(width, 260, "".join([*bars, label, hand.mark([(0, 200), (6, 20)], (10, width - 10))]), words)


def _hands(params: dict) -> str:
    """A button for the frame, and two rows of blocks to put into another order."""
    words, to = ("no frame", False) if params["frame"] else ("a frame", True)
    out = [svg.press(svg.text(150, 236, words), (145, 219, 68, 26), "frame", to, f"Draw {words}", "frame")]
    for row, (left, items) in enumerate(zip((220, 304), rows_of(params["order"]), strict=True)):
        for at, item in enumerate(items):
            body = svg.rect(0, 0, 24, 24, "grid") + svg.text(12, 17, item, anchor="middle")
            named = f"block {item} of row {row + 1}", f"{item}{row}"
            out.append(svg.movable(left + 26 * at, 220, body, (24, 24), "order", row, item, *named))
    return "".join(out)
