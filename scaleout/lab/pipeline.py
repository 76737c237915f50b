"""What the lab of pipelines prints: bubbles and bytes with their predictions, timelines as text and as a trace, uneven
stages, which rank waits for which. Standard library only."""

import contextlib
import re
import statistics

from scaleout.lab.text import megabytes, ms, ratio, table
from scaleout.records import chrome
from scaleout.spec.pipeline import SCHEDULES

NAMES = {"naive": "naive"} | {name: facts.label for name, facts in SCHEDULES.items()}
VIAS = {"hand": "by hand", "torch": "torch"}
SHORT_MS = 10.0  # stages so short that the runtime's own time shows
BUBBLE = 0.04  # of the step: what 50 ms per rank, by hand, stays within on a quiet machine, in two chunks too
WIDTH = 66  # columns of a lane
LOOK = "abcdefghijklmnopqrstuvwxyz"


def schedules(text):
    """--schedules as [(name, v)]: each with the fewest stages per rank that it takes. ValueError for an unknown one."""
    names = [*SCHEDULES] if text == "all" else text.split(",")
    for name in names:
        if name not in SCHEDULES:
            raise ValueError(f"--schedules {text}: there is no {name!r}: use all, or some of {','.join(SCHEDULES)}")
    least = {name: 2 if name == "zb1" else SCHEDULES[name].chunks[0] for name in names}  # torch's ZB1 takes two
    return [(name, least[name]) for name in names]


def title(name, v):
    """A schedule as the tables call it."""
    return f"{NAMES[name]}, v = {v}" if v > 1 else NAMES[name]


def bubbles(rows):
    """[{"name", "via", "ms", "predicted", "measured" (seconds), "bubble", "found"}] as text."""
    return table(
        ("sleeping stages", "run by", "F = I = W, ms", "step, ms", "predicted", "ratio", "bubble", "predicted"),
        [
            (
                r["name"],
                VIAS[r["via"]],
                f"{r['ms']:g}",
                ms(r["measured"]),
                ms(r["predicted"]),
                ratio(r["predicted"], r["measured"]),
                f"{r['found']:.3f}",
                f"{r['bubble']:.3f}",
            )
            for r in rows
        ],
    )


def explain(rows):
    """What the bubbles say, in a line each. The first row says how long stages usually are."""
    gaps = [(row["found"] - row["bubble"], row) for row in rows if row["via"] == "hand"]
    usual = rows[0]["ms"]
    gap, row = max(((gap, row) for gap, row in gaps if row["ms"] == usual), key=lambda pair: pair[0])
    lines = [
        f"bubbles of {usual:g} ms stages, by hand: at most {gap:.3f} of the step above the prediction"
        + ("" if gap <= BUBBLE or usual <= SHORT_MS else f", where a quiet machine stays within {BUBBLE}")
    ]
    for gap, row in (pair for pair in gaps if pair[1]["ms"] < usual):
        lines.append(
            f"{row['name']} with {row['ms']:g} ms stages: {gap:.3f} above it: messages, autograd and waking up "
            f"take {ms(row['measured'] - row['predicted'])} ms per step, however short the stages are"
        )
    long = [gap for gap, row in gaps if row["ms"] > usual]
    if long:
        lines.append(f"where each of a rank's stages is as long as {usual:g} ms: at most {max(long):.3f} above it")
    return lines


def memory(rows):
    """[(schedule's title, bytes by rank predicted, measured)] as text."""
    lines = [
        (name, rank, megabytes(p), megabytes(m), ratio(p, m))
        for name, wanted, seen in rows
        for rank, (p, m) in enumerate(zip(wanted, seen, strict=True))
    ]
    return table(("peak saved for backward", "rank", "predicted", "measured", "ratio"), lines)


# --- lanes ----------------------------------------------------------------------------------------------------


def lanes(spans, seconds=None):
    """Spans of all ranks as text, a line a rank: a digit is a forward of that micro-batch, a letter its backward (a of
    micro-batch 0; of a backward in two halves small for the input's, large for the weights'), "." is waiting. With more
    than ten micro-batches digits come again."""
    seconds = seconds or max(span.end for row in spans for span in row)
    place = lambda t: min(WIDTH, round(t / seconds * WIDTH))  # noqa: E731
    lines = []
    for rank, row in enumerate(spans):
        cells = ["."] * WIDTH
        for span in row:
            mark = str(span.micro % 10) if span.kind == "F" else LOOK[span.micro % 26]
            for column in range(place(span.start), place(span.end)):
                cells[column] = mark.upper() if span.kind == "W" else mark
        lines.append(f"rank {rank}  {''.join(cells)}")
    return "\n".join(lines)


def both_lanes(name, predicted, measured):
    """The lanes of one schedule as predicted and as they were, with what they mean."""
    seconds = max(span.end for row in (*predicted, *measured) for span in row)
    return (
        f"{name} as predicted, and as it ran by hand ({ms(seconds)} ms across; digits are forwards, letters "
        f"backwards, dots idle time)\n{lanes(predicted, seconds)}\n\n{lanes(measured, seconds)}\n"
    )


