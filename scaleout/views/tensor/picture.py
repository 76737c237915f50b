"""The picture of the view `tensor`: the ribbon of a block, and beneath it the wire, what a GPU holds, the seconds."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw import ribbon, svg
from scaleout.draw.amounts import amount
from scaleout.views.tensor import beneath, record
from scaleout.views.tensor.scene import LAST, LETTERS, NAMES
from scaleout.views.tensor.setting import SHORT, Setting

KEY = {svg.WIDE: "solid: GPU {}'s part. Strips: parts. Stack: copies. Hatched: sums still to be made",
       svg.NARROW: "solid: GPU {}'s. Hatched: sums to be made"}  # fmt: skip


@dataclass(frozen=True)
class Places:
    """Heights, in CSS pixels: of each half its title, its middle and its way back; of the wire's cells, of the bars of
    memory and of seconds, and of the picture."""

    attention: tuple[float, float, float]
    mlp: tuple[float, float, float]
    wire: float
    memory: float
    seconds: float
    all: float


PLACES = {
    svg.WIDE: Places((13, 70, 122), (146, 218, 304), 340, 410, 410, 468),
    svg.NARROW: Places((12, 53, 94), (118, 158, 218), 244, 300, 352, 400),
}


def picture(setting: Setting, step: int, lit: int, values: dict, width: int, own: dict | None) -> str:
    """All of it, at a moment. lit: the GPU whose parts are solid; own: a reader's run."""
    at, halves = PLACES[width], setting.scene.halves(step)
    cells = [
        beneath.Cell(LETTERS[move.collective], one.forward, move.sent / setting.one, one.said(move))
        for one in setting.scene.moments
        for move in one.moves
    ]
    waits = [beneath.Wait(said, link, *setting.seconds(link), link == setting.link) for link, said in SHORT.items()]
    body = [
        _ribbon(halves, values["troubles"], lit, width, True),
        beneath.memory(*setting.held, setting.alone, *_memory(at, width)),
        beneath.seconds(
            waits, values["overlap"], *_seconds(at, width), width, own and record.point(own, setting.sequence)
        ),
        _pulse(setting, step, width),
        beneath.wire(cells, values["messages_so_far"], setting.one, NAMES, at.wire, width),
    ]
    label = (
        f"A transformer block cut among {setting.tp} GPUs: each tensor as copies, strips or terms of a sum, and the "
        f"collectives of forward and backward. Each GPU sends {amount(setting.sent, 10**9)}. "
        f"{' '.join(one.trouble for one in halves)}"
    ).strip()
    more = beneath.OWN if own and width == svg.WIDE else 0
    return svg.figure(width, at.all + more, "".join(body), label)


def asked(setting: Setting, width: int) -> str:
    """The block and its cut, without a collective, a byte sent or a second."""
    at = PLACES[width]
    halves = setting.scene.halves(None)
    body = [
        _ribbon(halves, {}, 0, width, False),
        beneath.memory(*setting.held, setting.alone, *_memory(at, width)),
        beneath.wire((), 0, setting.one, NAMES, at.wire, width, asked=True),
    ]
    label = f"A transformer block cut among {setting.tp} GPUs, each tensor as copies, strips or terms of a sum."
    return svg.figure(width, at.all, "".join(body), label)


def _ribbon(halves: list[ribbon.Half], troubles: dict[str, str], lit: int, width: int, alive: bool) -> str:
    at, out = PLACES[width], []
    for one in halves:
        title, middle, back = at.attention if one.name == "attention" else at.mlp
        out.append(svg.text(2, title, one.title, bold=True))
        x = 2 + svg.measure(one.title, bold=True) + 8
        trouble = troubles.get(one.name, "")
        if trouble:
            out.append(svg.text(x, title, trouble, fill="accent", size=svg.SMALL, bold=True))
        elif one.name == "attention":
            out.append(svg.text(x, title, KEY[width].format(lit), fill="muted", size=svg.SMALLEST))
        out.append(ribbon.half(one, middle, back, width, lit, alive))
    return "".join(out)


def _pulse(setting: Setting, step: int, width: int) -> str:
    now = setting.scene.moments[step]
    _, middle, back = getattr(PLACES[width], now.half)
    return ribbon.pulse(now.at, now.forward, middle, back, width, step < LAST)


def _memory(at: Places, width: int) -> tuple[float, float, float]:
    return (beneath.LEFT, at.memory, 262.0 if width == svg.WIDE else width - 2 * beneath.LEFT)


def _seconds(at: Places, width: int) -> tuple[float, float, float]:
    return (296.0 if width == svg.WIDE else beneath.LEFT, at.seconds, width - beneath.LEFT)
