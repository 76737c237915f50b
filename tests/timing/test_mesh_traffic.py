"""What each axis of a mesh sends in a step: bytes and messages of papers, counted by hand for each rank."""

from dataclasses import replace

import pytest
from cases import over

from scaleout.spec.hardware import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing.mesh import step
from scaleout.timing.mesh_machine import machine
from scaleout.timing.mesh_traffic import traffic

H100, LLAMA = DEVICES["h100-sxm"], PRESETS["llama-3-8b"]


def test_bytes_are_the_papers():
    """Narayanan et al. 2021 (arXiv 2104.04473), section 3.2: 8bsh(t-1)/t elements a layer and micro-batch, and bsh a
    hop; 2 (d-1)/d of the gradients."""
    shape, layout = PRESETS["llama-2-7b"], Layout(dp=2, tp=2, pp=2, micro_batches=8)
    found = traffic(shape, 1, 4096, layout, H100, cluster(2, 4), rank=0)
    stream = 4096 * 4096
    blocks = 16 * 8 * 8 * stream * (2 - 1) / 2 * 2
    assert found["tp"].bytes == pytest.approx(blocks + 8 * stream * 2, rel=0.001), "and the token table's sum"
    assert found["pp"].bytes == 8 * stream * 2
    assert found["dp"].bytes == pytest.approx(2 * 6.738e9 / 4 * 2 * 1 / 2, rel=0.001)
    assert found["cp"].bytes == 0


def test_no_order_changes_a_byte_and_the_outermost_axis_takes_the_cable():
    layout, two = Layout(dp=2, tp=2, pp=2, micro_batches=8), cluster(2, 4, nics=4)
    orders = [("pp", "dp", "cp", "tp"), ("dp", "pp", "cp", "tp"), ("tp", "pp", "dp", "cp")]
    found = [traffic(PRESETS["llama-2-7b"], 1, 4096, layout, H100, two, order=order) for order in orders]
    for axis in ("pp", "dp", "tp"):
        assert len({one[axis].bytes for one in found}) == 1
        crossing = [one[axis].crossing for one in found]
        assert crossing == [order[0] == axis for order in orders]
        inside, outside = (next(one[axis] for one in found if one[axis].crossing is there) for there in (False, True))
        assert outside.seconds > 5 * inside.seconds and outside.bytes_per_s == 50e9 < inside.bytes_per_s
    assert list(found[1]) == list(orders[1])


def test_messages_are_as_many_as_the_parts_of_a_step_say():
    """Four all-reduces in a block (Shoeybi et al., arXiv 1909.08053, figure 4), a hop for each micro-batch there and
    back, and for the replicas' weights what ZeRO's stages do."""
    plain = Layout(dp=2, tp=2, pp=4, micro_batches=8)
    found = traffic(PRESETS["llama-2-7b"], 1, 4096, plain, H100, cluster(2, 8), rank=1)
    assert [found[axis].messages for axis in ("tp", "pp", "dp", "cp")] == [8 * 8 * 4, 8 * 2, 1, 0]
    assert found["pp"].bytes == found["pp"].messages * 4096 * 4096 * 2
    by_zero = [traffic(LLAMA, 1, 8192, Layout(dp=16, zero=zero, micro_batches=4), H100, cluster(2, 8))["dp"].messages
               for zero in range(4)]  # fmt: skip
    assert by_zero == [1, 2, 5, 12]
    ring = traffic(LLAMA, 1, 8192, Layout(dp=4, cp=4, micro_batches=2), H100, cluster(2, 8))["cp"]
    assert ring.messages == 2 * 32 * 3 * 3, "micro-batches, blocks, passes, and three others' keys and values"


def test_what_is_computed_again_is_sent_again_and_a_context_alone_is_the_replicas():
    plain, stream = Layout(dp=2, tp=2, pp=2, micro_batches=8), 4096 * 4096 * 2
    none, full = (traffic(PRESETS["llama-2-7b"], 1, 4096, plain, H100, cluster(2, 4),
                          Recipe("bf16-master", checkpointing=how), rank=0)["tp"] for how in ("none", "full"))
    assert full.messages - none.messages == 8 * 16 * 2 and full.bytes - none.bytes == 8 * 16 * 2 * stream
    assert full.seconds > 1.4 * none.seconds
    for how in ("selective", "full"):
        at, recipe = Layout(dp=4, cp=4, micro_batches=2), Recipe("bf16-master", checkpointing=how)
        assert traffic(LLAMA, 1, 8192, at, H100, cluster(2, 8), recipe)["cp"].messages == 2 * 32 * 4 * 3
    alone = traffic(LLAMA, 1, 8192, Layout(cp=16), H100, cluster(2, 8))
    assert (alone["dp"].bytes, alone["cp"].messages) == (0, 32 * 3 * 15 + 1)
    wide = Recipe("bf16-master", main_gradients="instead")
    dealt = traffic(LLAMA, 1, 8192, Layout(dp=16, zero=1), H100, cluster(2, 8), wide)["dp"].bytes
    assert dealt == pytest.approx(8.03e9 * (4 + 2) * 15 / 16, rel=0.001), "gradients in fp32, weights in 16 bits"


