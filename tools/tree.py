"""Write the rooms into README.md: the top of the repository, the rooms of the package by their floors, and what stands
beside in tests.

    .venv/bin/python tools/tree.py            rewrite it
    .venv/bin/python tools/tree.py --check    exit code 1 when it is not current

A room of the package says in the first sentence of its docstring what lives there. A folder of tests that has the name
of a room holds that room's tests and needs no line.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
FLOOR = re.compile(r"^\| (\d+) \| `(\w+)` \|", re.M)  # of a room, in CONTRIBUTING's table
BLOCK = re.compile(r"(?<=```text\n).*?(?=```)", re.S)

COMMENTS = {
    ".ci/": "the CI script: Debian packages, then `make test`",
    ".github/": "test, build and deploy to Pages, also once a week",
    "CITATION.cff": "how to cite the book",
    "CONTRIBUTING.md": "the floors, the rules, and how to add a rung",
    "LICENSE": "license of the code: Apache-2.0",
    "LICENSE-prose": "license of prose and figures: CC BY 4.0",
    "Makefile": "book, test, quick and the rest; each makes .venv and installs what it needs",
    "_config.yml": "settings of Jupyter Book, and the address of the repository",
    "_toc.yml": "the pages of the site, in order",
    "book/": "pages without code: front page, notation, glossary, references, hardware, teaching",
    "constraints.txt": "pinned versions of all dependencies; tools/lock.py writes it",
    "labs/": "scripts that run real processes, launch files for other machines, and Records of runs",
    "notebooks/": "the chapters, with their outputs stored",
    "pyproject.toml": "the package, its extras, ruff and pytest",
    "requirements.txt": "pinned versions of direct dependencies, each with its reason",
    "scaleout/": "the package: rooms on floors, each importing from lower floors only (CONTRIBUTING.md)",
    "tests/": "the tests: one folder per room, and these",
    "tests/attacks/": "answers of readers: right ones in other forms, and wrong ones with their reasons",
    "tests/browser/": "tests in a real Chromium: the live widgets and the built site",
    "tests/published/": "figures from papers, with their sources",
    "tests/ranks/": "tests that start processes: labs, jobs, real ranks",
    "tools/": "the commands behind make, benchmarks, and scripts that update lists and figures",
}


def tracked() -> list[str]:
    """Files of the repository, those not yet committed included, those ignored not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({name for name in names if name and (ROOT / name).is_file()} | {"README.md"})


def floors() -> dict[str, int]:
    """Floor of each room of the package, from the table in CONTRIBUTING.md."""
    return {room: int(floor) for floor, room in FLOOR.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))}


def first_sentence(source: str) -> str:
    """Of the docstring of a Python source, without its full stop; "" when it has none."""
    paragraph = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0]
    return re.split(r"(?<=[.!?])\s", " ".join(paragraph.split()))[0].removesuffix(".")


def comment(path: str) -> str:
    """What the line of a file or folder says. Raises ValueError when nothing does."""
    face = ROOT / path / "__init__.py"
    found = COMMENTS.get(path) or (first_sentence(face.read_text(encoding="utf-8")) if face.is_file() else "")
    if not found:
        raise ValueError(f"{path} says nothing of itself: give it a docstring, or a line in tools/tree.py")
    return found


def entries() -> list[str]:
    """The paths that have a line: folders end in a slash and come first, what is in them below, rooms by floor."""
    found, floor = set(), {f"scaleout/{room}/": number for room, number in floors().items()}
    for name in tracked():
        top, *rest = name.split("/")
        if not rest:
            found.add(top)
        elif top in ("scaleout", "tests") and len(rest) > 1:
            found |= {f"{top}/", f"{top}/{rest[0]}/"}
        else:
            found.add(f"{top}/")
    hidden = {f"tests/{room}/" for room in floors()} | {"README.md", ".dockerignore", ".gitignore"}
    top = lambda path: path.split("/")[0]  # noqa: E731
    return sorted(found - hidden, key=lambda path: (not path.endswith("/"), top(path), floor.get(path, 0), path))


def tree() -> str:
    """The list as text, a room indented below its folder with its floor, comments in one column."""
    lines, floor = [], floors()
    for path in entries():
        folder, _, name = path.removesuffix("/").partition("/")
        number = floor.get(name, "") if folder == "scaleout" else ""
        lines.append(f"{f'{number:>4} {name}/' if name else path:<18} {comment(path)}\n")
    return "".join(lines)


def main() -> int:
    """Rewrite or check; the exit code."""
    parser = argparse.ArgumentParser(description="Write the rooms into README.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 when not current")
    check = parser.parse_args().check
    old = README.read_text(encoding="utf-8")
    try:
        new = BLOCK.sub(lambda _: tree(), old, count=1)
    except ValueError as error:
        print(f"tree: {error}", file=sys.stderr)
        return 2
    if check:
        return int(old != new)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
