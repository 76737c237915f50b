"""Seconds of all that a rank sends: by hand over one wire, and for each kind of collective its own group."""

from math import fsum

import pytest
from jobs import jobs, variants

from scaleout.collectives.job import traffic
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import machine, sent
from scaleout.timing.job import step

CUBE = Job(
    PRESETS["llama-2-7b"], 4096, DEVICES["h100-sxm"], cluster(2, 4), 1, Layout(2, 2, 2, 1, True, micro_batches=8)
)
ORDERS = (("pp", "dp", "cp", "tp"), ("dp", "cp", "pp", "tp"), ("tp", "pp", "dp", "cp"))


def test_a_hop_by_hand():
    """Half of the stream of a micro-batch on each of two tp ranks, over an adapter of 400 Gbit/s."""
    wire = cluster(2, 4).share
    size = 4096 * 4096 * 2 / 2
    each = wire.alpha_seconds + size / wire.bytes_per_s / wire.reached
    assert sent.seconds(CUBE, 0)["pp"] == pytest.approx(8 * each) and size == 16_777_216


def test_the_outermost_axis_takes_the_cable_and_no_order_changes_a_byte():
    found = [(traffic(CUBE.other(order=order)), sent.seconds(CUBE.other(order=order))) for order in ORDERS]
    for axis in ("pp", "dp", "tp"):
        assert len({bytes_of[axis].bytes for bytes_of, _ in found}) == 1
        assert [bytes_of[axis].crossing for bytes_of, _ in found] == [order[0] == axis for order in ORDERS]
        inside, across = (
            next(took[axis] for bytes_of, took in found if bytes_of[axis].crossing is far) for far in (False, True)
        )
        assert across > 5 * inside


def test_each_kind_goes_among_its_own_group():
    """Shards in a node and copies across; shards kept by two; context alone is the replicas' group."""
    wide = CUBE.other(cluster=cluster(4, 8), tp=1, pp=1, zero=3, micro_batches=1)
    hybrid = wide.other(shards=8)
    on = machine.from_datasheet(hybrid)
    shards, gathers, copies = traffic(hybrid)["dp"].sent
    by_hand = on.shards("reduce_scatter", shards.size) + 2 * on.shards("all_gather", gathers.size)
    by_hand += on.copies("all_reduce", copies.size)
    assert sent.seconds(hybrid)["dp"] == pytest.approx(by_hand) and sent.seconds(wide)["dp"] != pytest.approx(by_hand)
    kept = wide.other(reshard=2)
    again = next(one for one in traffic(kept)["dp"].sent if one.carries == "weights again")
    far, near = machine.from_datasheet(wide).shards, machine.from_datasheet(kept).keepers
    less = far("all_gather", again.size) - near("all_gather", again.size)
    assert sent.seconds(wide)["dp"] - sent.seconds(kept)["dp"] == pytest.approx(less)
    alone = CUBE.other(cp=2, dp=1)
    keys, *rest = traffic(alone)["cp"].sent
    context = machine.from_datasheet(alone)
    by_hand = keys.count * context.turn(keys.size) + fsum(context.data(one.collective, one.size) for one in rest)
    assert sent.seconds(alone)["cp"] == pytest.approx(by_hand)


def test_a_tied_embedding_is_a_ring_of_two():
    tied = Job(PRESETS["gpt2-xl"], 1024, DEVICES["h100-sxm"], cluster(1, 2), 1, Layout(pp=2, micro_batches=4))
    hops, embedding = traffic(tied, 0)["pp"].sent
    hop = machine.from_datasheet(tied).hop
    assert sent.seconds(tied, 0)["pp"] == pytest.approx(4 * hop(hops.size) + 2 * hop(embedding.size / 2))
    assert hops.count == 4 and embedding.size == 50_257 * 1600 * 4


@pytest.mark.parametrize("job", jobs(40, 19) + variants(40, 19), ids=[f"{i}" for i in range(80)])
def test_no_step_waits_longer_than_its_communication_takes(job):
    """Along the tensor axis: on the mean of a pipeline's ranks, of which the first and the last have the ends."""
    took = [sent.seconds(job, rank) for rank in range(job.layout.pp)]
    assert set(took[0]) == set(traffic(job)) and all(
        (spent > 0) == (one.bytes > 0)
        for spent, one in zip(took[-1].values(), traffic(job, job.layout.last_rank).values(), strict=True)
    )
    mean = fsum(one["tp"] for one in took) / len(took)
    assert step(job).parts["exposed tensor"] <= mean * (1 + 1e-9)
