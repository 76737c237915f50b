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
SHOWN, DIGITS, LONGEST = 60, 9, 100_000  # characters: of a verdict in a message, of a number, of a file of verdicts
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
class Verdict:
    """A verdict on a run: one of FAULTS or UNKNOWN, and the rank where it began, None where none was named."""

    number: int
    fault: str
    rank: int | None = None


def read(words: str, flag: str = "--verdict") -> Verdict:
    """The verdict of "3=slow-disk" or "3=slow-disk:1". ValueError, one line, for anything else."""
    number, _, answer = words.partition("=")
    fault, colon, rank = (part.strip() for part in answer.partition(":"))
    shown = f"{flag} {words if len(words) <= SHOWN else words[:SHOWN] + '...'}"
    if not (_is_whole(number.strip()) and int(number) in sealed()):
        raise ValueError(f"{shown}: runs are numbered 1 to {len(FAULTS)}: write 3=slow-disk or 3=slow-disk:1")
    if fault not in (*FAULTS, UNKNOWN):
        raise ValueError(f"{shown}: a verdict is one of {', '.join(FAULTS)}, or {UNKNOWN}")
    if colon and not _is_whole(rank):
        raise ValueError(f"{shown}: write the rank as a number, as in {number.strip()}={fault}:1")
    return Verdict(int(number), fault, int(rank) if colon else None)


def _is_whole(digits: str) -> bool:
    """Whether this is a whole number, and one that int() reads."""
    return digits.isascii() and digits.isdigit() and len(digits) <= DIGITS


def no_rank(verdict: Verdict, ranks: int) -> str:
    """What is wrong with a verdict on a rank that is not there."""
    words = f"{verdict.number}={verdict.fault}:{verdict.rank}"
    return f"{words}: there is no rank {verdict.rank} among {ranks}, which are 0 to {ranks - 1}"


def verdicts(path: str) -> list[Verdict]:
    """The verdicts in a file, of any tool: lines such as 3=slow-disk:1, or a JSON object {"3": "slow-disk:1"}. What
    begins with # is a comment. ValueError, one line, where it cannot be read or judges a run twice."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:  # Windows may begin a file with a mark
            text = file.read(LONGEST + 1)
    except UnicodeDecodeError:
        raise ValueError(f"--score {path}: is not text in UTF-8") from None
    except OSError as error:
        raise ValueError(f"--score {path}: cannot be read ({type(error).__name__})") from None
    if len(text) > LONGEST:
        raise ValueError(f"--score {path}: has more than {LONGEST:,} characters, which are no ten verdicts")
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if text.lstrip().startswith("{"):
        try:
            lines = [f"{number}={words}" for number, words in json.loads(text, object_pairs_hook=list)]
        except json.JSONDecodeError as error:
            raise ValueError(f"--score {path}: not JSON (line {error.lineno}: {error.msg})") from None
        except RecursionError:
            raise ValueError(f'--score {path}: not an object such as {{"3": "slow-disk:1"}}') from None
    read_verdicts = [read(line, "--score") for line in lines if line]
    numbers = [verdict.number for verdict in read_verdicts]
    twice = [number for number in numbers if numbers.count(number) > 1]
    if twice or not read_verdicts:
        raise ValueError(f"--score {path}: " + (f"run {twice[0]} has two verdicts" if twice else "holds no verdict"))
    return sorted(read_verdicts, key=lambda verdict: verdict.number)


# --- counters -----------------------------------------------------------------------------------------------


def counters(trace: Trace, emulated: bool) -> str:
    """The counters of a run as text. emulated: rank 1 is none of the machine's."""
    rows = []
    for rank in range(trace.ranks):
        seconds = [totals(row) for row in trace.rows(rank)]
        means = (sum(sums.get(column, 0.0) for sums in seconds) / len(seconds) for column in COLUMNS)
        rows.append((f"rank {rank}" + "*" * (emulated and rank == 1), *map(ms, means)))
    return "\n".join([
        table(("mean ms", *COLUMNS), rows) + "\n* emulated: rank 0 waits for it" * emulated, "",
        "ms by step: on the clock, and of each rank its local work and its all-reduce", by_step(trace), "",
        "tokens and loss of each rank", values_by_step(trace),
    ])  # fmt: skip


def totals(row: Row) -> dict[str, float]:
    """Seconds of a row by part and collective, and of what no span covers."""
    parts: dict[str, float] = {}
    for name, start, end in row.spans:
        part = PART_OF.get(name, name)
        parts[part] = parts.get(part, 0.0) + end - start
    return parts | {"other": max(0.0, row.seconds - sum(parts.values()))}


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
    names = []
    for name in ("collect", "save", "evaluate"):
        did = [row.rank for row in ranks if any(span[0] == name for span in row.spans)]
        if did:
            names.append(name + (f"({','.join(map(str, did))})" if len(did) < len(ranks) else ""))
    return " ".join(names) or "-"


# --- verdicts -----------------------------------------------------------------------------------------------


