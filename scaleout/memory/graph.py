"""Autograd without contents: operations that allocate, save and free as torch's do, written on a tape.

A model's forward is written as its modules are, in Python, on tensors that have a size and no values. CPython counts
references as torch does, so that a tensor is freed here at the line at which torch would free it: when the last local
name, the last operation that saved it and the last gradient that is the same storage are gone. `Graph.backward` then
walks the operations as torch's engine does (torch/csrc/autograd/engine.cpp, 2.13).

What a kernel allocates and gives back within one operation is not here, nor what an allocator rounds up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from scaleout.memory.tape import Recorder

PASSED, REDUCED = 0, -1
LAST = float("inf")  # the number of a leaf: its gradient is kept as soon as it is there


class Storage:
    """Bytes on a tape, freed when the last name for them is gone."""

    __slots__ = ("kind", "size", "tape")

    def __init__(self, tape: Recorder, kind: str, size: int) -> None:
        self.tape, self.kind, self.size = tape, kind, size
        tape.hold(kind, size)

    def __del__(self) -> None:
        self.tape.drop(self.kind, self.size)


class Node:
    """An operation of the forward, as the backward needs it.

    number: its place in the forward; the backward runs from the highest. edges: for each input that needs a gradient
    (the node that made it, bytes of the gradient as the derivative's formula makes it, bytes once it has the input's
    shape and dtype); in place of the former PASSED where the gradient of the output is passed on, or a part of it, and
    REDUCED where it is then summed or cast. views: whether the gradient is a view, to which autograd adds in a new
    tensor. scratch: bytes beside, for the time of the formula. overwrites: its gradients take the place of what it
    saved. parts: whether the gradients that arrive are of different parts of its output. saved: storages, or for an
    operation of a checkpointed function where they will be. event: what else happens when its gradient is there.
    """

    __slots__ = ("edges", "event", "frame", "number", "overwrites", "parts", "saved", "scratch", "views")

    def __init__(self, number: float, edges: Sequence[tuple[Node, int, int]] = ()) -> None:
        self.number, self.edges = number, edges
        self.saved: list[Any] = []
        self.frame: Frame | None = None
        self.event: Callable[[], None] | None = None
        self.scratch, self.views, self.parts, self.overwrites = 0, False, False, False


class Tensor:
    """A name for a storage: `count` numbers of `width` bytes, and the operation that made it, None for one without a
    gradient. Views share the storage. Weights have none: their bytes are counted with the states."""

    __slots__ = ("count", "node", "storage", "width")

    def __init__(self, storage: Storage | None, count: int, width: int, node: Node | None = None) -> None:
        self.storage, self.count, self.width, self.node = storage, count, width, node

    @property
    def bytes(self) -> int:
        return self.count * self.width


class Frame:
    """A checkpointed function: what it takes to run it again, and what that saves (torch/utils/checkpoint.py,
    `_CheckpointFrame`). It stops at the last tensor that the first run saved."""

    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.function, self.x = function, x
        self.saves = 0
        self.again: list[list[Storage | None]] = []


class Stop(Exception):
    """A function that runs again has saved all that is asked for."""


class Graph:
    """Operations on one tape. half: whether autocast is on; copies: whether it makes copies of weights, or finds
    weights that have been gathered in 16 bits."""

    def __init__(self, tape: Recorder, half: bool = False, copies: bool = True) -> None:
        self.tape, self.half, self.copies = tape, half, copies
        self.numbers = 0
        self.cache: list[Tensor] = []  # autocast's copies of weights, until its context ends
        self.frame: Frame | None = None
        self.again = False

    # --- tensors ------------------------------------------------------------------------------------------------

    def tensor(self, count: int, width: int, kind: str = "activations") -> Tensor:
        """A new tensor that needs no gradient."""
        return Tensor(Storage(self.tape, kind, count * width), count, width)

    def weight(self, count: int, width: int, trained: bool = True, shared: bool = False) -> Tensor:
        """A parameter. shared: used more than once, so that its gradient is complete when the backward ends."""
        return Tensor(None, count, width, Node(0 if shared else LAST) if trained else None)

    # --- operations ---------------------------------------------------------------------------------------------

    def apply(
        self,
        inputs: Sequence[Tensor],
        count: int,
        width: int,
        saved: Sequence[Tensor] = (),
        keeps: bool = False,
        beside: int = 0,
        firsts: Sequence[int | None] = (),
        scratch: int = 0,
        views: bool = False,
        kind: str = "activations",
    ) -> Tensor:
        """An operation that makes a tensor. saved: of what its derivative needs, the inputs. keeps: whether it saves
        its output too. beside: bytes of what it makes and saves beside that. firsts: for each input the bytes of its
        gradient as the formula makes it; None or missing: as many as the input has numbers, in the output's width."""
        edges = self._edges(inputs, width, firsts)
        node = self._node(edges, saved)
        extra = Storage(self.tape, kind, beside) if beside else None
        result = Tensor(Storage(self.tape, kind, count * width), count, width, node)
        if node is not None:
            node.scratch, node.views = scratch, views
            if keeps or extra:
                self._save(node, [result.storage if keeps else None, extra])
        return result

    @staticmethod
    def _edges(inputs: Sequence[Tensor], width: int, firsts: Sequence[int | None]) -> list[tuple[Node, int, int]]:
        edges = []
        for i, x in enumerate(inputs):
            if x.node is not None:
                first = firsts[i] if i < len(firsts) else None
                edges.append((x.node, x.count * width if first is None else first, x.count * x.width))
        return edges

    def part(self, x: Tensor, count: int) -> Tensor:
        """A slice of a tensor; its derivative makes a gradient of the whole, with zeros."""
        return Tensor(x.storage, count, x.width, self._node([(x.node, x.bytes, x.bytes)] if x.node else [], ()))

    def split(self, x: Tensor, *counts: int) -> list[Tensor]:
        """Slices that together are the tensor; their gradients are concatenated, once all are there."""
        if x.node is None:
            return [Tensor(x.storage, count, x.width) for count in counts]
        whole = self._node([(x.node, x.bytes, x.bytes)], ())
        assert whole is not None
        whole.parts = True
        return [Tensor(x.storage, count, x.width, self._node([(whole, PASSED, 0)], ())) for count in counts]

    def added_in_place(self, x: Tensor, other: Tensor) -> Tensor:
        """x += other."""
        edges = [(one.node, PASSED, one.bytes) for one in (x, other) if one.node]
        return Tensor(x.storage, x.count, x.width, self._node(edges, ()))

    def hook(self, x: Tensor, event: Callable[[], None]) -> Tensor:
        """The same tensor; `event` happens when its gradient is complete."""
        if x.node is None or self.again:
            return x
        node = self._node([(x.node, 0, x.bytes)], ())
        assert node is not None
        node.event = event
        return Tensor(x.storage, x.count, x.width, node)

    def received(self, count: int, width: int) -> Tensor:
        """A tensor from the stage before, to which its gradient is sent."""
        node = Node(0)
        node.event = lambda: None
        return Tensor(Storage(self.tape, "activations", count * width), count, width, node)

    def _node(self, edges: Sequence[tuple[Node, int, int]], saved: Sequence[Tensor]) -> Node | None:
        if not edges:
            return None
        self.numbers += 1
        node = Node(self.numbers, edges)
        if saved:
            self._save(node, [tensor.storage for tensor in saved])
        return node

    def _save(self, node: Node, storages: list[Storage | None]) -> None:
        frame = self.frame
        if frame is None:
            node.saved += storages
        elif not self.again:
            node.frame = frame
            node.saved.append(frame.saves)
            frame.saves += 1
        else:
            frame.again.append(storages)
            if len(frame.again) == frame.saves:
                raise Stop

    def checkpoint(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """function(x), of which nothing but x is saved (use_reentrant=False)."""
        self.frame = Frame(function, x)
        result = function(x)
        self.frame = None
        return result

    def _run_again(self, frame: Frame) -> None:
        numbers, cache = self.numbers, self.cache
        self.frame, self.again, self.cache = frame, True, []
        with contextlib.suppress(Stop):
            frame.function(frame.x)
        self.frame, self.again, self.numbers, self.cache = None, False, numbers, cache

    # --- backward -----------------------------------------------------------------------------------------------

    def backward(self, node: Node, size: int) -> None:
        """All gradients, from one of `size` bytes of what `node` has made; the graph is gone when it is done."""
        waiting: dict[Node, tuple[Any, bool]] = {node: (Storage(self.tape, "temporaries", size), False)}
        order = [(-node.number, node)]
        while order:
            node = heappop(order)[1]
            incoming = waiting.pop(node)[0]
            outgoing = self._step(node, incoming)
            del incoming
            edges, views = node.edges, node.views
            node.edges, node.saved, node.frame = (), [], None
            for target, _, _ in edges:
                self._give(target, outgoing.pop(0), views, waiting, order)

    def _step(self, node: Node, gradient: Storage) -> list[Any]:
        """The gradients that an operation's formula makes of its output's."""
        tape = self.tape
        if node.event is not None:
            node.event()
        elif not node.edges:
            self._kept(gradient)
        if node.frame is not None:
            self._take(node, node.frame)
        if node.overwrites:
            node.saved = []
        if node.scratch:
            tape.hold("temporaries", node.scratch)
        made = [Storage(tape, "temporaries", first) if first > 0 else gradient for _, first, _ in node.edges]
        if node.scratch:
            tape.drop("temporaries", node.scratch)
        if node.frame is not None:  # what was made again is the formula's alone, other savings end with the operation
            node.saved = []
        for i, (_, first, final) in enumerate(node.edges):
            if first not in (PASSED, final):
                made[i] = Storage(tape, "temporaries", final)
        return made

    def _take(self, node: Node, frame: Frame) -> None:
        """What an operation of a checkpointed function saves when that runs again: now it is the operation's alone."""
        if not frame.again:
            self._run_again(frame)
        slots, node.saved = node.saved, []
        for slot in slots:
            node.saved += frame.again[slot]
            frame.again[slot] = []

    def _give(
        self,
        node: Node,
        gradient: Storage,
        view: bool,
        waiting: dict[Node, tuple[Any, bool]],
        order: list[tuple[float, Node]],
    ) -> None:
        """A gradient arrives. Two are added in place of the first if nothing else is that storage, or has a view of
        it (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`)."""
        if node.number == LAST:
            self._kept(gradient)
            return
        if node not in waiting:
            waiting[node] = gradient, view
            heappush(order, (-node.number, node))
            return
        if node.parts:
            waiting[node] = (waiting[node][0], gradient), False
            return
        first, viewed = waiting.pop(node)
        size = gradient.size
        if not viewed:
            del first  # freed here, if it is the last name: the sum takes its place
        waiting[node] = Storage(self.tape, "temporaries", size), False

    def _kept(self, gradient: Storage) -> None:
        size, gradient.size = gradient.size, 0
        self.tape.gradient(size)
