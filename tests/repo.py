"""What the tests of the repository itself share: its files, and the lines of its functions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import tree

ROOT = Path(__file__).resolve().parent.parent


def files() -> list[str]:
    """Paths of all files that are, or would be, committed."""
    return tree.tracked()


def with_suffix(*suffixes: str) -> list[str]:
    """Those of `files` that end so."""
    return [name for name in files() if name.endswith(suffixes)]


def text(name: str) -> str:
    """The text of a file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def statements(source: str) -> int:
    """Statements of a file, those inside others included."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(source)))


def python_functions(source: str) -> list[tuple[str, int]]:
    """(name, statements) of each function, its docstring included."""
    return [
        (node.name, sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


METHOD = r"^\s+(?:static |async |get |set |#)*[\w#]+\(.*\)\s*\{$"
OPENS = re.compile(rf"\bfunction\b.*\{{$|=>\s*\{{$|{METHOD}")
NO_FUNCTION = re.compile(r"^\s*\}?\s*(?:if|else|for|while|switch|catch|try|do)\b")


def script_functions(source: str) -> list[tuple[str, int]]:
    """(first line, lines) of each JavaScript function: up to the next closing brace indented alike."""
    lines = source.splitlines()
    found = []
    for at, line in enumerate(lines):
        if not OPENS.search(line) or NO_FUNCTION.match(line):
            continue
        indent = line[: len(line) - len(line.lstrip())]
        end = next(n for n in range(at + 1, len(lines)) if lines[n].startswith(indent + "}"))
        found.append((line.strip(), end - at + 1))
    return found
