"""Rates of a process, fitted to the times that `labs/calibrate.py` measured, in place of the `Rates` of a datasheet.

A profile holds seconds of some linear layers, of attention, of kernels that only move bytes, of updates, of what the
host takes for a block, and of what replicas add to a step, with all processes at work. Their constants are fitted here.
An older profile without them has one rate of matrix multiplications and one of copies, which then stand for everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from scaleout.spec import checks
from scaleout.spec.program import PROGRAMS
from scaleout.timing import profile as profiles
from scaleout.timing.rates import MATMULS, Overhead, Rates

# Bytes that an AdamW in one kernel reads and writes for a parameter in fp32: `timing.job.update_bytes` of that recipe.
ADAMW_BYTES = 28
LINEARS = 6  # layers of the block whose host time is measured: q, k, v, out, up, down
WIDTH = 4  # bytes of an element, for products that are bound by them; in 16 bits those move half
PHASES = ("forward", "backward", "rest")  # of `measure.units`
INFINITE = 1e30  # FLOP/s where multiplications take no time beside the rest


@dataclass(frozen=True)
class Exchange:
    """What a way to keep replicas takes of a step beside the model, all that it sends included. forward, backward: of a
    micro-batch, (seconds, of each unit of weights, of each byte of weights on a rank); rest: after the update. update:
    the optimizer's step, (seconds of a tensor of the model, of a parameter that the rank steps)."""

    forward: tuple[float, float]
    backward: tuple[float, float]
    rest: tuple[float, float]
    update: tuple[float, float]

    def seconds(self, units: int, size: int, forwards: int, backwards: int) -> float:
        """Seconds beside the model of a step with so many units and bytes of weights, forwards, and reductions."""
        times = forwards, backwards, 1
        return sum(
            n * (units * unit + size * byte)
            for n, (unit, byte) in zip(times, (self.forward, self.backward, self.rest), strict=True)
        )


def exchanges(profile: dict) -> dict[str, Exchange]:
    """{way of `measure.units`: Exchange} of a profile; an older one has none."""
    ways = {}
    for way, points in ((profile.get("kernels") or {}).get("units") or {}).items():
        rows = [(point["units"], point["bytes"]) for point in points]
        forward, backward, rest = (_pair(rows, [point[phase] for point in points]) for phase in PHASES)
        update = _update([point | {"seconds": point["update"]} for point in points])
        ways[way] = Exchange(forward, backward, rest, update)
    return ways


def profile_rates(profile: dict, dtype: str = "fp32", share: float | None = None, foreach: bool = True) -> Rates:
    """A process of the machine that was measured. share: of the measured matrix multiplications that the whole model
    reaches, where it was seen at work; the kernels that were timed one by one then count for nothing. foreach: the
    optimizer steps all tensors at once."""
    checks.above_0("share", 1.0 if share is None else share)
    peak, copies = profiles.rate(profile, dtype), profile["copy_bytes_per_second"]
    kernels = profile.get("kernels")
    if share is not None or not kernels:
        reached = peak * (share or 1.0)
        return Rates(peak, reached, (reached, reached), copies)
    times = kernels.get("together", 1.0)
    linears, points = (_longer(kernels.get(kind, {}).get(dtype, ()), times) for kind in ("matmul", "attention"))
    launch, thin, flop, operand, moved = _forward(linears, _longer(kernels.get("moved", ()), times))
    flop, thin = (flop, thin) if flop else (1 / peak, 0.0)
    rates, overhead = _attention(points, 1 / flop)
    tensor, per_parameter = _update(kernels.get("update", {}).get("foreach" if foreach else "single", ()))
    reached_rates = Rates(
        peak,
        1 / flop,
        rates,
        1 / moved if moved else copies,
        depth=thin / flop,
        kernel_seconds=launch,
        operand_seconds=operand,
        overhead=overhead,
        update_bytes_per_s=PROGRAMS["eager"].update_passes * ADAMW_BYTES / per_parameter if per_parameter else 0.0,
        tensor_seconds=tensor,
    )
    linear_seconds, backward = _backward(linears, reached_rates)
    queued = profile.get("device_kind") == "cuda"
    reached_rates = replace(reached_rates, linear_seconds=linear_seconds, backward_times=backward or 1.0, queued=queued)
    return _hosted(reached_rates, _longer(kernels.get("host", ()), times))


def lacking(profile: dict | None) -> list[str]:
    """In words, what an older profile has not measured, for a Record's list of what was skipped."""
    if profile is None or profile.get("kernels"):
        return []
    return [
        "seconds kernel by kernel: the machine's profile is an older one, with one rate for all matrix multiplications "
        "(run labs/calibrate.py again)"
    ]


