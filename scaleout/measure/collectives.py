"""Time collectives and links on real ranks: in alternation, by the slowest rank, with every result checked for errors.

What is timed works on zeros, so that a sum of sums stays finite; what is checked works on small whole numbers, whose
sums fp32 holds exactly.
"""

import statistics
from functools import partial

import torch
import torch.distributed as dist

from scaleout.lab import join
from scaleout.lab.text import progress
from scaleout.parallel import ring

ELEMENT = 4  # bytes: every message is fp32
SHORT_SECONDS = 2e-3  # a sample of a short operation holds as many calls as fit in this
ROW, LEAST_ROUNDS, MOST_ROUNDS = 8, 3, 20  # calls of a sample between kernels, and samples
MOST_CALLS = 20  # nccl-tests' number of iterations


def neighbours(s, n):
    """The group of this rank and those beside it, n in all; None where fewer are left. Collective."""
    pair = None
    for first in range(0, s.world - n + 1, n):
        group = dist.new_group(list(range(first, first + n)), join.GROUP_TIMEOUT)
        pair = group if first <= s.rank < first + n else pair
    return pair


def backend(name, buffer, world, group=None):
    """A function without arguments that runs the backend's collective `name` once on `buffer`, [n], world divides n.

    group: of so many ranks, None: all. It has `part`, this rank's share: what all_gather gathers, and what
    reduce_scatter leaves.
    """
    first = dist.get_global_rank(group, 0) if group else 0
    part = torch.zeros(len(buffer) // world, device=buffer.device, dtype=buffer.dtype)
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.13 has new names
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    work = {
        "all_reduce": lambda: dist.all_reduce(buffer, group=group),
        "broadcast": lambda: dist.broadcast(buffer, first, group=group),
        "all_gather": lambda: gather(buffer, part, group=group),
        "reduce_scatter": lambda: scatter(part, buffer, group=group),
    }[name]
    work.part = part
    return work


def sizes(smallest, largest, factor, world):
    """Message sizes in bytes from smallest to largest by `factor`, each rounded down to whole elements per rank."""
    unit, rounded, size = ELEMENT * world, [], smallest
    while size <= largest:
        rounded.append(max(unit, size // unit * unit))
        size *= factor
    return sorted(set(rounded))


def wrong(s, collective, size, reduce=None, gather=None):
    """Wrong elements of one collective's result, over all ranks (int). `size` bytes, as nccl-tests counts them.

    reduce(tensor): what sums in place (None: the backend); gather(part): returns the whole (None: the backend).
    """
    n = size // ELEMENT
    pattern = torch.arange(n, device=s.device) % 61
    rise = s.world * (s.world - 1) // 2
    sent = (pattern + s.rank).float()
    work = backend(collective, sent, s.world)
    mine = slice(s.rank * len(work.part), (s.rank + 1) * len(work.part))
    work.part.copy_(pattern[mine])
    received = gather(work.part) if gather else (reduce or (lambda t: work()))(sent)
    received = sent if received is None else received
    if collective == "reduce_scatter":
        received, wanted = work.part, (pattern * s.world + rise)[mine]
    else:
        wanted = pattern * s.world + rise if collective == "all_reduce" else pattern
    return round(s.mean((received != wanted.float()).sum().item()) * s.world)


def alternate(s, works, rounds, label=""):
    """{name: [seconds, ...]} of one call: in each round every work in turn, first to last and then last to first.

    works: {name: function}, by size. The samples of a work are spread over the whole run, so that a machine that is
    slow for a while is slow for all works and in few samples of each; there and back, so that no short work always
    follows the longest. The time of a sample is its slowest rank's. `label` names the work in a line of progress.
    """
    calls = {name: _calls(s, work) for name, work in works.items()}
    names, times = list(works), {name: [] for name in works}
    for turn in progress(range(rounds), label, s.main and bool(label)):
        for name in names if turn % 2 == 0 else reversed(names):
            s.barrier()
            start = s.clock()
            for _ in range(calls[name]):
                works[name]()
            times[name].append((s.clock() - start) / calls[name])
    table = torch.tensor([times[name] for name in names], dtype=torch.float64, device=s.device)
    dist.all_reduce(table, dist.ReduceOp.MAX)
    return dict(zip(names, table.tolist(), strict=True))


def _calls(s, work):
    """How many calls make a sample; the same on every rank. The first call is not timed: it connects."""
    spent = []
    for _ in range(4):
        s.barrier()
        start = s.clock()
        work()
        spent.append(s.clock() - start)
    return max(1, min(MOST_CALLS, int(SHORT_SECONDS / max(s.largest(min(spent[1:])), 1e-7))))


def between(s, work, compute, seconds):
    """Seconds of one `work()` between one `compute()` and the next, as in a step: the medians, over so many seconds, of
    rows of both and of rows of `compute` alone; at least what it takes by itself. After a barrier, with nothing else to
    do, a short collective takes a third of that on a CPU: all ranks come at once, and the threads are awake."""
    works = {"both": (ROW, lambda: (compute(), work())), "compute": (ROW, compute), "alone": (1, work)}
    times = {name: [] for name in works}
    begun, rounds = s.clock(), LEAST_ROUNDS
    while len(times["both"]) < rounds:
        for name, (calls, call) in works.items():
            s.barrier()
            start = s.clock()
            for _ in range(calls):
                call()
            times[name].append(s.largest(s.clock() - start) / calls)
        if len(times["both"]) == 1:  # the first row connects, and says how many there is time for
            rounds = 1 + int(s.largest(min(MOST_ROUNDS, max(LEAST_ROUNDS, seconds / (s.clock() - begun)))))
    middle = {name: statistics.median(spent[1:]) for name, spent in times.items()}
    return max(middle["alone"], middle["both"] - middle["compute"])


def medians(s, works, rounds):
    """{name: median seconds of one call}, as `alternate` takes them."""
    return {name: statistics.median(times) for name, times in alternate(s, works, rounds).items()}


def pair_seconds(s, sizes, rounds):
    """{size: seconds} of one message from rank 0 to rank 1, half a round trip, while the other ranks wait."""

    def there_and_back(t):
        if s.rank == 0:
            dist.send(t, 1)
            dist.recv(t, 1)
        elif s.rank == 1:
            dist.recv(t, 0)
            dist.send(t, 0)

    t = torch.zeros(max(sizes) // ELEMENT, device=s.device)
    works = {size: partial(there_and_back, t[: size // ELEMENT]) for size in sizes}
    return {size: seconds / 2 for size, seconds in medians(s, works, rounds).items()}


def crowd_seconds(s, sizes, rounds):
    """{size: seconds} of one message from every rank to its right, all at the same time."""
    right, previous = (s.rank + 1) % s.world, (s.rank - 1) % s.world

    def shift(leaving, arriving):
        for request in ring.exchange(leaving, right, arriving, previous):
            request.wait()

    a, b = torch.zeros(2, max(sizes) // ELEMENT, device=s.device)
    return medians(s, {size: partial(shift, a[: size // ELEMENT], b[: size // ELEMENT]) for size in sizes}, rounds)


def add_seconds(s, size, rounds=5):
    """Seconds in which every rank adds `size` bytes to `size` others, all at the same time."""
    a, b = torch.zeros(2, max(1, size // ELEMENT), device=s.device)
    return medians(s, {"add": lambda: a.add_(b)}, rounds)["add"]
