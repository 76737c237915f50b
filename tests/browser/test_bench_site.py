"""The parts of `make bench` that need the built site, at their smallest; and that a missing figure is an error."""

from __future__ import annotations

import os
import sys

import bench_widget
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from bench_figures import check

from scaleout import views

pytestmark = pytest.mark.browser


@pytest.fixture
def site_is_built():
    """Without the site they skip, or fail where REQUIRE_BROWSER=1."""
    if not (bench_widget.HTML / "index.html").is_file():
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") == "1" else pytest.skip)("no site: run make site")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["build", "widget"])
def test_every_figure_comes(site_is_built, part):
    check(part)


def test_a_view_on_no_page_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_widget, "HTML", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench_widget.py"])
    assert bench_widget.main() == 2
    assert "no page of _build/html shows the view capstone" in capsys.readouterr().err


@pytest.mark.parametrize("taken", [[], [5.0] * 19])
def test_too_few_redraws_are_an_error(taken):
    with pytest.raises(ValueError, match="redraws were seen"):
        bench_widget.speed("dragged", taken)
    with pytest.raises(ValueError, match="nothing was measured"):
        bench_widget.show("bytes for Python", 0.0, "MB")


def controls(stem):
    return {one.name: one for one in views._view(stem).CONTROLS if one.kind != "guess"}


@pytest.mark.parametrize("stem", [stem for stem in views.stems() if stem != "specimen"])
def test_random_settings_reach_every_control_and_repeat(stem):
    drawn = bench_widget.settings(stem, 30, 0)
    assert drawn == bench_widget.settings(stem, 30, 0) != bench_widget.settings(stem, 30, 1)
    for state, moved, to in drawn:
        assert state.keys() == controls(stem).keys() and to != state[moved]
        views.render(stem, {**state, moved: to})
    for name in controls(stem):
        assert len({str(state[name]) for state, _moved, _to in drawn}) > 1, name
