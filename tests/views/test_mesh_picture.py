"""The picture of three axes: ranks stand where the grid has them, wires join groups, lengths are seconds and bytes."""

import re

import pytest
from drawn import marks
from view_settings import by_chance

from scaleout import views
from scaleout.draw import svg
from scaleout.views import mesh
from scaleout.views.mesh import acts, nodes, rates
from scaleout.views.mesh.frame import Frame
from scaleout.views.mesh.setting import Look

WIDTHS = [svg.WIDE, svg.NARROW]
LARGE = {"gpus": 16_384, "tp": 8, "pp": 16, "node": 8, "model": "llama-3-405b", "seq": 8192}
ROWS = {"gpus": 64, "tp": 4, "pp": 4, "node": 8}


def shown(width=svg.WIDE, **params):
    return views.render("mesh", params, width, advise=False)


def frame(width=svg.WIDE, moment=acts.MOMENTS, **params):
    given = views.clean("mesh", params)
    return Frame(mesh.Setting.of(given), Look(given["rank"], given["look"], moment), width)


def asked(mark):
    return dict(one.split("=") for one in mark.get("data-press").split("&"))


def size(mark, name="width"):
    return float(mark.get(name) or 0)


# --- ranks and wires ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("node", [2, 4, 8])
def test_all_of_up_to_sixty_four_ranks_are_drawn_on_their_nodes(width, node):
    for gpus in (8, 16, 64):
        one = frame(width, gpus=gpus, node=node)
        assert [*one.tiles.places] == [*range(gpus)] and len({*one.tiles.places.values()}) == gpus
        boxes = [(x, y, x + one.tiles.width, y + one.tiles.height) for x, y in one.tiles.places.values()]
        for i, a in enumerate(boxes):
            assert a[0] >= 0 and a[2] <= width and a[3] <= one.places.chips + 1
            assert not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in boxes[:i])
        for number, corners, _ in one.panels():
            (left, right), (top, low) = ((min(some), max(some)) for some in zip(*corners, strict=True))
            for rank in range(number * node, (number + 1) * node):
                x, y = one.tiles.places[rank]
                assert left <= x and x + one.tiles.width <= right + 0.01 and top <= y <= low - one.tiles.height + 0.01


@pytest.mark.parametrize("rank", [0, 5003, 16_383])
def test_of_many_nodes_those_of_the_lit_rank_and_its_neighbours_are_opened(rank):
    one = frame(**LARGE, rank=rank, look="groups")
    on = one.setting.grid
    for axis in ("tp", "dp", "pp"):
        line = on.group(rank, axis)
        place = line.index(rank)
        beside = line[place + 1] if place + 1 < len(line) else line[place - 1]
        assert beside in one.tiles.places, (axis, beside)
    assert len(one.nodes) == 4 and one.rows == 4


@pytest.mark.parametrize("params", [{}, ROWS, {"gpus": 32, "cp": 2}, LARGE])
def test_wires_join_neighbours_of_one_group(params):
    for look in ("all", "groups", "weights", "tokens"):
        one = frame(**params, rank=5, look=look)
        on = one.setting.grid
        for axis in ("tp", "cp", "dp", "pp"):
            for a, b in nodes.pairs(one, axis):
                differ = [name for name in on.names if on.coordinates(a)[name] != on.coordinates(b)[name]]
                assert differ == [axis] and {a, b} <= one.tiles.places.keys()
                assert look != "groups" or 5 in on.group(a, axis)
        joined = {axis for axis in ("tp", "cp", "dp", "pp") if nodes.pairs(one, axis)}
        assert joined <= {"weights": {"dp", "cp"}, "tokens": {"tp", "pp"}}.get(look, joined)
    if params == {}:
        every = frame()
        assert [len(nodes.pairs(every, axis)) for axis in ("tp", "dp", "pp", "cp")] == [4, 4, 4, 0], "a cube's edges"


