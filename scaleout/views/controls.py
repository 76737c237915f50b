"""The controls of live widgets. Each knows its valid values, and says what would be right for an invalid one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from scaleout.spec.checks import said

LONGEST_CODE = 20_000  # characters; far above any exercise, far below what would slow the page

# ISO 3's R10 series: ten preferred numbers to a decade
_R10 = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)


@dataclass(frozen=True)
class Control:
    """One control. Use the constructors below; `kind` says which of the other fields have a meaning."""

    kind: str
    name: str
    label: str
    default: Any
    unit: str = ""
    help: str = ""
    lo: float = 0.0
    hi: float = 0.0
    step: float = 0.0
    log: bool = False
    options: tuple = ()
    answer: str = ""
    more: bool = False  # stands under "More"
    read: Callable[[str], str] = str  # of "paste": the text as it is kept, or ValueError

    @property
    def integral(self) -> bool:
        """Whether the control takes whole numbers only: its ends, step and default are all ints."""
        return all(isinstance(part, int) for part in (self.lo, self.hi, self.step, self.default))

    def clean(self, value: object) -> object:
        """The value as `draw` gets it. ValueError, in one line, when the control could not take it."""
        return _CLEAN[self.kind](self, value)

    def spec(self) -> dict:
        """What the front end needs to build the control, as JSON."""
        fields = {"kind": self.kind, "name": self.name, "label": self.label, "default": self.default}
        fields |= {key: getattr(self, key) for key in ("unit", "help", "more") if getattr(self, key)}
        if self.kind in ("slider", "number", "play", "guess"):
            fields |= {"lo": self.lo, "hi": self.hi, "step": self.step}
        if self.log:
            fields["stops"] = stops(self)
        if self.options:
            fields["options"] = [list(option) for option in self.options]
        return fields


def slider(
    name: str,
    label: str,
    default: float,
    lo: float,
    hi: float,
    step: float = 1,
    unit: str = "",
    log: bool = False,
    help: str = "",
) -> Control:
    """A range from lo to hi. With `log`, equal distances are equal ratios (see `stops`); lo is above 0."""
    control = Control("slider", name, label, default, unit, help, lo, hi, step, log)
    _check_range(control)
    return control


def play(
    name: str, label: str, default: int, lo: int, hi: int, step: int = 1, unit: str = "", log: bool = False
) -> Control:
    """A slider over time, with buttons that step and play it. With `log`, each step doubles what it shows."""
    return replace(slider(name, label, default, lo, hi, step, unit, log), kind="play")


def number(
    name: str,
    label: str,
    default: float,
    lo: float,
    hi: float,
    step: float = 1,
    unit: str = "",
    help: str = "",
) -> Control:
    """A number to type. All ints: a whole number. Otherwise any from lo to hi; `step` is for arrow keys."""
    return replace(slider(name, label, default, lo, hi, step, unit, help=help), kind="number")


def select(
    name: str,
    label: str,
    default: object,
    options: Sequence[tuple[object, str]],
    help: str = "",
) -> Control:
    """One of several; `options` are pairs of value and label."""
    control = Control("select", name, label, default, help=help, options=tuple(map(tuple, options)))
    control.clean(default)
    return control


def toggle(name: str, label: str, default: bool, help: str = "") -> Control:
    """On or off."""
    control = Control("toggle", name, label, default, help=help)
    control.clean(default)
    return control


def guess(
    label: str,
    answer: str,
    unit: str = "",
    lo: float = 0.0,
    hi: float = 1.0,
    step: float = 0.01,
    name: str = "guess",
) -> Control:
    """The prediction lock: what a view that asks wants to hear before it shows anything. `label` is the question, of
    the view as it opens; `answer` the key in its `values`, in `unit`; lo, hi and step are of the mark in the picture.
    No parameter of the picture.
    """
    return Control("guess", name, label, None, unit, "", lo, hi, step, answer=answer)


def more(*controls: Control) -> tuple[Control, ...]:
    """The controls that stand folded under "More"."""
    return tuple(replace(control, more=True) for control in controls)


def code(name: str, label: str, default: str, help: str = "") -> Control:
    """A box with Python to edit. The view's `draw` gets the text."""
    control = Control("code", name, label, default, help=help)
    control.clean(default)
    return control


def arrange(name: str, label: str, rows: list[list[str]], help: str = "") -> Control:
    """An order in rows, which the reader changes in the picture by its `svg.movable` marks: `rows` as it opens. Each
    item is letters and digits, once in its row, and stays there. The value is text, see `order`.
    """
    control = Control("arrange", name, label, order(rows), help=help)
    for row in rows_of(control.default):
        if not (all(item.isalnum() for item in row) and len(set(row)) == len(row)):
            raise ValueError(f"{name}: a row holds letters and digits, each item once, not {'.'.join(row)}")
    return control


def paste(name: str, label: str, keys: Iterable[str], read: Callable[[str], str], help: str = "") -> Control:
    """A box that takes a JSON file, pasted or dropped, and keeps these of its keys. The view's `draw` gets the text as
    `read` gives it back; "" where there is none."""
    return Control("paste", name, label, "", help=help, options=tuple((key, key) for key in keys), read=read)


