"""The parts of bars: every kind of bytes and every part of a step is in one of them, and only there."""

import pytest

from scaleout.draw import parts
from scaleout.memory.tape import KINDS
from scaleout.timing.job import PARTS

TABLES = {"BYTES": KINDS, "SECONDS": PARTS, "GROUPS": PARTS}


@pytest.mark.parametrize("table", TABLES)
def test_each_is_counted_once(table):
    members = [member for part in getattr(parts, table) for member in part.members]
    assert sorted(members) == sorted(TABLES[table])


@pytest.mark.parametrize("table", ["BYTES", "GROUPS"])
def test_no_two_that_stand_side_by_side_look_the_same(table):
    looks = [(part.colour, part.hatched) for part in getattr(parts, table)]
    assert len(set(looks)) == len(looks)


def test_names_get_shorter_and_the_brief_one_is_a_word():
    for part in (*parts.BYTES, *parts.GROUPS):
        assert list(part.names) == sorted(part.names, key=len, reverse=True)
        assert part.brief in part.names and not part.brief.endswith(".")
    assert parts.sizes(parts.BYTES, {"master": 2, "optimizer": 3, "logits": 1})[parts.BYTES[2]] == 5
