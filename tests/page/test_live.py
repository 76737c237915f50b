"""The views as a whole, the door to them, their HTML form and their notebook form."""

from __future__ import annotations

import json
import re
import sys
import types
from html.parser import HTMLParser

import pytest

from scaleout import views
from scaleout.exercises.engine.function import FILE
from scaleout.page import form, live
from scaleout.views import controls

DRAWN = {"svg": "<svg></svg>", "sentence": "It is <4>.", "values": {"answer": 4.0}}


@pytest.fixture
def toy(monkeypatch):
    """A view named toy whose `draw` a test may replace."""
    module = types.ModuleType("scaleout.views.toy")
    module.TITLE = "A toy & more"
    module.CONTROLS = (
        controls.guess(unit="GB", answer="answer"),
        controls.slider("size", "Size", 2, 1, 9),
        controls.toggle("on", "On", False),
    )
    module.seen = []
    module.draw = lambda params: module.seen.append(params) or dict(DRAWN)
    monkeypatch.setitem(sys.modules, "scaleout.views.toy", module)
    monkeypatch.setattr(views, "stems", lambda: ["memory", "toy"])
    return module


def test_draw_gets_every_parameter_clean_and_never_the_guess(toy):
    views.render("toy", {"size": 3.0, "guess": 8})
    assert toy.seen == [{"size": 3, "on": False}]


@pytest.mark.parametrize(
    ("guess", "ratio", "words"),
    [
        (8, 2.0, "You said 8 GB; it is 4.00 GB. Your guess is 2.00 times the answer."),
        (1, 0.25, "You said 1 GB; it is 4.00 GB. Your guess is 0.250 times the answer."),
        (4.2, 1.05, "You said 4.2 GB; it is 4.00 GB. Close: your guess is 1.05 times the answer."),
        (0, 0.0, "You said 0 GB; it is 4.00 GB. Your guess is 0 times the answer."),
    ],
)
def test_a_guess_is_answered_with_its_ratio(toy, guess, ratio, words):
    answered = views.render("toy", {"guess": guess})["guess"]
    assert answered["ratio"] == pytest.approx(ratio)
    assert (answered["value"], answered["answer"], answered["sentence"]) == (guess, 4.0, words)


def test_a_guess_at_nothing_has_no_ratio(toy):
    toy.draw = lambda params: {**DRAWN, "values": {"answer": 0}}
    assert views.render("toy", {"guess": 3})["guess"]["ratio"] is None
    assert views.render("toy", {"guess": 0})["guess"]["ratio"] == 1.0


def test_without_a_guess_there_is_none(toy):
    assert set(views.render("toy")) == {"svg", "sentence", "values"}


@pytest.mark.parametrize(
    ("stem", "params", "words"),
    [
        ("nothing", {}, "there is no view 'nothing': use one of memory, toy"),
        ("../toy", {}, "there is no view '../toy': use one of memory, toy"),
        (None, {}, "there is no view None: use one of memory, toy"),
        ("toy", {"depth": 1}, "toy has no parameter 'depth': use one of guess, size, on"),
        ("toy", [1], "parameters come as a dict of name and value, not list"),
        ("toy", {"size": float("nan")}, "size must be a finite number, not nan"),
    ],
)
def test_bad_calls_come_back_as_one_line(toy, stem, params, words):
    assert live.call("draw", {"stem": stem, "params": params}) == {"error": words}


def test_a_view_that_breaks_its_promise_is_named(toy):
    for broken, words in [
        ({"svg": ""}, "must give svg, sentence and values"),
        ({**DRAWN, "values": {"a": [1.0, float("inf")]}}, r"values\.a\[1\] = inf"),
    ]:
        toy.draw = lambda params, broken=broken: broken
        with pytest.raises(ValueError, match=words):
            views.render("toy")


def test_errors_cross_to_javascript_as_json(toy):
    toy.draw = lambda params: 1 / 0
    assert json.loads(live.call_json("draw", '{"stem": "toy"}')) == {"error": "ZeroDivisionError: division by zero"}
    unknown = {"error": "there is no method 'dance': use draw, check, run, judge"}
    assert json.loads(live.call_json("dance", "{}")) == unknown
    deep = json.loads(live.call_json("judge", "[" * 10**6 + "]" * 10**6))
    assert deep == {"error": "That answer is nested too deeply to be read."}


