"""Check the lab exercise `zero-step`: weights against AdamW on one process, the bytes of the state, and the bytes sent.

Four steps on each number of ranks, the weights compared after each: a mistake is named where it gives them all. The
reference is torch's AdamW on the mean gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.held import held_bytes
from scaleout.exercises.ranks.sure import Fault, all_right

SIZE, STEPS, LR = 1511, 4, 0.1  # no number of ranks divides the weights
BETAS, EPS, DECAY = (0.9, 0.95), 1e-3, 0.1
SCALE = 0.01  # of the gradients: small enough beside EPS that a sum does not pass for a mean
CLOSE = 1e-5  # of weights of about 1, in fp32
OVERHEAD = 1000  # bytes that a rank may send to each other one beside the two pieces, as for the wrapping of objects
PARTS_LIMIT = 4  # parts that a state may hold: two moments, and copies of weights and gradient
Update = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]


def weights() -> torch.Tensor:
    """What all ranks begin with."""
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(1))


def gradient(step: int, rank: int) -> torch.Tensor:
    """Of a rank's samples in a step."""
    return SCALE * torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * step + rank))


def adamw(w, g, m, v, step, decay=DECAY, corrected=True, coupled=0.0, root=True):
    """The weights after a step of AdamW, or of one with something wrong in it. The moments change in place."""
    g = g + coupled * w
    m.lerp_(g, 1 - BETAS[0])
    v.lerp_(g.square(), 1 - BETAS[1])
    first, second = (m / (1 - BETAS[0] ** step), v / (1 - BETAS[1] ** step)) if corrected else (m, v)
    return w * (1 - LR * decay) - LR * first / ((second.sqrt() if root else second) + EPS)


def trained(world: int, rank: int | None = None, times: float = 1.0, fresh: bool = False, **faults) -> torch.Tensor:
    """Weights after each step (a row each), on the mean gradient; of one rank's with `rank`, `times` as large; with
    `fresh` from moments that begin anew in each step."""
    w, m, v, rows = weights(), torch.zeros(SIZE), torch.zeros(SIZE), []
    for step in range(1, STEPS + 1):
        g = times * (gradient(step, rank) if rank is not None else mean(step, world))
        if fresh:
            m, v = torch.zeros(SIZE), torch.zeros(SIZE)
        w = adamw(w, g, m, v, step, **faults)
        rows.append(w)
    return torch.stack(rows)


def mean(step: int, world: int) -> torch.Tensor:
    """The gradient of all ranks' samples."""
    return sum(gradient(step, rank) for rank in range(world)) / world


