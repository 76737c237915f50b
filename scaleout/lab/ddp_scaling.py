"""The same lab at several numbers of processes, and what it says about scaling. Starts torchrun by itself."""

import re
import statistics
import tempfile
from pathlib import Path

from scaleout.lab import launch
from scaleout.lab.text import ms, ratio, table
from scaleout.timing.scaling import strong_efficiency, weak_efficiency

TAKEN = ("--scaling", "--save", "--micro-batch", "--trace", "--inject")  # flags that each run gets anew, or not
DDP, ONE, ALONE = "torch DDP", "one process, all threads", "nothing sent"


def worlds(text, flag="--scaling"):
    """[1, 2, 4] of "1,2,4". ValueError, one line, for anything else."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > 64:
        raise ValueError(f"{flag} {text}: give numbers of processes from 1 to 64, such as 1,2,4")
    return found


def plan(ranks, micro_batch):
    """{(kind, ranks): sequences a rank}: "weak" keeps the work of a rank, "strong" the work of all together.

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


def others(words):
    """The words of a command without the flags that scaling sets itself, and without their values."""
    kept, skip = [], False
    for word in words:
        flag = word.split("=")[0]
        if skip and not word.startswith("--"):
            skip = False
            continue
        skip = flag in TAKEN and "=" not in word
        if flag not in TAKEN:
            kept.append(word)
    return kept


def run(s, o, tier, script, words, folder=None):
    """Run `script` at every number of processes in o.scaling, print the table and the explanation.

    folder: where the Records go (Path); None keeps none. Returns {(kind, ranks): Record}.
    """
    if s.world > 1:
        raise ValueError("--scaling starts torchrun itself: start it with python")
    ranks = worlds(o.scaling)
    todo, found = plan(ranks, o.micro_batch), {}
    with launch.ending(), tempfile.TemporaryDirectory() as temporary:
        for (kind, world), each in todo.items():
            twin = found.get(("strong", world))
            if kind == "weak" and twin and todo["strong", world] == each:
                found[kind, world] = twin
                continue
            path = Path(folder or temporary) / f"{tier}-scaling-{s.device.type}-{kind}-{world}.json"
            found[kind, world] = launch.started(
                script, [*others(words), "--brief", "--micro-batch", str(each), "--save", str(path)], world, path
            )
            s.say(f"{kind}, {world} process(es) x {each} sequences: {ms(found[kind, world].median)} ms a step")
    s.say("\n" + report(found))
    return found


# --- what it says -------------------------------------------------------------------------------------------


def part(record, name):
    """Median seconds of a series of a Record ("one process, all threads"), or None."""
    spent = record.series.get(f"seconds a step, {name}", [])[record.warmup_steps :]
    return statistics.median(spent) if spent else None


def efficiency(found, kind):
    """{ranks: efficiency} of the Records of one kind."""
    seconds = {world: r.median for (k, world), r in found.items() if k == kind}
    return (strong_efficiency if kind == "strong" else weak_efficiency)(seconds)


def report(found):
    """The table and the explanation, as text."""
    rows = []
    for (kind, world), r in found.items():
        seconds, share = r.median, efficiency(found, kind)[world]
        guess = r.prediction.get(f"seconds a step, {DDP}")
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
            "ms a step",
            "predicted",
            "ratio",
            "tokens/s",
            "efficiency",
            "nothing sent, ms",
            "one process, all threads, ms",
        ),
        rows,
    )
    return "\n".join([text, "", *why(found)])


def _where(r):
    """What the processes of a Record compute on: its machine, which need not be this one."""
    cores = re.match(r"(\d+)-core ", r.device)
    return f"on {cores[1]} cores and one memory" if cores else f"each on its own {r.device}"


def why(found):
    """Lines: where the time of more than one process goes, in these runs' own numbers."""
    lines = []
    first = min(world for _, world in found)
    for (kind, world), r in found.items():
        if world == first or (kind == "weak" and found.get(("strong", world)) is r):
            continue
        start = found[kind, first]
        base, now = start.median, r.median
        ideal = base * first / world if kind == "strong" else base
        alone, one = part(r, ALONE) or now, part(r, ONE)
        sent = r.measurement.get(f"bytes a step, {DDP}", 0.0)
        lines += [
            f"{kind}, {world} processes: {ms(now)} ms a step, ideal {ms(ideal)} (from {first} process(es)).",
            f"  {ms(alone - ideal)} ms: {world} processes compute at once, {_where(r)}; each updates all weights.",
            f"  {ms(now - alone)} ms: an all-reduce of {sent / 1e6:,.2f} MB each step, and the wait for the "
            "slowest rank.",
        ]
        if one:
            said = "slower" if now > one else "faster"
            lines.append(
                f"  One process with all threads, the same batch: {ms(one)} ms. DDP is "
                f"{max(now, one) / min(now, one):.2f} times {said} here."
            )
    return lines
