"""The culprit, the replay and the scores, on traces made by hand, drawn by chance, and recorded."""

import json
from dataclasses import asdict
from random import Random
from statistics import median

import pytest

from scaleout.timing import stragglers as s


def trace(work, transfer=0.02, after=0.0, extra=None):
    """A trace of one all-reduce per step. work[step][rank]: seconds; extra: {(step, rank): (part, seconds)}."""
    clocks, rows = [0.0] * len(work[0]), []
    for step, seconds in enumerate(work):
        spans = []
        for rank, one in enumerate(seconds):
            part, more = (extra or {}).get((step, rank), ("input", 0.0))
            middle = clocks[rank] + more
            spans.append([[part, clocks[rank], middle], ["forward", middle, middle + one]])
        last = max(own[-1][2] for own in spans)
        for rank, own in enumerate(spans):
            own += [["all_reduce", own[-1][2], last + transfer], ["update", last + transfer, last + transfer + after]]
            end = own[-1][2]
            rows.append({"rank": rank, "step": step, "start": clocks[rank], "end": end, "spans": own})
            clocks[rank] = end
    return s.read([json.dumps(row) for row in rows])


HEALTHY = [[0.1, 0.1, 0.101, 0.1] for _ in range(6)]
SLOW = [[0.1, 0.1, 0.18, 0.1] for _ in range(6)]


def test_the_slow_rank_is_in_the_all_reduce_for_the_shortest_time():
    found = s.culprit(trace(SLOW))
    assert (found.rank, found.part, found.pattern) == (2, s.COMPUTE, s.ALWAYS)
    waited = [sum(row.waited for row in trace(SLOW).rows(rank)) for rank in range(4)]
    assert min(waited) == waited[2] == pytest.approx(6 * 0.02) and found.score > 0.3


def test_nobody_is_named_where_ranks_differ_by_noise():
    found = s.culprit(trace(HEALTHY))
    assert found.rank is None and found.score < s.CLEAR and "no rank stands out" in found.why


def test_no_cause_is_named_that_does_not_cover_the_gap():
    mixed = {(step, 2): ("input" if step % 2 else "save", 0.08) for step in range(6)}
    found = s.culprit(trace(HEALTHY, extra=mixed))
    assert found.rank == 2 and found.part is None
    alone = {(step, 2): ("input", 0.08) for step in range(6)}
    assert s.culprit(trace(HEALTHY, extra=alone)).part == s.INPUT


@pytest.mark.parametrize("slow", [[0], [0, 1]])
def test_the_cause_is_named_on_half_of_the_ranks(slow):
    """Of two ranks, or if two of four are slow: the mean of those in the middle would be raised by the slow ones."""
    work = [[0.18 if rank in slow else 0.1 for rank in range(2 * len(slow))] for _ in range(6)]
    found = s.culprit(trace(work))
    assert (found.rank, found.part, found.pattern) == (0, s.COMPUTE, s.ALWAYS)
    assert "its compute takes 0.48 s more than the median" in found.why


@pytest.mark.parametrize(
    ("series", "pattern"),
    [
        ([1.0] * 9, s.ALWAYS),
        ([0.0, 0.0, 5.0, 0.0, 0.0, 0.0], s.ONCE),
        ([0, 0, 3.0, 0, 0, 0, 3.0, 0, 0, 0, 3.0, 0], s.SOME),
        ([0.1 * k for k in range(12)], s.GROWING),
    ],
)
def test_when_an_excess_occurs(series, pattern):
    assert s.pattern(series) == pattern


@pytest.mark.parametrize("seed", range(5))
def test_a_replay_of_nothing_is_the_trace_and_one_of_a_rank_waits_for_the_last(seed):
    random = Random(seed)
    work = [[random.uniform(0.05, 0.3) for _ in range(5)] for _ in range(7)]
    run = trace(work, transfer=0.03, after=0.01)
    assert s.what_if(run, lambda *_: False).seconds == pytest.approx(run.seconds, rel=1e-12)
    for rank in range(5):
        replaced = [[median(row) if r == rank else one for r, one in enumerate(row)] for row in work]
        expected = sum(max(row) + 0.03 + 0.01 for row in replaced)
        assert s.what_if(run, s.without(s.COMPUTE, rank)).seconds == pytest.approx(expected, rel=1e-12)
    everybody = s.what_if(run, s.without(s.COMPUTE))
    assert s.culprit(everybody).rank is None and everybody.seconds < run.seconds


