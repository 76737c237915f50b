"""A step of FSDP as events: what must hold of every step, and small cases by hand."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from cases import over, refused
from jobs import layers

from scaleout.spec.sharding import Sharding, Unit, units
from scaleout.spec.transformer import Shape
from scaleout.timing.ddp import Layer
from scaleout.timing.fsdp import LANES, Piece, fsdp_step, pieces, volume
from scaleout.timing.fsdp_plan import Plan
from scaleout.timing.intervals import exposed, length

SEEDS = range(30)


def model(seed):
    """Random pieces: a root at both ends, units beside and inside each other, some with nothing to send."""
    draw = random.Random(seed)
    sizes = lambda: [draw.choice((0, draw.randrange(1, 10**6), draw.randrange(1, 10**8)))] * 2  # noqa: E731
    new = lambda name: Piece(name, draw.random() * 1e-2, draw.random() * 2e-2, *sizes(), 1e4, 2e4)  # noqa: E731
    out = [new("")] if draw.random() < 0.8 else []
    for i in range(draw.randrange(1, 12)):
        out.append(new(f"blocks.{i}"))
        if draw.random() < 0.3:
            out += [new(f"blocks.{i}.mlp"), Piece(f"blocks.{i}", draw.random() * 1e-2, draw.random() * 1e-2)]
    return out + ([Piece("", 0.01, 0.02)] if out[0].name == "" else [])


def line(alpha=1e-4, rate=5e9):
    return lambda size: alpha + size / rate


def options(seed):
    draw, reshard = random.Random(seed), random.Random(-seed - 1).choice((True, True, False, 4))
    return {
        "reshard": reshard,
        "regather_seconds": line(1e-5, 2e10) if reshard == 4 else None,
        "reshard_root": draw.random() < 0.3,
        "prefetch": draw.choice((0, 1, 1, 2, 5)),
        "backward_prefetch": draw.choice((None, None, 0, 3)),
        "overlap": draw.random() < 0.85,
        "accumulation": draw.choice((1, 1, 3)),
        "sync_every_pass": draw.random() < 0.5,
        "reduce_across": draw.choice((None, None, line(1e-3, 1e9))),
        "copy_seconds": draw.choice((None, None, line(1e-5, 2e10))),
        "update_seconds": draw.choice((0, 0.01)),
        "contention": draw.choice((0, 0, 0.3, 1)),
    }


def run(seed, gather=None, scatter=None, **rest):
    return fsdp_step(model(seed), gather or line(), scatter or line(2e-4), **options(seed) | rest)


def spans(found, lane):
    return sorted((event.start, event.end) for event in found.events if event.lane == lane)


def sent(found):
    return [span for lane in LANES[1:] for span in spans(found, lane)]


# --- what holds of every step -----------------------------------------------------------------------------------


@over(seed=SEEDS)
def test_work_is_conserved_and_no_lane_does_two_things_at_once(seed):
    found, rest = run(seed, contention=0), options(seed)
    work = sum(piece.forward_seconds + piece.backward_seconds for piece in model(seed)) * rest["accumulation"]
    assert found.compute_seconds == pytest.approx(work)
    assert length(spans(found, "compute")) == pytest.approx(work + found.update_seconds)
    for lane in LANES:
        assert all(b[0] >= a[1] - 1e-12 for a, b in pairwise(spans(found, lane))), lane
    assert {event.lane for event in found.events} <= set(LANES)
    assert sum(end - start for start, end in sent(found)) == pytest.approx(found.communication_seconds)
    assert max(event.end for event in found.events) == pytest.approx(found.seconds)
    assert len(found.passes) == rest["accumulation"] and found.passes[0][0] == 0
    assert run(seed).compute_seconds >= work - 1e-12, "contention only adds"


@over(seed=SEEDS)
def test_what_takes_no_time_is_no_event(seed):
    found = fsdp_step([replace(piece, forward_seconds=0.0) for piece in model(seed)], line(), line(), **options(seed))
    assert all(event.end > event.start for event in found.events)
    assert not [event.name for event in found.events if event.name.startswith("forward")]


@over(seed=SEEDS)
def test_seconds_are_compute_and_what_is_exposed_and_the_update(seed):
    found = run(seed)
    assert found.seconds == pytest.approx(found.compute_seconds + found.exposed_seconds + found.update_seconds)
    assert exposed(spans(found, "compute"), sent(found)) == pytest.approx(found.exposed_seconds, abs=1e-9)
    assert sum(found.waits.values()) == pytest.approx(found.exposed_seconds)
    assert 0 <= found.exposed_seconds <= found.communication_seconds + 1e-12
    assert 0 <= found.overlap_fraction <= 1


def opened(found, plan, backward):
    """By unit, when compute first needs it in the first pass: the start of the first of its pieces."""
    verb = "backward" if backward else "forward"
    starts = {e.layer: e.start for e in found.events if e.name.startswith(verb) and e.start < found.passes[0][1]}
    ends = range(len(plan.names))
    if backward:
        return {u: min(starts[i] for i in starts if plan.first[u] <= i <= plan.last[u]) for u in ends}
    return {u: starts[plan.first[u]] for u in ends}


@over(seed=SEEDS)
def test_a_unit_is_whole_before_it_computes_and_few_are_gathered_ahead(seed):
    rest, plan = options(seed), Plan(tuple(model(seed)))
    found = run(seed, accumulation=1)
    for backward, name, ahead in (
        (False, "gather ", rest["prefetch"] + 1 if rest["prefetch"] else 1),
        (
            True,
            "gather again",
            max(1, rest["prefetch"] if rest["backward_prefetch"] is None else rest["backward_prefetch"]),
        ),
    ):
        first = opened(found, plan, backward)
        rows = [e for e in found.events if e.name.startswith(name) and e.name.startswith("gather again") == backward]
        assert len({e.bucket for e in rows}) == len(rows), "each once"
        for event in rows:
            assert event.end <= first[event.bucket] + 1e-12
            early = [e for e in rows if e.start <= event.start and first[e.bucket] > event.start + 1e-12]
            assert len(early) <= ahead, "whole or on their way, and not needed yet"


@over(seed=SEEDS)
def test_gathers_and_reduce_scatters_share_a_communicator(seed):
    found = run(seed, reshard=options(seed)["reshard"] is True)
    both = sorted(spans(found, "gather") + spans(found, "reduce"))
    assert all(b[0] >= a[1] - 1e-12 for a, b in pairwise(both))


@over(seed=SEEDS)
def test_compute_waits_for_the_reduce_scatter_before_the_one_it_starts(seed):
    found = run(seed, accumulation=1)
    rows = sorted((e for e in found.events if e.lane == "reduce"), key=lambda e: e.start)
    for a, b in pairwise(rows):
        later = [e.end for e in found.events if e.name.startswith("backward") and e.end <= b.start + 1e-12]
        assert a.end <= b.start + 1e-12 and later, "the buffer of gradients is free again"
        busy = [e for e in found.events if e.lane == "compute" and e.start < a.end - 1e-12 and e.end > b.start + 1e-12]
        assert not busy


def chain(seed):
    """Units one after another, all with something to send."""
    draw = random.Random(seed)
    return [Piece(f"u{i}", draw.random(), draw.random(), *[draw.randrange(1, 10**9)] * 2) for i in range(1 + seed)]


@over(seed=SEEDS)
def test_prefetch_of_0_is_everything_one_after_another(seed):
    """In backward too: a gather is issued after the reduce-scatter before it, on one communicator, and compute waits
    for both. Prefetching is what changes the order."""
    found = fsdp_step(chain(seed), line(), line(2e-4), prefetch=0)
    assert found.seconds == pytest.approx(found.compute_seconds + found.communication_seconds)
    assert found.overlap_fraction == pytest.approx(0, abs=1e-9)
    assert fsdp_step(chain(seed), line(), line(2e-4), prefetch=1).seconds < found.seconds


@over(seed=SEEDS)
def test_without_overlap_the_two_add_up(seed):
    """As with gloo on a CPU, whatever is prefetched."""
    rest = {"accumulation": 1, "contention": 0, "update_seconds": 0.5}
    for change in ({}, {"copy_seconds": line(), "reduce_across": line()}):
        found = run(seed, **rest | change, overlap=False)
        assert found.seconds == pytest.approx(found.compute_seconds + found.communication_seconds + 0.5)
        assert run(seed, **rest | change, overlap=True).seconds <= found.seconds + 1e-12


@over(seed=SEEDS)
def test_a_faster_wire_is_never_slower_and_a_deeper_prefetch_neither(seed):
    quiet = {"contention": 0}
    by_rate = [run(seed, line(rate=r), line(rate=r), **quiet).seconds for r in (1e12, 1e11, 1e10, 1e9, 1e8)]
    by_alpha = [run(seed, line(a), line(a), **quiet).seconds for a in (0, 1e-5, 1e-3, 1e-1)]
    assert all(b >= a - 1e-12 for rising in (by_rate, by_alpha) for a, b in pairwise(rising))
    alone = quiet | {"backward_prefetch": 0, "overlap": True}
    by_depth = [run(seed, **alone, prefetch=k).seconds for k in (0, 1, 2, 4, 8)]
    assert all(b <= a + 1e-12 for a, b in pairwise(by_depth))


@over(seed=SEEDS)
def test_one_rank_sends_nothing(seed):
    shape = Shape(1 + seed % 5, 16, 2, 32, tied_head=bool(seed % 2))
    sharding = Sharding(wrap=("model", "block", "layer", "size")[seed % 4], least_parameters=300)
    rows = layers(shape, 2)
    found = fsdp_step(pieces(rows, units(shape, sharding), sharding), line(), line(), prefetch=seed % 3)
    assert found.communication_seconds == found.exposed_seconds == found.gathers == found.scatters == 0
    assert found.seconds == pytest.approx(sum(row.forward_seconds + row.backward_seconds for row in rows))
    assert found.overlap_fraction == 1.0
    assert volume(shape, sharding)["total"] == volume(shape, sharding)["ddp"] == 0


def test_accumulation_gathers_in_every_pass_and_may_reduce_in_the_last_only():
    rest = {"reshard": True, "regather_seconds": None, "reshard_root": True, "prefetch": 1, "accumulation": 4}
    every, last = run(3, **rest, sync_every_pass=True), run(3, **rest, sync_every_pass=False)
    one = run(3, **rest | {"accumulation": 1})
    assert (every.gathers, every.scatters) == (4 * one.gathers, 4 * one.scatters)
    assert (last.gathers, last.scatters) == (4 * one.gathers, one.scatters)
    assert last.seconds < every.seconds
    assert every.passes[-1][1] == pytest.approx(4 * one.passes[0][1])


# --- by hand ------------------------------------------------------------------------------------------------------

# Root, two units, root: forward 1 s each, backward 2 s each; a gather or a reduce-scatter of a unit takes 1.5 s.
HAND = [Piece("", 1, 2, 15, 15, 15), Piece("a", 1, 2, 15, 15, 15), Piece("b", 1, 2, 15, 15, 15), Piece("", 1, 2)]


def rows(found, lane):
    return [(e.name, e.start, e.end) for e in sorted(found.events, key=lambda e: e.start) if e.lane == lane]


def test_two_units_by_hand():
    """Forward: gathers back to back from 0; a's waits for nothing, b's for the root's start. Backward: b is gathered
    from the start of its own forward on, a from the start of b's backward, before b's reduce-scatter."""
    found = fsdp_step(HAND, lambda n: n / 10, lambda n: n / 10, update_seconds=1)
    assert rows(found, "gather") == [
        ("gather root", 0, 1.5),
        ("gather a", 1.5, 3),
        ("gather b", 3, 4.5),
        ("gather again b", 4.5, 6),
        ("gather again a", 8.5, 10),
    ]
    assert rows(found, "compute") == [
        ("forward root", 1.5, 2.5),
        ("forward a", 3, 4),
        ("forward b", 4.5, 5.5),
        ("forward root", 5.5, 6.5),
        ("backward root", 6.5, 8.5),
        ("backward b", 8.5, 10.5),
        ("backward a", 10.5, 12.5),
        ("backward root", 12.5, 14.5),
        ("update", 16, 17),
    ]
    assert rows(found, "reduce") == [
        ("reduce-scatter b", 10.5, 12),
        ("reduce-scatter a", 12.5, 14),
        ("reduce-scatter root", 14.5, 16),
    ]
    assert (found.seconds, found.exposed_seconds, found.waits) == (17, 4, {"gather": 2.5, "reduce": 1.5})
    assert found.overlap_fraction == pytest.approx(1 - 4 / 12)


def test_backward_prefetch_by_hand():
    """Without it a's gather comes after b's reduce-scatter, and compute waits for both."""
    found = fsdp_step(HAND, lambda n: n / 10, lambda n: n / 10, backward_prefetch=0)
    assert rows(found, "gather")[-2:] == [("gather again b", 8.5, 10), ("gather again a", 13.5, 15)]
    assert rows(found, "reduce")[0] == ("reduce-scatter b", 12, 13.5)
    assert found.seconds == 16 + 1.5 + 3


def test_reshard_by_hand():
    """Kept units are not gathered again. A smaller group has a communicator of its own: its gathers do not wait for
    reduce-scatters, but for the unit's forward, which leaves the shards they take."""
    kept = fsdp_step(HAND, lambda n: n / 10, lambda n: n / 10, reshard=False)
    assert (kept.gathers, kept.scatters, kept.seconds) == (3, 3, 16)
    few = fsdp_step(HAND, lambda n: n / 10, lambda n: 4, reshard=2, regather_seconds=lambda n: 0.5)
    assert rows(few, "gather")[-2:] == [("gather again b", 5.5, 6), ("gather again a", 8.5, 9)]
    assert rows(few, "reduce") == [
        ("reduce-scatter b", 10.5, 14.5),
        ("reduce-scatter a", 14.5, 18.5),
        ("reduce-scatter root", 18.5, 22.5),
    ]
    assert rows(few, "compute")[-1] == ("backward root", 14.5, 16.5), "a's gradients wait for b's buffer"


