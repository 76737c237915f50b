"""All-reduce by hand, from sends and receives: naive, ring, tree. Each leaves the sum over ranks on every rank.

All three work in place on a contiguous tensor of any length (also empty, or shorter than the number of ranks) and
any dtype that adds, on gloo and on NCCL, for any number of ranks. They add in other orders than the backend's
all_reduce, so integers come out equal to it, and floats equal but for rounding.
"""

from collections import deque

import torch
import torch.distributed as dist

PIECE_BYTES = 2**22  # bytes per message; on gloo smaller ones cost more in calls than the overlap saves
MOST_PIECES = 8


@torch.no_grad()
def naive_all_reduce(t, group=None, checked=False):
    """Sum `t` over the ranks, in place: rank 0 receives every tensor, adds, and sends the sum to each rank.

    With n bytes on W ranks, rank 0 receives (W-1)n and sends (W-1)n, one rank after the other, while the others wait.
    No deadlock: rank 0 takes the ranks in order, and every other rank first sends to rank 0, then receives from it.
    ValueError as in `ready`.
    """
    flat, me, ranks = ready(t, group, checked)
    if me > 0:
        dist.send(flat, group=group, group_dst=0)
        dist.recv(flat, group=group, group_src=0)
        return
    arriving = torch.empty_like(flat)
    for other in range(1, ranks):
        dist.recv(arriving, group=group, group_src=other)
        flat += arriving
    for other in range(1, ranks):
        dist.send(flat, group=group, group_dst=other)


@torch.no_grad()
def ring_all_reduce(t, group=None, pieces=None, checked=False):
    """Sum `t` over the ranks, in place: every rank sends to its right and receives from its left, 2(W-1) times.

    A chunk is 1/W of the tensor. In steps 0 to W-2 (reduce-scatter) the arriving chunk is added; after them rank r has
    the whole sum of chunk r+1. In steps W-1 to 2W-3 (all-gather) the sums are copied from rank to rank. Each rank sends
    2(W-1)/W of the tensor. A chunk is sent in `pieces` messages (None: by its size), so that one is added while the
    next is being sent. No deadlock: each batch has this rank's n-th send and n-th receive, which progress together, and
    all ranks issue the same batches in the same order. ValueError as in `ready`.
    """
    flat, me, ranks = ready(t, group, checked)
    right, left = (me + 1) % ranks, (me - 1) % ranks
    whole = flat.tensor_split(ranks)
    pieces = pieces or pieces_for(whole[0].nbytes)
    chunks = [chunk.tensor_split(pieces) for chunk in whole]
    buffers = [torch.empty_like(piece) for piece in chunks[0]]  # chunk 0 is never the shorter one
    in_flight = deque()
    for step in range(2 * (ranks - 1)):
        adds = step < ranks - 1
        leaving, taking = chunks[(me - step) % ranks], chunks[(me - step - 1) % ranks]
        for out, into, buffer in zip(leaving, taking, buffers, strict=True):
            if len(in_flight) == pieces:  # the piece to send now is what arrived one step before
                _arrive(*in_flight.popleft())
            arriving = buffer[: len(into)] if adds else into
            in_flight.append((exchange(out, right, arriving, left, group), arriving, into))
    while in_flight:
        _arrive(*in_flight.popleft())


def exchange(out, right, arriving, left, group=None):
    """Start a send and a receive as one batch; returns the requests to wait for. Empty pieces are not sent at all."""
    work = [
        dist.P2POp(dist.isend, out, group=group, group_peer=right),
        dist.P2POp(dist.irecv, arriving, group=group, group_peer=left),
    ]
    work = [one for one in work if len(one.tensor)]
    return dist.batch_isend_irecv(work) if work else []


def _arrive(work, arriving, target):
    """Wait for a batch; add what arrived, unless it arrived in its place."""
    for request in work:
        request.wait()
    if arriving is not target:
        target += arriving


@torch.no_grad()
def tree_all_reduce(t, group=None, pieces=None, checked=False):
    """Sum `t` over the ranks, in place: up a binary tree to rank 0, adding, and down again.

    The parent of rank r is rank (r-1)//2. Up and down are 2 log2 W hops instead of the ring's 2(W-1), but an inner
    rank sends the whole tensor three times. It is sent in `pieces` messages, which follow each other through the tree.
    No deadlock, also where a send waits for its receive (NCCL): every rank takes piece after piece, going up first
    from below and then to above, going down the other way round, so that of all messages still to be sent the
    first one has both its ranks waiting for it. ValueError as in `ready`.
    """
    flat, rank, ranks = ready(t, group, checked)
    children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < ranks]
    parent, leaving = (rank - 1) // 2, []
    parts = flat.tensor_split(pieces or pieces_for(flat.nbytes)) if len(flat) else []
    arriving = torch.empty_like(parts[0]) if parts else flat
    for part in parts:
        for child in children:
            dist.recv(arriving[: len(part)], group=group, group_src=child)
            part += arriving[: len(part)]
        if rank > 0:
            leaving.append(dist.isend(part, group=group, group_dst=parent))
    for part in parts:
        if rank > 0:
            dist.recv(part, group=group, group_src=parent)
        leaving += [dist.isend(part, group=group, group_dst=child) for child in children]
    for request in leaving:
        request.wait()


BY_HAND = {"naive": naive_all_reduce, "ring": ring_all_reduce, "tree": tree_all_reduce}


def pieces_for(size):
    """How many messages `size` bytes travel as (int, the same on every rank): about PIECE_BYTES each."""
    return max(1, min(MOST_PIECES, size // PIECE_BYTES))


def ready(t, group=None, checked=False):
    """(`t` as a flat view, this rank in the group, ranks in the group), or ValueError with one line.

    Refused: what is no tensor, sparse, not contiguous (a flat view would be a copy, and the sum would be lost), or
    bool (it does not add). With `checked` the ranks first tell each other what they hold, and a rank that holds
    another dtype or length is named on every rank; without, such a mistake fails or waits inside the backend.
    """
    rank, p = (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)
    if rank < 0:
        raise ValueError("this rank is not in the group: only its members may call")
    wrong = unfit(t)
    if checked and p > 1:
        _agree(t, wrong, group, p)
    if wrong:
        raise ValueError(f"rank {rank}: {wrong}")
    return t.view(-1), rank, p


def unfit(t):
    """Why `t` cannot be summed in place, in words; "" where it can."""
    if not isinstance(t, torch.Tensor):
        return f"all-reduce takes a tensor, not a {type(t).__name__}"
    if t.layout != torch.strided:
        return "the tensor is sparse: give tensor.to_dense()"
    if not t.is_contiguous():
        return "the tensor is not contiguous: give tensor.contiguous()"
    return "bool does not add: give an integer or float dtype" if t.dtype == torch.bool else ""


def _agree(t, wrong, group, p):
    """ValueError on every rank where one rank's tensor is unfit, or differs from rank 0's."""
    kinds = [None] * p
    dist.all_gather_object(kinds, (wrong, "" if wrong else f"{t.numel()} elements of {t.dtype}"), group=group)
    for rank, (reason, kind) in enumerate(kinds):
        if reason:
            raise ValueError(f"rank {rank}: {reason}")
        if kind != kinds[0][1]:
            raise ValueError(
                f"rank {rank} holds {kind}, rank 0 holds {kinds[0][1]}: every rank must give the same length and dtype"
            )
