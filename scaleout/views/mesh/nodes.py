"""The upper part of the view `mesh`: ranks on their nodes with what each holds, and the wires along each axis."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

from scaleout.draw import mesh_nodes, svg
from scaleout.draw.labels import fitting
from scaleout.draw.mesh_nodes import Part
from scaleout.spec.pipeline import stages_of
from scaleout.views.mesh import acts
from scaleout.views.mesh.frame import Frame
from scaleout.views.mesh.setting import AXES, LOOKS, Look

ASIDE = {"tp": 0.0, "cp": -4.0, "dp": 5.0, "pp": -8.0}  # CSS pixels of an axis' wires from the middle of tiles in rows
THICK = (1.6, 8.0)  # of a wire, by the root of its share of the bytes
SHORT = {"groups": "groups", "weights": "its weights", "tokens": "its tokens", "all": "all wires"}


def colour(setting, axis: str) -> str:
    """Of an axis' wires: those that leave a node are told apart."""
    return "accent" if axis in setting.crossing else "c4"


# --- who belongs to whom --------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def groups(setting, rank: int) -> dict[str, tuple[int, ...]]:
    """The rank's group along each axis that is told, itself among them."""
    return {axis: setting.grid.group(rank, axis) for axis in setting.shown}


@lru_cache(maxsize=32)
def holders(setting, rank: int) -> tuple[int, ...]:
    """Who has the same weights."""
    return setting.grid.group(rank, "dp", "cp")


@lru_cache(maxsize=32)
def workers(setting, rank: int) -> tuple[int, ...]:
    """Who works on the same tokens."""
    return setting.grid.group(rank, "tp", "pp")


def meant(setting, look) -> set[int] | None:
    """The ranks that are lit; None for all."""
    if look.what == "all":
        return None
    if look.what == "groups":
        return {rank for some in groups(setting, look.rank).values() for rank in some}
    return {*(holders if look.what == "weights" else workers)(setting, look.rank)}


def told(look) -> tuple[str, ...]:
    """The axes whose wires are drawn."""
    return {"weights": ("dp", "cp"), "tokens": ("tp", "pp")}.get(look.what, AXES)


