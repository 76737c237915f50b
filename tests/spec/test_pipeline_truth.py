"""The seven schedules against torch's own tables of actions: every rank, every action, in order."""

import contextlib
import io
from functools import lru_cache
from itertools import cycle
from unittest import mock

import pytest

from scaleout.parallel import private
from scaleout.spec.pipeline import SCHEDULES, allowed, orders

KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


@pytest.fixture(scope="module", autouse=True)
def quick():
    """torch makes a new mock of a stage for each table, and lowers each to sends and receives, which nobody asks for:
    both together are nine tenths of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mock, "create_autospec", lru_cache(mock.create_autospec))
        patch.setattr(private.schedule_runtime, "_prepare_schedule_with_comms", lambda *args, **options: None)
        yield


def torchs(schedule: str, p: int, m: int, v: int) -> list[list[tuple[str, int, int]]]:
    """torch's table: without what it leaves empty and its REDUCE_GRAD; a pair that it overlaps runs as F, then B."""
    with contextlib.redirect_stdout(io.StringIO()):
        table = private.schedule_ops(SCHEDULES[schedule].torch, p, m, num_stages_per_rank=v)
    out = []
    for rank, row in enumerate(table):
        single = (one for action in row if action for one in action.sub_actions or [action])
        found = [
            (KINDS[a.computation_type.name], a.stage_index, a.microbatch_index)
            for a in single
            if a.computation_type.name in KINDS
        ]
        if schedule == "1f1b" and rank == p - 1:  # torch 2.13 numbers these forwards from 1
            found = [(kind, stage, micro - (kind == "F")) for kind, stage, micro in found]
        out.append(found)
    return out


def grid(schedule: str):
    """(p, m, v): every p, with m on both sides of what the schedule turns at, and each v that it takes."""
    least, most = SCHEDULES[schedule].chunks
    chunks = cycle(range(max(2, least), 5) if most is None else [least])
    for p in range(2, 9):
        for m in sorted({1, p - 1, p, p + 1, 2 * p - 1, 2 * p, 2 * p + 2, 3 * p, 4 * p - 4, 25, 32}):
            yield p, m, next(chunks)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_orders_are_torchs(schedule):
    compared = 0
    for p, m, v in grid(schedule):
        if allowed(schedule, p, m):
            assert [list(map(tuple, row)) for row in orders(schedule, p, m, v)] == torchs(schedule, p, m, v), (p, m, v)
            compared += 1
    assert compared >= 38


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_torch_refuses_is_refused(schedule):
    v = max(2, SCHEDULES[schedule].chunks[0]) if SCHEDULES[schedule].chunks[1] != 1 else 1
    for p in (2, 3, 4):
        for m in range(1, 3 * p + 1):
            try:
                torchs(schedule, p, m, v)
            except ValueError:
                assert not allowed(schedule, p, m), (p, m)
            else:
                assert allowed(schedule, p, m), (p, m)
