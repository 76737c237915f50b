"""The results of a tour of the labs: one page, all Records in one file, and an archive of all that the labs wrote.

Standard library only.

There are always three files, in a folder that can be copied from any machine. They are rewritten after every stop, so
that they exist however the tour ends.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scaleout.lab.text import figure, megabytes, ratio
from scaleout.lab.tour import BY_ITSELF, Machine, Stop
from scaleout.lab.tour_visit import ENDED, FAILED, PASSED, Visit
from scaleout.records import profiles
from scaleout.records.files import write_json, written_whole
from scaleout.writeup import blocks
from scaleout.writeup.blocks import Block, Code, Heading, Items, Note, Table, Text

PAGE, RECORDS, ARCHIVE = "tour.md", "records.json", "tour.tar.gz"
ARCHIVED = (".json", ".txt", ".md")
LARGEST = 4 * 2**20  # bytes of a file in the archive
MOST_ROWS = 12  # of a lab's predictions on the page
HELD_OUT = r"^(gloo|nccl) all_reduce.*held out$"  # a collective's seconds by a line that has not seen its size
# Which of a Record's predictions stands for it: the last of the first kind that it has.
HEADLINES = (r"^seconds per step(?!.*profile)", rf"{HELD_OUT}", r"seconds", r"^peak bytes", r"")
FILES = (
    f"{RECORDS} has the complete Records: all step times, checks, versions. {ARCHIVE} has the log of each lab, its "
    "Records as files (for python -m scaleout.writeup), and the profiles that calibrate measured."
)
WHERE = {"cuda": "On GPUs", "cpu": "On the CPU"}


@dataclass
class Tour:
    """A tour so far. minutes: asked for. command: as typed. profiles: by calibrate. dropped: [(Stop, why)]. note: what
    else is to be said."""

    machine: Machine
    minutes: float
    command: str
    started: str
    visits: list[Visit] = field(default_factory=list)
    profiles: list[dict] = field(default_factory=list)
    dropped: list[tuple[Stop, str]] = field(default_factory=list)
    seconds: float = 0.0
    note: str = ""

    @property
    def passed(self) -> bool:
        """Every lab that ran passed, and one ran."""
        return bool(self.visits) and all(visit.verdict == PASSED for visit in self.visits)


# --- the files ------------------------------------------------------------------------------------------------------


def write(tour: Tour, folder: Path, work: Path) -> None:
    """The three files of a tour in `folder`. work: where the labs wrote."""
    tour.profiles = found_profiles(work)
    with written_whole(folder / PAGE) as temporary:
        temporary.write_text(page(tour), encoding="utf-8")
    write_json(data(tour), folder / RECORDS)
    with written_whole(folder / ARCHIVE) as temporary, tarfile.open(temporary, "w:gz") as archive:
        for path in sorted(work.rglob("*")):
            if path.is_file() and path.suffix in ARCHIVED and path.stat().st_size <= LARGEST:
                archive.add(path, f"tour/{path.relative_to(work)}")
        archive.add(folder / PAGE, f"tour/{PAGE}")


def found_profiles(work: Path) -> list[dict]:
    """The machine's profiles that the labs have measured so far."""
    measured = []
    for path in sorted((work / "cache" / "scaleout").glob("machine-*.json")):
        with suppress(ValueError):
            measured.append(profiles.load(path))
    return measured


def data(tour: Tour) -> dict:
    """A tour as JSON: its stops with all their Records."""
    return {
        "schema": 1,
        "started": tour.started,
        "command": tour.command,
        "minutes": tour.minutes,
        "seconds": tour.seconds,
        "machine": tour.machine.facts,
        "note": tour.note,
        "profiles": tour.profiles,
        "stops": [
            asdict(visit.stop)
            | {
                "expected": visit.stop.seconds,
                "seconds": visit.seconds,
                "verdict": visit.verdict,
                "why": visit.why,
                "records": [asdict(record) for record in visit.records],
            }
            for visit in tour.visits
        ],
        "dropped": [asdict(stop) | {"why": reason} for stop, reason in tour.dropped],
    }