def judged(verdict: Verdict, trace: Trace) -> str:
    """Whether a verdict is right, what decided, and what was initiating and what cascade."""
    truth, diagnosis = sealed()[verdict.number], diagnose(trace)
    origin = culprits(trace.ranks).get(truth)
    lines = [
        f"{_opening(verdict, truth, origin)} Run {verdict.number} has {NAMES[truth]}.",
        f"Evidence: {diagnosis.why}.",
        f"Initiating: {NAMES[truth]} ({place(origin)}). Cascade: {diagnosis.cascade or 'none was seen'}.",
    ]
    if diagnosis.fault != truth:
        lines.append(
            "The book's rule does not name it in this run: the machine was too busy, or --injected-ms too small."
        )
    return "\n".join(lines)


def _opening(verdict: Verdict, truth: str, origin: int | None) -> str:
    """The first sentence of a judgement."""
    if verdict.fault == UNKNOWN:
        return "You abstain."
    if verdict.fault != truth:
        if verdict.fault == SLOW_LINK and truth != NAN:
            return "Not a slow link: the all-reduce is long because ranks wait in it, which is the cascade."
        return f"Not {NAMES[verdict.fault]}."
    if verdict.rank is None or verdict.rank == origin:
        return "Right."
    if origin is None:
        return f"Right, but it is no single rank's: rank {verdict.rank} is one of several."
    if truth == NAN:
        reason = f"rank {verdict.rank} got its NaN through the all-reduce"
    else:
        reason = f"rank {verdict.rank} waits for it"
    return f"The right fault, the wrong rank: {reason}, which is cascade."


def score(tool_verdicts: list[Verdict], ranks: int) -> str:
    """A table of a tool's verdicts on the runs of so many ranks, and how many are right."""
    by_number, truth, origin = {verdict.number: verdict for verdict in tool_verdicts}, sealed(), culprits(ranks)
    rows, counts = [], {"right": 0, "wrong": 0, "abstained": 0}
    located = placed = 0
    for number, fault in truth.items():
        verdict = by_number.get(number, Verdict(number, UNKNOWN))
        outcome = "abstained" if verdict.fault == UNKNOWN else "right" if verdict.fault == fault else "wrong"
        counts[outcome] += 1
        place = "-"
        if outcome == "right" and fault in origin and verdict.rank is not None:
            placed, located = placed + 1, located + (verdict.rank == origin[fault])
            place = "right" if verdict.rank == origin[fault] else f"wrong: it is {origin[fault]}"
        rows.append((number, fault, verdict.fault, outcome, place))
    named = counts["right"] + counts["wrong"]
    share = f"{counts['right'] / named:.0%} of what was named" if named else "nothing was named"
    return "\n".join([
        table(("run", "fault", "verdict", "outcome", "rank"), rows), "",
        f"{counts['right']} of {len(truth)} right, {counts['wrong']} wrong, {counts['abstained']} abstained; {share}; "
        f"rank right in {located} of {placed}",
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


def lost(seconds: dict[str, float], total: float) -> str:
    """What a run loses to each part, as text; parts that cost less than 1% are left out."""
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    rows = [(part, f"{spent:.2f}", f"{spent / total:.0%}") for part, spent in ordered if spent >= 0.01 * total]
    return table(("lost to", "seconds", "of the run"), rows)


# --- files --------------------------------------------------------------------------------------------------


def events(trace: Trace) -> list[dict]:
    """The run as events of a Chrome trace, for Perfetto: a process per rank, its work and its collectives on two rows,
    losses as counters, and an instant at the first value that is not finite."""
    items = []
    for rank in range(trace.ranks):
        items += chrome.named(rank, {1: "local work", 2: "collectives"})
        for row in trace.rows(rank):
            tag = {"step": row.step, "tokens": row.values["tokens"]}
            items.append(chrome.event(rank, 1, "step", "user_annotation", row.start, row.end) | {"args": tag})
            items += [chrome.event(rank, TRACK.get(name, 1), name, "span", start, end)
                      | {"args": {"step": row.step}} for name, start, end in row.spans]  # fmt: skip
            loss = row.values["loss"]
            mark = {"pid": rank, "tid": 1, "ts": round(row.end * 1e6, 1)}
            finite = loss == loss
            items.append(mark | ({"ph": "C", "name": "loss", "args": {"loss": loss}} if finite else
                                 {"ph": "i", "s": "t", "name": "loss is not finite"}))  # fmt: skip
    return items


def lines(rows: list[dict]) -> str:
    """Rows as JSON Lines."""
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def stored(rows: list[dict], made: str) -> str:
    """A trace in one file, as `timing.stragglers` has it."""
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return f'{{"made": {json.dumps(made)}, "rows": [\n{text}\n]}}\n'


def made(ranks: int, processes: int, backend: str, steps: int, injected: str) -> str:
    """How a trace was made."""
    emulated = "" if processes == ranks else ", of which one is emulated"
    return (
        f"Recorded by labs/architecture.py --mixed on {ranks} ranks{emulated} (backend {backend}), {steps} steps of a "
        f"data-parallel job. Injected: {injected}."
    )
