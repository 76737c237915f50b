"""A systems write-up of one or several runs, from their Records.

    python -m scaleout.writeup RECORD... [--out FILE.md]
    python -m scaleout.writeup --review RECORD [BASELINE...]

One page: what ran where, how fast with its spread, how it scales, memory by kind, waits and failures, prediction
beside measurement, checks, and the exact commands. Without --out it goes to the screen, pictures included as SVG;
with it, the pictures are files beside FILE.md. Records of one job at several numbers of devices give a curve. Runs on
a CPU and runs on GPUs never share a table or a curve. A notebook shows `Page(records)`. --review fills the review
checklist instead, and says what the Record cannot answer. Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scaleout.records import results
from scaleout.records.results import Record
from scaleout.spec.command import Parser
from scaleout.writeup import blocks as writeup_blocks
from scaleout.writeup import facts, review
from scaleout.writeup.blocks import Block, Heading, Note, Text
from scaleout.writeup.sections import device_part

KINDS = {"cuda": "On GPUs", "cpu": "On a CPU"}


@dataclass(frozen=True, repr=False)
class Page:
    """A write-up; a notebook shows it as HTML. folded: only its first section, the rest a press away. ValueError for no
    Records, or for names that do not fit them."""

    records: tuple[Record, ...]
    names: tuple[str, ...] | None = None
    folded: bool = False

    def blocks(self) -> list[Block]:
        """The page's parts, in order."""
        return _blocks(facts.runs(self.records, self.names))

    def markdown(self, links: dict[str, str] | None = None) -> str:
        """As Markdown; `links` maps a figure's name to the address of its file, without one it stands inline."""
        return writeup_blocks.markdown(self.blocks(), links)

    def _repr_html_(self) -> str:
        return writeup_blocks.html(self.blocks(), folded=self.folded)

    def __repr__(self) -> str:
        return "\n".join(block.words for block in self.blocks()[:2] if isinstance(block, Heading | Text))


def page(records: Sequence[Record], names: Sequence[str] | None = None) -> str:
    """The write-up of `records` as Markdown with its pictures inline; names: what the page calls each run."""
    return Page(tuple(records), None if names is None else tuple(names)).markdown()


def read(paths: Sequence[str | Path]) -> Page:
    """The write-up of Records in files, each named by its file. ValueError, one line, for what is no Record."""
    records = tuple(results.load(path) for path in paths)
    stems = [Path(path).stem for path in paths]
    if len(set(stems)) < len(stems):  # the same name in two folders
        stems = [f"{Path(path).resolve().parent.name}/{Path(path).stem}" for path in paths]
    return Page(records, tuple(stems))


def _blocks(runs: list[facts.Run]) -> list[Block]:
    stems = list(dict.fromkeys(run.record.stem for run in runs))
    parts = {kind: [run for run in runs if run.record.device_kind == kind] for kind in KINDS}
    parts = {kind: part for kind, part in parts.items() if part}
    places = "; ".join(facts.places(runs))
    blocks: list[Block] = [Heading(f"Systems write-up: {', '.join(stems)}", 0), Text(places + ".")]
    if len(parts) == 1:
        return blocks + device_part(runs)
    blocks.append(
        Note(
            "Two kinds of device.",
            "Runs on GPUs come first, runs on a CPU after them. No table and no curve holds both.",
        )
    )
    for kind, part in parts.items():
        inner = [_nested(block, kind) for block in device_part(part)]
        blocks += [Heading(KINDS[kind]), *inner]
    return blocks


def _nested(block: Block, kind: str) -> Block:
    """A block one level down, its picture under a name of its own."""
    if isinstance(block, Heading):
        return replace(block, depth=block.depth + 1)
    return replace(block, name=f"{kind}-{block.name}") if isinstance(block, writeup_blocks.Figure) else block


def write(page: Page, path: str | Path) -> list[Path]:
    """Write the page to `path` and its pictures beside it. Returns the files. ValueError where that cannot be done."""
    path = Path(path)
    if path.suffix != ".md":
        raise ValueError(f"{path}: the name must end in .md")
    blocks = page.blocks()
    links = {block.name: name for block, name in writeup_blocks.named(blocks, path)}
    texts = {path.name: writeup_blocks.markdown(blocks, links), **writeup_blocks.files(blocks, path)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (path.parent / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}): choose another folder") from None
    return [path.parent / name for name in texts]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 2 after one line on stderr for bad input."""
    parser = Parser(__doc__, prog="python -m scaleout.writeup")
    parser.add_argument("records", nargs="+", metavar="RECORD", help="a JSON file that a lab wrote with --save")
    parser.add_argument("--review", action="store_true", help="the checklist of the first; the others are baselines")
    parser.add_argument("--out", metavar="FILE.md", help="write the page here, and its pictures next to it")
    try:
        args = parser.parse_args(argv)
        page = read(args.records)
        if args.review and args.out is not None:
            raise ValueError("--review is printed: leave out --out, or send it to a file with >")
        if args.review:
            sys.stdout.write(writeup_blocks.markdown(review.blocks(facts.runs(page.records, page.names))))
        elif args.out is None:
            sys.stdout.write(page.markdown())
        else:
            sys.stdout.writelines(f"{path}\n" for path in write(page, args.out))
    except ValueError as error:
        print(f"writeup: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
