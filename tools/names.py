"""How many of the package's names say nothing: pronouns, prepositions, adverbs and participles that stand alone.

    python tools/names.py [--limit SHARE] [PATH...]

By room, and for a path that is given every such name with its line. Names are those that are bound: what is assigned,
parameters, functions and classes. Exit code 1 where their share is over the limit.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "scaleout"
WORDS = """
above across after again ahead all along also any apart asked at away back before behind below beside between both
by come done down each early every far few found from given goes gone had has held her here his how in into it its
kept late left less little made many me more most much my near now of off on one only other others our out over own
put rest said same she so some such taken that their them then there these they this those through to told took
under up we what when where which who whole whom whose why with within without you your
"""
VAGUE = frozenset(WORDS.split())
# In rooms that draw, these are coordinates.
PLACES = frozenset({"above", "below", "left"})
DRAWING = frozenset({"draw", "views"})


def bound(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that is bound in a file, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def room(path: Path) -> str:
    """The part of the package that a file belongs to."""
    parts = path.resolve().relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "scaleout"


def vague(name: str, room_name: str) -> bool:
    """Whether a name says nothing of what it names."""
    word = name.strip("_").lower()
    return word in VAGUE and not (room_name in DRAWING and word in PLACES) and not name.startswith("__")


def count(paths: list[Path]) -> tuple[Counter, Counter, list[str]]:
    """(names by room, vague ones by room, a line for each vague one) of all Python files in `paths`."""
    names, found, lines = Counter(), Counter(), []
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            where = room(file)
            for name, line in bound(ast.parse(file.read_text(encoding="utf-8"))):
                names[where] += 1
                if vague(name, where):
                    found[where] += 1
                    lines.append(f"{file.resolve().relative_to(ROOT)}:{line}: {name}")
    return names, found, lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="files or folders of the package")
    parser.add_argument("--limit", type=float, default=1.0, help="share above which the exit code is 1")
    args = parser.parse_args(argv)
    if strange := [path for path in args.paths if not path.resolve().is_relative_to(PACKAGE)]:
        parser.error(f"{strange[0]} is not in the package: give paths in scaleout/")
    names, found, lines = count(args.paths or [PACKAGE])
    if args.paths:
        print("\n".join(lines))
    share = found.total() / max(1, names.total())
    rooms = ", ".join(f"{one} {found[one] / names[one]:.1%}" for one in sorted(names))
    print(f"{found.total():,} of {names.total():,} names ({share:.1%}) say nothing of what they name: {rooms}")
    return int(share > args.limit)


if __name__ == "__main__":
    sys.exit(main())
