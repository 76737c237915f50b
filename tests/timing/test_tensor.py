"""Seconds under tensor and sequence parallelism: what must hold, and chunks by events."""

from dataclasses import replace

import pytest
from cases import refused

from scaleout.collectives.tensor import block
from scaleout.memory.states import rank_parameters
from scaleout.records import profiles
from scaleout.spec.hardware import DEVICES, FUSED_SHARE, product_share
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import Cluster, Wire, cluster
from scaleout.spec.transformer import PRESETS, Shape, flops, total_parameters
from scaleout.timing.tensor import block_seconds, chunked, core_seconds, step_seconds
from scaleout.timing.tensor_machine import Machine, machine, profile_machine

LLAMA, H100 = PRESETS["llama-3-8b"], DEVICES["h100-sxm"]
BARE = Machine(1e15, 1e15, 1e15, 1e15, lambda name, size: 0.0, lambda name, size: 0.0)


def on(tp, inside="nvlink4", device=H100, nodes=1):
    return machine(device, cluster(nodes, tp // nodes, inside=inside), Layout(tp=tp))


def spent(tp, overlap="none", sp=True, **options):
    return step_seconds(LLAMA, 1, 8192, Layout(tp=tp, sequence_parallel=sp), on(tp, **options), overlap=overlap)


# --- what must hold -----------------------------------------------------------------------------------------------


def test_one_rank_does_all_work_and_sends_nothing():
    time = step_seconds(LLAMA, 1, 8192, Layout(), on(1))
    core = 4 * 8192**2 * LLAMA.heads * LLAMA.d * LLAMA.layers
    rest = flops(LLAMA, 1, 8192)["forward"] - core
    assert time.parts["products"] == pytest.approx(3 * rest / H100.bf16_flop_per_s / product_share(H100))
    assert time.parts["attention"] == pytest.approx(3.5 * core / 2 / H100.bf16_flop_per_s / FUSED_SHARE)
    assert time.parts["update"] == pytest.approx(28 * total_parameters(LLAMA) / H100.memory_bytes_per_s)
    assert time.messages == time.parts["exposed tensor"] == time.parts["exposed data"] == 0
    assert time.seconds == pytest.approx(sum(time.parts.values()))
    assert time.mfu * time.seconds * H100.bf16_flop_per_s == pytest.approx(3 * flops(LLAMA, 1, 8192)["forward"])


def test_products_divide_and_the_stream_divides_only_with_sequence_parallelism():
    alone, eight, both = spent(1), spent(8, sp=False), spent(8)
    for part in ("products", "attention"):
        assert eight.parts[part] == pytest.approx(alone.parts[part] / 8, rel=1e-3)
    assert both.parts["other kernels"] == pytest.approx(alone.parts["other kernels"] / 8, rel=1e-3)
    assert eight.parts["other kernels"] > 3 * both.parts["other kernels"]


def test_nothing_hides_unless_told():
    plain = spent(8)
    assert plain.parts["exposed tensor"] == pytest.approx(plain.messages)
    for phase in (plain.forward, plain.backward):
        assert phase.exposed == pytest.approx(phase.messages)
    backward, chunks = spent(8, "backward"), spent(8, "chunked")
    assert backward.forward.exposed == plain.forward.exposed
    assert chunks.parts["exposed tensor"] < backward.parts["exposed tensor"] < plain.parts["exposed tensor"]
    assert chunks.messages == backward.messages == plain.messages
    assert chunks.parts["products"] == plain.parts["products"]


@pytest.mark.parametrize("message", [0.0, 0.3, 0.8, 1.2, 3.0])
def test_in_the_backward_each_message_into_a_half_has_a_product_of_its_own(message):
    """Written out, a message as so many times the forward product of a half's first matrices. Beside the input's
    gradient goes what is gathered again, beside the weights' the sum of the input's; the gather that comes out of a
    half has nothing beside it."""
    shape = Shape(1, 64, 4, 256, max_seq=64)
    one = block(shape, 1, 64, 2, sequence_parallel=True)
    rates = replace(BARE, flop_per_s=2.0 * 64 * 64 * 64 / 2)  # a product with a rank's half of a square matrix: 1 s
    for half, products in (("attention", 3), ("mlp", 4)):
        each = message * products
        seconds = replace(rates, inside=lambda name, size, each=each: each)
        joins = tuple(join for join in one.joins if join.half == half)
        forward, backward = block_seconds(replace(one, joins=joins), seconds, overlap="backward")
        assert (forward.exposed, backward.messages) == pytest.approx((2 * each, 3 * each)), "a forward hides nothing"
        assert backward.exposed == pytest.approx(2 * max(0.0, each - products) + each), half


@pytest.mark.parametrize("dropout", [False, True])
def test_kernels_that_multiply_nothing_move_these_bytes(dropout):
    """Written out. Forward, for each half: the norm reads x and writes, the residual reads two and writes; GELU reads
    and writes. Backward: the norm reads x and a gradient and writes, two gradients add up; GELU reads two, writes."""
    shape, rate = Shape(1, 64, 4, 256, max_seq=64), H100.memory_bytes_per_s
    one = block(shape, 2, 64, 2)
    forward, backward = block_seconds(one, on(2), dropout=dropout)
    x, f = 2 * 64 * 64 * 2, 2 * 64 * 128 * 2
    masks = (2 * x / 2, 2 * (2 * x + x / 2)) if dropout else (0, 0)  # written; a gradient read and written, mask read
    assert forward.other * rate == pytest.approx(2 * (2 + 3) * x + 2 * f + masks[0])
    assert backward.other * rate == pytest.approx(2 * (3 + 3) * x + 3 * f + masks[1])
    scores = 2 * 2 * 64**2 * 2
    core = core_seconds(one, on(2), "naive", dropout)
    assert core[0][1] * rate == pytest.approx((4 + 2.5 * dropout) * scores)
    assert core[1][1] * rate == pytest.approx((6 + 2.5 * dropout) * scores)
    assert core[1][0] == 2 * core[0][0] == pytest.approx(2 * 4 * 16 * scores / 2 / on(2).flop_per_s)


def test_where_the_group_lies_decides():
    inside, slots, across = (
        spent(8, **where).parts for where in ({}, {"inside": "pcie5"}, {"nodes": 2})
    )  # fmt: skip
    assert inside["exposed tensor"] < across["exposed tensor"] < slots["exposed tensor"]
    far = machine(H100, cluster(8, 1, across="ethernet-100g"), Layout(tp=8))
    worst = step_seconds(LLAMA, 1, 8192, Layout(tp=8, sequence_parallel=True), far).parts
    assert worst["exposed tensor"] > 0.8 * sum(worst.values())


def test_recomputation_repeats_messages_too():
    layout = Layout(tp=8, sequence_parallel=True)
    none, some, full = (
        step_seconds(LLAMA, 1, 2048, layout, on(8), Recipe("bf16", attention="naive", checkpointing=how))
        for how in ("none", "selective", "full")
    )
    assert full.backward.exposed == pytest.approx(none.backward.exposed + none.forward.exposed)
    assert some.backward.exposed == none.backward.exposed
    assert full.backward.products == pytest.approx(1.5 * none.backward.products)
    core = core_seconds(block(LLAMA, 1, 2048, 8, sequence_parallel=True), on(8), "naive", False)[0]
    assert some.backward.seconds - none.backward.seconds == pytest.approx(sum(core))
    assert none.hfu == none.mfu < full.hfu


def test_replicas_send_beside_the_backward_or_after_it():
    layout, wide = Layout(dp=8, tp=8, zero=1, sequence_parallel=True), cluster(8, 8)
    options = {"accumulation": 2}
    hidden, shown = (
        step_seconds(LLAMA, 1, 8192, layout, machine(H100, wide, layout), hide_data=hide, **options)
        for hide in (True, False)
    )
    n, across = rank_parameters(LLAMA, layout), machine(H100, wide, layout).across
    sent = across("reduce_scatter", 2 * n) + across("all_gather", 2 * n)
    assert hidden.parts["exposed data"] == 0 and shown.parts["exposed data"] == pytest.approx(sent)
    whole = Layout(dp=8, tp=8, sequence_parallel=True)
    plain = [
        step_seconds(LLAMA, 1, 8192, whole, machine(H100, cluster(8, 8, nics=adapters), whole), hide_data=hide)
        for adapters, hide in ((8, True), (8, False), (1, True), (1, False))
    ]
    fast, fast_shown, slow, slow_shown = (one.parts["exposed data"] for one in plain)
    backward = plain[0].backward.seconds * LLAMA.layers
    assert 0 == fast < fast_shown and slow_shown - slow == pytest.approx(backward, rel=0.1)
    alone = step_seconds(LLAMA, 1, 8192, Layout(tp=8, sequence_parallel=True), on(8), **options)
    assert hidden.parts["update"] == pytest.approx(alone.parts["update"] / 8)
    assert hidden.tokens_per_second == pytest.approx(8 * 2 * 8192 / hidden.seconds)


@pytest.mark.parametrize(("precision", "gradient"), [("bf16-master", 2), ("autocast-bf16", 4)])
def test_copies_of_all_blocks_and_of_the_ends_are_summed_in_one_message(precision, gradient):
    """Written out for 3 layers, on wires where an all-reduce takes a second, and a second a byte."""
    shape = Shape(3, 64, 4, 256, max_seq=32)
    seconds = replace(BARE, inside=lambda name, size: (1.0 + size) * (name == "all_reduce"))
    layout = Layout(tp=2, sequence_parallel=True)
    time = step_seconds(shape, 1, 32, layout, seconds, Recipe(precision), accumulation=2)
    loss = 2 * 3 * (1 + 4 * 32)
    norms, biases, positions = (2 * 3 + 1) * 2 * 64, 3 * 2 * 64, 32 * 64
    assert time.messages == pytest.approx(loss + 1 + gradient * (norms + biases + positions))
    assert time.parts["exposed tensor"] == time.messages


def test_gradients_hide_beside_the_backward_and_new_weights_beside_the_forward():
    layout, recipe = Layout(dp=8, tp=2, zero=1), Recipe("bf16-master", main_gradients="instead")

    def spent(hide, **seconds):
        on = replace(BARE, across=lambda name, size: seconds[name])
        return step_seconds(LLAMA, 1, 4096, layout, on, recipe, hide_data=hide)

    hidden = {}
    for slow, quick in (("reduce_scatter", "all_gather"), ("all_gather", "reduce_scatter")):
        long = {slow: 1e3, quick: 0.0}
        time = spent(True, **long)
        hidden[slow] = 1e3 - time.parts["exposed data"]
        assert spent(False, **long).parts["exposed data"] == 1e3
    passes = sum(time.parts[name] for name in ("products", "attention", "other kernels", "exposed tensor"))
    assert sum(hidden.values()) == pytest.approx(passes)
    assert hidden["all_gather"] < 0.6 * hidden["reduce_scatter"]
    by_byte = replace(BARE, across=lambda name, size: size)
    n = rank_parameters(LLAMA, layout)
    found = step_seconds(LLAMA, 1, 4096, layout, by_byte, recipe, hide_data=False).parts["exposed data"]
    assert found == n * 4 + n * 2, "fp32 gradients are scattered, bf16 weights gathered"


# --- chunks -------------------------------------------------------------------------------------------------------


def ring(hop, piece, t):
    """Seconds of a gather of t chunks beside their products, and of products beside a scatter, by events."""
    arrived = done = 0.0
    for chunk in range(t):
        arrived += hop if chunk else 0.0
        done = max(done, arrived) + piece
    made = sent = 0.0
    for _ in range(t - 1):
        made += piece
        sent = max(sent, made) + hop
    return done, max(made + piece, sent)


@pytest.mark.parametrize("t", [1, 2, 3, 8])
@pytest.mark.parametrize("hop", [0.0, 0.5, 1.0, 3.0])
def test_chunks_by_events(t, hop):
    gather, scatter = ring(hop, 1.0, t)
    assert gather == scatter == t + chunked((t - 1) * hop, float(t), t)


def test_chunks_hide_all_where_the_product_is_longer_and_need_a_gather_to_cut():
    many = block_seconds(block(LLAMA, 4, 8192, 2, sequence_parallel=True), on(2), overlap="chunked")
    assert all(phase.exposed == 0 < phase.messages for phase in many)
    plain = block(LLAMA, 4, 8192, 2)
    assert block_seconds(plain, on(2), overlap="chunked") == block_seconds(plain, on(2), overlap="none")


# --- a profile ----------------------------------------------------------------------------------------------------


def test_from_a_profile_by_hand():
    """Two processes, fp32: six all-reduces a step of one layer (a block's four, the table's, the head's), three small
    ones of the loss, by the measured line."""
    profile = {
        "schema": 1, "device": "cpu", "device_kind": "cpu", "backend": "gloo", "interconnect": "loopback",
        "measured": "today", "commit": "x", "world": 2, "threads": 1, "copy_bytes_per_second": 1e10,
        "matmul_flops_per_second": {"fp32": 5e10}, "collectives": {
            name: {"alpha_seconds": 1e-3, "seconds_per_byte": 4e-9}
            for name in ("all_reduce", "all_gather", "reduce_scatter")},
    }  # fmt: skip
    profiles.validate(profile)
    shape = Shape(1, 64, 4, 256, max_seq=64)
    time = step_seconds(shape, 4, 64, Layout(tp=2), profile_machine(profile, efficiency=0.5), Recipe("fp32"))
    x, token = 4 * 64 * 64 * 4, 4 * 64 * 4
    assert time.messages == pytest.approx(9 * 1e-3 + (6 * x + 3 * token) * 4e-9)
    core = 4 * 4 * 64**2 * 64
    assert time.parts["products"] == pytest.approx(3 * (flops(shape, 4, 64)["forward"] - core) / 2 / 2.5e10)
    assert time.parts["attention"] == pytest.approx(3.5 * core / 2 / 2 / 2.5e10)
    of_loss = time.parts["other kernels"] - time.forward.other - time.backward.other
    assert of_loss == pytest.approx((5 + 3) * 4 * 4 * 64 * 128 / 1e10), "fp32 logits of half the vocabulary"
    alone = profile_machine({**profile, "world": 1, "collectives": {}})
    assert step_seconds(shape, 4, 64, Layout(), alone, Recipe("fp32")).messages == 0


def test_all_to_all_is_priced_as_a_gather_of_what_a_rank_has():
    one = block(LLAMA, 1, 64, 4, sequence_parallel=True, cuts={"up": "rows"})
    assert "all_to_all" in one.counts("forward")
    wire = Wire(0.0, 1e9)
    slow = machine(H100, Cluster(1, 4, wire, wire, 1), Layout(tp=4))
    assert block_seconds(one, slow)[0].messages == pytest.approx(one.sent("forward") / 1e9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: machine(H100, cluster(1, 8), Layout(tp=4)), "the cluster has 8 GPUs, dp 1 x tp 4 ranks: make them"),
        (lambda: machine(H100, cluster(3, 8), Layout(dp=2, tp=12)), "12 ranks neither divide a node"),
        (lambda: machine(H100, cluster(1, 8), Layout(tp=8), share=0), "share is a share, above 0"),
        (lambda: spent(8, "all"), "overlap must be one of none, backward, chunked"),
        (lambda: spent(8, "chunked", sp=False), "it needs sequence_parallel=True"),
        (lambda: step_seconds(LLAMA, 1, 64, Layout(pp=2), on(1)), "use pp 1, not 2"),
        (lambda: step_seconds(LLAMA, 1, 64, Layout(), on(1), accumulation=0), "accumulation must be a whole number"),
        (lambda: step_seconds(LLAMA, 1, 64, Layout(tp=3), on(1)), "the nearest that works is 2"),
        (lambda: step_seconds("llama-3-8b", 1, 64, Layout(), on(1)), "shape must be a Shape, not 'llama-3-8b'"),
        (lambda: step_seconds(LLAMA, 1, 64, Layout(), "h100-sxm"), "on must be a Machine, not 'h100-sxm'"),
        (lambda: step_seconds(LLAMA, 1, 64, Layout(), on(1), "bf16"), "recipe must be a Recipe, not 'bf16'"),
        (lambda: chunked(1.0, 1.0, 0), "tp must be a whole number of at least 1, not 0"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(call, words):
    refused(call, words)
