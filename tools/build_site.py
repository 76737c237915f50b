"""Build the site into _build/html: every warning is an error, all are shown, and none as a traceback.

    .venv/bin/python tools/build_site.py

The whole log is in _build/site.log. The check at the end (scaleout/page/sphinx.py) fails the build when a page of
_toc.yml is missing from the output.
"""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "_build" / "site.log"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def problems(log: str) -> list[str]:
    """The lines of a log that say what is wrong: warnings, errors, and the line after "Sphinx error:"."""
    lines = [COLOUR.sub("", line).strip() for line in log.splitlines()]
    found = [line for line in lines if re.search(r"\b(WARNING|ERROR|CRITICAL)\b", line)]
    found += [after for line, after in pairwise(lines) if line.endswith("Sphinx error:")]
    return list(dict.fromkeys(line.replace(f"{ROOT}/", "") for line in found))


def build() -> int:
    """Run Jupyter Book; its exit code."""
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    options = ["build", ".", "-n", "-W", "--keep-going", "--quiet"]
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("w", encoding="utf-8") as log:
        return subprocess.run([*command, *options], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT).returncode


def main() -> int:
    """Build and report; the exit code."""
    code = build()
    if code:
        log = LOG.read_text(encoding="utf-8")
        last = [COLOUR.sub("", line) for line in log.splitlines() if line.strip()][-1:]
        print("\n".join(problems(log) or last), file=sys.stderr)
        print("site: not built, see above; the whole log is in _build/site.log", file=sys.stderr)
        return 1
    print("The site is in _build/html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
