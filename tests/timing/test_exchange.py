"""What replicas exchange beside compute: each part by hand."""

from dataclasses import replace
from math import fsum

import pytest

from scaleout.spec.hardware import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.timing import compute, exchange, machine
from scaleout.timing.fsdp_plan import Piece
from scaleout.timing.job import step, update_seconds

SEVEN = Job(PRESETS["llama-2-7b"], 4096, DEVICES["h100-sxm"], cluster(1, 8), 1, Layout(dp=8, zero=1))
N = total_parameters(SEVEN.shape)


def flat(job):
    on = machine.of(job)
    return exchange.flat(job, on, (compute.block(job, on), *compute.ends(job, on)))


def with_contention(job, share):
    return replace(job, program=replace(job.program, contention=share))


def test_layers_carry_all_gradients_and_all_seconds():
    for job in (SEVEN, SEVEN.other(tp=2, sequence_parallel=True), SEVEN.other(shape="gpt2-xl", seq=1024)):
        on = machine.of(job)
        work = compute.block(job, on), *compute.ends(job, on)
        rows = exchange.layers(job, work)
        assert sum(one.gradient_bytes for one in rows) == 4 * job.rank_parameters()
        whole = job.shape.layers * work[0].forward_seconds + work[1].forward_seconds + work[2].forward_seconds
        assert fsum(one.forward_seconds for one in rows) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("contention", [0.0, 0.5])
def test_new_weights_hide_behind_the_forward_at_a_price(contention):
    hidden = with_contention(SEVEN, contention)
    gather = machine.of(SEVEN).data("all_gather", 2 * N)
    bare = replace(hidden, program=replace(hidden.program, weight_overlap=False))
    same = bare.other(bucket_bytes=exchange.mesh_replicas.bucket(8) * 4)
    assert flat(same).seconds - flat(hidden).seconds == pytest.approx((1 - contention) * gather, rel=1e-9)


def test_copies_of_units():
    """A gathered unit is read and written again; backward gathers it once more, and copies its gradients."""
    on = machine.of(SEVEN)
    bare = (Piece("blocks.0", 1.0, 2.0, 4e9, 8e9), Piece("", 1.0, 2.0, 4e9, 8e9))
    each, sent = on.rates.moved(4e9), on.rates.moved(8e9)
    block, root = exchange.with_copies(bare, on, True, 1.0)
    assert block.forward_seconds == pytest.approx(1 + 2 * each)
    assert root.backward_seconds == pytest.approx(2 + each + sent)
    assert block.backward_seconds == pytest.approx(2 + 3 * each + sent)
    kept, _ = exchange.with_copies(bare, on, False, 1.0)
    assert kept.backward_seconds == pytest.approx(2 + each + sent)


def test_passes_without_synchronisation():
    """Under set_requires_gradient_sync(False) all passes but the last scatter nothing."""
    one = SEVEN.other(zero=3, cluster=cluster(4, 8, across="ethernet-100g", nics=1))
    each, both = flat(one), flat(one.other(micro_batches=2))
    assert both.seconds == pytest.approx(2 * each.seconds, rel=1e-9)
    quiet = flat(one.other(micro_batches=2, every_pass=False))
    assert each.seconds < quiet.seconds < 0.9 * both.seconds


def test_hidden_messages_of_a_pipeline_cost_their_share():
    piped = SEVEN.other(pp=2, micro_batches=16)
    on = machine.of(piped)
    n = piped.rank_parameters(0)
    exposed, whole = exchange.late(with_contention(piped, 0.0), on, n, 0.1, 0.2)
    dear, same = exchange.late(with_contention(piped, 0.5), on, n, 0.1, 0.2)
    assert whole == same and dear == pytest.approx(exposed + 0.5 * (whole - exposed)) and exposed < whole


def test_an_action_of_a_pipeline_takes_its_time():
    piped = SEVEN.other(pp=4, micro_batches=8)
    plain, slow = (step(replace(piped, program=replace(piped.program, action_seconds=a))) for a in (0.0, 1e-3))
    assert slow.costs.forward[1] - plain.costs.forward[1] == pytest.approx(1e-3)
    assert slow.costs.backward[1] - plain.costs.backward[1] == pytest.approx(1e-3)


def test_a_tied_embedding_is_added_up_at_the_end():
    tied = Job(PRESETS["gpt2-xl"], 1024, DEVICES["h100-sxm"], cluster(1, 2), 1, Layout(pp=2, micro_batches=8))
    untied = tied.other(tied_head=False)
    size = 4 * 50_257 * 1600
    hop = machine.of(tied).hop
    assert step(tied).parts["hops"] - step(untied).parts["hops"] == pytest.approx(2 * hop(size / 2), rel=1e-6)


def test_the_update_is_shared_from_stage_1_on():
    on = machine.of(SEVEN)
    for zero, ranks in ((0, 1), (1, 8), (3, 8)):
        found = update_seconds(SEVEN.other(zero=zero), on, N)
        assert found == pytest.approx(SEVEN.program.update_passes * on.rates.moved(30 * N / ranks), rel=1e-12)


def test_groups_of_hybrid_sharding():
    """Shards of four in nodes of eight: the copies are two in each node of four nodes, and share what leaves it."""
    wide = cluster(4, 8)
    near, far = machine.part(wide, 4), machine.apart(wide, 4)
    assert (near.nodes, near.gpus_per_node) == (1, 4) and (far.nodes, far.gpus_per_node) == (4, 2)
    assert far.across.bytes_per_s == pytest.approx(wide.pool.bytes_per_s / 4)
    assert machine.part(wide, 16).nodes == 2 and machine.apart(wide, 32).ranks == 1
    with pytest.raises(ValueError, match="use a divisor of 8, or 8 times a divisor of 4"):
        machine.part(wide, 3)
