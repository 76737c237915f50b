"""A training step as events on lanes: what computes when, what is communicated meanwhile, and what stays exposed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import fsum  # exact: sum adds otherwise from Python 3.12 on, and the page has a newer one

from scaleout.spec import checks
from scaleout.timing.intervals import Interval

MIB = 2**20
# torch.nn.parallel.DistributedDataParallel calls its caps MB and counts 2^20 bytes. Where bucket_cap_mb is not given
# the cap is 25 and the first bucket is smaller; where it is given it holds for the first bucket too.
BUCKET_CAP = 25 * MIB
FIRST_BUCKET_CAP = MIB


@dataclass(frozen=True)
class Event:
    """Work on one lane of one rank, from `start` to `end`, in seconds since the step began."""

    lane: str  # "compute" or "communication"
    rank: int
    name: str
    start: float
    end: float
    layer: int | None = None
    bucket: int | None = None


@dataclass(frozen=True)
class Layer:
    """One part of the model in the order of the forward pass. Its gradients are ready when its backward ends."""

    name: str
    forward_seconds: float
    backward_seconds: float
    gradient_bytes: float

    def __post_init__(self) -> None:
        checks.amounts(self.__dict__)


class Layers(tuple[Layer, ...]):
    """The layers of a model, with what every schedule of them begins with: found once, whatever is sent between."""

    @classmethod
    def of(cls, layers: Iterable[Layer]) -> Layers:
        """These layers, which may be some already."""
        return layers if isinstance(layers, cls) else cls(layers)

    @cached_property
    def forward(self) -> tuple[Interval, ...]:
        """By layer, (start, end) from the start of a pass."""
        return tuple(pairwise(accumulate([layer.forward_seconds for layer in self], initial=0.0)))

    @cached_property
    def bytes_before(self) -> list[float]:
        """Bytes of the gradients of the first 0, 1, 2, ... layers."""
        return list(accumulate([layer.gradient_bytes for layer in self], initial=0))

    @cached_property
    def quiet(self) -> tuple[tuple[Interval, ...], ...]:
        """A pass that sends nothing, as `_pass` gives it."""
        return _pass(self, [], [], False, 0.0)

    @cached_property
    def known(self) -> dict:
        """Buckets by their caps, and pieces (`fsdp.pieces`) by the names of units."""
        return {}


@dataclass(frozen=True)
class Pass:
    """One forward and backward of the step, in seconds after `start`; `messages` is empty without synchronisation."""

    start: float
    forward: tuple[Interval, ...]  # by layer
    backward: tuple[Interval, ...]  # by layer
    messages: tuple[Interval, ...]  # by bucket

    @cached_property
    def ends(self) -> list[float]:
        """By bucket, when its message is through."""
        return [end for _, end in self.messages]

    @property
    def compute_seconds(self) -> float:
        return self.backward[0][1]

    @property
    def seconds(self) -> float:
        """Until the last gradient is reduced: autograd's last callback waits for every bucket."""
        return max(self.compute_seconds, self.messages[-1][1] if self.messages else 0.0)


