"""What replicas exchange beside compute: each part by hand."""

from dataclasses import replace
from math import fsum

import pytest

from scaleout.collectives.job import traffic
from scaleout.spec import mesh
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.timing import compute, exchange, machine, pipeline_exchange
from scaleout.timing.ddp import Layer, ddp_step
from scaleout.timing.job import step, step_on, update_seconds

SEVEN = Job(PRESETS["llama-2-7b"], 4096, DEVICES["h100-sxm"], cluster(1, 8), 1, Layout(dp=8, zero=1))
N = total_parameters(SEVEN.shape)


def flat(job):
    on = machine.from_datasheet(job)
    return exchange.schedule(job, on, (compute.block(job, on), *compute.ends(job, on)))


def with_contention(job, share):
    return replace(job, program=replace(job.program, contention=share))


def layers(job):
    on = machine.from_datasheet(job)
    work = compute.block(job, on), *compute.ends(job, on)
    return exchange.layers(job, work), work


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_layers_carry_all_gradients_and_all_seconds(checkpointing):
    for job in (
        SEVEN,
        SEVEN.other(tp=2, sequence_parallel=True),
        SEVEN.other(shape="gpt2-xl", seq=1024),
        SEVEN.other(shape="llama-3-8b", cp=2),
    ):
        job = job.other(checkpointing=checkpointing)
        rows, work = layers(job)
        assert sum(one.gradient_bytes for one in rows) == 4 * job.rank_parameters()
        for kind in ("forward_seconds", "backward_seconds"):
            whole = fsum(n * getattr(one, kind) for n, one in zip((job.shape.layers, 1, 1), work, strict=True))
            assert fsum(getattr(one, kind) for one in rows) == pytest.approx(whole, rel=1e-12)


def test_a_tied_embedding_arrives_last_and_an_untied_head_first():
    (tied, _), (untied, _) = layers(SEVEN.other(shape="gpt2", seq=128)), layers(SEVEN.other(shape="llama-3-8b"))
    assert tied[0].gradient_bytes == 4 * (50_257 + 1024) * 768 and tied[-1].gradient_bytes == 4 * 2 * 768
    assert untied[-1].gradient_bytes == 4 * (128_256 * 4096 + 4096)
    assert [row.name for row in tied[:7]] == ["tokens", *(f"block 0 {x}" for x in ("q", "k", "v", "out", "up", "down"))]


def test_recomputation_is_where_it_runs():
    """Before the backward of a block's last matrix, or of attention, which goes with v."""
    plain, full, core = (
        {row.name: row for row in layers(SEVEN.other(shape="gpt2", seq=1024, checkpointing=kind))[0]}
        for kind in ("none", "full", "selective")
    )
    for found, name in ((full, "down"), (core, "v")):
        longer = {name for name in plain if found[name].backward_seconds > plain[name].backward_seconds}
        assert longer == {f"block {i} {name}" for i in range(12)}


@pytest.mark.parametrize("contention", [0.0, 0.5])
def test_new_weights_hide_behind_the_forward_at_a_price(contention):
    hidden = with_contention(SEVEN, contention)
    gather = machine.from_datasheet(SEVEN).data("all_gather", 2 * N)
    bare = replace(hidden, program=replace(hidden.program, weight_overlap=False))
    same = bare.other(bucket_bytes=pipeline_exchange.bucket_parameters(8) * 4)
    assert flat(same).seconds - flat(hidden).seconds == pytest.approx((1 - contention) * gather, rel=1e-9)


def replicas(contention=0.0, **how):
    """GPT-2 small on two GPUs, joined by 10 Gbit/s."""
    nodes = cluster(2, 1, across="ethernet-10g", nics=1)
    job = Job(PRESETS["gpt2"], 1024, DEVICES["h100-sxm"], nodes, 8, Layout(dp=2), Recipe(), PROGRAMS["compiled"])
    return with_contention(job.other(**how), contention)