def test_wires_that_leave_a_node_are_told_apart_and_thick_as_their_bytes():
    for order in ("pp.dp.tp", "tp.pp.dp"):
        drawn = shown(order=order)
        wires = {}
        for d, stroke, wide in re.findall(
            r'<path d="(M[^"]*L[^"]*)" fill="none" stroke="var\(--([\w-]+)[^"]*" '
            r'stroke-width="([\d.]+)"',
            drawn["svg"],
        ):
            if d.count("M") == 4 and "z" not in d:
                wires.setdefault(stroke, []).append(float(wide))
        assert len(wires["accent"]) == 1 and len(wires["c4"]) == 2
        tensor, other = (wires["accent"], wires["c4"]) if order[0] == "t" else (wires["c4"], wires["accent"])
        assert max(tensor) == nodes.THICK[1] > max(min(other), nodes.THICK[0] + 0.4)


BOX = re.compile(r"M(-?[\d.]+) (-?[\d.]+)h([\d.]+)v([\d.]+)h-")


def cells(drawn, fill):
    """Corners of the boxes of the path in a colour, in the order of ranks."""
    [d] = re.findall(rf'<path d="([^"]+)" fill="var\(--{fill}, [^"]+" fill-opacity="1"/>', drawn)
    return [tuple(map(float, box)) for box in BOX.findall(d)]


@pytest.mark.parametrize("params", [{}, ROWS, {"gpus": 32, "cp": 2, "tp": 4}])
def test_the_same_blue_are_copies_and_the_same_green_work_on_the_same_tokens(params):
    one = frame(**params)
    drawn, on = shown(**params)["svg"], one.setting.grid
    for fill, alike in (("c1", ("pp", "tp")), ("c3", ("dp", "cp"))):
        found = {}
        for rank, (x, y, *_) in enumerate(cells(drawn, fill)):
            left, top = one.tiles.places[rank]
            found.setdefault((round(x - left, 1), round(y - top, 1)), set()).add(rank)
        expected = {}
        for rank in range(on.ranks):
            at = on.coordinates(rank)
            expected.setdefault(tuple(at[axis] for axis in alike), set()).add(rank)
        assert sorted(map(sorted, found.values())) == sorted(map(sorted, expected.values()))


def test_stage_three_keeps_a_piece_of_its_part_and_chunks_are_parts_apart():
    whole, piece = (sum(box[2] * box[3] for box in cells(shown(zero=zero)["svg"], "c1")) for zero in (1, 3))
    assert piece == pytest.approx(whole / 2, rel=0.02)
    assert len(cells(shown(chunks=4)["svg"], "c1")) == 8 * 4


