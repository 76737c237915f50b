"""Seconds of an FSDP step: what must hold, limits, and published runs (tests/published/)."""

import json
from dataclasses import replace
from itertools import pairwise
from math import ceil
from pathlib import Path

import pytest
from cases import refused

from scaleout.collectives import alpha_beta
from scaleout.spec.hardware import DEVICES
from scaleout.spec.sharding import Sharding, units
from scaleout.spec.topology import Cluster, Wire, cluster
from scaleout.spec.transformer import PRESETS, Shape, flops, total_parameters
from scaleout.timing import ddp_seconds, fsdp
from scaleout.timing.fsdp_machine import HOST_BYTES_PER_S, machine, replica_group, shard_group
from scaleout.timing.fsdp_seconds import from_device, work
from scaleout.timing.scaling import efficiency, strong_efficiency, weak_efficiency

PUBLISHED = Path(__file__).parents[1] / "published"
FSDP = json.loads((PUBLISHED / "fsdp.json").read_text())
SCALING = json.loads((PUBLISHED / "fsdp_scaling.json").read_text())

GPT2, LLAMA, A100, H100 = PRESETS["gpt2-xl"], PRESETS["llama-3-8b"], DEVICES["a100-80gb"], DEVICES["h100-sxm"]


def nodes(ranks, across="ib-ndr", adapters=8):
    """Nodes of 8 GPUs, or one with fewer."""
    return cluster(ceil(ranks / 8), min(ranks, 8), across=across, nics=adapters)


def full(ranks, **options):
    return Sharding(ranks=ranks, parameter="bf16", **options)


def step_on(ranks, shape=LLAMA, batch=1, seq=2048, sharding=None, on=None, **options):
    return from_device(shape, batch, seq, H100, on or nodes(ranks), sharding or full(ranks), **options)


# --- groups -------------------------------------------------------------------------------------------------------


def test_groups_of_a_cluster():
    on = nodes(64)
    assert shard_group(on, 8) == replace(on, nodes=1) and shard_group(on, 64) == on
    assert (shard_group(on, 4).nodes, shard_group(on, 4).gpus_per_node) == (1, 4)
    assert (shard_group(on, 16).nodes, shard_group(on, 16).gpus_per_node) == (2, 8)
    across = replica_group(on, 8)
    assert (across.nodes, across.gpus_per_node) == (8, 1)
    assert across.across.bytes_per_s == on.share.bytes_per_s, "eight groups leave a node at once"
    both = replica_group(on, 4)
    assert (both.nodes, both.gpus_per_node) == (8, 2), "two copies in a node, and eight nodes"
    assert both.pool.bytes_per_s * 4 == on.pool.bytes_per_s
    for ranks in (1, 2, 4, 8, 16, 64):
        assert shard_group(on, ranks).ranks * replica_group(on, ranks).ranks == 64


def test_bytes_that_leave_a_host_under_hybrid_sharding():
    """The paper's 2 M (W - 1) / (G W); a ring over W / G replicas sends (W - G) in place of W - 1."""
    size, world, host = 1e9, 512, 8
    found = alpha_beta.cost_on("all_reduce", "ring", size / host, replica_group(nodes(world), host)).sent_bytes
    assert found == pytest.approx(2 * size * (world - host) / (host * world))
    said = eval(SCALING["hybrid"]["across_hosts"], {"M": size, "W": world, "G": host})
    assert found == pytest.approx(said, rel=0.015)


# --- a step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", ["model", "block", "layer"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_one_rank_is_a_plain_step(checkpointing, wrap):
    found = step_on(1, sharding=full(1, wrap=wrap), checkpointing=checkpointing)
    plain = ddp_seconds.from_device(LLAMA, 1, 2048, H100, nodes(1), checkpointing=checkpointing)
    assert found.seconds == pytest.approx(plain.seconds, rel=1e-12)
    assert found.parts == pytest.approx(plain.parts, rel=1e-12) and found.mfu == pytest.approx(plain.mfu)
    assert found.timeline.communication_seconds == 0 and found.timeline.gathers == 0


@pytest.mark.parametrize("sharding", [full(64), full(8, replicas=8), full(64, reshard=False), full(64, reshard=8),
                                      full(16, replicas=4, wrap="layer", prefetch=2)])  # fmt: skip
def test_parts_add_up(sharding):
    time = step_on(64, sharding=sharding, accumulation=2, other_seconds=0.02)
    assert time.seconds == pytest.approx(sum(time.parts.values()))
    assert time.tokens_per_second == pytest.approx(2 * 2048 * 64 / time.seconds)
    model = 2 * (sum(flops(LLAMA, 1, 2048).values()))
    assert time.mfu == pytest.approx(model / time.seconds / H100.bf16_flop_per_s) == time.hfu
    assert time.parts["compute"] > model / H100.bf16_flop_per_s / 0.5, "and the copies of what is gathered"
    held = sum(unit.shard(sharding.ranks) for unit in units(LLAMA, sharding))
    assert time.parts["update"] == pytest.approx(held * 28 / H100.memory_bytes_per_s)


@pytest.mark.parametrize("wrap", ["block", "layer"])
def test_what_fsdp_copies_on_the_device(wrap):
    sharding = full(64, wrap=wrap)
    on = machine(H100, nodes(64), sharding)
    rows = ddp_seconds.layers(LLAMA, 3, 2048, on.flop_per_s, checkpointing="full")
    bare = fsdp.pieces(rows, units(LLAMA, sharding), sharding, "full")

    def spent(all_pieces):
        return sum(one.forward_seconds + one.backward_seconds + one.recompute_seconds for one in all_pieces)

    more = spent(work(on, LLAMA, 3, 2048, sharding, "full")) - spent(bare)
    n, root = total_parameters(LLAMA), units(LLAMA, sharding)[0].parameters
    # in forward bf16 read and written; in backward again but for the root; gradients read in bf16, written in fp32
    assert more * H100.memory_bytes_per_s == pytest.approx(4 * n + 4 * (n - root) + 6 * n, rel=1e-6)


