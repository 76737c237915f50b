"""Steps of DDP and of FSDP on growing clusters: limits, orders, and what published runs say of them."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from scaleout.collectives import alpha_beta
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import machine
from scaleout.timing.job import step
from scaleout.timing.scaling import efficiency

SCALING = json.loads((Path(__file__).parents[1] / "published" / "fsdp_scaling.json").read_text())
EIGHT = Job(
    PRESETS["llama-3-8b"],
    2048,
    DEVICES["h100-sxm"],
    cluster(8, 8),
    1,
    Layout(dp=64, zero=3),
    program=PROGRAMS["compiled"],
)


def on(ranks, **changes):
    """The job on nodes of 8 GPUs, or on one with fewer."""
    return EIGHT.other(cluster=cluster(max(1, ranks // 8), min(ranks, 8)), **changes)


@pytest.mark.parametrize("wrap", ["model", "block", "layer"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_fsdp_on_one_rank_is_a_plain_step(checkpointing, wrap):
    found, plain = (step(on(1, checkpointing=checkpointing, **how)) for how in ({"wrap": wrap}, {"zero": 0}))
    assert found.seconds == pytest.approx(plain.seconds, rel=1e-12)
    assert found.parts == pytest.approx(plain.parts, rel=1e-12)
    assert found.communication == 0 and found.timeline.gathers == 0


def test_bytes_that_leave_a_host_under_hybrid_sharding():
    """The paper's 2 M (W - 1) / (G W); a ring over W / G replicas sends (W - G) in place of W - 1."""
    size, world, host = 1e9, 512, 8
    copies = machine.replica_group(cluster(world // host, host), host)
    found = alpha_beta.cost_on("all_reduce", "ring", size / host, copies).sent_bytes
    assert found == pytest.approx(2 * size * (world - host) / (host * world))
    said = eval(SCALING["hybrid"]["across_hosts"], {"M": size, "W": world, "G": host})
    assert found == pytest.approx(said, rel=0.015)


def test_monotone_in_link_and_ranks_and_a_larger_batch_hides_more():
    by_link = [
        step(EIGHT.other(cluster=cluster(8, 8, across=across, nics=nics))).seconds
        for across, nics in (
            ("ib-ndr", 8),
            ("ib-hdr", 8),
            ("ethernet-100g", 8),
            ("ethernet-100g", 1),
            ("ethernet-10g", 1),
        )
    ]
    by_ranks = [step(on(ranks)).parts["exposed data"] for ranks in (1, 8, 64, 512, 4096)]
    assert all(b > a for rising in (by_link, by_ranks) for a, b in pairwise(rising))
    steps = [step(on(1024, batch=batch)) for batch in (1, 2, 4, 8)]
    share = [one.parts["exposed data"] / one.seconds for one in steps]
    assert all(b < a for a, b in pairwise(share))


def test_fewer_collectives_where_units_are_kept():
    again, kept, some = (step(EIGHT.other(**how)) for how in ({}, {"zero": 2, "reshard": False}, {"reshard": 8}))
    assert kept.communication < some.communication < again.communication
    units = 1 + EIGHT.shape.layers
    assert (kept.timeline.gathers, again.timeline.gathers) == (units, 2 * units - 1)


def test_at_thousands_of_gpus_the_latency_of_a_ring_over_all_shows_and_in_a_node_it_does_not():
    """Four sequences per GPU. A gather from 4,096 waits for 4,095 hops; one in a node for 7."""
    sizes = (8, 512, 4096)
    wide, hybrid = (
        efficiency({n: step(on(n, batch=4, shards=shards)).tokens_per_second for n in sizes}) for shards in (None, 8)
    )
    assert wide[4096] < hybrid[4096] < hybrid[512] < wide[512], "at 512 the all-reduce of hybrid sharding costs more"
    assert wide[512] - wide[4096] > 3 * (hybrid[512] - hybrid[4096])


def test_ddp_is_near_linear_on_256_gpus():
    """The DDP paper's claim (arXiv 2006.15704), on later nodes and a model of 1.6 billion parameters."""
    one = Job(PRESETS["gpt2-xl"], 1024, DEVICES["a100-80gb"], cluster(1, 1), 8, program=PROGRAMS["compiled"])
    many = one.other(cluster=cluster(32, 8, "nvlink3", "ib-hdr", 8))
    assert step(one).seconds / step(many).seconds > 0.85