def test_hybrid_and_offload_by_hand():
    """All-reduces have a stream of their own. Copies in go ahead of the gathers; the next reduce-scatter waits for the
    copy out, and the update for the last."""
    both = fsdp_step(HAND, lambda n: n / 10, lambda n: n / 10, reduce_across=lambda n: 3)
    assert rows(both, "across") == [("all-reduce b", 12, 15), ("all-reduce a", 15, 18), ("all-reduce root", 18, 21)]
    assert rows(both, "reduce") == rows(fsdp_step(HAND, lambda n: n / 10, lambda n: n / 10), "reduce")
    away = fsdp_step(
        [replace(one, host_bytes=10) for one in HAND], lambda n: n / 10, lambda n: n / 10, copy_seconds=lambda n: n / 5
    )
    assert rows(away, "copy in")[:3] == [("copy in root", 0, 2), ("copy in a", 2, 4), ("copy in b", 4, 6)]
    assert rows(away, "gather")[:3] == [("gather root", 2, 3.5), ("gather a", 4, 5.5), ("gather b", 6, 7.5)]
    (_, _, end), (_, start, _) = rows(away, "reduce")[0], rows(away, "copy out")[0]
    assert start == end and rows(away, "reduce")[1][1] >= rows(away, "copy out")[0][2]
    assert away.seconds == rows(away, "copy out")[-1][2]


