"""Break operators, comparisons and numbers of the pure rooms at random, and see whether a quick test notices.

    .venv/bin/python tools/mutate.py [--runs 100] [--seed 1] [--only timing/compute.py]

The seed and the source decide what is drawn: a statement of a function, then something in it. The tests are those of
the module's room. What survives is to be read: either it computes the same, or a test is missing. Text, types, errors
and decorators (sizes of caches) stay whole. Exit code 2 where a test fails with nothing broken.
"""

from __future__ import annotations

import argparse
import ast
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from mutants import ROOT, copied, first_failure, tested

ROOMS = ("spec", "memory", "collectives", "numerics", "timing")
CPU_SECONDS = 120  # a loop that a break made endless is noticed
UNTOUCHED = {"annotation", "returns", "decorator_list"}
PAIRS = ((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or), (ast.BitAnd, ast.BitOr), (ast.USub, ast.UAdd),
         (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot),
         (ast.In, ast.NotIn))  # fmt: skip
OTHER = {**dict(PAIRS), **{b: a for a, b in PAIRS}, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}


def statements(tree: ast.AST, inside: bool = False) -> Iterator[ast.stmt]:
    """The statements of all functions, but for errors."""
    for child in ast.iter_child_nodes(tree):
        within = inside or isinstance(child, ast.FunctionDef)
        if within and isinstance(child, ast.stmt) and not isinstance(child, ast.Raise):
            yield child
        yield from statements(child, within)


def expressions(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it, but for other statements, types, decorators and text."""
    yield node
    for field, value in ast.iter_fields(node):
        for child in () if field in UNTOUCHED else value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.stmt | ast.JoinedStr):
                yield from expressions(child)


def breaks(statement: ast.stmt) -> list[tuple[ast.AST, str, object]]:
    """(node, field, what it becomes): each way to break a statement."""
    found: list[tuple[ast.AST, str, object]] = []
    for node in expressions(statement):
        match node:
            case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
                steps = (1, -1) if isinstance(node.value, int) else (node.value / 10 or 1.0,)
                found += [(node, "value", node.value + step) for step in steps]
            case ast.UnaryOp(op=ast.Not()):
                found.append((node, "operand", ast.UnaryOp(ast.Not(), node.operand)))
            case ast.Compare():
                found += [(node, "ops", [*node.ops[:i], OTHER[type(op)](), *node.ops[i + 1 :]])
                          for i, op in enumerate(node.ops)]  # fmt: skip
            case ast.BinOp() | ast.AugAssign() | ast.BoolOp() | ast.UnaryOp() if type(node.op) in OTHER:
                found.append((node, "op", OTHER[type(node.op)]()))
    return found


def drawn(runs: int, seed: int) -> list[tuple[str, int, str, str, str]]:
    """(module, line, its statement, the broken one, the whole broken module) of each break; none is drawn twice."""
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8"))
             for room in ROOMS for path in sorted((ROOT / "scaleout" / room).glob("**/*.py"))}  # fmt: skip
    places = [(name, one, ways) for name, tree in trees.items() for one in statements(tree) if (ways := breaks(one))]
    random, chosen = Random(seed), {}
    while len(chosen) < runs:
        name, statement, ways = random.choice(places)
        node, field, new = random.choice(ways)
        old, before = getattr(node, field), ast.unparse(statement)
        setattr(node, field, new)
        after = ast.unparse(statement)
        chosen[name, statement.lineno, after] = (name, statement.lineno, before, after, ast.unparse(trees[name]))
        setattr(node, field, old)
    return list(chosen.values())


def failure(folder: Path, room: str, stem: str = "") -> str:
    """The first quick test of the room that fails in the copy, the files that name the module before others."""
    files = [path for path in sorted((folder / "tests" / room).glob("test_*.py")) if not path.stem.endswith("truth")]
    names = [str(path) for path in sorted(files, key=lambda path: stem not in path.stem)]
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))  # noqa: E731
    return first_failure(tested(folder, "-n", "0", "-p", "no:nbval", "-m", "not slow", *names, preexec_fn=limit))


def differing(before: str, after: str) -> tuple[str, str]:
    """The first line in which the two texts differ."""
    return next(pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if pair[0] != pair[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--only", default="", help="of these, the ones in modules with this in their name")
    asked = parser.parse_args()
    mutants = [one for one in drawn(asked.runs, asked.seed) if asked.only in one[0]]
    survived = 0
    with tempfile.TemporaryDirectory() as name:
        copied(folder := Path(name))
        for room in sorted({one[0].split("/")[1] for one in mutants}):
            if found := failure(folder, room):
                print(f"mutate: {found} fails with nothing broken", file=sys.stderr)
                return 2
        for module, line, before, after, broken in mutants:
            whole = (folder / module).read_text("utf-8")
            (folder / module).write_text(broken, "utf-8")
            found = failure(folder, module.split("/")[1], Path(module).stem)
            (folder / module).write_text(whole, "utf-8")
            survived += not found
            old, new = differing(before, after)
            print(f"{'killed' if found else 'SURVIVED'} {module}:{line} {found}\n  - {old}\n  + {new}", flush=True)
    print(f"{survived} of {len(mutants)} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
