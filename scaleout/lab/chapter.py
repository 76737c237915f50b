"""The first cell of a chapter, once it has the book's folder: packages, the path to the labs, their device.

No torch: its version is looked up and left as it is.
"""

import importlib
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


class Missing(Exception):
    """What the reader has to do, in one line, which is all that a notebook shows of it."""

    def _render_traceback_(self):
        return [str(self)]


def begin(book):
    """Make the notebook that runs here one of the folder `book` (Path): found, its packages there, its labs beside it.

    Missing where Python is too old or a package cannot be installed.
    """
    if sys.version_info < (3, 11):  # noqa: UP036 (nobody has installed it: no pip has looked)
        raise Missing(f"The book needs Python 3.11 or newer, and this one is {sys.version.split()[0]}.")
    if installed("scaleout") is None:  # else pip has brought what it needs
        paths = [str(book), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))  # for the labs
        install(needs(book))
    if Path.cwd().resolve().parent != Path(book).resolve():
        os.chdir(Path(book) / "notebooks")  # chapters name labs and files from there
    os.environ.setdefault("LAB_DEVICE", "auto")  # GPUs where there are enough of them, else the CPU


def installed(name):
    """The version of a package (str), None where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def needs(book):
    """[(package, lowest version)] of what chapters run on: the package's own, and the live widgets'."""
    import tomllib  # not in older Pythons, which `begin` has to refuse

    project = tomllib.loads((Path(book) / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    widgets = [line for line in project["optional-dependencies"]["book"] if line.startswith("anywidget")]
    return [tuple(line.split(">=")) for line in project["dependencies"] + widgets]


def release(text):
    """[2, 13] of "2.13.0+cu130"."""
    return [int(number) for number in re.findall(r"\d+", text)[:2]]


def install(wanted):
    """Install what is missing of `wanted`, or too old. A torch that is there stays: its driver was matched with it."""
    versions = {name: installed(name) for name, _ in wanted}
    lacking = [
        f"{name}>={lowest}"
        for name, lowest in wanted
        if versions[name] is None or release(versions[name]) < release(lowest)
    ]
    torch = versions.get("torch")
    if torch and any(line.startswith("torch>") for line in lacking):
        print(f"torch {torch} stays as it is, though the labs are for {dict(wanted)['torch']} and newer")
        lacking = [line for line in lacking if not line.startswith("torch>")]
    if not lacking:
        return
    print("Installing", *lacking, flush=True)
    keep = [f"torch=={torch}"] if torch else []
    result = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *keep, *lacking],
        capture_output=True,
        text=True,
        errors="replace",
    )
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Missing(f"pip could not install {' '.join(lacking)} ({reason}): install it, and run this cell again.")
    importlib.invalidate_caches()
