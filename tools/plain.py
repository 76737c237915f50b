"""Words that the book once had for itself, and the field's word for each: where they still stand.

    python tools/plain.py [PATH...]

Reads what a person reads: the prose of chapters, pages and cards, and the strings and docstrings of the package and the
labs. Prints each place with the word to use, and the count by file.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_THING = r"(?:step|second|rank|GPU|node|token|block|layer|weight|parameter|micro-batch|stage|unit|sequence|process)"
_AMOUNT = r"(?:\d[\d,.]*\s?(?:[kMGT]i?B|[mµn]?s|W|FLOPs?)|(?:tokens|bytes|seconds|collectives|milliseconds|GB|MB))"
# (what is looked for, what to say). Case does not count.
PRIVATE = (
    (rf"\b{_AMOUNT} an? {_THING}\b(?! (?:has|holds|sends|needs|keeps|receives))", "per GPU, per step"),
    (r"\b(?:is|are|was|were|be) told (?:as|within|with|to|too|by|at|for|twice|\d)", "predicted, given as"),
    (r"\b(?:un)?mend(?:s|ed|ing)?\b", "fix, fixed"),
    (r"(?<!outer )(?<!dot )(?<!inner )(?<!cross )\bproducts\b(?! of\b)", "matrix multiplications, matmuls"),
    (r"\b(?:kept|keeps?|held|holds?|put|move[ds]?|lives?|lie|lies|stands?) outside\b", "offloaded to CPU memory"),
    (r"\btied tables?\b", "tied embeddings"),
    (r"\bseconds of (?:a|one|the|each|every) step\b|\ba step's seconds\b", "step time"),
    (r"\bquick(?:er|est)?\b", "fast, faster, fastest"),
    (r"\bthe way (?:down|up)\b|\bon its way (?:down|up)\b", "forward or backward through the pipeline"),
    (r"\b(?:is|are|be|was|were|hold[s]?) (?:wrong|right|true|false) of\b", "is false for, holds for"),
    (r"\b(?:comes?|came|coming) of\b", "comes from"),
    (r"\bwhat (?:is|was|has been) (?:sent|gathered|kept|held|told|recomputed|strong|faint|drawn)\b", "name it"),
    (r"\bhow (?:many|much) (?:bytes )?(?:travels?|moves?)\b", "bytes communicated"),
    (r"\bcosts? the (?:double|half|triple)\b", "costs twice, half, three times as much"),
    (r"\bwithout a word\b", "without communication, silently"),
    (r"\b(?:line|edge|rest) of (?:the|its|a) room\b|\broom(?:y| to spare)\b", "usable memory, spare memory"),
    (r"\b(?:gradients?|sums?|parts?|it|they|them) (?:add|adds|added) up\b|\bto add up\b|\badding up\b", "reduce, sum"),
    (r"\b(?:pale|dark) (?:part|one|bar|half|is|are|means|stripes?)\b", "solid, hatched"),
    (r"\bof (?:the|its|their) (?:messages|communication) (?:is|are) shown\b", "exposed communication"),
    (r"\bbeside (?:the|its|their) (?:backward|forward|computing|computation)\b", "overlapped with"),
    (r"\bnowhere\b|\bwhither\b|\bthereof\b|\btherein\b|\bwherein\b|\bwhereof\b|\baught\b|\bnaught\b", "plain English"),
    (r"\b(?:half|part|some|all|most) of them are told\b", "predicted"),
    (r"\bin (?:the|a) room of\b|\bits own room\b", "memory, its own"),
)
_LINK = re.compile(r"\]\([^)]*\)|`[^`]*`|\$[^$]*\$|<[^>]+>|```.*?```", re.DOTALL)
_COMPILED = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in PRIVATE]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """(line or number of the cell, text) of what a person reads in a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(text)["cells"]):
            if cell["cell_type"] == "markdown":
                yield number, _LINK.sub(" ", "".join(cell["source"]))
    elif path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield node.lineno, _LINK.sub(" ", node.value)
    else:
        yield from enumerate(_LINK.sub(lambda m: "\n" * m[0].count("\n") + " ", text).splitlines(), 1)


def found(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line or cell, the words, what to say instead) of each private word in a file."""
    for place, text in prose(path):
        for pattern, instead in _COMPILED:
            for match in pattern.finditer(text):
                before, after = text[max(0, match.start() - 40) : match.start()], text[match.end() : match.end() + 25]
                yield place, " ".join(f"{before}[{match[0]}]{after}".split()), instead


def files() -> list[Path]:
    """What the book says to people: chapters, pages, cards, the package and the labs."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = ("notebooks/", "book/", "scaleout/", "labs/", "README.md", "CONTRIBUTING.md")
    paths = [ROOT / name for name in listed.split("\0") if name.startswith(folders)]
    return [path for path in paths if path.suffix in {".ipynb", ".md", ".yml", ".py"}]


def main() -> None:
    """Print the places and the counts."""
    paths = [Path(word).resolve() for word in sys.argv[1:]] or files()
    counts: Counter[str] = Counter()
    for path in paths:
        for place, words, instead in found(path):
            name = str(path.relative_to(ROOT))
            counts[name] += 1
            print(f"{name}:{place}: {words}  ->  {instead}")
    for name, count in counts.most_common():
        print(f"{count:5}  {name}")
    print(f"{sum(counts.values()):5}  in all")


if __name__ == "__main__":
    main()
