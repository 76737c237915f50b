"""Activation checkpointing by hand: a part of the model that saves only its input and runs again in its backward, and
one that also saves the outputs of some operations, which then do not run again.

Chen et al. 2016 (arXiv 1604.06174). torch's own is `torch.utils.checkpoint`; recompute_ways.py has both behind one
surface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager

import torch
from torch import Tensor

from scaleout.parallel import private
from scaleout.spec.transformer import Shape

Run = Callable[[Tensor], Tensor]


class Again(torch.autograd.Function):
    """run(x), of which only x is saved. random: draw the same random numbers in the second run as in the first."""

    @staticmethod
    def forward(ctx, x: Tensor, run: Run, random: bool) -> Tensor:
        ctx.run, ctx.place = run, Place(x, random)
        ctx.save_for_backward(x)
        return run(x)  # records no graph

    @staticmethod
    def backward(ctx, gradient: Tensor):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), ctx.place.once_more():
            out = ctx.run(x)
        torch.autograd.backward(out, gradient)  # fills .grad of the weights
        return x.grad, None, None


class Place:
    """What a run depends on besides its input: the random state, and whether autocast is on."""

    def __init__(self, x: Tensor, random: bool) -> None:
        self.device, self.random = x.device.type, random
        self.gpus = [x.device] if x.is_cuda else []
        self.states = torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in self.gpus)
        self.cast = torch.is_autocast_enabled(self.device), torch.get_autocast_dtype(self.device)

    @contextmanager
    def once_more(self):
        """Restores both for a second run, and the caller's random state after it."""
        on, dtype = self.cast
        with torch.random.fork_rng(self.gpus, self.random), torch.autocast(self.device, dtype, enabled=on):
            if self.random:
                torch.set_rng_state(self.states[0])
                for gpu, state in zip(self.gpus, self.states[1:], strict=True):
                    torch.cuda.set_rng_state(state, gpu)
            yield


def checkpoint(run: Run, x: Tensor, random: bool = True) -> Tensor:
    """run(x), (b, s, h) -> (b, s, h), recomputed in the backward. ValueError for an x that needs no gradient: the
    weights in run would silently get none."""
    if torch.is_grad_enabled() and not x.requires_grad:
        raise ValueError(
            "the input needs no gradient, so the weights behind it would get none: checkpoint a later "
            "block, or call x.requires_grad_() first"
        )
    return Again.apply(x, run, random)


def repeats(run: Run, x: Tensor, random: bool = True) -> bool:
    """Whether a second run returns the same bits as the first, which torch does not check. State that run changes is
    changed."""
    with torch.no_grad():
        place, first = Place(x, random), run(x)
        with place.once_more():
            return torch.equal(first, run(x))


# --- selective ------------------------------------------------------------------------------------------------------


class Remember(private.TorchDispatchMode):
    """Stores the outputs of the named operations, in the order in which they run. Works below autograd, where it sees
    every operation."""

    def __init__(self, named: Names, keep: Iterable[str]) -> None:
        super().__init__()
        self.named, self.keep, self.book = named, keep, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = self.named(func, args)
        out = func(*args, **(kwargs or {}))
        if name in self.keep:
            self.book[name] = out if isinstance(out, tuple) else (out,)
        return out


class Recall(private.TorchDispatchMode):
    """Returns the stored output instead of running the operation. To autograd it looks as if it had run."""

    def __init__(self, named: Names, book: dict[str, tuple]) -> None:
        super().__init__()
        self.named, self.book = named, book

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = self.named(func, args)
        if name not in self.book:
            return func(*args, **(kwargs or {}))
        out = tuple(x.detach() if isinstance(x, Tensor) else x for x in self.book.pop(name))
        return out if len(out) > 1 else out[0]


class Partly(torch.autograd.Function):
    """Like `Again`, but the operations in `keep` run only once. names() returns a new `Names`."""

    @staticmethod
    def forward(ctx, x: Tensor, run: Run, names: Callable[[], Names], keep: Iterable[str]) -> Tensor:
        ctx.run, ctx.names, ctx.place = run, names, Place(x, True)
        ctx.save_for_backward(x)
        with Remember(names(), keep) as mode:
            output = run(x)
        ctx.book = mode.book
        return output

    @staticmethod
    def backward(ctx, gradient: Tensor):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), ctx.place.once_more(), Recall(ctx.names(), ctx.book):
            output = ctx.run(x)
        torch.autograd.backward(output, gradient)
        return x.grad, None, None, None


def selective(run: Run, x: Tensor, names: Callable[[], Names], keep: Iterable[str]) -> Tensor:
    """run(x), one block of the book's transformer, that saves x and the outputs of the operations named in `keep`."""
    return Partly.apply(x, run, names, frozenset(keep))


class Names:
    """Which saved tensor of a block (memory/recompute.py) a torch operation computes, by how often its kind has run.

    A tensor has a name here if one operation computes it: not the output of the book's RMS norm, nor a mask of dropout
    over the stream. "middle" is the output of attention's projection; one addition then gives the residual stream.
    """

    def __init__(self, shape: Shape, attention: str = "sdpa") -> None:
        inner = ["gate", "up"] if shape.gated_mlp else ["up"]
        naive, relaid = attention == "naive", shape.positions == "rotary" and shape.heads > 1
        self.width = shape.h_ff
        self.left = {
            "product": ["q", "k", "v", "middle", *inner],
            "attention": ["attention"],
            "bmm": ["", "attention"],
            "_softmax": ["scores"],
            "native_dropout": ["dropped scores"] * naive,
            "gelu": ["GELU"],
            "silu": ["SiLU"],
            "native_layer_norm": ["norm 1", "norm 2"],
            "clone": ["copy"] * (relaid and not naive),
            "mul": ["product"],
        }

    def __call__(self, func, args) -> str:
        """The tensor's name, "" where it has none."""
        kind = func.overloadpacket.__name__
        if kind == "mul" and not (args[0].shape[-1] == self.width and args[0].shape == getattr(args[1], "shape", 0)):
            return ""
        kind = "product" if kind in ("mm", "addmm") else "attention" if "scaled_dot_product" in kind else kind
        return self.left[kind].pop(0) if self.left.get(kind) else ""
