"""Live widgets: their controls, and a function that turns the values into a picture.

Pure; stands on `draw`. A view is a module `STEM` with

    TITLE: str
    CONTROLS: tuple[Control, ...]
    draw(params: dict, width: int) -> {"svg": str, "sentence": str, "values": dict}, and where it has them
        "law": [words, formula with its numbers, words]
        "levers": {control: {"hi": the end of its range now}, {"off": why it has no effect now},
                   {"note": its effect instead} or {"takes": the value that is drawn, if not the one that was set}}

where finding the lever worth trying takes a search, `advice(params) -> str`, which ends its sentence: a page shows the
picture first and asks for it when the reader's hand rests;
where it has more to tell than a picture and a sentence hold, `SECTIONS: tuple[tuple[str, ...], ...]`, names by column,
and `beneath(params, name) -> {"title": words, "blocks": [...]}`, each ("words", text), ("pictures", wide, narrow),
("table", heads, rows), ("fold", name, lines to copy) or ("link", words, address): a page asks for them last,
and `prepare(params, name) -> bool` does a part of what takes long, so that a reader who goes on need not wait;
where a lab measures what it shows, `measured(record: dict) -> dict`, what of a Record belongs into the picture, as JSON
(ValueError, in one line, for a Record of something else), which `draw` then takes as a third argument, or None;
and, where its chapter asks for a guess, `locked(params, width) -> svg`, the picture without the answer, and
`slips(params) -> [(value, words)]`, what wrong answers are made of. `width` is svg.WIDE or svg.NARROW.
A picture can be a control too: what `svg.press` and `svg.movable` mark in it sets a control of the view.

`render` stands between the outside and `draw`: it fills in defaults and refuses what is not on the control. A `draw`
therefore sees clean values only, the same in the kernel and on the page. Its first line makes a `Setting` of them, of
which everything else is told: fields by the controls' names, what follows from them found once (`base`). What moves the
picture alone, as the moment of a play, is no field of it.
A view that has more than one subject is a folder: its face is the view, `setting`, where it is long, what the reader
chose, `levers` the advice of its sentence (with `lever`, which tries it), `words` that sentence, the law and the slips,
`picture` the drawing, `record` a reader's run (with `own`). `controls` has the kinds of control and
`choices` what several views offer; `front` is the first page's, with two choices and no guess; `planner` and `finetune`
have a page of their own, and most of it beneath the picture, which `blocks` makes HTML of.
"""

from __future__ import annotations

import json
import math
import pkgutil
import re
from functools import lru_cache
from importlib import import_module
from itertools import product

from scaleout.draw import svg
from scaleout.spec import checks
from scaleout.views.controls import (
    Control,
    arrange,
    code,
    guess,
    more,
    number,
    order,
    paste,
    play,
    rows_of,
    select,
    slider,
    toggle,
)
from scaleout.words.amounts import quantity

__all__ = [
    "Control", "advice", "arrange", "asks", "beneath", "code", "defaults", "guess", "measured", "more", "number",
    "order", "paste", "play", "prepare", "question", "render", "rows_of", "search_controls", "sections", "select",
    "settings", "slider", "spec", "stems", "toggle",
]  # fmt: skip

SHARED = {"base", "blocks", "choices", "controls", "lever", "own"}  # modules that no view is called by


def stems() -> list[str]:
    """The views there are, by name."""
    return list(_listed(tuple(__path__)))


@lru_cache(maxsize=4)  # every redraw asks
def _listed(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(info.name for info in pkgutil.iter_modules(folders) if info.name not in SHARED))


def _view(stem: str):
    if not (isinstance(stem, str) and re.fullmatch(r"[a-z][a-z0-9_]*", stem) and stem in stems()):
        raise ValueError(f"there is no view {stem!r}: use one of {', '.join(stems())}")
    return import_module(f"scaleout.views.{stem}")


def spec(stem: str) -> dict:
    """The title and the controls of a view, as JSON; "measured" says whether it takes a reader's Record, "advises"
    whether `advice` ends its sentence, "searches", where there are any, the names of its `search_controls`."""
    view = _view(stem)
    controls = [control.spec() for control in view.CONTROLS]
    takes = {"measured": hasattr(view, "measured"), "advises": hasattr(view, "advice")}
    searches = search_controls(stem)
    return {"title": view.TITLE, "controls": controls, **takes} | ({"searches": list(searches)} if searches else {})


def _settable(stem: str) -> dict[str, Control]:
    """The controls that are parameters of the picture, by name: all but the guess."""
    return {control.name: control for control in _view(stem).CONTROLS if control.kind != "guess"}


def settings(stem: str, limit: int) -> list[dict]:
    """Every setting of a view, the opening one first; [] where its controls have more than `limit` together."""
    ways = [
        [control.default, *(value for value, _ in control.options if value != control.default)]
        if control.options
        else [control.default, not control.default]
        if control.kind == "toggle"
        else [None] * (limit + 1)
        for control in _settable(stem).values()
    ]
    if math.prod(map(len, ways)) > limit:
        return []
    return [dict(zip(_settable(stem), values, strict=True)) for values in product(*ways)]


def defaults(stem: str) -> dict:
    """Every parameter of a view at its default."""
    return {name: control.default for name, control in _settable(stem).items()}


