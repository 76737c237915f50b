"""`show` and `show_exercise`: one output with two forms.

In Jupyter it is an anywidget whose Python runs in the kernel. In a stored notebook, and so on the site, it is
the HTML of `scaleout.page.form`, which the page's own Python brings to life. Both use `static/` and `live.call`.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import anywidget
import traitlets

from scaleout.page import form, live

STATIC = files("scaleout.page") / "static"
ASLEEP = '<p class="live-asleep"><em>Run this cell to use it.</em></p>'

# The front end's modules, each after those it imports. anywidget takes one module, so they are joined.
MODULES = (
    "file.js", "controls.js", "status.js", "code.js", "share.js", "field.js", "hands.js", "glide.js", "figure.js",
    "guess.js", "record.js", "ahead.js", "rest.js", "room.js", "view.js", "exercise.js", "stored.js", "mount.js",
    "jupyter.js",
)  # fmt: skip


def bundle() -> str:
    """The front end as one ES module: the modules joined, without the imports between them."""
    parts = []
    for name in MODULES:
        source = (STATIC / name).read_text(encoding="utf-8")
        source = re.sub(r"^import\s[^;]*?from \"\./[^;]*;\n", "", source, flags=re.M)
        parts.append(re.sub(r"^export (?!default)", "", source, flags=re.M))
    return "\n".join(parts)


def styles() -> str:
    """The style sheets as one: those that live.css imports, then itself."""
    main = (STATIC / "live.css").read_text(encoding="utf-8")
    pattern = r'^@import "(.+)";\n'
    imported = [(STATIC / name).read_text(encoding="utf-8") for name in re.findall(pattern, main, flags=re.M)]
    return "\n".join([*imported, re.sub(pattern, "", main, flags=re.M)])


def stored(html: str) -> str:
    """The HTML form as a notebook stores it, for editors that show it before the cell ran. One that does not trust a
    notebook drops drawings and leaves the words in them, so the picture waits for the site's style sheet."""
    return html.replace('class="live-stage"', 'class="live-stage" hidden="hidden"', 1) + f"\n{ASLEEP}"


class Live(anywidget.AnyWidget):
    """A live view or exercise in a notebook. Made by `show` and `show_exercise`."""

    _esm = bundle()
    _css = styles()
    html = traitlets.Unicode().tag(sync=True)

    def __init__(self, data: dict) -> None:
        super().__init__(html=form.html(data))
        self.words = form.plain(data)
        self.on_msg(self._answer)

    def _answer(self, _widget: object, message: dict, _buffers: object) -> None:
        """A call from the front end, answered under its own number."""
        self.send({"id": message["id"], "result": answer(message["method"], message["args"])})

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict, dict] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        forms, metadata = bundle
        return {**forms, "text/html": stored(self.html), "text/plain": self.words}, metadata


def answer(method: str, args: dict) -> dict:
    """`live.call`; where a reader's own code runs, in a process of its own that a time limit can end."""
    if live.runs_learner_code(method, args):
        from scaleout.page import sandbox

        return sandbox.call(method, args, live.LEARNER_SECONDS)
    return live.call(method, args)


def show(
    stem: str, key: str | None = None, *, ask: bool = False, record: str | Path | None = None, **params: object
) -> Live:
    """The live view `stem`, with any of its parameters set. `key` names it where a page has several.

    `ask`: the reader guesses before anything shows. `record`: the path of a Record that a lab wrote, whose points are
    drawn beside the curves.
    """
    return Live(form.view(stem, key, params, ask, None if record is None else _read(record)))


def _read(record: str | Path) -> dict:
    """The Record of a file. ValueError, in one line, where there is none."""
    try:
        return json.loads(Path(record).read_text(encoding="utf-8"))
    except (OSError, TypeError, ValueError, RecursionError):
        raise ValueError(f"record={record!r:.60} is no Record: give the path of a JSON file that a lab wrote") from None


def show_exercise(stem: str, key: str) -> Live:
    """The exercise `key` of a chapter."""
    return Live(form.exercise(stem, key))
