"""The sizes that the exercises of `collectives` share, all from the cost model of collectives."""

from __future__ import annotations

from scaleout.collectives.algorithms import Cost
from scaleout.collectives.alpha_beta import bus_factor, cost
from scaleout.spec.hardware import link
from scaleout.spec.topology import Wire

NIC_BYTES_PER_S = link("ib-ndr").one_way_bytes_per_s  # 400 Gbit/s
FAST = Wire(0.0, NIC_BYTES_PER_S)  # messages so large that their start does not count


def ring(size: float, ranks: int, wire: Wire = FAST) -> Cost:
    """A ring all-reduce of `size` bytes."""
    return cost("all_reduce", "ring", size, ranks, wire)


def reduce_factor(ranks: int) -> float:
    """2(W-1)/W: the parts of the message that each rank of a ring all-reduce sends."""
    return bus_factor("all_reduce", ranks)
