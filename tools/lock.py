"""Rewrite constraints.txt: the version in this environment of everything requirements.txt pulls in.

    .venv/bin/python tools/lock.py

Run it after changing a pin in requirements.txt and installing it.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Everything that requirements.txt pulls in. Written by tools/lock.py; do not edit by hand.\n"


def direct() -> list[Requirement]:
    """The requirements in requirements.txt, comments dropped."""
    lines = (line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def closure(roots: list[Requirement]) -> dict[str, str]:
    """Canonical name -> installed public version of `roots` and all that they need on this machine."""
    found: dict[str, str] = {}
    waiting = [(root.name, root.extras) for root in roots]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        key = (canonicalize_name(name), tuple(sorted(extras)))
        if key in seen:
            continue
        seen.add(key)
        package = metadata.distribution(name)
        found[key[0]] = Version(package.version).public
        for text in package.requires or []:
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                waiting.append((need.name, need.extras))
    return found


def main() -> None:
    """Write the file, one pin a line."""
    pins = closure(direct())
    own = {canonicalize_name(root.name) for root in direct()}
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items()) if name not in own]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines))
    print(f"constraints.txt: {len(lines)} packages")


if __name__ == "__main__":
    main()
