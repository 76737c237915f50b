"""The parts of the labs that need no torch: corpus, options, tables, progress, the machine's profile."""

import io
import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaleout.lab import corpus, options, sweep, text
from scaleout.records import profiles
from scaleout.timing import profile as timing_profile

# --- corpus ---------------------------------------------------------------------------------------------

def test_the_corpus_is_the_standard_library_and_always_the_same():
    found = corpus.read()
    folder = Path(sysconfig.get_paths()["stdlib"])
    assert found == corpus.read()
    assert len(found) > 1_000_000
    assert (folder / "argparse.py").read_bytes() in found
    assert max(found) < corpus.VOCABULARY


def test_a_dataset_is_a_file_or_a_folder_of_text(tmp_path):
    (tmp_path / "b.md").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c.bin").write_text("left out")
    assert corpus.read(tmp_path) == b"first\nsecond"
    assert corpus.read(tmp_path / "c.bin") == b"left out"


def test_the_large_dataset_is_all_of_the_standard_library_and_torch(tmp_path, monkeypatch):
    (tmp_path / "lib" / "json").mkdir(parents=True)
    (tmp_path / "lib" / "site-packages" / "other").mkdir(parents=True)
    (tmp_path / "torch" / "nn").mkdir(parents=True)
    for name in ("lib/ast.py", "lib/json/decoder.py", "lib/site-packages/other/new.py", "torch/__init__.py",
                 "torch/nn/linear.py", "torch/LICENSE"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "lib")})
    found = SimpleNamespace(origin=str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(corpus.importlib.util, "find_spec", lambda name: found)
    names = ["ast.py", "json/decoder.py", "torch/__init__.py", "torch/nn/linear.py"]
    assert list(corpus.texts("stdlib+torch")) == names, "what else is installed differs by machine"
    assert list(corpus.texts()) == ["ast.py"]
    monkeypatch.setattr(corpus.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="there is no torch here"):
        corpus.texts("stdlib+torch")


def test_a_dataset_without_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no text: give a text file or a folder"):
        corpus.read(tmp_path)
    with pytest.raises(ValueError, match="no such file or folder"):
        corpus.read(tmp_path / "gone")


# --- options --------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Options:
    steps: int = options.number(3, "steps", highest=1000)
    lr: float = options.number(0.1, "rate", 0, None)
    mode: str = options.choice("a", ("a", "b"), "mode")
    fast: bool = options.flag("fast", True)
    save: str | None = options.save("none")


TIERS = {"smoke": Options(), "cpu": Options(steps=200)}


def parse(*words):
    return options.parse(TIERS, "doc", list(words))


def test_a_flag_overrides_one_field_of_the_tier():
    assert parse() == ("smoke", Options())
    assert parse("--tier", "cpu", "--lr", "1e-3") == ("cpu", Options(steps=200, lr=1e-3))
    assert parse("--no-fast", "--steps", "2.0", "--save")[1] == Options(fast=False, steps=2, save="auto")
    assert parse("--save", "x.json")[1].save == "x.json"


@pytest.mark.parametrize(("words", "said"), [
    (["--steps", "0"], "--steps is 0: it must be from 1 to 1000"),
    (["--steps", "1001"], "--steps is 1001: it must be from 1 to 1000"),
    (["--steps", "1.5"], "'1.5' is not a whole number"),
    (["--steps", "nan"], "'nan' is not a whole number"),
    (["--steps", "inf"], "'inf' is not a whole number"),
    (["--steps", ""], "'' is not a whole number"),
    (["--steps"], "expected one argument"),
    (["--lr", "nan"], "'nan' is not a finite number"),
    (["--lr", "-1"], "--lr is -1.0: it must be from 0"),
    (["--mode", "c"], "invalid choice: 'c'"),
    (["--mode", " "], "needs a value that is not empty"),
    (["--tier", "huge"], "invalid choice: 'huge'"),
    (["--step", "1"], "unrecognized arguments: --step 1"),
    (["extra"], "unrecognized arguments: extra"),
])
def test_a_bad_option_gives_one_line(words, said):
    with pytest.raises(ValueError) as caught:
        parse(*words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# --- screen ---------------------------------------------------------------------------------------------

def test_a_table_lines_its_columns_up():
    assert text.table(("what", "n"), [("a", 1), ("longer", 22)]) == (
        "what     n\n------  --\na        1\nlonger  22")


def test_numbers_for_people():
    assert text.ratio(98, 100) == "0.980"
    assert text.ratio(0, 100) == text.ratio(1, 0) == text.ratio(None, 1) == "-"
    assert text.megabytes(1_500_000) == "1.50 MB"
    assert text.megabytes(140_000_000_000) == "140.00 GB"
    assert text.megabytes(None) == "-"


class Screen(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize(("terminal", "shown", "speaks"), [(True, True, True), (False, True, False),
                                                           (True, False, False)])
def test_progress_only_on_a_terminal_and_only_where_asked(terminal, shown, speaks):
    screen = Screen(terminal)
    assert list(text.progress([1, 2], "train", shown, screen)) == [1, 2]
    assert ("train: 1/2" in screen.getvalue()) is speaks
    assert bool(screen.getvalue()) is speaks
    assert not speaks or screen.getvalue().endswith("\r\033[K"), "the line is wiped at the end"


# --- machine --------------------------------------------------------------------------------------------

def profile():
    line = timing_profile.fit([(1000, 1e-3 + 1e-6), (1_000_000, 2e-3)])
    return {"schema": 1, "device": "d", "device_kind": "cpu", "backend": "gloo", "interconnect": "i",
            "measured": "m", "commit": "c", "world": 2, "threads": 1, "copy_bytes_per_second": 1e10,
            "matmul_flops_per_second": {"fp32": 1e11}, "collectives": {"all_reduce": line}}


def test_the_fit_finds_the_line_it_was_made_from():
    found = timing_profile.fit([(size, 2e-3 + size * 5e-10) for size in (4096, 65_536, 1_048_576, 16_777_216)])
    assert found["alpha_seconds"] == pytest.approx(2e-3, rel=1e-9)
    assert found["seconds_per_byte"] == pytest.approx(5e-10, rel=1e-9)
    assert found["worst_relative_error"] < 1e-9


def test_two_lines_find_the_change_of_protocol():
    """A millisecond and 0.1 GB/s up to 64 kB, 5 ms and 2 GB/s beyond: one line misses by a third, two by nothing."""
    points = [(4**k, 1e-3 + 4**k / 1e8 if 4**k <= 65_536 else 5e-3 + 4**k / 2e9) for k in range(5, 13)]
    short, long = timing_profile.pieces(points)
    assert [one["bytes"] for one in short["points"]] == [4**k for k in (5, 6, 7, 8)]
    assert [one["bytes"] for one in long["points"]] == [4**k for k in (9, 10, 11, 12)]
    assert (short["alpha_seconds"], long["alpha_seconds"]) == (pytest.approx(1e-3), pytest.approx(5e-3))
    assert (short["seconds_per_byte"], long["seconds_per_byte"]) == (pytest.approx(1e-8), pytest.approx(5e-10))
    assert timing_profile.fit(points)["worst_relative_error"] > 0.3
    assert max(one["worst_relative_error"] for one in (short, long)) < 1e-9
    assert timing_profile.pieces(points[:5]) == []
    text = sweep.line_text({"ring": timing_profile.fit(points)}).splitlines()
    assert text[-1].split()[:3] == ["in", "two", "lines"] and text[-1].count("0%") == 8
    assert "in two lines" not in sweep.line_text({"ring": timing_profile.fit(points[:4])})


def test_the_fit_shows_what_it_misses():
    found = timing_profile.fit([(1000, 1e-3), (2000, 1e-3), (4_000_000, 5e-3), (8_000_000, 8e-3)])
    errors = [point["relative_error"] for point in found["points"]]
    assert max(map(abs, errors)) == found["worst_relative_error"] > 0.01
    assert sum(errors) == pytest.approx(-sum(e * e for e in errors)), "normal equations of the relative error"


@pytest.mark.parametrize(("points", "alpha", "beta"), [
    ([(1000, 3e-3), (2000, 2e-3), (4000, 1e-3)], None, 0.0),       # faster when larger: no bandwidth to see
    ([(1000, 1e-6), (2000, 4e-6)], 0.0, None),                     # the line would start below zero
])
def test_the_fit_is_never_below_zero(points, alpha, beta):
    found = timing_profile.fit(points)
    assert found["alpha_seconds"] >= 0
    assert found["seconds_per_byte"] >= 0
    assert alpha is None or found["alpha_seconds"] == alpha
    assert beta is None or found["seconds_per_byte"] == beta


def test_one_size_is_no_line():
    with pytest.raises(ValueError, match="at least two sizes"):
        timing_profile.fit([(1000, 1e-3), (1000, 2e-3)])


def test_seconds_of_a_step_by_hand():
    assert timing_profile.step_seconds(profile(), 5e10, "fp32") == 0.5
    assert timing_profile.step_seconds(profile(), 5e10, "fp32", 1_000_000) == pytest.approx(0.502)
    with pytest.raises(ValueError, match="no rate for bf16: it has fp32"):
        timing_profile.step_seconds(profile(), 1, "bf16")
    with pytest.raises(ValueError, match="no broadcast"):
        timing_profile.collective_seconds(profile(), "broadcast", 1)


def test_mfu_by_hand():
    """Two ranks do 2.5e10 operations each in half a second: 1e11 a second together, of 2 times 1e11."""
    share, peak = timing_profile.mfu(profile(), 2.5e10, "fp32", 0.5)
    assert share == 0.5
    assert peak["flops_per_second"] == 2e11
    assert peak["source"] == "fp32 matrix products by labs/calibrate.py on 2 process(es), m"


def test_a_profile_comes_back_and_a_broken_one_is_refused(tmp_path):
    path = profiles.save(profile(), tmp_path / "deep" / "m.json")
    assert profiles.load(path) == profile()
    for change, words in [({"schema": 9}, "schema is 9"), ({"world": 0}, "world must be a number from 1"),
                          ({"device": None}, "device must be a text"),
                          ({"matmul_flops_per_second": {"fp32": -1}}, "rates above 0"),
                          ({"collectives": []}, "collectives must be a table"),
                          ({"collectives": {"all_reduce": {}}}, "needs alpha_seconds"),
                          ({"copy_bytes_per_second": math.inf}, "copy_bytes_per_second must be a number")]:
        with pytest.raises(ValueError, match=words):
            profiles.validate({**profile(), **change})
    with pytest.raises(ValueError, match=r"no such file \(python labs/calibrate.py makes one\)"):
        profiles.load(tmp_path / "gone.json")


def test_profiles_of_other_world_sizes_do_not_overwrite_each_other(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert profiles.default_path("cpu", 2) == tmp_path / "scaleout" / "machine-cpu-2.json"
    assert profiles.default_path("cpu", 2) != profiles.default_path("cpu", 4)
