"""Exercises of `mesh` on places: a rank's coordinates, the groups of an axis, and which of them leave a node."""

from __future__ import annotations

from itertools import product
from math import prod

from scaleout.exercises.engine import Choice, Function, Mistake, Option

_STUB = '''\
def place(rank, sizes):
    """A rank's coordinates, outermost axis first: a list.

    sizes: of the axes, outermost first; the last counts fastest
    """
    return ...
'''

_SOLUTION = """\
def place(rank, sizes):
    found = []
    for size in reversed(sizes):       # the last axis counts fastest
        found.append(rank % size)
        rank //= size
    return found[::-1]
"""


def _strides(sizes):
    return [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _place(rank, sizes):
    return [rank // stride % size for stride, size in zip(_strides(sizes), sizes, strict=True)]


def _first_fastest(rank, sizes):
    return _place(rank, sizes[::-1])[::-1]


PLACE = Function(
    key="place-of-rank",
    level=1,
    minutes=5,
    title="Where rank 8 stands",
    lists=True,
    index=True,
    prompt="`init_device_mesh` numbers ranks along its axes, and **the last axis counts fastest**: on sizes `[2, 3]` "
    "ranks 0, 1, 2 are (0, 0), (0, 1), (0, 2), and rank 3 is (1, 0). Write `place(rank, sizes)`, the list of a "
    "rank's coordinates, outermost axis first.\n\n`place(8, [2, 3, 2])` is `[1, 1, 0]`.",
    hints=(
        "Read a rank as a number whose digits have different bases: hours, minutes, seconds.",
        "The last coordinate is `rank % sizes[-1]`. What is left over for the other axes?",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "Two ranks whose numbers differ by one are neighbours along the *last* axis, and along the first they are as far "
    "apart as can be. A launcher numbers ranks node by node, so the last axis is the one that stays in a node. "
    "The way back is a sum of coordinate × stride, where an axis' stride is the product of the sizes after it.",
    function="place",
    stub=_STUB,
    reference=_place,
    cases=(
        (8, [2, 3, 2]),
        (0, [2, 2, 2]),
        (11, [2, 3, 2]),
        (3, [3, 2]),
        (13, [2, 2, 4]),
        (7, [8]),
        (6, [1, 7, 1]),
        (100, [3, 5, 7]),
        (23, [2, 3, 4]),
        (29, [4, 3, 2, 2]),
    ),
    mistakes=(
        Mistake("first-fastest", _first_fastest, "You let the first axis count fastest. It is the last."),
        Mistake(
            "innermost-first",
            lambda rank, sizes: _place(rank, sizes)[::-1],
            "Your coordinates are right, but the innermost comes first: turn the list round.",
        ),
        Mistake(
            "not-wrapped",
            lambda rank, sizes: [rank // stride for stride in _strides(sizes)],
            "You divided by the stride and left out the remainder: a coordinate is below its axis' size.",
        ),
        Mistake(
            "remainder-alone",
            lambda rank, sizes: [rank % size for size in sizes],
            "You took the remainder of the rank for each axis. First take away what inner axes have counted.",
        ),
        Mistake(
            "own-size",
            lambda rank, sizes: [rank // size % size for size in sizes],
            "You divided by the axis' own size. It is the sizes of the axes after it that count.",
        ),
        Mistake(
            "from-one",
            lambda rank, sizes: [place + 1 for place in _place(rank, sizes)],
            "Your coordinates begin at 1. They begin at 0.",
        ),
    ),
    right="Digits of mixed bases, the last one fastest.",
)

_GROUPS_STUB = '''\
def groups(sizes, axis):
    """All groups along an axis: a list of lists of ranks.

    sizes: of the axes, outermost first; the last counts fastest
    axis: which of them, from 0
    """
    return ...
'''

_GROUPS_SOLUTION = """\
from math import prod

def groups(sizes, axis):
    stride = prod(sizes[axis + 1:])    # between neighbours
    found = []
    for rank in range(prod(sizes)):
        if rank // stride % sizes[axis] == 0:
            found.append([rank + i * stride for i in range(sizes[axis])])
    return found
"""


def _groups(sizes, axis, stride=None):
    stride = prod(sizes[axis + 1 :]) if stride is None else stride
    return [
        [rank + i * stride for i in range(sizes[axis])]
        for rank in range(prod(sizes))
        if rank // stride % sizes[axis] == 0
    ]


def _runs(sizes, axis):
    return _groups(sizes, axis, 1)


def _same_coordinate(sizes, axis):
    ranks = range(prod(sizes))
    return [[rank for rank in ranks if _place(rank, sizes)[axis] == place] for place in range(sizes[axis])]


def _not_itself(sizes, axis):
    """Groups of the other order of counting, in ranks as they are."""
    turned = _groups(sizes[::-1], len(sizes) - 1 - axis)
    return sorted(turned)


def _of_rank_0(sizes, axis):
    return _groups(sizes, axis)[:1]


def _spread(sizes, axis):
    """As many groups as the axis is long, dealt out in turn: the stride of another axis."""
    count = prod(sizes) // sizes[axis]
    return [[first + i * count for i in range(sizes[axis])] for first in range(count)]


GROUPS = Function(
    key="axis-groups",
    level=2,
    minutes=10,
    title="The groups of an axis",
    lists=True,
    index=True,
    prompt="A group along an axis is the ranks that differ in that coordinate alone. Write `groups(sizes, axis)`: all "
    "of them, as `new_group` would be given them. Ranks of a group in order, groups by their first rank; the last "
    "axis counts fastest.\n\n"
    "`groups([2, 3, 2], 1)` is `[[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]`.",
    hints=(
        "How far apart are two neighbours along the axis? It is a product of sizes.",
        "A group begins at each rank whose coordinate along the axis is 0.",
    ),
    solution="```python\n"
    f"{_GROUPS_SOLUTION}```\n\n"
    "Every rank is in exactly one group of each axis, so that there are (all ranks) / (size) of them. With "
    "`torch.distributed` **every** rank has to call `new_group` for **every** group, in the same order, also for those "
    "that it is not in; `init_device_mesh` does that. Where each makes its own alone, they hang, or add up with ranks "
    "that nobody meant.",
    function="groups",
    stub=_GROUPS_STUB,
    reference=_groups,
    cases=(
        ([2, 3, 2], 1),
        ([2, 3, 2], 0),
        ([2, 3, 2], 2),
        ([2, 2, 2], 0),
        ([2, 2, 2], 1),
        ([4, 3], 0),
        ([4, 3], 1),
        ([1, 5], 0),
        ([7], 0),
        ([3, 1, 4], 1),
        ([2, 2, 3, 2], 1),
        ([2, 2, 3, 2], 2),
    ),
    mistakes=(
        Mistake(
            "runs",
            _runs,
            "Your groups are ranks in a row. That is right for the last axis; along the others "
            "neighbours lie further apart.",
        ),
        Mistake(
            "same-coordinate",
            _same_coordinate,
            "You put ranks together whose coordinate along the axis is the same. It is the one in which they differ.",
        ),
        Mistake("first-fastest", _not_itself, "You let the first axis count fastest. It is the last."),
        Mistake(
            "group-of-rank-0", _of_rank_0, "You gave the group of rank 0. There is one for each of the others too."
        ),
        Mistake(
            "dealt-out",
            _spread,
            "You spread each group over all ranks evenly. That is right for the first axis; "
            "inner groups lie closer together.",
        ),
    ),
    right="A stride, and one group from each rank whose coordinate there is 0.",
)

ORDER, NODE = {"tp": 4, "pp": 2, "dp": 4}, 8


def leaves(sizes: dict[str, int], node: int) -> set[str]:
    """The axes of which a group has ranks on several nodes."""
    names, coordinates = list(sizes), list(product(*map(range, sizes.values())))
    axes = set()
    for axis, name in enumerate(names):
        for rank, place in enumerate(coordinates):
            first_place = (*place[:axis], 0, *place[axis + 1 :])
            if coordinates.index(first_place) // node != rank // node:
                axes.add(name)
    return axes


CROSSES = Choice(
    key="which-crosses",
    level=1,
    minutes=3,
    title="Four is less than eight",
    prompt=f"{prod(ORDER.values())} GPUs on 4 nodes of {NODE}, numbered node by node. Somebody writes\n\n"
    "```\n"
    f'init_device_mesh("cuda", {tuple(ORDER.values())},\n    mesh_dim_names={tuple(ORDER)})\n'.replace("'", '"')
    + "```\n\nWhich axes have groups that reach over several nodes?",
    hints=(
        "Which ranks are in the tp group of rank 0? How far apart are they?",
        "dp is the last axis: its groups are 0 to 3, 4 to 7, and so on.",
    ),
    solution="**tp alone.** dp's groups are four ranks in a row, pp's are pairs 4 apart, such as 0 and 4: both stay in "
    "a node. tp is the outermost axis, its neighbours are 2 × 4 = 8 apart: ranks 0, 8, 16 and 24, one on each node. "
    "That 4 is less than 8 does not help it; what counts is its **stride × size**, which is 32.\n\n"
    "So the axis that sends most, and waits for it, goes over the slow wires, and the one that sends once a step has "
    "NVLink. Every byte is sent as before, all results are right, and it is only slow. torchtitan once had it: its "
    "mesh *should be PP DP TP. This matters for NUMA across nodes*, says a report named "
    "*Wrong mesh order* (pytorch/torchtitan, issue 286).",
    options=(
        Option("tp", "tp alone", "Right: its ranks are 0, 8, 16 and 24.", True),
        Option(
            "none",
            "None of them",
            "Each axis is shorter than a node, but where its groups lie depends on the axes after it too.",
        ),
        Option("dp", "dp alone", "dp is the last axis here, and counts fastest: its first group is ranks 0 to 3."),
        Option("pp-dp", "pp and dp", "That is so in the usual order, with tp last. Here tp comes first."),
        Option(
            "tp-pp", "tp and pp", "tp does. A pipeline's two stages are 4 apart, such as ranks 0 and 4, of one node."
        ),
        Option(
            "all", "All three", "Ranks 0 to 7 are one node. Both stages and all four replicas of dp are among them."
        ),
    ),
)

EXERCISES = (CROSSES, PLACE, GROUPS)