def test_a_middle_stage_sends_both_ways_and_replicas_over_both_axes():
    layout = Layout(dp=2, cp=2, pp=4, zero=1, micro_batches=4)
    found = {rank: traffic(LLAMA, 1, 8192, layout, H100, cluster(2, 8), rank=rank) for rank in (0, 1, 3)}
    assert found[1]["pp"].bytes == 2 * found[0]["pp"].bytes == 2 * found[3]["pp"].bytes
    assert traffic(LLAMA, 1, 8192, layout, H100, cluster(2, 8))["pp"] == found[1]["pp"]
    kept = 2 * 4096 * 1024 * 2  # keys and values of half a sequence, 8 heads of 128, 16 bits
    assert found[1]["cp"].bytes == 4 * 8 * 3 * kept, "forward, and with their gradients backward"
    flat = traffic(LLAMA, 1, 8192, replace(layout, dp=4, cp=1), H100, cluster(2, 8), rank=1)
    assert found[1]["dp"].bytes == flat["dp"].bytes


def test_a_tied_table_is_summed_by_the_pipelines_ends_behind_nothing():
    """Half of it there and half of the sum back; ZBV's first rank has both ends."""
    shape, recipe = PRESETS["gpt-3-175b"], Recipe("bf16-master", main_gradients="instead")
    table = 4 * 50_257 / 4 * 12_288
    for layout, ends in ((Layout(tp=4, pp=4, micro_batches=8), {0, 3}),
                         (Layout(tp=4, pp=4, chunks=2, schedule="zbv", micro_batches=8), set())):  # fmt: skip
        for tied in (True, False):
            tables = replace(shape, tied_head=tied)
            found = [traffic(tables, 1, 2048, layout, H100, cluster(2, 8), recipe, rank=rank)["pp"]
                     for rank in range(4)]  # fmt: skip
            hop = 2048 * 12_288 * 2
            for rank, one in enumerate(found):
                hops = one.messages - (rank in ends and tied)
                more = table if rank in ends and tied else 0
                assert one.bytes - hops * hop == pytest.approx(more, rel=1e-4), "a vocabulary in four parts, rounded up"
        both = [step(replace(shape, tied_head=tied), 1, 2048, layout, H100, cluster(2, 8), recipe)
                for tied in (True, False)]  # fmt: skip
        with_, without = (one.parts["hops"] for one in both)
        assert with_ - without == pytest.approx(table / 50e9 / 0.94 if ends else 0, rel=0.1, abs=1e-9)


def test_a_bent_pipelines_head_is_on_its_first_rank():
    """ZBV's last stage comes back to rank 0, whose logits' and loss's messages along tp are beside the table's."""
    bent, straight = (Layout(tp=2, pp=4, chunks=v, schedule=schedule, micro_batches=8)
                      for v, schedule in ((2, "zbv"), (1, "1f1b")))
    found, plain = ([traffic(PRESETS["llama-2-7b"], 1, 4096, layout, H100, cluster(1, 8), rank=rank)
                     for rank in range(4)] for layout in (bent, straight))  # fmt: skip
    more = [[one["tp"].messages - one_of_8 for one in ranks] for ranks, one_of_8 in ((found, 8 * 8 * 4),
                                                                                   (plain, 8 * 8 * 4))]
    assert more == [[8 * 5, 0, 0, 0], [8, 0, 0, 8 * 4]], "the table forward; three of the loss and the head's way back"
    assert [one["pp"].messages for one in found] == [8 * 2, 8 * 4, 8 * 4, 8 * 4], "rank 0 has both ends"


@over(v=[2, 4])
def test_each_chunk_has_hops_of_its_own(v):
    layout = Layout(pp=4, chunks=v, schedule="interleaved", micro_batches=8)
    found = [traffic(LLAMA, 1, 8192, layout, H100, cluster(1, 4), rank=rank)["pp"] for rank in range(4)]
    assert [one.messages for one in found] == [8 * (2 * v - 1), 8 * 2 * v, 8 * 2 * v, 8 * (2 * v - 1)]
    assert {one.bytes / one.messages for one in found} == {8192 * 4096 * 2}


def test_a_gathered_context_sends_as_much_in_fewer_messages():
    """Of each block two gathers and a scatter, of all parts at once: a ring's bytes without its turns."""
    layout = Layout(dp=4, cp=4, micro_batches=2)
    ring, gather = (traffic(LLAMA, 1, 8192, layout, H100, cluster(2, 8), context=way)["cp"]
                    for way in ("ring", "gather"))
    assert ring.bytes == gather.bytes and (ring.messages, gather.messages) == (2 * 32 * 9, 2 * 32 * 3)
    on, size = machine(H100, cluster(2, 8), layout), 8192 * 2 * 1024 * 2  # keys and values of 8 heads of 128
    each = 2 * on.context("all_gather", size) + on.context("reduce_scatter", size)
    assert gather.seconds == pytest.approx(2 * 32 * each)
