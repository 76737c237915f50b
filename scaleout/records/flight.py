"""Which rank differs? Reads the flight recorder's dumps of all ranks and compares their collectives side by side.

torch.distributed numbers the collectives of a process group on each rank: 1, 2, 3, ... (`collective_seq_id`). A job
is in step when number n is the same call, with the same sizes and dtypes, on every rank. On gloo the recorder's
`state` stays "scheduled" for good and its count of completed calls says nothing, so this module uses neither: what
tells is which number differs, and which number a rank never reached. Standard library only.
"""

import ast
import pickle
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

from scaleout.records.files import is_count, read_json
from scaleout.records.provenance import printable

OF_RESULT = {"scatter"}  # only the source has inputs: what each rank receives is alike
UNEVEN = {"all_to_all", "all_to_allv"}  # healthy ranks may send different amounts
BROKEN = (
    ValueError,
    KeyError,
    TypeError,
    SyntaxError,
    AttributeError,
    IndexError,
    RecursionError,
    MemoryError,
    OverflowError,
)  # what comes of reading a dump that is none
TORCH_DUMP = re.compile(r"\w*?_(\d+)")  # of torch's own files: nccl_trace_rank_3, fr_trace_3


@dataclass(frozen=True)
class Call:
    """One collective of one rank. `where` is the first line outside torch on its stack, "labs/hang_job.py:79"."""

    group: str  # the process group's name; "0" is the default group
    sequence: int  # its number in that group, from 1
    name: str  # "all_reduce", "broadcast", ...
    sizes: tuple[tuple[int, ...], ...]  # of the inputs (a scatter's results)
    dtype: str
    where: str = ""

    @property
    def signature(self):
        """What must agree on all ranks."""
        return self.name, () if self.name in UNEVEN else self.sizes, self.dtype

    def __str__(self):
        shape = " + ".join("x".join(map(str, size)) or "scalar" for size in self.sizes)
        return f"{self.name}({shape})" + (f" :{self.where.rpartition(':')[2]}" if self.where else "")


@dataclass(frozen=True)
class Flight:
    """The dump of one rank: its calls in order, and the ranks of each group as far as the dump knows them."""

    rank: int
    calls: tuple[Call, ...]
    members: dict[str, tuple[int, ...]]  # ranks of each group


@dataclass(frozen=True)
class Odd:
    """The first number at which the ranks are out of step."""

    group: str
    sequence: int
    ranks: tuple[int, ...]  # the fewer: who did something else, or nothing
    kind: str  # "different": another call; "missing": never came to this one
    expected: Call  # what most ranks called
    found: Call | None  # what the first of the odd ranks called; None where it is missing
    skipped: bool = False  # the odd call is the one that usually follows the expected one: a call was left out


# --- reading -----------------------------------------------------------------------------------------------


def load(folder):
    """{rank: Flight} of the dumps in `folder`: flight-RANK.json, or else torch's own PREFIX_RANK (a pickle).

    ValueError, one line, where there is none or one is broken.
    """
    files = {path: path.stem.removeprefix("flight-") for path in Path(folder).glob("flight-*.json")} or {
        path: name[1] for path in Path(folder).glob("*_*") if (name := TORCH_DUMP.fullmatch(path.name))
    }
    if not files:
        raise ValueError(
            f"{folder}: holds no flight-RANK.json (python labs/hang.py writes them) "
            "and no nccl_trace_rank_RANK (torch writes them)"
        )
    flights = {}
    for path, rank in sorted(files.items()):
        try:
            dump = read_json(path) if path.suffix == ".json" else _unpickled(path)
            flight = read({"rank": rank} | dump)
        except BROKEN as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"{path.name}: is not a flight recorder's dump: {' '.join(str(reason).split())[:200]}"
            ) from None
        if flight.rank in flights:
            raise ValueError(f"{path.name}: is of rank {flight.rank}, as another dump of the folder: leave one of them")
        flights[flight.rank] = flight
    return dict(sorted(flights.items()))


class _Plain(pickle.Unpickler):
    """Reads a pickle of plain values; one that would import or call anything is refused."""

    def find_class(self, module, name):
        raise ValueError(f"it would call {module}.{name}")


def _unpickled(path):
    """The dict of a dump that torch wrote. ValueError, one line, for anything else."""
    try:
        with path.open("rb") as stream:
            dump = _Plain(stream).load()
    except (OSError, EOFError, pickle.UnpicklingError, IndexError, AttributeError) as error:
        raise ValueError(f"no pickle ({type(error).__name__})") from None
    if not isinstance(dump, dict):
        raise ValueError("must hold one dictionary")
    return dump


def read(dump):
    """The Flight of one dump (dict): torch's `_dump_fr_trace` with the key "rank" beside its own.

    One of BROKEN where it is none.
    """
    calls = tuple(_call(entry) for entry in dump["entries"] if not entry["is_p2p"])
    members = {name: tuple(ast.literal_eval(group["ranks"])) for name, group in dump["pg_config"].items() if name}
    rank = int(dump["rank"])
    if not all(map(is_count, (rank, *(rank for ranks in members.values() for rank in ranks)))):
        raise ValueError("a rank is a whole number from 0")
    return Flight(rank, calls, members)


