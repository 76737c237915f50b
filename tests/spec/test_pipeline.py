"""Pipeline schedules: what an order has in it, where stages are, and what is refused."""

import pytest
from cases import refused, refuses_nonsense

from scaleout.memory.pipeline import in_flight
from scaleout.spec.layout import Layout
from scaleout.spec.pipeline import (
    SCHEDULES,
    Action,
    allowed,
    code,
    coded,
    decode,
    enough,
    nearest,
    orders,
    rank_of,
    refuse,
    stages_of,
)
from scaleout.spec.pipeline_weave import phases

CASES = [
    (name, p, m, max(1, facts.chunks[0]))
    for name, facts in SCHEDULES.items()
    for p in (1, 3)
    for m in (6, 7)
    if not (m == 7 and name in ("interleaved", "zb1") and p == 3)
]


@pytest.mark.parametrize(("schedule", "p", "m", "v"), [*CASES, ("zb1", 4, 8, 1), ("zbv", 4, 3, 2), ("zb1", 3, 2, 4)])
def test_each_stage_has_each_micro_batch_forward_and_backward_once(schedule, p, m, v):
    found = orders(schedule, p, m, v)
    for rank, row in enumerate(found):
        want = {(s, i) for s in stages_of(schedule, rank, p, v) for i in range(m)}
        for kinds in ("F", "BI"):
            have = [(a.stage, a.micro) for a in row if a.kind in kinds]
            assert set(have) == want and len(have) == len(want)
        inputs, weights = ([a[1:] for a in row if a.kind == kind] for kind in "IW")
        assert sorted(inputs) == sorted(weights)
    assert [[code(a, p * v, m) for a in row] for row in found] == coded(schedule, p, m, v)


def test_a_number_is_an_action_and_what_it_makes_is_needed_one_row_on():
    stages, m = 6, 5
    assert decode(code(Action("B", 4, 3), stages, m), stages, m) == Action("B", 4, 3)
    for kind, stage, onward in (("F", 2, Action("F", 3, 1)), ("F", 5, Action("I", 5, 1)), ("I", 3, Action("I", 2, 1))):
        assert decode(code(Action(kind, stage, 1), stages, m) + m, stages, m) == onward


def test_one_forward_one_backward_as_megatron_has_it():
    """Rank r begins with p - r - 1 forwards, then a forward and a backward in turn (arXiv 2104.04473, section 2.2)."""
    for rank, row in enumerate(orders("1f1b", 4, 8)):
        warm = 3 - rank
        assert [action.kind for action in row] == ["F"] * warm + ["F", "B"] * (8 - warm) + ["B"] * warm
        assert {action.stage for action in row} == {rank}


def test_chunks_go_round_the_ranks_or_there_and_back():
    assert [stages_of("interleaved", rank, 3, 2) for rank in range(3)] == [(0, 3), (1, 4), (2, 5)]
    assert [stages_of("zbv", rank, 3, 2) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (("1f1b", 4, 3), "1f1b needs a micro-batch for each of 4 ranks, not 3: use m = 4"),
        (("dualpipev", 4, 7, 2), "dualpipev needs two for each of 4 ranks, not 7: use m = 8"),
        (("interleaved", 4, 9, 2), "takes micro-batches in equal rounds of at least 4, not 9: use m = 10"),
        (("interleaved", 4, 8), "interleaved has at least 2 chunks per rank, not 1: use v = 2"),
        (("zbv", 4, 8, 3), "zbv has 2 chunks per rank, not 3: use v = 2"),
        (("1f1b", 4, 8, 2), "1f1b has 1 chunk per rank, not 2: use v = 1"),
        (("1f1b", 0, 8), "p must be a whole number"),
        (("pipedream", 4, 8), "schedule 'pipedream' is unknown: use one of gpipe, 1f1b, "),
    ],
)
def test_refusals_name_the_nearest_that_works(ask, line):
    refused(lambda: refuse(*ask), line)


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (lambda: rank_of("pipedream", 1, 4), "schedule 'pipedream' is unknown: use one of gpipe, 1f1b, interleaved"),
        (lambda: rank_of("zbv", -1, 4), "stage must be a whole number of at least 0, not -1"),
        (
            lambda: rank_of("zbv", 3, 0),
            "p must be a whole number (ranks, micro-batches, chunks per rank) of at least 1",
        ),
        (lambda: stages_of("pipedream", 0, 4, 2), "schedule 'pipedream' is unknown"),
        (lambda: stages_of("zbv", 4, 4, 2), "rank must be a whole number from 0 to 3, not 4"),
        (lambda: allowed("pipedream", 4, 8), "schedule 'pipedream' is unknown"),
        (lambda: allowed("interleaved", 0, 8), "p must be a whole number"),
        (lambda: nearest("pipedream", 4, 8), "schedule 'pipedream' is unknown"),
        (lambda: enough("pipedream", 4), "schedule 'pipedream' is unknown"),
        (lambda: coded("pipedream", 4, 8), "schedule 'pipedream' is unknown"),
        (lambda: orders(["zbv"], 4, 8), "schedule ['zbv'] is unknown"),
        (lambda: phases("pipedream", 4, 8, 1, 0), "schedule 'pipedream' is unknown"),
        (lambda: in_flight("pipedream", 4, 8), "schedule 'pipedream' is unknown"),
    ],
)
def test_what_no_schedule_has_is_said_by_all_who_are_asked(ask, line):
    refused(ask, line)


def test_nonsense_is_refused():
    refuses_nonsense(rank_of, "zbv", 5, 4, allowed=[(1, 0)])
    refuses_nonsense(stages_of, "zbv", 0, 4, 2, allowed=[(1, 0)])
    refuses_nonsense(lambda p, m: allowed("zb1", p, m), 4, 8)
    refuses_nonsense(enough, "zbv", 4)


def test_a_layout_carries_a_pipeline():
    plain = Layout(pp=4)
    assert (plain.m, plain.stages, plain.last_rank) == (4, 4, 3)
    bent = Layout(pp=4, chunks=2, schedule="dualpipev")
    assert (bent.m, bent.stages, bent.last_rank) == (enough("dualpipev", 4), 8, 0) == (8, 8, 0)
    assert Layout(pp=4, chunks=2, schedule="interleaved", micro_batches=12).m == 12 and Layout().m == 1
    for wrong, line in (
        ({"pp": 4, "micro_batches": 3}, "use m = 4"),
        ({"chunks": 2}, "chunks 2 needs a pipeline: use chunks 1, or pp of at least 2"),
        ({"schedule": "fifo"}, "schedule 'fifo' is unknown"),
        ({"pp": 2, "chunks": 2}, "use v = 1"),
    ):
        with pytest.raises(ValueError, match=line):
            Layout(**wrong)
