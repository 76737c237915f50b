"""The HTML form of a live widget: what a notebook stores, and what the page shows before any Python runs.

It reads without JavaScript: the picture and its sentence, or the exercise with its hints and solution folded.
The JSON it carries is what the front end needs to come alive.
"""

from __future__ import annotations

import base64
import json
import re
from html import escape, unescape

from scaleout import views
from scaleout.draw import svg
from scaleout.page import live
from scaleout.views import blocks
from scaleout.words import markup
from scaleout.words.markup import bold, typed

STORED_SETTINGS = 8  # settings of a view that are stored with the page, which then shows each without Python

DATA = '<script type="application/json" class="live-data">'  # what the JSON of a widget stands in

KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def view(
    stem: str,
    key: str | None = None,
    params: dict | None = None,
    ask: bool = False,
    record: dict | None = None,
) -> dict:
    """All that a front end needs to show a view: {"stem", "key", "spec", "params", "result", "seconds", ...}.

    `ask`: the reader guesses first, and "result" is hidden until then; ValueError where parameters are given too, for
    the question is of the view as it opens. What is worth trying is then told once the reader has moved a control: the
    chapter's own tasks come first. `record`: a lab's Record, whose points are in the picture.
    """
    if ask and params:
        raise ValueError(f"{stem} asks about its opening setting: leave {', '.join(params)} as it is, or do not ask")
    params = views.clean(stem, params)
    own = views.measured(stem, record) if record is not None else None
    widths = [svg.WIDE, svg.NARROW]
    wide, narrow = (views.render(stem, params, width, own, advise=not ask) for width in widths)
    data: dict[str, object] = {
        "form": "view",
        "stem": stem,
        "key": check_key(key or stem),
        "spec": views.spec(stem),
        "params": params,
        "result": {**wide, "svg": [wide["svg"], narrow["svg"]]},
        "own": own,
        "widths": widths,
        "seconds": live.LEARNER_SECONDS,
        "stopped": live.STOPPED,
    }
    if settings := views.settings(stem, STORED_SETTINGS):
        data["every"] = [[setting, [views.render(stem, setting, width) for width in widths]] for setting in settings]
    return data | ({"question": views.question(stem, wide["values"])} if ask else {})


def exercise(stem: str, key: str) -> dict:
    """All that a front end needs to show an exercise: {"stem", "key", "spec", "seconds"}, texts as HTML."""
    from scaleout import exercises

    spec = dict(exercises.spec(stem, key))
    spec["prompt"] = markup.html(spec["prompt"])
    spec["hints"] = [markup.html(hint) for hint in spec["hints"]]
    spec["solution"] = markup.html(spec["solution"])
    return {
        "form": "exercise",
        "stem": stem,
        "key": key,
        "spec": spec,
        "seconds": live.LEARNER_SECONDS,
        "stopped": live.STOPPED,
    }


def check_key(key: str) -> str:
    """The name of one widget on its page: it becomes part of an address."""
    if not (isinstance(key, str) and KEY.fullmatch(key)):
        raise ValueError(f"key must be letters, digits, - or _, starting with a letter, not {key!r}")
    return key


def html(data: dict) -> str:
    """The HTML form of what `view` or `exercise` gave."""
    body = _view_body(data) if data["form"] == "view" else _exercise_body(data)
    name = data["key"] if data["form"] == "view" else f"{data['stem']}-{data['key']}"
    asks = ' data-asks=""' if "question" in data else ""
    return (
        f'<div class="live-widget" id="live-{name}" data-form="{data["form"]}"{asks}>\n{body}\n'
        f"{carried(_stored(data))}\n</div>"
    )


def tabs(views_by_words: list[tuple[str, dict]]) -> str:
    """The HTML form of several views, of which one is shown at a time. It takes no JavaScript: tabs are radio buttons,
    and the style sheet hides the other views (static/tabs.css)."""
    inputs = "".join(
        f'<label><input type="radio" name="live-tab"{" checked" * (not place)}><span>{escape(words)}</span></label>'
        for place, (words, _) in enumerate(views_by_words)
    )
    shown = "".join(f'<div class="live-tab">{html(data)}</div>' for _, data in views_by_words)
    first = f'<div class="live-tablist" role="radiogroup" aria-label="What to plan">{inputs}</div>'
    return f'<div class="live-tabs">{first}{shown}</div>'


