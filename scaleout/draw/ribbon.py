"""Half of a transformer block as a ribbon: a tensor enters, meets a matrix, a function and a second matrix, and leaves
as large as it came; beneath, the way that its gradient goes back. Collectives are badges where they happen.

`sheets` has the tensors. A matrix can be pressed: it says which control that moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import accumulate

from scaleout.draw import svg
from scaleout.draw.sheets import DEPTH, Sheet, draw

THIN = 5.0  # CSS pixels: as narrow as a matrix is drawn
FAINT = 0.16  # what has not been computed yet
HIGH = 4.0  # widths of x: as wide as the first matrix has room to be drawn


@dataclass(frozen=True)
class Group:
    """Tensors that one matrix product takes or gives, side by side or one above the other, with a heading above and a
    note beneath."""

    parts: tuple[Sheet, ...]  # in widths of x, and not placed yet
    heading: str = ""
    note: str = ""
    short: str = ""  # instead of `heading` where there is little room
    press: tuple[str, str, str] | None = None  # a control, the value that pressing gives it, and that in words


@dataclass(frozen=True)
class Badge:
    """A collective: two letters, or none where only the other way has one; where ("into" the first matrix, at the
    "middle", "out of" the second), whether the data goes forward, whether it is finished, what it is in words. aside:
    badges from that place to the right, where there are two. wrong: no message belongs there.
    """

    name: str
    letters: str
    place: str
    forward: bool
    finished: bool
    title: str
    aside: float = 0.0
    wrong: bool = False


@dataclass(frozen=True)
class Half:
    """Half of a block, as drawn. function: its name; trouble: why it cannot be applied to what comes, or ""."""

    name: str
    title: str
    enters: Group
    first: Group
    product: Group
    function: str
    second: Group
    sums: Group
    leaves: Group
    trouble: str
    badges: tuple[Badge, ...]


@dataclass(frozen=True)
class Room:
    """Where things are, in CSS pixels: `unit` is the width of x, `tall` that of its tokens, `gap` around a sign."""

    width: int
    unit: float
    tall: float
    gap: float
    mid: float  # from the middle of the function to what stands beside it
    node: float  # its radius
    sums_gap: float  # from the second matrix to the sums
    badge: float  # width of a collective
    left: float

    @cached_property
    def wide(self) -> bool:
        return svg.broad(self.width)

    @cached_property
    def xs(self) -> dict[str, float]:
        """Left edges by group; "mid": the middle of the function; "out": of the badge before what leaves."""
        u, broad, badge_room = self.unit, HIGH * self.unit, self.badge / 2 + 3
        steps = (
            ("enters", u + self.gap),
            ("first", broad + self.gap),
            ("product", broad + self.mid),
            ("mid", self.mid),
            ("second", u + self.sums_gap),
            ("sums", u + DEPTH + badge_room),
            ("out", badge_room),
            ("leaves", u),
        )
        lefts = accumulate((step for _, step in steps[:-1]), initial=self.left)
        return {name: left for (name, _), left in zip(steps, lefts, strict=True)}

    def place_x(self, place: str) -> float:
        """The middle of a place of collectives."""
        return {"into": self.xs["first"] - self.gap / 2, "middle": self.xs["mid"], "out of": self.xs["out"]}[place]


ROOMS = {
    svg.WIDE: Room(svg.WIDE, 30.0, 46.0, 34.0, 38.0, 17.0, 26.0, 24.0, 10.0),
    svg.NARROW: Room(svg.NARROW, 18.0, 32.0, 17.0, 22.0, 10.0, 11.0, 20.0, 3.0),
}


def half(block: Half, y: float, backward_y: float, width: int, lit: int, alive: bool) -> str:
    """A half whose middle is at height y, with the way back at height `backward_y`. lit: the rank whose parts are
    solid; alive: its matrices can be pressed."""
    room = ROOMS[width]
    groups = [
        ("enters", block.enters),
        ("first", block.first),
        ("product", block.product),
        ("second", block.second),
        ("sums", block.sums),
        ("leaves", block.leaves),
    ]
    return "".join(
        [
            _way_back(block, y, backward_y, room),
            *(_group(group, name, block.name, y, room, lit, alive) for name, group in groups),
            _signs(block, y, room),
            _function(block, y, room),
            *(_badge(badge, y, backward_y, room) for badge in block.badges),
        ]
    )


# --- tensors ---------------------------------------------------------------------------------------------------------


def _group(group: Group, place: str, half: str, y: float, room: Room, lit: int, alive: bool) -> str:
    boxes = _boxes(group, place, y, room)
    # what a button is called must hold all words in it, those of titles too: so its parts have none
    named = [replace(part, title="") if group.press and alive else part for part in group.parts]
    marks = [_sheet(part, box, half, lit) for part, box in zip(named, boxes, strict=True)]
    top, bottom = min(box[1] for box in boxes), max(box[1] + box[3] for box in boxes)
    left, right = boxes[0][0], boxes[-1][0] + boxes[-1][2]
    stacked = any(part.copies > 1 for part in group.parts)
    if group.press:
        marks.append(_knife(group, place, half, (left, top, right - left, bottom - top), room))
    heading = group.heading if room.wide else group.short * (len(boxes) != 2)
    fill = "key" if group.press else "muted"
    raised = top - max(DEPTH if stacked else 0, 11 if group.press else 0) - 5
    marks.append(_words(heading, place, left, right, raised, fill, room))
    note = group.note if place != "sums" or room.wide else ""
    sizes = _words(note, place, left, right, bottom + 14, "muted", room)
    if not (group.press and alive):
        return "".join(marks) + sizes
    reach = max((right - left) / 2, svg.measure(heading, svg.SMALLEST) / 2) + 5
    above = 28 if heading else 14
    box = ((left + right) / 2 - reach, top - above, 2 * reach, bottom - top + above + 4)
    return svg.press("".join(marks), box, *group.press, mark=f"{half}-{place}") + sizes


def _words(words: str, place: str, left: float, right: float, y: float, fill: str, room: Room) -> str:
    """Above or beneath a group: of the first from its left edge, of the last to its right, else in the middle."""
    if not words:
        return ""
    if place == "enters":
        return svg.text(room.left - 2, y, words, fill=fill, size=svg.SMALLEST)
    if place == "leaves":
        return svg.text(right + DEPTH, y, words, fill=fill, size=svg.SMALLEST, anchor="end")
    return svg.text((left + right) / 2, y, words, fill=fill, size=svg.SMALLEST, anchor="middle")


def _boxes(group: Group, place: str, y: float, room: Room) -> list[tuple[float, float, float, float]]:
    """Side by side over the room of the group, or one above the other where each is as wide as all of it."""
    sizes = [
        (max(THIN, part.width * room.unit), part.height * room.unit if part.height else room.tall)
        for part in group.parts
    ]
    x, count = room.xs[place], len(sizes)
    broad = HIGH * room.unit if place in ("first", "product") else sizes[0][0]
    if count == 2:
        high, left = room.unit, x + (broad - sizes[0][0]) / 2
        return [(left, y - high - 2 + k * (high + 4), sizes[k][0], high) for k in range(2)]
    used = sum(width for width, _ in sizes)
    gap = min((broad - used) / (count - 1), 0.5 * room.unit) if count > 1 else 0.0
    x += (broad - used - gap * (count - 1)) / 2
    boxes = []
    for width, height in sizes:
        boxes.append((x, y - height / 2, width, height))
        x += width + gap
    return boxes


def _sheet(part: Sheet, box: tuple[float, float, float, float], half: str, lit: int) -> str:
    x, y, width, height = box
    placed = replace(part, name=f"{half}-{part.name}", x=x, y=y, width=width, height=height)
    return draw(replace(placed, lit=min(lit // part.copies, part.parts - 1)))


def _knife(group: Group, place: str, half: str, box: tuple[float, float, float, float], room: Room) -> str:
    """A line across the matrix the way that it is cut; none is as long as nothing."""
    x, y, width, height = box
    part = group.parts[0]
    if part.parts == 1:
        ends = (x + width / 2, y - 9, x + width / 2, y - 9)
    elif part.cut == "columns":
        ends = (x + width / 2, y - 9, x + width / 2, y + height + 3)
    else:
        ends = (x - 4, y + height / 2, x + width + min(7, room.sums_gap / 2 - 1), y + height / 2)
    knob = ends[:2] if part.cut == "columns" or part.parts == 1 else ends[2:]
    handle = svg.circle(*knob, 4, "key", mark=f"{half}-{place}-knob")
    return svg.line(*ends, "key", 2, mark=f"{half}-{place}-knife") + handle


# --- what lies between them ------------------------------------------------------------------------------------------


def _signs(block: Half, y: float, room: Room) -> str:
    """Times and equals, but where a collective is."""
    xs, half = room.xs, room.gap / 2
    signs = [(xs["product"] - half, "="), (xs["second"] - 11, "·")]
    if not any(badge.forward and badge.place == "into" for badge in block.badges):
        signs.append((xs["first"] - half + 4, "·"))
    if room.wide:
        signs.append((xs["sums"] - 8, "="))
    return "".join(svg.text(x, y + 5, sign, anchor="middle", fill="muted", size=15) for x, sign in signs)


def _function(block: Half, y: float, room: Room) -> str:
    """A disc with the function's graph; where it cannot be applied, in the colour of what is wrong."""
    x, r = room.xs["mid"], room.node - 2
    wrong, title = bool(block.trouble), block.trouble or block.function
    fill, edge, ink = ("accent", "accent", "paper") if wrong else ("paper", "muted", "ink")
    graph = f"M{svg.num(x - 8)} {svg.num(y + 4)}q6 1 8 -2t8 -7"
    if block.function == "softmax":
        graph = f"M{svg.num(x - 8)} {svg.num(y + 5)}l4 -4l4 2l4 -8l4 9"
    disc = svg.circle(x, y, r, fill, edge, 1.5, title=title)
    disc += f'<path d="{graph}" fill="none" stroke="{svg.colour(ink)}" stroke-width="1.8"/>'
    # what can be pressed begins a little before the second matrix: where there is no room, the words go left and up
    words_x = min(x, room.xs["second"] - 7 - svg.measure(block.function, svg.SMALLEST, wrong) / 2)
    return disc + svg.text(
        words_x,
        y - r - (6 if words_x == x else 9),
        block.function,
        anchor="middle",
        size=svg.SMALLEST,
        bold=wrong,
        fill="accent" if wrong else "ink",
        halo=True,
    )


