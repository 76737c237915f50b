"""The measurement with which the memory model is compared: the memory that torch allocates in one training step.

Three views of the same step of the book's transformer, so that the truth is checked too: the book's own `Ledger`
(by kind and moment), torch's `MemTracker` (the peak), and what the CPU allocator reports to torch's profiler (the
peak, with kernels' scratch space and without). Tensors can be real, or fake: with a size and no contents, so that a 70B
model needs no memory.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from scaleout.measure.ledger import watch
from scaleout.memory.accounts import Account, Recipe
from scaleout.parallel import private
from scaleout.parallel.recipe import Training, local_bytes, optimizer_tensors
from scaleout.spec.transformer import Shape, check_positions, check_run


@dataclass(frozen=True)
class Measured(Account):
    """An Account of what was allocated.

    others: the peak in bytes as seen by "MemTracker", where asked for. timeline: bytes by kind after each operation,
    as (moment, operation, kinds), where asked for. loss: of the step, None with fake tensors.
    """

    others: dict[str, int] = field(default_factory=dict)
    timeline: list[tuple[str, str, dict[str, int]]] = field(default_factory=list)
    loss: float | None = None


def fake_tensors(fake: bool = True):
    """A context in which tensors have no contents and take no memory, where `fake`."""
    return private.FakeTensorMode() if fake else contextlib.nullcontext()


class Step:
    """One training step, ready to run: `training` has its optimizer's state, tokens and targets are (b, s)."""

    def __init__(self, shape: Shape, batch: int, seq: int, recipe: Recipe, device: str) -> None:
        check_run(batch, seq)
        check_positions(shape, seq)
        self.training = Training(shape, recipe, device)
        self.training.warm_up()
        self.tokens, self.targets = (torch.randint(shape.vocab, (batch, seq), device=device) for _ in range(2))

    def states(self) -> dict[str, int]:
        """Bytes of weights, master copies, gradients and optimizer state."""
        training = self.training
        kinds = {
            "weights": training.model.parameters(),
            "master": training.masters,
            "gradients": training.trained,
            "optimizer": optimizer_tensors(training.optimizer),
        }
        return {kind: local_bytes(tensors) for kind, tensors in kinds.items()}

    def run(self, at_optimizer=lambda: None) -> torch.Tensor:
        """Forward, backward, update. `at_optimizer` is called before the last."""
        loss = self.training.loss(self.tokens, self.targets)
        loss.backward()
        at_optimizer()
        self.training.step()
        return loss.detach()


def measure(
    shape: Shape,
    batch: int,
    seq: int,
    recipe: Recipe | None = None,
    fake: bool = True,
    timeline: bool = False,
    mem_tracker: bool = False,
    device: str = "cpu",
) -> Measured:
    """Bytes by kind at each moment of one training step on batch x seq tokens, as torch allocates them.

    It is not the first step: the optimizer's state exists. fake: measure without computing, at no cost of memory
    (on device "cpu" only). Raises ValueError for sizes or recipes that torch cannot run.
    """
    if fake and device != "cpu":
        raise ValueError(f"fake tensors are measured on device cpu, not {device}: use fake=False there")
    recipe = recipe or Recipe()
    with fake_tensors(fake):
        step = Step(shape, batch, seq, recipe, device)
        tracker = private.MemTracker() if mem_tracker else contextlib.nullcontext()
        if mem_tracker:
            tracker.track_external(step.training.model, step.training.optimizer, step.tokens, step.targets)
            tracker.track_external(*step.training.masters)
        with tracker, watch(step.training, step.tokens, step.targets, timeline=timeline) as ledger:
            loss = step.run(lambda: ledger.enter("optimizer"))
        seen = {"MemTracker": total(tracker, device)} if mem_tracker else {}
    return Measured(
        ledger.moments, step.states(), others=seen, timeline=ledger.timeline or [], loss=None if fake else loss.item()
    )


def total(mem_tracker, device: str) -> int:
    """Peak bytes that a MemTracker of torch's saw."""
    return mem_tracker.get_tracker_snapshot("peak")[torch.device(device)]["Total"]


class Peaks(NamedTuple):
    """Peak bytes of a step. tensors: of what is still there when the operation that allocated it is done, which is what
    an account is of. whole: with the scratch space too that kernels take and give back within one operation."""

    tensors: int
    whole: int


def allocator_peak(shape: Shape, batch: int, seq: int, recipe: Recipe) -> Peaks:
    """Peak bytes of one training step on a CPU as its allocator reports them to the profiler, plus what was
    allocated before: states, kept gradients, the batch.

    `whole` depends on the processor and on torch.get_num_threads(): attention takes a buffer for each thread, and so
    does oneDNN for a 16-bit product where the instructions for one are there (AMX, AVX512_BF16). `tensors` does not.
    """
    step = Step(shape, batch, seq, recipe, "cpu")
    resident = step.states()
    if recipe.gradients == "fresh":
        resident["gradients"] = 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = step.run()
    del loss
    resident_bytes = sum(resident.values()) + step.tokens.nbytes + step.targets.nbytes
    events = allocations(seen)
    return Peaks(
        *(
            resident_bytes + max(accumulate(size for size, scratch in events if keep or not scratch))
            for keep in (False, True)
        )
    )


def allocations(seen: profile) -> list[tuple[int, bool]]:
    """(bytes, whether it is scratch) of everything that was allocated, above 0, and freed, below, in order of time."""
    events, operations, live = [], {}, {}
    waiting = [(event, None) for event in seen.profiler.kineto_results.experimental_event_tree()]
    while waiting:  # each event with the operation that it happened in, None between operations
        event, operation = waiting.pop()
        if event.tag == private.EventType.Allocation:
            events.append(event)
            operations[event.id] = operation
        elif operation is None and event.tag == private.EventType.TorchOp and _has_kernel(event.name):
            operation = event.id
        waiting += [(child, operation) for child in event.children]
    events.sort(key=lambda event: event.start_time_ns)
    scratch = set()
    for event in events:
        address = event.extra_fields.ptr
        if event.extra_fields.alloc_size > 0:
            live[address] = event.id
        elif (first := live.pop(address, None)) is not None and operations[first] == operations[event.id] is not None:
            scratch |= {first, event.id}
    return [(event.extra_fields.alloc_size, event.id in scratch) for event in events]


@cache
def _has_kernel(name: str) -> bool:
    """Whether an event of the profiler is an operation that runs as one: not a step of autograd, and not a name for
    several operations, as aten::linear is."""
    overloads = [overload for overload in private.operation_names() if overload.split(".")[0] == name]
    return bool(overloads) and not any(
        private.has_kernel(overload, "CompositeImplicitAutograd") for overload in overloads
    )
