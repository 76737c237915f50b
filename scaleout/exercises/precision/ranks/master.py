"""Check the lab exercise `master-copy`: bf16 weights with an fp32 copy, against torch's AdamW in fp32.

Weights are compared several times on the way: a mistake is named where it gives them each time, and three times other
ones than the right.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.held import held_bytes, tensors
from scaleout.exercises.ranks.sure import TELLING, Fault, all_right

SIZE, STEPS, LR = 2048, 60, 5e-5  # a weight above 0.25 moves by 5e-4 at least in bf16
BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.5
LOOKS = (51, 54, 57, STEPS)  # steps after which the weights are compared: late, for bf16 hides much of them at first
BORDER = 3  # weights that may lie so near the border of two bf16 numbers that the order of a sum decides
STATE_BYTES = 12  # bytes of state a parameter
SLACK = 64  # bytes beside, for a step kept as a tensor


def weights(rank: int) -> torch.Tensor:
    """What a rank begins with: bf16 numbers between 0.25 and 1, of either sign."""
    generator = torch.Generator().manual_seed(4 + rank)
    return (
        (0.25 + 0.75 * torch.rand(SIZE, generator=generator)) * torch.randn(SIZE, generator=generator).sign()
    ).bfloat16()


def gradient(step: int, rank: int) -> torch.Tensor:
    """Of a step, in bf16: a part that stays and a part that changes."""
    stays, changes = (
        torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
        for seed in (50 + rank, 100 * (rank + 1) + step)
    )
    return (1e-2 * stays + 1e-3 * changes).bfloat16()


def reference(rank: int) -> torch.Tensor:
    """fp32 weights of torch's AdamW at each look, a row each."""
    rows = []
    w = torch.nn.Parameter(weights(rank).float())
    optimizer = torch.optim.AdamW([w], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    for step in range(1, STEPS + 1):
        w.grad = gradient(step, rank).float()
        optimizer.step()
        rows += [w.detach().clone()] if step in LOOKS else []
    return torch.stack(rows)


def trained(rank: int, decay=DECAY, coupled=0.0, corrected=True, root=True, fresh=False) -> torch.Tensor:
    """The copy at each look, of steps or of such with something wrong in them. fresh: moments begin anew in each."""
    copy, m, v, rows = weights(rank).float(), torch.zeros(SIZE), torch.zeros(SIZE), []
    for step in range(1, STEPS + 1):
        if fresh:
            m, v = torch.zeros(SIZE), torch.zeros(SIZE)
        g = gradient(step, rank).float() + coupled * copy
        m.lerp_(g, 1 - BETAS[0])
        v.lerp_(g.square(), 1 - BETAS[1])
        mean, variance = (m / (1 - BETAS[0] ** step), v / (1 - BETAS[1] ** step)) if corrected else (m, v)
        copy = copy * (1 - LR * decay) - LR * mean / ((variance.sqrt() if root else variance) + EPS)
        rows += [copy] if step in LOOKS else []
    return torch.stack(rows)


def rank_report(function, rank: int, world: int) -> Verdict | None:
    """All steps: what is wrong after them, or None."""
    w, rows = weights(rank), []
    state: dict = {}
    address = w.data_ptr()
    for step in range(1, STEPS + 1):
        returned = function(w, gradient(step, rank), state, step, LR)
        if returned is ...:
            return wrong("the function returns its ... at once: put your step in its place", "stub")
        if w.dtype != torch.bfloat16 or w.data_ptr() != address:
            return wrong(
                "the weights are another tensor now, or no longer in bf16: change them in place, as with "
                "weights.copy_(...)",
                "other-tensor",
            )
        rows += [w.clone()] if step in LOOKS else []
    fault = _weights(torch.stack(rows), returned, state, rank) or _state(state)
    return wrong(f"rank {rank}: {fault[1]}", fault[0]) if fault else None


def _weights(rows: torch.Tensor, returned: object, state: dict, rank: int) -> Fault:
    """What is wrong with the weights, of which `rows` has one for each look."""
    expected = reference(rank).bfloat16()
    if close(rows, expected):
        return None
    known = [
        (slip, words)
        for slip, words, value in _known(rank)
        if close(rows, value.bfloat16())
        and sum(not close(*pair) for pair in zip(rows, expected, strict=True)) >= TELLING
    ]
    last, right = rows[-1], expected[-1]
    if last.isnan().any():
        return "not-a-number", "there is NaN in the weights: do you read a tensor that nothing was written into?"
    if torch.equal(last, weights(rank)):
        if isinstance(returned, torch.Tensor):
            return "not-in-place", (
                "the weights have not changed, and the returned value is not used. Change the weights in place, as "
                "with weights.copy_(...)"
            )
        return "no-copy", (
            f"no weight has moved in {STEPS} steps. Did you change them in place? Does a step start from "
            "the fp32 copy that the last step left, and not from the bf16 weights, which lose small updates? And is "
            "the update as large as AdamW's?"
        )
    if len(known) == 1:
        return known[0]
    if any(tensor.dtype == torch.bfloat16 and tensor.numel() == SIZE for tensor in tensors(state)):
        return "state-in-bf16", "`state` has tensors in bf16: the copy and both moments should be in fp32"
    differing = int((last != right).sum())
    return (
        "wrong-weights",
        f"after {STEPS} steps {differing} of {SIZE} weights differ from AdamW's in fp32, rounded to bf16",
    )


def _known(rank: int) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Weights that mistakes lead to."""
    yield "no-decay", "the weights do not decay: multiply the copy by 1 - lr * DECAY", trained(rank, decay=0)
    yield "not-corrected", "the moments are not divided by 1 - beta ** step", trained(rank, corrected=False)
    yield (
        "coupled-decay",
        "the decay went into the gradient, as in Adam with L2. AdamW multiplies the weights by 1 - lr * DECAY",
        trained(rank, decay=0, coupled=DECAY),
    )
    yield "no-root", "the second moment has no root: divide by its square root plus EPS", trained(rank, root=False)
    yield "forgotten", "the moments start anew in every step: store them in state", trained(rank, fresh=True)


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal, but for a few weights on a border in each look."""
    return int((actual != expected).sum(-1).max()) <= BORDER


def _state(state: dict) -> Fault:
    """What is wrong with the state."""
    state_bytes = held_bytes(state)
    if any(tensor.dtype == torch.bfloat16 and tensor.numel() == SIZE for tensor in tensors(state)):
        return "state-in-bf16", "`state` has tensors in bf16: the copy and both moments should be in fp32"
    if state_bytes < STATE_BYTES * SIZE:
        return "kept-elsewhere", (
            f"the weights are right, but state has only {state_bytes} bytes: store the copy and both moments there, in "
            f"fp32, {STATE_BYTES * SIZE} bytes"
        )
    if state_bytes > STATE_BYTES * SIZE + SLACK:
        return "too-much", (
            f"the weights are right, but state has {state_bytes} bytes. A copy and two moments in fp32 are "
            f"{STATE_BYTES * SIZE}: store no gradient there, and nothing twice"
        )
    return None


CHECK = Check(
    "scaleout.exercises.precision.ranks",
    "master_step",
    (2,),
    rank_report,
    all_right(),
    wait_seconds=5,
    right=f"right on 2 processes: after {STEPS} steps that bf16 alone would have lost, the weights are those of "
    "AdamW in fp32, with 12 bytes of state per parameter",
)
