"""The exercise of `collectives` that is done in the lab: a ring all-reduce on real ranks."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

STUB = '''\
import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    """Replace `tensor`, which is flat, by its sum over all ranks.

    In place, in a ring, with only isend and irecv.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return ...
'''

_SOLUTION = """\
import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    chunks = tensor.tensor_split(ranks)
    for step in range(2 * (ranks - 1)):
        leaving = chunks[(rank - step) % ranks]
        taking = chunks[(rank - step - 1) % ranks]
        arriving = torch.empty_like(taking)
        sent = dist.isend(leaving, right)
        received = dist.irecv(arriving, left)
        received.wait()
        sent.wait()
        if step < ranks - 1:
            taking += arriving
        else:
            taking.copy_(arriving)
"""

RING_ON_RANKS = Lab(
    key="ring-on-ranks",
    level=3,
    minutes=25,
    title="A ring on real ranks",
    prompt="Write `ring_all_reduce(tensor)` with only `dist.isend` and `dist.irecv`. It runs on every rank and "
    "replaces the flat `tensor` by the sum over all ranks, in place. It is checked on 2, 3 and 4 processes with gloo, "
    "with floats and with integers, and with lengths that the number of ranks does not divide (one is shorter than the "
    "number of ranks). The bytes that each rank sends are counted: on W ranks a ring sends 2(W−1)/W of the "
    "tensor.\n\nSave your function as `ring.py` in the book's folder, and run the command below.",
    hints=(
        "`tensor.tensor_split(ranks)` returns views: writing into them changes the tensor.",
        "Start the send *and* the receive before you wait for either. If every rank waits for its send, no rank "
        "receives.",
        "In the first ranks − 1 steps the arriving chunk is added, so it needs a buffer of its own, by "
        "`torch.empty_like`.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "The lab's version cuts each chunk into pieces, so that one piece is added while the next is being sent: see "
    "`scaleout/parallel/ring.py`.",
    stub=STUB,
    command="python -m scaleout.exercises.collectives.ranks ring.py",
)

EXERCISES = (RING_ON_RANKS,)
