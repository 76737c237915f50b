"""The text that every lab trains on, byte by byte. Standard library only."""

import importlib.util
import os
import sysconfig
from pathlib import Path

VOCABULARY = 256                    # one token a byte
LARGE = "stdlib+torch"              # a --dataset for models that would read the top-level modules many times over


def read(path=None):
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
    """{name: Path} of the files of some kinds in a folder and its folders, but those named `without`.

    Links are followed, as a folder of data often holds links to shards; one that leads back up is not walked again.
    """
    files, walked = [], set()
    for folder, inner, names in os.walk(root, followlinks=True):
        inner[:] = sorted(name for name in inner if name not in without)
        real = os.path.realpath(folder)
        if real in walked:
            inner.clear()
            continue
        walked.add(real)
        files += [Path(folder, name) for name in names]
    return {before + file.relative_to(root).as_posix(): file for file in sorted(files)
            if file.suffix.lower() in kinds and file.is_file()}


def long_enough(text, seq):
    """The text (bytes, or a tensor of them), where a sequence and the byte after it can be drawn from it at random.

    ValueError, one line, where it is no longer than that.
    """
    if len(text) <= seq + 1:
        raise ValueError(f"the dataset holds {len(text):,} byte(s): it must be longer than one sequence, {seq:,}: use "
                         "a larger --dataset, or a smaller --seq")
    return text
