"""Fusion measured: three chains of operations, one operation at a time, in chunks that stay in the cache, and compiled.

A kernel per operation reads its input from memory and writes its result there. A fused chain reads once and writes
once. It gains where the bytes take the time, and nothing where the arithmetic does. Seconds are predicted from a copy
through memory and from each operation on numbers that lie in the cache, both measured in the same rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from scaleout.measure.kernels_attention import in_turn, repeated
from scaleout.parallel import private

CHUNK = 2**15  # elements: 128 KB in fp32, so that input and output fit the second cache of a core
REPEATED = 64  # calls of an operation in a chunk that are one sample
LONG = 10  # operations of the two chains
WAYS = ("eager", "chunks", "compiled")


@dataclass(frozen=True)
class Chain:
    """operations: one after the other, each on the result of the one before. square: on a square matrix, whose side is
    the root of the elements; the first operation is then a matrix multiplication."""

    words: str
    operations: tuple[Callable[[Tensor], Tensor], ...]
    square: bool = False

    def run(self, x: Tensor) -> Tensor:
        for operation in self.operations:
            x = operation(x)
        return x


def scaled(x):
    return x * 0.99


def shifted(x):
    return x + 0.01


def squared_by_weight(x):
    """x times a square matrix of its width, the same in every call."""
    return x @ weight(x.shape[-1], x.device)


_weights: dict = {}


def weight(side, device):
    """A square matrix, made once."""
    key = side, str(device)
    if key not in _weights:
        chance = torch.Generator(device).manual_seed(1)
        _weights[key] = torch.randn(side, side, generator=chance, device=device) / side**0.5
    return _weights[key]


CHAINS = {
    "cheap": Chain(f"{LONG} multiplies and adds", (scaled, shifted) * (LONG // 2)),
    "tangents": Chain(f"{LONG} tanh", (torch.tanh,) * LONG),
    "matmul": Chain("matmul, then ReLU", (squared_by_weight, torch.relu), square=True),
}


def in_chunks(chain, x):
    """The chain on a chunk at a time, all operations before the next chunk: by hand what a fused kernel does."""
    out, rows = torch.empty_like(x), max(1, CHUNK // (x.numel() // len(x)))
    for first in range(0, len(x), rows):
        out[first : first + rows] = chain.run(x[first : first + rows])
    return out


def inputs(chain, elements, device):
    """The chain's input: so many normal numbers in fp32, or a square matrix of a sixteenth of them: its multiplications
    grow with the cube of its side."""
    chance = torch.Generator(device).manual_seed(0)
    side = max(1, int(elements**0.5) // 4)
    if chain.square:
        weight(side, device)  # made now: a generator inside a compiled function would break its graph
    return torch.randn((side, side) if chain.square else (elements,), generator=chance, device=device)


def ways(chain, x):
    """{way: work} of a chain on x, uncompiled. Chunks are for the caches of a CPU: on a GPU their launches would cost
    more than they save, and a matrix multiplication has chunks of its own."""
    works = {"eager": lambda: chain.run(x)}
    if x.device.type == "cpu" and not chain.square:
        works["chunks"] = lambda: in_chunks(chain, x)
    return works


def measure(s, o, names, compiles):
    """({(chain, way): [seconds]}, {(chain, way): predicted seconds}, {(chain, way): error to eager}, [failures])."""
    chains = {name: (CHAINS[name], inputs(CHAINS[name], o.elements, s.device)) for name in names}
    works = {(name, way): work for name, pair in chains.items() for way, work in ways(*pair).items()}
    chunk, largest = torch.randn(CHUNK, device=s.device), chains[names[0]][1]
    rates = {("chunk", op): repeated(partial(op, chunk), REPEATED) for op in (scaled, shifted, torch.tanh, torch.relu)}
    rates["copy"] = lambda: largest + 1.0
    rates |= {("matmul", n): partial(squared_by_weight, x) for n, (chain, x) in chains.items() if chain.square}
    fused, failed = compiled(chains) if compiles else ({}, [])
    works = {(name, way): (works | fused)[name, way] for name in names for way in WAYS if (name, way) in works | fused}
    times = in_turn(s, works | rates, o.rounds, "fusion")
    spent = {name: statistics.median(times[name]) for name in rates}
    memory = spent["copy"] / largest.numel()  # seconds of an element, read and written
    expected = {(name, way): predicted(*chains[name], way, spent, memory) for name, way in works}
    return (
        {key: times[key] for key in works},
        expected,
        {key: error(chains[key[0]], works[key]) for key in works},
        failed,
    )


def compiled(chains):
    """({(chain, "compiled"): work}, [what could not be compiled, and why]). fullgraph: a chain of which
    torch would silently run parts uncompiled is an error."""
    works, failed = {}, []
    for name, (chain, x) in chains.items():
        work = partial(torch.compile(chain.run, fullgraph=True), x)
        try:
            work()
        except private.DynamoError as problem:
            failed.append(f"{chain.words}, compiled: {str(problem).strip().splitlines()[0]}")
        else:
            works[name, "compiled"] = work
    return works, failed


def error(pair, work):
    """Largest difference of a work's result to the chain's own, relative to its largest number (float)."""
    chain, x = pair
    right = chain.run(x)
    return ((work() - right).abs().max() / right.abs().max()).item()


def predicted(chain, x, way, spent, memory):
    """Seconds of a chain: each operation takes its bytes or its arithmetic, whichever is longer. Fused, the bytes are
    paid once. In a compiled kernel an operation takes nothing but its arithmetic, in chunks what it takes in the cache.

    spent: seconds of REPEATED calls in a chunk by ("chunk", operation), and of the whole matrix multiplication. memory:
    seconds in which an element is read and written."""
    elements, whole = x.numel(), 0.0
    own = {op: spent["chunk", op] / REPEATED / CHUNK for op in chain.operations if ("chunk", op) in spent}
    if chain.square:
        whole = next(seconds for name, seconds in spent.items() if name[0] == "matmul")
    each = [own[op] for op in chain.operations if op in own]
    if x.device.type == "cuda":  # a chunk there is all launch: only bytes are priced
        each = [0.0] * len(each)
    if way == "eager":
        return whole + elements * sum(max(memory, seconds) for seconds in each)
    if way == "compiled":
        least = min(spent["chunk", op] for op in (scaled, shifted)) / REPEATED / CHUNK  # what the cache takes
        each = [max(0.0, seconds - least) for seconds in each]
    once = 0.0 if chain.square and way == "compiled" else memory
    return whole + elements * max(once, sum(each))
