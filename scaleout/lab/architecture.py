"""What the lab of architecture prints: which run has which fault, counters, judgements, scores, and files of traces.

Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from scaleout.lab.text import ms, table
from scaleout.records import chrome
from scaleout.timing.diagnosis import ALONE, CHECKPOINT, EVALUATOR, FAULTS, NAMES, NAN, SLOW_LINK, diagnose
from scaleout.timing.stragglers import COLLECTIVES, PART_OF, Row, Trace

SEED = "ten sealed faults"
MAIN = 0  # the rank that saves and evaluates
UNKNOWN = "unknown"  # a verdict that abstains
COLUMNS = ("input", "collect", "compute", "all_reduce", "update", "save", "evaluate", "other")
TRACK = dict.fromkeys(COLLECTIVES, 2)  # row of a rank's process in Perfetto; everything else is in the first


def sealed() -> dict[int, str]:
    """{number: fault} of the runs, in an order that does not tell which is which."""
    return dict(enumerate(sorted(FAULTS, key=lambda name: crc32(f"{SEED} {name}".encode())), 1))


def culprits(ranks: int) -> dict[str, int]:
    """{fault: rank} of the faults that one of so many ranks has."""
    drawn = {name: crc32(f"{SEED} {name} rank".encode()) % ranks for name in FAULTS if name in ALONE}
    return drawn | {CHECKPOINT: MAIN, EVALUATOR: MAIN}


@dataclass(frozen=True)
class Said:
    """A verdict on a run: one of FAULTS or UNKNOWN, and the rank where it began, None where none was named."""

    number: int
    fault: str
    rank: int | None = None


def read(words: str, flag: str = "--verdict") -> Said:
    """The verdict of "3=slow-disk" or "3=slow-disk:1". ValueError, one line, for anything else."""
    number, _, rest = words.partition("=")
    fault, colon, rank = rest.strip().partition(":")
    shown = f"{flag} {words}"
    if not (number.strip().isascii() and number.strip().isdigit() and int(number) in sealed()):
        raise ValueError(f"{shown}: runs are numbered 1 to {len(FAULTS)}: write 3=slow-disk or 3=slow-disk:1")
    if fault not in (*FAULTS, UNKNOWN):
        raise ValueError(f"{shown}: a verdict is one of {', '.join(FAULTS)}, or {UNKNOWN}")
    if colon and not (rank.isascii() and rank.isdigit()):
        raise ValueError(f"{shown}: write the rank as a number, as in {number.strip()}={fault}:1")
    return Said(int(number), fault, int(rank) if colon else None)


def no_rank(said: Said, ranks: int) -> str:
    """What is wrong with a verdict on a rank that is not there."""
    verdict = f"{said.number}={said.fault}:{said.rank}"
    return f"{verdict}: there is no rank {said.rank} among {ranks}, which are 0 to {ranks - 1}"


def verdicts(path: str) -> list[Said]:
    """The verdicts in a file, of any tool: lines such as 3=slow-disk:1, or a JSON object {"3": "slow-disk:1"}. What
    begins with # is a comment. ValueError, one line, where it cannot be read or judges a run twice."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--score {path}: cannot be read ({type(error).__name__})") from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if text.lstrip().startswith("{"):
        try:
            lines = [f"{number}={words}" for number, words in json.loads(text).items()]
        except json.JSONDecodeError as error:
            raise ValueError(f"--score {path}: not JSON (line {error.lineno}: {error.msg})") from None
    found = [read(line, "--score") for line in lines if line]
    numbers = [said.number for said in found]
    twice = [number for number in numbers if numbers.count(number) > 1]
    if twice or not found:
        raise ValueError(f"--score {path}: " + (f"run {twice[0]} has two verdicts" if twice else "holds no verdict"))
    return sorted(found, key=lambda said: said.number)


# --- counters -----------------------------------------------------------------------------------------------


