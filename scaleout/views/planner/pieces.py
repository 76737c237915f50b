"""How the GPUs are used: replicas, one of them opened into its stages, one stage opened into its GPUs, nodes framed."""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.draw.hatch import Box
from scaleout.draw.labels import fitting
from scaleout.timing.plan import Plan
from scaleout.views.planner import words
from scaleout.views.planner.costs import because
from scaleout.views.planner.setting import Setting

MOST_SQUARES = 128  # copies that are drawn one by one
TALL = 84


def section(setting: Setting) -> dict:
    """For the best layout, or if none fits for the smallest."""
    plan = setting.shown
    title = f"How {setting.question.gpus:,} GPU{'s are' if setting.question.gpus > 1 else ' is'} used"
    if plan is None:
        return {"title": title, "blocks": [("words", "No layout is possible.")]}
    note = "" if setting.best else " This is the smallest layout; it does not fit."
    text = f"{words.layout(plan)}. Each frame is a node.{note}"
    reasons = [("words", because(setting))] if setting.best and because(setting) else []
    pictures = [_drawn(setting, plan, width) for width in (svg.WIDE, svg.NARROW)]
    return {"title": title, "blocks": [("words", text), ("pictures", *pictures), *reasons]}


def names(setting: Setting, plan: Plan) -> list[tuple[str, str]]:
    """The two lines under each of the three parts."""
    layout, layers = plan.layout, setting.job.shape.layers
    shard = {0: "nothing sharded", 1: "optimizer sharded", 3: "weights sharded"}[layout.zero]
    copies = (f"{layout.dp:,} copies", shard) if layout.dp > 1 else ("one copy", shard if layout.cp > 1 else "")
    block_counts = sorted(set(plan.job.stages))
    blocks = "-".join(map(str, (block_counts[0], block_counts[-1]))) if len(block_counts) > 1 else str(block_counts[0])
    stages = (
        (
            f"{layout.pp} stages",
            f"{layout.chunks} × {blocks} of {layers} blocks" if layout.chunks > 1 else f"{blocks} of {layers} blocks",
        )
        if layout.pp > 1
        else ("one stage", f"all {layers} blocks")
    )
    inside = layout.tp * layout.cp
    axes = " × ".join(f"{name} {size}" for name, size in (("cp", layout.cp), ("tp", layout.tp)) if size > 1)
    return [copies, stages, (f"{inside} GPU{'s' * (inside > 1)} per stage", axes or "a whole layer each")]


def _drawn(setting: Setting, plan: Plan, width: int) -> str:
    layout, wide = plan.layout, width == svg.WIDE
    pitch = width / 3
    room = pitch - (46 if wide else 18)
    parts, boxes = [], []
    for i, (count, columns) in enumerate(
        ((min(layout.dp, MOST_SQUARES), None), (layout.pp, layout.pp), (layout.tp * layout.cp, layout.tp))
    ):
        x = i * pitch + 4
        squares = _squares(x, 6, room, count, columns, tall=i == 1)
        boxes.append(squares)
        parts.append(_fill(squares))
        if i == 2:
            parts.append(_frames(setting, layout, squares))
        for line, (line_text, bold) in enumerate(zip(names(setting, plan)[i], (True, False), strict=True)):
            line_text = fitting(
                (line_text, line_text.replace(" blocks", ""), line_text.split(" of ")[0]), pitch - 6, svg.SMALLEST, bold
            )
            parts.append(
                svg.text(
                    x, TALL + 24 + 15 * line, line_text, bold=bold, fill="ink" if bold else "muted", size=svg.SMALLEST
                )
            )
    for left, right in ((boxes[0], boxes[1]), (boxes[1], boxes[2])):
        parts.append(_opened(left[0], right))
    label = "; ".join(", ".join(pair) for pair in names(setting, plan))
    return svg.figure(width, TALL + 48, "".join(parts), f"How the GPUs are used: {label}")


def _squares(x: float, y: float, room: float, count: int, columns: int | None, tall: bool) -> list[Box]:
    """Boxes (x, y, width, height) of so many pieces."""
    if tall:
        step = min(22.0, room / count)
        return [(x + k * step, y, max(1.0, step - min(2.0, step / 3)), TALL - 6) for k in range(count)]
    if columns is None:
        columns = next(n for n in range(1, count + 1) if n * (TALL - 6) >= room * -(-count // n) or n == count)
    rows = -(-count // columns)
    step = min(24.0, room / columns, (TALL - 4) / rows)
    size = max(1.0, step - min(2.0, step / 4))
    return [(x + k % columns * step, y + k // columns * step, size, size) for k in range(count)]


def _fill(boxes: list[Box]) -> str:
    """The first is the one that is opened."""
    path = "".join(f"M{svg.num(x)} {svg.num(y)}h{svg.num(w)}v{svg.num(h)}h-{svg.num(w)}z" for x, y, w, h in boxes[1:])
    other_boxes = f'<path d="{path}" fill="{svg.colour("grid")}"/>' if path else ""
    return other_boxes + svg.rect(*boxes[0], fill="key")


def _frames(setting: Setting, layout, boxes: list[Box]) -> str:
    """Around the GPUs of a stage that share a node."""
    node, parts = setting.job.cluster.gpus_per_node, []
    for start in range(0, len(boxes), node):
        group = boxes[start : start + node]
        left, top = min(x for x, *_ in group) - 2.5, min(y for _, y, *_ in group) - 2.5
        right, low = max(x + w for x, _, w, _ in group) + 2.5, max(y + h for _, y, _, h in group) + 2.5
        parts.append(svg.frame(left, top, right - left, low - top, "ink", rounded=3))
    return "".join(parts)


def _opened(piece: Box, boxes: list[Box]) -> str:
    """Two lines from a piece to what it is made of."""
    left, low = boxes[0][0] - 4, max(y + h for _, y, _, h in boxes)
    right = piece[0] + piece[2]
    return svg.line(right, piece[1], left, boxes[0][1], "key", 0.8) + svg.line(
        right, piece[1] + piece[3], left, low, "key", 0.8
    )
