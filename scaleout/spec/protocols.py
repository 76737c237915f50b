"""NCCL's own constants: the times of a hop and a call, and the share of a link's rate, for each protocol.

NVIDIA/nccl at b647562, src/graph/tuning.cc: tables baseLat, hwLat and llMaxBws, and the shares of a link's rate beside
them. NCCL chooses algorithm and protocol of each call by these, so they are a vendor's
estimate, not a measurement of one machine. Three protocols make three regimes of size: LL sends 4 bytes of data with
4 bytes of flag and starts soonest, LL128 120 bytes with 8, Simple whole blocks behind a fence. Left out: the
plateau of Simple rings (3% at most), LL's larger share of the rate in gathers within a node, and the table that
corrects trees by size (see `scaleout.collectives.nccl`).
"""

from __future__ import annotations

PROTOCOLS = ("LL", "LL128", "Simple")


def _us(*microseconds: float) -> tuple[float, ...]:
    return tuple(round(value / 1e6, 9) for value in microseconds)


# Seconds that a call takes before anything moves, by protocol.
CALL = {"ring": _us(6.6, 14.0, 8.4), "tree": _us(6.8, 14.0, 0.0)}

# Seconds of one hop, by scope of the link and protocol. A hop of a Simple tree holds the time of its first block.
HOPS = {
    "ring": {
        "between GPUs": _us(0.6, 1.9, 3.4),
        "host to GPU": _us(1.0, 2.5, 5.7),
        "between nodes": _us(2.7, 4.0, 14.0),
    },
    "tree": {
        "between GPUs": _us(0.6, 1.25, 28.0),
        "host to GPU": _us(1.0, 1.9, 28.0),
        "between nodes": _us(5.0, 8.5, 28.0),
    },
}  # fmt: skip

# Share of the rate that a link reaches which each protocol leaves for data. Of LL128: one GPU a node, and otherwise;
# of a tree's LL128: one node, and more.
RING_SHARE = {"LL": 1 / 4, "LL128": 0.92, "Simple": 1.0}
LL128_OF_ONE_GPU_A_NODE = 0.7
TREE_SHARE = {"LL": 0.92 / 3.8, "LL128": 0.92 * 120 / 128, "Simple": 0.92}
TREE_LL128_IN_A_NODE = 0.92 * 7 / 9

# LL stops here, in bytes per second, whatever the link: one node (Ampere and Hopper), and more than two with Intel's
# processors (two: 39 GB/s; with AMD's 22.5 and 19).
LL_AT_MOST = {"node": 87.7e9, "nodes": 20.4e9}

# What a GPU takes to post a message to a network adapter, with Intel's processors; with AMD's it is twice that. A ring
# over nodes posts in every step, so that no hop of it is shorter.
POST = _us(1.0, 1.0, 3.0)
