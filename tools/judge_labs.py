"""Seconds of the labs' steps as a profile of this machine predicts them, beside what the labs measured.

    python tools/judge_labs.py FOLDER                                     about a quarter of an hour on two cores
    python tools/judge_labs.py FOLDER --processes 2 --labs ddp,zero --rounds 3
    python tools/judge_labs.py FOLDER --rounds 3 --save                   the table of book/accuracy.md

Calibrates right before each lab, at as many processes, and runs the lab at its smoke size; FOLDER keeps the profiles
and the Records, and what it has already is not run again. Every step is predicted from nothing but its job and the
profile: with one rate of matrix multiplications and one of copies, as profiles were once, and kernel by kernel. The
median of several rounds counts, for other work on the machine comes and goes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import launching

from scaleout.lab.limits import cores
from scaleout.lab.mesh import usual
from scaleout.page.accuracy import LABS as JUDGED
from scaleout.records import profiles, results
from scaleout.records.files import write_json
from scaleout.records.results import Record
from scaleout.spec import layout_words
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import MEASURED
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import Shape
from scaleout.timing import machine
from scaleout.timing.job import PARTS, Step, step_on

MIB = 2**20
COLUMNS = ["lab", "processes", "step", "measured", "one rate", "predicted"]  # seconds, the last three
# Words for each lab beside tier, profile and Record: no more than its steps.
LABS = {
    "memory": (), "ddp": (), "zero": (), "fsdp": (), "tensor": (), "mesh": (), "pipeline": (), "recompute": (),
    "capstone": ("--steps", "30", "--sample", "0", "--validate-every", "1000000", "--validation-batches", "1"),
}  # fmt: skip
WITHOUT = ("ddp", "fsdp", "pipeline")  # labs that calibrate themselves, in the rounds of their steps
Found = tuple[str, list[float], Job]
STAGES = {"DDP": 0, "stage 1 by hand": 1, "stage 2 by hand": 2, "stage 3 by hand": 3, "fully_shard": 3}


class Ways:
    """The steps of a Record that the model of seconds has words for: (what it is, seconds of each step, job)."""

    def __init__(self, record: Record, profile: dict) -> None:
        self.record, self.device, self.world = record, machine.device_of(profile), record.device_count
        self.shape, self.batch = Shape(**record.model), record.effective_batch
        self.recipe = Recipe("fp32", foreach=record.recipe.get("foreach", True))
        self.series = {name.removeprefix("seconds per step, "): found for name, found in record.series.items()}

    def all(self) -> list[Found]:
        """By the lab: `memory` and those after it."""
        return list(getattr(self, self.record.stem)())

    def job(self, layout: Layout, batch: int | None = None, recipe: Recipe | None = None, **how) -> Job:
        """batch: sequences of a micro-batch, where it is not a rank's share of all."""
        return Job(
            self.shape,
            self.record.sequence_length,
            self.device,
            cluster(1, layout.ranks),
            batch or self.batch // self.world,
            layout,
            recipe or self.recipe,
            MEASURED,
            Replicas(**how),
        )

    def memory(self) -> Iterator[Found]:
        yield "torch DDP", self.record.step_seconds, self.job(Layout(dp=self.world))

    def ddp(self) -> Iterator[Found]:
        for name, ranks in (("torch DDP", self.world), ("nothing sent", 1)):
            if name in self.series:
                yield name, self.series[name], self.job(Layout(dp=ranks), bucket_bytes=MIB)

    def zero(self) -> Iterator[Found]:
        for name in (name for name in STAGES if name in self.series):
            program = replace(MEASURED, flat=name == "stage 3 by hand")
            yield name, self.series[name], replace(self.job(Layout(dp=self.world, zero=STAGES[name])), program=program)

    fsdp = zero

    def tensor(self) -> Iterator[Found]:
        for name in ("by hand", "by hand, sequence"):
            if name in self.series:
                layout = Layout(tp=self.world, sequence_parallel=name != "by hand", gather_again=False)
                yield name, self.series[name], self.job(layout, self.batch)

    def mesh(self) -> Iterator[Found]:
        layout = layout_words.parse(usual(self.world), self.world, self.shape, 0)
        layout = replace(layout, micro_batches=self.record.recipe["micro_batches"])
        yield "by hand", self.record.step_seconds, self.job(layout, self.batch // layout.dp // layout.m)

    def pipeline(self) -> Iterator[Found]:
        m, schedule = self.record.recipe["micro_batches"], "1f1b" if self.world > 1 else "gpipe"
        layout = Layout(pp=self.world, micro_batches=m, schedule=schedule)
        yield "1F1B by hand", self.record.step_seconds, self.job(layout, self.batch // m)

    def recompute(self) -> Iterator[Found]:
        ranks, again = Layout(dp=self.world), replace(self.recipe, checkpointing="full")
        yield "all kept", self.series["everything"], self.job(ranks)
        yield "all recomputed", self.series["inputs alone"], self.job(ranks, recipe=again)

    def capstone(self) -> Iterator[Found]:
        layout = Layout(dp=self.world, zero=3 if self.world > 1 else 0)
        yield self.record.recipe["strategy"], self.record.step_seconds, self.job(layout)


def predicted(job: Job, profile: dict) -> Step:
    """The step on the machine of a profile, and of its groups."""
    world = job.layout.ranks
    known = {n: profile if n == profile["world"] else profiles.among(profile, n) for n in {*machine.groups(job.layout)}}
    known = {n: found for n, found in known.items() if found} | {world: profile}
    return step_on(job, machine.from_profiles(job, known))


def seconds(step: Step, profile: dict) -> float:
    """Of a step: where ranks share cores, one that waits for another leaves its core to it, and no bubble shows."""
    shared = profile["device_kind"] == "cpu" and cores() < profile["world"]
    return step.crowded if shared else step.seconds


def collect(folder: Path, lab: str, world: int, turn: int) -> tuple[Record, dict] | None:
    """A lab's Record and the profile from right before it, run where they are not there; None where a run failed."""
    at = folder / f"{lab}-{world}-{turn}"
    record, profile = at / "record.json", at / "profile.json"
    try:
        if not record.exists():
            at.mkdir(parents=True, exist_ok=True)
            there = {"XDG_CACHE_HOME": str(at), "LAB_DEVICE": "cpu"}
            start = launching.launcher(world)
            launching.run([*start, "labs/calibrate.py", "--out", str(profile)], **there)
            words = () if lab in WITHOUT else ("--machine", str(profile))
            words += ("--folder", str(at / "run")) if lab == "capstone" else ()
            launching.run([*start, f"labs/{lab}.py", *LABS[lab], *words, "--save", str(record)], **there)
        return results.load(record), profiles.load(profile)
    except ValueError as error:
        print(f"{lab}, {world} process(es): {str(error)[-150:]}", file=sys.stderr, flush=True)
        return None


def main() -> None:
    """Run, predict, print: a line a step, then the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--labs", default=",".join(LABS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--parts", action="store_true", help="of the prediction, in ms")
    parser.add_argument("--save", action="store_true", help="in labs/results/judged.json")
    o = parser.parse_args()
    found: dict[tuple[str, int, str], list[tuple[float, float, float, Step]]] = {}
    for turn in range(o.rounds):
        for world in map(int, o.processes.split(",")):
            for lab in o.labs.split(","):
                pair = collect(o.folder, lab, world, turn)
                for what, spent, job in Ways(*pair).all() if pair else ():
                    record, profile = pair
                    measured = statistics.median(spent[record.warmup_steps :])
                    bare = {name: value for name, value in profile.items() if name != "kernels"}
                    now, before = (predicted(job, one) for one in (profile, bare))
                    row = measured, seconds(before, profile), seconds(now, profile), now
                    found.setdefault((lab, world, what), []).append(row)
    show(found, o.parts)
    if o.save:
        medians = {step: [statistics.median(row[i] for row in rows) for i in range(3)] for step, rows in found.items()}
        write_json({"columns": COLUMNS, "rows": [[*step, *seconds] for step, seconds in medians.items()]}, JUDGED)


def show(found: dict, parts: bool) -> None:
    """The table."""
    print(f"{'lab':<10} {'processes':>9}  {'step':<22} {'measured':>9} {'one rate':>9} {'kernels':>9}  ratios")
    before, after = [], []
    for (lab, world, what), rows in found.items():
        ratios = [statistics.median(row[i] / row[0] for row in rows) for i in (1, 2)]
        milliseconds = [1e3 * statistics.median(row[i] for row in rows) for i in range(3)]
        print(
            f"{lab:<10} {world:>9}  {what:<22} {milliseconds[0]:9.1f} {milliseconds[1]:9.1f} {milliseconds[2]:9.1f}  "
            f"{ratios[0]:.2f} {ratios[1]:.2f}"
        )
        if parts:
            print(
                "    "
                + ", ".join(f"{name} {1e3 * rows[-1][3].parts[name]:.1f}" for name in PARTS if rows[-1][3].parts[name])
            )
        before.append(abs(ratios[0] - 1))
        after.append(abs(ratios[1] - 1))
    if before:
        print(
            f"median error over {len(before)} steps: {statistics.median(before):.0%} by one rate, "
            f"{statistics.median(after):.0%} kernel by kernel"
        )


if __name__ == "__main__":
    main()
