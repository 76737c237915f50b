"""Options of a lab: a dataclass whose fields are its flags, a table of tiers, and checks before any work.

Standard library only, so that a lab can refuse a wrong option before torch is asked for anything.
"""

import argparse
import math
import os
import tempfile
import types
import typing
from dataclasses import field, fields, replace
from functools import cached_property
from pathlib import Path

from scaleout.lab.corpus import LARGE, LIBRARY, SHIPPED, VOCABULARY
from scaleout.spec.command import Parser, text
from scaleout.spec.transformer import Shape
from scaleout.words.amounts import listed

TIERS = ("smoke", "cpu", "gpu")


# --- fields --------------------------------------------------------------------------------------------


def number(default, help_text, lowest=1, highest=10**7):
    """A field that is a number from `lowest` to `highest` (None: no end). help_text: its help."""
    return field(default=default, metadata={"help": help_text, "lowest": lowest, "highest": highest})


def flag(help_text, default=False):
    """A field that is on or off."""
    return field(default=default, metadata={"help": help_text})


def choice(default, choices, help_text):
    """A field that is one of `choices`."""
    return field(default=default, metadata={"help": help_text, "choices": choices})


def word(default, help_text, name="FILE", **metadata):
    """A field that is text; `name` stands for it in the help. const: its value where the flag stands alone."""
    return field(default=default, metadata={"help": help_text, "metavar": name, **metadata})


def seed():
    """--seed of a lab that trains."""
    return number(0, "seed of weights and batches", 0, 10**9)


def dataset():
    """--dataset: what `corpus` reads."""
    return word(
        SHIPPED,
        f"text: {SHIPPED} (comes with the book), {LIBRARY} or {LARGE} (of the installed Python and "
        "torch), a file, or a folder",
        "TEXT",
    )


def save(stem, name="FILE", thing="the Record"):
    """--save: None, "auto" if given without a path, or a path."""
    return word(None, f"write {thing} (without a name: to labs/results/{stem}/)", name, const="auto")


LLAMA = {"gated_mlp": True, "bias": False, "norm": "rmsnorm", "positions": "rotary", "tied_head": False}


class Model:
    """The model of options with layers, hidden, heads and seq; the fields below are defaults."""

    kv_heads = None
    form = "gpt"  # or "llama"
    gated_mlp = False
    accumulation = 1

    @cached_property
    def shape(self):
        """The transformer of these options, on bytes."""
        family = LLAMA if self.form == "llama" else {"gated_mlp": self.gated_mlp}
        return Shape(
            self.layers, self.hidden, self.heads, VOCABULARY, kv_heads=self.kv_heads, max_seq=self.seq, **family
        )


# --- the command line ----------------------------------------------------------------------------------


def parse(tiers, doc, argv=None, defaults="smoke", anywhere=False):
    """Options of a lab: an instance of the dataclass in `tiers`, a dict tier name -> instance.

    Every field becomes a flag (`micro_batch` is --micro-batch) that overrides the tier's value. Returns (tier name,
    options). ValueError on bad input, and for --tier gpu without a GPU; anywhere: skip that check, nothing is run here.
    """
    kind = type(tiers[defaults])
    parser = Parser(doc)
    parser.add_argument("--tier", choices=list(tiers), default=defaults, help="size to start from")
    hints = typing.get_type_hints(kind)
    for f in fields(kind):
        _add_flag(parser, f, hints[f.name])
    values = vars(parser.parse_args(argv))
    tier = values.pop("tier")
    options = replace(tiers[tier], **{name: value for name, value in values.items() if value is not None})
    for f in fields(kind):
        _check_field(f, getattr(options, f.name))
    if tier == "gpu" and not anywhere and getattr(options, "fake", None) is None:  # fake tensors are nowhere
        from scaleout.lab import preflight  # asks torch

        preflight.check_tier(tier)
    return tier, options


