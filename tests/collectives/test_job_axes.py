"""What each axis of a job sends, counted by hand for each rank of a pipeline: ends, chunks, contexts, tied heads."""

from dataclasses import replace

import pytest
from cases import over

from scaleout.collectives.job import traffic
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import machine, sent
from scaleout.timing.job import step

LLAMA, LLAMA2 = PRESETS["llama-3-8b"], PRESETS["llama-2-7b"]


def job(layout, shape=LLAMA, seq=8192, **options):
    each = min(8, layout.ranks)
    return Job(shape, seq, DEVICES["h100-sxm"], cluster(layout.ranks // each, each), 1, layout, **options)


def test_what_is_recomputed_is_sent_again_and_a_context_alone_is_the_replicas():
    plain, stream = job(Layout(dp=2, tp=2, pp=2, micro_batches=8), LLAMA2, 4096), 4096 * 4096 * 2
    none, full = (traffic(plain.other(checkpointing=how), 0)["tp"] for how in ("none", "full"))
    assert full.messages - none.messages == 8 * 16 * 2 and full.bytes - none.bytes == 8 * 16 * 2 * stream
    for how in ("selective", "full"):
        at = job(Layout(dp=4, cp=4, micro_batches=2)).other(checkpointing=how)
        assert traffic(at)["cp"].messages == 2 * 32 * 4 * 3
    alone = traffic(job(Layout(cp=16)))
    assert (alone["dp"].bytes, alone["cp"].messages) == (0, 32 * 3 * 15 + 1)


def test_a_middle_stage_sends_both_ways_and_replicas_over_both_axes():
    layout = Layout(dp=2, cp=2, pp=4, zero=1, micro_batches=4)
    found = {rank: traffic(job(layout), rank) for rank in (0, 1, 2, 3)}
    assert found[1]["pp"].bytes == 2 * found[0]["pp"].bytes == 2 * found[3]["pp"].bytes
    assert traffic(job(layout))["pp"] == found[2]["pp"]
    kept = 2 * 4096 * 1024 * 2  # keys and values of half a sequence, 8 heads of 128, 16 bits
    assert found[1]["cp"].bytes == 4 * 8 * 3 * kept, "forward, and with their gradients backward"
    assert found[1]["dp"].bytes == traffic(job(replace(layout, dp=4, cp=1)), 1)["dp"].bytes


@pytest.mark.parametrize(
    ("layout", "ends"),
    [
        (Layout(tp=4, pp=4, micro_batches=8), {0, 3}),
        (Layout(tp=4, pp=4, chunks=2, schedule="zbv", micro_batches=8), set()),
    ],
)
def test_a_tied_embedding_is_added_up_by_the_pipelines_ends(layout, ends):
    """Half of it there and half of the sum back, behind nothing; ZBV's first rank has both ends."""
    table, hop = 4 * 50_257 / 4 * 12_288, 2048 * 12_288 * 2
    tied, free = (job(layout, replace(PRESETS["gpt-3-175b"], tied_head=tied), 2048) for tied in (True, False))
    for rank in range(4):
        with_, without = traffic(tied, rank)["pp"], traffic(free, rank)["pp"]
        assert without.bytes == without.messages * hop and with_.messages - without.messages == (rank in ends)
        more = table if rank in ends else 0
        assert with_.bytes - without.bytes == pytest.approx(more, rel=1e-4), "a vocabulary in four parts, rounded up"
    late = step(tied).parts["hops"] - step(free).parts["hops"]
    assert late == pytest.approx(table / 50e9 / 0.94 if ends else 0, rel=0.1, abs=1e-9)


def test_a_bent_pipelines_head_is_on_its_first_rank():
    """ZBV's last stage comes back to rank 0, whose collectives of logits and loss are beside the embedding's."""
    for (v, schedule), more in (((2, "zbv"), [8 * 5, 0, 0, 0]), ((1, "1f1b"), [8, 0, 0, 8 * 4])):
        layout = Layout(tp=2, pp=4, chunks=v, schedule=schedule, micro_batches=8)
        found = [traffic(job(layout, LLAMA2, 4096), rank) for rank in range(4)]
        ends = [one["tp"].messages - 8 * 8 * 4 for one in found]
        assert ends == more, "the embedding forward; three of the loss and the head's way back"
    bent = Layout(tp=2, pp=4, chunks=2, schedule="zbv", micro_batches=8)
    hops = [traffic(job(bent, LLAMA2, 4096), rank)["pp"].messages for rank in range(4)]
    assert hops == [8 * 2, 8 * 4, 8 * 4, 8 * 4], "rank 0 has both ends"


@over(v=[2, 4])
def test_each_chunk_has_hops_of_its_own(v):
    layout = Layout(pp=4, chunks=v, schedule="interleaved", micro_batches=8)
    found = [traffic(job(layout), rank)["pp"] for rank in range(4)]
    assert [one.messages for one in found] == [8 * (2 * v - 1), 8 * 2 * v, 8 * 2 * v, 8 * (2 * v - 1)]
    assert {one.bytes / one.messages for one in found} == {8192 * 4096 * 2}


def test_a_gathered_context_sends_as_much_in_fewer_messages():
    """Of each block two gathers and a scatter, of all parts at once: a ring's bytes without its turns."""
    ring, gather = (job(Layout(dp=4, cp=4, micro_batches=2), context=way) for way in ("ring", "gather"))
    (one, other), on = (traffic(at)["cp"] for at in (ring, gather)), machine.from_datasheet(gather)
    assert one.bytes == other.bytes and (one.messages, other.messages) == (2 * 32 * 9, 2 * 32 * 3)
    size = 8192 * 2 * 1024 * 2  # keys and values of 8 heads of 128
    each = 2 * on.context("all_gather", size) + on.context("reduce_scatter", size)
    assert sent.seconds(gather)["cp"] == pytest.approx(2 * 32 * each)


@pytest.mark.parametrize(("recompute", "gathers"), [("none", 1), ("selective", 1), ("full", 2)])
def test_keys_and_values_that_are_kept_are_gathered_once(recompute, gathers):
    """And once more where the whole block is recomputed; nothing hides what is sent."""
    kept = job(Layout(dp=4, cp=4, micro_batches=2, gather_again=False), context="gather").other(checkpointing=recompute)
    again = kept.other(gather_again=True)
    assert [traffic(at)["cp"].messages for at in (kept, again)] == [
        2 * 32 * (1 + gathers),
        2 * 32 * (3 + (recompute != "none")),
    ]
    for at in (kept, again):
        assert step(at).parts["exposed context"] == pytest.approx(sent.seconds(at)["cp"])