def test_without_overlap_all_messages_come_after_the_backward():
    """One bucket is complete when the backward is: the whole of it shows with and without overlap. Cut into four,
    without overlap as much shows as there are messages, and contention has nothing to slow."""
    whole = 4 * total_parameters(PRESETS["gpt2"])
    on = machine.from_datasheet(replicas())
    one = flat(replicas(bucket_bytes=whole))
    assert one.exposed == pytest.approx(on.data("all_reduce", whole), rel=1e-9)
    after = flat(replicas(0.5, overlap=False, bucket_bytes=whole // 4))
    assert len(after.timeline.message_bytes) > 1 and sum(after.timeline.message_bytes) == whole
    sent = fsum(on.data("all_reduce", size) for size in after.timeline.message_bytes)
    assert after.exposed == pytest.approx(sent, rel=1e-9) == after.timeline.exposed_seconds
    assert flat(replicas(bucket_bytes=whole // 4)).exposed < 0.99 * after.exposed


def test_compression_makes_messages_smaller_and_nothing_else():
    """One bucket in 16 bits sends half the bytes, all exposed; the layers and the update stay."""
    whole = 4 * total_parameters(PRESETS["gpt2"])
    job = replicas(bucket_bytes=whole, compression=2.0)
    assert flat(job).timeline.message_bytes == (whole / 2,)
    assert flat(job).exposed == pytest.approx(machine.from_datasheet(job).data("all_reduce", whole / 2), rel=1e-9)
    assert traffic(job)["dp"].bytes == pytest.approx(traffic(replicas())["dp"].bytes / 2, rel=1e-12)
    assert step(job).parts["update"] == step(replicas()).parts["update"]


def test_a_timeline_lasts_as_long_as_its_step():
    """Passes, update, and what follows it: two nodes, one doubling's jitter of all before."""
    found = step(replicas())
    line, parts = found.timeline, found.parts
    assert line.seconds == found.seconds and line.update_seconds == parts["update"]
    assert line.other_seconds == pytest.approx(parts["host"] + parts["stragglers"], rel=1e-9)
    assert parts["stragglers"] == pytest.approx(0.005 * (found.seconds - parts["stragglers"]), rel=1e-9)


def test_a_step_ends_with_its_update_and_the_rest():
    """Two layers of 3 s and a message of 2 s: 8 s; the update takes 1 more, and 12 in all leave 3 for the rest."""
    line = ddp_step([Layer("", 1, 2, 1)] * 2, lambda size: 2.0).ended(1.0, 12.0)
    assert (line.seconds, line.update_seconds, line.other_seconds) == (12.0, 1.0, 3.0)
    assert (line.events[-1].name, line.events[-1].start, line.events[-1].end) == ("update", 8.0, 9.0)


def test_copies_of_units():
    """A gathered unit is read and written again; backward gathers it once more, and copies its gradients."""
    moved = machine.from_datasheet(SEVEN).rates.moved
    each, sent = moved(4e9), moved(8e9)
    assert exchange.copied(moved, True, 1.0, None, "", 4e9, 8e9) == pytest.approx((2 * each, each + sent))
    assert exchange.copied(moved, True, 1.0, None, "blocks.0", 4e9, 8e9) == pytest.approx((2 * each, 3 * each + sent))
    assert exchange.copied(moved, False, 0.5, None, "blocks.0", 8e9, 16e9) == pytest.approx((2 * each, each + sent))


def test_passes_without_synchronisation():
    """Under set_requires_gradient_sync(False) all passes but the last scatter nothing."""
    one = SEVEN.other(zero=3, cluster=cluster(4, 8, across="ethernet-100g", nics=1))
    each, both = flat(one), flat(one.other(micro_batches=2))
    assert both.seconds == pytest.approx(2 * each.seconds, rel=1e-9)
    quiet = flat(one.other(micro_batches=2, every_pass=False))
    assert each.seconds < quiet.seconds < 0.9 * both.seconds


def test_hidden_messages_of_a_pipeline_cost_their_share():
    piped = SEVEN.other(pp=2, micro_batches=16)
    on = machine.from_datasheet(piped)
    n = piped.rank_parameters(0)
    exposed, whole = pipeline_exchange.seconds(with_contention(piped, 0.0), on, n, 0.1, 0.2)
    dear, same = pipeline_exchange.seconds(with_contention(piped, 0.5), on, n, 0.1, 0.2)
    assert whole == same and dear == pytest.approx(exposed + 0.5 * (whole - exposed)) and exposed < whole


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_pipeline_prices_the_collectives_that_traffic_counts(zero):
    """At one second a byte, seconds are the bytes of the first rank's collectives, however many messages they are."""
    piped = SEVEN.other(pp=2, micro_batches=6, zero=zero, chunks=2, schedule="interleaved")
    priced = replace(machine.from_datasheet(piped), data=lambda name, size: size)
    _, whole = pipeline_exchange.seconds(piped, priced, piped.rank_parameters(0), 0.0, 0.0)
    sent = [one for one in traffic(piped, 0)["dp"].sent if one.carries in ("gradients", "weights")]
    assert whole == pytest.approx(fsum(one.count * one.size for one in sent), rel=1e-12)


def test_an_action_of_a_pipeline_takes_its_time():
    piped = SEVEN.other(pp=4, micro_batches=8)
    plain, slow = (step(replace(piped, program=replace(piped.program, action_seconds=a))) for a in (0.0, 1e-3))
    assert slow.costs.forward[1] - plain.costs.forward[1] == pytest.approx(1e-3)
    assert slow.costs.backward[1] - plain.costs.backward[1] == pytest.approx(1e-3)


def test_a_tied_embedding_is_added_up_at_the_end():
    tied = Job(PRESETS["gpt2-xl"], 1024, DEVICES["h100-sxm"], cluster(1, 2), 1, Layout(pp=2, micro_batches=8))
    untied = tied.other(tied_head=False)
    size = 4 * 50_257 * 1600
    hop = machine.from_datasheet(tied).hop
    assert step(tied).parts["hops"] - step(untied).parts["hops"] == pytest.approx(2 * hop(size / 2), rel=1e-6)


def test_the_update_is_shared_from_stage_1_on():
    on = machine.from_datasheet(SEVEN)
    for zero, ranks in ((0, 1), (1, 8), (3, 8)):
        found = update_seconds(SEVEN.other(zero=zero), on, N)
        assert found == pytest.approx(SEVEN.program.update_passes * on.rates.moved(30 * N / ranks), rel=1e-12)


def away(stage, offload="optimizer", to="host", **rest):
    """The seven billion on eight GPUs: 2 bytes of a weight, 4 of a gradient, 4 of a master copy, 8 of AdamW."""
    return SEVEN.other(zero=stage, offload=offload, offload_to=to, **rest)


def test_the_host_steps_what_is_offloaded():
    """An eighth of 30 bytes per parameter at half of 76.8 GB/s, which hides the new weights' way back; a gradient's way
    down hides behind the backward."""
    for stage in (1, 2, 3):
        found = step(away(stage)).parts
        assert found["update"] == pytest.approx(N / 8 * 30 / 38.4e9) and found["exposed host"] == 0
        assert found["compute"] == pytest.approx(step(SEVEN.other(zero=stage)).parts["compute"])


def test_gradients_and_weights_that_the_host_does_not_hide():
    """Of 64 tokens the backward is too short for the gradients of a shard, each time; a fast host leaves the weights'
    way up to be waited for."""
    short, on = away(2, seq=64), machine.from_datasheet(SEVEN)
    block, first, last = step(short).work
    data = exchange.schedule(short, on, (block, first, last))  # copies go on while the backward waits for it
    late = on.host(4 * N / 8) - (data.exposed - data.gathered)
    late -= 32 * block.backward_seconds + first.backward_seconds + last.backward_seconds
    assert late > 0 and step(short).parts["exposed host"] == pytest.approx(late)
    assert step(short.other(micro_batches=4)).parts["exposed host"] == pytest.approx(4 * late)
    swift = step_on(away(2), replace(on, host_bytes_per_s=1e20))
    assert swift.parts["exposed host"] == pytest.approx(on.host(2 * N / 8), rel=1e-3)


def test_offload_to_a_disk():
    """16 bytes of a parameter are read and as many written, at 2.5 and 1.25 GB/s, with the update within; with the
    weights 2 more are written, and the gathers wait for what is read."""
    disk = N / 8 * 16 * (1 / 2.5e9 + 1 / 1.25e9)
    states = step(away(3, to="nvme")).parts
    assert states["update"] + states["exposed host"] == pytest.approx(disk)
    both, host = (step(away(3, "parameters", to)).parts for to in ("nvme", "host"))
    assert both["exposed host"] == pytest.approx(states["exposed host"] + N / 8 * 2 / 1.25e9)
    assert host["exposed host"] == 0 and both["exposed data"] > host["exposed data"]
    rank = machine.from_datasheet(SEVEN)
    assert rank.copied(5e9, disk=True) == 2.0 and rank.copied(5e9) < 0.3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"zero": 0, "offload": "optimizer"}, "use zero 1, 2 or 3"),
        ({"zero": 2, "offload": "parameters"}, "offload of parameters needs zero 3, not 2"),
        ({"zero": 1, "offload": "optimizer", "offload_to": "nvme"}, "offload to NVMe needs zero 3, not 1"),
        ({"zero": 3, "offload": "optimizer", "offload_to": "tape"}, "offload_to must be"),
    ],
)
def test_offload_that_there_is_not(wrong, says):
    with pytest.raises(ValueError, match=says):
        SEVEN.other(**wrong)


def test_groups_of_hybrid_sharding():
    """Shards of four in nodes of eight: the copies are two in each node of four nodes, and share what leaves it."""
    wide = cluster(4, 8)
    near, far = mesh.shard_group(wide, 4), machine.replica_group(wide, 4)
    assert (near.nodes, near.gpus_per_node) == (1, 4) and (far.nodes, far.gpus_per_node) == (4, 2)
    assert far.across.bytes_per_s == pytest.approx(wide.pool.bytes_per_s / 4)
    assert mesh.shard_group(wide, 16).nodes == 2 and machine.replica_group(wide, 32).ranks == 1
    with pytest.raises(ValueError, match="use a divisor of 8, or 8 times a divisor of 4"):
        mesh.shard_group(wide, 3)
