"""Every part of `make bench` at its smallest: each figure that it promises comes, is finite, and is above 0.

No figure is judged: how fast a machine is, is no matter of right or wrong. The parts that need the built site are in
tests/browser/test_bench_site.py.
"""

import sys

import pytest
from bench_figures import PARTS, check, read, read_all
from repo import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import bench
import bench_faults


def test_every_part_is_tested():
    assert set(PARTS) == set(bench.parts()) - {"fresh"}


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("part", sorted(set(PARTS) - {"build", "widget", "faults"}))
def test_every_figure_comes(part):
    check(part)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_every_figure_comes_of_ranks_that_are_killed(monkeypatch, capsys):
    """In this process: where the killed ranks are found, it knows for whom a Python stands that has torch already."""
    monkeypatch.setattr(sys, "argv", ["bench_faults.py", "--smallest"])
    bench_faults.main()
    read_all("faults", capsys.readouterr().out)


@pytest.mark.parametrize("printed", ["quiet step   0.00 ms", "quiet step   nan ms", "quiet steps   1.00 ms", ""])
def test_a_figure_that_is_nothing_is_seen(printed):
    with pytest.raises(AssertionError):
        read(printed, "quiet step")


def test_figures_are_read():
    assert read("x 3\nquiet step   1,501.50 ms\nquiet step  2 ms", "quiet step") == [1501.5, 2]
    assert read("error   0.00%", "error", 0.0) == [0]


def test_a_part_that_fails_fails_the_bench_and_stops_no_other(monkeypatch, capsys):
    def failing(_smallest):
        raise ValueError("nothing was measured")

    monkeypatch.setattr(bench, "parts", lambda: {"first": failing, "second": lambda _smallest: print("a figure")})
    monkeypatch.setattr(sys, "argv", ["bench.py"])
    assert bench.main() == 1
    said = capsys.readouterr()
    assert "a figure" in said.out and said.err == "bench: nothing was measured\n"
