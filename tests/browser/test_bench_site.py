"""The parts of `make bench` that need the built site, at their smallest; and that a missing figure is an error."""

from __future__ import annotations

import sys

import bench
import bench_widget
import pytest
import redraws
from bench_figures import PARTS, check, read
from view_settings import controls

from scaleout import views


@pytest.mark.slow
def test_every_figure_of_the_widgets_comes(book):
    check("widget")


def test_every_figure_of_the_build_comes(book, monkeypatch, capsys):
    """Without a build, which would change the site under the other tests; `make test` has just made it."""
    monkeypatch.setattr(bench, "timed", lambda command: 1.0)
    bench.build(smallest=True)
    printed = capsys.readouterr().out
    for name in PARTS["build"]:
        read(printed, name)


def test_a_view_on_no_page_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_widget, "HTML", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench_widget.py"])
    assert bench_widget.main() == 2
    assert f"no page of _build/html shows the view {', '.join(redraws.stems())}" in capsys.readouterr().err


@pytest.mark.parametrize("taken", [[], [{"whole": 5.0}] * 19])
def test_too_few_redraws_are_an_error(taken):
    with pytest.raises(ValueError, match="redraws were seen"):
        bench_widget.speed("dragged", taken)
    with pytest.raises(ValueError, match="nothing was measured"):
        bench_widget.show("bytes for Python", 0.0, "MB")


@pytest.mark.parametrize("stem", redraws.stems())
def test_random_settings_can_be_drawn_reach_every_control_and_repeat(stem, monkeypatch):
    for state, moved, to in redraws.settings(stem, 2, 0):
        views.render(stem, {**state, moved: to})
    monkeypatch.setattr(redraws.live, "call", lambda *_: {"svg": ""})  # what follows is of the choice alone
    drawn = redraws.settings(stem, 30, 0)
    assert drawn == redraws.settings(stem, 30, 0) != redraws.settings(stem, 30, 1)
    for state, moved, to in drawn:
        assert state.keys() == controls(stem).keys() and to != state[moved]
    for name in controls(stem):
        assert len({str(state[name]) for state, _moved, _to in drawn}) > 1, name