def test_monotone_in_link_ranks_and_batch():
    by_link = [step_on(64, on=nodes(64, *link)).seconds for link in (
        ("ib-ndr", 8), ("ib-hdr", 8), ("ethernet-100g", 8), ("ethernet-100g", 1), ("ethernet-10g", 1))]  # fmt: skip
    by_ranks = [step_on(n).parts["exposed communication"] for n in (1, 8, 64, 512, 4096)]
    assert all(b > a for rising in (by_link, by_ranks) for a, b in pairwise(rising))
    steps = [step_on(1024, batch=b) for b in (1, 2, 4, 8)]
    share = [one.parts["exposed communication"] / one.seconds for one in steps]
    assert all(b < a for a, b in pairwise(share)), "a larger batch hides more"


def test_fewer_messages_where_units_are_kept():
    again, kept = step_on(64), step_on(64, sharding=full(64, reshard=False))
    some = step_on(64, sharding=full(64, reshard=8))
    assert kept.timeline.communication_seconds < some.timeline.communication_seconds
    assert some.timeline.communication_seconds < again.timeline.communication_seconds
    count = len(units(LLAMA, full(64)))
    assert (kept.timeline.gathers, again.timeline.gathers) == (count, 2 * count - 1)


def test_at_thousands_of_gpus_the_latency_of_a_ring_over_all_shows_and_in_a_node_it_does_not():
    """8B with four sequences a GPU. A gather from 4,096 waits for 4,095 hops, 20 ms; one in a node for 7."""
    sizes = (8, 512, 2048, 4096)
    wide, hybrid = (efficiency({n: step_on(n, batch=4, sharding=kind(n)).tokens_per_second for n in sizes})
                    for kind in (full, lambda n: full(8, replicas=n // 8)))  # fmt: skip
    assert wide[512] > 0.99 and wide[2048] > 0.98
    assert wide[4096] == pytest.approx(0.74, abs=0.01)
    assert hybrid[4096] > 0.95


def test_offload_copies_over_the_slot_and_updates_on_the_host():
    off = step_on(8, sharding=full(8, offload=True))
    on = step_on(8)
    held = sum(unit.shard(8) for unit in units(LLAMA, full(8)))
    assert off.parts["update"] == pytest.approx(held * 28 / HOST_BYTES_PER_S)
    assert off.seconds > on.seconds + off.parts["update"] - on.parts["update"]


# --- published ----------------------------------------------------------------------------------------------------


def fabric(gpus):
    """Nodes of 8 A100 with 2 Tbit/s each, as eight equal adapters; the latency is that of a network hop."""
    one = cluster(ceil(gpus / 8), 8, inside="nvlink3", across="ib-hdr", nics=8)
    return Cluster(one.nodes, 8, one.inside, Wire(one.across.alpha_seconds, FSDP["node_bits_per_s"] / 8 / 8), 8)


@pytest.mark.parametrize(("batch", "off"), [("1", 0.02), ("2", 0.03)])
def test_175b_on_128_to_512_gpus(batch, off):
    """Both batches from one assumed efficiency, 0.6: 175 and 181 TFLOP/s a GPU, published 173 and 186."""
    said, shape = SCALING["gpt_175b"], Shape(96, 12_288, 96, FSDP["gpt_175b"]["vocab"], max_seq=FSDP["gpt_175b"]["seq"])
    found = {gpus: from_device(
        shape, int(batch), 2048, A100, fabric(gpus), full(gpus, reduce="bf16"), checkpointing="full", efficiency=0.6)
        for gpus in said["gpus"]}  # fmt: skip
    for time in found.values():
        assert abs(time.hfu * said["peak_tflops"] / said["tflops"][batch] - 1) < off
        assert abs(said["tflops"][batch] / said["peak_tflops"] - said["utilization"][batch]) < 0.006
    shares = efficiency({gpus: time.tokens_per_second for gpus, time in found.items()})
    assert all(abs(share - 1) < 0.01 for share in shares.values()), said["claim"]


# --- scaling ------------------------------------------------------------------------------------------------------


def test_one_formula_for_strong_and_weak():
    worlds = (1, 8, 64)
    strong = {n: step_on(n, batch=64 // n) for n in worlds}
    weak = {n: step_on(n) for n in worlds}
    for found, formula in ((strong, strong_efficiency), (weak, weak_efficiency)):
        wanted = formula({n: time.seconds for n, time in found.items()})
        assert efficiency({n: time.tokens_per_second for n, time in found.items()}) == pytest.approx(wanted)
    assert efficiency({2: 10.0, 8: 30.0}) == {2: 1.0, 8: 0.75}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: step_on(8, sharding=full(4)), "the cluster has 8 GPUs, the sharding 4 ranks: make them equal"),
        (lambda: step_on(16, sharding=full(16), efficiency=2), "efficiency is a share, above 0"),
        (lambda: step_on(24, on=nodes(24), sharding=full(12, replicas=2)), "12 ranks neither divide a node of 8 GPUs"),
        (lambda: step_on(8, accumulation=0), "whole number of passes"),
        (lambda: step_on(8, dtype="int4"), "dtype 'int4' is unknown"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(call, words):
    refused(call, words)
