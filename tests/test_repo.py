"""The house rules, checked: sizes, what pure modules import, what may not be committed, the README's tree."""

import ast
import re
import sys
import tomllib

import pytest
import repo
from packaging.specifiers import SpecifierSet

from scaleout.page import sphinx

sys.path.insert(0, str(repo.ROOT / "tools"))

import lock
import tree

FILE_LINES = 300
FUNCTION_LINES = 40

PACKAGE = [name for name in repo.with_suffix(".py") if name.startswith("scaleout/")]
TORCH = re.compile(
    r"scaleout/((parallel|lab|measure|train|exercises/ranks)/|exercises/\w+/ranks\.py$|page/(?!live\.py))")
PURE = [name for name in PACKAGE if not TORCH.match(name)]


@pytest.mark.parametrize("name", repo.with_suffix(".py", ".js", ".css", ".sh"))
def test_files_are_short(name):
    assert len(repo.text(name).splitlines()) < FILE_LINES


@pytest.mark.parametrize("name", repo.with_suffix(".py", ".js"))
def test_functions_are_short(name):
    measure = repo.python_functions if name.endswith(".py") else repo.script_functions
    long = [(what, lines) for what, lines in measure(repo.text(name)) if lines >= FUNCTION_LINES]
    assert not long


def test_function_lengths_are_measured():
    assert repo.python_functions("@cache\ndef f():\n    return 1\n") == [("f", 3)]
    script = "export function f(a) {\n  if (a) {\n    g(() => {\n      h();\n    });\n  }\n}\n"
    assert repo.script_functions(script) == [("export function f(a) {", 7), ("g(() => {", 3)]


def imported(name):
    """Top-level names of the packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(repo.text(name))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module)
    return found


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_the_standard_library_only(name):
    for module in imported(name):
        top = module.split(".")[0]
        assert top in sys.stdlib_module_names or top == "scaleout", module


def test_the_page_gets_pure_modules_only():
    shipped = [path.relative_to(repo.ROOT).as_posix() for path in sphinx.page_modules()]
    assert set(shipped) <= {*PURE, "scaleout/page/__init__.py"}
    assert {"scaleout/page/live.py", "scaleout/views/memory.py", "scaleout/spec/hardware.py"} <= set(shipped)


# Written in pieces, so that this file does not hold what it forbids. PyTorch's own index, by CUDA version, is what
# readers with an older driver are told to use; any other belongs to one machine.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.:/-])/(?:wor" + r"k|roo" + r"t|tmp/w)/\w"),
    "a registry's address": re.compile(
        "index" + "-url(?! https://download.pytorch.org/whl/)|extra" + "-index|find" + "-links|resol" + 'ved":'),
    "unfinished work": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"),
    "a merge marker": re.compile(r"^(?:<{7}|>{7}) ", re.M),
}
BINARY = (".png", ".ico", ".woff", ".woff2", ".gz", ".pickle")


@pytest.mark.parametrize("name", [name for name in repo.files() if not name.endswith(BINARY)])
def test_nothing_is_committed_that_should_not_be(name):
    if name.startswith("LICENSE"):
        return  # legal texts, as published
    content = repo.text(name)
    for what, pattern in FORBIDDEN.items():
        found = pattern.search(content)
        assert not found, f"{what}: {found.group()!r}"


def test_the_readme_shows_the_files_that_are_there():
    assert tree.tree() == tree.BLOCK.search(repo.text("README.md")).group(), "run tools/tree.py"


def test_the_tree_takes_first_sentences(tmp_path):
    for name, text in {
        "a.py": '"""Say one\nthing. Then more."""\n', "b.js": "// One.\n// Two.\n", "c.css": "/* Blue. */\n",
        "d.sh": "#!/bin/sh\n# Do it.\n", "e.py": "x = 1\n", "f.md": "# Title\n\nIt is so. More.\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    found = [tree.first_sentence(path) for path in sorted(tmp_path.iterdir())]
    assert found == ["Say one thing", "One", "Blue", "Do it", "", "It is so"]


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
