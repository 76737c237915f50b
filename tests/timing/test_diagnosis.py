"""The ten faults, each in a trace that is written out by hand, with the rank where it begins; and runs without one."""

import math

import pytest
from cases import each

from scaleout.timing import diagnosis, stragglers
from scaleout.timing.diagnosis import (
    CHECKPOINT,
    COLLECTIONS,
    EVALUATOR,
    FAULTS,
    HEAT,
    LATE,
    LENGTHS,
    NAN,
    SLOW_DISK,
    SLOW_LINK,
    SLOW_RANK,
)

STEPS, CULPRIT = 9, 1


def trace(ranks, work, transfer=0.002, values=lambda rank, step: {"loss": 5.0, "tokens": 8}, late=None):
    """A run in which work(rank, step) is {span: seconds} before the all-reduce, under "after" what follows it; all
    leave the all-reduce `transfer` seconds after the last has arrived. late: {rank: seconds before its first step}."""
    clocks, rows = [0.0] * ranks, []
    for step in range(STEPS):
        spans, starts = [[] for _ in range(ranks)], [*clocks]
        for rank in range(ranks):
            clocks[rank] += (late or {}).get(rank, 0.0) * (step == 0)
            for name, seconds in work(rank, step).items():
                if name not in ("save", "evaluate"):
                    spans[rank].append((name, clocks[rank], clocks[rank] + seconds))
                    clocks[rank] += seconds
        end = max(clocks) + transfer
        for rank in range(ranks):
            spans[rank].append(("all_reduce", clocks[rank], end))
            clocks[rank] = end
            for name in ("save", "evaluate"):
                if name in work(rank, step):
                    clocks[rank] += work(rank, step)[name]
                    spans[rank].append((name, end, clocks[rank]))
            rows.append({"rank": rank, "step": step, "start": starts[rank], "end": clocks[rank], "spans": spans[rank],
                         "values": values(rank, step)})  # fmt: skip
    return stragglers.read(rows)


def usual(rank, step, **more):
    """The work of a healthy rank, which is never twice the same."""
    noise = 0.001 * ((7 * rank + 5 * step) % 4)
    spans = {"input": 0.001, "forward": 0.01 + noise, "backward": 0.02}
    return spans | {name: spans.get(name, 0.0) + seconds for name, seconds in more.items()}


def mine(rank):
    return rank == CULPRIT


def turn(ranks):
    return lambda rank, step: (step + step // ranks) % ranks == rank


def runs(ranks):
    """{fault: (trace, rank where it began)}."""
    on = turn(ranks)
    lengths = trace(
        ranks,
        lambda r, s: usual(r, s, backward=0.1 * on(r, s)),
        values=lambda r, s: {"loss": 5.0, "tokens": 32 if on(r, s) else 8},
    )
    loss = lambda r, s: {"loss": math.nan if s > 4 or (s == 4 and mine(r)) else 5.0, "tokens": 8}  # noqa: E731
    return {
        SLOW_RANK: (trace(ranks, lambda r, s: usual(r, s, backward=0.1 * mine(r))), CULPRIT),
        SLOW_DISK: (trace(ranks, lambda r, s: usual(r, s, input=0.1 * mine(r))), CULPRIT),
        SLOW_LINK: (trace(ranks, usual, transfer=0.1), None),
        COLLECTIONS: (trace(ranks, lambda r, s: usual(r, s, collect=0.1 * on(r, s))), None),
        CHECKPOINT: (trace(ranks, lambda r, s: usual(r, s, save=0.4 * (mine(r) and s in (3, 7)))), CULPRIT),
        LENGTHS: (lengths, None),
        NAN: (trace(ranks, usual, values=loss), CULPRIT),
        HEAT: (trace(ranks, lambda r, s: usual(r, s, forward=0.03 * s * mine(r))), CULPRIT),
        LATE: (trace(ranks, usual, late={CULPRIT: 0.9}), CULPRIT),
        EVALUATOR: (trace(ranks, lambda r, s: usual(r, s, evaluate=0.3 * (mine(r) and s % 3 == 1))), CULPRIT),
    }


@each([2, 3, 4, 8])
def test_each_fault_is_named_with_the_rank_where_it_began(ranks):
    found = {fault: diagnosis.diagnose(run) for fault, (run, _) in runs(ranks).items()}
    assert {fault: (one.fault, one.rank) for fault, one in found.items()} == {
        fault: (fault, rank) for fault, (_, rank) in runs(ranks).items()
    }
    assert set(found) == set(FAULTS)


def test_a_run_without_a_fault_has_none():
    found = diagnosis.diagnose(trace(4, usual))
    assert (found.fault, found.rank, found.cascade) == (None, None, "") and found.why.startswith("no fault stands out")


def test_two_faults_of_one_size_are_not_told_apart():
    run = trace(4, lambda r, s: usual(r, s, input=0.1 * (r == 0), backward=0.1 * (r == 3)))
    assert diagnosis.diagnose(run).fault is None


def test_long_compute_that_lengths_do_not_explain_is_not_called_so():
    on = turn(4)
    run = trace(4, lambda r, s: usual(r, s, backward=0.1 * on(r, s)))
    found = diagnosis.diagnose(run)
    assert found.fault is None and "in 0% of the steps the rank with most tokens computes longest" in found.why


def test_the_cascade_has_both_ends_of_the_waiting():
    found = diagnosis.diagnose(runs(3)[SLOW_DISK][0])
    assert found.cascade.startswith("the others are in collectives for 10") and found.cascade.endswith("rank 1 for 2")
    assert diagnosis.diagnose(runs(3)[SLOW_LINK][0]).cascade.startswith("ranks are in collectives for 10")
    nan = diagnosis.diagnose(runs(3)[NAN][0])
    assert nan.why.endswith("in step 4") and nan.cascade == "2 more from step 5"


def test_what_is_lost_is_what_was_injected():
    """Of four ranks the median is healthy, so that the whole of it is saved; of two it is the mean, and half is."""
    for ranks, part in ((4, 1.0), (2, 0.5)):
        lost = diagnosis.losses(runs(ranks)[SLOW_DISK][0])
        assert lost["input"] == pytest.approx(part * 0.1 * STEPS, rel=0.05)
        assert lost["transfer"] == pytest.approx(0.002 * STEPS)
        assert max(lost, key=lost.get) == "input" and lost["save"] == pytest.approx(0, abs=1e-9)
    assert diagnosis.losses(runs(4)[SLOW_LINK][0])["transfer"] == pytest.approx(0.1 * STEPS)
