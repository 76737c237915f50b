"""What stands around the reader's own order in the view `pipeline`: the way in and out, the goal, arrows for hands
without a keyboard, and the orders of the menu on the same axis."""

from __future__ import annotations

from scaleout.draw import hatch, svg
from scaleout.draw.labels import fitting
from scaleout.views import controls
from scaleout.views.pipeline import words, yours
from scaleout.views.pipeline.frame import RIVAL, Frame

NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "zb1": "ZB1"}
INVITED = "Make your own order: move blocks"
HAND = 28  # CSS pixels that a finger needs
HINTS = (
    "Drag a block along its row, or choose one and press an arrow.",
    "Drag a block, or choose it and press an arrow.",
    "Drag, or use the arrows.",
    "Drag a block.",
)


def door(frame: Frame) -> str:
    """The way in: a button under a schedule of the menu."""
    width = svg.measure(INVITED, svg.SMALL, bold=True) + 20
    x, y = frame.width - 2 - width, frame.height - HAND - 1
    words = svg.text(x + 10, y + 18, INVITED, bold=True, fill="key", size=svg.SMALL)
    return svg.press(words, (x, y, width, HAND), "schedule", "yours", INVITED, "own-order")


def above(frame: Frame) -> str:
    """The goal in words, how to move a block, and the goal as a line through the rows."""
    setting, rows, x = frame.setting, frame.rows, frame.rows.at(frame.setting.goal.slots)
    goal = words.goal(setting)
    ways = [f"Goal reached: {goal}", f"Reached: {goal}"] if setting.reached else [f"Goal: {goal}"]
    goal = fitting(ways, frame.width - 12, svg.FONT, bold=True)
    mark, y = f"goal {words.number(setting.goal.slots)}", frame.above - 10
    room = x - 12 - svg.measure(mark, svg.SMALL, bold=True) - rows.x
    return "".join(
        [
            svg.text(rows.x if frame.wide else 6, 14, goal, bold=True),
            svg.text(rows.x, y, fitting(HINTS, room), fill="muted", size=svg.SMALL),
            svg.text(x - 4, y, mark, anchor="end", bold=True, size=svg.SMALL),
            svg.line(x, frame.above - 18, x, rows.bottom + 4, "c3", 2, "5 4", mark="goal"),
        ]
    )


def buttons(frame: Frame) -> str:
    """Arrows for hands without a keyboard, and the ways back: to the rows at the beginning, and to the menu."""
    x, y, parts = frame.rows.x if frame.wide else 6.0, frame.rows.bottom + 7, []
    first = controls.order(yours.opening())
    ways: list[tuple] = [("‹ earlier", -1), ("later ›", 1)]
    if frame.setting.order != first:
        ways.append(("Put back", "order", first))
    ways.append(("Back to 1F1B", "schedule", "1f1b"))
    for text, does, *value in ways:
        width = svg.measure(text, svg.SMALL) + 20
        box = (x, y, width, HAND)
        body = svg.rect(*box, "paper") + svg.text(x + 10, y + 18, text, fill="key", size=svg.SMALL)
        if value:
            parts.append(svg.press(body, box, does, value[0], text, f"back-{does}"))
        else:
            label = f"Move the chosen block one place {'earlier' if does < 0 else 'later'}"
            parts.append(svg.nudge(body, box, does, label, f"nudge{does}"))
        x += width + 8
    return "".join(parts)


def compared(frame: Frame) -> str:
    """The reader's step as a bar, and those of the menu's orders, on the axis of the rows, with what the ranks hold."""
    setting, parts = frame.setting, []
    for n, step in enumerate((setting, *setting.rivals)):
        y, is_reader = frame.sorted + n * RIVAL, n == 0
        in_flight = ", ".join(words.amount(count) for count in step.peaks)
        text = "never ends" if step.waits else f"{words.slots(step.slots)}; in flight: {in_flight}"
        wide = 0 if step.waits else step.slots * frame.rows.scale
        parts += [
            svg.text(
                frame.rows.x - 6,
                y + 12,
                "yours" if is_reader else NAMES[step.schedule],
                anchor="end",
                size=svg.SMALL,
                bold=is_reader,
            ),
            svg.rect(
                frame.rows.x,
                y,
                wide,
                RIVAL - 3,
                "key" if is_reader else "c8",
                opacity=hatch.PALE,
                mark=f"ends-{step.schedule}",
            ),
            svg.text(
                frame.rows.x + 5, y + 12, text, size=svg.SMALL, bold=is_reader, fill="accent" if step.waits else "ink"
            ),
        ]
    return "".join(parts)
