"""The messages of every algorithm: each contribution arrives exactly once, and no byte is lost on the way."""

from collections import Counter

import pytest
from cases import over, refused
from simulated import NAMES, RANKS, SIZES, received, simulate, variants

from scaleout.collectives import messages as m
from scaleout.collectives.routes import trees
from scaleout.spec.topology import Cluster, Wire


def goal(collective, ranks, chunks):
    """By rank: what each chunk that matters to it must hold at the end, every contribution exactly once."""
    whole = Counter(dict.fromkeys(range(ranks), 1))
    return [
        {
            "all_reduce": lambda r: dict.fromkeys(range(chunks), whole),
            "reduce_scatter": lambda r: {r: whole},
            "all_gather": lambda r: {c: Counter({c: 1}) for c in range(chunks)},
            "broadcast": lambda r: {c: Counter({0: 1}) for c in range(chunks)},
            "all_to_all": lambda r: {s * ranks + r: Counter({s: 1}) for s in range(ranks)},
            "send": lambda r: {0: Counter({0: 1})} if r in (0, ranks - 1) else {},
        }[collective](rank)
        for rank in range(ranks)
    ]


@over(named=NAMES, ranks=RANKS)
def test_every_contribution_arrives_exactly_once(named, ranks):
    collective, algorithm = named
    for options in variants(collective, algorithm, ranks):
        _, sizes, _, states = simulate(collective, algorithm, ranks, **options)
        for rank, wanted in enumerate(goal(collective, ranks, len(sizes))):
            assert {chunk: states[-1][rank][chunk] for chunk in wanted} == wanted, (rank, options)


@over(named=NAMES, ranks=RANKS)
def test_what_is_sent_is_received(named, ranks):
    collective, algorithm = named
    for options in variants(collective, algorithm, ranks):
        for size in SIZES:
            moves, sizes, everyone, _ = simulate(collective, algorithm, ranks, size, **options)
            assert sum(sizes) == size * (ranks if collective == "all_to_all" else 1)
            out, into = m.sent(moves, sizes, everyone), received(moves, sizes, everyone)
            assert sum(out) == sum(into) == sum(sizes[one.chunk] for one in moves)


@over(named=NAMES, ranks=RANKS)
def test_steps_follow_each_other_and_nobody_writes_to_itself(named, ranks):
    collective, algorithm = named
    for options in variants(collective, algorithm, ranks):
        moves, *_ = simulate(collective, algorithm, ranks, **options)
        steps = [one.step for one in moves]
        assert steps == sorted(steps) and set(steps) == set(range(max(steps, default=-1) + 1))
        assert all(one.source != one.target for one in moves)
        assert len(set(moves)) == len(moves)


@over(ranks=RANKS)
def test_a_wrong_message_shows(ranks):
    """A message left out, or sent twice, does not pass for an all-reduce."""
    if ranks == 1:
        assert m.messages("all_reduce", "ring", 1) == []
        return
    moves, sizes, _, states = simulate("all_reduce", "ring", ranks)
    whole = Counter(dict.fromkeys(range(ranks), 1))
    assert all(chunk == whole for chunks in states[-1] for chunk in chunks)
    start = m.start("all_reduce", ranks, len(sizes))
    missing = m.run(moves[1:], start)[-1]
    assert any(chunk != whole for chunks in missing for chunk in chunks)
    twice = m.run([moves[0], *moves], start)[-1]
    assert max(count for chunks in twice for chunk in chunks for count in chunk.values()) >= 2


@over(ranks=RANKS)
def test_a_ring_talks_to_its_neighbour_only_and_each_rank_sends_one_chunk_a_step(ranks):
    moves = m.messages("all_reduce", "ring", ranks)
    assert all(one.target == (one.source + 1) % ranks for one in moves)
    assert all(count == 1 for count in Counter((one.step, one.source) for one in moves).values())
    assert [one.adds for one in moves] == [one.step < ranks - 1 for one in moves]


def test_the_ring_of_four_by_hand():
    """Rank r sends chunk r - s in step s, and ends its reduce-scatter with the whole of chunk r + 1."""
    moves, _, _, states = simulate("all_reduce", "ring", 4)
    assert [(one.source, one.chunk) for one in moves if one.step == 1] == [(0, 3), (1, 0), (2, 1), (3, 2)]
    complete = Counter(dict.fromkeys(range(4), 1))
    whole = [(rank, chunk) for rank in range(4) for chunk in range(4) if states[3][rank][chunk] == complete]
    assert whole == [(0, 1), (1, 2), (2, 3), (3, 0)]


@over(ranks=range(2, 40))
def test_two_trees_span_all_ranks_and_an_inner_rank_of_one_is_a_leaf_of_the_other(ranks):
    inner = []
    for tree in trees(ranks):
        assert sorted(tree) == list(range(ranks))
        assert list(tree.values()).count(None) == 1
        children = Counter(above for above in tree.values() if above is not None)
        assert max(children.values()) <= 2
        inner.append(set(children))
        for rank in tree:
            hops = 0
            while tree[rank] is not None:
                rank, hops = tree[rank], hops + 1
            assert hops <= (ranks - 1).bit_length()
    assert inner[0] & inner[1] <= ({0} if ranks % 2 else set())


@pytest.mark.parametrize(("size", "chunks"), [(0, 3), (1, 1), (1, 4), (10, 3), (2**31 + 1, 17)])
def test_chunks_add_up_and_differ_by_one_byte(size, chunks):
    parts = m.chunk_sizes(size, chunks)
    assert sum(parts) == size and len(parts) == chunks and max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True)


def test_seconds_by_hand():
    wire = Wire(10.0, 2.0)
    two = [m.Message(0, 0, 1, 0, True), m.Message(0, 1, 0, 1, True), m.Message(1, 0, 1, 0, False)]
    assert m.seconds(two, [6, 8], wire) == (10 + 8 / 2) + (10 + 6 / 2)  # full duplex: the larger of the two
    both_to_one = [m.Message(0, 1, 0, 0, True), m.Message(0, 2, 0, 0, True)]
    assert m.seconds(both_to_one, [6], wire) == 10 + 12 / 2  # what arrives shares the wire
    cluster = Cluster(2, 2, Wire(1.0, 10.0), Wire(5.0, 1.0), nics_per_node=2)
    across = [m.Message(0, 0, 2, 0, True), m.Message(0, 1, 3, 0, True)]
    assert m.seconds(across, [8], cluster) == 5 + 16 / 2  # two ranks, two adapters
    assert m.seconds(across[:1], [8], cluster) == 5 + 8 / 2  # one rank's channels use both
    assert m.seconds([], [], wire) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: m.chunk_sizes(-1, 2), "size must be a whole number of bytes from 0 up, not -1"),
        (lambda: m.chunk_sizes(1.5, 2), "size must be a whole number"),
        (lambda: m.chunk_sizes(1, 0), "chunks must be a whole number of at least 1, not 0"),
        (lambda: m.messages("all_reduce", "star", 4), "use one of naive, ring, tree"),
        (lambda: m.messages("reduce", "ring", 4), "use one of all_reduce, reduce_scatter"),
        (lambda: m.messages("all_reduce", "ring", 0), "ranks must be a whole number of at least 1"),
        (lambda: m.messages("all_reduce", "hierarchical", 4), "a divisor of 4 ranks, not None"),
        (lambda: m.messages("all_reduce", "hierarchical", 4, gpus_per_node=3), "a divisor of 4 ranks, not 3"),
    ],
)
def test_bad_input_is_one_line(call, words):
    refused(call, words)