def named(field_name):
    """The flag of a field: --micro-batch of micro_batch."""
    return "--" + field_name.replace("_", "-")


def _add_flag(parser, f, hint):
    arguments = {"help": f.metadata.get("help"), "default": None}
    base = _base(hint)
    if base is bool:
        parser.add_argument(named(f.name), action=argparse.BooleanOptionalAction, **arguments)
        return
    if "const" in f.metadata:  # --save alone, or --save PATH
        arguments.update(nargs="?", const=f.metadata["const"])
    if "choices" in f.metadata:
        arguments["choices"] = f.metadata["choices"]
    else:
        arguments["metavar"] = {int: "N", float: "X"}.get(base, f.metadata.get("metavar", "TEXT"))
    parser.add_argument(named(f.name), type=_readers[base], **arguments)


def _base(hint):
    """int | None -> int."""
    inner = [a for a in typing.get_args(hint) if a is not types.NoneType]
    return inner[0] if inner else hint


def _finite(text, kind="finite", fits=math.isfinite):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and fits(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a {kind} number")
    return value


def _whole_number(text):
    """'8' and '1e3' and '2.0' are whole numbers."""
    return int(_finite(text, "whole", float.is_integer))


_readers = {int: _whole_number, float: _finite, str: text}


def digits(text):
    """True for '12': a number here, unlike '²' and the digits of other scripts."""
    return text.isascii() and text.isdigit()


def _check_field(f, value):
    lowest, highest = f.metadata.get("lowest"), f.metadata.get("highest")
    if value is None or isinstance(value, (bool, str)):
        return
    if (lowest is not None and value < lowest) or (highest is not None and value > highest):
        span = f"from {lowest}" + (f" to {highest}" if highest is not None else "")
        raise ValueError(f"{named(f.name)} is {value}: it must be {span}")


# --- refused before any work ---------------------------------------------------------------------------


def check_target(path, endings):
    """Refuse a file that could not be written at the end, before the work begins. None is fine.

    endings: those that the name may have; none of them: any.
    """
    if path is None:
        return
    if endings and Path(path).suffix not in endings:
        raise ValueError(f"{path}: the name must end in {' or '.join(endings)}")
    try:
        fits = not Path(path).is_dir() and (Path(path).exists() or not Path(path).is_symlink())
    except OSError:  # its name is too long
        fits = False
    if not fits or not _writable(Path(os.path.realpath(path)).parent):
        raise ValueError(f"{path}: cannot be written: choose a file in a folder you may write to")


def check_save(save, results):
    """`check_target` for the Record of --save: "auto" is a file in the folder `results` (Path)."""
    check_target(results / "record.json" if save == "auto" else save, (".json",))


def check_sound(save, fault):
    """Refuse --save of a run with a --fault (None or "none" without one)."""
    if save and fault not in (None, "none"):
        raise ValueError("--save: a run with a fault makes no Record: leave out --fault or --save")


def check_idle(flag_name, o, usual, idle):
    """Refuse options that would have no effect.

    flag_name: the flag that does something by itself. idle: fields of `o` that it does not use; `usual` has their
    defaults.
    """
    flags = [named(name) for name in idle if getattr(o, name) != getattr(usual, name)]
    if flags:
        raise ValueError(f"{flag_name} runs by itself: leave out {listed(flags)}")


def check_folder(path, flag):
    """Refuse a folder that could not be made or written to at the end, before the work begins. None is fine."""
    if path is not None and not _writable(Path(os.path.realpath(path))):
        raise ValueError(f"{flag} {path}: is a file, or cannot be written to: choose another folder")


def _writable(folder):
    """True if a folder can be written to, or created. It is tried: root seems to be allowed to write to /proc."""
    try:
        while not folder.exists():
            if folder.is_symlink():  # it leads nowhere, or round in a circle
                return False
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:  # also a file, a name too long, a folder that one may not enter
        return False
