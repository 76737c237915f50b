"""Kernels of attention measured side by side: errors against fp64, saved bytes, seconds, each with its prediction.

Seconds are predicted from rates that the same rounds measure: of batched matrix multiplications, of a softmax inside
the caches, of copies, and of one tile by hand. A GPU whose units the book knows is predicted from its clocks
(`timing.kernels`) where a kernel is fused.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from scaleout.lab.text import progress
from scaleout.measure.recompute import saved
from scaleout.memory.activations import Sizes, core_kept
from scaleout.parallel import kernels, private
from scaleout.parallel.kernels_ways import KERNELS, differentiable
from scaleout.parallel.low import DTYPES
from scaleout.spec.devices import reported_as
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape
from scaleout.timing import kernels as clocks

# By which an output or a gradient may differ from fp64's, relative to its largest number. Half a unit in the last place
# is 6e-8 in fp32, 4.9e-4 in fp16 and 3.9e-3 in bf16, relative. Operands, probabilities, the output and the gradient of
# the scores are each rounded once, so 16 bits are off by a few such halves; fp32 also adds s terms in another order.
TOLERANCES = {"fp32": 1e-5, "fp16": 3e-3, "bf16": 2e-2}
# How often kernels without a matrix multiplication read or write all scores: naive attention scales them, masks them
# and takes the softmax; its backward goes back through the same three.
PASSES = {"forward": 6, "backward": 7}
PHASES = ("forward", "step")  # step: forward and backward
IN_CACHE, CALLS = (64, 512), 8  # scores of the softmax that is timed, 128 KB in fp32, and its calls in a sample
MALLOC, KEPT = (-1, -3), 2**30  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of mallopt(3), and their value in bytes
COPIED = 2**28  # numbers of the copy that is timed, at most; fewer where the largest size has fewer scores


def draw(s, o, seq, head, dtype, heads=None) -> list[Tensor]:
    """Q, K and V, (b, a, s, d), normal numbers, the same in every run; this rank's heads, or so many."""
    chance = torch.Generator(s.device).manual_seed(o.seed)
    shape = (3, o.batch, heads or o.heads, seq, head)
    mine = torch.randn(shape, generator=chance, device=s.device)
    if heads is None:
        mine = mine.chunk(s.world, dim=2)[s.rank]
    # each a tensor of its own: saved bytes are counted by storage
    return [x.to(DTYPES[dtype], copy=True).contiguous().requires_grad_() for x in mine]


# --- the same numbers? ------------------------------------------------------------------------------------------------


def gradients(run, qkv, mask, upstream):
    """(output, [gradient of q, of k, of v]), the gradients None where the output has none."""
    out = run(*qkv, kernels.MASKS[mask])
    return out, list(torch.autograd.grad(out, qkv, upstream.to(out.dtype))) if out.requires_grad else None


def exact(qkv, mask):
    """What naive attention gives in fp64, and the gradient that it was given: (output, gradients, upstream)."""
    wide = [x.detach().double().requires_grad_() for x in qkv]
    chance = torch.Generator(wide[0].device).manual_seed(1)
    upstream = torch.randn(wide[0].shape, generator=chance, device=wide[0].device, dtype=torch.float64)
    return *gradients(kernels.naive, wide, mask, upstream), upstream


def distance(found, right):
    """Largest difference of two tensors over the largest number of the right one (float)."""
    return ((found.double() - right).abs().max() / right.abs().max()).item()


def errors(run, qkv, mask, right):
    """(error of the output, largest error of a gradient or None). right: of `exact`."""
    out, grads, upstream = right
    found, found_grads = gradients(run, qkv, mask, upstream)
    backward = found_grads and max(distance(a, b) for a, b in zip(found_grads, grads, strict=True))
    return distance(found, out), backward


# --- saved bytes ------------------------------------------------------------------------------------------------------


def saved_bytes(run, qkv, mask):
    """Bytes that autograd saves of one call, Q, K and V included."""
    return saved(lambda inputs: run(*inputs, kernels.MASKS[mask]), qkv, nn.Identity())


def predicted_bytes(kind, batch, heads, seq, head, width, mask):
    """The same by the memory room (`memory.activations`); None where a compiler decides it."""
    shape = Shape(1, heads * head, heads, 2, max_seq=seq)
    z = Sizes(shape, batch, seq, Recipe("fp32" if width == 4 else "bf16", attention="naive"), Layout())
    if kind == "compiled":
        return None
    if kind == "recomputed":
        return 3 * z.q
    if kind == "math":  # in fp32 whatever it is given, and no mask
        return (3 * z.q + z.scores) * 4 // width
    if kind == "naive":  # the output is the next layer's input, which saves it
        return core_kept(z) - z.q - (mask == "none") * seq**2
    copied = width * seq**2 if kind == "fused" and mask not in ("none", "causal") else 0  # booleans become numbers
    return 3 * z.q + z.q + z.lse + copied


