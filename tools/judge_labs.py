"""Seconds of the labs' steps as a profile of this machine predicts them, beside what the labs measured.

    python tools/judge_labs.py FOLDER                                     about a quarter of an hour on two cores
    python tools/judge_labs.py FOLDER --processes 2 --labs ddp,zero --rounds 3

Calibrates right before each lab, at as many processes, and runs the lab at its smoke size; FOLDER keeps the profiles and
the Records, and what it has already is not run again. Every step is predicted from nothing but its job and the profile:
with one rate of matrix multiplications and one of copies, as profiles were once, and kernel by kernel. The median of
several rounds counts, for other work on the machine comes and goes.
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
from scaleout.records import profiles, results
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
from scaleout.timing.job import PARTS, Step, on

MIB = 2**20
# Words for each lab beside tier, profile and Record: no more than its steps.
LABS = {
    "memory": (), "ddp": (), "zero": (), "fsdp": (), "tensor": (), "mesh": (), "pipeline": (), "recompute": (),
    "capstone": ("--steps", "30", "--sample", "0", "--validate-every", "1000000", "--validation-batches", "1"),
}  # fmt: skip
WITHOUT = ("ddp", "fsdp", "pipeline")  # labs that calibrate themselves, in the rounds of their steps
BASE = {"memory": 1, "ddp": MIB, "fsdp": 1}
STAGES = {"DDP": 0, "stage 1 by hand": 1, "stage 2 by hand": 2, "stage 3 by hand": 3, "fully_shard": 3}


def jobs(record: Record, profile: dict) -> Iterator[tuple[str, list[float], Job]]:
    """(what it is, seconds of each step, job) of the ways of a Record that the model of seconds has words for."""
    world, stem = record.device_count, record.stem
    recipe = Recipe(**{name: value for name, value in record.recipe.items() if name in Recipe.__dataclass_fields__})
    shape = Shape(**record.model)

    def made(sequences: int, layout: Layout, recipe: Recipe = recipe, **how) -> Job:
        device = machine.device_of(profile)
        return Job(shape, record.sequence_length, device, cluster(1, world), sequences, layout, recipe, MEASURED,
                   Replicas(**how))  # fmt: skip

    each = record.effective_batch // world
    series = {name.removeprefix("seconds a step, "): found for name, found in record.series.items()}
    if stem == "memory":
        yield "torch DDP", record.step_seconds, made(each, Layout(dp=world))
    elif stem == "ddp":
        for name in ("torch DDP", "nothing sent"):
            if name in series:
                ranks = Layout(dp=world)
                job = made(each, ranks, bucket_bytes=MIB)
                yield name, series[name], job if name != "nothing sent" else job.other(dp=1, cluster=cluster(1, 1))
    elif stem in ("zero", "fsdp"):
        for name in STAGES.keys() & series.keys():
            yield name, series[name], made(each, Layout(dp=world, zero=STAGES[name]))
    elif stem == "tensor":
        for name in ("by hand", "by hand, sequence") if world > 1 else ("one process",):
            sequence = name.endswith("sequence")
            if name in series:
                yield name, series[name], made(record.effective_batch, Layout(
                    tp=world, sequence_parallel=sequence, gather_again=False))  # fmt: skip
    elif stem == "mesh":
        layout = layout_words.parse(usual(world), world, shape, 0)
        layout, _ = replace(layout, micro_batches=record.recipe["micro_batches"]), None
        yield "by hand", record.step_seconds, made(
            record.effective_batch // layout.dp // layout.m, layout, replace(recipe, gradients="kept"))  # fmt: skip
    elif stem == "pipeline":
        m = record.recipe["micro_batches"]
        yield "1F1B by hand", record.step_seconds, made(record.effective_batch // m, Layout(
            pp=world, micro_batches=m, schedule="1f1b" if world > 1 else "gpipe"))  # fmt: skip
    elif stem == "recompute":
        yield "all kept", series["everything"], made(each, Layout(dp=world))
        yield "all recomputed", series["inputs alone"], made(
            each, Layout(dp=world), replace(recipe, checkpointing="full"))  # fmt: skip
    elif stem == "capstone":
        yield record.recipe["strategy"], record.step_seconds, made(
            each, Layout(dp=world, zero=3 if world > 1 else 0), Recipe("fp32"))  # fmt: skip


def predicted(job: Job, profile: dict) -> Step:
    """The step on the machine of a profile, and of its groups."""
    world = job.layout.ranks
    known = {n: profile if n == profile["world"] else profiles.among(profile, n) for n in {*machine.groups(job.layout)}}
    known = {n: found for n, found in known.items() if found} | {world: profile}
    return on(job, machine.of_profiles(job, known))


def seconds(step: Step, profile: dict) -> float:
    """Of a step: where ranks share cores, one that waits for another leaves its core to it, and no bubble shows."""
    shared = profile["device_kind"] == "cpu" and cores() < profile["world"]
    return step.seconds - (step.parts["bubble"] + step.parts["imbalance"]) * shared


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
    o = parser.parse_args()
    found: dict[tuple[str, int, str], list[tuple[float, float, float, Step]]] = {}
    for turn in range(o.rounds):
        for world in map(int, o.processes.split(",")):
            for lab in o.labs.split(","):
                pair = collect(o.folder, lab, world, turn)
                for what, spent, job in jobs(*pair) if pair else ():
                    record, profile = pair
                    measured = statistics.median(spent[record.warmup_steps:])
                    bare = {name: value for name, value in profile.items() if name != "kernels"}
                    now, before = (predicted(job, one) for one in (profile, bare))
                    row = measured, seconds(before, profile), seconds(now, profile), now
                    found.setdefault((lab, world, what), []).append(row)
    show(found, o.parts)


def show(found: dict, parts: bool) -> None:
    """The table."""
    print(f"{'lab':<10} {'processes':>9}  {'step':<22} {'measured':>9} {'one rate':>9} {'kernels':>9}  ratios")
    before, after = [], []
    for (lab, world, what), rows in found.items():
        ratios = [statistics.median(row[i] / row[0] for row in rows) for i in (1, 2)]
        milliseconds = [1e3 * statistics.median(row[i] for row in rows) for i in range(3)]
        print(f"{lab:<10} {world:>9}  {what:<22} {milliseconds[0]:9.1f} {milliseconds[1]:9.1f} {milliseconds[2]:9.1f}  "
              f"{ratios[0]:.2f} {ratios[1]:.2f}")  # fmt: skip
        if parts:
            print("    " + ", ".join(f"{name} {1e3 * rows[-1][3].parts[name]:.1f}" for name in PARTS
                                     if rows[-1][3].parts[name]))  # fmt: skip
        before.append(abs(ratios[0] - 1))
        after.append(abs(ratios[1] - 1))
    if before:
        print(f"median error over {len(before)} steps: {statistics.median(before):.0%} by one rate, "
              f"{statistics.median(after):.0%} kernel by kernel")  # fmt: skip


if __name__ == "__main__":
    main()