def _forward(linears: Sequence[dict], moved: Sequence[dict]) -> tuple[float, ...]:
    """Seconds of a kernel, of an element of a result beside its inner dimension, of a FLOP, of a byte of operands and
    results, and of one that eager torch moves, as `timing.compute` counts them."""
    rows, seconds = [], []
    for layer in linears:
        m, n, k = layer["rows"], layer["columns"], layer["depth"]
        rows.append((1, 2 * m * n, 2 * m * n * k, WIDTH * (m * k + k * n + m * n), 0))
        seconds.append(layer["forward"])
    for kernel in moved:
        rows.append((kernel["kernels"], 0, 0, 0, PROGRAMS["eager"].moves * kernel["bytes"]))
        seconds.append(kernel["seconds"])
    return fit(rows, seconds, 5)


def _backward(linears: Sequence[dict], rates: Rates) -> tuple[float, float]:
    """A linear layer's backward: seconds beside its two multiplications, and what these take, relative to forward's
    of their shapes."""
    rows = [(1, rates.backward(layer["rows"], layer["columns"], layer["depth"], WIDTH)[0]) for layer in linears]
    return _pair(rows, [layer["backward"] for layer in linears])


def _attention(points: Sequence[dict], rate: float) -> tuple[tuple[float, float], Overhead]:
    """FLOP/s of causal attention's multiplications, forward and backward, and what it takes beside them."""
    fits = []
    for phase, times in MATMULS.items():
        rows = []
        for point in points:
            queries, seq, head = point["queries"], point["seq"], point["head"]
            rows.append((1, queries, queries * head, queries * seq, times * 2 * queries * seq * head))
        fits.append(fit(rows, [point[phase] for point in points], 5))
    call, query, number, score, flop = zip(*fits, strict=True)
    forward, backward = (1 / value if value else INFINITE if points else rate for value in flop)
    return (forward, backward), Overhead(call, query, number, score)


def _hosted(rates: Rates, points: Sequence[dict]) -> Rates:
    """The rates with the host's seconds for a block and for the ends, forward and backward, beside the kernels that are
    counted one by one: of models that compute next to nothing, of one block and of several. Where kernels wait in a
    queue it is all of it, for it runs beside them."""
    if len(points) < 2:
        return rates
    (fewest, small), (most_layers, large) = sorted((point["layers"], point) for point in points)
    linear = rates.kernel_seconds, rates.linear_seconds + 2 * rates.backward_times * rates.kernel_seconds
    blocks, ends = [], []
    for phase, name in enumerate(MATMULS):
        block = (large[name] - small[name]) / (most_layers - fewest)
        counted = 0.0 if rates.queued else linear[phase]
        blocks.append(max(0.0, block - LINEARS * counted - rates.overhead.call[phase] * (not rates.queued)))
        ends.append(max(0.0, small[name] - fewest * block - counted))
    return replace(rates, block_seconds=tuple(blocks), ends_seconds=tuple(ends))


def _longer(rows: Iterable[dict], times: float) -> list[dict]:
    """What was measured of kernels alone, each so many times as long: as they are in a whole model."""
    spans = ("forward", "backward", "seconds")
    return [row | {name: times * row[name] for name in spans if name in row} for row in rows]


def _update(points: Sequence[dict]) -> tuple[float, float]:
    """Seconds that an optimizer's step takes for each tensor, and for each parameter."""
    rows = [(point["tensors"], point["parameters"]) for point in points]
    return _pair(rows, [point["seconds"] for point in points])


def _pair(rows: Iterable[Sequence[float]], seconds: Iterable[float]) -> tuple[float, float]:
    """`fit` of two columns."""
    first, second = fit(rows, seconds, 2)
    return first, second


def fit(rows: Iterable[Sequence[float]], seconds: Iterable[float], unknowns: int) -> tuple[float, ...]:
    """Factors, none below zero, by which the columns of `rows` best add up to `seconds`: least squares of the relative
    error. Where one would fall below zero it is left out: of all choices of columns the best. Zeros without any row."""
    relative = [tuple(value / spent for value in row) for row, spent in zip(rows, seconds, strict=True)]
    scale = [max((row[i] for row in relative), default=0.0) or 1.0 for i in range(unknowns)]
    relative = [tuple(value / largest for value, largest in zip(row, scale, strict=True)) for row in relative]
    least, best = float(len(relative)), (0.0,) * unknowns
    for count in range(1, min(unknowns, len(relative)) + 1):
        for columns in combinations(range(unknowns), count):
            factors = _solve(
                [[sum(row[i] * row[j] for row in relative) for j in columns] for i in columns],
                [sum(row[i] for row in relative) for i in columns],
            )
            if factors is None or min(factors) < 0:
                continue
            error = sum((sum(f * row[i] for f, i in zip(factors, columns, strict=True)) - 1) ** 2 for row in relative)
            if error < least:
                solution = dict(zip(columns, factors, strict=True))
                least, best = error, tuple(solution.get(i, 0.0) / scale[i] for i in range(unknowns))
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """The solution of a few linear equations by Gauss's elimination; None where there is not one."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(len(rows)):
        pivot = max(range(i, len(rows)), key=lambda row_number: abs(rows[row_number][i]))
        if abs(rows[pivot][i]) < 1e-12:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in range(len(rows)):
            if j != i:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[-1] for row in rows]
