"""Copy, Split, Move, Recompute: the code behind the book, in rooms. Each room's docstring says what lives there.

Importing this package loads nothing else, and importing the face of a room neither torch nor anywidget: the page's
Python has neither, and a kernel that only computes should not wait for them.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"


def face(room: str, **modules: str):
    """(`__getattr__`, `__dir__`, `__all__`) of a room: names that its modules define, loaded when first asked for.

    modules: the names of each, separated by blanks.
    """
    home = {name: f"{room}.{module}" for module, names in modules.items() for name in names.split()}

    def get(name: str):
        if name in home:
            return getattr(import_module(home[name]), name)
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return get, lambda: sorted(home), list(home)


__getattr__, __dir__, __all__ = face(__name__, **{"page.widget": "show show_exercise", "exercises": "check"})
__all__ += ["__version__", "face"]
