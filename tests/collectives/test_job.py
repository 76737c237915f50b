"""What a job sends, axis by axis: against the formulas of the papers, and against the seconds that it takes."""

from math import isclose

import pytest
from jobs import jobs, variants

from scaleout.collectives.job import traffic
from scaleout.memory.job import accounts, fullest
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.timing.job import step

SEVEN = Job(PRESETS["llama-2-7b"], 4096, DEVICES["h100-sxm"], cluster(1, 8), 1, Layout(dp=8))
N = 6_738_415_616  # parameters of Llama 2 7B


@pytest.mark.parametrize(
    ("changes", "pieces"),
    [
        ({"zero": 0}, 2 * 4),
        ({"zero": 1}, 4 + 2),
        ({"zero": 3}, 4 + 2 + 2),
        ({"zero": 2, "reshard": False}, 4 + 2),
    ],
)
def test_zeros_stages(changes, pieces):
    """Bytes of a parameter that a rank of 8 sends, by (W - 1)/W: fp32 gradients and bf16 weights, section 7 of ZeRO."""
    assert traffic(SEVEN.other(**changes))["dp"].bytes == pytest.approx(7 / 8 * pieces * N, rel=1e-9)


def test_hybrid_sharding():
    """Shards in a node of 8, four of them: only the sum of an eighth of the gradients crosses."""
    wide = SEVEN.other(cluster=cluster(4, 8), zero=3, shards=8)
    kinds = {(one.collective, one.ranks): one.bytes for one in traffic(wide)["dp"].sent}
    assert kinds["all_reduce", 4] == pytest.approx(2 * 3 / 4 * 4 * N / 8, rel=1e-9)
    assert kinds["all_gather", 8] == pytest.approx(2 * 7 / 8 * 2 * N, rel=1e-9)


def test_tensor_parallelism_sends_as_narayanan_has_it():
    """8 b s h (t - 1)/t elements per layer and micro-batch (arXiv 2104.04473, section 3.2)."""
    four = SEVEN.other(tp=4)
    inner = [one for one in traffic(four)["tp"].sent if "activations" in one.carries]
    assert sum(one.bytes for one in inner) == pytest.approx(32 * 8 * 4096 * 4096 * 3 / 4 * 2, rel=1e-9)


def test_full_recomputation_sends_the_forward_again():
    four = SEVEN.other(tp=4)
    plain, again = (traffic(job)["tp"] for job in (four, four.other(checkpointing="full")))
    forward = [one for one in plain.sent if one.carries == "activations"]
    assert again.bytes - plain.bytes == pytest.approx(sum(one.bytes for one in forward), rel=1e-9)


def test_a_pipeline_sends_two_messages_for_each_neighbour():
    piped = SEVEN.other(pp=4, micro_batches=8)
    assert [traffic(piped, rank)["pp"].messages for rank in range(4)] == [8, 16, 16, 8]
    with pytest.raises(ValueError, match="rank 4 of the pipeline is not there: they go from 0 to 3"):
        traffic(piped, 4)


@pytest.mark.parametrize("job", jobs(60, 7) + variants(40, 7), ids=[f"{i}" for i in range(100)])
def test_axes_of_one_rank_are_silent_and_the_others_take_time(job):
    found, time = traffic(job), step(job)
    for axis, one in found.items():
        both = job.layout.replicas > 1 if axis in ("dp", "cp") else one.ranks > 1
        assert (one.bytes > 0) <= both, axis
    assert isclose(time.communication, 0.0) == (job.layout.replicas == 1)


def test_accounts_are_those_of_the_mesh():
    piped = SEVEN.other(pp=4, micro_batches=8, zero=1)
    assert len(accounts(piped)) == 4 and fullest(piped) == max(accounts(piped), key=lambda one: one.peak_bytes)


def test_gradients_of_copies_are_added_up_once_in_one_message():
    """Written out for 3 blocks under sequence parallelism: two norms each and the last one, the biases behind rows,
    and the learned positions, in 16 bits."""
    small = Shape(3, 64, 4, 256, max_seq=32)
    job = Job(small, 32, DEVICES["h100-sxm"], cluster(1, 2), 1, Layout(tp=2, sequence_parallel=True))
    [copies] = [one for one in traffic(job)["tp"].sent if one.carries == "gradients of copies"]
    norms, biases, positions = (2 * 3 + 1) * 2 * 64, 3 * 2 * 64, 32 * 64
    assert (copies.collective, copies.count, copies.size) == ("all_reduce", 1, 2 * (norms + biases + positions))
