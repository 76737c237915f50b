"""What every lab reads and prints: the corpus, options from a table of tiers, tables, progress.

Standard library only, so that a lab can refuse a wrong option before torch is asked for anything.
"""

import argparse
import importlib.util
import math
import os
import signal
import sys
import sysconfig
import tempfile
import time
import types
import typing
from dataclasses import fields, replace
from pathlib import Path

from scaleout.lab import start as lab_start

TIERS = ("smoke", "cpu", "gpu")
VOCABULARY = 256                    # one token a byte
LARGE = "stdlib+torch"              # a --dataset for models that would read the top-level modules many times over


def corpus(path=None):
    """Real text as bytes: the `texts` of a path joined in the order of their names."""
    return b"\n".join(texts(path).values())


def texts(path=None):
    """Name -> bytes of every file of real text: the top-level modules of the running standard library, or `path`.

    `path` is LARGE for the whole standard library and torch's own sources, or a file, or a folder whose *.txt, *.md
    and *.py files are taken, in the order of their names relative to it. The same files give the same bytes.
    ValueError where there is nothing to read.
    """
    try:
        read = {name: file.read_bytes() for name, file in _files(path).items()}
    except OSError as error:
        raise ValueError(f"dataset {error.filename}: cannot be read ({error.strerror})") from None
    if not any(read.values()):
        raise ValueError(f"dataset {path}: holds no text: give a text file or a folder of .txt, .md or .py")
    return read


def _files(path):
    """{name: Path} of what `texts` reads, in order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    if path == LARGE:
        own = _below(library, (".py",), "", ("site-packages", "dist-packages"))     # of which machines differ
        torch = importlib.util.find_spec("torch")                                   # found, not imported
        if torch is None:
            raise ValueError(f"dataset {LARGE}: there is no torch here: install it, or give a folder of text")
        return own | _below(Path(torch.origin).parent, (".py",), "torch/")
    root = Path(path) if path else library
    if root.is_file():
        return {root.name: root}
    if not root.is_dir():
        raise ValueError(f"dataset {path}: no such file or folder (the word {LARGE} is the other choice)")
    if path:
        return _below(root, (".txt", ".md", ".py"))
    return {file.name: file for file in sorted(root.glob("*.py")) if file.is_file()}


def _below(root, kinds, before="", without=()):
    """{name: Path} of the files of some kinds in a folder and its folders, but those named `without`."""
    found = {file: file.relative_to(root) for file in sorted(root.rglob("*")) if file.suffix in kinds}
    return {before + name.as_posix(): file for file, name in found.items()
            if file.is_file() and not set(name.parts) & set(without)}


# --- options -------------------------------------------------------------------------------------------

class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are ValueErrors: `session` prints them once and exits with 2."""

    def error(self, message):
        raise ValueError(f"{message} (--help lists the options)")


def parse(tiers, doc, argv=None, defaults="smoke"):
    """Options of a lab: an instance of the dataclass in `tiers`, a dict tier name -> instance.

    Every field becomes a flag (`micro_batch` is --micro-batch) that overrides the tier's value. A field's
    metadata may hold `help`, `choices` and `lowest`. Returns (tier name, options). ValueError on bad input.
    """
    kind = type(tiers[defaults])
    parser = Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--tier", choices=list(tiers), default=defaults, help="size to start from")
    hints = typing.get_type_hints(kind)
    for f in fields(kind):
        _add_flag(parser, f, hints[f.name])
    given = vars(parser.parse_args(argv))
    tier = given.pop("tier")
    options = replace(tiers[tier], **{name: value for name, value in given.items() if value is not None})
    for f in fields(kind):
        _check_field(f, getattr(options, f.name))
    return tier, options


def _add_flag(parser, f, hint):
    flag = "--" + f.name.replace("_", "-")
    more = {"help": f.metadata.get("help"), "default": None}
    base = _base(hint)
    if base is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, **more)
        return
    if "const" in f.metadata:                     # --save alone, or --save PATH
        more.update(nargs="?", const=f.metadata["const"])
    if "choices" in f.metadata:
        more["choices"] = f.metadata["choices"]
    else:
        more["metavar"] = {int: "N", float: "X"}.get(base, f.metadata.get("metavar", "TEXT"))
    parser.add_argument(flag, type=_readers[base], **more)


def _base(hint):
    """int | None -> int."""
    inner = [a for a in typing.get_args(hint) if a is not types.NoneType]
    return inner[0] if inner else hint


