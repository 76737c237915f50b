"""Time the kernels of a model one by one: linear layers, attention, memory-bound kernels, updates.

All ranks work at once, and every kernel is sampled in every round, so that a machine that is slow for a while is slow
for all of them. Where a rank computes with one thread of a CPU, kernels are timed by what that thread computed, and all
are then longer by what the rounds took beside it: ranks that share a core take turns, in a step too, and a sample of a
few milliseconds has either a turn or none. What a model's seconds are made of these is `timing.calibrated`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scaleout.lab.text import progress
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import Shape
from scaleout.timing.passes import GELU, STREAM

ROUNDS = 5
SAMPLE, LONGEST = 0.05, 0.02  # of the time given for a number, and seconds at most
MOST_CALLS = 200  # of a sample
CACHES = 16e6  # bytes of weights that are no longer in a core's cache when their turn comes again
# Bytes of results and gradients at once: more than a core's cache has, as a model's; on a GPU many calls in its queue
# hide what starting each takes.
COPIES_BYTES = {"cpu": 20e6, "cuda": 1e9}
SMALL, SLIVER = 48, 64  # tensors, and elements of each, by which an optimizer's time for each tensor is seen
LARGE = (1, 1, 1, 1, 4, 4) * 2  # and of the model's own sizes, two blocks: elements by the square of its width
TINY = {"hidden": 16, "heads": 2, "vocab": 16, "max_seq": 4}  # a model that computes next to nothing
WHOLE = {"layers": 2, "vocab": 256}  # a model of the sizes at which kernels are timed, to be timed whole
DEEP = 8  # its blocks, beside a model of one: what the host takes for each
Clock = Callable[[], float]
WIDTH = 4  # bytes: all but matrix multiplications and attention is timed in fp32


@dataclass
class Kernel:
    """Something to time. forward(inputs): its result, of which the gradients of all inputs are taken; without inputs
    it has no backward. facts: what a profile says of it. cold: inputs of which each call has a copy of its own, as a
    layer has its weights; row: calls whose results are held at once; calls: of a sample."""

    kind: tuple[str, ...]
    facts: dict
    forward: Callable[..., Tensor | None]
    inputs: tuple[Tensor, ...] = ()
    cold: tuple[Tensor, ...] = ()
    copies: list[list[Tensor]] = field(default_factory=list)
    row: int = 1
    calls: int = 1
    samples: list[tuple[float, float]] = field(default_factory=list)

    def sample(self, clock: Clock, calls: int) -> tuple[float, float]:
        """Seconds of a call, forward and backward, the mean of so many."""
        pairs = [self.together(clock, first, min(self.row, calls - first)) for first in range(0, calls, self.row)]
        return tuple(sum(column) / calls for column in zip(*pairs, strict=True))

    def together(self, clock: Clock, first: int, calls: int) -> tuple[float, float]:
        """Seconds of a row of calls. Each has inputs of its own, so that no gradients are added up; all backwards are
        one, as those of a model's layers are."""
        if self.cold and not self.copies:
            count = int(CACHES // sum(x.nbytes for x in self.cold)) + 1
            self.copies = [[x.clone() for x in self.cold] for _ in range(min(MOST_CALLS, count))]
        calls_inputs = [
            [x.detach().requires_grad_() for x in (*self.inputs, *self._copy(first + i))] for i in range(calls)
        ]
        start = clock()
        outputs = [self.forward(*inputs) for inputs in calls_inputs]
        forward = clock() - start
        if not calls_inputs[0]:
            return forward, 0.0
        ones = [torch.ones_like(outputs[0])] * calls
        start = clock()
        torch.autograd.grad(outputs, [x for inputs in calls_inputs for x in inputs], ones)
        return forward, clock() - start

    def _copy(self, call: int) -> list[Tensor]:
        return self.copies[call % len(self.copies)] if self.copies else []


@dataclass
class Host(Kernel):
    """A whole model of blocks that compute next to nothing: forward with the loss, and backward."""

    def together(self, clock: Clock, first: int, calls: int) -> tuple[float, float]:
        model, (tokens,), spent = self.forward, self.inputs, [0.0, 0.0]
        for _ in range(calls):
            start = clock()
            loss = model(tokens, tokens)
            middle = clock()
            loss.backward()
            spent = [spent[0] + middle - start, spent[1] + clock() - middle]
            for p in model.parameters():
                p.grad = None
        return spent[0], spent[1]


@dataclass(frozen=True)
class Sizes:
    """Of the model around which kernels are timed: tokens of a micro-batch and of a sequence, widths of the stream and
    of a head."""

    tokens: int
    hidden: int
    seq: int
    head: int

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(tokens, width): these, and fewer of each."""
        fewer, thin = max(1, self.tokens // 8), max(8, self.hidden * 2 // 5 // 8 * 8)
        return [(tokens, hidden) for tokens in (self.tokens, fewer) for hidden in (self.hidden, thin)]


def linears(s, sizes: Sizes, name: str, dtype: torch.dtype) -> Iterator[Kernel]:
    """Linear layers with a bias, square ones and those into the MLP."""
    for rows, depth in sizes.pairs:
        for columns in (depth, 4 * depth):
            layer = nn.Linear(depth, columns, device=s.device, dtype=dtype)
            x = torch.randn(rows, depth, device=s.device, dtype=dtype)
            yield Kernel(
                ("matmul", name),
                {"rows": rows, "columns": columns, "depth": depth},
                F.linear,
                (x,),
                (layer.weight.detach(), layer.bias.detach()),
            )


def attentions(s, sizes: Sizes, name: str, dtype: torch.dtype) -> Iterator[Kernel]:
    """Fused causal attention, heads taken out of the stream and put back."""
    for tokens in (sizes.tokens, max(1, sizes.tokens // 8)):
        for seq in sorted({min(sizes.seq, tokens), max(1, min(sizes.seq, tokens) // 4)}):
            for head in sorted({sizes.head, max(1, sizes.head // 4)}):
                batch, heads = tokens // seq, max(1, sizes.hidden // head)
                qkv = [torch.randn(batch, seq, heads * head, device=s.device, dtype=dtype) for _ in range(3)]
                yield Kernel(
                    ("attention", name),
                    {"queries": batch * heads * seq, "seq": seq, "head": head},
                    partial(_attention, head),
                    tuple(qkv),
                )


def _attention(head: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    split = [x.view(*x.shape[:2], -1, head).transpose(1, 2) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2)


def moves(s, sizes: Sizes) -> Iterator[Kernel]:
    """A norm with its residual sum, and the MLP's activation: what else a block does, in bytes as `timing.compute`
    counts them."""
    for tokens, hidden in sizes.pairs:
        stream = WIDTH * tokens * hidden
        norm = nn.LayerNorm(hidden, device=s.device)
        x = torch.randn(tokens, hidden, device=s.device)
        wide = torch.randn(tokens, 4 * hidden, device=s.device)
        yield Kernel(
            ("moved",),
            {"kernels": 2, "bytes": [passes * stream for passes in STREAM]},
            _normed,
            (x, norm.weight, norm.bias),
        )
        yield Kernel(("moved",), {"kernels": 1, "bytes": [passes * 4 * stream for passes in GELU]}, F.gelu, (wide,))


def _normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x + F.layer_norm(x, weight.shape, weight, bias)


def updates(s, sizes: Sizes) -> Iterator[Kernel]:
    """AdamW of many small tensors and of a few of the model's size, all at once and one by one."""
    for counts in ([SLIVER] * SMALL, [times * sizes.hidden**2 for times in LARGE]):
        for name, foreach in (("foreach", True), ("single", False)):
            parameters = [nn.Parameter(torch.randn(elements, device=s.device)) for elements in counts]
            for p in parameters:
                p.grad = torch.randn_like(p)
            optimizer = torch.optim.AdamW(parameters, foreach=foreach)
            yield Kernel(("update", name), {"tensors": len(counts), "parameters": sum(counts)}, optimizer.step)


def hosts(s) -> Iterator[Kernel]:
    """What the host takes for a block, and for a model's two ends."""
    for layers in (1, DEEP):
        with s.device:
            tokens = torch.zeros(1, TINY["max_seq"], dtype=torch.long)
            yield Host(("host",), {"layers": layers}, Transformer(Shape(layers, **TINY)), (tokens,))


def wholes(s, sizes: Sizes) -> Iterator[Kernel]:
    """Models of the sizes at which their kernels are timed."""
    for tokens, hidden in sizes.pairs:
        seq = min(sizes.seq, tokens)
        facts = WHOLE | {"hidden": hidden, "heads": max(1, hidden // sizes.head), "max_seq": seq}
        with s.device:
            batch = torch.zeros(tokens // seq, seq, dtype=torch.long)
            yield Host(("whole",), facts | {"batch": len(batch)}, Transformer(Shape(**facts)), (batch,))


def measure(s, sizes: Sizes, dtypes: dict[str, torch.dtype], seconds: float) -> dict:
    """What a profile has as `kernels`. dtypes: of matrix multiplications and attention, by name. seconds: about so many
    for each kernel in all."""
    kernels = [*hosts(s), *wholes(s, sizes), *moves(s, sizes), *updates(s, sizes)]
    for name, dtype in dtypes.items():
        kernels += [*linears(s, sizes, name, dtype), *attentions(s, sizes, name, dtype)]
    alone = s.device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if alone else s.clock
    for kernel in kernels:
        kernel.sample(clock, 1)  # allocation, choice of kernels, an optimizer's states
        size = sum(x.nbytes for x in (*kernel.inputs, *kernel.cold))
        kernel.row = int(min(MOST_CALLS, max(1, COPIES_BYTES[s.device.type] // size))) if size else 1
        spent = s.largest(sum(kernel.sample(clock, 1)))
        kernel.calls = int(s.largest(max(1, min(MOST_CALLS, min(SAMPLE * seconds, LONGEST) / max(spent, 1e-7)))))
    elapsed = computed = 0.0
    for _ in progress(range(ROUNDS), "kernels", s.main):
        s.barrier()  # and none between kernels: who has just waited is first on a core that others want too
        begun = s.clock(), clock()
        for kernel in kernels:
            kernel.samples.append(kernel.sample(clock, kernel.calls))
        elapsed, computed = elapsed + s.clock() - begun[0], computed + clock() - begun[1]
    return collected(s, kernels, elapsed / computed)


def collected(s, kernels: list[Kernel], longer: float) -> dict:
    """Medians, the slowest rank's, sorted by kind. longer: how many times what this rank computed its rounds took."""
    tables: dict = {"matmul": {}, "attention": {}, "moved": [], "update": {}, "host": [], "whole": []}
    for kernel in kernels:
        forward, backward = (
            s.largest(longer * statistics.median(column)) for column in zip(*kernel.samples, strict=True)
        )
        kind, *name = kernel.kind
        if kind == "moved":
            tables[kind] += [
                {
                    "kernels": (1 + phase) * kernel.facts["kernels"],
                    "bytes": kernel.facts["bytes"][phase],
                    "seconds": spent,
                }
                for phase, spent in enumerate((forward, backward))
            ]
            continue
        spent = {"seconds": forward} if kind == "update" else {"forward": forward, "backward": backward}
        rows = tables[kind].setdefault(name[0], []) if name else tables[kind]
        rows.append(kernel.facts | spent)
    return tables