# --- the page -------------------------------------------------------------------------------------------------------


def page(tour: Tour) -> str:
    """The page as Markdown."""
    facts = tour.machine.facts
    parts: list[Block] = [
        Heading(f"The labs on {headed(tour.machine)}", 0),
        Text(summed(tour)),
        *([Note("Note.", tour.note)] if tour.note else []),
        *(
            part
            for device in WHERE
            for part in _table(device, [visit for visit in tour.visits if visit.stop.on == device])
        ),
        *_troubles(tour),
        *_dropped(tour),
        Heading("Machine"),
        Table(("what", "found"), tuple(facts.items()), left=2),
        *_reached(tour),
        *_details(tour),
        Heading("Files"),
        Text(FILES),
    ]
    return blocks.markdown(parts)


def headed(machine: Machine) -> str:
    """A machine in words: its GPUs, or its processor."""
    return machine.facts.get("GPU") or machine.facts.get("processor") or "this machine"


def summed(tour: Tour) -> str:
    """The result of the tour, in a few sentences."""
    count = {verdict: sum(visit.verdict == verdict for visit in tour.visits) for verdict in (PASSED, FAILED, ENDED)}
    rest_counts = (
        (count[FAILED], "failed"),
        (count[ENDED], "ended by the tour"),
        (len(tour.dropped), "skipped for lack of time"),
    )
    came = [f"{count[PASSED]} of {len(tour.visits)} stops passed", *(f"{n} {words}" for n, words in rest_counts if n)]
    gpus = sum(visit.stop.on == "cuda" for visit in tour.visits)
    gpu_words = f"{gpus} of them ran on GPUs." if gpus else "None of them ran on a GPU."
    return (
        f"{', '.join(came)}. {gpu_words} {tour.seconds:.0f} s of {tour.minutes * 60:.0f} s. Started {tour.started} "
        f"with {tour.command}"
    )


def _table(device: str, visits: list[Visit]) -> list[Block]:
    """The table of the stops on one kind of device."""
    if not visits:
        return []
    header = ("lab", "tier", "verdict", "figure", "predicted", "measured", "ratio", "ranks", "took, s", "expected, s")
    rows = []
    for visit in visits:
        ranks = "-" if visit.stop.lab in BY_ITSELF else str(visit.stop.world)
        rows.append(
            (
                visit.stop.lab,
                sized(visit.stop),
                verdict(visit),
                *headline(visit),
                ranks,
                f"{visit.seconds:.0f}",
                f"{visit.stop.seconds:.0f}",
            )
        )
    return [Heading(WHERE[device]), Table(header, tuple(rows), left=4)]


def sized(stop: Stop) -> str:
    """The tier of a stop, where its lab has tiers."""
    return stop.tier if "--tier" in stop.command else "-"


def verdict(visit: Visit) -> str:
    """In the table: passed with how many checks, or that it did not."""
    checks = sum(len(record.checks) for record in visit.records)
    return f"passed, {checks} checks" if visit.verdict == PASSED and checks else visit.verdict


def headline(visit: Visit) -> tuple[str, str, str, str]:
    """(figure, predicted, measured, ratio) that stands for a visit in the table."""
    record = next((record for record in reversed(visit.records) if record.prediction), None)
    if record is None:
        return ("-",) * 4
    names = [*record.prediction]
    name = next(
        matches[-1]
        for kind in HEADLINES
        if (matches := [candidate for candidate in names if re.search(kind, candidate)])
    )
    return pair(record, name)


def pair(record, name: str) -> tuple[str, str, str, str]:
    """A prediction of a Record, its measurement, and their ratio, as cells."""
    predicted, measured = record.prediction[name], record.measurement[name]
    return name, figure(name, predicted), figure(name, measured), ratio(predicted, measured)


