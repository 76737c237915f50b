"""The choices of the view `budget` and what follows: the best model for a number of samples, and the toy that is
trained on its own answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from scaleout.numerics.decoding import TOY, Toy
from scaleout.timing.budget import FITTED_FLOPS, LAWS, Budget, Law, Plan, accuracy, beta_of, pass_at
from scaleout.views import base

SPLIT, WRITES = "split", "writes"  # what the view shows
SAMPLES = (1, 4, 16, 64, 256)
FLOPS = FITTED_FLOPS  # the largest for which models of several sizes were compared
DECISIVE = 4  # tokens of an answer that decide whether it is right: an assumption of this book
SPREAD = 1.0  # a + b of the Beta distribution of accuracies by question: an assumption of this book
LOWEST, HIGHEST, STEPS = 30, 300, 100  # temperatures that are drawn, in hundredths
APART = 2  # of these from one point of a curve to the next: a redraw has a thirtieth of a second


@dataclass(frozen=True)
class Setting(base.Setting):
    """Controls by name. answers: billions of tokens for one sample of every question; law: a key of LAWS; write_at,
    write_top_p: how the toy writes the text that it is trained on."""

    samples: int
    answers: float
    law: str
    write_at: float
    write_top_p: float

    @property
    def fit(self) -> Law:
        """The scaling law."""
        return LAWS[self.law]

    @property
    def budget(self) -> Budget:
        """The FLOPs of the model's whole life, and its answers."""
        return Budget(FLOPS, 1e9 * self.answers)

    @cached_property
    def best(self) -> Plan:
        """The plan with the lowest loss."""
        return self.budget.best(self.fit, self.samples)

    @property
    def loss(self) -> float:
        """Of the best plan, in nats per token."""
        return self.fit.loss(self.best.parameters, self.best.tokens)

    @property
    def solved(self) -> float:
        """The share of questions with a right answer among the samples."""
        mean = accuracy(self.fit.reducible(self.best.parameters, self.best.tokens), DECISIVE)
        return pass_at(self.samples, *beta_of(mean, SPREAD))

    @property
    def each(self) -> dict[int, Setting]:
        """The same budget for every number of samples."""
        return {k: self.other(samples=k) for k in SAMPLES}

    @property
    def winner(self) -> int:
        """The number of samples with which most questions are answered."""
        each = self.each
        return max(each, key=lambda k: each[k].solved)

    @cached_property
    def student(self) -> Toy:
        """The toy after training on what it wrote."""
        return TOY.trained(self.write_at, self.write_top_p)

    @property
    def curves(self) -> dict[str, Curve]:
        """Before and after training."""
        return {"before": _curve(TOY), "after": _curve(self.student)}


@dataclass(frozen=True)
class Curve:
    """(temperature, probability of a right answer), and the highest point to a thousandth of the temperature."""

    points: list[tuple[float, float]]
    peak: tuple[float, float]


@lru_cache(maxsize=base.REMEMBERED)  # before training it is the same whatever is set
def _curve(toy: Toy) -> Curve:
    points = [(i / STEPS, toy.success(i / STEPS)) for i in range(LOWEST, HIGHEST + 1, APART)]
    # The curve rises up to where top-p lets in one more token, and falls there: between two of its points.
    highest = sorted(points, key=lambda point: -point[1])[:4]
    near = [min(at + i / 1000, HIGHEST / STEPS) for at, _ in highest for i in range(10 * APART)]
    return Curve(points, max(((at, toy.success(at)) for at in near), key=lambda point: point[1]))


@dataclass(frozen=True)
class Look(base.Setting):
    """What is shown of it. state: "before" or "after" training; temperature: at which it answers."""

    show: str
    state: str
    temperature: float

    def toy(self, setting: Setting) -> Toy:
        """The model that is looked at."""
        return setting.student if self.state == "after" else TOY