def clean(stem: str, params: dict | None) -> dict:
    """The parameters with defaults filled in and every value checked against its control.

    Raises ValueError, in one line that says what would be right, for an unknown name or a value that the
    control could not take.
    """
    controls = _settable(stem)
    params = {} if params is None else params
    if not isinstance(params, dict):
        raise ValueError(f"parameters come as a dict of name and value, not {type(params).__name__}")
    for name in params:
        if name not in controls:
            raise ValueError(f"{stem} has no parameter {name!r}: use one of {', '.join(controls)}")
    return {name: control.clean(params.get(name, control.default)) for name, control in controls.items()}


def search_controls(stem: str) -> tuple[str, ...]:
    """Controls whose change is a new question, which takes a search: more than a frame or two."""
    return getattr(_view(stem), "QUESTION", ())


def measured(stem: str, record: dict) -> dict:
    """What of a reader's Record belongs into the picture of a view, for `render`'s `run`."""
    view = _view(stem)
    if not hasattr(view, "measured"):
        raise ValueError(f"no lab measures what {stem} shows")
    if not isinstance(record, dict):
        raise ValueError(f"a Record is a JSON object, not {type(record).__name__}")
    return view.measured(record)


def render(
    stem: str,
    params: dict | None = None,
    width: int = svg.WIDE,
    run: dict | None = None,
    advise: bool = True,
) -> dict:
    """Draw a view: {"svg", "sentence", "values", "law", "levers"}; no law is [], no word on the controls {}. `run` is
    what `measured` made of the reader's Record. advise: end the sentence with the view's `advice`.

    Deterministic and free of NaN and infinity, so the same parameters give the same JSON everywhere.
    """
    view = _view(stem)
    if width not in (svg.WIDE, svg.NARROW):
        raise ValueError(f"width must be {svg.WIDE} or {svg.NARROW}, not {checks.said(width)}")
    measured_args = (run,) if hasattr(view, "measured") else ()
    params = clean(stem, params)
    result = {"law": [], "levers": {}} | view.draw(params, width, *measured_args)
    _check_result(stem, result)
    if advise and hasattr(view, "advice"):
        result["sentence"] = f"{result['sentence']} {view.advice(params)}".strip()
    return result


def advice(stem: str, params: dict | None = None) -> str:
    """What ends the sentence of a view: the lever worth trying now; "" where there is none to be named."""
    view = _view(stem)
    return view.advice(clean(stem, params)) if hasattr(view, "advice") else ""


def sections(stem: str) -> tuple[tuple[str, ...], ...]:
    """Names of what a view tells beneath its sentence, by column."""
    return getattr(_view(stem), "SECTIONS", ())


def beneath(stem: str, params: dict | None, name: str) -> dict:
    """One of them: {"title", "blocks"}. ValueError for one that is not there."""
    return _view(stem).beneath(clean(stem, params), _section(stem, name))


def _section(stem: str, name: str) -> str:
    names = [section for column in sections(stem) for section in column]
    if name not in names:
        raise ValueError(f"{stem} has no section {checks.said(name)}: use one of {', '.join(names) or 'none'}")
    return name


def prepare(stem: str, params: dict | None, name: str) -> bool:
    """Do a part of what a section takes, where it takes long, and return whether there is more to do."""
    view = _view(stem)
    return hasattr(view, "prepare") and view.prepare(clean(stem, params), _section(stem, name))


def asks(stem: str) -> bool:
    """Whether a view has a question, and a picture without its answer."""
    view = _view(stem)
    return hasattr(view, "locked") and any(control.kind == "guess" for control in view.CONTROLS)


def question(stem: str, values: dict | None = None) -> dict:
    """What the reader is asked of a view as it opens: {"pictures": [wide, narrow] without the answer, "answer",
    "words", "slips": [[value, words], ...]}. `values`: of the view as it opens, where they are known. ValueError for a
    view that has no question.
    """
    view = _view(stem)
    guessed = next((control for control in view.CONTROLS if control.kind == "guess"), None)
    if guessed is None:
        raise ValueError(f"{stem} asks for no guess")
    opening = defaults(stem)
    answer = (values or render(stem)["values"])[guessed.answer]
    text = f"{answer:,}" if isinstance(answer, int) else quantity(answer)
    return {
        "pictures": [view.locked(opening, width) for width in (svg.WIDE, svg.NARROW)],
        "answer": answer,
        "words": f"rank {text}"
        if guessed.unit == "rank"
        else f"{text}{'' if guessed.unit == '%' else ' '}{guessed.unit}".strip(),
        "slips": [[value, words] for value, words in view.slips(opening)],
    }


def _check_result(stem: str, result: dict) -> None:
    """A view that breaks its promise is found here rather than in the reader's browser."""
    if set(result) != {"svg", "sentence", "values", "law", "levers"}:
        got = ", ".join(sorted(result))
        raise ValueError(f"the view {stem} must give svg, sentence and values, and may give law and levers, not {got}")
    for name in result["levers"]:
        if name not in _settable(stem):
            raise ValueError(f"the view {stem} has no control {name!r} to say anything of")
    try:
        json.dumps(result["values"], allow_nan=False)  # a tenth of the time of looking at each
    except ValueError:
        _check_finite(stem, result["values"], "values")
        raise


def _check_finite(stem: str, value: object, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the view {stem} gave {path} = {value}, which is not a finite number")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_finite(stem, inner, f"{path}.{key}")
    if isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check_finite(stem, inner, f"{path}[{index}]")
