"""The picture of the toy: the distributions at its three kinds of position, and its right answers by temperature."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw import svg
from scaleout.draw.plot import Axis, Plane
from scaleout.numerics.decoding import RIGHT as RIGHT_TOKENS
from scaleout.numerics.decoding import TOP_P
from scaleout.views.budget.setting import HIGHEST, LOWEST, STEPS, Look, Setting

RIGHT, WRONG, CURVES = "c3", "c8", {"before": "muted", "after": "c1"}
WORDS = {"root": ("the root: how to begin", "root"), "fork": ("the fork: which way", "fork"),
         "lock": ("each of 3 locks", "lock")}  # fmt: skip
HIGH = 74.0  # of a distribution


@dataclass(frozen=True)
class Frame(svg.Sized):
    """Where things lie, in CSS pixels."""

    width: int

    @property
    def pitch(self) -> float:
        """From one distribution to the next."""
        return (self.width - 8) / 3

    @property
    def plane(self) -> Plane:
        """Probability of a right answer by temperature."""
        top = 36 + HIGH + 58
        high = 150.0 if self.wide else 120.0
        return Plane(42, top, self.width - 56, high, Axis(LOWEST / STEPS, HIGHEST / STEPS), Axis(0, 0.2))


def picture(setting: Setting, look: Look, width: int) -> str:
    """Three distributions as a sampler sees them now, and both curves with the temperature marked."""
    frame = Frame(width)
    body = _distributions(frame, setting, look) + _curves(frame, setting, look)
    return svg.figure(width, frame.plane.bottom + 40, body, _label(setting, look))


def _distributions(frame: Frame, setting: Setting, look: Look) -> str:
    toy = look.toy(setting)
    seen = toy.decoded(look.temperature)
    marks = [svg.text(4, 12, f"next token at temperature {look.temperature:.2f}, top-p {TOP_P:g}"
                      + (": solid can be written" if frame.wide else ""), size=svg.SMALL, fill="muted")]  # fmt: skip
    for i, (name, p) in enumerate(seen.positions.items()):
        left = 4 + i * frame.pitch
        marks.append(_bars(frame, left, name, p, toy.decoded(look.temperature, 1.0).positions[name]))
        share = sum(p[token] for token in RIGHT_TOKENS[name])
        words = WORDS[name][not frame.wide]
        marks += [
            svg.text(left, 36 + HIGH + 16, words, size=svg.SMALL),
            svg.text(left, 36 + HIGH + 31, f"right: {share:.1%}", size=svg.SMALL, bold=True),
        ]
    return "".join(marks)


def _bars(frame: Frame, left: float, name: str, kept: tuple[float, ...], whole: tuple[float, ...]) -> str:
    """A bar for each token: right ones and others; what top-p cuts off is an outline."""
    step = (frame.pitch - 16) / len(kept)
    base, marks = 30 + HIGH, []
    for token, (share, before) in enumerate(zip(kept, whole, strict=True)):
        x = left + token * step
        fill = RIGHT if token in RIGHT_TOKENS[name] else WRONG
        if share:
            marks.append(svg.rect(x, base - HIGH * share, step - 1.5, HIGH * share, fill,
                                  title=f"{share:.1%}", mark=f"{name} {token}"))  # fmt: skip
        elif before:
            high = max(1.0, HIGH * before)
            marks.append(svg.rect(x, base - high, step - 1.5, high, fill, opacity=0.3,
                                  title=f"{before:.1%}, cut off", mark=f"{name} {token}"))  # fmt: skip
    return svg.line(left, base, left + frame.pitch - 16, base, "muted") + "".join(marks)


def _curves(frame: Frame, setting: Setting, look: Look) -> str:
    plane = frame.plane
    percent = [(p / 100, f"{p}%") for p in (0, 5, 10, 15, 20)]
    temperatures = [(t, f"{t:g}") for t in (0.5, 1, 1.5, 2, 2.5, 3)]
    marks = [plane.grid("temperature of the answers", "right answers", temperatures, percent)]
    highest = max(setting.curves, key=lambda name: setting.curves[name].peak[1])
    for name, curve in setting.curves.items():
        colour, (at, peak) = CURVES[name], curve.peak
        shown = name == look.state
        marks += [
            plane.curve(curve.points, colour, 2.5 if shown else 1.5, "" if shown else "4 3", name),
            plane.dots([(at, peak)], colour, 4, f"{name}: {peak:.1%} at {at:.2f}"),
        ]
        words = f"{name} training: {peak:.1%}"
        half = svg.measure(words, svg.SMALL, True) / 2
        x = min(max(plane.at_x(at), plane.left + half), plane.right - half)
        y = plane.at_y(peak) + (-9 if name == highest else 19)  # above the higher point, and below the other
        marks.append(svg.text(x, min(y, plane.bottom - 6), words, anchor="middle", fill="ink" if shown else "muted",
                              bold=shown, size=svg.SMALL, halo=True))  # fmt: skip
    now = look.toy(setting).success(look.temperature)
    x, y = plane.at_x(look.temperature), plane.at_y(now)
    marks += [
        svg.line(x, plane.top, x, plane.bottom, "accent", 1.5, "3 3", mark="temperature"),
        svg.line(x - 5, y, x + 5, y, "accent", 3, mark="now"),
    ]
    return "".join(marks)


def _label(setting: Setting, look: Look) -> str:
    right = look.toy(setting).success(look.temperature)
    return (
        "Bars of the next token's probability at a root, a fork and a lock, right tokens marked. Below, the "
        f"probability of a right answer by temperature, before and after training on its own text: now {right:.1%}."
    )
