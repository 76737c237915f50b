"""A reader's own run of labs/capstone.py or labs/scaling.py in the view `capstone`: its tokens per second."""

from __future__ import annotations

from scaleout.timing import scaling
from scaleout.views import own
from scaleout.words.amounts import quantity

LAB = "labs/capstone.py or labs/scaling.py"
RATE = "tokens per second"  # of the median step, by which the lab and its exit check count


def measured(record: dict) -> dict:
    """{"ranks", "device", "rate"} of a Record: tokens per second, of the median step where the lab says them.
    ValueError, in one line, for any other file."""
    run = own.run(record, "capstone", LAB)
    seen = own.table(record, "measurement", LAB)
    return run | {"rate": own.amount(*((seen, RATE) if RATE in seen else (record, "tokens_per_second")), LAB)}


def point(run: dict, typed: dict[int, float]) -> tuple[int, float | None, str]:
    """(ranks, efficiency, words). One run has no efficiency: it counts against the fewest of the rates that were typed,
    as in the lab and in its exit check; None where none is of fewer ranks. typed: tokens per second by processes."""
    ranks, fewest = run["ranks"], min(typed, default=run["ranks"])
    share = scaling.efficiency({**typed, ranks: run["rate"]})[ranks] if fewest < ranks else 1.0 if ranks == 1 else None
    known = f"{quantity(run['rate'])} tokens/s" if share is None else f"efficiency {share:.0%}"
    return ranks, share, f"your run: {known}, {own.machine(run)}"