def trace(spans):
    """Spans of all ranks as a Chrome trace: a process a rank, its actions on one row, its waits on the next."""
    events = []
    for rank, row in enumerate(spans):
        events += chrome.named(rank, {1: "actions", 2: "waits for a message"})
        for span in row:
            name = f"{span.kind}{span.micro} stage {span.stage}"
            kind = "forward" if span.kind == "F" else "backward"
            events.append(chrome.event(rank, 1, name, kind, span.start, span.end))
            if span.start - span.begin > 1e-4:
                events.append(chrome.event(rank, 2, f"receive for {name}", "wait", span.begin, span.start))
    return {"traceEvents": events}


def longest_receive(spans):
    """One line on the longest wait for a message that nothing needed yet, and on what could have run."""
    waits = [
        (span.end - span.begin, rank, span, row[i - 1], row[i + 1])
        for rank, row in enumerate(spans)
        for i, span in enumerate(row)
        if span.kind == "R"
    ]
    wait, rank, span, preceding, following = max(waits)
    span = span._replace(kind="F")
    name = "{0.kind}{0.micro} of stage {0.stage}".format
    return (
        f"rank {rank} is blocked for {ms(wait)} ms in a receive for {name(span)}, after {name(preceding)}: "
        f"{name(following)} waits behind it"
    )


# --- uneven stages ----------------------------------------------------------------------------------------------


def compared(rows):
    """[(name, layers, predicted Timeline, measured seconds, bubble found)] as text."""
    return table(
        ("stages", "layers", "step, ms", "predicted", "ratio", "bubble", "predicted"),
        [
            (
                name,
                "-".join(map(str, layers)),
                ms(seconds),
                ms(t.seconds),
                ratio(t.seconds, seconds),
                f"{bubble:.3f}",
                f"{t.bubble:.3f}",
            )
            for name, layers, t, seconds, bubble in rows
        ],
    )


def bubble(work, seconds):
    """The share of all ranks' seconds in which nothing is computed. work: seconds by rank."""
    return 1 - statistics.mean(work) / seconds


# --- words --------------------------------------------------------------------------------------------------------


def refuse(world, nodes, device, fault, hop_ms, trace):
    """ValueError, one line, for what this launch cannot do."""
    if world == 1 and (fault != "none" or hop_ms or trace):
        flag = "--fault" if fault != "none" else "--hop-ms" if hop_ms else "--trace"
        raise ValueError(f"{flag}: one process is no pipeline: use torchrun --nproc-per-node 2 labs/pipeline.py")
    if hop_ms and (nodes > 1 or device != "cpu"):
        raise ValueError("--hop-ms: ranks need one host's clock and its CPUs: use one node, and LAB_DEVICE=cpu")
    if hop_ms and fault in ("both-send", "receive"):
        raise ValueError(f"--hop-ms: --fault {fault} has wires of its own: leave one of the two out")
    if fault == "both-send" and device != "cpu":
        raise ValueError("--fault both-send: on NCCL small sends do not wait: use LAB_DEVICE=cpu")


@contextlib.contextmanager
def flags():
    """What a schedule refuses, said of this lab's flag where formulas say m."""
    try:
        yield
    except ValueError as error:
        raise ValueError(re.sub(r"\bm = ", "--micro-batches ", str(error))) from None


def hang(states, patience):
    """One line on who waits for whom, from what each rank says (measure.pipeline_faults.both_send)."""
    if states is None:
        return "no hang: every send was taken (give more --micro-batches)"
    words = [
        f"rank {rank} waits to {does} {payload} {number} {'to' if does == 'send' else 'from'} rank {peer}"
        if stood
        else f"rank {rank} is done"
        for rank, stood in enumerate(states)
        for does, payload, number, peer in [stood or ("", "", 0, 0)]
    ]
    pair = next(
        (
            (rank, stood[3])
            for rank, stood in enumerate(states)
            if stood and stood[0] == "send" and states[stood[3]] and states[stood[3]][::3] == ["send", rank]
        ),
        None,
    )
    cause = f"ranks {pair[0]} and {pair[1]} both send, and neither receives" if pair else "no message is received"
    return f"hang: {cause} ({patience:g} s): {'; '.join(words)}"


def training(record, predicted, world):
    """How the Transformer trained, in a line."""
    return (
        f"1F1B trains: loss {record.losses[0]:.3f} to {record.losses[-1]:.3f} in {len(record.losses)} steps, "
        f"{ms(record.median)} ms per step (predicted from each stage alone {ms(predicted)}, ratio "
        f"{ratio(predicted, record.median)}"
        + (f"; {world} ranks share the cores)" if record.device_kind == "cpu" and world > 1 else ")")
    )
