"""A DDP step as events: what must hold of every step, torch's own buckets, small cases by hand."""

import random
from itertools import pairwise

import pytest
from cases import over, refused

from scaleout.timing.ddp import (
    BUCKET_CAP,
    FIRST_BUCKET_CAP,
    MIB,
    Layer,
    Layers,
    buckets,
    ddp_step,
)
from scaleout.timing.intervals import exposed, length, subtract, union

SEEDS = range(40)


def model(seed, largest=40 * MIB):
    """A random model: layers of any size, some without gradients."""
    draw = random.Random(seed)
    count = draw.randrange(1, 60)
    sizes = [draw.choice((0, draw.randrange(1, 4096), draw.randrange(1, largest))) for _ in range(count)]
    return [Layer(f"l{i}", draw.random() * 1e-2, draw.random() * 2e-2, size) for i, size in enumerate(sizes)]


def wire(alpha=1e-4, rate=5e9):
    return lambda size: alpha + size / rate


def options(seed):
    draw = random.Random(seed)
    return {
        "cap_bytes": draw.choice((MIB // 4, 4 * MIB, BUCKET_CAP, 10**12)),
        "overlap": draw.random() < 0.8,
        "accumulation": draw.choice((1, 1, 2, 5)),
        "sync_every_pass": draw.random() < 0.5,
        "compression": draw.choice((1, 2.0, 64)),
        "update_seconds": draw.choice((0, 0.01)),
        "contention": draw.choice((0, 0, 0.3, 1)),
    }


def spans(timeline, lane):
    return [(event.start, event.end) for event in timeline.events if event.lane == lane]


@over(seed=SEEDS)
def test_layers_that_are_scheduled_again_forget_nothing_and_mix_nothing_up(seed):
    """Layers keep buckets and passes between schedules: on another wire, with other caps and passes."""
    layers = Layers(model(seed))
    for again in (seed, seed + 1, seed, seed + 2):
        rate, chosen = 1e9 * (1 + again), options(again)
        assert ddp_step(layers, wire(rate=rate), **chosen) == ddp_step(model(seed), wire(rate=rate), **chosen)


# --- what holds of every step -----------------------------------------------------------------------------------


@over(seed=SEEDS)
def test_events_of_a_lane_do_not_overlap_and_add_up(seed):
    step = ddp_step(model(seed), wire(), **options(seed))
    for lane in ("compute", "communication"):
        rows = spans(step, lane)
        assert all(start <= end for start, end in rows)
        assert all(b[0] >= a[1] - 1e-12 for a, b in pairwise(rows)), lane
    assert max(event.end for event in step.events) == pytest.approx(step.seconds, rel=1e-12)
    assert length(spans(step, "compute")) == pytest.approx(step.compute_seconds + step.update_seconds)
    assert length(spans(step, "communication")) == pytest.approx(step.communication_seconds)


@over(seed=SEEDS)
def test_seconds_are_compute_and_what_is_exposed_and_the_update(seed):
    step = ddp_step(model(seed), wire(), **options(seed))
    assert step.seconds == pytest.approx(step.compute_seconds + step.exposed_seconds + step.update_seconds)
    counted = exposed(spans(step, "compute"), spans(step, "communication"))
    assert counted == pytest.approx(step.exposed_seconds, abs=1e-9)
    assert 0 <= step.exposed_seconds <= step.communication_seconds + 1e-12
    assert 0 <= step.overlap_fraction <= 1


@over(seed=SEEDS)
def test_what_waits_for_the_wire_is_what_is_made_and_not_sent(seed):
    """Counted from the events: bytes of messages that are ready, less the part that the wire has carried."""
    step, draw = ddp_step(model(seed), wire(), **options(seed)), random.Random(seed)
    for at in [draw.random() * step.seconds for _ in range(9)]:
        waits = 0.0
        for one in step.passes:
            for ready, (start, end), size in zip(step.ready, one.messages, step.message_bytes, strict=False):
                if one.start + ready <= at and one.start <= at < one.start + one.seconds:
                    waits += size * (1 - min(1, max(0, (at - one.start - start) / (end - start))))
        assert step.waiting([at]) == [pytest.approx(waits, rel=1e-9, abs=1.0)]
    assert step.waiting([0.0, step.seconds]) == [0.0, 0.0]


@over(seed=SEEDS)
def test_a_message_starts_when_its_last_gradient_is_there(seed):
    step = ddp_step(model(seed), wire(), **options(seed) | {"overlap": True})
    for one in step.passes:
        free = 0.0
        for members, (start, _end) in zip(step.buckets, one.messages, strict=False):
            ready = max(one.backward[i][1] for i in members)
            assert start == max(ready, free)
            free = _end
    talking = [one for one in step.passes if one.messages]
    wanted = options(seed)["accumulation"] if options(seed)["sync_every_pass"] else 1
    assert len(talking) == (wanted if step.buckets else 0)
    assert not step.buckets or step.passes[-1].messages, "the last pass communicates"


@over(seed=SEEDS)
def test_without_overlap_the_two_add_up(seed):
    layers = model(seed)
    step = ddp_step(layers, wire(), overlap=False, contention=0.7)
    work = sum(layer.forward_seconds + layer.backward_seconds for layer in layers)
    assert step.compute_seconds == pytest.approx(work)
    assert step.seconds == pytest.approx(work + step.communication_seconds)
    assert ddp_step(layers, wire()).seconds <= step.seconds + 1e-12, "overlap never costs time without contention"


@over(seed=SEEDS)
def test_one_bucket_hides_nothing_but_what_backward_has_left(seed):
    """It is full at its last gradient, so that only layers without any before that one are left to hide behind."""
    layers = model(seed)
    step = ddp_step(layers, wire(), cap_bytes=10**12, first_cap_bytes=10**12)
    left = 0.0
    for layer in layers:
        if layer.gradient_bytes:
            break
        left += layer.backward_seconds
    if step.buckets:
        assert len(step.buckets) == 1
        assert step.exposed_seconds == pytest.approx(max(0, step.communication_seconds - left), abs=1e-12)


@over(seed=SEEDS)
def test_limits(seed):
    layers = model(seed)
    work = sum(layer.forward_seconds + layer.backward_seconds for layer in layers)
    free = ddp_step(layers, lambda size: 0.0, update_seconds=0.5, accumulation=3, contention=1)
    assert free.seconds == pytest.approx(3 * work + 0.5) and free.exposed_seconds == pytest.approx(0, abs=1e-12)
    assert free.overlap_fraction == 1.0
    none = ddp_step(layers, wire(), contention=1.0)
    if none.communication_seconds:
        assert none.seconds == pytest.approx(work + none.communication_seconds), "compute stands still meanwhile"


@over(seed=SEEDS)
def test_monotone_in_the_wire_and_in_contention(seed):
    layers, rest = model(seed), options(seed)
    by_rate = [ddp_step(layers, wire(rate=rate), **rest).seconds for rate in (1e11, 1e10, 1e9, 1e8)]
    by_alpha = [ddp_step(layers, wire(alpha), **rest).seconds for alpha in (0, 1e-5, 1e-3, 1e-1)]
    by_share = [ddp_step(layers, wire(), **rest | {"contention": c}).seconds for c in (0, 0.2, 0.6, 1)]
    by_ratio = [ddp_step(layers, wire(), **rest | {"compression": c}).seconds for c in (64, 8, 2, 1)]
    for rising in (by_rate, by_alpha, by_share, by_ratio):
        assert all(b >= a - 1e-12 for a, b in pairwise(rising))


# --- by hand ------------------------------------------------------------------------------------------------------

THREE = [Layer(name, 1, 2, 10 * MIB) for name in "abc"]


def test_three_layers_by_hand():
    """Forward 3 s, backward 6 s; messages of 10 MiB take 3 s: the first starts at 5, and each waits for the last."""
    step = ddp_step(THREE, lambda size: 3 * size / (10 * MIB), cap_bytes=10 * MIB, update_seconds=1)
    assert step.buckets == ((2,), (1,), (0,))
    assert spans(step, "communication") == [(5, 8), (8, 11), (11, 14)]
    assert (step.seconds, step.compute_seconds, step.communication_seconds, step.exposed_seconds) == (15, 9, 9, 5)
    assert step.overlap_fraction == pytest.approx(4 / 9)
    assert [event.name for event in step.events][:4] == ["forward a", "forward b", "forward c", "backward c"]
    assert [event.bucket for event in step.events if event.name == "backward a"] == [2]


def test_contention_by_hand():
    """The first message runs from 5 to 8; at half speed the 2 s of work on b take 3 s + 0.5 s."""
    step = ddp_step(THREE, lambda size: 3.0, cap_bytes=20 * MIB, first_cap_bytes=10 * MIB, contention=0.5)
    assert list(step.passes[0].backward) == [(8.5, 10.5), (5, 8.5), (3, 5)]
    assert step.passes[0].messages == ((5, 8), (10.5, 13.5))


def test_accumulation_by_hand():
    """9 s per pass; only the last waits 3 s for its one message, or each does."""
    sizes, one = [], {"cap_bytes": 10**9, "first_cap_bytes": 10**9, "accumulation": 4}
    step = ddp_step(THREE, lambda size: sizes.append(size) or 3.0, **one)
    assert step.seconds == 4 * 9 + 3 and sizes == [30 * MIB]
    every = ddp_step(THREE, lambda size: 3.0, **one, sync_every_pass=True)
    assert every.seconds == 4 * (9 + 3) and every.communication_seconds == 12


def test_compression_divides_the_message():
    sizes = []
    ddp_step(THREE, lambda size: sizes.append(size) or 0.0, cap_bytes=10 * MIB, compression=2)
    assert set(sizes) == {5 * MIB}


# --- torch's buckets ----------------------------------------------------------------------------------------------


@over(seed=SEEDS)
def test_buckets_are_those_of_torch(seed):
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    assert dist._DEFAULT_FIRST_BUCKET_BYTES == FIRST_BUCKET_CAP
    draw = random.Random(seed)
    numbers = [draw.choice((draw.randrange(1, 1000), draw.randrange(1, 4 * MIB))) for _ in range(draw.randrange(1, 80))]
    layers = [Layer(str(i), 0, 0, 4 * n) for i, n in enumerate(numbers)]
    cap = draw.choice((MIB, 3 * MIB, BUCKET_CAP))
    arrived = list(reversed(range(len(numbers))))
    empty = [torch.empty(numbers[i], device="meta") for i in arrived]
    theirs, _ = dist._compute_bucket_assignment_by_size(empty, [FIRST_BUCKET_CAP, cap])
    assert buckets(layers, cap) == [[arrived[k] for k in one] for one in theirs]


@pytest.mark.parametrize(("cap_mb", "cap", "first"), [(None, BUCKET_CAP, FIRST_BUCKET_CAP), (2, 2 * MIB, 2 * MIB)])
def test_ddp_itself_rebuilds_these_buckets(tmp_path, cap_mb, cap, first):
    """DDP alone in its group, after its second step, reports the sizes of the buckets that it rebuilt."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    sides = [64, 900, 1300, 40, 1300, 700, 2000, 8]
    net = torch.nn.Sequential(*(torch.nn.Linear(a, b, bias=False) for a, b in pairwise(sides)))
    layers = [Layer(str(i), 0, 0, 4 * p.numel()) for i, p in enumerate(net.parameters())]
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        replica = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=cap_mb)
        for _ in range(3):
            replica(torch.ones(1, sides[0])).sum().backward()
        found = replica._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    finally:
        dist.destroy_process_group()
    wanted = [sum(layers[i].gradient_bytes for i in one) for one in buckets(layers, cap, first)]
    assert len(wanted) > 1 and [int(size) for size in found.split(",")] == wanted


def test_layers_without_gradients_are_in_no_bucket():
    assert buckets([Layer("a", 1, 1, 0), Layer("b", 1, 1, 8), Layer("c", 1, 1, 0)]) == [[1]]
    assert buckets([Layer("a", 1, 1, 0)]) == []
    quiet = ddp_step([Layer("a", 1, 1, 0)], wire())
    assert quiet.seconds == 2 and quiet.communication_seconds == 0 and quiet.overlap_fraction == 1


# --- intervals and efficiency ------------------------------------------------------------------------------------


def test_intervals_by_hand():
    assert union([(5, 6), (0, 2), (1, 3), (3, 4), (9, 9)]) == [(0, 4), (5, 6)]
    assert subtract([(0, 10)], [(2, 3), (5, 7), (6, 8)]) == [(0, 2), (3, 5), (8, 10)]
    assert subtract([(0, 1), (4, 6)], [(0, 5)]) == [(5, 6)]
    assert exposed([(0, 4), (3, 5)], [(1, 2), (4, 8)]) == 3
    assert exposed([], []) == 0 and exposed([], [(1, 3), (2, 4)]) == 3


@over(seed=SEEDS)
def test_intervals_point_by_point(seed):
    draw = random.Random(seed)
    a, b = ([(x, x + draw.randrange(0, 9)) for x in (draw.randrange(60) for _ in range(12))] for _ in range(2))
    cells = {"a": set(), "b": set()}
    for name, rows in (("a", a), ("b", b)):
        for start, end in rows:
            cells[name].update(range(start, end))
    assert length(a) == len(cells["a"])
    assert {x for start, end in subtract(a, b) for x in range(start, end)} == cells["a"] - cells["b"]
    assert exposed(b, a) + length(b) == len(cells["a"] | cells["b"])


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"accumulation": 0}, "whole number of passes of at least 1"),
        ({"accumulation": 2.0}, "whole number of passes"),
        ({"compression": 0.5}, "how many times smaller a message gets, from 1 up, not 0.5"),
        ({"contention": 1.1}, "contention must be a finite number from 0 to 1"),
        ({"contention": float("nan")}, "contention must be"),
        ({"update_seconds": -1}, "update_seconds must be a finite number from 0 up"),
        ({"overlap": 1}, "overlap must be True or False"),
        ({"cap_bytes": 0}, "cap_bytes must be a number of bytes above 0"),
    ],
)
def test_bad_input_is_one_line(change, words):
    refused(lambda: ddp_step(THREE, wire(), **change), words)


def test_bad_layers_are_one_line():
    for wrong in ([], [1]):
        with pytest.raises(ValueError, match="at least one layer"):
            ddp_step(wrong, wire())
    with pytest.raises(ValueError, match="backward_seconds must be a finite number from 0 up, not -1"):
        Layer("a", 0, -1, 0)
