"""One forward and backward under FSDP2, stream by stream: when each gather may start, and what each waits for.

The rules are those of torch's `fully_shard` (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, torch 2.13), on
a device whose streams run on their own and whose CPU has issued everything in time. `scaleout.timing.fsdp` has the
step that is made of such passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scaleout.timing.fsdp_plan import Plan

# Token ids need no gradient, so that autograd never tells the units they enter that backward is done with them: torch
# reduces these in its last callback.
LATE = ("", "tokens")

Span = tuple[str, str, float, float, int, int]  # lane, name, start, end, piece, unit


@dataclass(frozen=True)
class Wires:
    """Seconds by bytes of each collective, and how the units are handled; see `timing.fsdp.fsdp_step`."""

    gather: Callable[[float], float]
    scatter: Callable[[float], float]
    across: Callable[[float], float] | None
    copy: Callable[[float], float] | None
    regather: Callable[[float], float] | None
    keep: bool  # reshard=False: units stay whole after forward
    keep_root: bool
    forward_ahead: int
    backward_ahead: int
    overlap: bool
    contention: float


@dataclass
class Run:
    """A pass in the making. Times are seconds after its start; `now` is where the compute stream stands.

    gate: what the gather stream waits for next. torch makes it wait until a unit has been copied out of the buffer of
    an earlier gather, which is what bounds how many units are whole. one: the communicator of gathers and
    reduce-scatters, which works on one at a time (`set_separate_reduce_scatter_group` says so).
    """

    plan: Plan
    wires: Wires
    sync: bool
    now: float = 0.0
    gate: float = 0.0
    gathers_free: float = 0.0
    one_free: float = 0.0
    reduce_free: float = 0.0
    scattered: float = 0.0  # end of the last reduce-scatter, without what follows it
    across_free: float = 0.0
    in_free: float = 0.0
    out_free: float = 0.0
    spans: list[Span] = field(default_factory=list)
    busy: list[tuple[float, float]] = field(default_factory=list)  # on the wire, not before the running compute
    waits: dict[str, float] = field(default_factory=lambda: {"gather": 0.0, "reduce": 0.0})
    whole: dict[int, float] = field(default_factory=dict)  # by unit that is gathered or on its way: when it is whole
    left: dict[int, float] = field(default_factory=dict)  # by unit: the end of its forward

    def run(self) -> Run:
        """Forward, backward, and the wait for what is on its way."""
        self._forward()
        self._backward()
        for stream in (self.gathers_free, self.reduce_free, self.across_free, self.out_free):
            self._wait(stream, "reduce")
        return self

    def _forward(self) -> None:
        ahead, units = self._ahead(self.wires.forward_ahead), len(self.plan.names)
        opens, closes, *_ = self.plan.order.edges
        for unit in range(min(ahead + 1, units) if ahead else 0):
            self._gather(unit)
        for i, piece in enumerate(self.plan.pieces):
            for unit in opens.get(i, ()):
                if not ahead:
                    self.gate = self.now
                    self._gather(unit)
                self._open(unit)
                if ahead and unit + ahead + 1 < units:
                    self._gather(unit + ahead + 1)
            self._compute("forward", i, piece.forward_seconds)
            for unit in closes.get(i, ()):
                self.left[unit] = self.now

    def _backward(self) -> None:
        plan, ahead = self.plan, self._ahead(self.wires.backward_ahead)
        at = {unit: position for position, unit in enumerate(plan.backward)}
        *_, opens, closes = plan.order.edges
        kept = {u for u, name in enumerate(plan.names) if self.wires.keep or (not name and self.wires.keep_root)}
        self.whole = {unit: self.whole[unit] for unit in kept if unit in self.whole}
        for i in reversed(range(len(plan.pieces))):
            for unit in opens.get(i, ()):
                if unit not in self.whole:
                    self.gate = self.gate if ahead else self.now
                    self._gather(unit, again=True)
                self._open(unit, gathered=unit not in kept)
                for other in plan.backward[at[unit] + 1 : at[unit] + 1 + ahead]:
                    if other not in self.whole:
                        self._gather(other, again=True)
            self._recompute(plan.recomputed.get(i, range(0)))
            self._compute("backward", i, plan.pieces[i].backward_seconds)
            for unit in closes.get(i, ()):
                if plan.names[unit] not in LATE:
                    self._reduce(unit)
        for unit, name in enumerate(plan.names):
            if name in LATE:
                self._reduce(unit)

    def _recompute(self, rows: range) -> None:
        """The forward of a block once more, with gathers ahead as in forward. What it gathers stays for backward."""
        units = list(dict.fromkeys(self.plan.piece_unit[i] for i in rows))
        missing, ahead = [u for u in units if u not in self.whole], self._ahead(self.wires.forward_ahead)
        for unit in missing[: ahead + 1] if ahead else ():
            self._gather(unit, again=True)
        for i in rows:
            unit = self.plan.piece_unit[i]
            if unit in units:
                units.remove(unit)
                if unit not in self.whole:
                    self.gate = self.now
                    self._gather(unit, again=True)
                self._open(unit, gathered=unit in missing)
                rest = missing[missing.index(unit) + ahead + 1 :][:1] if ahead and unit in missing else ()
                for other in rest:
                    self._gather(other, again=True)
            self._compute("recompute", i, self.plan.pieces[i].recompute_seconds)

    def _ahead(self, wanted: int) -> int:
        return wanted if self.wires.overlap else 0

    def _open(self, unit: int, gathered: bool = True) -> None:
        """The compute stream waits until the unit is whole; from then on the next gather may use its buffer."""
        self._wait(self.whole.get(unit, 0.0), "gather")
        if gathered:
            self.gate = max(self.gate, self.now)

    def _gather(self, unit: int, again: bool = False) -> None:
        wires, work = self.wires, self.plan.bytes[unit]
        self.whole[unit] = 0.0
        if not (work.gather_bytes or wires.copy):
            return
        start = max(self.gate, self.gathers_free)
        small = again and wires.regather is not None and bool(self.plan.names[unit])
        if small:  # from shards that the forward left on the device, in a group with a communicator of its own
            start = max(start, self.left[unit])
            end = start + wires.regather(work.gather_bytes)
        else:
            if wires.copy is not None:
                self.in_free = self._put(
                    "copy in", "copy in", max(self.gate, self.in_free), wires.copy(work.host_bytes), unit
                )
                start = max(start, self.in_free)
            start = max(start, self.one_free)
            end = start + (wires.gather(work.gather_bytes) if work.gather_bytes else 0.0)
            self.one_free = max(self.one_free, end)
        self.gathers_free = self._put("gather", "gather again" if again else "gather", start, end - start, unit)
        self.whole[unit] = end

    def _reduce(self, unit: int) -> None:
        wires, work = self.wires, self.plan.bytes[unit]
        if not (self.sync and (work.reduce_bytes or wires.across or wires.copy)):
            return
        # One buffer of gradients is kept, so that compute waits for the reduce-scatter before this one
        self._wait(self.scattered, "reduce")
        start = max(self.now, self.reduce_free, self.one_free)
        seconds = wires.scatter(work.reduce_bytes) if work.reduce_bytes else 0.0
        end = self._put("reduce", "reduce-scatter", start, seconds, unit)
        self.scattered = self.one_free = self.reduce_free = end
        if wires.across is not None:
            end = self._put("across", "all-reduce", max(end, self.across_free), wires.across(work.shard_bytes), unit)
            self.across_free = end
        if wires.copy is not None:
            end = self._put("copy out", "copy out", max(end, self.out_free), wires.copy(work.host_bytes), unit)
            self.out_free = end
            if wires.across is None:  # the copy is on the stream of the reduce-scatters, and they wait for it
                self.reduce_free = end
            else:
                self.across_free = end
        if not wires.overlap:
            self._wait(end, "reduce")

    def _wait(self, until: float, why: str) -> None:
        if until > self.now:
            self.waits[why] += until - self.now
            self.now = until

    def _put(self, lane: str, name: str, start: float, seconds: float, unit: int) -> float:
        """An event of communication; returns its end."""
        end = start + seconds
        if seconds > 0:
            self.spans.append((lane, f"{name} {self.plan.names[unit] or 'root'}", start, end, -1, unit))
            if self.wires.contention and not lane.startswith("copy"):  # a copy is a DMA engine's, not the cores'
                self.busy.append((start, end))
        return end

    def _compute(self, name: str, i: int, seconds: float) -> None:
        if seconds <= 0:
            return
        start, self.now = self.now, self._worked(seconds)
        unit = self.plan.piece_unit[i]
        self.spans.append(("compute", f"{name} {self.plan.names[unit] or 'root'}", start, self.now, i, unit))

    def _worked(self, work: float) -> float:
        """When `work` seconds of compute that begin now are done. What has been issued is all that can disturb them:
        the next gather waits for the next unit's start, and a reduce-scatter for this one's end."""
        speed, at = 1 - self.wires.contention, self.now
        self.busy = sorted([span for span in self.busy if span[1] > at])
        for start, end in self.busy:
            if start - at >= work:
                break
            if start > at:
                work, at = work - (start - at), start
            if end > at:
                done = (end - at) * speed
                if work < done:
                    return at + work / speed
                work, at = work - done, end
        return at + work