def test_only_the_readers_code_needs_a_limit(toy):
    assert not live.runs_learner_code("draw", {"stem": "toy"})
    assert not live.runs_learner_code("draw", {"stem": "nothing"})
    assert not live.runs_learner_code("check", {})
    assert not live.runs_learner_code("check", {"stem": "memory", "key": "weights-70b"})
    assert live.runs_learner_code("check", {"stem": "memory", "key": "states-function"})
    toy.CONTROLS += (controls.code("text", "Text", ""),)
    assert live.runs_learner_code("draw", {"stem": "toy"})


def test_a_mistake_of_the_readers_names_its_line(toy):
    for text, words in {
        "x = +\n": "line 1: invalid syntax",
        "x = 1\ny = x / 0\n": "line 2: ZeroDivisionError: division by zero",
        "raise SystemExit\n": "line 1: SystemExit",
    }.items():
        toy.draw = lambda params, text=text: exec(compile(text, FILE, "exec"))
        assert live.call("draw", {"stem": "toy"}) == {"error": words}


class Tags(HTMLParser):
    """The open tags of a text, and the JSON in it, read as a browser reads them."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.json = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in ("input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.json += data


def test_the_html_form_holds_picture_sentence_and_data(toy):
    text = form.html(form.view("toy", "first", {"size": 5}))
    assert '<svg></svg>' in text and "It is &lt;4&gt;." in text and "A toy &amp; more" in text
    assert 'id="live-first"' in text and "data-guess" in text
    read = Tags(text)
    assert read.open == []
    data = json.loads(read.json)
    assert data["params"] == {"guess": None, "size": 5, "on": False}
    assert data["result"] == {"values": {"answer": 4.0}}  # the picture is not stored a second time
    assert text == form.html(form.view("toy", "first", {"size": 5}))


def test_no_text_can_end_the_data_early(toy):
    toy.TITLE = "</script><script>alert(1)</script>"
    read = Tags(form.html(form.view("toy")))
    assert json.loads(read.json)["spec"]["title"] == toy.TITLE


@pytest.mark.parametrize("key", ["a b", "1st", "", "x?y", None, 3])
def test_a_key_has_to_fit_an_address(key):
    with pytest.raises(ValueError, match="key must be letters"):
        form.check_key(key)


def test_markdown_is_little_and_safe():
    text = "Take `a<b` **and** *then* <b>.\n\n- one\n- `two`\n\n```python\nx = '<'\n```\n\n2 * 3 * 4"
    assert form.markdown(text) == (
        "<p>Take <code>a&lt;b</code> <strong>and</strong> <em>then</em> &lt;b&gt;.</p>\n"
        "<ul><li>one</li><li><code>two</code></li></ul>\n"
        '<pre tabindex="0"><code>x = &#x27;&lt;&#x27;</code></pre>\n'
        "<p>2 * 3 * 4</p>"
    )


def test_an_exercise_reads_without_scripts():
    text = form.html(form.exercise("memory", "states-function"))
    read = Tags(text)
    assert read.open == []
    visible = re.sub(r"<script.*</script>", "", text, flags=re.S)
    assert "def states_bytes(params" in visible
    assert visible.count("<details>") == len(json.loads(read.json)["spec"]["hints"]) + 1


def test_one_output_with_three_forms(toy):
    pytest.importorskip("anywidget")
    from scaleout import show

    data, _metadata = show("toy", size=7)._repr_mimebundle_()
    assert data["text/html"] == form.html(form.view("toy", None, {"size": 7}))
    assert data["text/plain"] == "A toy & more\nIt is <4>."
    assert "application/vnd.jupyter.widget-view+json" in data
    with pytest.raises(ValueError, match="size must be from 1 to 9, not 70"):
        show("toy", size=70)


def test_the_notebook_gets_one_module_and_one_style_sheet():
    pytest.importorskip("anywidget")
    from scaleout.page import widget

    joined = widget.bundle()
    assert not re.search(r"^import\b", joined, flags=re.M)
    assert re.findall(r"^export .*", joined, flags=re.M) == ["export default {"]
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", joined, flags=re.M)
    assert sorted(names) == sorted(set(names)), "two modules use one name at their top level"
    assert "@import" not in widget.styles()
    assert "--c1:" in widget.styles() and ".live-editor" in widget.styles()


def test_importing_the_package_loads_nothing_heavy():
    import subprocess

    code = ("import scaleout, sys; "
            "print([m for m in ('torch', 'anywidget', 'scaleout.page.widget') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