# --- seconds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """What this machine reaches. matmul: FLOP/s by head size; scores: scores per second of a softmax inside the caches;
    memory: bytes/s; tile: seconds of a tile by hand, by (head size, phase)."""

    matmul: dict[int, float]
    scores: float
    memory: float
    tile: dict[tuple[int, str], float]


def keep_freed_memory():
    """Let glibc keep memory that a tensor has freed for the next one, as torch does on a GPU: otherwise it may return
    the memory to the system and take it again page by page, which can be most of a short kernel's time. Other C
    libraries are left as they are."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return
    for parameter in MALLOC:
        mallopt(parameter, KEPT)


def in_turn(s, works, rounds, label):
    """{name: [seconds]} of one call of each work, all of them in every round, there and back; the slowest rank's. Where
    a rank computes with one thread of a CPU they are seconds of that thread, so that waiting for a core is not in them.
    """
    alone = s.device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if alone else s.clock
    for work in works.values():
        work()  # allocation, choice of kernels, compilation
    times = {name: [] for name in works}
    for turn in progress(range(rounds), label, s.main):
        for name in list(works)[:: 1 if turn % 2 == 0 else -1]:
            s.barrier()
            start = clock()
            works[name]()
            times[name].append(s.largest(clock() - start))
    return times


def repeated(work, times):
    """So many calls of a work, each result gone before the next: one that is kept would push others out of a cache."""

    def run():
        for _ in range(times):
            work()

    return run


def forward(run, qkv, mask):
    """One forward, nothing saved."""
    with torch.no_grad():
        run(*qkv, mask)


def step(run, qkv, mask):
    """A forward and a backward."""
    out = run(*qkv, mask)
    torch.autograd.grad(out, qkv, out.detach())


def calls(name, qkv, mask):
    """{phase: work} of a kernel; forward alone where it has no backward here."""
    run, mask = KERNELS[name].run, kernels.MASKS[mask]
    works = {"forward": partial(forward, run, qkv, mask)}
    if differentiable(name, qkv[0].device):
        works["step"] = partial(step, run, qkv, mask)
    return works