@dataclass(frozen=True)
class Timeline:
    """One step of one rank; with equal ranks, of each. seconds = compute + exposed + update + other.

    compute_seconds: forward and backward, with what contention adds. exposed_seconds: communication that no
    compute covers, which is when the compute lane waits. other_seconds: what follows the update, the host's own time
    and what all wait for the slowest rank.
    """

    layers: tuple[Layer, ...]
    buckets: tuple[tuple[int, ...], ...]
    message_bytes: tuple[float, ...]  # by bucket, compressed
    passes: tuple[Pass, ...]
    seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    update_seconds: float
    ready: tuple[float, ...]  # by bucket: when its message may go, after the start of a pass that sends
    contention: float = 0.0
    other_seconds: float = 0.0

    def waiting(self, times: Iterable[float]) -> list[float]:
        """Bytes that are ready and not yet sent, at each of these times, in seconds since the step began."""
        produced = list(accumulate(self.message_bytes, initial=0.0))
        return [_waiting(self, produced, time) for time in times]

    def ended(self, update_seconds: float, seconds: float) -> Timeline:
        """The same step with its update, and `seconds` in all."""
        host_seconds = seconds - self.passes[-1].start - self.passes[-1].seconds - update_seconds
        return replace(self, seconds=seconds, update_seconds=update_seconds, other_seconds=max(0.0, host_seconds))

    @property
    def slowed_seconds(self) -> float:
        """By how much contention makes the compute longer."""
        if not self.contention:
            return 0.0
        once = fsum(layer.forward_seconds + layer.backward_seconds for layer in self.layers)
        return max(0.0, self.compute_seconds - len(self.passes) * once)  # but for rounding

    @property
    def overlap_fraction(self) -> float:
        """Share of the communication that compute hides, 0 to 1; 1 where there is none to hide."""
        return hidden_share(self.communication_seconds, self.exposed_seconds)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Every event, lane by lane within a pass. Made when asked for: a large model has thousands."""
        events: list[Event] = []
        bucket_of = {layer: b for b, members in enumerate(self.buckets) for layer in members}
        for part in self.passes:
            for i, layer in enumerate(self.layers):
                events.append(
                    _event("compute", f"forward {layer.name}", part.start, part.forward[i], i, bucket_of.get(i))
                )
            for i in reversed(range(len(self.layers))):
                name = f"backward {self.layers[i].name}"
                events.append(_event("compute", name, part.start, part.backward[i], i, bucket_of.get(i)))
            for b, span in enumerate(part.messages):
                events.append(_event("communication", f"all-reduce bucket {b}", part.start, span, None, b))
        if self.update_seconds:
            end = self.seconds - self.other_seconds
            events.append(Event("compute", 0, "update", end - self.update_seconds, end))
        return tuple(events)


def _waiting(step: Timeline, produced: list[float], time: float) -> float:
    """Bytes that wait at one time of a step. produced: bytes of the first 0, 1, 2, ... buckets."""
    part = next((part for part in reversed(step.passes) if part.start <= time), None)
    if part is None or not part.messages:
        return 0.0
    elapsed = time - part.start
    sent = bisect_right(part.ends, elapsed)  # buckets that are through
    carried = produced[sent]
    if sent < len(part.messages) and part.messages[sent][0] < elapsed:
        start, end = part.messages[sent]
        carried += step.message_bytes[sent] * (elapsed - start) / (end - start)
    pending = produced[bisect_right(step.ready, elapsed)] - carried
    return pending if pending >= 1 else 0.0  # less than a byte is rounding


def hidden_share(communication_seconds: float, exposed_seconds: float) -> float:
    """Share of the communication that is not exposed, 0 to 1; 1 where there is none."""
    if communication_seconds == 0:
        return 1.0
    return max(0.0, 1 - exposed_seconds / communication_seconds)


def _event(lane: str, name: str, start: float, span: Interval, layer: int | None, bucket: int | None) -> Event:
    return Event(lane, 0, name, start + span[0], start + span[1], layer, bucket)


def buckets(
    layers: list[Layer] | tuple[Layer, ...],
    cap_bytes: float = BUCKET_CAP,
    first_cap_bytes: float = FIRST_BUCKET_CAP,
) -> list[list[int]]:
    """Indices of `layers` by bucket, in the order in which torch DDP reduces them.

    The rule of torch's `compute_bucket_assignment_by_size` on gradients in the order of arrival: a bucket takes
    gradients until it holds *at least* its cap, so its last gradient may exceed the cap. DDP uses these buckets from
    the second step on (`Reducer::rebuild_buckets`); its first step reduces all gradients in one bucket, unless it looks
    for unused parameters. torch counts parameters, so a layer with two (weight, bias) may be split there and is not
    split here. Layers without gradients are in no bucket. A first cap above the cap counts as the cap. Raises
    ValueError for a cap that is not above 0.
    """
    for name, cap in (("cap_bytes", cap_bytes), ("first_cap_bytes", first_cap_bytes)):
        if isinstance(cap, bool) or not isinstance(cap, (int, float)) or not cap > 0:
            raise ValueError(f"{name} must be a number of bytes above 0, not {cap!r}")
    groups: list[list[int]] = []
    filled, limit, members = 0.0, min(first_cap_bytes, cap_bytes), []
    for i in reversed(range(len(layers))):
        if not layers[i].gradient_bytes:
            continue
        members.append(i)
        filled += layers[i].gradient_bytes
        if filled >= limit:
            groups.append(members)
            filled, limit, members = 0.0, cap_bytes, []
    return [*groups, members] if members else groups


def ddp_step(
    layers: list[Layer] | tuple[Layer, ...],
    reduce_seconds: Callable[[float], float],
    *,
    cap_bytes: float = BUCKET_CAP,
    first_cap_bytes: float = FIRST_BUCKET_CAP,
    overlap: bool = True,
    accumulation: int = 1,
    sync_every_pass: bool = False,
    compression: float = 1.0,
    update_seconds: float = 0.0,
    contention: float = 0.0,
) -> Timeline:
    """One step of data parallelism: `accumulation` passes, gradients reduced bucket by bucket, one update.

    reduce_seconds: seconds of an all-reduce of that many bytes. A bucket's starts when its last gradient is there and
    the communication lane is free; with overlap=False, when the whole backward is done. Only the last pass
    communicates (DDP's no_sync), or every one with sync_every_pass. compression: how many times smaller a message
    gets, at least 1 (bf16 of fp32: 2); what compressing costs is not counted. contention: the share of its speed that
    compute loses while a message is on its way, 0 to 1 (cores that gloo takes, multiprocessors that NCCL takes).
    Not in it: stragglers (every rank is this one), the copy of gradients into buckets, launches. Raises ValueError,
    in one line, for values that cannot be.
    """
    layers = Layers.of(layers)
    _check_step(layers, accumulation, overlap, sync_every_pass, compression, update_seconds, contention)
    caps, before = (cap_bytes, first_cap_bytes), layers.bytes_before
    if caps not in layers.known:
        layers.known[caps] = buckets(layers, *caps)
    order = layers.known[caps]
    sizes = tuple([(before[members[0] + 1] - before[members[-1]]) / compression for members in order])
    priced = {size: reduce_seconds(size) for size in set(sizes)}
    wire = [priced[size] for size in sizes]
    quiet = layers.quiet if accumulation > 1 and not sync_every_pass else ()
    synced = _pass(layers, order, wire, overlap, contention)
    kinds = [synced if sync_every_pass or n == accumulation - 1 else quiet for n in range(accumulation)]
    end = synced[1][0][1]
    ready = tuple([synced[1][members[-1]][1] if overlap else end for members in order])
    bare = Timeline(layers, tuple(map(tuple, order)), sizes, (), 0.0, 0.0, 0.0, 0.0, update_seconds, ready, contention)
    return _timeline(bare, [Pass(0.0, *kind) for kind in kinds])


def _timeline(step: Timeline, passes: list[Pass]) -> Timeline:
    """`step` with these passes, one after another, and the seconds that follow from them."""
    start, placed = 0.0, []
    for part in passes:
        placed.append(Pass(start, part.forward, part.backward, part.messages))
        start += part.seconds
    talking = [part for part in placed if part.messages]
    sent = [fsum([end - start for start, end in part.messages]) for part in talking[:1]]
    return replace(
        step,
        passes=tuple(placed),
        seconds=start + step.update_seconds + step.other_seconds,
        compute_seconds=fsum(part.compute_seconds for part in placed),
        communication_seconds=sum(sent) * len(talking),
        exposed_seconds=fsum(min(*sent, part.seconds - part.compute_seconds) for part in talking),  # but for rounding
    )


def _pass(layers: Layers, order, wire, overlap: bool, contention: float) -> tuple[tuple[Interval, ...], ...]:
    """(forward by layer, backward by layer, messages by bucket), each a tuple of (start, end) from 0 on."""
    time = layers.forward[-1][1]
    last = {members[-1]: b for b, members in enumerate(order)} if overlap else {}
    backward, messages = [(0.0, 0.0)] * len(layers), []
    free = 0.0  # when the communication lane is done with what has been given to it
    for i in reversed(range(len(layers))):
        work = layers[i].backward_seconds
        end = _worked(time, work, free, contention) if contention and free > time else time + work
        backward[i] = (time, end)
        time = end
        if i in last:
            start = time if time > free else free
            free = start + wire[last[i]]
            messages.append((start, free))
    return layers.forward, tuple(backward), tuple(messages) if overlap else queued([time] * len(order), wire)


def queued(ready: Iterable[float], wire: Iterable[float]) -> tuple[Interval, ...]:
    """The communication lane: a message goes when it is ready and the one before it is done."""
    spans, free = [], 0.0
    for time, seconds in zip(ready, wire, strict=True):
        start = time if time > free else free
        free = start + seconds
        spans.append((start, free))
    return tuple(spans)


def _worked(start: float, work: float, free: float, contention: float) -> float:
    """When `work` seconds of compute end that begin at `start`, with messages on their way until `free`, later.

    What has been given to the communication lane runs without a gap until `free`, so that there are at most two
    speeds: 1 - contention before it, 1 after it.
    """
    overlapped = (free - start) * (1 - contention)
    return start + work / (1 - contention) if work < overlapped else free + (work - overlapped)


def _check_step(layers, accumulation, overlap, sync_every_pass, compression, update_seconds, contention) -> None:
    if {*map(type, layers)} != {Layer}:
        raise ValueError("a step needs at least one layer, and each must be a Layer")
    checks.whole("accumulation", accumulation, unit=" of passes")
    checks.flag("overlap", overlap)
    checks.flag("sync_every_pass", sync_every_pass)
    if not checks.is_number(compression) or compression < 1:
        raise ValueError(f"compression is how many times smaller a message gets, from 1 up, not {compression!r}")
    checks.number("update_seconds", update_seconds, 0)
    checks.number("contention", contention, 0, 1)