def test_contention_by_hand():
    """The gather of a covers 1.5 to 3 of the root's forward: a second of work at half speed takes 1.5 + 0.25 s."""
    found = fsdp_step(HAND, lambda n: n / 10, lambda n: 0, contention=0.5)
    assert rows(found, "compute")[0] == ("forward root", 1.5, 3.5)
    assert rows(found, "compute")[-1][2] - rows(found, "compute")[-1][1] == 2, "nothing is on its way"


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"accumulation": 0}, "whole number of passes of at least 1"),
        ({"prefetch": -1}, "prefetch must be a whole number of units from 0 up"),
        ({"backward_prefetch": 1.5}, "backward_prefetch must be"),
        ({"reshard": 1}, "reshard must be True, False or a number of ranks from 2 up, not 1"),
        ({"reshard": 4}, "needs regather_seconds"),
        ({"contention": 1.1}, "contention must be a finite number from 0 to 1"),
        ({"update_seconds": float("nan")}, "update_seconds must be a finite number from 0 up"),
        ({"overlap": 1}, "overlap must be True or False, not 1"),
    ],
)
def test_bad_input_is_one_line(change, words):
    refused(lambda: fsdp_step(HAND, line(), line(), **change), words)


def test_bad_pieces_are_one_line():
    for wrong in ([], [1]):
        with pytest.raises(ValueError, match="at least one piece"):
            fsdp_step(wrong, line(), line())
    with pytest.raises(ValueError, match="gather_bytes must be a finite number from 0 up, not -1"):
        Piece("a", 0, 0, -1)
    with pytest.raises(ValueError, match="a layer lies in none of these units"):
        pieces([Layer("head", 1, 1, 1)], [Unit("blocks.0", (("x", (4,)),))], Sharding(ranks=2))
