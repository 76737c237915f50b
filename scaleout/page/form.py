"""The HTML form of a live widget: what a notebook stores, and what the page shows before any Python runs.

It reads without JavaScript: the picture and its sentence, or the exercise with its hints and solution folded.
The JSON it carries is what the front end needs to come alive.
"""

from __future__ import annotations

import json
import re
from html import escape, unescape

from scaleout import views
from scaleout.page import live

KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def view(stem: str, key: str | None = None, params: dict | None = None) -> dict:
    """All that a front end needs to show a view: {"stem", "key", "spec", "params", "result", "seconds"}."""
    params = views.clean(stem, params)
    return {
        "form": "view", "stem": stem, "key": check_key(key or stem), "spec": views.spec(stem),
        "params": params, "result": views.render(stem, params), "seconds": live.LEARNER_SECONDS,
        "stopped": live.STOPPED,
    }  # fmt: skip


def exercise(stem: str, key: str) -> dict:
    """All that a front end needs to show an exercise: {"stem", "key", "spec", "seconds"}, texts as HTML."""
    from scaleout import exercises

    spec = dict(exercises.spec(stem, key))
    spec["prompt"] = markdown(spec["prompt"])
    spec["hints"] = [markdown(hint) for hint in spec["hints"]]
    spec["solution"] = markdown(spec["solution"])
    return {
        "form": "exercise", "stem": stem, "key": key, "spec": spec, "seconds": live.LEARNER_SECONDS,
        "stopped": live.STOPPED,
    }  # fmt: skip


def check_key(key: str) -> str:
    """The name of one widget on its page: it becomes part of an address."""
    if not (isinstance(key, str) and KEY.fullmatch(key)):
        raise ValueError(f"key must be letters, digits, - or _, starting with a letter, not {key!r}")
    return key


def html(data: dict) -> str:
    """The HTML form of what `view` or `exercise` gave."""
    body = _view_body(data) if data["form"] == "view" else _exercise_body(data)
    name = data["key"] if data["form"] == "view" else f"{data['stem']}-{data['key']}"
    locked = ' data-guess=""' if _asks(data) else ""
    return (
        f'<div class="live-widget" id="live-{name}" data-form="{data["form"]}"{locked}>\n{body}\n'
        f'<script type="application/json" class="live-data">{_json(_stored(data))}</script>\n</div>'
    )


def plain(data: dict) -> str:
    """The text form: the title, and the sentence or the prompt."""
    words = data["result"]["sentence"] if data["form"] == "view" else _text(data["spec"]["prompt"])
    return f"{data['spec']['title']}\n{words}"


def _asks(data: dict) -> bool:
    return any(control["kind"] == "guess" for control in data["spec"].get("controls", []))


def _stored(data: dict) -> dict:
    """The data without what the HTML around it already holds: the picture and the sentence."""
    if data["form"] == "exercise":
        return data
    return {**data, "result": {"values": data["result"]["values"]}}


def _json(data: dict) -> str:
    """JSON that no HTML parser takes for markup."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _view_body(data: dict) -> str:
    return (
        f'<p class="live-title">{escape(data["spec"]["title"])}</p>\n'
        f'<div class="live-stage"><div class="live-figure">{data["result"]["svg"]}</div>\n'
        f'<p class="live-sentence">{escape(data["result"]["sentence"])}</p></div>'
    )


def _exercise_body(data: dict) -> str:
    spec = data["spec"]
    parts = [f'<p class="live-title">{escape(spec["title"])}</p>']
    parts.append(f'<div class="live-prompt">{spec["prompt"]}</div>')
    if spec["kind"] == "choice":
        items = "".join(f"<li>{escape(label)}</li>" for _name, label in spec["options"])
        parts.append(f"<ul>{items}</ul>")
    if spec.get("stub"):
        parts.append(_pre(spec["stub"]))
    if spec.get("command"):
        parts.append(f"<p>Check it with</p>{_pre(spec['command'])}")
    for count, hint in enumerate(spec["hints"], 1):
        parts.append(f"<details><summary>Hint {count}</summary>{hint}</details>")
    parts.append(f"<details><summary>Solution</summary>{spec['solution']}</details>")
    return '<div class="live-static">' + "\n".join(parts) + "</div>"


def _text(marked: str) -> str:
    """Marked-up words as plain text."""
    return unescape(re.sub(r"<[^>]+>", "", marked)).strip()


def markdown(text: str) -> str:
    """A little Markdown as HTML: paragraphs, lists with "- ", fenced blocks, `code`, **strong**, *emphasis*.

    Everything else is text: HTML in it shows as written.
    """
    out = []
    for index, block in enumerate(re.split(r"^```\w*\n(.*?)^```[ ]*$", text, flags=re.S | re.M)):
        if index % 2:
            out.append(_pre(block.rstrip()))
        else:
            out += [_block(part) for part in re.split(r"\n\s*\n", block.strip()) if part.strip()]
    return "\n".join(out)


def _pre(text: str) -> str:
    # what may scroll sideways has to be reachable by keyboard
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'


def _block(block: str) -> str:
    lines = block.splitlines()
    if all(line.lstrip().startswith("- ") for line in lines):
        return "<ul>" + "".join(f"<li>{_inline(line.lstrip()[2:])}</li>" for line in lines) + "</ul>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _inline(text: str) -> str:
    out = []
    for index, part in enumerate(re.split(r"`([^`]+)`", text)):
        if index % 2:
            out.append(f"<code>{escape(part)}</code>")
        else:
            part = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(part, quote=False))
            out.append(re.sub(r"(?<![\w*])\*(\S(?:.*?\S)?)\*(?![\w*])", r"<em>\1</em>", part))
    return "".join(out)
