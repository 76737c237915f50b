"""The life of each unit, read off the short schedule, is where the whole schedule has it."""

import pytest
from cases import over
from fsdp_views import both

from scaleout.timing.fsdp_lives import lives
from scaleout.timing.fsdp_plan import Plan


@over(
    wrap=("block", "layer", "size"),
    model=("gpt2", "llama-3-70b"),
    how=({}, {"reshard": False}, {"prefetch": 3, "checkpointing": "full"}),
)
def test_every_life_is_where_the_whole_schedule_has_it(wrap, model, how):
    whole, short = both(model, wrap, "fast", **how)
    plan = Plan(whole.pieces)
    rows, count = lives(short, 10**6)
    assert count == len(rows) == len(plan.names) and [one.name for one in rows] == list(plan.names)
    spans = {(name, piece, unit): (start, end) for _, name, start, end, piece, unit in whole.runs[0]}
    sent = {(name.rpartition(" ")[0], unit): span for (name, _, unit), span in spans.items()}
    ran = {
        (name.partition(" ")[0], piece): span
        for (name, piece, _), span in spans.items()
        if name.partition(" ")[0] in ("forward", "backward")
    }
    near = 1e-9 * whole.seconds
    for unit, one in enumerate(rows):
        for what, span in (("gather", one.gather), ("gather again", one.regather), ("reduce-scatter", one.reduce)):
            assert (span is None) == ((what, unit) not in sent), (one.name, what)
            assert span is None or span == pytest.approx(sent[what, unit], abs=near), (one.name, what)
        first, last = plan.first[unit], plan.last[unit]
        if ("forward", first) in ran and ("forward", last) in ran:
            assert one.forward == pytest.approx((ran["forward", first][0], ran["forward", last][1]), abs=near)
        if ("backward", first) in ran:
            assert one.backward[1] == pytest.approx(ran["backward", first][1], abs=near)
    again = sum(one.regather is not None for one in rows)
    assert again == (0 if "reshard" in how else whole.gathers - sum(one.gather is not None for one in rows))


def test_some_of_many_are_spread_from_the_first_to_the_last():
    _, short = both("llama-3-70b", "layer", "fast")
    every, count = lives(short, 10**6)
    some, same = lives(short, 34)
    assert count == same == 563 and 34 <= len(some) <= 35
    assert (some[0].number, some[-1].number) == (0, count - 1) and count // 2 in [one.number for one in some]
    assert all(one == every[one.number] for one in some)
