"""Check the lab exercise `keys-on-two-ranks` on 2 processes.

    python -m scaleout.exercises.kernels.ranks keys.py

The output is compared with one process, and bytes that a rank sends are counted.
"""

from __future__ import annotations

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, main, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.sure import TELLING, Fault

HEADS, QUERIES, KEYS, SIZE = 2, 4, 96, 8  # keys of each rank
SEEDS = range(5, 5 + TELLING)  # of the inputs: a mistake is named where all of them show it
LARGE = 60.0  # by which queries are larger on the last inputs: scores of about 200
CLOSE = 1e-4  # of outputs of about 1 in fp32, summed in another order
ENOUGH = 4 * HEADS * QUERIES * (SIZE + 2)  # bytes: a ring's all-reduces of the output and of two numbers per query
MOST = 4.5 * ENOUGH  # which leaves room for numbers in fp64 and for detours, and is far below the bytes of keys


def tensors(seed: int, world: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, and the keys and values of all ranks; those of later ranks have larger scores."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(HEADS, QUERIES, SIZE, generator=generator)
    k, v = (torch.randn(HEADS, world * KEYS, SIZE, generator=generator) for _ in range(2))
    k[:, KEYS:] *= 1.5
    return (LARGE * q if seed == SEEDS[-1] else q), k, v + torch.arange(world).repeat_interleave(KEYS)[:, None]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float = SIZE**-0.5) -> torch.Tensor:
    return (q @ k.mT * scale).softmax(-1) @ v


def known(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rank: int, world: int) -> dict:
    """What mistakes give: (value, words)."""
    parts = [attention(q, a, b) for a, b in zip(k.chunk(world, 1), v.chunk(world, 1), strict=True)]
    own = zip(k.chunk(world, 1), v.chunk(world, 1), strict=True)
    scores = [(q @ a.mT * SIZE**-0.5, b) for a, b in own]
    weights = [((one - one.amax(-1, keepdim=True)).exp(), b) for one, b in scores]
    mixed, totals = sum(w @ b for w, b in weights), sum(w.sum(-1, keepdim=True) for w, _ in weights)
    return {
        "own-keys": (parts[rank], "is attention over this rank's keys alone"),
        "mean": (sum(parts) / world, "is the mean of the ranks' outputs: a rank with larger scores weighs more"),
        "sum": (sum(parts), "is the sum of the ranks' outputs: each has been divided by its own total already"),
        "own-maxima": (mixed / totals, "adds sums that were made with another maximum on each rank"),
        "unscaled": (attention(q, k, v, 1.0), "has scores that were not divided by the square root of the head size"),
    }


def output_fault(output: object, right: torch.Tensor, table: dict) -> tuple[Fault, Fault]:
    """(the cause that is known, what is to be seen) of an output; None where it is right."""
    if output is ...:
        return (stub := ("stub", "the function returns its ... : replace it by your attention")), stub
    if not isinstance(output, torch.Tensor):
        return (kind := ("no-tensor", f"the output is a {type(output).__name__}, not a tensor")), kind
    if output.shape != right.shape:
        shape = ("wrong-shape", f"the output has the shape {tuple(output.shape)}, not {tuple(right.shape)}")
        return shape, shape
    if output.dtype != right.dtype:
        kind = ("wrong-dtype", f"the output is in {str(output.dtype).removeprefix('torch.')}, not in float32")
        return kind, kind
    if not output.isfinite().all():
        overflow = ("overflow", "the output is not finite: subtract the common maximum before exp")
        return overflow, overflow
    if torch.allclose(output, right, rtol=CLOSE, atol=CLOSE):
        return None, None
    seen = ("wrong-output", f"the output is off by up to {(output - right).abs().max().item():.2g}")
    for slip, (value, words) in table.items():
        if torch.allclose(output, value, rtol=CLOSE, atol=CLOSE):
            return (slip, f"the output {words}"), seen
    return seen, seen


def one(seed: int, function, rank: int, world: int) -> tuple[Fault, Fault]:
    """What is wrong for some inputs, its cause and what is to be seen of it."""
    q, k, v = tensors(seed, world)
    with counted() as calls:
        output = function(q.clone(), k.chunk(world, 1)[rank].clone(), v.chunk(world, 1)[rank].clone())
    cause, seen = output_fault(output, attention(q, k, v), known(q, k, v, rank, world))
    if not cause and calls.sent > MOST:
        cause = seen = (
            "sent-too-much",
            f"the output is right, but this rank sent {calls.sent:,.0f} bytes, and {ENOUGH:,} are enough: communicate "
            "what belongs to the queries, not keys or values",
        )
    return cause, seen


def rank_report(function, rank: int, world: int) -> Verdict | None:
    """What is wrong on this rank, or None. All inputs are run, for the other rank calls too."""
    faults = [one(seed, function, rank, world) for seed in SEEDS]
    bad = [(cause, seen) for cause, seen in faults if cause and seen]
    if not bad:
        return None
    cause, seen = next((fault for fault in bad if fault[0][0] == "overflow"), bad[0])
    sure = len(bad) == len(SEEDS) and len({slip for (slip, _), _ in bad}) == 1
    slip, words = cause if sure or cause[0] == "overflow" else seen
    return wrong(f"rank {rank}: {words}", slip)


def judge(reports: list, world: int) -> Verdict:
    """Every rank's output was right."""
    return Verdict(True, f"right: {world} ranks give the attention of one process, and no key was sent")


CHECK = Check("scaleout.exercises.kernels.ranks", "split_keys", (2,), rank_report, judge, wait_seconds=10)

if __name__ == "__main__":
    main(CHECK)