class Bench:
    """Kernels `names` on the sequences and head sizes of the options: batch, heads, lengths, head_dims, precision,
    mask, tile, rounds, seed. heads: of all ranks, each of which has its share."""

    def __init__(self, s, o, names):
        self.s, self.o, self.names = s, o, names
        self.heads = o.heads // s.world
        self.width = DTYPES[o.precision].itemsize
        self.failed = {}  # (name, seq, head): why

    def calibrations(self):
        """{name: work} of the rates, and the size that each is timed at: FLOPs, scores, bytes, tiles."""
        s, o, works, sizes = self.s, self.o, {}, {}
        seq = max(o.lengths) // 2
        for head in o.head_dims:
            q, k, _ = (x.detach() for x in draw(s, o, seq, head, o.precision))
            works["matmul", head] = partial(torch.matmul, q, k.mT)
            sizes["matmul", head] = 2 * o.batch * self.heads * seq**2 * head
            qkv = draw(s, o, 2 * o.tile, head, o.precision)  # three tiles of four under a causal mask
            run = partial(kernels.tiled, tile=o.tile)
            works["tile", head, "forward"] = partial(forward, run, qkv, kernels.causal)
            works["tile", head, "step"] = partial(step, run, qkv, kernels.causal)
        scores = torch.randn(IN_CACHE, device=s.device, dtype=DTYPES[o.precision])
        largest = o.batch * self.heads * max(o.lengths) ** 2
        copied = torch.zeros(min(COPIED, largest), device=s.device, dtype=DTYPES[o.precision])
        works["scores"], sizes["scores"] = repeated(partial(scores.softmax, -1), CALLS), CALLS * scores.numel()
        works["memory"], sizes["memory"] = lambda: copied + 1.0, 2 * copied.nbytes
        return works, sizes

    def run(self):
        """{(name, seq, head, phase): [seconds]} of all kernels in turn, and the Rates of the same rounds."""
        o, measured = self.o, {}
        works, sizes = self.calibrations()
        times = in_turn(self.s, works, o.rounds, "rates")
        for seq in o.lengths:
            for head in o.head_dims:
                qkv = draw(self.s, o, seq, head, o.precision)
                these = {(n, seq, head, phase): w for n in self.names for phase, w in self.able(n, qkv).items()}
                measured |= in_turn(self.s, these, o.rounds, f"{seq} tokens, heads of {head}")
        spent = {name: statistics.median(samples) for name, samples in times.items()}
        rates = Rates(
            {head: sizes["matmul", head] / spent["matmul", head] for head in o.head_dims},
            sizes["scores"] / spent["scores"],
            sizes["memory"] / spent["memory"],
            {(head, phase): spent["tile", head, phase] / 3 for head in o.head_dims for phase in PHASES},
        )
        return measured, rates

    def able(self, name, qkv):
        """{phase: work} of a kernel; empty where it runs out of memory or cannot be compiled, and why in `failed`."""
        works = calls(name, qkv, self.o.mask)
        try:
            for work in works.values():
                work()
        except (torch.OutOfMemoryError, private.DynamoError) as error:
            where = name, qkv[0].shape[-2], qkv[0].shape[-1]
            self.failed[where] = str(error).strip().splitlines()[0].split(".")[0]
            works = {}
        return works if self.s.agree(bool(works)) else {}

    def saved(self):
        """{(name, seq, head): (predicted, measured)} bytes of every kernel with a backward."""
        o, rows = self.o, {}
        for seq in o.lengths:
            for head in o.head_dims:
                qkv = draw(self.s, o, seq, head, o.precision)
                for name in (n for n in self.names if differentiable(n, self.s.device)):
                    if (name, seq, head) in self.failed:
                        continue
                    sizes = o.batch, self.heads, seq, head, self.width, o.mask
                    measured = saved_bytes(KERNELS[name].run, qkv, o.mask)
                    rows[name, seq, head] = predicted_bytes(KERNELS[name].kind, *sizes), measured
        return rows

    def predicted(self, rates, name, seq, head, phase):
        """Seconds of a kernel; None where nothing here says them."""
        o, kind = self.o, KERNELS[name].kind
        if kind == "tiled":
            return self.tiles(seq) * rates.tile[head, phase]
        if kind in ("naive", "recomputed"):
            seconds = self.naive(rates, seq, head, phase)
            return seconds + (self.naive(rates, seq, head, "forward") if (kind, phase) == ("recomputed", "step") else 0)
        if kind != "fused" or not differentiable(name, self.s.device):
            return None
        chip = chip_of(self.s.device)
        if chip and self.width == 2 and o.mask in ("none", "causal"):
            a = clocks.Attention(seq, head, o.batch * self.heads, o.mask == "causal")
            seconds = [clocks.seconds(chip, a, direction) for direction in clocks.DIRECTIONS]
            return seconds[0] if phase == "forward" else sum(seconds)
        times = 1 if phase == "forward" else 2  # scores are made again in the backward
        matmuls = sum(clocks.MATMULS["fused"][direction] for direction in clocks.DIRECTIONS[:times])
        return self.arithmetic(rates, seq, head, matmuls, times) * (0.5 if o.mask == "causal" else 1.0)

    def arithmetic(self, rates, seq, head, matmuls, softmaxes):
        """Seconds of so many matrix multiplications and softmaxes over all scores."""
        scores = self.o.batch * self.heads * seq**2
        return matmuls * 2 * scores * head / rates.matmul[head] + softmaxes * scores / rates.scores

    def naive(self, rates, seq, head, phase):
        """Seconds of naive attention: its arithmetic, and its scores through memory, one kernel after the other."""
        directions = clocks.DIRECTIONS[: 1 if phase == "forward" else 2]
        matmuls = sum(clocks.MATMULS["naive"][direction] for direction in directions)
        passes = sum(PASSES[direction] for direction in directions)
        moved = passes * self.width * self.o.batch * self.heads * seq**2
        return self.arithmetic(rates, seq, head, matmuls, 1) + moved / rates.memory

    def tiles(self, seq):
        """Tiles that the mask leaves to the kernel by hand."""
        mask, tile = kernels.MASKS[self.o.mask], self.o.tile
        nothing = torch.zeros(1, 1, seq, 1)
        return sum(1 for _ in kernels.tiles(nothing, nothing, mask, tile))


def chip_of(device):
    """The generation (timing.kernels.Chip) of a GPU; None of a CPU, or of a GPU that the book does not know."""
    row = reported_as(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    chips = {chip.device.architecture: chip for chip in (clocks.GENERATIONS[name] for name in ("a100", "h100", "b200"))}
    return row and chips.get(row.architecture)
