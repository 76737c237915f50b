"""Print the figures that the book promises to keep, measured on this machine.

    .venv/bin/python tools/bench.py [--smallest] [PART ...]     parts: build, and one for each tools/bench_PART.py

`build` times the site's build from nothing and from what is there. On a fresh clone the installation comes on
top: `fresh` measures that, in a new folder with a new environment, and is run only when named. `--smallest` takes
of each part as little as gives every figure (tests/test_bench.py); the site it builds once more, where it stands.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def timed(command: list[str], folder: Path = ROOT) -> float:
    """Seconds that a command took. Raises ValueError with the end of its output when it failed."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise ValueError(f"{' '.join(command)} failed:\n" + "\n".join(done.stdout.splitlines()[-20:]))
    return time.perf_counter() - start


def report(what: str, seconds: float) -> None:
    """One figure, as every part prints it."""
    print(f"{what:<44}{seconds:9.1f} s")


def build(smallest: bool) -> None:
    """The site: from nothing (not where `smallest`), and again with nothing changed."""
    if not smallest:
        shutil.rmtree(ROOT / "_build", ignore_errors=True)
        report("make site, from nothing", timed(["make", "site"]))
    report("make site, nothing changed", timed(["make", "site"]))
    size = sum(file.stat().st_size for file in (ROOT / "_build" / "html").rglob("*") if file.is_file())
    print(f"{'the site on disk':<44}{size / 1e6:9.1f} MB (10^6 bytes)")


def fresh(_smallest: bool) -> None:
    """A clone in a new folder with a new environment: `make site`, then `make test`."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "book"
        timed(["git", "clone", "--quiet", str(ROOT), str(clone)])
        report("make site, fresh clone, with installation", timed(["make", "site"], clone))
        report("make test, fresh clone, then installed", timed(["make", "test"], clone))


def parts() -> dict[str, object]:
    """Name -> function or script of each part."""
    scripts = {path.stem.removeprefix("bench_"): path for path in sorted(ROOT.glob("tools/bench_*.py"))}
    return {"build": build, "fresh": fresh} | scripts


def run(part: object, smallest: bool) -> None:
    """Run one part. Raises ValueError when it fails."""
    if callable(part):
        part(smallest)
    elif code := subprocess.run([sys.executable, str(part), *["--smallest"] * smallest], cwd=ROOT).returncode:
        raise ValueError(f"{part.name} failed with exit code {code}")


def main() -> int:
    """Run the parts named, or all but `fresh`; the exit code."""
    known = parts()
    parser = argparse.ArgumentParser(description="Print measured figures.")
    choice = f"of {', '.join(known)} (default: all but fresh)"
    parser.add_argument("part", nargs="*", metavar="PART", help=choice)
    parser.add_argument("--smallest", action="store_true", help="of each as little as gives every figure")
    options = parser.parse_args()
    named, failed = options.part, False
    unknown = [name for name in named if name not in known]
    if unknown:
        parser.error(f"{unknown[0]!r} is no part: use {', '.join(known)}")
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    for name in named or [name for name in known if name != "fresh"]:
        print(f"\n== {name}", flush=True)
        try:
            run(known[name], options.smallest)
        except ValueError as error:
            print(f"bench: {error}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
