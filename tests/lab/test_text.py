"""The parts of the labs that need no torch: corpus, options, tables, progress."""

import hashlib
import io
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import refused

from scaleout.lab import corpus, options, text

# --- corpus ---------------------------------------------------------------------------------------------


def test_the_text_that_comes_with_the_book_is_what_its_page_says():
    found, page = corpus.read(), (corpus.DATA / "README.md").read_text()
    assert found == corpus.read("stdlib-3.11") and f"{len(found):,} bytes" in page
    assert hashlib.sha256(found).hexdigest() in page
    assert f"holds {len(corpus.texts())} modules" in page and list(corpus.texts()) == sorted(corpus.texts())
    assert max(found) < corpus.VOCABULARY
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in (corpus.DATA / "LICENSE").read_text()
    assert sum(file.stat().st_size for file in corpus.DATA.iterdir()) < 400_000


def test_the_text_of_the_book_does_not_depend_on_the_python_that_runs(tmp_path, monkeypatch):
    before = corpus.texts()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    (tmp_path / "ast.py").write_text("another Python's")
    assert corpus.texts() == corpus.texts("stdlib-3.11") == before
    assert corpus.read("stdlib") == b"another Python's"


def test_the_library_that_runs_is_another_dataset():
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = corpus.texts("stdlib")
    assert found["argparse.py"] == (folder / "argparse.py").read_bytes() and "decoder.py" not in found
    assert sum(map(len, found.values())) > 1_000_000


def test_what_a_record_says_of_a_text_is_what_was_read(tmp_path):
    (tmp_path / "a b.txt").write_text("first")
    corpus.read(tmp_path / "a b.txt"), corpus.read("stdlib"), corpus.read()
    checksum = hashlib.sha256(b"first").hexdigest()[:16]
    assert corpus.named(tmp_path / "a b.txt") == f".../a b.txt: 5 bytes, SHA-256 {checksum}"
    (tmp_path / "a b.txt").unlink()
    assert corpus.named(tmp_path / "a b.txt").endswith(checksum), "it may be gone when the run ends"
    assert corpus.named().startswith("stdlib-3.11: 1,260,152 bytes, SHA-256 ") and corpus.named() == corpus.named(
        "stdlib-3.11"
    )
    assert corpus.named("stdlib").startswith(f"stdlib of Python {platform.python_version()}: ")


def test_a_dataset_is_a_file_or_a_folder_of_text(tmp_path):
    (tmp_path / "b.md").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c.bin").write_text("left out")
    assert corpus.read(tmp_path) == b"first\nsecond"
    assert corpus.read(tmp_path / "c.bin") == b"left out"


def test_links_in_a_folder_of_text_are_followed_and_capitals_are_read(tmp_path):
    shards, data = tmp_path / "shards", tmp_path / "data"
    shards.mkdir()
    data.mkdir()
    for number in range(3):
        (shards / f"{number}.txt").write_text(f"shard {number}")
    (data / "A.TXT").write_text("first")
    (data / "more").symlink_to(shards)
    (data / "one.md").symlink_to(shards / "2.txt")
    (shards / "up").symlink_to(data)  # a circle
    assert corpus.texts(data) == {
        "A.TXT": b"first",
        "more/0.txt": b"shard 0",
        "more/1.txt": b"shard 1",
        "more/2.txt": b"shard 2",
        "one.md": b"shard 2",
    }


def test_the_large_dataset_is_all_of_the_standard_library_and_torch(tmp_path, monkeypatch):
    (tmp_path / "lib" / "json").mkdir(parents=True)
    (tmp_path / "lib" / "site-packages" / "other").mkdir(parents=True)
    (tmp_path / "torch" / "nn").mkdir(parents=True)
    for name in (
        "lib/ast.py",
        "lib/json/decoder.py",
        "lib/site-packages/other/new.py",
        "torch/__init__.py",
        "torch/nn/linear.py",
        "torch/LICENSE",
    ):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "lib")})
    found = SimpleNamespace(origin=str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(corpus.importlib.util, "find_spec", lambda name: found)
    names = ["ast.py", "json/decoder.py", "torch/__init__.py", "torch/nn/linear.py"]
    assert list(corpus.texts("stdlib+torch")) == names, "what else is installed differs by machine"
    assert list(corpus.texts("stdlib")) == ["ast.py"]
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
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
    ],
)
def test_a_bad_option_gives_one_line(words, said):
    refused(lambda: parse(*words), said)


# --- screen ---------------------------------------------------------------------------------------------


def test_a_table_lines_its_columns_up():
    assert text.table(("what", "n"), [("a", 1), ("longer", 22)]) == ("what     n\n------  --\na        1\nlonger  22")


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


@pytest.mark.parametrize(
    ("terminal", "shown", "speaks"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_progress_only_on_a_terminal_and_only_where_asked(terminal, shown, speaks):
    screen = Screen(terminal)
    assert list(text.progress([1, 2], "train", shown, screen)) == [1, 2]
    assert ("train: 1/2" in screen.getvalue()) is speaks
    assert bool(screen.getvalue()) is speaks
    assert not speaks or screen.getvalue().endswith("\r\033[K"), "the line is wiped at the end"
