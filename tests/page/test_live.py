"""The views as a whole, the door to them, their HTML form and their notebook form."""

from __future__ import annotations

import base64
import gc
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
        controls.guess("How **much** of it?", "answer", "GB", hi=9),
        controls.slider("size", "Size", 2, 1, 9),
        controls.toggle("on", "On", False),
    )
    module.seen = []
    module.draw = lambda params, width: module.seen.append((params, width)) or dict(DRAWN)
    module.locked = lambda params, width: f"<svg>{width}</svg>"
    module.slips = lambda params: [(params["size"], "the size")]
    monkeypatch.setitem(sys.modules, "scaleout.views.toy", module)
    monkeypatch.setattr(views, "stems", lambda: ["memory", "toy"])
    return module


def test_draw_gets_every_parameter_clean_and_its_width(toy):
    assert views.render("toy", {"size": 3.0}) == {**DRAWN, "law": [], "levers": {}}
    views.render("toy", {"on": True}, 358)
    assert toy.seen == [({"size": 3, "on": False}, 600), ({"size": 2, "on": True}, 358)]
    with pytest.raises(ValueError, match="width must be 600 or 358, not 480"):
        views.render("toy", {}, 480)


def test_a_question_has_two_pictures_and_the_answer_of_the_opening_setting(toy):
    assert views.question("toy") == {
        "pictures": ["<svg>600</svg>", "<svg>358</svg>"],
        "answer": 4.0,
        "words": "4.00 GB",
        "slips": [[2, "the size"]],
    }
    toy.CONTROLS = toy.CONTROLS[1:]
    with pytest.raises(ValueError, match="toy asks for no guess"):
        views.question("toy")


def test_what_is_told_beneath_comes_in_parts_and_as_html(toy):
    assert views.sections("toy") == () and "live-beneath" not in form.html(form.view("toy"))
    left, toy.SECTIONS = [1, 1], (("one", "two"), ("three",))
    toy.beneath = lambda params, name: {
        "title": f"{name} & {params['size']}",
        "blocks": [
            ("words", "as **bold**"),
            ("pictures", "<svg>w</svg>", "<svg>n</svg>"),
            ("table", ["", "a"], [["x", "<1>"]]),
            ("fold", "lines", "--a\n--b"),
            ("link", "there", "page.html#live-mesh?tp=2&pp=4"),
        ],
    }
    toy.prepare = lambda params, name: bool(left and left.pop())
    asked = {"stem": "toy", "params": {"size": 4}, "section": "two"}
    assert [live.call("beneath", asked) for _ in left[:]] == [{"more": True}] * 2
    found = live.call("beneath", asked)["html"]
    assert found.startswith("<h2>two &amp; 4</h2><p>as <strong>bold</strong></p>") and "&lt;1&gt;" in found
    assert '<div class="live-figure live-narrow"><svg>n</svg></div>' in found
    assert '<summary>lines</summary><pre tabindex="0"><code>--a\n--b</code></pre>' in found
    assert '<a href="page.html" data-fragment="live-mesh?tp=2&amp;pp=4">there</a>' in found
    whole = form.html(form.view("toy", params={"size": 4}))
    assert whole.count("live-column") == 2 and found in whole
    assert live.call("beneath", {**asked, "section": "gone"}) == {
        "error": "toy has no section 'gone': use one of one, two, three"
    }


def test_advice_ends_the_sentence_and_can_come_after_the_picture(toy):
    assert live.call("advice", {"stem": "toy"}) == {"advice": ""} and not views.spec("toy")["advises"]
    toy.advice = lambda params: f"Try {params['size'] + 1}."
    assert views.render("toy")["sentence"] == f"{DRAWN['sentence']} Try 3." and views.spec("toy")["advises"]
    assert live.call("draw", {"stem": "toy", "advise": False})["sentence"] == DRAWN["sentence"]
    assert live.call("advice", {"stem": "toy", "params": {"size": 4}}) == {"advice": "Try 5."}


def test_the_page_knows_the_controls_whose_change_is_a_search(toy):
    """It draws none of their values before they are asked for."""
    assert "searches" not in views.spec("toy")
    toy.QUESTION = ("size",)
    assert views.spec("toy")["searches"] == ["size"] == list(views.search_controls("toy"))