def counters(trace: Trace, emulated: bool) -> str:
    """The counters of a run as text. emulated: rank 1 is none of the machine's."""
    rows = []
    for rank in range(trace.ranks):
        seconds = [totals(row) for row in trace.rows(rank)]
        means = (sum(one.get(column, 0.0) for one in seconds) / len(seconds) for column in COLUMNS)
        rows.append((f"rank {rank}" + "*" * (emulated and rank == 1), *map(ms, means)))
    return "\n".join([
        table(("mean ms", *COLUMNS), rows) + "\n* emulated: rank 0 waits for it" * emulated, "",
        "ms by step: on the clock, and of each rank its local work and its all-reduce", by_step(trace), "",
        "tokens and loss of each rank", values_by_step(trace),
    ])  # fmt: skip


def totals(row: Row) -> dict[str, float]:
    """Seconds of a row by part and collective, and of what no span covers."""
    found: dict[str, float] = {}
    for name, start, end in row.spans:
        part = PART_OF.get(name, name)
        found[part] = found.get(part, 0.0) + end - start
    return found | {"other": max(0.0, row.seconds - sum(found.values()))}


def by_step(trace: Trace) -> str:
    """Each step: its tags, its length, each rank's local work and its time in the all-reduce."""
    rows = [
        (
            number, tags(ranks), ms(seconds),
            " ".join(f"{(row.seconds - row.waited) * 1e3:.0f}" for row in ranks),
            " ".join(f"{row.waited * 1e3:.0f}" for row in ranks),
        )
        for number, (seconds, ranks) in enumerate(zip(trace.step_seconds, trace.steps, strict=True))
    ]  # fmt: skip
    return table(("step", "tags", "ms", "local work", "all-reduce"), rows)


def values_by_step(trace: Trace) -> str:
    """Each step's tokens and loss, by rank."""
    rows = [
        (number, " ".join(str(row.values["tokens"]) for row in ranks),
         " ".join(f"{row.values['loss']:.2f}" for row in ranks))
        for number, ranks in enumerate(trace.steps)
    ]  # fmt: skip
    return table(("step", "tokens", "loss"), rows)


def tags(ranks: tuple[Row, ...]) -> str:
    """What happened in a step beside training, with the ranks that did it."""
    found = []
    for name in ("collect", "save", "evaluate"):
        did = [row.rank for row in ranks if any(span[0] == name for span in row.spans)]
        if did:
            found.append(name + (f"({','.join(map(str, did))})" if len(did) < len(ranks) else ""))
    return " ".join(found) or "-"


# --- verdicts -----------------------------------------------------------------------------------------------


def judged(said: Said, trace: Trace) -> str:
    """Whether a verdict is right, what decided, and what was initiating and what cascade."""
    truth, found = sealed()[said.number], diagnose(trace)
    origin = culprits(trace.ranks).get(truth)
    lines = [
        f"{_opening(said, truth, origin)} Run {said.number} has {NAMES[truth]}.",
        f"Evidence: {found.why}.",
        f"Initiating: {NAMES[truth]} ({place(origin)}). Cascade: {found.cascade or 'none was seen'}.",
    ]
    if found.fault != truth:
        lines.append(
            "The book's rule does not name it in this run: the machine was too busy, or --injected-ms too small."
        )
    return "\n".join(lines)


def _opening(said: Said, truth: str, origin: int | None) -> str:
    """The first sentence of a judgement."""
    if said.fault == UNKNOWN:
        return "You abstain."
    if said.fault != truth:
        if said.fault == SLOW_LINK and truth != NAN:
            return "Not a slow link: the all-reduce is long because ranks wait in it, which is the cascade."
        return f"Not {NAMES[said.fault]}."
    if said.rank is None or said.rank == origin:
        return "Right."
    if origin is None:
        return f"Right, but it is no single rank's: rank {said.rank} is one of several."
    if truth == NAN:
        return (
            f"The right fault, the wrong rank: rank {said.rank} got its NaN through the all-reduce, which is cascade."
        )
    return f"The right fault, the wrong rank: rank {said.rank} waits for it, which is cascade."