def reference(world: int) -> torch.Tensor:
    """Weights after each step of torch's AdamW, a row each."""
    rows = []
    w = torch.nn.Parameter(weights())
    optimizer = torch.optim.AdamW([w], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    for step in range(1, STEPS + 1):
        w.grad = mean(step, world)
        optimizer.step()
        rows.append(w.detach().clone())
    return torch.stack(rows)


def rank_report(function, rank: int, world: int) -> Verdict | None:
    """Four steps on this rank: what is wrong with them, or None."""
    w, rows = weights(), []
    state: dict = {}
    for step in range(1, STEPS + 1):
        with counted() as calls:
            returned = function(w, gradient(step, rank), state, step, LR)
        if returned is ...:
            return wrong("the function returns its ... at once: put your step in its place", "stub")
        rows.append(w.clone())
    fault = _weights(torch.stack(rows), returned, rank, world) or _state(state, world) or _sent(calls, world)
    return wrong(f"rank {rank} of {world}: {fault[1]}", fault[0]) if fault else None


def _weights(rows: torch.Tensor, returned: object, rank: int, world: int) -> Fault:
    """What is wrong with the weights, of which `rows` has one for each step."""
    expected, length = reference(world), -(-SIZE // world)
    if close(rows, expected):
        return None
    cause = next(((slip, words) for slip, words, value in _known(rank, world, length) if close(rows, value)), None)
    last, right = rows[-1], expected[-1]
    if torch.equal(last, weights()):
        words = ": the returned value is not used" if isinstance(returned, torch.Tensor) else ""
        return "not-in-place", f"the weights are unchanged{words}. Change them in place, as with weights.copy_(...)"
    if last.isnan().any():
        return "not-a-number", "there is NaN in the weights: do you read a tensor before anything was written into it?"
    part = slice(rank * length, (rank + 1) * length)
    foreign = torch.ones(SIZE, dtype=torch.bool)
    foreign[part] = False
    if close(last[part], right[part]) and torch.equal(last[foreign], weights()[foreign]):
        return (
            "not-gathered",
            "its own shard of the weights is right, and the rest is unchanged: gather the other shards",
        )
    short = world * (SIZE // world)
    if close(last[:short], right[:short]):
        return (
            "tail-lost",
            f"the weights are right up to element {short - 1}, and wrong after it: round the size of a shard up",
        )
    if cause:
        return cause
    error = (last - right).abs().max()
    return "wrong-weights", f"after {STEPS} steps the weights differ from AdamW's on one process by up to {error:.2g}"


def _known(rank: int, world: int, length: int) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Weights that mistakes lead to, a row for each step: all of them are others than the right ones but those of
    "forgotten" after the first."""
    yield (
        "not-averaged",
        f"the gradient is {world} times too large: a reduce-scatter sums. Divide by the number of ranks",
        trained(world, times=world),
    )
    yield (
        "averaged-twice",
        f"the gradient is {world} times too small: it was divided by the ranks twice",
        trained(world, times=1 / world),
    )
    separate = [trained(world, peer) for peer in range(world)]
    yield (
        "own-gradient",
        "each shard was updated with the gradient of its owner's samples alone: reduce first",
        torch.cat([values[:, r * length : (r + 1) * length] for r, values in enumerate(separate)], dim=1),
    )
    yield "own-gradient", "the weights were updated with this rank's gradient alone: reduce first", separate[rank]
    yield ("forgotten", "the moments start from zero in every step: keep them in state", trained(world, fresh=True))
    yield "not-corrected", "the moments are not divided by 1 - beta ** step", trained(world, corrected=False)
    yield "no-decay", "the weights do not decay: multiply them by 1 - lr * DECAY", trained(world, decay=0)
    yield (
        "coupled-decay",
        "the decay went into the gradient, as in Adam with L2. AdamW multiplies the weights by 1 - lr * DECAY",
        trained(world, decay=0, coupled=DECAY),
    )
    yield (
        "no-root",
        "the square root of the second moment is missing: divide by that root plus EPS",
        trained(world, root=False),
    )


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((actual - expected).abs().max() <= CLOSE)


def _state(state: dict, world: int) -> Fault:
    """What is wrong with the stored state."""
    length = -(-SIZE // world)
    state_bytes = held_bytes(state)
    if state_bytes < 2 * 4 * (SIZE // world):
        return "kept-elsewhere", (
            f"the weights are right, but state has {state_bytes} bytes: store the moments there, where they can be "
            "counted"
        )
    limit = 4 * (PARTS_LIMIT * length + PARTS_LIMIT)
    if state_bytes > limit:
        return "whole-state", (
            f"the weights are right, but state has {state_bytes} bytes. A shard has {length} of {SIZE} "
            f"elements, so two moments take {8 * length}, and with copies of weights and gradient "
            f"{16 * length}: store those of your own shard only"
        )
    return None


def _sent(calls: counted, world: int) -> Fault:
    """What is wrong with how a right step communicated, judged by the last one."""
    pieces = 2 * 4 * -(-SIZE // world) * (world - 1)
    if not calls.calls:
        return "unseen", "weights and state are right, but your function called no collective"
    if any(call.name == "all_reduce" and call.bytes > OVERHEAD for call in calls.calls):
        return "all-reduce", (
            "weights and state are right, but you all-reduced, which has twice the volume. A rank "
            "needs only the sums of its own shard (reduce-scatter), and then all weights (all-gather)"
        )
    if calls.sent > 1.2 * pieces + OVERHEAD * (world - 1):
        return "sent-too-much", (
            f"weights and state are right, but this rank sent {calls.sent:,.0f} bytes for {SIZE} "
            f"weights: a reduce-scatter of the gradient and an all-gather of the weights, "
            f"{pieces:,} bytes, are enough"
        )
    return None


def explain(error: Exception) -> Verdict | None:
    """Parts of different lengths, which gloo refuses."""
    if not any(mark in str(error) for mark in ("sizes().vec()", "inputShape", "invalid tensor size")):
        return None
    return wrong(
        "a collective got parts of different lengths, or a result of the wrong length: pad the last part, so "
        "that all are equal",
        "uneven",
    )


CHECK = Check(
    "scaleout.exercises.zero.ranks",
    "zero_step",
    (2, 3),
    rank_report,
    all_right(),
    wait_seconds=5,
    explain=explain,
    right=f"right on 2 and 3 processes: the weights of AdamW on one after {STEPS} steps, moments of a "
    "shard, and a volume of 2N",
)
