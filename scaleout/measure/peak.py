"""The time of work that all ranks do at once, and the rate of matmuls, which is the peak for a utilization."""

import statistics

import torch


def timed(s, work):
    """(seconds of one `work()`, the slowest rank's; what it gave on this rank). All ranks begin together."""
    s.barrier()
    start = s.clock()
    result = work()
    return s.largest(s.clock() - start), result


def repeat(s, work, seconds):
    """Median seconds of one `work()` over as many rounds as fit in `seconds`, from 3 to 200.

    All ranks make the same number of rounds, and the slowest rank's median counts: a collective is over when
    its last rank is.
    """
    work()  # first call: allocation, kernel choice, connections
    start = s.clock()
    work()
    rounds = int(s.largest(max(3, min(200, seconds / max(s.clock() - start, 1e-7)))))
    times = []
    for _ in range(rounds):
        s.barrier()
        start = s.clock()
        work()
        times.append(s.clock() - start)
    return s.largest(statistics.median(times))


def matmul_rate(s, dtype, options):
    """(FLOP/s, matrix side): doubles the side while a product takes under a tenth of the time given."""
    side = min(128, options.largest_matrix)
    while True:
        a, b = (torch.randn(side, side, device=s.device).to(dtype) for _ in range(2))
        a @ b  # the first one loads libraries and kernels
        start = s.clock()
        a @ b
        spent = s.largest(s.clock() - start)
        if side * 2 > options.largest_matrix or spent > options.seconds / 10:
            break
        side *= 2
    product = torch.empty_like(a)
    return 2 * side**3 / repeat(s, lambda: torch.mm(a, b, out=product), options.seconds), side