def _details(tour: Tour) -> list[Block]:
    """Each lab's predictions."""
    parts: list[Block] = []
    for visit in tour.visits:
        for record in visit.records:
            names = shown_names(record)
            rows = tuple(pair(record, name) for name in names[:MOST_ROWS])
            remaining = len(record.prediction) - len(rows)
            parts += [
                Heading(visit.stop.lab, 2),
                Text(ran(record)),
                *([Table(("figure", "predicted", "measured", "ratio"), rows)] if rows else []),
                *([Text(f"{remaining} more in {RECORDS}.")] if remaining else []),
            ]
    return [Heading("Prediction and measurement"), *parts] if parts else []


def shown_names(record) -> list[str]:
    """Which predictions of a Record the page has: the seconds first, none that is zero on both sides; of a sweep the
    all-reduces of the sizes that their line has not seen."""
    names = [name for name in record.prediction if record.prediction[name] or record.measurement[name]]
    swept = [name for name in names if re.search(HELD_OUT, name)]
    return swept or sorted(names, key=lambda name: ("seconds" not in name, "bytes" not in name))


def ran(record) -> str:
    """Where and how a Record was made, and how fast it was."""
    words = [
        f"{record.device_count} x {record.device}, backend {record.backend}, tier {record.tier}, {record.precision}"
    ]
    if record.tokens is not None:
        words.append(f"{record.rate:,.0f} tokens/s")
    if record.mfu is not None:
        words.append(f"MFU {record.mfu:.2f} of {record.mfu_peak['flops_per_second'] / 1e12:,.3g} TFLOP/s")
    peak = next((size for kind, size in record.peak_memory.items() if kind.endswith("allocated")), None)
    words += [f"peak of the allocator {megabytes(peak)}"] if peak else []
    return f"{'; '.join(words)}. {record.command}"


def _reached(tour: Tour) -> list[Block]:
    """Rates that calibrate measured: per process while all are busy, and of an all-reduce."""
    rows = []
    for profile in tour.profiles:
        line = profile["collectives"].get("all_reduce")
        products = profile["matmul_flops_per_second"]
        rows.append(
            (
                f"{profile['world']} x {profile['device']}",
                *(f"{products[name] / 1e12:,.3g}" if name in products else "-" for name in ("fp32", "bf16", "fp16")),
                f"{profile['copy_bytes_per_second'] / 1e9:,.4g}",
                f"{line['alpha_seconds'] * 1e6:,.4g}" if line else "-",
                f"{1e-9 / line['seconds_per_byte']:,.4g}" if line and line["seconds_per_byte"] > 0 else "-",
            )
        )
    header = (
        "processes",
        "fp32, TFLOP/s",
        "bf16, TFLOP/s",
        "fp16, TFLOP/s",
        "copy, GB/s",
        "all-reduce alpha, µs",
        "all-reduce, GB/s",
    )
    return (
        [Text("Rates that calibrate measured, per process while all processes are busy:"), Table(header, tuple(rows))]
        if (rows)
        else []
    )


def _dropped(tour: Tour) -> list[Block]:
    """The stops for which there was no time."""
    lines = tuple(f"{named(stop)}: {reason}" for stop, reason in tour.dropped)
    return [Heading("Skipped for lack of time"), Items(lines)] if lines else []


def named(stop: Stop) -> str:
    """A stop in words."""
    tier = f", tier {stop.tier}" if "--tier" in stop.command else ""
    ranks = f", {stop.world} ranks" if stop.world > 1 else ""
    return f"{stop.lab}{tier}{ranks} on {'GPUs' if stop.on == 'cuda' else 'the CPU'}"


def _troubles(tour: Tour) -> list[Block]:
    """The stops that did not pass, each with the end of its log."""
    wrong: Iterable[Visit] = [visit for visit in tour.visits if visit.verdict != PASSED]
    parts: list[Block] = []
    for visit in wrong:
        parts += [
            Heading(named(visit.stop), 2),
            Text(visit.why[:1].upper() + visit.why[1:] + "."),
            Code(visit.last_words or "(no output)"),
        ]
    return [Heading("What went wrong"), *parts] if parts else []
