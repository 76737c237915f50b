"""Views in tabs: what the page holds before any script runs."""

import re
from types import SimpleNamespace

import pytest
from docutils.parsers.rst import DirectiveError
from repo import text

from scaleout import views
from scaleout.page import directives, form


def test_tabs_are_radio_buttons_of_which_the_first_is_on():
    html = form.tabs([("A & B", form.view("kernels")), ("C", form.view("budget"))])
    inputs = re.findall(r"<label><input type=\"radio\" name=\"live-tab\"( checked)?><span>(.*?)</span></label>", html)
    assert inputs == [(" checked", "A &amp; B"), ("", "C")]
    assert re.findall(r'<div class="live-tab"><div class="live-widget" id="live-(\w+)"', html) == ["kernels", "budget"]
    assert 'role="radiogroup" aria-label=' in html


def directive(lines):
    """The directive, without a build."""
    made = object.__new__(directives.Tabs)
    made.content, made.lineno, made.name = lines, 1, "tabs"
    made.state = SimpleNamespace(document=SimpleNamespace(settings=SimpleNamespace(
        env=SimpleNamespace(note_reread=lambda: None))))  # fmt: skip
    made.state_machine = SimpleNamespace()
    return made


def test_the_directive_takes_a_view_and_its_words_a_line():
    (node,) = directive(["kernels: The clocks", "budget : The budget"]).run()
    assert node["classes"] == ["cell"] and "<span>The budget</span>" in node.children[0].astext()
    with pytest.raises(DirectiveError):
        directive(["nothing: Here"]).run()


def test_the_planners_page_has_both_of_its_views_in_tabs():
    (block,) = re.findall(r"```\{tabs\}\n(.*?)```", text("book/planner.md"), re.S)
    stems = [line.partition(":")[0] for line in block.strip().splitlines()]
    assert stems == ["planner", "finetune"] and set(stems) <= set(views.stems())
