"""A tape of sharded weights: FSDP's gathers and reductions at the edges of modules, in the order of `fully_shard`.

What happens, and when buffers are freed, follows torch 2.13's own source (torch/distributed/fsdp/_fully_shard:
FSDPParamGroup.unshard, wait_for_unshard, reshard, pre_backward, post_backward; _fsdp_collectives.foreach_all_gather
and foreach_reduce). Bytes are counted in the order in which the program asks for them. On a GPU that is what
`torch.cuda.memory_allocated` counts too; what an allocator reserves beyond it, because the streams of compute and of
communication do not share freed blocks, is not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from scaleout.memory.tape import KINDS as PLAIN
from scaleout.memory.tape import Tape
from scaleout.spec.sharding import DTYPES, Sharding, Unit

# What FSDP adds: whole parameters, what its collectives read and write, and whole gradients before they are reduced.
KINDS = (*PLAIN, "gathered", "buffers", "whole gradients")

NOTHING = float("-inf")  # less than any sum of bytes; what is left out of a walk is put in later (fsdp_stretch.py)


@dataclass(frozen=True)
class Moment:
    """A stretch of a step, at its fullest instant.

    phase: "forward", "loss", "backward" or "update". unit: the name of the one at work, "" for the root. activity:
    "gather", "compute" or "reduce". held: bytes on the device by kind. gathered: names of the units that are whole.
    """

    phase: str
    unit: str
    activity: str
    held: dict[str, int]
    gathered: tuple[str, ...]

    @cached_property
    def bytes(self) -> int:
        return sum(self.held.values())


@dataclass(frozen=True)
class Widths:
    """Bytes of one number: stored (shards, their gradients), gathered and computed in, and reduced in."""

    stored: int
    parameter: int
    reduce: int

    @classmethod
    def from_sharding(cls, stored: int, sharding: Sharding) -> Widths:
        """What `MixedPrecisionPolicy` makes of shards of `stored` bytes per number. fp32 means that nothing is cast;
        gradients are made in the dtype that was gathered, and reduced in it unless the policy says otherwise."""
        mixed = sharding.parameter != "fp32" or sharding.reduce != "fp32"
        parameter = min(stored, DTYPES[sharding.parameter])
        return cls(stored, parameter, DTYPES[sharding.reduce] if mixed else parameter)


@dataclass
class Group:
    """A unit as it goes through a step; bytes of its messages and of what they become."""

    unit: Unit
    widths: Widths
    sharding: Sharding
    times: int = 1  # how often the model has it, where one stands for several
    forward_prefetch: tuple[str, ...] = ()  # units gathered when its forward begins
    backward_prefetch: tuple[str, ...] = ()  # and when its backward begins
    placement: str = "sharded"  # or "whole", or "kept": resharded over fewer ranks
    state: str = "idle"  # "forward", "backward", "reduced"
    pending: bool = False  # gathered, and not yet copied out
    gathers: dict[int, int] = field(default_factory=dict)  # all-gathers so far, by the ranks they are among

    def __post_init__(self) -> None:
        ranks, w = self.sharding.ranks, self.widths
        self.root = self.unit.name == ""
        self.shard = self.unit.shard(ranks)
        self.whole = self.shard * ranks * w.parameter
        self.kept = self.whole // (1 if self.root else self.sharding.kept_ranks)
        self.gradient = self.unit.parameters * w.parameter
        # a name in foreach_reduce's loop keeps the last gradient until it returns; one rank alone has no such loop
        self.last = prod(self.unit.tensors[-1][1]) * w.parameter if ranks > 1 else 0
        self.reduce_in, self.reduce_out = self.shard * ranks * w.reduce, self.shard * w.reduce
        self.largest = max(-(-rows // ranks) * row_elements for rows, row_elements, _ in self.unit.rows)


class FsdpTape(Tape):
    """A Tape whose modules are gathered before they run. `moments` grows by one at every change of what is done.

    on_cuda: buffers of a gather in the forward live until the next gather is copied out, so that the copies of two
    units can overlap, and offloaded shards lie in the host's memory. On a CPU neither is so.
    """

    def __init__(self, groups: dict[str, Group], sharding: Sharding, on_cuda: bool, accumulates: bool) -> None:
        super().__init__(KINDS)
        self.groups, self.sharding, self.on_cuda, self.accumulates = groups, sharding, on_cuda, accumulates
        self.moments: list[Moment] = []
        self._outermost: str | None = None  # unit whose forward holds the others'; in a recomputation any can be it
        self._whole: dict[str, None] = {}
        self._deferred = self._reduced = 0  # bytes of a gather's output, and of a reduction's input, not yet freed
        self._open, self._most = ("forward", "", "compute"), NOTHING
        self._snapshot: tuple[dict[str, int], tuple[str, ...]] = (dict(self.held), ())
        self._look()
        self._used = False

    # --- time ---------------------------------------------------------------------------------------------------

    def begin(self, phase: str | None, unit: str, activity: str) -> None:
        """Another thing is done from here on; the one before is closed."""
        opened = (phase or self._open[0], unit, activity)
        if opened == self._open:
            return
        if self._used:
            self.close()
        self._open, self._most = opened, NOTHING
        self._look()
        self._used = False

    def close(self) -> None:
        """Write the moment that is open."""
        self.moments.append(Moment(*self._open, *self._snapshot))

    def enter(self, moment: str) -> None:
        """Begin the phase that belongs to this moment of a plain tape."""
        phase = {"forward": "forward", "loss": "loss", "optimizer": "update"}.get(moment, "backward")
        self.begin(phase, "", "compute")

    def hold(self, kind: str, *amounts: int) -> None:
        """As a plain tape, which looks each time; a step holds a thousand times, so here it is done at once."""
        n = sum(amounts)
        self.held[kind] += n
        self.total += n
        self._used = True
        if self.total > self._most:
            self._most, self._snapshot = self.total, (self.held.copy(), tuple(self._whole))

    def _look(self) -> None:
        self._used = True
        if self.total > self._most:
            self._most, self._snapshot = self.total, (dict(self.held), tuple(self._whole))

    @property
    def backwards(self) -> bool:
        return self._open[0] == "backward"

    def _group(self, module: str) -> Group | None:
        return self.groups.get(f"{self.inside}.{module}" if self.inside and module else self.inside or module)

    # --- modules ------------------------------------------------------------------------------------------------

    def pre_forward(self, module: str) -> None:
        group = self._group(module)
        if group is None:
            return
        if group.state == "backward":  # recomputed after its backward began: it is whole, or becomes so
            self._gather(group, forward=False)
            return
        self._outermost = group.unit.name if self._outermost is None else self._outermost
        group.state = "forward"
        self._gather(group, forward=True)
        for name in group.forward_prefetch:
            self._unshard(self.groups[name])
        self.begin(None, group.unit.name, "compute")

    def post_forward(self, module: str) -> None:
        group = self._group(module)
        if group is None or group.state == "backward":
            return
        if not self.backwards and not group.root and self.sharding.reshard is not False:
            if self.sharding.reshard is not True:
                self.hold("gathered", group.kept)
            self._free(group, "sharded" if self.sharding.reshard is True else "kept")
        group.state = "idle"
        if self._outermost == group.unit.name:
            self._release()
            self._outermost = None

    def pre_backward(self, module: str) -> None:
        group = self._group(module)
        if group is None or group.state == "backward":
            return
        group.state = "backward"
        self._gather(group, forward=False)
        for name in group.backward_prefetch:
            self._unshard(self.groups[name])
        self.begin(None if group.root else "backward", group.unit.name, "compute")

    def post_backward(self, module: str) -> None:
        """Whole gradients become a shard. The input of the reduction before this one is freed first."""
        group = self._group(module)
        if group is None or group.state == "reduced":
            return
        inner = self._open
        group.state = "reduced"
        self.begin("backward", group.unit.name, "reduce")
        self._free(group, "sharded")
        self.drop("buffers", self._reduced)
        self._reduced = group.reduce_in
        self.hold("buffers", group.reduce_in)
        self.drop("whole gradients", group.gradient - group.last)
        self._keep_shard(group)
        self.drop("whole gradients", group.last)
        if inner[1] != group.unit.name:
            self.begin(*inner)

    def finish(self) -> None:
        """The backward is over: units whose inputs need no gradient are reduced now, the root first."""
        self.inside, self._outermost = "", None
        for name in sorted(self.groups):
            if self.groups[name].state != "reduced":
                self.post_backward(name)
        for group in self.groups.values():
            deferred = group.reduce_out if self._reduces_late(group) else 0
            unused = group.whole if group.pending and self._ranks(group) > 1 else 0  # gathered for nobody
            self.drop("buffers", group.times * (deferred + unused))
        self.drop("buffers", self._reduced)
        self._reduced = 0

    # --- collectives --------------------------------------------------------------------------------------------

    def _gather(self, group: Group, forward: bool) -> None:
        """All-gather, unless that has begun, and copy out."""
        if group.placement == "whole" and not group.pending:
            return
        self.begin(None, group.unit.name, "gather")
        self._unshard(group)
        alone = self._ranks(group) == 1
        self.hold("gathered", group.whole)
        if forward:
            self._release()  # torch has a name for it until the copy is done
        if alone:
            cast = group.widths.parameter != group.widths.stored
            self.passing("gathered", group.largest * group.widths.parameter if cast else 0)
        elif forward and self.on_cuda:
            self._deferred = group.whole
        else:
            self.drop("buffers", group.whole)
        group.pending = False
        if group.placement == "kept":
            self.drop("gathered", group.kept)
        group.placement = "whole"
        self._whole[group.unit.name] = None
        self._look()

    def _unshard(self, group: Group) -> None:
        """The all-gather. Its input is a cast or a copy of the shards, or, of fp32 ones, a part of its output."""
        if group.pending or group.placement == "whole":
            return
        group.pending = True
        ranks = self._ranks(group)
        if ranks == 1:
            return
        group.gathers[ranks] = group.gathers.get(ranks, 0) + 1
        w, elements = group.widths, group.shard * self.sharding.ranks // ranks
        cast = elements * w.parameter if w.parameter != w.stored else 0
        if self.sharding.offload and group.placement == "kept":
            cast = 0
        moved = elements * w.stored if self.sharding.offload and self.on_cuda and group.placement == "sharded" else 0
        self.hold("buffers", cast, moved, group.whole)
        self.drop("buffers", cast, moved)

    def _ranks(self, group: Group) -> int:
        return self.sharding.kept_ranks if group.placement == "kept" else self.sharding.ranks

    def _release(self) -> None:
        self.drop("buffers", self._deferred)
        self._deferred = 0

    def _free(self, group: Group, placement: str) -> None:
        if group.placement == "whole":
            self.drop("gathered", group.whole)
            self._whole.pop(group.unit.name, None)
        group.placement = placement

    def _reduces_late(self, group: Group) -> bool:
        """Hybrid sharding holds what it all-reduces until the backward ends, beside gradients that are other tensors:
        in another dtype, or there already."""
        separate = self.accumulates or group.widths.reduce != group.widths.stored
        return self.sharding.replicas > 1 and separate

    def _keep_shard(self, group: Group) -> None:
        """What the reduction gives, in the dtype of the shards, is the gradient, or is added to the one there is."""
        w, shard_bytes = group.widths, group.shard * group.widths.stored
        cast = shard_bytes if w.reduce != w.stored else 0
        self.hold("buffers", group.reduce_out)
        self.hold("buffers", cast)
        deferred = group.reduce_out if self._reduces_late(group) else 0
        self.drop("buffers", group.reduce_out - deferred, cast)
        if not self.accumulates and not (self.sharding.offload and self.on_cuda):
            self.hold("gradients", shard_bytes)
        self._look()
