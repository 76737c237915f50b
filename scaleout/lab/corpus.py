"""The text that every lab trains on, byte by byte. Standard library only."""

import hashlib
import importlib.util
import os
import platform
import sysconfig
import zipfile
from pathlib import Path

from scaleout.records.provenance import printable

VOCABULARY = 256  # one token a byte
SHIPPED = "stdlib-3.11"  # comes with the book, and is the same on every machine: data/README.md
LIBRARY = "stdlib"  # the top-level modules of the Python that runs, for runs that read more
LARGE = "stdlib+torch"  # for models that would read those many times over
DATA = Path(__file__).parent / "data"
WORDS = (SHIPPED, LIBRARY, LARGE)
_seen = {}  # path -> size and checksum, for the Record that is written long afterwards


def read(path=None):
    """Real text as bytes: the `texts` of a path joined in the order of their names."""
    return b"\n".join(texts(path).values())


def texts(path=None):
    """Name -> bytes of every file of real text: of SHIPPED where path is None.

    `path` is SHIPPED for the modules that come with the book, LIBRARY for the top-level modules of the running standard
    library, LARGE for all of that library and torch's own sources, or a file, or a folder whose *.txt, *.md and *.py
    files are taken, in the order of their names relative to it. The same files give the same bytes. ValueError where
    there is nothing to read.
    """
    try:
        read = (
            {name: file.read_bytes() for name, file in _files(path).items()}
            if path not in (None, SHIPPED)
            else _shipped()
        )
    except OSError as error:
        raise ValueError(f"dataset {error.filename}: cannot be read ({error.strerror})") from None
    if not any(read.values()):
        raise ValueError(f"dataset {path}: holds no text: give a text file or a folder of .txt, .md or .py")
    joined = b"\n".join(read.values())
    _seen[str(path or SHIPPED)] = f"{len(joined):,} bytes, SHA-256 {hashlib.sha256(joined).hexdigest()[:16]}"
    return read


def named(path=None):
    """What a Record says of a text that was read: its name, size and SHA-256.

    Records that end alike here were trained on the same bytes.
    """
    name = seen = str(path or SHIPPED)
    if name not in WORDS:
        name = ".../" + printable(Path(name).name)
    elif name != SHIPPED:
        name += f" of Python {platform.python_version()}"
    return f"{name}: {_seen[seen]}"


def _shipped():
    with zipfile.ZipFile(DATA / f"{SHIPPED}.zip") as modules:
        return {name: modules.read(name) for name in sorted(modules.namelist())}


def _files(path):
    """{name: Path} of what `texts` reads, in order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    if path == LARGE:
        modules = _files_below(library, (".py",), "", ("site-packages", "dist-packages"))  # of which machines differ
        torch = importlib.util.find_spec("torch")  # found, not imported
        if torch is None:
            raise ValueError(f"dataset {LARGE}: there is no torch here: install it, or give a folder of text")
        return modules | _files_below(Path(torch.origin).parent, (".py",), "torch/")
    if path == LIBRARY:
        return {file.name: file for file in sorted(library.glob("*.py")) if file.is_file()}
    root = Path(path)
    if root.is_file():
        return {root.name: root}
    if not root.is_dir():
        raise ValueError(f"dataset {path}: no such file or folder (or one of {', '.join(WORDS)})")
    return _files_below(root, (".txt", ".md", ".py"))


def _files_below(root, kinds, prefix="", excluded=()):
    """{name: Path} of the files of some kinds in a folder and its folders, but those named `excluded`.

    Links are followed, as a folder of data often holds links to shards; one that leads back up is not walked again.
    """
    files, walked = [], set()
    for folder, inner, names in os.walk(root, followlinks=True):
        inner[:] = sorted(name for name in inner if name not in excluded)
        real = os.path.realpath(folder)
        if real in walked:
            inner.clear()
            continue
        walked.add(real)
        files += [Path(folder, name) for name in names]
    return {
        prefix + file.relative_to(root).as_posix(): file
        for file in sorted(files)
        if file.suffix.lower() in kinds and file.is_file()
    }


def long_enough(text, seq):
    """The text (bytes, or a tensor of them), where a sequence and the byte after it can be drawn from it at random.

    ValueError, one line, where it is no longer than that.
    """
    if len(text) <= seq + 1:
        raise ValueError(
            f"the dataset holds {len(text):,} byte(s): it must be longer than one sequence, {seq:,}: use "
            "a larger --dataset, or a smaller --seq"
        )
    return text