def test_a_record_reaches_the_picture_as_what_the_view_takes_of_it(toy):
    refused = {"error": "no lab measures what toy shows"}
    assert live.call("measured", {"stem": "toy", "record": {}}) == refused and not views.spec("toy")["measured"]
    toy.measured = lambda record: {"peak": record["peak"]}
    toy.draw = lambda params, width, own: {**DRAWN, "values": {"own": own}}
    assert views.spec("toy")["measured"]
    own = live.call("measured", {"stem": "toy", "record": {"peak": 3, "rest": 4}})
    assert own == {"peak": 3}
    assert live.call("draw", {"stem": "toy", "own": own})["values"] == {"own": own}
    assert views.render("toy")["values"] == {"own": None}
    assert live.call("measured", {"stem": "toy", "record": [1]}) == {"error": "a Record is a JSON object, not list"}


@pytest.mark.parametrize(
    ("stem", "params", "words"),
    [
        ("nothing", {}, "there is no view 'nothing': use one of memory, toy"),
        ("../toy", {}, "there is no view '../toy': use one of memory, toy"),
        (None, {}, "there is no view None: use one of memory, toy"),
        ("toy", {"depth": 1}, "toy has no parameter 'depth': use one of size, on"),
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
        ({**DRAWN, "levers": {"depth": {"off": "no"}}}, "no control 'depth'"),
    ]:
        toy.draw = lambda params, width, broken=broken: broken
        with pytest.raises(ValueError, match=words):
            views.render("toy")


def test_errors_cross_to_javascript_as_json(toy):
    toy.draw = lambda params, width: 1 / 0
    assert json.loads(live.call_json("draw", '{"stem": "toy"}')) == {"error": "ZeroDivisionError: division by zero"}
    unknown = {"error": "there is no method 'dance': use draw, advice, beneath, measured, check, run, judge, execute"}
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
        toy.draw = lambda params, width, text=text: exec(compile(text, FILE, "exec"))
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


def test_the_html_form_holds_pictures_sentence_and_data(toy):
    law = ["so:", "1 + **1** < 3", "or less"]
    toy.draw = lambda params, width: {**DRAWN, "svg": f"<svg>{width}!</svg>", "law": law}
    text = form.html(form.view("toy", "first", {"size": 5}))
    for held in (
        "<svg>600!</svg>",
        "<svg>358!</svg>",
        "It is &lt;4&gt;.",
        "A toy &amp; more",
        "<p>1 + <strong>1</strong> &lt; 3</p>",
        'id="live-first"',
    ):
        assert held in text
    read = Tags(text)
    assert read.open == []
    data = json.loads(read.json)
    assert data["params"] == {"size": 5, "on": False}
    assert data["result"] == {"values": {"answer": 4.0}, "levers": {}}  # the picture is not stored a second time
    assert text == form.html(form.view("toy", "first", {"size": 5}))


def test_what_a_question_hides_is_not_in_plain_words(toy):
    toy.draw = lambda params, width: {**DRAWN, "svg": "<svg>12.75</svg>", "sentence": "So 12.75 it is."}
    made = form.view("toy", ask=True)
    text = form.html(made)
    read = Tags(text)
    assert read.open == [] and "<svg>600</svg>" in text and "How <strong>much</strong> of it?" in text
    assert "12.75" not in text and "the size" not in text and "4.0" not in text
    hidden = json.loads(base64.b64decode(json.loads(read.json)["sealed"]))
    assert hidden["result"]["svg"] == ["<svg>12.75</svg>"] * 2 and hidden["result"]["sentence"] == "So 12.75 it is."
    assert hidden["question"] == {"answer": 4.0, "words": "4.00 GB", "slips": [[2, "the size"]]}
    assert form.plain(made) == "A toy & more\nHow much of it?"
    with pytest.raises(ValueError, match="asks about its opening setting: leave size as it is"):
        form.view("toy", params={"size": 5}, ask=True)


def test_what_is_worth_trying_is_not_told_with_the_answer(toy):
    toy.advice = lambda params: "Try **5**."
    said = [form.view("toy", ask=ask)["result"]["sentence"] for ask in (False, True)]
    assert said[0] == f"{said[1]} Try **5**." and "Try" not in said[1]


def test_no_text_can_end_the_data_early(toy):
    toy.TITLE = "</script><script>alert(1)</script>"
    read = Tags(form.html(form.view("toy")))
    assert json.loads(read.json)["spec"]["title"] == toy.TITLE


@pytest.mark.parametrize("key", ["a b", "1st", "", "x?y", None, 3])
def test_a_key_has_to_fit_an_address(key):
    with pytest.raises(ValueError, match="key must be letters"):
        form.check_key(key)


def test_an_exercise_reads_without_scripts():
    text = form.html(form.exercise("memory", "states-function"))
    read = Tags(text)
    assert read.open == []
    visible = re.sub(r"<script.*</script>", "", text, flags=re.S)
    assert "def states_bytes(params" in visible
    assert visible.count("<details>") == len(json.loads(read.json)["spec"]["hints"]) + 1


def test_one_output_with_three_forms(toy, tmp_path):
    pytest.importorskip("anywidget")
    from scaleout import show
    from scaleout.page import widget

    data, _metadata = show("toy", size=7)._repr_mimebundle_()
    html = form.html(form.view("toy", None, {"size": 7}))
    assert data["text/html"] == html.replace('live-stage"', 'live-stage" hidden="hidden"') + f"\n{widget.ASLEEP}"
    assert data["text/plain"] == "A toy & more\nIt is <4>."
    assert "application/vnd.jupyter.widget-view+json" in data
    with pytest.raises(ValueError, match="size must be from 1 to 9, not 70"):
        show("toy", size=70)
    toy.measured = dict
    toy.draw = lambda params, width, own: {**DRAWN, "values": own}
    (tmp_path / "run.json").write_text('{"peak": 3}')
    assert form.view("toy", record={"peak": 3})["result"]["values"] == {"peak": 3}
    shown = show("toy", record=tmp_path / "run.json")._repr_mimebundle_()[0]["text/html"]
    assert shown == widget.stored(form.html(form.view("toy", record={"peak": 3})))


def test_the_notebook_gets_one_module_and_one_style_sheet():
    pytest.importorskip("anywidget")
    from scaleout.page import widget

    joined = widget.bundle()
    for i, name in enumerate(widget.MODULES):
        needs = re.findall(r'from "\./([^"]+)"', (widget.STATIC / name).read_text("utf-8"))
        assert set(needs) <= set(widget.MODULES[:i]), name
    assert not re.search(r"^import\b", joined, flags=re.M)
    assert re.findall(r"^export .*", joined, flags=re.M) == ["export default {"]
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", joined, flags=re.M)
    for several in re.findall(r"^(?:const|let) [\[{]([^\]}]+)[\]}] =", joined, flags=re.M):
        names += re.findall(r"\w+", several)
    assert sorted(names) == sorted(set(names)), "two modules use one name at their top level"
    assert "@import" not in widget.styles()
    assert "--c1:" in widget.styles() and ".live-editor" in widget.styles()


def test_importing_the_package_loads_nothing_heavy():
    import subprocess

    code = (
        "import scaleout, sys; print([m for m in ('torch', 'anywidget', 'scaleout.page.widget') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_collection_comes_in_the_middle_of_a_drawing(toy):
    """It comes after the answer; other methods, and a notebook's drawings, are as they were."""
    collecting: list = []
    toy.draw = lambda params, width: collecting.append(gc.isenabled()) or DRAWN
    drawing = '{"stem": "toy"}'
    try:
        answer = live.answer("draw", drawing)
        before = gc.get_stats()[1]["collections"]
        live.collect()
        assert gc.isenabled() and gc.get_stats()[1]["collections"] > before
        assert live.call_json("draw", drawing) == answer
        live.answer("beneath", drawing)
        assert gc.isenabled()
    finally:
        gc.enable()
    assert collecting == [False, True]


def test_what_is_loaded_is_not_looked_through_again():
    """Of what a module has made, nothing is left for the collector; what comes later it still finds."""
    live.settle()
    try:
        assert gc.get_freeze_count() > 10_000 and len(gc.get_objects()) < 1000
        cycle: list = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()
