"""Collectives played out message by message, for the tests of the messages and of the formulas."""

from dataclasses import replace

from scaleout.collectives import messages as m
from scaleout.collectives.alpha_beta import ALGORITHMS

RANKS = (*range(1, 10), 12, 13, 16, 17)  # powers of two, their neighbours, odd, even and prime numbers
SIZES = (0, 1, 7, 1000, 4096)
BLOCKS = (1, 2, 5)

NAMES = [(collective, name) for collective in ALGORITHMS for name in ALGORITHMS[collective]]


def variants(collective, algorithm, ranks):
    """Options for `messages`: numbers of blocks of what is pipelined, nodes of what is hierarchical."""
    if algorithm == "hierarchical":
        return [{"gpus_per_node": g} for g in range(1, ranks + 1) if ranks % g == 0]
    pipelined = (collective, algorithm) in (("all_reduce", "tree"), ("broadcast", "ring"))
    return [{"blocks": b} for b in BLOCKS] if pipelined else [{}]


def simulate(collective, algorithm, ranks, size=0, **options):
    """(messages, bytes of each chunk, participants with the switch, states)."""
    blocks = options.get("blocks", 1)
    moves = m.messages(collective, algorithm, ranks, **options)
    sizes = m.sizes(collective, algorithm, size, ranks, blocks)
    switch = algorithm == "in-network"
    states = m.run(moves, m.start(collective, ranks, len(sizes), switch))
    return moves, sizes, ranks + switch, states


def received(moves, sizes, ranks):
    """Bytes that each rank receives: `messages.sent` at the other end."""
    return m.sent([replace(one, source=one.target) for one in moves], sizes, ranks)
