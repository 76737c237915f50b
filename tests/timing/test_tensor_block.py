"""A block under tensor parallelism: what is divided, which matrix multiplication hides what, and other cuts."""

from dataclasses import replace

import pytest

from scaleout.collectives import tensor
from scaleout.collectives.job import block_of, cut
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.topology import Cluster, Wire, cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import compute, machine

LLAMA, H100 = PRESETS["llama-3-8b"], DEVICES["h100-sxm"]


def job(tp, overlap="none", split=True, on=None, **program):
    return Job(LLAMA, 8192, H100, on or cluster(1, tp), layout=Layout(tp=tp, sequence_parallel=split),
               program=replace(PROGRAMS["megatron"], tensor_overlap=overlap, **program))  # fmt: skip


def work(*args, **options):
    found = job(*args, **options)
    return compute.block(found, machine.from_datasheet(found))


def test_tensor_parallelism_divides_matmuls_and_sequence_parallelism_the_rest():
    """Attention and matrix multiplications by tp, but for what their smaller tiles lose; launches not at all."""
    alone, whole, split = work(1), work(8, split=False), work(8)
    for part in ("matmul", "attention"):
        one, eight = (getattr(found.forward, part) for found in (alone, split))
        assert one / 8 <= eight < 1.6 * one / 8 and eight == getattr(whole.forward, part)
    assert split.forward.moves == pytest.approx(alone.forward.moves / 8)
    assert whole.forward.moves > 3 * split.forward.moves
    assert split.launches == alone.launches and alone.forward.communication == alone.exposed == 0


@pytest.mark.parametrize("message", [0.0, 0.3, 0.8, 1.2, 3.0])
def test_in_the_backward_what_goes_into_a_half_has_a_matmul_of_its_own(message):
    """Written out, with each collective so many times as long as the first matrices' forward. Beside the input's
    gradient goes what is gathered again, beside the weights' the sum of the input's; the gather that comes out of a
    half has nothing beside it."""
    for half, names in (("attention", ("q", "k", "v")), ("mlp", ("gate", "up"))):
        this = job(2, "backward", contention=0.25)
        one, rank = block_of(this), machine.from_datasheet(this)
        columns = sum(weight.local[1] for weight in one.weights if weight.name in names)
        first = rank.rates.matmul(8192, columns, LLAMA.hidden)
        each = message * first
        rank = replace(rank, tensor=lambda name, size, each=each: each)
        joins = tuple(join for join in one.joins if join.half == half)
        found = compute.block(this, rank, replace(one, joins=joins))
        assert found.forward.exposed == pytest.approx(2 * each), "a forward hides nothing"
        assert found.backward.exposed == pytest.approx(3 * each - 0.75 * 2 * min(each, first)), half


def test_chunks_by_events():
    """A gather of t chunks beside their matmuls, and matmuls beside a scatter, one event after the other: what is
    longer than (t - 1)/t of the matmul is exposed."""
    for t, hop in ((2, 0.5), (4, 1.0), (8, 1.0), (8, 3.0)):
        arrived = done = made = sent = 0.0
        for chunk in range(t):
            arrived += hop if chunk else 0.0
            done = max(done, arrived) + 1.0
        for _ in range(t - 1):
            made += 1.0
            sent = max(sent, made) + hop
        message, matmul = (t - 1) * hop, float(t)
        this = job(t, "chunked", contention=0.0)
        rank = replace(machine.from_datasheet(this), tensor=lambda name, size, message=message: message)
        gather = next(join for join in block_of(this).joins if join.at == "into")
        exposed, _ = compute._exposed(this, rank, gather, "forward", {"into": matmul})
        assert t + exposed == done == max(made + 1.0, sent)


def test_other_cuts_than_megatrons():
    """A matrix cut by rows adds up in the middle; an all-to-all is priced as what a rank sends of it."""
    this = job(4)
    rows = tensor.block(LLAMA, 1, 8192, 4, cuts=tensor.MEGATRON | {"up": "rows"}, **cut(this))
    rank = machine.from_datasheet(this)
    found, plain = compute.block(this, rank, rows), compute.block(this, rank)
    assert found.exposed > plain.exposed and found.forward.attention == plain.forward.attention
    assert compute.block(this, rank, block_of(this)) == plain
    wire = Wire(0.0, 1e9)
    slow = job(4, on=Cluster(1, 4, wire, wire, 1))
    assert "all_to_all" in rows.counts("forward")
    found = compute.block(slow, machine.from_datasheet(slow), rows).forward.communication
    assert found == pytest.approx(rows.sent("forward") / 1e9)