def _call(entry):
    outside = [f"{f['filename']}:{f['line']}" for f in entry.get("frames", []) if not _of_torch(f["filename"])]
    name = entry["profiling_name"].split(":")[-1]
    side = "output" if name in OF_RESULT else "input"
    call = Call(
        entry["process_group"][0],
        entry["collective_seq_id"],
        name,
        tuple(tuple(size) for size in entry.get(f"{side}_sizes", ())),
        ", ".join(sorted(set(entry.get(f"{side}_dtypes", ())))),
        outside[0] if outside else "",
    )
    if not isinstance(call.group, str) or not all(map(is_count, (call.sequence, *chain(*call.sizes)))):
        raise ValueError("a call has a group's name, and whole numbers from 0 for its number and its sizes")
    return replace(call, name=printable(name), where=printable(call.where))


def _of_torch(filename):
    return filename.startswith("torch/") or "/torch/" in filename


def shorten(path, root=""):
    """A path fit to be given away: from the package's folder, or from the repository's `root`, on; else its name."""
    for start in ("/site-packages/", "/dist-packages/", *([f"{root}/"] if root else [])):
        if start in path:
            return path.partition(start)[2]
    return f".../{path.rpartition('/')[2]}" if path.startswith("/") else path


# --- side by side ------------------------------------------------------------------------------------------


def groups(flights):
    """{group: ranks in it that left a dump}: as the dumps say, else every rank that made a call in it."""
    seen = {}
    for rank, flight in flights.items():
        for name in {call.group for call in flight.calls}:
            seen.setdefault(name, set()).add(rank)
        for name, ranks in flight.members.items():
            seen.setdefault(name, set()).update(ranks)
    return {name: tuple(sorted(ranks & set(flights))) for name, ranks in sorted(seen.items())}


def absent(flights):
    """Ranks (tuple) that the dumps name and that left none: they died, or never came to write it."""
    named = {rank for flight in flights.values() for ranks in flight.members.values() for rank in ranks}
    return tuple(sorted(named - set(flights)))


def aligned(flights, group="0"):
    """{sequence: {rank: Call or None}} of a group, from the first number that no rank's ring has lost, on; a number
    that no rank has come to is left out."""
    ranks = groups(flights).get(group, ())
    by_rank = {rank: {c.sequence: c for c in flights[rank].calls if c.group == group} for rank in ranks}
    begun = [min(calls) for calls in by_rank.values() if calls]
    if not begun:
        return {}
    numbers = {n for calls in by_rank.values() for n in calls if n >= max(begun)}
    return {n: {rank: calls.get(n) for rank, calls in by_rank.items()} for n in sorted(numbers)}


def odd(flights):
    """The first Odd of any group, or None where all ranks are in step."""
    for group in groups(flights):
        lines = aligned(flights, group)
        for sequence, calls in lines.items():
            counts = Counter(call.signature if call else None for call in calls.values())
            if len(counts) > 1:
                return _odd(group, sequence, calls, counts, lines)
    return None


def _odd(group, sequence, calls, counts, lines):
    usual = max((s for s in counts if s), key=lambda s: counts[s])
    unusual = {rank: call for rank, call in calls.items() if call is None or call.signature != usual}
    wrong = {rank: call for rank, call in unusual.items() if call} or unusual  # a wrong call first, then a late rank
    expected = next(call for call in calls.values() if call and call.signature == usual)
    odd_call = next(iter(wrong.values()))
    return Odd(
        group,
        sequence,
        tuple(wrong),
        "different" if odd_call else "missing",
        expected,
        odd_call,
        bool(odd_call) and odd_call.signature == _follower(lines, sequence, expected),
    )


def _follower(lines, sequence, expected):
    """Signature of the call that came after the last earlier call like `expected`, as the ranks still were in step."""
    for pair in reversed(list(pairwise(n for n in lines if n < sequence))):
        earlier, later = (next(iter(lines[n].values())) for n in pair)
        if earlier and later and earlier.signature == expected.signature:
            return later.signature
    return None


def side_by_side(flights, last=6, group="0"):
    """(header, rows) of texts: one row a sequence number, one column a rank, ">" before what is out of step.

    The `last` numbers of the group; "-" where a rank has not come that far.
    """
    lines, strange = aligned(flights, group), odd(flights)
    ranks = groups(flights).get(group, ())
    rows = []
    for sequence in sorted(lines)[-last:]:
        marked = strange and (strange.group, strange.sequence) == (group, sequence)
        rows.append(
            (
                str(sequence),
                *(
                    ("> " if marked and rank in strange.ranks else "") + str(lines[sequence][rank] or "-")
                    for rank in ranks
                ),
            )
        )
    return ("number", *(f"rank {rank}" for rank in ranks)), rows
