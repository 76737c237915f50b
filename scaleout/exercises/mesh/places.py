"""Exercises of `mesh` on places: the groups of an axis, and which of them span nodes."""

from __future__ import annotations

from itertools import product
from math import prod

from scaleout.exercises.engine import Choice, Function, Mistake, Option


def _place(rank, sizes):
    """A rank's coordinates, the last axis fastest."""
    strides = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    return [rank // stride % size for stride, size in zip(strides, sizes, strict=True)]


_GROUPS_STUB = '''\
def groups(sizes, axis):
    """All groups along an axis: a list of lists of ranks.

    sizes: of the axes, outermost first; the last varies fastest
    axis: which of them, from 0
    """
    return ...
'''

_GROUPS_SOLUTION = """\
from math import prod

def groups(sizes, axis):
    stride = prod(sizes[axis + 1:])    # between neighbors
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


def _same_coordinate(sizes, axis):
    ranks = range(prod(sizes))
    return [[rank for rank in ranks if _place(rank, sizes)[axis] == place] for place in range(sizes[axis])]


def _not_itself(sizes, axis):
    """Groups of the other order of counting, in ranks as they are."""
    turned = _groups(sizes[::-1], len(sizes) - 1 - axis)
    return sorted(turned)


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
    prompt="A group along an axis consists of the ranks that differ in that coordinate only. Write "
    "`groups(sizes, axis)`: all groups, as `new_group` would get them. Sort the ranks of each group, and the groups by "
    "their first rank. The last axis varies fastest.\n\n"
    "`groups([2, 3, 2], 1)` is `[[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]`.",
    hints=(
        "How far apart are two neighbors along the axis? The distance is a product of sizes.",
        "A group begins at each rank whose coordinate along the axis is 0.",
    ),
    solution="```python\n"
    f"{_GROUPS_SOLUTION}```\n\n"
    "Every rank is in exactly one group of each axis, so an axis has (all ranks) / (size) groups. In "
    "`torch.distributed` **every** rank must call `new_group` for **every** group, in the same order, also for groups "
    "that it is not in; `init_device_mesh` does that for you. If each rank creates only its own group, ranks "
    "hang, or sum with the wrong ranks.",
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
            lambda sizes, axis: _groups(sizes, axis, 1),
            "Your groups are ranks in a row. That is right for the last axis. Along the other axes, "
            "neighbors are further apart.",
        ),
        Mistake(
            "same-coordinate",
            _same_coordinate,
            "You grouped ranks whose coordinate along the axis is the same. It is the one in which they differ.",
        ),
        Mistake("first-fastest", _not_itself, "You let the first axis vary fastest. It is the last."),
        Mistake(
            "group-of-rank-0",
            lambda sizes, axis: _groups(sizes, axis)[:1],
            "You returned only the group of rank 0. The others have groups too.",
        ),
        Mistake(
            "dealt-out",
            _spread,
            "You spread each group evenly over all ranks. That is right for the first axis. Along inner axes, "
            "the ranks of a group are closer together.",
        ),
    ),
    right="One group starts at each rank whose coordinate is 0, and continues by the stride.",
)

ORDER, NODE = {"tp": 4, "pp": 2, "dp": 4}, 8


def leaves(sizes: dict[str, int], node: int) -> set[str]:
    """The axes with a group that has ranks on several nodes."""
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
    short=True,
    title="Four is less than eight",
    prompt=f"A job has {prod(ORDER.values())} GPUs on 4 nodes of {NODE}, numbered node by node. Somebody writes\n\n"
    "```\n"
    f'init_device_mesh("cuda", {tuple(ORDER.values())},\n    mesh_dim_names={tuple(ORDER)})\n'.replace("'", '"')
    + "```\n\nWhich axes have groups that span several nodes?",
    hints=(
        "Which ranks are in the tp group of rank 0, and how far apart are they?",
        "dp is the last axis, so its groups are ranks 0 to 3, 4 to 7, and so on.",
    ),
    solution="**Only tp.** A dp group is four consecutive ranks, and a pp group is a pair 4 apart, such as 0 and 4: "
    "both stay in a node. tp is the outermost axis, so its neighbors are 2 × 4 = 8 apart: ranks 0, 8, 16 and 24, one "
    "on each node. It does not help that 4 is less than 8. What counts is the axis' **stride × size**, which is 32.\n\n"
    "So the axis that sends most, and whose communication is exposed, gets the slow network, and the axis that "
    "communicates once per step gets NVLink. All bytes and all results are as before, and the job is only slow. "
    "torchtitan once had this order: its mesh *should be PP DP TP. This matters for NUMA across nodes*, says a report "
    "named *Wrong mesh order* (pytorch/torchtitan, issue 286).",
    options=(
        Option("tp", "tp alone", "Right: a tp group is ranks 0, 8, 16 and 24.", True),
        Option(
            "none",
            "None of them",
            "Each axis is shorter than a node. But where its groups are also depends on the axes after it.",
        ),
        Option("dp", "dp alone", "dp is the last axis here and varies fastest: its first group is ranks 0 to 3."),
        Option("pp-dp", "pp and dp", "That would be so in the usual order, with tp last. Here tp comes first."),
        Option("tp-pp", "tp and pp", "tp does. The two ranks of a pp group are 4 apart, such as 0 and 4, in one node."),
        Option("all", "All three", "Ranks 0 to 7 are one node. It contains both stages and all four replicas."),
    ),
)

EXERCISES = (CROSSES, GROUPS)
