"""The picture of the view `tensor`: a block, and beneath it the bytes sent, the memory per GPU and the time."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw import ribbon, svg
from scaleout.views.tensor import beneath, record
from scaleout.views.tensor.scene import LAST, LETTERS, NAMES
from scaleout.views.tensor.setting import SHORT, Setting
from scaleout.words.amounts import amount

KEY = {svg.WIDE: "Solid: GPU {}. Strips: one part per GPU. Stack: copies. Hatched: partial sums",
       svg.NARROW: "Solid: GPU {}. Hatched: partial sums"}  # fmt: skip


@dataclass(frozen=True)
class Places:
    """Heights, in CSS pixels: of each half its title, its middle and its way back; of the wire's cells, of the bars of
    memory and of seconds, and of the picture."""

    attention: tuple[float, float, float]
    mlp: tuple[float, float, float]
    wire: float
    memory: float
    seconds: float
    height: float


PLACES = {
    svg.WIDE: Places((13, 70, 122), (146, 218, 304), 340, 410, 410, 468),
    svg.NARROW: Places((12, 53, 94), (118, 158, 218), 244, 300, 352, 400),
}


def picture(setting: Setting, step: int, lit: int, values: dict, width: int, run: dict | None) -> str:
    """The whole picture, at a moment. lit: the GPU whose parts are solid; run: a reader's."""
    places, halves = PLACES[width], setting.scene.halves(step)
    cells = [
        beneath.Cell(LETTERS[move.collective], item.forward, move.sent / setting.all_reduce_bytes, item.label(move))
        for item in setting.scene.moments
        for move in item.moves
    ]
    waits = [beneath.Wait(text, link, *setting.seconds(link), link == setting.link) for link, text in SHORT.items()]
    point = record.point(run, setting.sequence) if run else None
    body = [
        _ribbon(halves, values["troubles"], lit, width, True),
        beneath.memory(*setting.held_bytes, setting.alone, *_memory(places, width)),
        beneath.seconds(
            waits,
            values["overlap"],
            296.0 if width == svg.WIDE else beneath.LEFT,
            places.seconds,
            width - beneath.LEFT,
            width,
            point,
        ),
        _pulse(setting, step, width),
        beneath.wire(cells, values["messages_so_far"], setting.all_reduce_bytes, NAMES, places.wire, width),
    ]
    label = (
        f"A transformer block split over {setting.tp} GPUs: each tensor as copies, parts or partial sums, and the "
        f"collectives of the forward and backward pass. Each GPU sends {amount(setting.sent, 10**9)}. "
        f"{' '.join(item.trouble for item in halves)}"
    ).strip()
    run_height = beneath.RUN_HEIGHT if run and width == svg.WIDE else 0
    return svg.figure(width, places.height + run_height, "".join(body), label)


def locked(setting: Setting, width: int) -> str:
    """The block and its cut, without a collective, a byte sent or a second."""
    places = PLACES[width]
    halves = setting.scene.halves(None)
    body = [
        _ribbon(halves, {}, 0, width, False),
        beneath.memory(*setting.held_bytes, setting.alone, *_memory(places, width)),
        beneath.wire((), 0, setting.all_reduce_bytes, NAMES, places.wire, width, locked=True),
    ]
    label = f"A transformer block split over {setting.tp} GPUs, each tensor as copies, parts or partial sums."
    return svg.figure(width, places.height, "".join(body), label)


def _ribbon(halves: list[ribbon.Half], troubles: dict[str, str], lit: int, width: int, alive: bool) -> str:
    places, parts = PLACES[width], []
    for half_drawn in halves:
        title, middle, backward_y = places.attention if half_drawn.name == "attention" else places.mlp
        parts.append(svg.text(2, title, half_drawn.title, bold=True))
        x = 2 + svg.measure(half_drawn.title, bold=True) + 8
        trouble = troubles.get(half_drawn.name, "")
        if trouble:
            parts.append(svg.text(x, title, trouble, fill="accent", size=svg.SMALL, bold=True))
        elif half_drawn.name == "attention":
            parts.append(svg.text(x, title, KEY[width].format(lit), fill="muted", size=svg.SMALLEST))
        parts.append(ribbon.half(half_drawn, middle, backward_y, width, lit, alive))
    return "".join(parts)


def _pulse(setting: Setting, step: int, width: int) -> str:
    moment = setting.scene.moments[step]
    _, middle, backward_y = getattr(PLACES[width], moment.half)
    return ribbon.pulse(moment.place, moment.forward, middle, backward_y, width, step < LAST)


def _memory(places: Places, width: int) -> tuple[float, float, float]:
    return (beneath.LEFT, places.memory, 262.0 if width == svg.WIDE else width - 2 * beneath.LEFT)
