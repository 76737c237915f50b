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
REDUCED_LAST = ("", "tokens")

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
    """A pass in the making. Times are seconds after its start; `time` is where the compute stream stands.

    gate: what the gather stream waits for next. torch makes it wait until a unit has been copied out of the buffer of
    an earlier gather, which is what bounds how many units are whole. one: the communicator of gathers and
    reduce-scatters, which works on one at a time (`set_separate_reduce_scatter_group` says so).
    """

    plan: Plan
    wires: Wires
    sync: bool
    time: float = 0.0
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
    whole_at: dict[int, float] = field(default_factory=dict)  # by unit that is gathered or on its way: when it is whole
    forward_ends: dict[int, float] = field(default_factory=dict)  # by unit: the end of its forward

    def run(self) -> Run:
        """Forward, backward, and the wait for what is on its way."""
        self._forward()
        self._backward()
        for stream in (self.gathers_free, self.reduce_free, self.across_free, self.out_free):
            self._wait(stream, "reduce")
        return self

    def _forward(self) -> None:
        prefetch, units = self._prefetch(self.wires.forward_ahead), len(self.plan.names)
        opens, closes, *_ = self.plan.order.edges
        for unit in range(min(prefetch + 1, units) if prefetch else 0):
            self._gather(unit)
        for i, piece in enumerate(self.plan.pieces):
            for unit in opens.get(i, ()):
                if not prefetch:
                    self.gate = self.time
                    self._gather(unit)
                self._open(unit)
                if prefetch and unit + prefetch + 1 < units:
                    self._gather(unit + prefetch + 1)
            self._compute("forward", i, piece.forward_seconds)
            for unit in closes.get(i, ()):
                self.forward_ends[unit] = self.time

    def _backward(self) -> None:
        plan, prefetch = self.plan, self._prefetch(self.wires.backward_ahead)
        order = {unit: position for position, unit in enumerate(plan.backward)}
        *_, opens, closes = plan.order.edges
        resident = {u for u, name in enumerate(plan.names) if self.wires.keep or (not name and self.wires.keep_root)}
        self.whole_at = {unit: self.whole_at[unit] for unit in resident if unit in self.whole_at}
        for i in reversed(range(len(plan.pieces))):
            for unit in opens.get(i, ()):
                if unit not in self.whole_at:
                    self.gate = self.gate if prefetch else self.time
                    self._gather(unit, regather=True)
                self._open(unit, gathered=unit not in resident)
                for following in plan.backward[order[unit] + 1 : order[unit] + 1 + prefetch]:
                    if following not in self.whole_at:
                        self._gather(following, regather=True)
            self._recompute(plan.recomputed.get(i))
            self._compute("backward", i, plan.pieces[i].backward_seconds)
            for unit in closes.get(i, ()):
                if plan.names[unit] not in REDUCED_LAST:
                    self._reduce(unit)
        for unit, name in enumerate(plan.names):
            if name in REDUCED_LAST:
                self._reduce(unit)

    def _recompute(self, rows: range | None) -> None:
        """The forward of a block once more, with gathers ahead as in forward. What it gathers stays for backward."""
        if rows is None:
            return
        units = list(dict.fromkeys(self.plan.piece_unit[i] for i in rows))
        missing, prefetch = [u for u in units if u not in self.whole_at], self._prefetch(self.wires.forward_ahead)
        for unit in missing[: prefetch + 1] if prefetch else ():
            self._gather(unit, regather=True)
        for i in rows:
            unit = self.plan.piece_unit[i]
            if unit in units:
                units.remove(unit)
                if unit not in self.whole_at:
                    self.gate = self.time
                    self._gather(unit, regather=True)
                self._open(unit, gathered=unit in missing)
                following = missing[missing.index(unit) + prefetch + 1 :][:1] if prefetch and unit in missing else ()
                for later_unit in following:
                    self._gather(later_unit, regather=True)
            self._compute("recompute", i, self.plan.pieces[i].recompute_seconds)

    def _prefetch(self, wanted: int) -> int:
        return wanted if self.wires.overlap else 0

    def _open(self, unit: int, gathered: bool = True) -> None:
        """The compute stream waits until the unit is whole; from then on the next gather may use its buffer."""
        self._wait(self.whole_at.get(unit, 0.0), "gather")
        if gathered and self.time > self.gate:
            self.gate = self.time

    def _gather(self, unit: int, regather: bool = False) -> None:
        wires, work = self.wires, self.plan.bytes[unit]
        self.whole_at[unit] = 0.0
        if not (work.gather_bytes or wires.copy):
            return
        start = max(self.gate, self.gathers_free)
        seconds = wires.regather if regather and self.plan.names[unit] else None
        if (
            seconds is not None
        ):  # from shards that the forward left on the device, in a group with a communicator of its own
            start = max(start, self.forward_ends[unit])
            end = start + seconds(work.gather_bytes)
        else:
            if wires.copy is not None:
                self.in_free = self._put(
                    "copy in", "copy in", max(self.gate, self.in_free), wires.copy(work.host_bytes), unit
                )
                start = max(start, self.in_free)
            start = max(start, self.one_free)
            end = start + (wires.gather(work.gather_bytes) if work.gather_bytes else 0.0)
            self.one_free = max(self.one_free, end)
        self.gathers_free = self._put("gather", "gather again" if regather else "gather", start, end - start, unit)
        self.whole_at[unit] = end

    def _reduce(self, unit: int) -> None:
        wires, work = self.wires, self.plan.bytes[unit]
        if not (self.sync and (work.reduce_bytes or wires.across or wires.copy)):
            return
        # One buffer of gradients is kept, so that compute waits for the reduce-scatter before this one
        self._wait(self.scattered, "reduce")
        start = max(self.time, self.reduce_free, self.one_free)
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

    def _wait(self, until: float, stream: str) -> None:
        if until > self.time:
            self.waits[stream] += until - self.time
            self.time = until

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
        start, self.time = self.time, self._worked(seconds)
        unit = self.plan.piece_unit[i]
        self.spans.append(("compute", f"{name} {self.plan.names[unit] or 'root'}", start, self.time, i, unit))

    def _worked(self, work: float) -> float:
        """When `work` seconds of compute that begin now are done. What has been issued is all that can disturb them:
        the next gather waits for the next unit's start, and a reduce-scatter for this one's end."""
        speed, time = 1 - self.wires.contention, self.time
        if not self.busy:
            return time + work
        self.busy = sorted([span for span in self.busy if span[1] > time])
        for start, end in self.busy:
            if start - time >= work:
                break
            if start > time:
                work, time = work - (start - time), start
            if end > time:
                overlapped = (end - time) * speed
                if work < overlapped:
                    return time + work / speed
                work, time = work - overlapped, end
        return time + work
