"""Copy, Split, Move, Recompute: the code behind the book.

Importing this package loads nothing else: the page's Python has neither torch nor anywidget, and a kernel
that only computes should not wait for them. `show`, `show_exercise` and `check` load what they need when
first used.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["__version__", "check", "show", "show_exercise"]

_HOME = {"show": "scaleout.page.widget", "show_exercise": "scaleout.page.widget", "check": "scaleout.exercises"}


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'scaleout' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
