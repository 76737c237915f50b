"""The formulas of collectives against the messages themselves, and what must hold of them."""

import re
from collections import Counter

import pytest
from cases import over, refused
from simulated import NAMES, RANKS, SIZES, received, simulate, variants

from scaleout.collectives import alpha_beta as c
from scaleout.collectives import messages as m
from scaleout.spec.topology import Cluster, Wire, cluster, wire

WIRE = Wire(3e-6, 20e9)
SPECIAL = ("hierarchical", "in-network")  # need nodes, or switches that add
FLAT = [one for one in NAMES if one[1] not in SPECIAL]
BY_STEP = [one for one in FLAT if one not in (("all_reduce", "tree"), ("broadcast", "ring"))]  # one block each


def price(collective, algorithm, size, ranks, options=None):
    g = (options or {}).get("gpus_per_node")
    if g:
        return c.cost_on(collective, algorithm, size, Cluster(ranks // g, g, WIRE, WIRE, g))
    return c.cost(collective, algorithm, size, ranks, WIRE)


@over(named=NAMES, ranks=RANKS)
def test_bytes_of_the_busiest_rank(named, ranks):
    """Equal where the chunks are; otherwise within a byte for every message of a rank."""
    collective, algorithm = named
    for options in variants(collective, algorithm, ranks):
        for size in (*SIZES, 720720 * 34):  # divisible by all chunk counts of 1 to 17 ranks, but for five blocks' trees
            moves, sizes, everyone, _ = simulate(collective, algorithm, ranks, size, **options)
            found = price(collective, algorithm, size, ranks, options)
            slack = 0 if len(set(sizes)) <= 1 else len({(one.step, one.chunk) for one in moves})
            assert max(m.sent(moves, sizes, everyone)[:ranks]) == pytest.approx(found.sent_bytes, abs=slack + 1e-6)
            assert max(received(moves, sizes, everyone)[:ranks]) == pytest.approx(
                found.received_bytes, abs=slack + 1e-6
            )


@over(named=BY_STEP, ranks=RANKS)
def test_steps_and_seconds_on_one_wire(named, ranks):
    collective, algorithm = named
    for size in SIZES:
        moves, sizes, _, states = simulate(collective, algorithm, ranks, size)
        found = c.cost(collective, algorithm, size, ranks, WIRE)
        assert len(states) - 1 == found.steps
        # a chunk is at most a byte larger than the equal part that the formula has
        late = m.seconds(moves, sizes, WIRE) - found.seconds
        assert -1e-15 <= late <= len(moves) / WIRE.bytes_per_s + 1e-15
        assert found.latency_seconds == pytest.approx(found.steps * WIRE.alpha_seconds)


@over(ranks=RANKS, blocks=(1, 2, 3, 8, 50))
def test_the_pipelined_tree(ranks, blocks):
    """Steps are exact. Seconds are an upper bound, off by no more than what the first and last steps do not move."""
    size, h = 2 * blocks * 10_000, (ranks - 1).bit_length()
    moves, sizes, _, states = simulate("all_reduce", "tree", ranks, size, blocks=blocks)
    steps = 2 * (h + blocks - 1) if ranks > 1 else 0
    assert len(states) - 1 == steps
    block = size / (2 * blocks) / WIRE.bytes_per_s
    bound = steps * (WIRE.alpha_seconds + (1 if ranks == 2 else 2) * block)
    found = m.seconds(moves, sizes, WIRE)
    assert bound - 2 * h * block - 1e-12 <= found <= bound + 1e-12
    if ranks > 1:  # the formula chooses the best number of blocks
        assert c.cost("all_reduce", "tree", size, ranks, WIRE).seconds <= bound + 1e-12


@over(ranks=(3, 4, 17, 64), size=(3e3, 1e6, 1e8))
def test_no_number_of_blocks_is_better_than_the_tree_s_own(ranks, size):
    """2 (h + k - 1) (alpha + size / (k rate)) is least near k = sqrt((h - 1) size / (alpha rate)) (Sanders, Speck and
    Traff 2009): by trying all."""
    h = (ranks - 1).bit_length()
    seconds = (2 * (h + k - 1) * (WIRE.alpha_seconds + size / (k * WIRE.bytes_per_s)) for k in range(1, 2000))
    assert c.cost("all_reduce", "tree", size, ranks, WIRE).seconds == pytest.approx(min(seconds), rel=1e-12)


@over(ranks=(2, 3, 8, 17), blocks=(1, 4, 30))
def test_the_pipelined_chain(ranks, blocks):
    size = blocks * 10_000
    moves, sizes, _, states = simulate("broadcast", "ring", ranks, size, blocks=blocks)
    assert len(states) - 1 == ranks + blocks - 2
    found = m.seconds(moves, sizes, WIRE)
    assert found == pytest.approx((ranks + blocks - 2) * WIRE.seconds(size / blocks))
    assert c.cost("broadcast", "ring", size, ranks, WIRE).seconds <= found + 1e-12


CLUSTERS = [
    Cluster(nodes, g, Wire(2e-6, 400e9), Wire(5e-6, 40e9), nics)
    for nodes, g, nics in [(1, 4, 4), (2, 2, 2), (2, 4, 1), (3, 2, 2), (4, 4, 8), (3, 3, 3), (5, 1, 1)]
]


RINGS = [(name, "ring") for name in ("all_reduce", "reduce_scatter", "all_gather")]


@over(on=CLUSTERS, named=[*(one for one in BY_STEP if one not in RINGS), ("all_reduce", "hierarchical")])
def test_seconds_on_a_cluster(on, named):
    collective, algorithm = named
    size = 720720 * 64
    moves = m.messages(collective, algorithm, on.ranks, gpus_per_node=on.gpus_per_node)
    sizes = m.sizes(collective, algorithm, size, on.ranks)
    found = c.cost_on(collective, algorithm, size, on)
    assert m.seconds(moves, sizes, on) == pytest.approx(found.seconds, rel=1e-5)
    assert len({one.step for one in moves}) == found.steps


def flowing_seconds(moves, sizes, on):
    """Seconds until all has arrived where nobody waits for a step to end: a rank sends on what it has received as soon
    as its wire is free, and a latency keeps no wire busy.

    For a ring, of which one rank of a node at a time sends outside.
    """
    ready, free = Counter(), Counter()  # (rank, chunk) and (rank) -> seconds
    for one in sorted(moves, key=lambda one: one.step):
        line = on.near if on.node(one.source) == on.node(one.target) else on.pool
        free[one.source] = max(free[one.source], ready[one.source, one.chunk]) + sizes[one.chunk] / line.bytes_per_s
        ready[one.target, one.chunk] = free[one.source] + line.alpha_seconds
    return max(ready.values(), default=0.0)


@over(on=CLUSTERS, collective=("all_reduce", "reduce_scatter", "all_gather"))
def test_a_ring_over_nodes_takes_the_latencies_of_one_part_s_way(on, collective):
    """Message by message, each as soon as it can: no bytes take exactly the formula's latency. With bytes it is an
    upper bound, and step by step, every step as slow as its slowest hop, is an upper bound of it."""
    moves = m.messages(collective, "ring", on.ranks)
    for size in (0, 720720, 720720 * 64):
        sizes, found = m.sizes(collective, "ring", size, on.ranks), c.cost_on(collective, "ring", size, on)
        flowing, stepping = flowing_seconds(moves, sizes, on), m.seconds(moves, sizes, on)
        assert flowing * (1 - 1e-9) <= found.seconds <= stepping * (1 + 1e-9)
        assert found.steps == len({one.step for one in moves})
        if size == 0:
            assert flowing == pytest.approx(found.seconds) == pytest.approx(found.latency_seconds)
        if min(on.nodes, on.gpus_per_node) == 1:
            assert found.seconds == pytest.approx(stepping)
    assert found.seconds - flowing < 0.5 * found.seconds


def test_an_all_gather_on_1024_gpus_is_halved_by_it():
    """NCCL's sum: (steps - between) * 1.9 us + between * 4.0 us; it has 127 hops between nodes where a part crosses
    128 times. Each step at the larger latency would be 4.1 ms."""
    found = c.cost_on("all_gather", "ring", 0, cluster(128, 8))
    assert found.seconds == pytest.approx(895 * 1.9e-6 + 128 * 4.0e-6)
    assert found.seconds == pytest.approx(896 * 1.9e-6 + 127 * 4.0e-6, rel=1e-3)
    assert found.steps * 4.0e-6 == pytest.approx(4.1e-3, rel=0.01) and found.seconds == pytest.approx(2.2e-3, rel=0.01)


@over(ranks=RANKS)
def test_a_ring_sends_two_rounds_of_a_part(ranks):
    found = c.cost("all_reduce", "ring", 1e9, ranks, WIRE)
    assert found.sent_bytes == found.received_bytes == pytest.approx(2 * (ranks - 1) / ranks * 1e9)
    assert found.steps == 2 * (ranks - 1)
    halves = [c.cost(name, "ring", 1e9, ranks, WIRE) for name in ("reduce_scatter", "all_gather")]
    assert sum(half.seconds for half in halves) == pytest.approx(found.seconds)
    if ranks > 1:  # without latency the busbw of a ring is the rate of its wire, whatever the number of ranks
        free = c.cost("all_reduce", "ring", 1e9, ranks, Wire(0.0, WIRE.bytes_per_s))
        assert c.bus_bandwidth("all_reduce", 1e9, ranks, free.seconds) == pytest.approx(WIRE.bytes_per_s)


@over(named=FLAT)
def test_one_rank_costs_nothing_and_more_bytes_never_less_time(named):
    collective, algorithm = named
    assert c.cost(collective, algorithm, 1e6, 1, WIRE) == c.Cost(0, 0, 0, 0, 0)
    for ranks in (2, 3, 8, 13):
        seconds = [c.cost(collective, algorithm, 10**k, ranks, WIRE).seconds for k in range(12)]
        assert seconds == sorted(seconds)
        none = c.cost(collective, algorithm, 0, ranks, WIRE)
        assert none.seconds == pytest.approx(none.latency_seconds) and none.sent_bytes == 0


@over(ranks=range(2, 18), size=(1, 1e4, 1e7, 1e10))
def test_no_algorithm_beats_the_lower_bounds(ranks, size):
    """log2 p starts to hear from all (rounded up), and 2(p-1)/p of the message out of a rank where no switch adds."""
    for name in c.ALGORITHMS["all_reduce"]:
        if name in SPECIAL:
            continue
        found = c.cost("all_reduce", name, size, ranks, WIRE)
        assert found.sent_bytes >= 2 * (ranks - 1) / ranks * size * (1 - 1e-12)
        assert found.latency_seconds >= (ranks - 1).bit_length() * WIRE.alpha_seconds * (1 - 1e-12)


def test_small_messages_go_by_tree_and_large_ones_by_ring():
    small, large = (
        {name: c.cost("all_reduce", name, size, 64, WIRE).seconds for name in ("tree", "ring")} for size in (1e4, 1e9)
    )
    assert small["tree"] < small["ring"] and large["ring"] < large["tree"]


def test_bandwidths_are_those_of_nccl_tests():
    assert c.algorithm_bandwidth(2e9, 0.5) == 4e9
    assert c.bus_bandwidth("all_reduce", 2e9, 8, 0.5) == 7e9
    assert [c.bus_factor(name, 4) for name in c.COLLECTIVES] == [1.5, 0.75, 0.75, 1, 0.75, 1]


def test_a_calibrated_line_becomes_a_wire_and_comes_back():
    found = c.ring_wire(6e-3, 1e-9, 4)
    for size in (0, 1e6, 1e9):
        assert c.cost("all_reduce", "ring", size, 4, found).seconds == pytest.approx(6e-3 + size * 1e-9)


def test_a_double_tree_is_for_ranks_on_one_wire():
    for size in (1e3, 1e6, 1e9):
        flat = c.cost("all_reduce", "tree", size, 8, WIRE)
        assert c.cost_on("all_reduce", "tree", size, Cluster(1, 8, WIRE, Wire(1.0, 1.0), 8)) == flat
        assert c.cost_on("all_reduce", "tree", size, Cluster(8, 1, Wire(1.0, 1.0), WIRE, 1)) == flat
    with pytest.raises(ValueError, match=re.escape("use nccl.choices")):
        c.cost_on("all_reduce", "tree", 1e6, cluster(4, 8))


def test_hierarchy_spares_the_network_latency_and_spreads_over_the_adapters():
    big = cluster(16, 8)
    ring, levels = (c.cost_on("all_reduce", name, 1e5, big) for name in ("ring", "hierarchical"))
    assert levels.steps == 2 * 7 + 2 * 15 < ring.steps == 2 * 127
    assert levels.seconds < ring.seconds / 3
    one_adapter = cluster(16, 8, nics=1)
    assert (
        c.cost_on("all_reduce", "hierarchical", 1e9, one_adapter).seconds
        > 4 * c.cost_on("all_reduce", "hierarchical", 1e9, big).seconds
    )


def test_switches_that_add():
    wires = Wire(0.0, 450e9)
    for ranks in (4, 8, 72):
        found = c.cost("all_reduce", "in-network", 1e9, ranks, wires)
        assert found.sent_bytes == found.received_bytes == pytest.approx((1 + 1 / ranks) * 1e9)
        # the ring's factor does not apply, so busbw exceeds the wire
        assert c.bus_bandwidth("all_reduce", 1e9, ranks, found.seconds) > wires.bytes_per_s
    two = c.cost("all_reduce", "in-network", 1e9, 2, wires)
    assert two.seconds > c.cost("all_reduce", "ring", 1e9, 2, wires).seconds  # nothing to win between two
    sharp = c.cost_on("all_reduce", "in-network", 1e9, cluster(16, 1, nics=1, in_network=True))
    assert sharp.sent_bytes == 1e9 and sharp.steps == 2
    with pytest.raises(ValueError, match="in_network=True"):
        c.cost_on("all_reduce", "in-network", 1e9, cluster(2, 8))


def test_clusters():
    dgx = cluster(4, 8)
    assert dgx.ranks == 32 and [dgx.node(r) for r in (0, 7, 8, 31)] == [0, 0, 1, 3]
    assert dgx.wire(0, 7) == dgx.inside == wire("nvlink4") == Wire(1.9e-6, 450e9, "nvlink4")
    assert dgx.wire(7, 8) == dgx.share == Wire(4e-6, 50e9, "ib-ndr")
    assert dgx.pool.bytes_per_s == 400e9 and dgx.slowest() == Wire(4e-6, 400e9)
    assert cluster(4, 8, nics=2).share.bytes_per_s == 12.5e9
    assert cluster(4, 1, nics=8).pool.bytes_per_s == 50e9  # a GPU drives one adapter
    assert cluster(1, 8).slowest() == wire("nvlink4")
    host = cluster(2, 8, rdma=False).across  # two hops over PCIe and the TCP stack
    assert host.alpha_seconds == pytest.approx(4e-6 + 2 * 2.5e-6 + 20e-6) and host.bytes_per_s == 50e9
    assert cluster(2, 8, inside="nvlink2", rdma=False).across.bytes_per_s == pytest.approx(15.75e9, rel=1e-3)


def test_links_to_fixed_peers_give_a_small_group_their_part():
    """Infinity Fabric: 64 GB/s to each of seven peers; a bridge: one peer, and no third card."""
    mi300x = "infinity-fabric-mi300x"
    assert [cluster(1, g, mi300x).near.bytes_per_s for g in (2, 4, 8)] == [64e9, 192e9, 448e9]
    assert cluster(1, 8, mi300x).wire(0, 5).bytes_per_s == 64e9 and cluster(1, 8).wire(0, 5).bytes_per_s == 450e9
    pair = c.cost_on("all_reduce", "ring", 1e9, cluster(1, 2, mi300x))
    assert c.bus_bandwidth("all_reduce", 1e9, 2, pair.seconds) == pytest.approx(64e9, rel=1e-3)
    assert cluster(1, 2, "nvlink4-bridge").near.bytes_per_s == 300e9
    assert cluster(1, 4, "nvlink4-bridge").near == wire("pcie5")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: c.cost("all_reduce", "ring", -1, 4, WIRE), "size must be a number of bytes from 0 up, not -1"),
        (lambda: c.cost("all_reduce", "ring", float("nan"), 4, WIRE), "size must be a number of bytes"),
        (lambda: c.cost("all_reduce", "ring", 1, 0, WIRE), "ranks must be a whole number of at least 1, not 0"),
        (lambda: c.cost("all_reduce", "ring", 1, 2.5, WIRE), "ranks must be a whole number"),
        (lambda: c.cost("all_reduce", "butterfly", 1, 4, WIRE), "use one of naive, ring, tree, halving-doubling"),
        (lambda: c.cost("reduce", "ring", 1, 4, WIRE), "use one of all_reduce, reduce_scatter"),
        (lambda: c.cost("all_reduce", "hierarchical", 1, 4, WIRE), "use cost_on with a cluster"),
        (lambda: c.bus_factor("allreduce", 4), "collective 'allreduce' is unknown"),
        (lambda: c.algorithm_bandwidth(1, 0), "seconds must be a finite number above 0, not 0"),
        (lambda: c.ring_wire(1e-3, 0, 4), "a slope above 0"),
        (lambda: c.ring_wire(1e-3, 1e-9, 1), "2 ranks or more"),
        (lambda: Wire(-1, 1), "alpha_seconds must be a number from 0 up, not -1"),
        (lambda: Wire(0, 0), "bytes_per_s must be a finite number above 0, not 0"),
        (lambda: cluster(0, 8), "nodes must be a whole number of at least 1, not 0"),
        (lambda: cluster(1, 8, inside="ib-ndr"), "inside is 'ib-ndr', a network: use NVLink or PCIe"),
        (lambda: cluster(1, 8, across="pcie5"), "across is 'pcie5', no network"),
        (lambda: cluster(2, 8).wire(0, 16), "ranks go from 0 to 15"),
        (lambda: wire("nvlink9"), "use one of nvlink2"),
    ],
)
def test_bad_input_is_one_line(call, words):
    refused(call, words)