def order(rows: list[list[str]]) -> str:
    """Rows of items as the value of `arrange`, which a link can hold: "F0.F1.B0_F0.B0.F1"."""
    return "_".join(".".join(row) for row in rows)


def rows_of(value: str) -> tuple[tuple[str, ...], ...]:
    """The rows of items that a value of `arrange` stands for."""
    return tuple(tuple(row.split(".")) for row in value.split("_"))


def stops(control: Control) -> list[float]:
    """The values a logarithmic slider rests on, lo first and hi last.

    When hi / lo is a power of ten: ISO 3's R10 series in each decade. Otherwise each doubling in quarters
    (8, 10, 12, 14, 16, ...), so that powers of two are among them. Rounded to multiples of the step. What is played
    rests on the doublings alone.
    """
    decades = math.log10(control.hi / control.lo)
    if abs(decades - round(decades)) < 1e-9 and control.kind != "play":
        grid = [control.lo * 10**k * m for k in range(round(decades)) for m in _R10]
    else:
        doublings = math.ceil(math.log2(control.hi / control.lo))
        parts = 1 if control.kind == "play" else 4
        grid = [control.lo * 2**k * (parts + j) / parts for k in range(doublings) for j in range(parts)]
    rounded = {_on_step(control, value) for value in grid}
    return sorted({value for value in rounded if control.lo < value < control.hi} | {control.lo, control.hi})


def _on_step(control: Control, value: float) -> float:
    times = round(value / control.step)
    return times * control.step if control.integral else float(f"{times * control.step:.10g}")


def _check_range(control: Control) -> None:
    if not (control.lo < control.hi and control.step > 0):
        raise ValueError(f"{control.name}: a range needs lo < hi and a step above 0")
    if control.log and not (control.lo > 0 and control.step <= control.lo):
        raise ValueError(f"{control.name}: a logarithmic slider needs lo above 0 and a step of at most lo")
    control.clean(control.default)


def _amount(control: Control, value: object) -> float:
    """A finite real number, as Python's own int or float; a whole float becomes an int."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{control.name} must be a number, not {said(value)}")
    try:
        plain = float(value)
    except OverflowError:
        plain = math.inf
    if not math.isfinite(plain):
        raise ValueError(f"{control.name} must be a finite number, not {plain}")
    return int(plain) if plain.is_integer() else plain


def _clean_range(control: Control, value: object) -> float:
    amount = _amount(control, value)
    unit = f" {control.unit}" if control.unit else ""
    if not control.lo <= amount <= control.hi:
        allowed = f"from {control.lo:,} to {control.hi:,}{unit}"
        amount_text = f"{amount:,}" if abs(amount) < 1e15 else f"{amount:g}"
        raise ValueError(f"{control.name} must be {allowed}, not {amount_text}")
    if control.integral and not isinstance(amount, int):
        raise ValueError(f"{control.name} must be a whole number, not {amount}")
    return amount if control.integral else float(amount)


def _clean_select(control: Control, value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = said(value) if isinstance(value, int) else str(value)
    for option, _label in control.options:
        # compared as text: show("memory", seq=2048) means the option "2048", and True is not 1
        if str(option) == text:
            return option
    allowed = ", ".join(str(option) for option, _label in control.options)
    raise ValueError(f"{control.name} must be one of {allowed}, not {said(value)}")


def _clean_toggle(control: Control, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{control.name} must be True or False, not {said(value)}")


def _clean_code(control: Control, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{control.name} must be text, not {said(value)}")
    if len(value) > LONGEST_CODE:
        raise ValueError(f"{control.name} has {len(value):,} characters: use at most {LONGEST_CODE:,}")
    return value


def _clean_paste(control: Control, value: object) -> str:
    text = _clean_code(control, value).strip()
    return control.read(text) if text else ""


def _clean_arrange(control: Control, value: Any) -> str:
    opening_rows = rows_of(control.default)
    rows = rows_of(value) if isinstance(value, str) else ()
    if len(rows) != len(opening_rows):
        raise ValueError(
            f"{control.name} must be {len(opening_rows)} rows with _ between them, as in {_start(control.default)}, "
            f"not {_start(said(value))}"
        )
    for number, (row, items) in enumerate(zip(rows, opening_rows, strict=True), 1):
        if sorted(row) != sorted(items):
            raise ValueError(
                f"{control.name} must hold {', '.join(items)} once each in row {number}, not {_start('.'.join(row))}"
            )
    return value


def _start(text: str, limit: int = 60) -> str:
    """The start of a text that was given, short enough for one line of a message."""
    text = " ".join(text.splitlines())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


_CLEAN = {
    "slider": _clean_range, "play": _clean_range, "number": _clean_range, "select": _clean_select,
    "toggle": _clean_toggle, "code": _clean_code, "paste": _clean_paste, "arrange": _clean_arrange,
}  # fmt: skip