def score(found: list[Said], ranks: int) -> str:
    """A table of a tool's verdicts on the runs of so many ranks, and how many are right."""
    by_number, truth, origin = {said.number: said for said in found}, sealed(), culprits(ranks)
    rows, counts = [], {"right": 0, "wrong": 0, "abstained": 0}
    located = asked = 0
    for number, fault in truth.items():
        said = by_number.get(number, Said(number, UNKNOWN))
        outcome = "abstained" if said.fault == UNKNOWN else "right" if said.fault == fault else "wrong"
        counts[outcome] += 1
        place = "-"
        if outcome == "right" and fault in origin and said.rank is not None:
            asked, located = asked + 1, located + (said.rank == origin[fault])
            place = "right" if said.rank == origin[fault] else f"wrong: it is {origin[fault]}"
        rows.append((number, fault, said.fault, outcome, place))
    named = counts["right"] + counts["wrong"]
    share = f"{counts['right'] / named:.0%} of what was named" if named else "nothing was named"
    return "\n".join([
        table(("run", "fault", "verdict", "outcome", "rank"), rows), "",
        f"{counts['right']} of {len(truth)} right, {counts['wrong']} wrong, {counts['abstained']} abstained; {share}; "
        f"rank right in {located} of {asked}",
    ])  # fmt: skip


def predicted(prediction: dict, measurement: dict) -> str:
    """Run times, predicted and measured, as text."""
    rows = [
        (name.rpartition(", ")[2], f"{prediction[name]:.2f}", f"{measurement[name]:.2f}",
         f"{prediction[name] / measurement[name]:.2f}") for name in prediction
    ]  # fmt: skip
    return table(("seconds", "predicted", "measured", "ratio"), rows)


def place(rank: int | None) -> str:
    """Where a fault begins, in words."""
    return "no single rank" if rank is None else f"rank {rank}"


def lost(seconds: dict[str, float], whole: float) -> str:
    """What a run loses to each part, as text; parts that cost less than 1% are left out."""
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    rows = [(part, f"{spent:.2f}", f"{spent / whole:.0%}") for part, spent in ordered if spent >= 0.01 * whole]
    return table(("lost to", "seconds", "of the run"), rows)


# --- files --------------------------------------------------------------------------------------------------


def events(trace: Trace) -> list[dict]:
    """The run as events of a Chrome trace, for Perfetto: a process per rank, its work and its collectives on two rows,
    losses as counters, and an instant at the first value that is not finite."""
    found = []
    for rank in range(trace.ranks):
        found += chrome.named(rank, {1: "local work", 2: "collectives"})
        for row in trace.rows(rank):
            tag = {"step": row.step, "tokens": row.values["tokens"]}
            found.append(chrome.event(rank, 1, "step", "user_annotation", row.start, row.end) | {"args": tag})
            found += [chrome.event(rank, TRACK.get(name, 1), name, "span", start, end)
                      | {"args": {"step": row.step}} for name, start, end in row.spans]  # fmt: skip
            loss = row.values["loss"]
            mark = {"pid": rank, "tid": 1, "ts": round(row.end * 1e6, 1)}
            finite = loss == loss
            found.append(mark | ({"ph": "C", "name": "loss", "args": {"loss": loss}} if finite else
                                 {"ph": "i", "s": "t", "name": "loss is not finite"}))  # fmt: skip
    return found


def lines(rows: list[dict]) -> str:
    """Rows as JSON Lines."""
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def stored(rows: list[dict], made: str) -> str:
    """A trace in one file, as `timing.stragglers` has it."""
    every = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return f'{{"made": {json.dumps(made)}, "rows": [\n{every}\n]}}\n'


def made(ranks: int, processes: int, backend: str, steps: int, injected: str) -> str:
    """How a trace was made."""
    emulated = "" if processes == ranks else ", of which one is emulated"
    return (
        f"Recorded by labs/architecture.py --mixed on {ranks} ranks{emulated} (backend {backend}), {steps} steps of a "
        f"data-parallel job. Injected: {injected}."
    )
