"""The upper part of the view `mesh`: ranks on their nodes with what each stores, and the links along each axis."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from scaleout.draw import mesh_nodes, svg
from scaleout.draw.labels import fitting
from scaleout.draw.mesh_nodes import Part
from scaleout.spec.pipeline import stages_of
from scaleout.views.base import kept
from scaleout.views.mesh import acts
from scaleout.views.mesh.frame import Frame
from scaleout.views.mesh.setting import AXES, LOOKS

ASIDE = {"tp": 0.0, "cp": -4.0, "dp": 5.0, "pp": -8.0}  # CSS pixels of an axis' wires from the middle of tiles in rows
THICK = (1.6, 8.0)  # of a wire, by the root of its share of the bytes
SHORT = {"groups": "groups", "weights": "its weights", "tokens": "its tokens", "all": "all links"}


def colour(setting, axis: str) -> str:
    """The colour of an axis' wires: those that leave a node have another."""
    return "accent" if axis in setting.crossing else "c4"


# --- who belongs to whom --------------------------------------------------------------------------------------------


@kept
def groups(setting, rank: int) -> dict[str, tuple[int, ...]]:
    """The rank's group along each axis that is shown, itself among them."""
    return {axis: setting.grid.group(rank, axis) for axis in setting.shown}


@kept
def holders(setting, rank: int) -> tuple[int, ...]:
    """The ranks that have the same weights."""
    return setting.grid.group(rank, "dp", "cp")


@kept
def workers(setting, rank: int) -> tuple[int, ...]:
    """The ranks that work on the same tokens."""
    return setting.grid.group(rank, "tp", "pp")


def meant(setting, look) -> set[int] | None:
    """The ranks that are lit; None for all."""
    if look.look == "all":
        return None
    if look.look == "groups":
        return {rank for members in groups(setting, look.rank).values() for rank in members}
    return {*(holders if look.look == "weights" else workers)(setting, look.rank)}


def wired_axes(look) -> tuple[str, ...]:
    """The axes whose wires are drawn."""
    return {"weights": ("dp", "cp"), "tokens": ("tp", "pp")}.get(look.look, AXES)


