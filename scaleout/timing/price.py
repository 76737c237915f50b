"""The price of a class or a run: students, GPUs, hours, a price that you give, and energy.

    python -m scaleout.timing.price --price 2.5 --currency EUR        the settings of the book's pages
    python -m scaleout.timing.price --students 20 --gpus 2 --hours 2 --price 2.5 --currency EUR

What a page of the book says about the cost of a class is this table, at an example price (EXAMPLE): real ones change
by the month, and each provider has its own. Give the price of one GPU for one hour, on the day. Standard library only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scaleout.spec import checks
from scaleout.spec.command import Parser
from scaleout.spec.hardware import GPU_WATTS
from scaleout.words import tables

SLACK_HOURS = 1.0  # a machine counts from its start to its end: half an hour to set up, half an hour of slack
OVERHEAD = 1.0  # kWh that a data centre draws for each kWh of its machines, its PUE: 1 counts the machines only


@dataclass(frozen=True)
class Use:
    """GPUs that somebody rents: `students` in groups of `group`, `gpus` for each group, for `hours` of class.

    `slack_hours` are paid on top. ValueError, in one line, for what nobody can rent.
    """

    what: str
    students: int
    gpus: int
    hours: float
    group: int = 1
    slack_hours: float = SLACK_HOURS

    def __post_init__(self) -> None:
        for name, lowest in (("students", 1), ("gpus", 0), ("group", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ValueError(f"{name} must be a whole number from {lowest}, not {value!r}")
        for name in ("hours", "slack_hours"):
            _positive(name, getattr(self, name))

    @property
    def groups(self) -> int:
        """Groups, each with GPUs of its own; the last one may be smaller."""
        return math.ceil(self.students / self.group)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that are paid, slack included."""
        return self.groups * self.gpus * (self.hours + self.slack_hours)

    def price(self, gpu_hour: float) -> float:
        """What it costs, in the currency of `gpu_hour`, the price of one GPU for one hour."""
        return self.gpu_hours * _positive("the price of a GPU-hour", gpu_hour)

    def kwh(self, watts: float, overhead: float = OVERHEAD) -> float:
        """Energy in kWh at most: every GPU at `watts` (its share of the node included) all the time it is rented.

        overhead: what the data centre draws for each kWh of its machines (its PUE), from 1 up.
        """
        if not (math.isfinite(overhead) and overhead >= 1):
            raise ValueError(f"overhead must be at least 1, not {overhead!r}: it counts the machines themselves")
        return self.gpu_hours * _positive("watts", watts) * overhead / 1000


@dataclass(frozen=True)
class Rates:
    """What a GPU-hour costs and draws. gpu_hour: in `currency`; watts: of one GPU with its share of the node;
    overhead: the data centre's PUE."""

    gpu_hour: float
    currency: str
    watts: float = GPU_WATTS
    overhead: float = OVERHEAD


EXAMPLE = Rates(2.5, "EUR")  # of no provider: what the pages of the book calculate with


@dataclass(frozen=True)
class RunCost:
    """What a run takes: hours of wall clock, GPU-hours, energy in kWh, and the price in the price's own currency."""

    hours: float
    gpu_hours: float
    kwh: float
    price: float


def run_cost(tokens: float, tokens_per_second: float, ranks: int, watts: float, price_per_hour: float) -> RunCost:
    """The cost of `tokens` at that rate on `ranks` GPUs, each drawing `watts` with its share of the node and costing
    price_per_hour. ValueError for a rate that is not above 0, and for amounts below 0."""
    for name, value in (("tokens", tokens), ("watts", watts), ("price_per_hour", price_per_hour)):
        checks.number(name, value, 0)
    if not 0 < tokens_per_second < math.inf or ranks < 1:
        raise ValueError(
            f"a run needs tokens per second above 0 and ranks from 1, not {tokens_per_second!r}, {ranks!r}"
        )
    hours = tokens / tokens_per_second / 3600
    return RunCost(hours, hours * ranks, hours * ranks * watts / 1000, hours * ranks * price_per_hour)


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a number from 0, not {value!r}")
    return value


SETTINGS = (
    Use("laptops", 20, 0, 2, slack_hours=0),
    Use("one node of 8 GPUs that you drive", 20, 8, 2, group=20),
    Use("pairs, 1 GPU each", 20, 1, 2, group=2),
    Use("pairs, 2 GPUs each", 20, 2, 2, group=2),
    Use("everyone, 2 GPUs each", 20, 2, 2),
    Use("groups of 5, a node of 8 GPUs each", 20, 8, 2, group=5),
    Use("one scaling study: 2 nodes of 8 GPUs", 1, 16, 3),
)


def rows(uses: Sequence[Use], rates: Rates) -> list[tuple[str, ...]]:
    """A table: setting, students, GPUs per group, groups, hours paid, GPU-hours, price, kWh at most, as texts."""
    return [
        (
            use.what,
            str(use.students),
            str(use.gpus),
            str(use.groups),
            f"{use.hours + use.slack_hours:g}",
            f"{use.gpu_hours:,.0f}",
            f"{use.price(rates.gpu_hour):,.2f}",
            f"{use.kwh(rates.watts, rates.overhead):,.1f}",
        )
        for use in uses
    ]


def markdown(uses: Sequence[Use], rates: Rates) -> str:
    """That table as Markdown; the heads of the last columns say at what price and power."""
    money = f"{rates.currency}, at {rates.gpu_hour:g} {rates.currency} per GPU-hour"
    head = (
        "setting",
        "students",
        "GPUs per group",
        "groups",
        "hours paid",
        "GPU-hours",
        money,
        f"kWh, at {rates.watts:,g} W per GPU",
    )
    return tables.markdown(head, rows(uses, rates), head[:1])


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 2 after one line on stderr for bad input."""
    parser = Parser(__doc__, prog="python -m scaleout.timing.price")
    parser.add_argument("--price", type=float, required=True, help="of one GPU for one hour, today")
    parser.add_argument("--currency", required=True, help="that the price is in: EUR, USD, ...")
    parser.add_argument(
        "--watts",
        type=float,
        default=GPU_WATTS,
        help=f"of one GPU with its share of the node ({GPU_WATTS:g}: an eighth of a DGX H100)",
    )
    parser.add_argument("--overhead", type=float, default=OVERHEAD, help=f"of the data centre, its PUE ({OVERHEAD})")
    for name, kind in (("students", int), ("gpus", int), ("hours", float), ("group", int), ("slack-hours", float)):
        parser.add_argument(f"--{name}", type=kind, help="for one setting of your own")
    try:
        options = vars(parser.parse_args(argv))
        class_fields = {
            name: options[name]
            for name in ("students", "gpus", "hours", "group", "slack_hours")
            if options[name] is not None
        }
        uses = [replace(Use("your class", 20, 1, 2), **class_fields)] if class_fields else SETTINGS
        print(markdown(uses, Rates(options["price"], options["currency"], options["watts"], options["overhead"])))
    except ValueError as error:
        print(f"price: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
