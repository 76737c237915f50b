"""Rules of the repository, checked: sizes, what may not be committed, the README's rooms, pinned versions."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import PurePath

import lock
import pytest
import repo
import tree
from packaging.specifiers import SpecifierSet

# Of Python, statements count: how many lines they take is the formatter's business.
FILE_STATEMENTS = 225
FUNCTION_STATEMENTS = 35
SCRIPT_LINES = 300  # of a file that is no Python
SCRIPT_FUNCTION_LINES = 40
ROOM_LINES = 40
README_LINES = 130


def test_files_are_short():
    statements = {name: repo.statements(repo.text(name)) for name in repo.with_suffix(".py")}
    assert not {name: count for name, count in statements.items() if count >= FILE_STATEMENTS}
    lines = {name: len(repo.text(name).splitlines()) for name in repo.with_suffix(".js", ".css", ".sh")}
    assert not {name: count for name, count in lines.items() if count >= SCRIPT_LINES}


def test_functions_are_short():
    long = []
    for name in repo.with_suffix(".py"):
        long += [(name, *one) for one in repo.python_functions(repo.text(name)) if one[1] >= FUNCTION_STATEMENTS]
    for name in repo.with_suffix(".js"):
        long += [(name, *one) for one in repo.script_functions(repo.text(name)) if one[1] >= SCRIPT_FUNCTION_LINES]
    assert not long


def test_sizes_are_measured():
    source = "@cache\ndef f(x):\n    if x:\n        return (\n            1\n        )\n    return 2\n"
    assert repo.statements(source) == 4 and repo.python_functions(source) == [("f", 3)]
    script = "export function f(a) {\n  if (a) {\n    g(() => {\n      h();\n    });\n  }\n}\n"
    assert repo.script_functions(script) == [("export function f(a) {", 7), ("g(() => {", 3)]


# Written in pieces, so that this file does not hold what it forbids. PyTorch's own index, by CUDA version, is what
# readers with an older driver are told to use; any other belongs to one machine.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.:/-])/(?:wor" + r"k|roo" + r"t|tmp/w)/\w"),
    "a registry's address": re.compile(
        "index" + "-url(?! https://download.pytorch.org/whl/)|extra" + "-index|find" + "-links|resol" + 'ved":'
    ),
    "unfinished work": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"),
    "a merge marker": re.compile(r"^(?:<{7}|>{7}) ", re.M),
}
BINARY = (".png", ".ico", ".woff", ".woff2", ".gz", ".pickle", ".zip")


def forbidden(text):
    """[(what, the words)] of a text."""
    return [(what, found.group()) for what, pattern in FORBIDDEN.items() if (found := pattern.search(text))]


def test_nothing_is_committed_that_should_not_be():
    names = [name for name in repo.files() if not name.endswith(BINARY) and "LICENSE" not in name]
    found = {name: forbidden(repo.text(name)) for name in names}
    assert not {name: what for name, what in found.items() if what}


def test_what_is_forbidden_is_found():
    for text in (
        "cd /wor" + "k/main",
        "TO" + "DO: later",
        "<" * 7 + " HEAD",
        "--index" + "-url https://registry.local/",
    ):
        assert len(forbidden(text)) == 1, text
    assert not forbidden("network/main, work to do, --index" + "-url https://download.pytorch.org/whl/cu126")


def test_the_readme_shows_the_rooms_that_are_there():
    shown = tree.BLOCK.search(repo.text("README.md")).group()
    assert tree.tree() == shown, "run tools/tree.py"
    assert len(shown.splitlines()) < ROOM_LINES
    assert len(repo.text("README.md").splitlines()) < README_LINES


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_what_the_page_names_is_there(page):
    named = re.findall(r"`((?:[\w.*-]+/)+[\w.*-]*|\w[\w-]*\.\w+)`", repo.text(page))
    assert len(named) > 5
    there = {"_build/", *repo.files(), *(f"{parent}/" for name in repo.files() for parent in PurePath(name).parents)}
    named = [name for name in named if not re.search("STEM|NN|PART|ROOM|MIN", name)]
    assert not [name for name in named if not any(fnmatch(path, name) or fnmatch(path, f"*/{name}") for path in there)]


def test_a_line_of_the_rooms_is_the_first_sentence_of_the_docstring():
    assert tree.first_sentence('"""Say one\nthing. Then more."""\n') == "Say one thing"
    assert tree.first_sentence("x = 1\n") == ""
    with pytest.raises(ValueError, match="nowhere/ says nothing of itself"):
        tree.comment("nowhere/")


def test_every_file_says_what_it_is():
    comment = re.compile(r"(#!.*\n)?\s*(//|/\*|#) ?\w")
    silent = [name for name in repo.with_suffix(".py") if not tree.first_sentence(repo.text(name))]
    silent += [name for name in repo.with_suffix(".js", ".css", ".sh") if not comment.match(repo.text(name))]
    assert not silent


def requirement_lines():
    return [line for line in repo.text("requirements.txt").splitlines() if line and not line.startswith("#")]


def test_requirements_are_pinned_and_each_says_why():
    for line in requirement_lines():
        assert re.fullmatch(r"[\w.-]+==[\w.]+\s+# \S.+", line), line


def test_what_requirements_pull_in_is_pinned():
    pinned = set(re.findall(r"^([\w.-]+)==", repo.text("constraints.txt"), re.M))
    direct = {lock.canonicalize_name(requirement.name) for requirement in lock.direct()}
    assert set(lock.closure(lock.direct())) - direct <= pinned


def test_every_pin_is_for_the_oldest_python_of_the_readme():
    """One for a later 3.11.x would end the installation where that is older: Debian 12 has 3.11.2."""
    needs = {name: lock.metadata.metadata(name)["Requires-Python"] for name in lock.closure(lock.direct())}
    assert not {name: need for name, need in needs.items() if need and not SpecifierSet(need).contains("3.11.0")}


def test_extras_and_requirements_name_the_same_packages():
    project = tomllib.loads(repo.text("pyproject.toml"))["project"]
    wanted = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.match(r"[\w.-]+", line).group() for lines in wanted for line in lines}
    pinned = {line.split("==")[0] for line in requirement_lines()}
    assert names <= pinned
    assert "torch>=2.11" in project["dependencies"]