def plain(data: dict) -> str:
    """The text form: the title, and the sentence or the prompt."""
    if "question" in data:
        words = _text(bold(_question(data)))
    else:
        words = _text(bold(data["result"]["sentence"])) if data["form"] == "view" else _text(data["spec"]["prompt"])
    return f"{data['spec']['title']}\n{words}"


def _question(data: dict) -> str:
    return next(control["label"] for control in data["spec"]["controls"] if control["kind"] == "guess")


def _stored(data: dict) -> dict:
    """The data without what the HTML around it holds. What a question hides is there, but not in plain words."""
    if data["form"] == "exercise":
        return data
    levers = data["result"]["levers"]
    if "question" not in data:
        return {**data, "result": {"values": data["result"]["values"], "levers": levers}}
    question = {name: value for name, value in data["question"].items() if name != "pictures"}
    hidden = json.dumps({"result": data["result"], "question": question}, allow_nan=False, separators=(",", ":"))
    visible = {name: value for name, value in data.items() if name != "question"}
    return {**visible, "result": {"levers": levers}, "sealed": base64.b64encode(hidden.encode()).decode()}


def carried(data: dict) -> str:
    """What a widget carries for its front end: JSON that no HTML parser takes for markup."""
    return DATA + json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c") + "</script>"


def _view_body(data: dict) -> str:
    """The strip with the question or the title; the picture at both widths, of which the style sheet shows one; at its
    side the law; beneath, the sentence."""
    question = data.get("question")
    title = _question(data) if question else data["spec"]["title"]
    pictures = question["pictures"] if question else data["result"]["svg"]
    law, sentence = ([], "") if question else (data["result"]["law"], data["result"]["sentence"])
    shown = "\n".join(
        f'<div class="live-figure live-{name}">{picture}</div>'
        for name, picture in zip(("wide", "narrow"), pictures, strict=True)
    )
    lines = "".join(f"<p>{bold(words)}</p>" for words in law)
    return (
        f'<div class="live-strip"><p class="live-title">{bold(title)}</p>'
        f'</div>\n<div class="live-body"><div class="live-stage">{shown}</div>\n'
        f'<div class="live-side"><div class="live-law">{lines}</div></div></div>\n'
        f'<p class="live-sentence">{bold(sentence)}</p>{"" if question else _beneath(data["stem"], data["params"])}'
    )


def _beneath(stem: str, params: dict) -> str:
    """What a view tells beneath its sentence, in columns; "" where that is nothing."""
    columns = "".join(
        '<div class="live-column">'
        + "".join(
            f'<section data-section="{name}">{blocks.html(views.beneath(stem, params, name))}</section>'
            for name in names
        )
        + "</div>"
        for names in views.sections(stem)
    )
    return f'<div class="live-beneath">{columns}</div>' if columns else ""


def _exercise_body(data: dict) -> str:
    spec = data["spec"]
    parts = [
        f'<p class="live-title">{escape(spec["title"])}</p>',
        f'<div class="live-prompt">{spec["prompt"]}</div>',
    ]
    if spec["kind"] == "choice":
        items = "".join(f"<li>{escape(label)}</li>" for _name, label in spec["options"])
        parts.append(f"<ul>{items}</ul>")
    if spec.get("stub"):
        parts.append(typed(spec["stub"]))
    if spec.get("command"):
        parts.append(f"<p>Check it with</p>{typed(spec['command'])}")
    parts += [
        f"<details><summary>Hint {count}</summary>{hint}</details>" for count, hint in enumerate(spec["hints"], 1)
    ]
    parts.append(f"<details><summary>Solution</summary>{spec['solution']}</details>")
    return '<div class="live-static">' + "\n".join(parts) + "</div>"


def _text(marked: str) -> str:
    """Marked-up words as plain text."""
    return unescape(re.sub(r"<[^>]+>", "", marked)).strip()