def _whole_number(text):
    """'8' and '1e3' and '2.0' are whole numbers."""
    try:
        value = float(text)
        if value != int(value):
            raise ValueError
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    return int(value)


def _finite_number(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def _words(text):
    if not text.strip():
        raise argparse.ArgumentTypeError("needs a value that is not empty")
    return text


_readers = {int: _whole_number, float: _finite_number, str: _words}


def _check_field(f, value):
    flag = "--" + f.name.replace("_", "-")
    lowest, highest = f.metadata.get("lowest"), f.metadata.get("highest")
    if value is None or isinstance(value, (bool, str)):
        return
    if (lowest is not None and value < lowest) or (highest is not None and value > highest):
        span = f"from {lowest}" + (f" to {highest}" if highest is not None else "")
        raise ValueError(f"{flag} is {value}: it must be {span}")


def check_target(path, endings):
    """Refuse a file that could not be written at the end, before the work begins. None is fine.

    endings: those that the name may have; none of them: any.
    """
    if path is None:
        return
    if endings and Path(path).suffix not in endings:
        raise ValueError(f"{path}: the name must end in {' or '.join(endings)}")
    try:
        fits = not Path(path).is_dir()
    except OSError:                                     # its name is too long
        fits = False
    if not fits or not _writable(Path(path).resolve().parent):
        raise ValueError(f"{path}: cannot be written: choose a file in a folder you may write to")


def check_save(save, results):
    """`check_target` for the Record of --save: "auto" is a file in the folder `results` (Path)."""
    check_target(results / "record.json" if save == "auto" else save, (".json",))


def check_folder(path, flag):
    """Refuse a folder that could not be made or written to at the end, before the work begins. None is fine."""
    if path is not None and not _writable(Path(path).resolve()):
        raise ValueError(f"{flag} {path}: is a file, or cannot be written to: choose another folder")


def _writable(folder):
    """True where a folder can be written to, or made: tried, for root is told that it may write to /proc."""
    try:
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:                                     # also a file, a name too long, a folder that one may not enter
        return False


# --- on the screen -------------------------------------------------------------------------------------

def table(header, rows):
    """Columns of text as one string: the first to the left, the others to the right."""
    rows = [[str(cell) for cell in row] for row in [header, *rows]]
    wide = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                       for i, (cell, w) in enumerate(zip(row, wide, strict=True))).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * w for w in wide), *lines[1:]])


def ratio(predicted, measured):
    """predicted / measured as text with three decimals, "-" where one of them is zero or missing."""
    return f"{predicted / measured:.3f}" if predicted and measured else "-"


def ms(seconds):
    """Seconds as text in milliseconds; "-" for None."""
    return "-" if seconds is None else f"{seconds * 1e3:,.1f}"


def megabytes(count):
    """Bytes as text in MB (10^6), or GB (10^9) from 10 GB on; "-" for None."""
    if count is None:
        return "-"
    return f"{count / 1e9:,.2f} GB" if abs(count) >= 1e10 else f"{count / 1e6:,.2f} MB"


def progress(steps, what, shown=True, stream=None):
    """Iterate over the list `steps` and keep one line of progress; silent where output is no terminal.

    A command that a notebook starts sees a terminal that cannot go back a line; Jupyter sets JPY_PARENT_PID.
    """
    stream = stream or sys.stderr
    shown = shown and stream.isatty() and "JPY_PARENT_PID" not in os.environ
    start = time.perf_counter()
    for done, step in enumerate(steps):
        if shown:
            stream.write(f"\r\033[K{what}: {done}/{len(steps)}  {time.perf_counter() - start:.0f} s")
            stream.flush()
        yield step
    if shown:
        stream.write("\r\033[K")
        stream.flush()


def command(main, name):
    """Run `main()` as a command that is no torch session: a ValueError is one line and exit code 2, Ctrl-C is 130.

    Such a command starts its own processes, and refuses a launcher that starts it several times. SIGTERM ends it with
    143, through every `finally`.
    """
    lab_start.begin()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        if "TORCHELASTIC_RUN_ID" in os.environ or os.environ.get("WORLD_SIZE", "1") != "1":
            if os.environ.get("RANK", "0") != "0":
                time.sleep(5)                           # torchrun ends the others with the first: rank 0, that speaks
                sys.exit(2)
            raise ValueError("starts its own processes: start it with python, not with torchrun")
        main()
    except ValueError as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr, flush=True)
        sys.exit(130)
