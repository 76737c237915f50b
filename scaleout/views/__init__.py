"""What a live widget shows: its controls, and a function that turns their values into a picture.

Pure; stands on `draw`. A view is a module `STEM` with

    TITLE: str
    CONTROLS: tuple[Control, ...]
    draw(params: dict) -> {"svg": str, "sentence": str, "values": dict}

`render` stands between the outside and `draw`: it fills in defaults, refuses what is not on the control, and
answers the reader's guess. A `draw` therefore sees clean values only, the same in the kernel and on the page.
`controls` has the kinds of control, `choices` what several views offer, `STEM_levers` what the sentence of a view
advises; `capstone_curves` and `capstone_published` are curves of the capstone's, computed and as others published
them.
"""

from __future__ import annotations

import math
import pkgutil
import re
from importlib import import_module

from scaleout.draw.svg import quantity
from scaleout.views.controls import Control, code, guess, number, play, select, slider, toggle

__all__ = [
    "Control", "code", "defaults", "guess", "number", "play", "render", "select", "slider", "spec", "stems",
    "toggle",
]  # fmt: skip

SHARED = {"choices", "controls"}  # modules that no view is called by
CLOSE = 0.1  # a guess within 10% of the answer counts as close


def stems() -> list[str]:
    """The views there are, by name: the modules that are no part of another, as `ddp_levers` is of `ddp`."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return [name for name in names if name not in SHARED and name.split("_")[0] not in {*names} - {name}]


def _view(stem: str):
    if not (isinstance(stem, str) and re.fullmatch(r"[a-z][a-z0-9_]*", stem) and stem in stems()):
        raise ValueError(f"there is no view {stem!r}: use one of {', '.join(stems())}")
    return import_module(f"scaleout.views.{stem}")


def spec(stem: str) -> dict:
    """The title and the controls of a view, as JSON."""
    view = _view(stem)
    return {"title": view.TITLE, "controls": [control.spec() for control in view.CONTROLS]}


def defaults(stem: str) -> dict:
    """Every parameter of a view at its default; a guess is None until it is made."""
    return {control.name: control.default for control in _view(stem).CONTROLS}


def clean(stem: str, params: dict | None) -> dict:
    """The parameters with defaults filled in and every value checked against its control.

    Raises ValueError, in one line that says what would be right, for an unknown name or a value that the
    control could not take.
    """
    controls = {control.name: control for control in _view(stem).CONTROLS}
    params = {} if params is None else params
    if not isinstance(params, dict):
        raise ValueError(f"parameters come as a dict of name and value, not {type(params).__name__}")
    for name in params:
        if name not in controls:
            raise ValueError(f"{stem} has no parameter {name!r}: use one of {', '.join(controls)}")
    return {name: control.clean(params.get(name, control.default)) for name, control in controls.items()}


def render(stem: str, params: dict | None = None) -> dict:
    """Draw a view: {"svg", "sentence", "values"}, and "guess" when the reader made one.

    Deterministic and free of NaN and infinity, so the same parameters give the same JSON everywhere.
    """
    view = _view(stem)
    given = clean(stem, params)
    asked = next((control for control in view.CONTROLS if control.kind == "guess"), None)
    guessed = given.pop(asked.name) if asked else None
    result = view.draw(given)
    _check_result(stem, result)
    if guessed is not None:
        result = {**result, "guess": _judge(asked, guessed, result["values"])}
    return result


def _judge(control: Control, guessed: float, values: dict) -> dict:
    """The guess beside the answer. `ratio` is guess / answer; None where only the answer is zero."""
    answer = values[control.answer]
    said = f"{guessed:,.6g} {control.unit}".strip()  # the reader's own number, not a rounder one
    true = f"{quantity(answer)} {control.unit}".strip()
    ratio = (1.0 if guessed == 0 else None) if answer == 0 else guessed / answer
    words = f"You said {said}; it is {true}."
    if ratio is not None:
        start = "Close: your" if abs(ratio - 1) <= CLOSE else "Your"
        words += f" {start} guess is {quantity(ratio)} times the answer."
    return {"value": guessed, "answer": answer, "ratio": ratio, "sentence": words}


def _check_result(stem: str, result: dict) -> None:
    """A view that breaks its promise is found here rather than in the reader's browser."""
    if set(result) != {"svg", "sentence", "values"}:
        got = ", ".join(sorted(result))
        raise ValueError(f"the view {stem} must give svg, sentence and values, not {got}")
    _check_finite(stem, result["values"], "values")


def _check_finite(stem: str, value: object, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the view {stem} gave {path} = {value}, which is not a finite number")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_finite(stem, inner, f"{path}.{key}")
    if isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check_finite(stem, inner, f"{path}[{index}]")
