"""The index of a checkpoint's tensors: chunks that do not make up their tensor once are named."""

import copy

import pytest

from scaleout.records import chunks

FILES = {"a": {"bytes": 100}, "b": {"bytes": 50}}
TABLE = {
    "w": {
        "dtype": "f",
        "size": [4, 6],
        "chunks": [[[0, 0], [2, 6], "a", 0, 40], [[2, 0], [2, 3], "b", 0, 20], [[2, 3], [2, 3], "b", 20, 20]],
    },
    "step": {"dtype": "f", "size": [], "chunks": [[[], [], "a", 40, 10]]},
    "uneven": {"dtype": "f", "size": [3], "chunks": [[[0], [3], "a", 50, 10], [[3], [0], "b", 40, 10]]},
}


def changed(name, at, value):
    """TABLE with another value at a path of a tensor's entry; with None there without what is at the path's end."""
    table = copy.deepcopy(TABLE)
    *way, last = at
    place = table[name]
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return table


def test_a_sound_index_covers_every_tensor_once():
    assert chunks.problem(TABLE, FILES, {"f"}) is None
    grid = {
        "w": {
            "dtype": "f",
            "size": [8, 8],
            "chunks": [[[i, j], [2, 4], "a", 12 * i + 3 * j // 2, 6] for i in (0, 2, 4, 6) for j in (0, 4)],
        }
    }
    assert chunks.problem(grid, FILES, {"f"}) is None


@pytest.mark.parametrize(
    ("name", "at", "value", "said"),
    [
        ("w", ["chunks", 0], None, "w has chunks of 12 numbers, and is 4 x 6"),
        ("w", ["chunks", 2, 0], [2, 2], "w has two chunks for the same numbers, at [2, 2]"),
        ("w", ["chunks", 0, 0], [3, 0], "w has a chunk at [3, 0] of 2 x 6, outside its 4 x 6"),
        ("w", ["size"], [5, 6], "w has chunks of 24 numbers, and is 5 x 6"),
        ("w", ["chunks", 1, 2], "../b", "w is in '../b', which is not of this checkpoint"),
        ("w", ["chunks", 1, 4], 51, "w ends beyond the 50 bytes of b"),
        ("step", ["chunks", 0, 3], 39, "step shares bytes of a with w"),
        ("step", ["chunks", 0], None, "step has chunks of 0 numbers, and is one number"),
        ("step", ["dtype"], "quaternion", "step has the dtype quaternion, which torch has not"),
        ("step", ["size"], "4", "step has no sound size and chunks"),
        ("step", ["chunks"], None, "step has no sound size"),
        ("w", ["chunks", 0, 3], -1, "w has a chunk that is none"),
        ("w", ["chunks", 0, 0], [0], "w has a chunk that is"),
        ("w", ["chunks", 0, 2], 7, "w has a chunk that is none"),
        ("w", ["chunks", 0], [1, 2], "w has a chunk that is"),
        ("uneven", ["chunks", 0, 1], [2], "uneven has chunks of 2 numbers, and is 3"),
    ],
)
def test_what_is_missing_twice_there_or_elsewhere_is_named(name, at, value, said):
    assert chunks.problem(changed(name, at, value), FILES, {"f"}).startswith(said)


def test_another_model_is_told_by_its_first_tensor():
    assert chunks.other(TABLE, {"w": [4, 6], "step": []}) is None
    assert chunks.other(TABLE, {"step": [], "w": [8, 6]}) == "has w of 4 x 6, this job 8 x 6"
    assert chunks.other(TABLE, {"w": [4, 6], "bias": [1]}) == "has no bias"
