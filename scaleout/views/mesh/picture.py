"""The picture of the view `mesh`: ranks on their nodes above, what their axes send, seconds and bytes beneath."""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.draw.labels import fitting
from scaleout.views.mesh import acts, beneath, nodes, rates
from scaleout.views.mesh.frame import Frame


def picture(setting, look, width: int, alive: bool = True) -> str:
    """The whole picture. alive: with what can be pressed and dragged."""
    frame = Frame(setting, look, width)
    body = [
        _above(frame),
        nodes.draw(frame, alive),
        rates.draw(frame),
        beneath.chips(frame, alive),
        beneath.table(frame),
        beneath.wire(frame),
        beneath.seconds(frame),
        beneath.memory(frame),
    ]
    # each part a group, also an empty one: then a page exchanges what differs within it, and leaves the rest alone
    return svg.figure(width, frame.places.height, "".join(f"<g>{part}</g>" for part in body), _label(setting))


def _label(setting) -> str:
    layout = setting.layout
    return (
        f"{setting.gpus:,} GPUs on {setting.nodes:,} nodes, dp {layout.dp}, cp {layout.cp}, tp {layout.tp}, "
        f"pp {layout.pp}: what each stores of the model and of the batch, and the links along each axis; below, what "
        "each axis sends, the step time and the memory of the fullest rank."
    )


def _above(frame: Frame) -> str:
    """What can be pressed; while a step plays, what happens now."""
    look, left = frame.look, 4.0
    if look.moment < acts.MOMENTS:
        last, _ = acts.around(frame.setting.layout, look.moment)
        left = 372.0 if not frame.cubic and frame.wide else left
        words = last.words if last else ("a step begins",)
        return svg.text(
            left, 14, fitting(words, frame.width - left - 4, bold=True), bold=True, size=svg.SMALL, mark="now"
        )
    if not frame.cubic:
        return ""
    ways = [
        "blue: a rank's part of the model; green: of the batch. Press a rank or one of its boxes",
        "press a rank, its weights (blue) or tokens (green)",
    ]
    return svg.text(left, 14, fitting(ways, frame.width - 8), fill="muted", size=svg.SMALL)