def pairs(frame: Frame, axis: str) -> list[tuple[int, int]]:
    """Neighbours along an axis of which both are drawn and lit."""
    setting, look = frame.setting, frame.look
    size, step = setting.grid.size(axis), setting.grid.stride(axis)
    if axis not in wired_axes(look) or size == 1:
        return []
    places = frame.tiles.places
    if look.look == "groups":
        members = [rank for rank in groups(setting, look.rank)[axis] if rank in places]
        return [*pairwise(members)]
    lit = meant(setting, look)
    lit_pairs = []
    for rank in places:
        if lit is None or rank in lit:  # the next of its group that is drawn
            line = (rank + k * step for k in range(1, size - rank // step % size))
            neighbour = next((member for member in line if member in places), None)
            if neighbour is not None:
                lit_pairs.append((rank, neighbour))
    return lit_pairs


# --- the drawing ----------------------------------------------------------------------------------------------------


def draw(frame: Frame, alive: bool = True) -> str:
    """Nodes, wires, tiles, and the buttons over them. alive: with buttons."""
    look = frame.look
    shown = look.other(moment=acts.MOMENTS if frame.looks else 0)
    panels, layers = _standing(frame.setting.standing, shown, frame.width, alive)
    tiles, names, buttons = layers
    wires, packets = "".join(_wires(frame, axis) for axis in AXES), _packets(frame)
    beneath, above = (packets, "") if frame.cubic else ("", packets)  # in rows there is too little between tiles
    parts = panels, wires, beneath, tiles, names, above, buttons
    return "".join(f"<g>{part}</g>" for part in parts)


@kept  # the same at every moment, and whatever is sent
def _standing(setting, look, width: int, alive: bool) -> tuple[str, tuple[str, ...]]:
    """What lies beneath the wires; over them the tiles with what is in them, the nodes' names, the buttons."""
    frame = Frame(setting, look, width)
    tiles, lit = frame.tiles, meant(setting, look)
    lit_ranks = [rank for rank in tiles.places if lit is None or rank in lit]
    unlit = [rank for rank in tiles.places if lit is not None and rank not in lit]
    part_maps = tuple({rank: part(setting, rank) for rank in tiles.places} for part in (_weights, _tokens))
    panels = "".join(mesh_nodes.panel(corners, 4.5 if frame.cubic else 2.0) for _, corners, _ in frame.panels())
    panels += _map(frame, lit) if frame.mapped else ""
    tile_parts = []
    for ranks, faded in ((unlit, True), (lit_ranks, False)):
        body = "".join(
            tiles.parts(ranks, index, part_maps[index], fill) for index, fill in enumerate(("c1", "c3")) if tiles.boxes
        )
        body += "".join(_name(frame, rank, faded) for rank in ranks)
        tile_parts += [
            tiles.frames(ranks, "grid" if faded else "muted"),
            f'<g opacity="{mesh_nodes.FADED if faded else 1}">{body}</g>',
        ]
    if look.look != "all" and look.rank in tiles.places:
        tile_parts.append(mesh_nodes.ring(*tiles.places[look.rank], tiles.width, tiles.height, mark="lit"))
    return panels, ("".join(tile_parts), _node_names(frame), _buttons(frame) if alive else "")


def _wires(frame: Frame, axis: str) -> str:
    setting, look = frame.setting, frame.look
    sent = setting.traffic(stage(setting, look.rank))
    most_bytes = max(flow.bytes for flow in sent.values()) or 1.0
    width = THICK[0] + (THICK[1] - THICK[0]) * (sent[axis].bytes / most_bytes) ** 0.5
    last, _ = acts.around(setting.layout, look.moment)
    pale = 0.25 if look.moment < acts.MOMENTS and not (last and last.axis == axis) else 1.0
    aside = 0.0 if frame.cubic else ASIDE[axis] * (1 if frame.wide else 0.7)
    return frame.tiles.wires(pairs(frame, axis), colour(setting, axis), width, aside, pale)


def _packets(frame: Frame) -> str:
    """What the act shown has brought, and what the next will send: a dot on each wire, at the end of its way or at its
    beginning. All that go one way are one mark."""
    setting, moment = frame.setting, frame.look.moment
    parts, low, size = [], 0.0, 11.0
    if not frame.cubic:
        low, size = frame.tiles.height / 2 - 4, 7.0
    for act, number, arrived in zip(
        acts.around(setting.layout, moment), (moment - 1, moment), (True, False), strict=True
    ):
        if not act:
            continue
        wires = pairs(frame, act.axis)
        for way in ("to", "from") if wires else ():
            ends = [a if (way == "to") != arrived else b for a, b in wires]
            parts.append(frame.tiles.dots(ends, colour(setting, act.axis), low, size, f"p{number} {way}"))
    return "".join(parts)


def stage(setting, rank: int) -> int:
    """The pipeline stage of a rank."""
    return setting.grid.coordinates(rank)["pp"]


def _weights(setting, rank: int) -> Part:
    """Rows are stages, columns the parts of a block; of ZeRO 3 the piece that a replica keeps."""
    coordinates, layout = setting.grid.coordinates(rank), setting.layout
    mine = stages_of(layout.schedule, coordinates["pp"], layout.pp, layout.chunks)
    share = (layout.replicas, coordinates["dp"] * layout.cp + coordinates["cp"]) if layout.zero == 3 else (1, 0)
    return Part(layout.stages, layout.tp, mine, coordinates["tp"], share)


def _tokens(setting, rank: int) -> Part:
    """Rows are parts of the batch, columns parts of a sequence."""
    coordinates = setting.grid.coordinates(rank)
    return Part(setting.layout.dp, setting.layout.cp, (coordinates["dp"],), coordinates["cp"])


def _name(frame: Frame, rank: int, faded: bool) -> str:
    (x, y), tiles, look = frame.tiles.places[rank], frame.tiles, frame.look
    shared = "" if faded or look.look != "groups" else shared_axis(frame.setting, look.rank, rank)
    if frame.cubic:
        words = f"rank {rank}" + (f" {shared}" if shared else "")
        right, drop = (8, 15) if frame.wide else (6, 13)
        return svg.text(x + right, y + drop, words, bold=True, size=svg.SMALLEST)
    if frame.wide:
        words = fitting([f"{rank} {shared}".strip(), str(rank)], tiles.width - 4, svg.SMALLEST, bool(shared))
        return svg.text(x + tiles.width / 2, y + 11, words, anchor="middle", size=svg.SMALLEST, bold=bool(shared))
    x += tiles.width / 2
    top = y + (11 if shared or tiles.boxes else 15)
    number = svg.text(x, top, str(rank), anchor="middle", size=svg.SMALLEST, bold=bool(shared))
    return number + (svg.text(x, y + 21, shared, anchor="middle", size=svg.SMALLEST) if shared else "")


def shared_axis(setting, rank: int, neighbour: int) -> str:
    """The axis along which two ranks differ and no other, as it is called; "" where there is none."""
    if rank == neighbour:
        return ""
    a, b = setting.grid.coordinates(rank), setting.grid.coordinates(neighbour)
    differ = [axis for axis in a if a[axis] != b[axis]]
    return differ[0].upper() if len(differ) == 1 else ""


def _node_names(frame: Frame) -> str:
    parts, rows_named = [], set()
    for node, _, (x, y, anchor) in frame.panels():
        if frame.cubic:
            parts.append(svg.text(x, y, f"node {node}", anchor=anchor, bold=True, size=svg.SMALLEST, halo=True))
        elif frame.wide and y not in rows_named:  # of several nodes in a row, the first
            rows_named.add(y)
            parts.append(svg.text(x, y, f"node {node:,}", size=svg.SMALLEST, fill="muted"))
    return "".join(parts)


# --- what is pressed ------------------------------------------------------------------------------------------------


def _buttons(frame: Frame) -> str:
    tiles, look = frame.tiles, frame.look
    parts = []
    for rank, (x, y) in tiles.places.items():
        chosen = look.look == "groups" and look.rank == rank
        box = (x, y, tiles.width, tiles.height)
        if tiles.height < 27:
            box = (x, y - (27 - tiles.height) / 2, tiles.width, 27)
        label = f"rank {rank}: {'all links again' if chosen else 'ranks it communicates with'}"
        parts.append(svg.press("", box, "rank", rank, label, f"r{rank}", look="all" if chosen else "groups"))
        if frame.cubic:
            parts += [
                svg.press(
                    "",
                    (x + k * tiles.width / 2, y + tiles.height - 27, tiles.width / 2, 27),
                    "rank",
                    rank,
                    f"{look_name} of rank {rank}: {LOOKS[look_name]}",
                    f"{look_name} {rank}",
                    look=look_name,
                )
                for k, look_name in enumerate(("weights", "tokens"))
            ]
    parts += [] if frame.cubic or not frame.looks else [_looks(frame)]
    return "".join([*parts, *([_blocks(frame)] if frame.mapped else [])])


def _looks(frame: Frame) -> str:
    """Words that light what the rank has in common with others; the one that is lit is underlined."""
    parts, x = [], 62.0 if frame.wide else 4.0
    for look_name, words in SHORT.items():
        chosen = look_name == frame.look.look
        wide = svg.measure(words, svg.SMALL, bold=chosen)
        body = svg.text(x + 6, 15, words, size=svg.SMALL, bold=chosen, fill="ink" if chosen else "key")
        body += svg.line(x + 6, 20, x + 6 + wide, 20, "key", 2) if chosen else ""
        label = f"{LOOKS[look_name]}{', shown' if chosen else ''}"
        parts.append(svg.press(body, (x, -2, wide + 12, 27), "look", look_name, label, f"look {look_name}"))
        x += wide + 18
    return "".join(parts)


# --- many nodes -----------------------------------------------------------------------------------------------------


def _map(frame: Frame, lit: Iterable[int] | None) -> str:
    """All nodes, and on them what is lit, by the axis."""
    cells, setting, look = frame.cells, frame.setting, frame.look
    words = f"all {setting.nodes:,} nodes; those above are marked; press to go there"
    parts = [svg.text(cells.x, cells.y - 6, words, size=svg.SMALLEST, fill="muted"), cells.draw()]
    node_gpus = setting.node
    if look.look == "groups":
        for axis in setting.shown:
            nodes = {rank // node_gpus for rank in groups(setting, look.rank)[axis]}
            parts.append(cells.lit(nodes, colour(setting, axis), 0.55 if axis == "dp" else 1.0))
    elif lit is not None:
        parts.append(cells.lit({rank // node_gpus for rank in lit}, "c1" if look.look == "weights" else "c3"))
    parts.append(cells.lit(frame.nodes, "ink"))
    return "".join(parts)


def _blocks(frame: Frame) -> str:
    """Buttons as small as a finger finds, each of the node in its middle."""
    cells, node_gpus = frame.cells, frame.setting.node
    full_width, high = cells.pitch[0] * cells.columns, cells.bottom - cells.y
    look = "groups" if frame.look.look == "all" else frame.look.look
    columns, rows = min(cells.columns, int(full_width / 44)), max(1, min(3, int(high / 28)))
    wide, tall = full_width / columns, max(27.0, high / rows)
    parts = []
    for row in range(rows):
        for column in range(columns):
            x, y = cells.x + column * wide, cells.y + row * high / rows
            node = cells.at(x + wide / 2, y + high / rows / 2)
            rank = node * node_gpus
            parts.append(
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
    return "".join(parts)
