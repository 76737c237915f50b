"""Exercises of `capstone` on data: an order that does not depend on the world size, and a wait for the input."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.exercises.engine import Choice, Function, Mistake, Option, Verdict

_ORDER_STUB = '''\
def share(order, batch, step, rank, world):
    """One rank's examples in one step, a list out of `order`.

    order: shuffled examples of this epoch, the same on all ranks
    batch: examples per step over all ranks, a multiple of world
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
    """A function whose results are judged together: the ranks may divide a batch in any order."""

    def _compare(self, results: list) -> Verdict:
        """Right where every step's batch is the reference's at every world: each example once, in equal parts."""
        steps: dict[tuple[tuple, int, int, int], list] = {}
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
    prompt="A run stops on 4 ranks and resumes on 2. It should train on **the same batches** as if nothing had "
    "happened. Write `share(order, batch, step, rank, world)`: the examples of rank `rank` in step `step`.\n\n"
    "- `order` is the shuffled list of this epoch's examples, the same on every rank.\n"
    "- `batch` is the number of examples per step over **all** ranks, so it does not change with `world`.\n"
    "- Over an epoch every example comes once, on one rank. The ranks take equal parts of each batch; how they divide "
    "it is your choice.\n"
    "- After the end of the epoch, `share` returns an empty list.\n\n"
    "The checker compares the batches, for several numbers of ranks.",
    hints=(
        "Start with the batch of the step, for any number of ranks: where in `order` does it begin?",
        "Then divide the batch: each rank takes batch / world examples.",
    ),
    solution="```python\n"
    f"{_ORDER_SOLUTION}```\n\n"
    "`order[step * batch:][:batch][rank::world]` is right too. What counts is that the global batch depends only on "
    "the step. Then a checkpoint needs one number for the data, the step. Gradients are summed in another order, so "
    "the losses on 4 and on 2 ranks agree to rounding, not to the last bit.",
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
            "You cut the epoch into one part per rank. On another number of ranks the parts are different, and so "
            "are the batches.",
        ),
        Mistake(
            "batch-a-rank",
            lambda order, batch, step, rank, world: order[(step * world + rank) * batch :][:batch],
            "Each of your ranks takes a whole batch, so the global batch grows with the number of ranks. batch is "
            "the number of examples of all ranks together.",
        ),
        Mistake(
            "same-on-all",
            lambda order, batch, step, rank, world: order[step * batch :][: batch // world],
            "All your ranks take the same examples. The result has to depend on the rank.",
        ),
        Mistake(
            "whole-batch",
            lambda order, batch, step, rank, world: order[step * batch :][:batch],
            "Every rank takes the whole batch, so all ranks train on each example.",
        ),
        Mistake(
            "no-step",
            lambda order, batch, step, rank, world: order[rank * (batch // world) :][: batch // world],
            "You take the same batch in every step. The result has to depend on the step.",
        ),
        Mistake(
            "step-by-share",
            lambda order, batch, step, rank, world: order[step * (batch // world) + rank * (batch // world) :][
                : batch // world
            ],
            "From step to step you advance by one rank's share. A step advances by the batch of all ranks.",
        ),
        Mistake(
            "step-as-index",
            lambda order, batch, step, rank, world: order[step + rank * (batch // world) :][: batch // world],
            "From step to step you advance by one example. A step advances by a batch.",
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
            "You returned indices into the order. Return the examples at these indices.",
        ),
        Mistake(
            "places-without-end",
            lambda order, batch, step, rank, world: [
                step * batch + rank * (batch // world) + n for n in range(batch // world)
            ],
            "You returned indices into the order, also beyond its end. Return the examples at these indices.",
        ),
    ),
    right="For the data, a resume needs only the step.",
)

_STEP, _WAIT, _FAST = 0.91, 0.38, 0.55

WAIT = Choice(
    key="data-wait",
    level=2,
    minutes=2,
    title="What is the job waiting for?",
    prompt="A job's `metrics.jsonl` has such lines, alike on every rank:\n\n"
    f'`{{"step": 412, "loss": 2.31, "seconds": {_STEP:.2f}, "wait": {_WAIT:.2f}}}`\n\n'
    "`wait` is the part of the step until the next batch was there. If one batch is used again and again, a step takes "
    f"{_FAST:.2f} s. The network is fast, and the MFU is 24%. What do you change first?",
    hints=(f"What is {_STEP:.2f} − {_WAIT:.2f}?", "What did the run with one batch not have to do?"),
    solution=f"**The input pipeline.** The GPU waits {_WAIT:.2f} of {_STEP:.2f} s before the forward begins, "
    f"{_WAIT / _STEP:.0%} of the time. Without this wait the step takes {_STEP - _WAIT:.2f} s, which the run with one "
    "batch confirms. Read ahead: let other processes or threads prepare batches while the GPU computes. Then decode "
    "and tokenize once, before the training, and store the files nearby. If `wait` is high on one rank only, look at "
    "that host.",
    options=(
        Option(
            "input",
            "The input: prepare batches ahead, in other processes",
            f"Right: the GPU waits for {_WAIT / _STEP:.0%} of every step.",
            True,
        ),
        Option(
            "compute",
            "The kernels: compile the model, so that steps are shorter",
            f"That makes the {_FAST:.2f} s shorter. The wait stays, and becomes a larger part of the step.",
        ),
        Option(
            "network",
            "The communication: prefetch more, or use other units",
            "With one batch the communication is the same, and the step is as short as it should be. The wait comes "
            "before any communication.",
        ),
        Option(
            "batch",
            "The batch: a larger one, so that the wait is amortized",
            "A batch twice as large takes twice as long to prepare. The ratio stays the same.",
        ),
        Option(
            "straggler",
            "The slow rank: find the host for which all others wait",
            "Then the ranks would wait for different times, inside collectives. Here all ranks wait equally long, "
            "before the forward.",
        ),
    ),
)

EXERCISES = (WAIT, SHARE)