def pairs(frame: Frame, axis: str) -> list[tuple[int, int]]:
    """Neighbours along an axis of which both are drawn and lit."""
    setting, look = frame.setting, frame.look
    size, step = setting.grid.size(axis), setting.grid.stride(axis)
    if axis not in told(look) or size == 1:
        return []
    places = frame.tiles.places
    if look.what == "groups":
        some = [rank for rank in groups(setting, look.rank)[axis] if rank in places]
        return [*pairwise(some)]
    lit = meant(setting, look)
    out = []
    for rank in places:
        if lit is None or rank in lit:  # the next of its group that is drawn
            line = (rank + k * step for k in range(1, size - rank // step % size))
            there = next((one for one in line if one in places), None)
            if there is not None:
                out.append((rank, there))
    return out


# --- the drawing ----------------------------------------------------------------------------------------------------


def draw(frame: Frame, alive: bool = True) -> str:
    """Nodes, wires, tiles, and the buttons over them. alive: with buttons."""
    look = frame.look
    shown = Look(look.rank, look.what, acts.MOMENTS if frame.looks else 0)
    under, over = _standing(frame.setting.standing, shown, frame.width, alive)
    tiles, names, buttons = over
    wires, packets = "".join(_wires(frame, axis) for axis in AXES), _packets(frame)
    beneath, above = (packets, "") if frame.cubic else ("", packets)  # in rows there is too little between tiles
    parts = under, wires, beneath, tiles, names, above, buttons
    return "".join(f"<g>{part}</g>" for part in parts)


@lru_cache(maxsize=8)  # the same at every moment, and whatever is sent
def _standing(setting, look, width: int, alive: bool) -> tuple[str, tuple[str, ...]]:
    """What lies beneath the wires; over them the tiles with what is in them, the nodes' names, the buttons."""
    frame = Frame(setting, look, width)
    tiles, lit = frame.tiles, meant(setting, look)
    some = [rank for rank in tiles.places if lit is None or rank in lit]
    rest = [rank for rank in tiles.places if lit is not None and rank not in lit]
    of = tuple({rank: part(setting, rank) for rank in tiles.places} for part in (_weights, _tokens))
    under = "".join(mesh_nodes.panel(corners, 4.5 if frame.cubic else 2.0) for _, corners, _ in frame.panels())
    under += _map(frame, lit) if frame.mapped else ""
    out = []
    for ranks, faded in ((rest, True), (some, False)):
        body = "".join(
            tiles.parts(ranks, which, of[which], fill) for which, fill in enumerate(("c1", "c3")) if tiles.boxes
        )
        body += "".join(_name(frame, rank, faded) for rank in ranks)
        out.append(tiles.frames(ranks, "grid" if faded else "muted"))
        out.append(f'<g opacity="{mesh_nodes.FADED if faded else 1}">{body}</g>')
    if look.what != "all" and look.rank in tiles.places:
        out.append(mesh_nodes.ring(*tiles.places[look.rank], tiles.width, tiles.height, mark="lit"))
    return under, ("".join(out), _node_names(frame), _buttons(frame) if alive else "")


def _wires(frame: Frame, axis: str) -> str:
    setting, look = frame.setting, frame.look
    sent = setting.traffic(stage(setting, look.rank))
    most = max(one.bytes for one in sent.values()) or 1.0
    width = THICK[0] + (THICK[1] - THICK[0]) * (sent[axis].bytes / most) ** 0.5
    last, _ = acts.at(setting.layout, look.moment)
    pale = 0.25 if look.moment < acts.MOMENTS and not (last and last.axis == axis) else 1.0
    return frame.tiles.wires(pairs(frame, axis), colour(setting, axis), width, _aside(frame, axis), pale)


def _aside(frame: Frame, axis: str) -> float:
    return 0.0 if frame.cubic else ASIDE[axis] * (1 if frame.wide else 0.7)


def _packets(frame: Frame) -> str:
    """What the act of now has brought, and what the next will send: a dot on each wire, at the end of its way or at its
    beginning. All that go one way are one mark."""
    setting, moment = frame.setting, frame.look.moment
    out, low, size = [], 0.0, 11.0
    if not frame.cubic:
        low, size = frame.tiles.height / 2 - 4, 7.0
    for act, number, there in zip(acts.at(setting.layout, moment), (moment - 1, moment), (True, False), strict=True):
        some = pairs(frame, act.axis) if act else []
        for way in ("to", "from") if some else ():
            ends = [a if (way == "to") != there else b for a, b in some]
            out.append(frame.tiles.dots(ends, colour(setting, act.axis), low, size, f"p{number} {way}"))
    return "".join(out)


def stage(setting, rank: int) -> int:
    """The pipeline stage of a rank."""
    return setting.grid.coordinates(rank)["pp"]


def _weights(setting, rank: int) -> Part:
    """Rows are stages, columns the parts of a block; of ZeRO 3 the piece that a replica keeps."""
    at, layout = setting.grid.coordinates(rank), setting.layout
    mine = stages_of(layout.schedule, at["pp"], layout.pp, layout.chunks)
    share = (layout.replicas, at["dp"] * layout.cp + at["cp"]) if layout.zero == 3 else (1, 0)
    return Part(layout.stages, layout.tp, mine, at["tp"], share)


def _tokens(setting, rank: int) -> Part:
    """Rows are parts of the batch, columns parts of a sequence."""
    at = setting.grid.coordinates(rank)
    return Part(setting.layout.dp, setting.layout.cp, (at["dp"],), at["cp"])


def _name(frame: Frame, rank: int, faded: bool) -> str:
    (x, y), tiles, look = frame.tiles.places[rank], frame.tiles, frame.look
    shared = "" if faded or look.what != "groups" else shared_axis(frame.setting, look.rank, rank)
    if frame.cubic:
        words = f"rank {rank}" + (f" {shared}" if shared else "")
        right, down = (8, 15) if frame.wide else (6, 13)
        return svg.text(x + right, y + down, words, bold=True, size=svg.SMALLEST)
    if frame.wide:
        words = fitting([f"{rank} {shared}".strip(), str(rank)], tiles.width - 4, svg.SMALLEST, bool(shared))
        return svg.text(x + tiles.width / 2, y + 11, words, anchor="middle", size=svg.SMALLEST, bold=bool(shared))
    x += tiles.width / 2
    top = y + (11 if shared or tiles.boxes else 15)
    out = svg.text(x, top, str(rank), anchor="middle", size=svg.SMALLEST, bold=bool(shared))
    return out + (svg.text(x, y + 21, shared, anchor="middle", size=svg.SMALLEST) if shared else "")


def shared_axis(setting, rank: int, other: int) -> str:
    """The axis along which two ranks differ and no other, as it is called; "" where there is none."""
    if rank == other:
        return ""
    a, b = setting.grid.coordinates(rank), setting.grid.coordinates(other)
    differ = [axis for axis in a if a[axis] != b[axis]]
    return differ[0].upper() if len(differ) == 1 else ""


def _node_names(frame: Frame) -> str:
    out, done = [], set()
    for node, _, (x, y, anchor) in frame.panels():
        if frame.cubic:
            out.append(svg.text(x, y, f"node {node}", anchor=anchor, bold=True, size=svg.SMALLEST, halo=True))
        elif frame.wide and y not in done:  # of several nodes in a row, the first
            done.add(y)
            out.append(svg.text(x, y, f"node {node:,}", size=svg.SMALLEST, fill="muted"))
    return "".join(out)


# --- what is pressed ------------------------------------------------------------------------------------------------


def _buttons(frame: Frame) -> str:
    tiles, look = frame.tiles, frame.look
    out = []
    for rank, (x, y) in tiles.places.items():
        again = look.what == "groups" and look.rank == rank
        box = (x, y, tiles.width, tiles.height)
        if tiles.height < 27:
            box = (x, y - (27 - tiles.height) / 2, tiles.width, 27)
        label = f"rank {rank}: {'all wires again' if again else 'whom it talks to'}"
        out.append(svg.press("", box, "rank", rank, label, f"r{rank}", look="all" if again else "groups"))
        if frame.cubic:
            out += [
                svg.press(
                    "",
                    (x + k * tiles.width / 2, y + tiles.height - 27, tiles.width / 2, 27),
                    "rank",
                    rank,
                    f"{what} of rank {rank}: {LOOKS[what]}",
                    f"{what} {rank}",
                    look=what,
                )
                for k, what in enumerate(("weights", "tokens"))
            ]
    out += [] if frame.cubic or not frame.looks else [_looks(frame)]
    return "".join([*out, *([_blocks(frame)] if frame.mapped else [])])


def _looks(frame: Frame) -> str:
    """Words that light what the rank has in common with others; the one that is lit is underlined."""
    out, x = [], 62.0 if frame.wide else 4.0
    for what, words in SHORT.items():
        now = what == frame.look.what
        wide = svg.measure(words, svg.SMALL, bold=now)
        body = svg.text(x + 6, 15, words, size=svg.SMALL, bold=now, fill="ink" if now else "key")
        body += svg.line(x + 6, 20, x + 6 + wide, 20, "key", 2) if now else ""
        label = f"{LOOKS[what]}{', shown' if now else ''}"
        out.append(svg.press(body, (x, -2, wide + 12, 27), "look", what, label, f"look {what}"))
        x += wide + 18
    return "".join(out)


# --- many nodes -----------------------------------------------------------------------------------------------------


def _map(frame: Frame, lit: Iterable[int] | None) -> str:
    """All nodes, and on them what is lit, by the axis."""
    cells, setting, look = frame.cells, frame.setting, frame.look
    words = f"all {setting.nodes:,} nodes, those above marked; press to go there"
    out = [svg.text(cells.x, cells.y - 6, words, size=svg.SMALLEST, fill="muted"), cells.draw()]
    each = setting.node
    if look.what == "groups":
        for axis in setting.shown:
            nodes = {rank // each for rank in groups(setting, look.rank)[axis]}
            out.append(cells.lit(nodes, colour(setting, axis), 0.55 if axis == "dp" else 1.0))
    elif lit is not None:
        out.append(cells.lit({rank // each for rank in lit}, "c1" if look.what == "weights" else "c3"))
    out.append(cells.lit(frame.nodes, "ink"))
    return "".join(out)


def _blocks(frame: Frame) -> str:
    """Buttons as small as a finger finds, each of the node in its middle."""
    cells, each = frame.cells, frame.setting.node
    across, high = cells.pitch[0] * cells.columns, cells.bottom - cells.y
    look = "groups" if frame.look.what == "all" else frame.look.what
    columns, rows = min(cells.columns, int(across / 44)), max(1, min(3, int(high / 28)))
    wide, tall = across / columns, max(27.0, high / rows)
    out = []
    for row in range(rows):
        for column in range(columns):
            x, y = cells.x + column * wide, cells.y + row * high / rows
            node = cells.at(x + wide / 2, y + high / rows / 2)
            rank = node * each
            out.append(
                svg.press(
                    "",
                    (x, y, wide, tall),
                    "rank",
                    rank,
                    f"node {node:,}: its rank {rank:,}",
                    f"n{row} {column}",
                    look=look,
                )
            )
    return "".join(out)
