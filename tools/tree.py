"""Write the tree of files into README.md, each with the first sentence of its docstring or first comment.

    .venv/bin/python tools/tree.py            rewrite it
    .venv/bin/python tools/tree.py --check    exit code 1 when it is not current
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(?<=```text\n).*?(?=```)", re.S)

# What has no docstring or comment to take a sentence from. A folder here is one line, without its files.
COMMENTS = {
    ".ci/": "what CI runs: Debian's packages, then `make test`",
    ".github/": "test, build and deploy to Pages; once a week too",
    ".gitignore": "what is made, never committed",
    "CITATION.cff": "how to cite the book",
    "CONTRIBUTING.md": "the rooms of the book, and how to add a chapter",
    "LICENSE": "of the code: Apache-2.0",
    "LICENSE-prose": "of prose and figures: CC BY 4.0",
    "Makefile": "book, test and the rest; each makes .venv and installs what it needs",
    "README.md": "this page",
    "_config.yml": "Jupyter Book, and the one place for the repository's address",
    "book/": "pages that do not run: first page, notation, glossary, references, hardware, teaching",
    "constraints.txt": "the pinned list of all that these pull in; tools/lock.py writes it",
    "pyproject.toml": "the package, its extras, ruff and pytest",
    "requirements.txt": "the pinned list of what is used directly, each with its reason",
    "labs/launch/": "how to start a lab elsewhere",
    "labs/results/": "Records of runs, one JSON file each, by lab",
    "notebooks/": "the chapters, with their outputs stored",
    "tests/attacks/": "answers that readers give: right in other forms, and wrong with their reasons",
    "tests/browser/": "in a real Chromium: the live widgets and the built site",
    "scaleout/style.mplstyle": "one look for every plot",
    "tests/published/": "figures from papers, with their sources",
}
FOLDERS = {
    "labs/": "real processes: one script a chapter, from a laptop to a cluster",
    "scaleout/": "the package; what it imports decides where it runs (see CONTRIBUTING.md)",
    "scaleout/exercises/": "prompt, stub, check, hints and solution of every exercise",
    "scaleout/static/": "the one front end: controls, and Python in a worker",
    "scaleout/views/": "what a live widget shows, one module a chapter",
    "tests/": "what keeps it true",
    "tools/": "the commands behind make",
}


def tracked() -> list[str]:
    """Files of the repository, those not yet committed included, those ignored not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({name for name in names if name and (ROOT / name).is_file()} | {"README.md"})


def first_sentence(path: Path) -> str:
    """Of the docstring of a Python file, the text of a page or the first comment of another; "" when there is none."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        paragraph = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    elif path.suffix == ".ipynb":
        paragraph = "".join(json.loads(text)["cells"][0]["source"]).splitlines()[0].lstrip("# ")
    elif path.suffix == ".md":
        paragraph = next((text for text in text.split("\n\n") if text[:1] not in "#`!["), "")
    else:
        lines = [line for line in text.splitlines() if not line.startswith("#!")]
        taken = []
        for line in lines:
            if not re.match(r"\s*(?://|/\*|#)", line):
                break
            taken.append(re.sub(r"^\s*(?://|/\*|#)|\*/$", "", line).strip())
        paragraph = " ".join(taken)
    sentence = re.split(r"(?<=[.!?])\s", " ".join(paragraph.split()))[0].strip()
    return sentence.removesuffix(".")


def comment(name: str) -> str:
    """The comment of a file. Raises ValueError when it has none."""
    found = COMMENTS.get(name) or first_sentence(ROOT / name)
    if not found:
        raise ValueError(f"{name} has no docstring or first comment: write one, or name it in tools/tree.py")
    return found


def entries() -> list[tuple[str, str]]:
    """(path, comment) of each line: folders end in a slash, and come before what is in them."""
    found: dict[str, str] = {}
    for name in tracked():
        whole = next((folder for folder in COMMENTS if folder.endswith("/") and name.startswith(folder)), None)
        parts = (whole or name).rstrip("/").split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth]) + "/"
            found.setdefault(folder, FOLDERS.get(folder, ""))
        found.setdefault(whole or name, COMMENTS[whole] if whole else comment(name))
    return sorted(found.items(), key=lambda item: [(not part.endswith("/"), part) for part in split(item[0])])


def split(path: str) -> list[str]:
    """Parts of a path, folders with their slash: what sorts folders before files."""
    return re.findall(r"[^/]+/?", path)


def tree() -> str:
    """The tree as text, two spaces a level, comments in one column."""
    lines = []
    for path, words in entries():
        parts = split(path)
        if not words:
            raise ValueError(f"{path} has no comment: name it in tools/tree.py")
        lines.append(f"{'  ' * (len(parts) - 1) + parts[-1]:<29} {words}\n")
    return "".join(lines)


def main() -> int:
    """Rewrite or check; the exit code."""
    parser = argparse.ArgumentParser(description="Write the tree of files into README.md.")
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
