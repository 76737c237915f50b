"""The first cell of a chapter: it finds the book around it, or fetches it, and leaves the torch that is there alone."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
import repo

import notebooks
from scaleout.lab import chapter

AFTER = "\nimport json, os, scaleout\nprint(json.dumps([os.getcwd(), scaleout.__file__, os.environ.get('LAB_DEVICE')]))"


def cell(folder, address="", **environment):
    """Run the cell in a folder, as a kernel of its own would: (its last line of output, its last of errors)."""
    source = notebooks.FIRST.replace('address=""', f'address="{address}"') + AFTER
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LAB_DEVICE")}
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        env=clean
        | {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        | environment,
    )
    return (done.stdout.splitlines() or [""])[-1], (done.stderr.splitlines() or [""])[-1]


def test_every_chapter_has_the_cell_behind_its_title_with_the_one_address():
    for path in sorted((repo.ROOT / "notebooks").glob("*.ipynb")):
        title, first, *_ = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert title["cell_type"] == "markdown" and first["id"] == f"{path.stem[3:]}-find-book"
        assert "".join(first["source"]) == notebooks.FIRST.replace('address=""', f'address="{notebooks.address()}"')
        assert first["metadata"]["jupyter"] == {"source_hidden": True}, "folded, and what it says is not"


@pytest.mark.parametrize("where", [".", "notebooks", "notebooks/deeper"])
def test_where_the_book_is_around_the_chapter_it_is_found(tmp_path, where):
    (tmp_path / "scaleout").symlink_to(repo.ROOT / "scaleout")
    for folder in ("notebooks/deeper", "labs"):
        (tmp_path / folder).mkdir(parents=True)
    folder, package, device = json.loads(cell(tmp_path / where)[0])
    assert (folder, package) == (str(tmp_path / "notebooks"), str(tmp_path / "scaleout" / "__init__.py"))
    assert device == "auto" and json.loads(cell(tmp_path, LAB_DEVICE="cpu")[0])[2] == "cpu"


def test_in_an_empty_folder_the_book_is_fetched_once(tmp_path):
    small = tmp_path / "source" / "the-book"
    (small / "scaleout" / "lab").mkdir(parents=True)
    for name in ("scaleout/__init__.py", "scaleout/lab/__init__.py", "scaleout/lab/chapter.py", "pyproject.toml"):
        (small / name).write_text(repo.text(name))
    (small / "notebooks").mkdir()
    (small / "notebooks" / "one.ipynb").write_text("{}")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], cwd=small, check=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    for ending in ("", "/"):
        folder, package, _ = json.loads(cell(empty, f"file://{small}{ending}")[0])
        assert folder == str(empty / "the-book" / "notebooks")
        assert package == str(empty / "the-book" / "scaleout" / "__init__.py")
    assert [one.name for one in empty.iterdir()] == ["the-book"]


def test_where_it_cannot_be_had_a_line_says_what_to_do(tmp_path):
    way = "open this notebook in the folder `notebooks` of the whole book."
    assert cell(tmp_path)[1].endswith(f"Missing: This chapter needs the book around it: {way}")
    said = cell(tmp_path, f"file://{tmp_path}/no/where")[1]
    assert f"Missing: file://{tmp_path}/no/where cannot be fetched (" in said
    assert said.endswith(f"): download it, and {way}")


@pytest.fixture
def pip(monkeypatch):
    """Packages by name; what pip is asked for, and 1 where it fails."""
    there, asked = {"torch": "2.12.1+cu128", "accelerate": "1.13.0", "matplotlib": "3.10.0", "anywidget": "0.9.21"}, []

    def version(name):
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    def run(command, **_):
        asked.append(command[3:])
        return subprocess.CompletedProcess(command, there.get("code", 0), "", "warning\nno network\n")

    monkeypatch.setattr(chapter, "version", version)
    monkeypatch.setattr(chapter.subprocess, "run", run)
    return there, asked


def test_what_is_missing_is_installed_and_torch_stays_as_it_is(pip, capsys):
    there, asked = pip
    needs = chapter.needs(repo.ROOT)
    assert [name for name, _ in needs] == ["torch", "accelerate", "matplotlib", "anywidget"]
    chapter.install(needs)
    assert asked == []
    del there["anywidget"]
    there["accelerate"] = "1.2.9"
    chapter.install(needs)
    assert asked == [["install", "--quiet", "torch==2.12.1+cu128", "accelerate>=1.12", "anywidget>=0.9"]]
    there["torch"] = "2.9.0"
    chapter.install(needs)
    assert "torch 2.9.0 stays as it is, though the labs are for 2.11 and newer" in capsys.readouterr().out
    assert asked[1] == ["install", "--quiet", "torch==2.9.0", "accelerate>=1.12", "anywidget>=0.9"]
    del there["torch"]
    chapter.install(needs)
    assert asked[2] == ["install", "--quiet", "torch>=2.11", "accelerate>=1.12", "anywidget>=0.9"]
    there["code"] = 1
    with pytest.raises(chapter.Missing, match=r"^pip could not install torch>=2\.11 .* \(no network\): install it,"):
        chapter.install(needs)
