"""How long the chapters are: the words that a reader sees on each page, and those behind folds.

    python tools/length.py [NUMBER...]

Prose, code that is shown, and exercises (their texts and options) stand on the page; behind folds are `<details>`,
code that is hidden until it is asked for, hints and solutions.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from scaleout import exercises  # noqa: E402

MOST = 5_500  # words on a page
HIDDEN = {"remove-cell", "remove-input", "hide-cell", "hide-input"}
FOLD = re.compile(r"<details>.*?</details>|^:::\{dropdown\}.*?^:::$", re.DOTALL | re.MULTILINE)
TARGET = re.compile(r"\]\([^)]*\)|</?[a-z][^>]*>|^:::.*$", re.MULTILINE)  # links' addresses, tags, fences
EXERCISE = re.compile(r'show_exercise\("(\w+)", "([\w-]+)"')


class Length(NamedTuple):
    """Words of a chapter, by where they stand."""

    prose: int
    code: int
    exercises: int
    folded: int

    @property
    def page(self) -> int:
        """What a reader sees without opening a fold."""
        return self.prose + self.code + self.exercises


def words(text: str) -> int:
    """Words of a Markdown text as it is shown: a formula counts by its spaces, a link by its words."""
    return len(TARGET.sub(" ", text).split())


def exercise(stem: str, key: str) -> tuple[int, int]:
    """(words that are shown, words behind folds) of an exercise."""
    seen = exercises.spec(stem, key)
    shown = words(seen["prompt"]) + sum(words(label) for _, label in seen.get("options", []))
    return shown, sum(words(text) for text in (*seen["hints"], seen["solution"]))


def measured(path: Path) -> Length:
    """The length of one chapter."""
    prose = code = tasks = folded = 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            whole, page = words(source), words(FOLD.sub(" ", source))
            prose, folded = prose + page, folded + whole - page
        elif found := EXERCISE.search(source):
            shown, behind = exercise(*found.groups())
            tasks, folded = tasks + shown, folded + behind
        elif not HIDDEN & set(cell["metadata"].get("tags", ())):
            code += len(source.split())
    return Length(prose, code, tasks, folded)


def main() -> None:
    """Print a line for each chapter."""
    print(f"{'chapter':18}{'page':>7}{'prose':>7}{'code':>7}{'exercises':>11}{'folded':>8}")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if len(sys.argv) > 1 and path.name[:2] not in sys.argv[1:]:
            continue
        found = measured(path)
        print(f"{path.stem:18}{found.page:7,}{found.prose:7,}{found.code:7,}{found.exercises:11,}{found.folded:8,}")


if __name__ == "__main__":
    main()
