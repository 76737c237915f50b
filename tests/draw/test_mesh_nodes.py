"""Many nodes as a map of cells: each has its own place, runs are one mark, a point finds its cell."""

import re

import pytest
from cases import over

from scaleout.draw.mesh_nodes import Cells, Part, Tiles

BOX = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-")


@over(count=[16, 100, 256, 2048, 8192], wide=[530, 350])
def test_cells_do_not_overlap_and_are_found_again(count, wide):
    cells = Cells(count, 10.0, 20.0, wide, 90.0)
    across, down = cells.pitch
    places = [cells.place(node) for node in range(count)]
    assert len({*places}) == count and cells.bottom <= 110.01
    assert max(x for x, _ in places) + across <= 10 + wide + 0.01
    assert all(cells.at(x + across / 2, y + down / 2) == node for node, (x, y) in enumerate(places))
    assert cells.columns & (cells.columns - 1) == 0, "what repeats with a power of two lies in columns"


@pytest.mark.parametrize(
    ("nodes", "boxes"),
    [
        (range(64), 1),
        (range(0, 2048, 128), 1),
        (range(0, 2048, 64), 2),
        ([5], 1),
        ([5, 6, 7], 1),
        ([5, 7], 2),
        ([], 0),
    ],
)
def test_runs_are_one_mark(nodes, boxes):
    """2,048 nodes in rows of 128."""
    cells = Cells(2048, 0.0, 0.0, 640.0, 96.0)
    assert cells.columns == 128
    assert len(BOX.findall(cells.lit(nodes, "ink"))) == boxes


def test_what_is_lit_is_as_large_as_its_cells():
    cells = Cells(2048, 0.0, 0.0, 640.0, 96.0)
    nodes = [*range(100, 400), *range(500, 2000, 3)]
    across, down = cells.pitch
    lit = {(round(x / across), round(y / down)) for x, y in map(cells.place, nodes)}
    found = set()
    for x, y, wide, high in (map(float, box) for box in BOX.findall(cells.lit(nodes, "ink"))):
        for row in range(round((high + 0.5) / down)):
            found |= {(round(x / across) + k, round(y / down) + row) for k in range(round((wide + 0.5) / across))}
    assert found == lit


def test_a_part_is_its_share_of_the_whole():
    tiles = Tiles({0: (0.0, 0.0)}, 100.0, 60.0, ((0.0, 0.0, 48.0, 48.0),))

    def area(part, opacity):
        drawn = tiles.parts([0], 0, {0: part}, "c1")
        [d] = re.findall(rf'd="([^"]+)" fill="var\(--c1[^"]+" fill-opacity="{opacity}"', drawn)
        return sum(float(wide) * float(high) for _, _, wide, high in BOX.findall(d))

    assert area(Part(4, 2, (1,), 1), 1) == pytest.approx(48 * 48 / 8)
    assert area(Part(4, 2, (0, 2), 1), 1) == pytest.approx(48 * 48 / 4)
    kept = Part(4, 2, (1,), 1, (4, 3))
    assert area(kept, 0.35) == pytest.approx(4 * area(kept, 1)) == pytest.approx(48 * 48 / 8)