# --- what is pressed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_a_rank_its_blue_and_its_green_are_buttons(width):
    found = marks(shown(width)["svg"])
    assert asked(found["r5"]) == {"rank": "5", "look": "groups"}
    assert asked(found["weights 5"]) == {"rank": "5", "look": "weights"}
    assert asked(found["tokens 5"]) == {"rank": "5", "look": "tokens"}
    again = marks(shown(width, rank=5, look="groups")["svg"])
    assert asked(again["r5"])["look"] == "all" and asked(again["r4"])["look"] == "groups" and "lit" in again
    rows = marks(shown(width, **ROWS, rank=13, look="tokens")["svg"])
    assert {f"r{rank}" for rank in range(64)} <= rows.keys()
    assert {rows[f"look {what}"].get("data-press") for what in ("groups", "weights", "tokens", "all")} == {
        f"look={what}" for what in ("groups", "weights", "tokens", "all")
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_buttons_are_as_large_as_a_finger_and_do_not_hide_one_another(width):
    for params in ({}, {"node": 8}, {**ROWS, "look": "groups"}, {**LARGE, "look": "groups"}):
        boxes = []
        for mark in marks(shown(width, **params)["svg"]).values():
            if mark.get("data-press"):
                hit = mark[-1]
                x, y, wide, high = (float(hit.get(name)) for name in ("x", "y", "width", "height"))
                assert wide >= 27 and high >= 27, mark.get("data-mark")
                boxes.append((x + wide / 2, y + high / 2))
        assert len(set(boxes)) == len(boxes)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_press_on_the_map_goes_to_that_node(width):
    drawn = shown(width, **LARGE, rank=3, look="groups")["svg"]
    blocks = {name: mark for name, mark in marks(drawn).items() if re.fullmatch(r"n\d+ \d+", name)}
    went = [int(asked(mark)["rank"]) for mark in blocks.values()]
    assert len(went) > 10 and all(rank % 8 == 0 for rank in went) and len({*went}) == len(went)
    on = frame(width, **LARGE).cells
    for mark, rank in zip(blocks.values(), went, strict=True):
        x, _ = on.place(rank // 8)
        hit = mark[-1]
        assert size(hit, "x") - 1 <= x <= size(hit, "x") + size(hit)


# --- beneath ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_lengths_are_seconds_and_bytes(width):
    for params in by_chance("mesh", 25, 6):
        drawn = shown(width, **params)
        found, values = marks(drawn["svg"]), drawn["values"]
        (low, left), (high, right) = [
            [*map(float, pair.split(":"))] for pair in re.search(r'data-stops="([^"]+)"', drawn["svg"])[1].split()
        ]
        unit = (right - left) / (high - low)
        for axis, ms in values["ms"].items():
            if f"all {axis}" in found:
                wide = max(0.0, ms * unit - 1)
                assert size(found[f"all {axis}"]) == pytest.approx(wide, abs=0.02)
                share = values["sent_so_far_gb"][axis] / values["gb"][axis] if values["gb"][axis] else 0
                assert size(found[f"sent {axis}"]) == pytest.approx(wide * share, abs=0.02)
        parts = [size(mark) for name, mark in found.items() if name.startswith("part ")]
        some = {f"part {name}" for name in ("exposed TP", "exposed CP", "exposed DP", "exposed PP")}
        waits = sum(size(found[name]) for name in some & found.keys())
        assert waits / sum(parts) == pytest.approx(values["exposed_seconds"] / values["seconds"], abs=0.001)
        limit = float(found["limit"].get("x1")) - left
        held = sum(size(mark) for name, mark in found.items() if name.startswith("held "))
        assert held / limit == pytest.approx(values["held_gb"] / values["usable_gb"], rel=0.01, abs=0.001)


@pytest.mark.parametrize("width", WIDTHS)
def test_chips_stand_in_the_order_of_the_axes(width):
    for order in ("pp.dp.tp", "tp.pp.dp"):
        found = marks(shown(width, order=order, cp=2, tp=1)["svg"])
        chips = {
            name: float(re.match(r"translate\(([\d.]+)", mark.get("transform"))[1])
            for name, mark in found.items()
            if name.startswith("chip ")
        }
        assert ".".join(name.split()[1] for name in sorted(chips, key=chips.get)) == order
        assert [found[f"chip {axis}"].get("data-move") for axis in ("pp", "dp", "tp")] == [
            "order:0:pp",
            "order:0:dp",
            "order:0:tp",
        ]
        assert "DP 2 × CP 2" in shown(width, order=order, cp=2, tp=1)["svg"]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_says_with_whom_how_often_and_over_which_link(width):
    drawn = shown(width, rank=5, look="groups")
    said = re.sub(r"<[^>]+>", "|", drawn["svg"])
    for axis, words in (("tp", "rank 4"), ("dp", "rank 7"), ("pp", "rank 1")):
        assert words in said and f"|{drawn['values']['messages'][axis]:,}|" in said
    assert ("InfiniBand NDR" if width == svg.WIDE else "IB NDR") in said and "NVLink 4" in said
    assert ">CP<" not in drawn["svg"] and ">CP<" in shown(width, cp=2, tp=1)["svg"]
    for head in ("rank 5 sends", "calls", "bytes", "over", "takes"):
        assert head in said
    assert ("NVLink 4, 450 GB/s" if width == svg.WIDE else "450 NVLink 4") in said


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("params", "labels"),
    [
        ({}, {"TP": "450", "DP": "450", "PP": "50"}),
        ({"order": "tp.dp.pp"}, {"TP": "50", "DP": "450", "PP": "450"}),
        ({"cp": 2, "tp": 1}, {"CP": "450", "DP": "450", "PP": "50"}),
        ({"tp": 4, "pp": 1, "link": "ethernet-100g"}, {"TP": "450", "DP": "3.12"}),  # one adapter of four GPUs
        ({"look": "groups", "rank": 5}, {"TP": "450", "DP": "450", "PP": "50"}),
    ],
)
def test_a_wire_of_each_axis_bears_its_name_and_rate_where_nothing_is_in_the_way(width, params, labels):
    drawn = shown(width, **params)["svg"]
    on = frame(width, **params)
    lines = {axis: [on.tiles.line(a, b) for a, b in nodes.pairs(on, axis)] for axis in ("tp", "cp", "dp", "pp")}
    found = {}
    rows = re.findall(r'<text x="(\S+)" y="(\S+)"[^>]*>([^<]+)</text>', rates.draw(on))
    for (x, y, words), after in zip(rows, [*rows[1:], ("", "", "")], strict=True):
        whole = words if "GB/s" in words else f"{words} {after[2]}"
        if re.fullmatch(r"[TCDP]P [\d.]+ GB/s", whole):
            found[whole[:2]] = whole.split()[1]
        left, low, wide = float(x), float(y), svg.measure(words, svg.SMALLEST)
        for tile_x, tile_y in on.tiles.places.values():
            apart = left + wide <= tile_x or left >= tile_x + on.tiles.width
            assert apart or low <= tile_y or low - 9 >= tile_y + on.tiles.height, words
        for x1, y1, x2, y2 in [line for several in lines.values() for line in several]:
            points = ((x1 + (x2 - x1) * k / 50, y1 + (y2 - y1) * k / 50) for k in range(51))
            assert not any(left < px < left + wide and low - 9 < py < low for px, py in points), words
    assert {axis: rate for axis, rate in labels.items() if axis in found} == found and rates.draw(on) in drawn
    # on a phone with one node of eight there may be no place for one of them
    assert found == labels or (width == svg.NARROW and len(found) >= len(labels) - 1)
    assert not rates.draw(frame(width, **ROWS))


# --- a step and the question --------------------------------------------------------------------------------------


def packets(drawn):
    """Places of the dots of each act and way."""
    return {
        name: re.findall(r"M([\d.]+) ([\d.]+)h0", mark.get("d"))
        for name, mark in marks(drawn).items()
        if re.match(r"p\d", name)
    }


@pytest.mark.parametrize("params", [{}, ROWS | {"look": "groups", "rank": 5}, {"cp": 2, "gpus": 16}])
def test_packets_go_along_the_axis_that_sends(params):
    setting = frame(**params).setting
    for number, act in enumerate(acts.acts(setting.layout)):
        for width in WIDTHS:
            said = marks(shown(width, **params, moment=number + 1)["svg"])["now"].text
            assert said in act.words, "there is room for one of them"
        before, after = (packets(shown(**params, moment=at)["svg"]) for at in (number, number + 1))
        moved = {name: dots for name, dots in before.items() if name.startswith(f"p{number} ")}
        expected = nodes.pairs(frame(moment=number, **params), act.axis)
        assert len(moved) == (2 if expected else 0)
        for name, dots in moved.items():
            back = name.replace("to", "from") if name.endswith("to") else name.replace("from", "to")
            assert dots == after[back] != after[name] and len(dots) == len(expected), "each changes places with another"
    assert not packets(shown(**params)["svg"])


@pytest.mark.parametrize("width", WIDTHS)
def test_the_locked_picture_has_tensor_across_the_cable(width):
    locked = mesh.locked(views.defaults("mesh"), width)
    assert "data-press" not in locked and "data-move" not in locked
    found = marks(locked)
    assert size(found["sent tp"]) > 20 * size(found["sent dp"])
    there = shown(width, order="tp.pp.dp")
    assert size(found["sent tp"]) == size(marks(there["svg"])["sent tp"])