def pulse(place: str, forward: bool, y: float, backward_y: float, width: int, shown: bool) -> str:
    """Where the pass is, of a half as in `half`: a dot on a group of tensors, a ring around a collective's place."""
    room = ROOMS[width]
    groups = {name: left + room.unit / 2 * (HIGH if name == "product" else 1) for name, left in room.xs.items()}
    dot, colour = place in groups, svg.colour("c3" if forward else "c6")
    x, r = (groups[place], room.badge * 0.3) if dot else (room.place_x(place), room.badge * 0.75)
    fill, edge = (colour, svg.colour("ink")) if dot else ("none", colour)
    return (
        f'<circle cx="{svg.num(x)}" cy="{svg.num(y if forward else backward_y)}" r="{svg.num(r)}" fill="{fill}" '
        f'stroke="{edge}" stroke-width="2.5" opacity="{int(shown)}" data-mark="pulse"/>'
    )


def _way_back(block: Half, y: float, backward_y: float, room: Room) -> str:
    """From what leaves, beneath all, to what enters."""
    start, end = room.xs["leaves"] + room.unit / 2, room.xs["enters"] + room.unit / 2
    a, b, low = svg.num(start), svg.num(end), min(y + room.tall / 2 + 20, backward_y - 8)
    line = f"M{a} {svg.num(low)}V{svg.num(backward_y - 5)}q0 5 -5 5H{svg.num(end + 5)}q-5 0 -5 -5V{svg.num(low + 3)}"
    head = f"M{b} {svg.num(low - 3)}l4 7h-8z"
    words = svg.text(
        room.place_x("into") + 1.5 * room.badge + 8, backward_y - 4, "backward", fill="muted", size=svg.SMALLEST
    )
    return (
        f'<path d="{line}" fill="none" stroke="{svg.colour("c6")}" stroke-width="1.6"/>'
        f'<path d="{head}" fill="{svg.colour("c6")}"/>{words}'
    )


def _badge(badge: Badge, y: float, backward_y: float, room: Room) -> str:
    x, y = room.place_x(badge.place) + badge.aside * (room.badge + 3), y if badge.forward else backward_y
    if badge.forward and badge.place == "middle":
        y += room.node + 11
    if not badge.letters:
        return svg.circle(x, y, 3.5, "paper", "c4", 1.5, title=badge.title)
    width, high = room.badge, 17 if room.wide else 15
    edge, ink = ("accent", "accent") if badge.wrong else ("c4", "c4-words")
    box = (
        f'<rect x="{svg.num(-width / 2)}" y="{svg.num(-high / 2)}" width="{svg.num(width)}" height="{svg.num(high)}" '
        f'rx="5" fill="{svg.colour("paper")}" stroke="{svg.colour(edge)}" stroke-width="2">'
        f"<title>{escape(badge.title)}</title></rect>"
    )
    words = svg.text(0, 4, badge.letters, anchor="middle", fill=ink, bold=True, size=svg.SMALLEST)
    return svg.group(x, y, box + words, mark=badge.name, opacity=1.0 if badge.finished else FAINT)
