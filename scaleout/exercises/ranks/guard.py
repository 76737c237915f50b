"""What stands between a reader's file and its judge: read without running it, loaded on a rank, nothing left changed.

A reader's code shares its process with the code that judges it. What it replaces there is put back, and said.
"""

from __future__ import annotations

import builtins
import copy
import io
import math
import os
import pickle
import runpy
import sys
import threading
import time
import tokenize
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

_SHOWN = 300  # characters of an exception's words
_PLACES = (builtins, copy, io, math, os, pickle, runpy, threading, time, torch, torch.Tensor, torch.autograd,
           torch.Generator, dist, dist.distributed_c10d, dist.Store, dist.TCPStore, dist.PrefixStore, dist.ProcessGroup,
           nn, nn.functional, nn.utils, nn.Module, nn.Linear)  # fmt: skip


def inspect(path: str, name: str) -> None:
    """Raises ValueError, in one line, where a file cannot hold the function `name`. Runs nothing of it."""
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder: name the file that holds your {name}")
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: save your {name} in it")
    try:
        with tokenize.open(path) as file:
            names = compile(file.read(), path, "exec").co_names
    except SyntaxError as error:
        if "encoding" in error.msg:  # in the first two lines, where it could be named
            raise ValueError(f"{path} is not text in UTF-8: save it as such") from None
        raise ValueError(f"{path}{f', line {error.lineno}' if error.lineno else ''}: {error.msg}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8: save it as such") from None
    except Exception as error:  # a zero byte, brackets too deep, a file that may not be read
        raise ValueError(f"{path}: {line(error)}") from None
    if name not in names and "*" not in names:
        raise ValueError(f"{path} has no function {name}")


def load(path: str, name: str) -> Callable:
    """The function `name` of a reader's file, which runs. Raises ValueError, in one line, where it cannot be had."""
    try:
        function = runpy.run_path(path).get(name)
    except BaseException as error:  # a reader's import that fails, an exit, or whatever else stands in the file
        raise ValueError(f"{path}: {line(error)}") from None
    if not callable(function):
        raise ValueError(f"{path} has no function {name}")
    return function


def line(error: BaseException, longest: int = _SHOWN) -> str:
    """The exception's name and words in one line, cut short."""
    try:
        words = " ".join(str(error).split())
    except Exception:  # a reader's class may fail at that as well
        words = ""
    return f"{type(error).__name__}: {words}"[:longest].rstrip(": ")


class Originals:
    """Functions and classes of the libraries and of the judges as they are now."""

    def __init__(self) -> None:
        ours = [module for name, module in sys.modules.items() if name.split(".")[0] in ("scaleout", "__main__")]
        self._values = [
            (place, name, value, getattr(value, "__code__", None))
            for place in (*_PLACES, *ours) for name, value in vars(place).copy().items()
            if (callable(value) or isinstance(place, type)) and value is not torch.manual_seed
        ]  # fmt: skip  # that one torch wraps itself, when the first optimizer is made
        self._names = {place: set(vars(place)) for place in _PLACES if isinstance(place, type)}

    def put_back(self) -> list[str]:
        """Undo what was replaced since; its names, such as torch.equal."""
        changed = []
        for place, name, value, code in self._values:
            if vars(place).get(name) is not value or getattr(value, "__code__", None) is not code:
                changed.append(f"{place.__name__}.{name}")
                setattr(place, name, value)
                if code is not None:
                    value.__code__ = code
        for place, names in self._names.items():
            for name in set(vars(place)) - names:
                if callable(vars(place)[name]) and any(name in vars(base) for base in place.__mro__[1:]):
                    changed.append(f"{place.__name__}.{name}")
                    delattr(place, name)
        return changed
