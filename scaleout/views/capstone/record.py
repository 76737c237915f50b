"""A reader's own run of labs/capstone.py or labs/scaling.py in the view `capstone`: its tokens a second."""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.spec import checks
from scaleout.timing import scaling
from scaleout.views import own

LAB = "labs/capstone.py or labs/scaling.py"
BEYOND = "seconds a step beyond a rank alone"


def measured(record: dict) -> dict:
    """{"ranks", "device", "rate", "share"} of a Record: tokens a second, and its share of what as many ranks would do
    that never waited, where labs/scaling.py has measured that, or None. ValueError, in one line, for any other file."""
    found = own.run(record, "capstone", LAB)
    rate = own.amount(record, "tokens_per_second", LAB)
    seen = own.table(record, "measurement", LAB)
    beyond, seconds = seen.get(BEYOND), seen.get("seconds a step")
    known = checks.is_number(beyond) and checks.is_number(seconds) and 0 <= beyond < seconds
    return found | {"rate": rate, "share": 1 - beyond / seconds if known else None}


def point(run: dict, typed: dict[int, float]) -> tuple[int, float, str, bool]:
    """(ranks, efficiency, words, whether its own ranks alone are what it counts against). Else that is the fewest of
    the rates that were typed; without them it counts as 100%. typed: tokens a second by processes."""
    ranks, share = run["ranks"], run["share"]
    if share is None and typed and min(typed) < ranks:
        share = scaling.efficiency({**typed, ranks: run["rate"]})[ranks]
    alone = run["share"] is not None
    said = f"{share:.0%}" if share is not None else f"{svg.quantity(run['rate'])} tokens/s count as 100%"
    said += " of ranks alone" * alone  # each with its work of that run, which a shared batch makes smaller
    return ranks, 1.0 if share is None else share, f"your run: {said}, {own.where(run)}", alone
