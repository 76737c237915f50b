"""What recomputation costs, by hand: bytes that kernels move, ties, ends, and a last product that runs again or not."""

from dataclasses import replace

import pytest

from scaleout.draw import recompute_hills as hills
from scaleout.memory import recompute as memory
from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.timing import knapsack, machine, recompute
from scaleout.timing.knapsack import Priced

LLAMA, GPT = PRESETS["llama-2-7b"], PRESETS["gpt2"]
N, H = 2 * 256, GPT.hidden  # tokens, and numbers of each


def sizes(shape=GPT, batch=2, seq=256, layout=None, **recipe):
    return Sizes(shape, batch, seq, Recipe(**recipe), layout or Layout())


def moved(z):
    return {tile.name: tile.moved for tile in memory.tiles(z)}


# --- bytes that kernels move ------------------------------------------------------------------------------------


def test_a_norm_reads_and_writes_and_is_cast_under_autocast():
    assert moved(sizes(precision="fp32"))["norm 1"] == 2 * 4 * N * H
    cast = 4 * N * H + 2 * N * H  # its output is read in fp32 and written in bf16, for q, for k and for v
    found = moved(sizes(precision="autocast-bf16"))
    assert (found["norm 1"], found["norm 2"]) == (2 * 4 * N * H + 3 * cast, 2 * 4 * N * H + cast)


def test_dropout_reads_writes_and_writes_a_mask_of_bytes():
    found, plain = (moved(sizes(precision="fp32", dropout=rate)) for rate in (0.1, 0.0))
    assert plain["middle"] == 3 * 4 * N * H  # the stream, the sum, and what is added
    assert found["middle"] - plain["middle"] == found["mask"] == 2 * 4 * N * H + N * H


def test_a_naive_core_reads_grouped_heads_and_writes_them_repeated():
    grouped = Shape(2, 64, 8, 100, kv_heads=2, max_seq=256)
    z = sizes(grouped, precision="fp32", attention="naive")
    assert moved(z)["k"] == moved(z)["v"] == 4 * N * 16 + 4 * N * 64
    assert moved(z)["q"] == 0


def test_what_up_and_q_read_is_gathered_again_under_sequence_parallelism():
    for shape in (GPT, LLAMA):
        z = sizes(shape, layout=Layout(tp=2, sequence_parallel=True), precision="bf16")
        sends = {tile.name: tile.sends for tile in memory.tiles(z) if tile.sends}
        first = "gate" if shape.gated_mlp else "up"
        assert sends["q"] == sends[first] == (("all_gather", 2 * N * shape.hidden),)
        assert sends["middle"] == (("reduce_scatter", 2 * N * shape.hidden),)
        assert set(sends) == {"q", first, "middle"}


def test_the_output_that_is_kept_in_place_of_the_stream_has_the_products_dtype():
    z = sizes(precision="autocast-bf16")
    middle = next(tile for tile in memory.tiles(z) if tile.name == "middle")
    assert (middle.bytes, memory.outputs(z)["middle"]) == (4 * N * H, 2 * N * H)


# --- the last product -------------------------------------------------------------------------------------------


def test_a_segment_runs_the_last_products_inside_it_again():
    z = sizes(LLAMA, precision="bf16")
    last = 2 * N * LLAMA.h_ff * LLAMA.hidden
    inside = LLAMA.layers - LLAMA.layers // 4
    pair = memory.full(z), memory.segments(z, 4)
    assert memory.flops(z, pair[1]) - memory.flops(z, pair[0]) == inside * last
    job = Job(LLAMA, 256, DEVICES["h100-sxm"], cluster(1, 1), 2, recipe=Recipe("bf16"))
    spent = [recompute.again_seconds(job, machine.from_datasheet(job), one) for one in pair]
    assert spent[0] == pytest.approx(spent[1]), "a program that runs a whole block again has run it in any case"
    masked = sizes(LLAMA, precision="bf16", dropout=0.1)  # its mask needs the product in any case
    assert memory.flops(masked, memory.segments(masked, 4)) == memory.flops(masked, memory.full(masked))


# --- what to drop -----------------------------------------------------------------------------------------------


def test_of_tiles_of_one_price_the_larger_goes_first():
    items = [Priced("small", 100, 1.0), Priced("large", 200, 2.0)]
    assert knapsack.greedy(items, 150).counts == {"large": 1}


def test_a_curve_goes_in_the_order_that_is_asked_for():
    items = [Priced("b", 10, 2.0), Priced("c", 10, 3.0), Priced("a", 10, 1.0)]
    ends = {order: knapsack.curve(items, order)[-1].names for order in knapsack.ORDERS}
    assert ends == {"cheapest": ("a", "b", "c"), "as it runs": ("b", "c", "a"), "dearest": ("c", "b", "a")}


@pytest.mark.parametrize("free", [0, 10, 20, 30])
def test_the_exact_choice_frees_what_is_asked_to_the_last_byte(free):
    items = [Priced("one", 10, 1.0, 2), Priced("two", 10, 5.0)]
    found = knapsack.exact(items, free)
    assert (found.freed, found.seconds) == (free, {0: 0, 10: 1.0, 20: 2.0, 30: 7.0}[free])


def test_memory_of_a_stage_is_freed_in_every_micro_batch_in_flight():
    """What is dropped of one micro-batch is missing as often as micro-batches fly: no more goes than has to."""
    layout, recipe = Layout(pp=4, micro_batches=8), Recipe("bf16-master")
    z = Sizes(LLAMA, 1, 4096, recipe, layout)
    whole = account(LLAMA, 1, 4096, recipe, layout, memory.none(z)).peak_bytes
    free = 5 * 10**9
    job = Job(LLAMA, 4096, DEVICES["h100-sxm"], cluster(1, 4), 1, layout, recipe)
    found = recompute.for_memory(job, machine.from_datasheet(job), whole - free)
    dropped = sum(memory.dropped_bytes(z, found))
    largest = max(tile.bytes for tile in memory.tiles(z))
    assert z.in_flight == 4 and free <= 4 * dropped <= free + 8 * largest


# --- beside FSDP, and in the pictures ---------------------------------------------------------------------------


def test_gathers_without_freeing_are_one_and_all_blocks_stand_whole():
    z = sizes(LLAMA, precision="bf16")
    assert recompute.gathers(memory.full(z), reshard=False) == (1, LLAMA.layers)
    assert recompute.gathers(memory.segments(z, 5)) == (2, 5)
    one = sizes(replace(LLAMA, layers=1), precision="bf16")
    assert recompute.gathers(memory.full(one)) == (2, 1)


def test_a_hill_is_done_with_each_block_twice():
    for policy in hills.policies().values():
        points = hills.profile(policy)
        top = max(points, key=lambda point: point[1])
        assert points[-1] == (2 * hills.SHAPE.layers, 0) and top[0] == hills.SHAPE.layers
    assert hills.costs()["tiles"][0][0] == pytest.approx(30.5, abs=0.05), "per cent, as the view says"
