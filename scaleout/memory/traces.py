"""A step of transformers' modules on a tape: a few layers are simulated, and what they allocate is played for all.

Layers of one kind are alike, so of those behind the first, one of each kind is simulated (`transformers.Model`). What
it writes is kept in parts, by layer, in the forward and in the backward, and these are played onto the tape of a plain
step (walk.py) or of sharded weights (fsdp.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from scaleout.memory.activations import Sizes, block_kept, copies_kept
from scaleout.memory.graph import Graph
from scaleout.memory.liger import Liger
from scaleout.memory.lit_gpt import LitGpt
from scaleout.memory.tape import Event, Recorder, Tape
from scaleout.memory.transformers import Model
from scaleout.spec.blocks import Kind, has_experts, window_of
from scaleout.spec.layout import Layout
from scaleout.spec.transformer import Shape

MODELS: dict[str, type[Model]] = {"transformers": Model, "liger": Liger, "lit-gpt": LitGpt}


class Part(NamedTuple):
    """A part of a step. net: bytes by kind that are there after it and were not before; gradients: of them, weights'
    gradients that were completed."""

    events: tuple[Event, ...]
    net: dict[str, int]
    gradients: int


def _part(events: Sequence[Event]) -> Part:
    net: dict[str, int] = {}
    gradients = 0
    for what, kind, size in events:
        if what in ("hold", "drop"):
            net[kind] = net.get(kind, 0) + (size if what == "hold" else -size)
        elif what == "gradient":
            gradients += size
    net["temporaries"] = net.get("temporaries", 0) - gradients
    return Part(tuple(events), {kind: size for kind, size in net.items() if size}, gradients)


def layer_kinds(shape: Shape, seq: int) -> tuple[Kind, ...]:
    """The kind of each layer: with a window that is shorter than the sequence, or without; with experts, or not."""
    features = shape.features
    if features.experts is None and (features.window is None or features.window > seq):
        return (Kind(1),) * shape.layers
    windows = [window_of(shape, i) for i in range(shape.layers)]
    return tuple(
        Kind(1, None if window is None or window > seq else window, has_experts(shape, i))
        for i, window in enumerate(windows)
    )


class Steps:
    """A step of one micro-batch, in parts."""

    def __init__(self, z: Sizes) -> None:
        self.layers = layer_kinds(z.shape, z.seq)[: z.chunk_layers]
        others = tuple(dict.fromkeys(self.layers[1:]))
        self.simulated = {kind: i + 1 for i, kind in enumerate(others)}
        self.parts = _recorded(_alike(z), (self.layers[0], *others), z.copied or z.frozen)

    def __getitem__(self, part: Hashable) -> Part:
        return self.parts[part]

    def layer(self, phase: str, i: int) -> Part:
        """Layer i in the "forward" or the "backward"."""
        return self.parts[phase, self.simulated[self.layers[i]] if i else 0]

    def after(self, i: int) -> Part | None:
        """What is freed when the backward of layer i is over, if it is the first of a window that layer 0 has not."""
        windows = [kind.window for kind in self.layers]
        return self.parts.get(("shared", windows[i])) if windows.index(windows[i]) == i else None

    def kept(self, kind: str) -> int:
        """Bytes of a kind that the layers keep between forward and backward."""
        return sum(self.layer("forward", i).net.get(kind, 0) for i in range(len(self.layers)))


def block_bytes(z: Sizes) -> tuple[int, int, int]:
    """Bytes that one block saves: activations, and autocast's copies of weights, until the forward ends and after it.
    Where layers differ, the mean of those behind the second."""
    how = z.recipe.checkpointing
    if not z.transformers:
        return sum(block_kept(z, how).values()), copies_kept(z, "none"), copies_kept(z, how)
    steps = Steps(z)
    inner = range(min(2, len(steps.layers) - 1), len(steps.layers))
    saved = [steps.layer("forward", i).net for i in inner]
    cleared = [steps.layer("cast", i).net.get("weights", 0) for i in inner]
    activations, copies = (sum(net.get(kind, 0) for net in saved) // len(inner) for kind in ("activations", "weights"))
    return activations, copies, copies + sum(cleared) // len(inner)


# A pipeline and a rank of it, by whether the rank has the token table, and whether it has the head.
_AS = {(True, True): (1, 0), (True, False): (2, 0), (False, True): (2, 1), (False, False): (3, 1)}


def _alike(z: Sizes) -> Sizes:
    """One for all ranks and recipes whose steps of a micro-batch are the same."""
    pp, stage = _AS[z.first, z.last]
    recipe = replace(
        z.recipe, optimizer="sgd", foreach=True, fused_update=False, paged=False, activation_offload=False,
        gradients="fresh", main_gradients="none", buckets="none",
    )  # fmt: skip
    return Sizes(replace(z.shape, layers=pp), z.batch, z.seq, recipe, Layout(tp=z.layout.tp, pp=pp), stage)


@lru_cache(maxsize=256)
def _recorded(z: Sizes, layers: tuple[Kind, ...], copies: bool) -> dict[Hashable, Part]:
    tape = Recorder()
    graph = Graph(tape, z.recipe.autocast, copies)
    model = MODELS[z.recipe.operations](z, graph, layers)
    result = model.forward()
    tape.mark("loss")
    node, size = result.node, result.bytes
    assert node is not None
    del result
    graph.backward(node, size)
    tape.parts.setdefault("finish", [])
    for window, storages in model.shared.items():
        tape.mark(("shared", window))
        storages.clear()
    return {part: _part(events) for part, events in tape.parts.items()}


def nothing(n: int) -> None:
    """In the forward no gradient is completed."""


def play(part: Part, tape: Tape, keep: Callable[[int], None] = nothing) -> None:
    """What happens in a part happens on this tape. keep: a weight's gradient of so many bytes is complete."""
    for what, name, size in part.events:
        if what == "hold":
            tape.hold(name, size)
        elif what == "drop":
            tape.drop(name, size)
        elif what == "gradient":
            tape.drop("temporaries", size)
            keep(size)
        else:
            getattr(tape, what)(name)


def leave(part: Part, tape: Tape, keep: Callable[[int], None] = nothing) -> None:
    """What a part leaves, without what it has in passing."""
    for kind, size in sorted(part.net.items(), key=lambda item: item[1]):
        if size < 0:
            tape.drop(kind, -size)
        else:
            tape.hold(kind, size)
    keep(part.gradients)
