"""The picture of one budget: loss by size of the model, where the budget goes, and pass@k of the best models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor

from scaleout.draw import guess, svg
from scaleout.draw.labels import fitting
from scaleout.draw.plot import Axis, Plane
from scaleout.views.budget.setting import FLOPS, SAMPLES, Setting
from scaleout.views.budget.words import billions

SIZES = (0.1e9, 16e9)  # parameters on the axis
POINTS = 120  # of a curve
MARKS = tuple((0.1e9 * 160 ** (i / 16)) for i in range(17))  # stops of the guess's mark
# The label of the locked picture, which says nothing about the answer.
ONE_CURVE = (
    "Loss by parameters of the model, for one budget of FLOPs. A curve for one sample per question, with its lowest "
    "point marked."
)
TRAINING, ANSWERS, NOW, ALONE, RIGHT = "compute", "c5", "c1", "muted", "c3"


@dataclass(frozen=True)
class Frame(svg.Sized):
    """Where things lie, in CSS pixels."""

    setting: Setting
    width: int

    left = svg.either(40.0, 34.0)

    @property
    def right(self) -> float:
        return self.width - 10.0

    @cached_property
    def plane(self) -> Plane:
        """Loss by parameters: from below the lowest curve to a little above the highest best model."""
        lowest, highest = self.setting.each[1].loss, self.setting.loss
        low = floor(10 * lowest - 0.5) / 10
        loss = Axis(low, max(low + 0.5, ceil(10 * highest + 1) / 10))
        high = 176.0 if self.wide else 128.0
        return Plane(self.left, 26, self.right - self.left, high, Axis(*SIZES, log=True), loss)

    @property
    def budget_y(self) -> float:
        return self.plane.bottom + 56

    @property
    def bars_y(self) -> float:
        """The top of what shows pass@k."""
        return self.budget_y + 54

    bars_high = svg.either(66.0, 50.0)

    @property
    def height(self) -> float:
        return self.bars_y + self.bars_high + 36


def picture(setting: Setting, width: int) -> str:
    """Both curves, the budget's two parts, and pass@k for each number of samples."""
    return Frame(setting, width).figure(_label(setting), _axes, _alone, _now, _parts, _solved, _mark)


def locked(setting: Setting, width: int) -> str:
    """The curve for one sample only."""
    return Frame(setting, width).figure(ONE_CURVE, _axes, _alone, _mark)


def _axes(frame: Frame) -> str:
    ticks = [(n * 1e9, f"{n:g}") for n in (0.1, 0.3, 1, 3, 10)]
    return frame.plane.grid("parameters of the model, billion", "loss, nats per token", x_ticks=ticks)


def _curve(setting: Setting) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(parameters, loss) of models that the budget can train at this number of samples: all of them, and those within
    the range of the fit."""
    low, high = SIZES
    points, inside = [], []
    for i in range(POINTS + 1):
        parameters = low * (high / low) ** (i / POINTS)
        plan = setting.budget.plan(parameters, setting.samples)
        if plan and plan.tokens > 1e8:
            points.append((parameters, setting.fit.loss(parameters, plan.tokens)))
            inside += points[-1:] if setting.fit.fitted(parameters, plan.tokens) else []
    return points, inside


def _drawn(frame: Frame, setting: Setting, colour: str, name: str, above: bool) -> str:
    """A curve with its best model and the name of it."""
    plane, best = frame.plane, setting.best
    points, inside = _curve(setting)
    x, y = plane.at_x(best.parameters), plane.at_y(setting.loss)
    edge = max(x + 36, frame.left + svg.measure(name, svg.SMALL, True))
    at_x, at_y, anchor = (edge, y - 24, "end") if above else (x, y + 19, "middle")  # inside the curve, or below it
    words = svg.text(at_x, at_y, name, anchor=anchor, fill=colour, bold=True, halo=True, size=svg.SMALL)
    return (
        plane.curve(points, colour, 2, "2 4", f"k = {setting.samples}, beyond the runs of the fit")
        + plane.curve(inside, colour, 2.5, title=f"k = {setting.samples}")
        + plane.dots([(best.parameters, setting.loss)], colour, 5, title=billions(best.parameters))
        + words
    )


def _alone(frame: Frame) -> str:
    return _drawn(frame, frame.setting.each[1], ALONE, "k = 1", False)


def _now(frame: Frame) -> str:
    if frame.setting.samples == 1:
        return ""
    size = frame.setting.best.parameters / 1e9
    return _drawn(frame, frame.setting, NOW, f"k = {frame.setting.samples}: {size:.2f} billion", True)


def _parts(frame: Frame) -> str:
    """The budget: FLOPs of training, and of answers."""
    best, y, x = frame.setting.best, frame.budget_y, frame.left
    length = frame.right - frame.left
    training = length * (1 - best.answering_share)
    title = fitting(
        [f"where the {FLOPS:.0e} FLOPs go, for the best model at k = {frame.setting.samples}".replace("e+", " × 10^"),
         f"where the budget goes, k = {frame.setting.samples}"], length, svg.SMALL)  # fmt: skip
    return (
        svg.text(x, y - 6, title.replace("10^21", "10²¹"), size=svg.SMALL, fill="muted")
        + svg.rect(x, y, training, 16, TRAINING, title="training", mark="training")
        + svg.rect(x + training, y, length - training, 16, ANSWERS, title="answers", mark="answers")
        + svg.text(x, y + 30, f"training {1 - best.answering_share:.0%}", size=svg.SMALL)
        + svg.text(frame.right, y + 30, f"answers {best.answering_share:.0%}", anchor="end", size=svg.SMALL)
    )


def _solved(frame: Frame) -> str:
    """A bar for each number of samples: the share of questions that its best model answers."""
    setting, top, high = frame.setting, frame.bars_y + 14, frame.bars_high
    pitch, each = (frame.right - frame.left) / len(SAMPLES), setting.each
    highest = max(one.solved for one in each.values())
    title = fitting(["pass@k of the best model for each k, on this book's assumptions about questions",
                     "pass@k of each k, on this book's assumptions"], frame.right - frame.left, svg.SMALL)  # fmt: skip
    marks = [svg.text(frame.left, frame.bars_y, title, size=svg.SMALL, fill="muted")]
    for i, (k, one) in enumerate(each.items()):
        x, share, now = frame.left + i * pitch, one.solved, k == setting.samples
        long = (high - 22) * share / highest
        base = top + high - 4
        marks.append(svg.rect(x + pitch * 0.2, base - long, pitch * 0.6, long, RIGHT, opacity=1.0 if now else 0.45,
                              title=f"k = {k}: {share:.1%}", mark=f"pass {k}"))  # fmt: skip
        middle = x + pitch / 2
        marks += [
            svg.text(middle, base - long - 4, f"{share:.0%}", anchor="middle", bold=now, size=svg.SMALL),
            svg.text(middle, base + 15, f"k = {k}", anchor="middle", bold=now, size=svg.SMALL),
        ]
    return "".join(marks)


def _mark(frame: Frame) -> str:
    """The guess: parameters of the best model."""
    plane = frame.plane
    stops = [(n / 1e9, plane.at_x(n)) for n in MARKS]
    return guess.mark(stops, (plane.top, plane.bottom), way="x", hold=plane.top + 14)


def _label(setting: Setting) -> str:
    second = " A second curve, for the chosen number of samples, lies above it, with its lowest point further left."
    return (
        f"{ONE_CURVE}{second if setting.samples > 1 else ''} Below, the parts of the budget and pass@k for each number "
        "of samples."
    )
