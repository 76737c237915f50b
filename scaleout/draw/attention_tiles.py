"""Attention's scores as tiles of queries by keys: all of them in memory, and one at a time on the chip."""

from __future__ import annotations

from scaleout.draw import svg

SIDE = 6  # tiles along each side
ROW, NOW = 2, 3  # the row of tiles that is computed, and the tile that is on the chip
BROAD = 12.0  # CSS pixels of Q, K and V beside the scores
GAP = 4.0


def naive_beside_tiled(width: float) -> str:
    """Two squares of scores, side by side; on a phone smaller."""
    pitch = width / 2
    cell = min(26.0, (pitch - 64) / SIDE)
    high = 44 + BROAD + GAP + SIDE * cell + 46
    body = _panel(0.0, cell, False) + _panel(pitch, cell, True)
    label = (
        f"Left, naive attention: all {SIDE} by {SIDE} tiles of scores are in HBM. Right, attention in tiles: of the "
        f"same square one tile in row {ROW + 1} is on the chip; tiles before it are done and gone, and beside the "
        "row are three sums, m, l and u."
    )
    return svg.figure(width, high, body, label)


def _panel(x: float, cell: float, tiled: bool) -> str:
    left, top = x + 26, 44 + BROAD + GAP
    whole = SIDE * cell
    parts = [
        svg.text(x + 4, 13, "in tiles" if tiled else "naive", bold=True),
        svg.text(left + whole / 2, 36, "keys and values", anchor="middle", size=svg.SMALLEST, fill="muted"),
    ]
    for i in range(SIDE):
        now = tiled and i == NOW
        parts.append(
            svg.rect(
                left + i * cell, top - BROAD - GAP, cell - 2, BROAD, "c1", opacity=1.0 if now or not tiled else 0.3
            )
        )
        now = tiled and i == ROW
        parts.append(
            svg.rect(
                left - BROAD - GAP, top + i * cell, BROAD, cell - 2, "c3", opacity=1.0 if now or not tiled else 0.3
            )
        )
    parts += [
        _tile(left + column * cell, top + row * cell, cell - 2, row, column, tiled)
        for row in range(SIDE)
        for column in range(SIDE)
    ]
    words = "one tile on the chip" if tiled else "all scores in HBM, four times"
    parts.append(svg.text(left, top + whole + 18, words, size=svg.SMALL))
    if tiled:
        y = top + ROW * cell
        parts += [
            svg.rect(left + whole + GAP, y, 16, cell - 2, "c6"),
            svg.text(left, top + whole + 36, "per query: m, ℓ, u", size=svg.SMALL, fill="c6"),
        ]
    parts.append(svg.text(left - GAP - BROAD / 2, top - 5, "Q", size=svg.SMALLEST, fill="muted", anchor="middle"))
    return "".join(parts)


def _tile(x: float, y: float, size: float, row: int, column: int, tiled: bool) -> str:
    """A tile of scores: in memory, on the chip, done, or not yet computed."""
    if not tiled:
        return svg.rect(x, y, size, size, "c5")
    if (row, column) == (ROW, NOW):
        return svg.rect(x, y, size, size, "compute")
    done = (row, column) < (ROW, NOW)
    dash = "" if done else ' stroke-dasharray="2 3"'
    return (
        f'<rect x="{svg.num(x + 0.5)}" y="{svg.num(y + 0.5)}" width="{svg.num(size - 1)}" height="{svg.num(size - 1)}" '
        f'fill="none" stroke="{svg.colour("muted" if done else "grid")}"{dash}/>'
    )
