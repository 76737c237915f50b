"""Exercises of `capstone` on data and money: an order that survives another world size, a wait, the price of a run."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.exercises.engine import Choice, Function, Mistake, Option, Verdict
from scaleout.timing.price import run_cost

_ORDER_STUB = '''\
def share(order, batch, step, rank, world):
    """One rank's examples in one step, a list out of `order`.

    order: this epoch's examples, shuffled, the same on all ranks
    batch: examples in a step over all ranks, a multiple of world
    step: counted from 0
    """
    return ...
'''

_ORDER_SOLUTION = """\
def share(order, batch, step, rank, world):
    own = batch // world
    first = step * batch + rank * own
    return order[first:first + own]
"""

# (epoch, batch, numbers of ranks)
_RUNS = (
    ([7, 2, 9, 4, 0, 11, 5, 1, 10, 3, 8, 6], 4, (1, 2, 4)), ([30, 12, 25, 17, 21, 14, 28, 19, 23], 3, (1, 3)),
    ([3, 8, 1, 6, 9, 0, 5, 2, 7, 4], 4, (1, 2)),  # the last batch is shorter
    ([41, 55, 48, 60, 52, 43, 57, 46, 50, 59, 44, 53, 61, 47, 56, 42, 58, 45], 6, (2, 3, 6)),
)  # fmt: skip


def _share(order: list[int], batch: int, step: int, rank: int, world: int) -> list[int]:
    size = batch // world
    return order[step * batch + rank * size :][:size]


@dataclass(frozen=True, kw_only=True)
class Shares(Function):
    """A function whose results are right by what they are together, in whatever order the ranks divide a batch."""

    def _compare(self, results: list) -> Verdict:
        """Right where every step's batch is the reference's at every world: each example once, in equal parts."""
        steps: dict[tuple, list] = {}
        for (order, batch, step, _rank, world), share in zip(self.cases, results, strict=True):
            steps.setdefault((tuple(order), batch, step, world), []).append(share)
        bad = [(key, parts) for key, parts in steps.items() if not _is_batch(*key, parts)]
        if not bad:
            return Verdict(True, f"Right, in all {len(steps)} steps. {self.right}")
        (order, batch, step, world), parts = bad[0]
        mistake = self._mistake(results)
        cause = f"{mistake.message} " if mistake else ""
        return Verdict(
            False,
            f"{cause}In step {step} of {list(order)} with a batch of {batch}, the parts of "
            f"{'one rank' if world == 1 else f'{world} ranks'} are {parts}; the batch is "
            f"{list(order[step * batch :][:batch])}.",
            mistake.name if mistake else "wrong-result",
        )


def _is_batch(order: tuple, batch: int, step: int, world: int, parts: list[list]) -> bool:
    """Equal parts that are, together, the step's batch. The rest of an epoch may be divided in any way."""
    right = sorted(order[step * batch :][:batch])
    examples = [example for part in parts for example in part]
    even = len(right) < batch or {len(part) for part in parts} == {batch // world}
    return even and not any(isinstance(example, list) for example in examples) and sorted(examples) == right


SHARE = Shares(
    key="batch-share",
    level=3,
    minutes=8,
    title="The same batch on any number of ranks",
    lists=True,
    prompt="A run stops on 4 ranks and goes on with 2. It should train on **the same batches** as if nothing had "
    "happened. Write `share(order, batch, step, rank, world)`: the examples that rank `rank` of `world` takes in step "
    "`step`.\n\n"
    "- `order` is the shuffled list of this epoch's examples; every rank has the same.\n"
    "- `batch` is the number of examples in a step over **all** ranks, so it does not change with `world`.\n"
    "- Over an epoch every example comes once, on one rank. The ranks take equal parts of each batch; how they divide "
    "it is your choice.\n"
    "- When all examples of the epoch have come, a step has none: an empty list on every rank.\n\n"
    "The checker puts the parts of all ranks together, for several numbers of ranks, and "
    "compares the batches.",
    hints=(
        "First the batch of the step, whatever the ranks: where in `order` does it begin?",
        "Only then divide it: each rank takes batch / world of it.",
    ),
    solution="```python\n"
    f"{_ORDER_SOLUTION}```\n\n"
    "`order[step * batch:][:batch][rank::world]` is right too. What counts is that the global batch depends on the "
    "step only. Then a checkpoint needs one number for the data, the step, and no rank has to remember where it was. "
    "The sums of gradients are taken in another order, so the losses of 4 and of 2 ranks agree to rounding, not to the "
    "bit.",
    function="share",
    stub=_ORDER_STUB,
    reference=_share,
    cases=tuple(
        (order, batch, step, rank, world)
        for order, batch, worlds in _RUNS
        for world in worlds
        for step in range(-(-len(order) // batch) + 1)
        for rank in range(world)
    ),
    mistakes=(
        Mistake(
            "own-part-of-the-epoch",
            lambda order, batch, step, rank, world: order[rank * (len(order) // world) :][step * (batch // world) :][
                : batch // world
            ],
            "You cut the epoch into one part for each rank. With another number of ranks the parts are others, and "
            "so are the batches.",
        ),
        Mistake(
            "batch-a-rank",
            lambda order, batch, step, rank, world: order[(step * world + rank) * batch :][:batch],
            "Each of your ranks takes a whole batch, so the batch of all grows with the ranks. batch is that of "
            "all of them.",
        ),
        Mistake(
            "same-on-all",
            lambda order, batch, step, rank, world: order[step * batch :][: batch // world],
            "All your ranks take the same examples. The rank has to come in.",
        ),
        Mistake(
            "whole-batch",
            lambda order, batch, step, rank, world: order[step * batch :][:batch],
            "Every rank of yours takes all of the batch: each example is trained on by all of them.",
        ),
        Mistake(
            "no-step",
            lambda order, batch, step, rank, world: order[rank * (batch // world) :][: batch // world],
            "You take the same batch in every step. The step has to come in.",
        ),
        Mistake(
            "step-by-share",
            lambda order, batch, step, rank, world: order[step * (batch // world) + rank * (batch // world) :][
                : batch // world
            ],
            "Your step moves on by one rank's share. It moves on by the batch of all ranks.",
        ),
        Mistake(
            "step-as-index",
            lambda order, batch, step, rank, world: order[step + rank * (batch // world) :][: batch // world],
            "Your step moves on by one example. It moves on by a batch.",
        ),
        Mistake(
            "from-one",
            lambda order, batch, step, rank, world: order[
                (step - 1) * batch + rank * (batch // world) : (step - 1) * batch + (rank + 1) * (batch // world)
            ],
            "Your first batch comes in step 1. Steps are counted from 0.",
        ),
        Mistake(
            "not-shuffled",
            lambda order, batch, step, rank, world: list(range(len(order)))[step * batch + rank * (batch // world) :][
                : batch // world
            ],
            "You returned places in the order. Take the examples that stand there.",
        ),
        Mistake(
            "places-without-end",
            lambda order, batch, step, rank, world: [
                step * batch + rank * (batch // world) + n for n in range(batch // world)
            ],
            "You returned places in the order, beyond its end too. Take the examples that stand there.",
        ),
    ),
    right="A resume needs the step, and nothing else, to go on with the right data.",
)

_STEP, _WAIT, _FAST = 0.91, 0.38, 0.55

WAIT = Choice(
    key="data-wait",
    level=2,
    minutes=2,
    title="What is the job waiting for?",
    prompt="The job's `metrics.jsonl` says, step after step, on every rank alike:\n\n"
    f'`{{"step": 412, "loss": 2.31, "seconds": {_STEP:.2f}, "wait": {_WAIT:.2f}}}`\n\n'
    "`seconds` is the whole step, `wait` the time until the next batch was there. With one batch that is used again "
    f"and again, the step takes {_FAST:.2f} s. The network is fast, and MFU is at 24%. What do you change first?",
    hints=(f"{_STEP:.2f} − {_WAIT:.2f} is what?", "What fell away in the run with one batch?"),
    solution=f"**The input pipeline.** {_WAIT:.2f} of {_STEP:.2f} s are gone before the forward begins, "
    f"{_WAIT / _STEP:.0%} of the machine, and without them the step takes {_STEP - _WAIT:.2f} s, as the run with one "
    "batch says too. Read ahead: batches made by other processes or threads while the GPU computes, so that the next "
    "one is there when the step ends. Then decode and tokenise once, before the training, and keep the files near. If "
    "`wait` is high on one rank only, look at that host.",
    options=(
        Option(
            "input",
            "The input: prepare batches ahead, in other processes",
            f"Right: the GPU stands still for {_WAIT / _STEP:.0%} of every step.",
            True,
        ),
        Option(
            "compute",
            "The kernels: compile the model, so that steps are shorter",
            f"That makes the {_FAST:.2f} s shorter. The wait stays, and becomes a larger part.",
        ),
        Option(
            "network",
            "The communication: prefetch deeper, or wrap otherwise",
            "It is the same with one batch used again, where the step is as short as it should be. And a wait for a "
            "batch comes before any communication.",
        ),
        Option(
            "batch",
            "The batch: a larger one, so that the wait is amortised",
            "A batch twice as large takes twice as long to prepare. The ratio stays.",
        ),
        Option(
            "straggler",
            "The slow rank: find the host for which all others wait",
            "Then the waits would differ between the ranks, and be inside collectives. Here all wait alike, before "
            "the forward.",
        ),
    ),
)

_PRICE_STUB = '''\
def run_price(
    tokens, tokens_per_second, gpus, price_per_hour, goodput
):
    """What a training run costs, in the currency of the price.

    tokens_per_second: of all GPUs together, while the job works
    price_per_hour: of one GPU
    goodput: share of the time that is work which counts, above 0
        and at most 1
    """
    return ...
'''

_PRICE_SOLUTION = """\
def run_price(tokens, tokens_per_second, gpus, price_per_hour, goodput):
    hours = tokens / tokens_per_second / goodput / 3600
    return hours * gpus * price_per_hour
"""


def _price(tokens, tokens_per_second, gpus, price_per_hour, goodput=1.0) -> float:
    return run_cost(tokens, tokens_per_second * goodput, gpus, 0.0, price_per_hour).price


PRICE = Function(
    key="run-price",
    level=2,
    minutes=5,
    title="What will it cost?",
    prompt="Write `run_price(tokens, tokens_per_second, gpus, price_per_hour, goodput)`. `tokens_per_second` is the "
    "rate of all GPUs together while the job works; `price_per_hour` is that of **one** GPU, and every GPU is paid for "
    "as long as the run lasts. `goodput` is the share of the time that counts: the rest goes into checkpoints, "
    "restarts, and work done again.",
    hints=(
        "First the hours of the run. Lost time makes it longer: divide by the goodput.",
        "Then every GPU is paid for all of these hours.",
    ),
    solution="```python\n"
    f"{_PRICE_SOLUTION}```\n\n"
    f"100 billion tokens at 500,000 tokens/s on 64 GPUs at 2.50 EUR an hour and a goodput of 0.95: "
    f"{_price(1e11, 5e5, 64, 2.5, 0.95):,.0f} EUR. Twice the GPUs at 90% efficiency cost "
    f"{_price(1e11, 9e5, 128, 2.5, 0.95) / _price(1e11, 5e5, 64, 2.5, 0.95) - 1:.0%} more and take "
    f"{1 - 5 / 9:.0%} less time. So efficiency is the price of being early.",
    function="run_price",
    stub=_PRICE_STUB,
    reference=_price,
    # The price is 5,000 or more, so that one in whole cents is right, and below a million, so that a whole one is not.
    cases=(
        (9e10, 5e5, 64, 2.5, 0.8),
        (1.37e9, 413_000, 1344, 4.19, 0.937),
        (72e9, 1e4, 1, 2.65, 1.0),
        (2.9e10, 87_300, 24, 1.83, 0.41),
        (7.7e8, 1.19e6, 11_000, 3.37, 0.23),
        (4.1e12, 2.3e6, 300, 1.27, 0.88),
        (5.3e10, 61_700, 7, 5.45, 0.655),
    ),
    mistakes=(
        Mistake(
            "one-gpu",
            lambda tokens, rate, gpus, price, goodput: _price(tokens, rate, 1, price, goodput),
            "You paid for one GPU, or took the rate for that of one. All of them are rented for the whole run, "
            "and the rate is of all of them together.",
        ),
        Mistake(
            "goodput-multiplied",
            lambda tokens, rate, gpus, price, goodput: _price(tokens, rate, gpus, price) * goodput,
            "You multiplied by the goodput. But lost time makes the run longer.",
        ),
        Mistake(
            "no-goodput",
            lambda tokens, rate, gpus, price, goodput: _price(tokens, rate, gpus, price),
            "You left out the goodput: GPUs are paid for while they save and restart, too.",
        ),
        Mistake(
            "lost-share-added",
            lambda tokens, rate, gpus, price, goodput: _price(tokens, rate, gpus, price) * (2 - goodput),
            "You added the lost share to the time that counts. It is a share of the whole time.",
        ),
        Mistake(
            "seconds",
            lambda tokens, rate, gpus, price, goodput: 3600 * _price(tokens, rate, gpus, price, goodput),
            "You paid an hour's price for every second.",
        ),
        Mistake(
            "minutes",
            lambda tokens, rate, gpus, price, goodput: 60 * _price(tokens, rate, gpus, price, goodput),
            "You paid an hour's price for every minute.",
        ),
    ),
    right="Ask for the price beside the hours: the fastest run is not the cheapest.",
)

EXERCISES = (WAIT, PRICE, SHARE)
