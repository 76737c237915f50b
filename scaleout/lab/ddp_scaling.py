"""The same lab at several numbers of processes, and what it says about scaling. Starts torchrun by itself."""

import re
import statistics
import tempfile
from pathlib import Path

from scaleout.lab import launch
from scaleout.lab.text import ms, ratio, table
from scaleout.timing.scaling import strong_efficiency, weak_efficiency

OWN_FLAGS = ("--scaling", "--save", "--micro-batch", "--trace", "--inject")  # flags that each run gets anew, or not
DDP, ONE, ALONE = "torch DDP", "one process, all threads", "nothing sent"


def worlds(text, flag="--scaling"):
    """[1, 2, 4] of "1,2,4". ValueError, one line, for anything else."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1 or counts[-1] > 64:
        raise ValueError(f"{flag} {text}: give numbers of processes from 1 to 64, such as 1,2,4")
    return counts


def plan(ranks, micro_batch):
    """{(kind, ranks): sequences per rank}: "weak" keeps the work of a rank, "strong" the work of all together.

    All together do `micro_batch` a rank at the most ranks, so that the largest run is in both. ValueError where a
    number of ranks does not divide the work of all.
    """
    total = micro_batch * ranks[-1]
    for world in ranks:
        if total % world:
            raise ValueError(
                f"--scaling: {world} processes do not divide {total} sequences: choose numbers of "
                f"processes that divide the largest times --micro-batch"
            )
    return {("strong", world): total // world for world in ranks} | {("weak", world): micro_batch for world in ranks}


def passed_words(words):
    """The words of a command without the flags that scaling sets itself, and without their values."""
    passed, skip = [], False
    for word in words:
        flag = word.split("=")[0]
        if skip and not word.startswith("--"):
            skip = False
            continue
        skip = flag in OWN_FLAGS and "=" not in word
        if flag not in OWN_FLAGS:
            passed.append(word)
    return passed


def run(s, o, tier, script, words, folder=None):
    """Run `script` at every number of processes in o.scaling, print the table and the explanation.

    folder: where the Records go (Path); None keeps none. Returns {(kind, ranks): Record}.
    """
    if s.world > 1:
        raise ValueError("--scaling starts torchrun itself: start it with python")
    ranks = worlds(o.scaling)
    todo, records = plan(ranks, o.micro_batch), {}
    with launch.ending(), tempfile.TemporaryDirectory() as temporary:
        for (kind, world), sequences in todo.items():
            twin = records.get(("strong", world))
            if kind == "weak" and twin and todo["strong", world] == sequences:
                records[kind, world] = twin
                continue
            path = Path(folder or temporary) / f"{tier}-scaling-{s.device.type}-{kind}-{world}.json"
            records[kind, world] = launch.started(
                script,
                [*passed_words(words), "--brief", "--micro-batch", str(sequences), "--save", str(path)],
                world,
                path,
            )
            s.say(f"{kind}, {world} process(es) x {sequences} sequences: {ms(records[kind, world].median)} ms per step")
    s.say("\n" + report(records))
    return records


# --- what it says -------------------------------------------------------------------------------------------


def part(record, name):
    """Median seconds of a series of a Record ("one process, all threads"), or None."""
    spent = record.series.get(f"seconds per step, {name}", [])[record.warmup_steps :]
    return statistics.median(spent) if spent else None


def efficiency(records, kind):
    """{ranks: efficiency} of the Records of one kind."""
    seconds = {world: r.median for (k, world), r in records.items() if k == kind}
    return (strong_efficiency if kind == "strong" else weak_efficiency)(seconds)


def report(records):
    """The table and the explanation, as text."""
    rows = []
    for (kind, world), r in records.items():
        seconds, share = r.median, efficiency(records, kind)[world]
        guess = r.prediction.get(f"seconds per step, {DDP}")
        rows.append(
            (
                kind,
                world,
                r.effective_batch // world,
                ms(seconds),
                ms(guess),
                ratio(guess, seconds),
                f"{r.rate:,.0f}",
                f"{share:.2f}",
                ms(part(r, ALONE)),
                ms(part(r, ONE)),
            )
        )
    text = table(
        (
            "scaling",
            "processes",
            "sequences each",
            "ms per step",
            "predicted",
            "ratio",
            "tokens/s",
            "efficiency",
            "nothing sent, ms",
            "one process, all threads, ms",
        ),
        rows,
    )
    return "\n".join([text, "", *why(records)])


def _placement(r):
    """What the processes of a Record compute on: its machine, which need not be this one."""
    cores = re.match(r"(\d+)-core ", r.device)
    return f"on {cores[1]} cores and one memory" if cores else f"each on its own {r.device}"


def why(records):
    """Lines that say where the time of several processes goes, in the numbers of these runs."""
    lines = []
    first = min(world for _, world in records)
    for (kind, world), r in records.items():
        if world == first or (kind == "weak" and records.get(("strong", world)) is r):
            continue
        start = records[kind, first]
        base, seconds = start.median, r.median
        ideal = base * first / world if kind == "strong" else base
        alone, single = part(r, ALONE) or seconds, part(r, ONE)
        sent = r.measurement.get(f"bytes per step, {DDP}", 0.0)
        lines += [
            f"{kind}, {world} processes: {ms(seconds)} ms per step, ideal {ms(ideal)} (from {first} process(es)).",
            f"  {ms(alone - ideal)} ms: {world} processes compute at once, {_placement(r)}; each updates all weights.",
            f"  {ms(seconds - alone)} ms: an all-reduce of {sent / 1e6:,.2f} MB per step, and waiting for the "
            "slowest rank.",
        ]
        if single:
            comparison = "slower" if seconds > single else "faster"
            lines.append(
                f"  One process with all threads, on the same batch: {ms(single)} ms. DDP is "
                f"{max(seconds, single) / min(seconds, single):.2f} times {comparison} here."
            )
    return lines
