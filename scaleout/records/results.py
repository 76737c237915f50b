"""A Record: everything a write-up needs to know about one run of a lab.

One JSON file a run, in labs/results/STEM/. `save` validates and then writes to a temporary file beside the
target and renames it, so that a reader never meets half a Record; `load` validates again.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple, get_type_hints

from scaleout.records import provenance
from scaleout.records.files import read_json, write_json
from scaleout.spec.checks import is_number, is_whole

SCHEMA = 1
DEVICE_KINDS = ("cpu", "cuda")
LONGEST = 1e7  # seconds of a step: a hundred days and more
CLOCK_ERROR = timedelta(days=1)  # by which the clock of another machine may be wrong
BACKENDS = ("none", "gloo", "nccl")
TOKENS = ("effective_batch", "sequence_length", "tokens_per_second")  # all of them, or None in all


# --- rules of fields ------------------------------------------------------------------------------------


def _text(value):
    return isinstance(value, str) and bool(value.strip()) and "\n" not in value


def _numbers(value, lowest=-math.inf):
    return isinstance(value, list) and all(is_number(v) and v > lowest for v in value)


def _table(value, holds):
    return isinstance(value, dict) and all(_text(k) and holds(v) for k, v in value.items())


def _check(value):
    return (
        isinstance(value, dict)
        and set(value) == {"value", "tolerance", "passed"}
        and is_number(value["value"])
        and is_number(value["tolerance"])
        and isinstance(value["passed"], bool)
    )


def _no_absolute_path(value):
    return _text(value) and not any(provenance.is_absolute(part) for word in value.split() for part in word.split("="))


def _has_come(value):
    """True for a time that has come, with its zone; a clock may be a day ahead."""
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return moment.tzinfo is not None and moment <= datetime.now(UTC) + CLOCK_ERROR


def _peak(value):
    return value is None or (
        isinstance(value, dict)
        and set(value) == {"flops_per_second", "source"}
        and is_number(value["flops_per_second"])
        and value["flops_per_second"] > 0
        and _text(value["source"])
    )


class Rule(NamedTuple):
    """What a field has to be: whether a value is, and the same in words."""

    holds: Callable[[object], bool]
    wanted: str


Line = Annotated[str, Rule(_text, "one line of text")]
Kind = Annotated[str, Rule(lambda v: v in DEVICE_KINDS, "one of " + ", ".join(DEVICE_KINDS))]
Backend = Annotated[str, Rule(lambda v: v in BACKENDS, "one of " + ", ".join(BACKENDS))]
Moment = Annotated[str, Rule(_has_come, "a time that has come, as 2026-01-02T03:04:05+00:00")]
Command = Annotated[str, Rule(_no_absolute_path, "one line without absolute paths")]
Source = Annotated[
    str | None, Rule(lambda v: v is None or _no_absolute_path(v), "one line without absolute paths, or null")
]
Devices = Annotated[int, Rule(lambda v: is_whole(v) and 1 <= v <= 10**6, "a whole number from 1 to 1,000,000")]
Steps = Annotated[int, Rule(lambda v: is_whole(v) and v >= 0, "a whole number from 0")]
Count = Annotated[
    int | None,
    Rule(lambda v: v is None or (is_whole(v) and 1 <= v <= 10**9), "a whole number from 1 to 10^9, or null"),
]
Rate = Annotated[
    float | None, Rule(lambda v: v is None or (is_number(v) and 0 < v <= 1e15), "a number above 0, or null")
]
Share = Annotated[
    float | None,
    Rule(lambda v: v is None or (is_number(v) and 0 < v <= 10), "a fraction above 0, at most 10, or null"),
]
Peak = Annotated[dict | None, Rule(_peak, "null or {flops_per_second, source}")]
Words = Annotated[list[str], Rule(lambda v: isinstance(v, list) and all(map(_text, v)), "a list of one-line texts")]
Losses = Annotated[list[float], Rule(_numbers, "a list of finite numbers")]
Seconds = Annotated[
    list[float],
    Rule(
        lambda v: _numbers(v, 0) and bool(v) and max(v) <= LONGEST,
        "a list of seconds above 0, and at most 10^7, one a step",
    ),
]
Versions = Annotated[dict, Rule(lambda v: _table(v, _text) and bool(v), "names with version texts")]
Facts = Annotated[
    dict,
    Rule(
        lambda v: _table(v, lambda x: x is None or isinstance(x, (str, bool)) or is_number(x)),
        "names with plain values",
    ),
]
Bytes = Annotated[
    dict, Rule(lambda v: _table(v, lambda b: is_whole(b) and 0 <= b <= 2**60), "names with whole numbers of bytes")
]
Numbers = Annotated[dict, Rule(lambda v: _table(v, is_number), "names with finite numbers")]
Checks = Annotated[dict, Rule(lambda v: _table(v, _check), "names with {value, tolerance, passed}")]
Series = Annotated[dict, Rule(lambda v: _table(v, _numbers), "names with lists of finite numbers")]


@dataclass(frozen=True)
class Record:
    """One run of one lab. Bytes are per rank, seconds are wall clock, FLOP/s are for all devices together.

    `step_seconds` holds every measured step in order; the first `warmup_steps` of them are left out of
    `tokens_per_second`. `prediction` and `measurement` share their keys; a key says its unit ("peak bytes").
    `mfu` is model FLOPs (forward and backward, no recomputation) over `mfu_peak["flops_per_second"]`, and
    `mfu_peak["source"]` says where that peak comes from; both are None where no peak is known.

    Where nothing is trained `effective_batch`, `sequence_length` and `tokens_per_second` are None, `losses` is empty,
    and `step_seconds` are the repetitions of what the lab timed (its notes say what).
    """

    stem: Line  # "memory": the lab's name
    tier: Line  # "smoke", "cpu" or "gpu": the size that the run started from
    started: Moment  # ISO 8601 with time zone
    commit: Line  # git hash, "+changes" after it when files differed; "unknown" outside git
    command: Command  # as typed
    device: Line  # "2-core x86-64 CPU", "NVIDIA H100 80GB HBM3"
    device_kind: Kind
    device_count: Devices  # processes, one device each (on CPU they share the cores)
    nodes: Devices
    interconnect: Line  # what joins the devices, or "none"
    backend: Backend
    versions: Versions
    model: Facts  # the Shape's fields
    recipe: Facts  # the memory recipe's fields
    effective_batch: Count  # sequences per step, over all ranks and accumulation
    sequence_length: Count  # tokens
    precision: Line  # "fp32", "autocast-bf16", ...
    checkpoint_cadence: Line  # "none", "every 100 steps"
    step_seconds: Seconds  # raw, one a step
    warmup_steps: Steps
    tokens_per_second: Rate
    losses: Losses  # one a step, mean over all ranks; empty where nothing is trained
    peak_memory: Bytes  # kind -> bytes at the peak moment, per rank
    prediction: Numbers
    measurement: Numbers
    mfu: Share = None
    mfu_peak: Peak = None  # {"flops_per_second": float, "source": str}
    checks: Checks = field(default_factory=dict)  # name -> {"value", "tolerance", "passed"}
    skipped: Words = field(default_factory=list)  # checks not made, and why
    stalls: Words = field(default_factory=list)  # what was seen to wait, in words
    failures: Words = field(default_factory=list)  # what failed and how the run went on
    notes: Words = field(default_factory=list)
    dataset: Source = None  # name, size and checksum of the text; None where none is read, and in older Records
    series: Series = field(default_factory=dict)  # name -> what else was measured step by step, unit in the name
    schema: int = SCHEMA

    @property
    def timed(self):
        """Seconds of the steps after the warm-up, in order."""
        return self.step_seconds[self.warmup_steps :]

    @property
    def median(self):
        """Median seconds of a timed step."""
        return statistics.median(self.timed)

    @property
    def tokens(self):
        """Tokens of a step over all devices; None where nothing is trained."""
        return None if self.effective_batch is None else self.effective_batch * self.sequence_length

    @property
    def rate(self):
        """Tokens per second of the median step of a run that trains, which one slow step of a busy machine does not
        move; `tokens_per_second` is over all steps."""
        return self.tokens / self.median


# {field: Rule}, of all but the schema.
RULES = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Record, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}


def tokens_per_second(step_seconds, warmup_steps, effective_batch, sequence_length):
    """Tokens per second over the steps after the warm-up (float, tokens/s)."""
    timed = step_seconds[warmup_steps:]
    return effective_batch * sequence_length * len(timed) / sum(timed)


def save(record, path):
    """Write `record` to `path` (str or Path) as JSON, all or nothing; makes the folder. Returns the Path.

    A clock that was set back during the run costs no Record: it gets the time of now, and a note that says so.
    ValueError where the Record breaks a rule of `validate`, or where the folder cannot be written.
    """
    data = asdict(_in_time(record))
    validate(data)
    return write_json(data, path)


def _in_time(record):
    """The Record; where it began in a time that has not come, with now as its time and a note."""
    try:
        started = datetime.fromisoformat(record.started)
        in_future = started.tzinfo is not None and started > datetime.now(UTC) + CLOCK_ERROR
    except (TypeError, ValueError):
        in_future = False  # `validate` says what is wrong with it
    if not in_future:
        return record
    note = f"the clock was set back during the run, which began at {record.started} by the clock of then"
    return replace(record, started=datetime.now(UTC).isoformat(timespec="seconds"), notes=[*record.notes, note])


def load(path):
    """Read a Record from `path`. ValueError, one line, where the file is missing, broken or breaks a rule."""
    try:
        return from_dict(read_json(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def from_dict(data):
    """A Record from a dict, validated."""
    validate(data)
    return Record(**data)


# --- what `validate` asks ---------------------------------------------------------------------------------------------


def validate(data):
    """Raise ValueError, one line naming the field and what would be right, unless `data` is sound."""
    _names(data)
    if data.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"schema is {data['schema']!r}: this version of the book reads schema {SCHEMA}")
    for name, rule in RULES.items():
        if name in data and not rule.holds(data[name]):
            raise ValueError(f"{name} is {_short(data[name])}: it must be {rule.wanted}")
    _agree(data)


def _names(data):
    known = {f.name for f in fields(Record)}
    needed = {f.name for f in fields(Record) if f.default is MISSING and f.default_factory is MISSING}
    unknown, missing = sorted(set(data) - known), sorted(needed - set(data))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}: the fields of a Record are in scaleout/records/results.py")
    if missing:
        raise ValueError(f"field {missing[0]!r} is missing")


def _agree(data):
    """Rules between fields."""
    if (data["backend"] == "none") != (data["device_count"] == 1):
        raise ValueError(
            f"backend {data['backend']!r} with {data['device_count']} devices: "
            "'none' is for one device, 'gloo' or 'nccl' for more"
        )
    if data["backend"] == "nccl" and data["device_kind"] != "cuda":
        raise ValueError("backend 'nccl' with device_kind 'cpu': NCCL runs on GPUs only")
    if data["nodes"] > data["device_count"]:  # nodes may have different numbers of devices
        raise ValueError(f"nodes is {data['nodes']}: it must be at most device_count, {data['device_count']}")
    if data["warmup_steps"] >= len(data["step_seconds"]):
        raise ValueError("warmup_steps must leave at least one timed step in step_seconds")
    _agree_on_tokens(data)
    if (data.get("mfu") is None) != (data.get("mfu_peak") is None):
        raise ValueError("mfu and mfu_peak go together: a fraction says nothing without its peak")
    if set(data["prediction"]) != set(data["measurement"]):
        odd = sorted(set(data["prediction"]) ^ set(data["measurement"]))[0]
        raise ValueError(f"{odd!r} is in only one of prediction and measurement: give both")


def _agree_on_tokens(data):
    """A run that trains has a batch, a sequence length and the rate that follows; one that does not has none."""
    absent = [name for name in TOKENS if data[name] is None]
    present = [name for name in (*TOKENS, "losses", "mfu") if data.get(name)]
    if absent and present:
        raise ValueError(
            f"{absent[0]} is null and {present[0]} is not: a run that trains has all of "
            f"{', '.join(TOKENS)}; one that does not has none, no losses and no mfu"
        )
    rate = (
        None
        if absent
        else tokens_per_second(
            data["step_seconds"], data["warmup_steps"], data["effective_batch"], data["sequence_length"]
        )
    )
    if rate and not math.isclose(rate, data["tokens_per_second"], rel_tol=1e-6):
        raise ValueError(f"tokens_per_second is {data['tokens_per_second']:g}, step_seconds give {rate:g}")


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