def test_what_no_span_covers_counts_as_other():
    rows = [
        {"rank": r, "step": 0, "start": 0.0, "end": 1.0, "spans": [["forward", 0.2, 0.5], ["all_reduce", 0.5, 0.9]]}
        for r in (0, 1)
    ]
    row = s.read(rows).steps[0][0]
    assert row.segments == [{s.OTHER: 0.2, s.COMPUTE: pytest.approx(0.3)}, {s.OTHER: pytest.approx(0.1)}]


def test_transfers_begin_when_the_last_rank_arrives():
    run = trace([[0.1, 0.3]], transfer=0.05)
    assert run.transfers(0) == [[pytest.approx(0.05)], [pytest.approx(0.05)]]
    faster = s.what_if(trace([[0.1, 0.3], [0.1, 0.3]], transfer=0.05), s.without(s.TRANSFER))
    assert faster.seconds == pytest.approx(0.7)  # every transfer is as long as the median of equal ones


def test_scores_of_a_rank_that_was_always_slow_and_of_one_that_heats_up():
    heats = trace([[0.1, 0.1, 0.2, 0.1 * (1 + 0.2 * step)] for step in range(6)])
    relative = s.relative(heats)
    assert relative[0] == 1 and relative[2] == pytest.approx(0.5)
    assert s.individual(heats, 2) == pytest.approx([1.0] * 6)
    own = s.individual(heats, 3)
    assert own == sorted(own, reverse=True) and own[-1] == pytest.approx(0.5)


def test_the_first_value_that_is_not_finite():
    run = trace(HEALTHY[:2])
    assert s.not_finite(run) is None
    rows = [dict(asdict(row), values={"loss": float("nan") if (row.step, row.rank) >= (1, 2) else 1.0})
            for ranks in run.steps for row in ranks]  # fmt: skip
    assert s.not_finite(s.read(rows)) == ([2, 3], 1)


def test_bad_traces_get_one_line():
    rows = [asdict(row) for ranks in trace(HEALTHY).steps for row in ranks]
    for bad, words in (
        ([], "record at least one step"),
        (rows[:-1], "no row of rank 3"),
        ([rows[0] | {"spans": (("sleep", 0.0, 1.0),)}, *rows[1:]], "a span is called 'sleep'"),
        ([rows[0] | {"spans": rows[0]["spans"] * 2}, *rows[1:]], "collectives on one rank"),
        ([{"rank": 0, "step": 0}], "a row has no 'start'"),
        ([*rows, rows[3]], "two rows of one step"),
        ([rows[0] | {"end": -1.0}, *rows[1:]], "rank 0, step 0: times run backwards"),
        ([rows[0] | {"end": None}, *rows[1:]], "rank 0, step 0: a time is not a finite number"),
        ([rows[0] | {"start": float("nan")}, *rows[1:]], "rank 0, step 0: a time is not a finite number"),
        ([*rows[:-1], rows[-1] | {"values": {"loss": None}}], "rank 3, step 5: the value 'loss' is no number"),
    ):
        with pytest.raises(ValueError, match=words):
            s.read(bad)


def test_the_stored_trace_is_what_it_says():
    run = s.stored()
    assert run.ranks == 8 and len(run.steps) == 20 and "rank 5 computes 60 ms longer" in run.made
    found = s.culprit(run)
    assert (found.rank, found.part, found.pattern) == (5, s.COMPUTE, s.ALWAYS)
    assert s.what_if(run, lambda *_: False).seconds == pytest.approx(run.seconds, rel=1e-12)
    after = s.culprit(s.what_if(run, lambda rank, _step, part: rank == 5 and part != s.TRANSFER))
    assert (after.rank, after.part) == (0, s.SAVE)  # which the slower rank had hidden
