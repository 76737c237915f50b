"""Steps of adapters and of other optimizers, each by hand, and the closed forms of a search for every kind of job."""

from dataclasses import replace
from math import fsum

import pytest
from cases import each, over
from jobs import CONFIGS, variants
from jobs import on_a_node as job

from scaleout.collectives.job import block_of, replica_collectives
from scaleout.memory.job import rank_account
from scaleout.spec.adapters import adapted, stored_in_4_bits
from scaleout.spec.blocks import kinds
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape, flops
from scaleout.timing import compute, exchange, machine, products, rates
from scaleout.timing.fsdp_plan import Piece
from scaleout.timing.job import step, update_bytes
from scaleout.timing.quick import TOLERANCE, Pricer
from scaleout.timing.search import even


def test_an_adapter_stands_beside_every_linear_layer_and_beside_no_expert():
    """PEFT's all-linear: experts and routers are parameters of transformers' modules, latent attention's are layers."""
    shape, recipe = Shape.from_config(CONFIGS["DeepSeek V3"]["config"]), Recipe("bf16", adapter="qlora")
    queries, shared = {"q_down", "q_up"}, {"shared_gate", "shared_up", "shared_down"}
    every = queries | {"kv_down", "kv_up", "out"}
    few = replace(recipe, adapter_targets="q+v")
    for experts, linear in ((True, every | shared), (False, every | {"gate", "up", "down"})):
        assert {m.name for m in adapted(shape, recipe, experts)} == linear
        assert {m.name for m in adapted(shape, few, experts)} == queries
        assert {m.name for m in stored_in_4_bits(shape, few, experts)} == linear


def block(one):
    return compute.block(one, machine.from_datasheet(one))


def without(one, **fields):
    """The same job of a model without some of its features."""
    return replace(one, shape=replace(one.shape, variant=replace(one.shape.features, **fields)))


LORA = Recipe("bf16", adapter="lora", adapter_rank=16)


def test_an_adapter_by_hand():
    """Llama 2 7B, one matrix: the weight has no gradient; tokens x 4,096 x 16 and back, each as long as its bytes."""
    lora, full = (job("llama-2-7b", "compiled", 4096, one) for one in (LORA, Recipe("bf16")))
    on, t, h, r = machine.from_datasheet(lora).rates, 4096, 4096, 16
    thin = 2 * (t * h + h * r + t * r) / on.memory_bytes_per_s + rates.KERNEL_SECONDS
    rank = machine.from_datasheet(lora)
    found, whole = (
        products.products(one, rank, block_of(one), "attention", kinds(one.shape)[0]) for one in (lora, full)
    )
    forward, backward, weights = whole["out"]
    assert found["out"] == pytest.approx((forward + 2 * thin, backward - weights + 4 * thin, 2 * thin), rel=1e-12)
    free = products.products(lora, rank, block_of(lora), "attention", kinds(lora.shape)[0], True)
    assert free["q"] == pytest.approx((found["q"][0], 3 * thin, 2 * thin), rel=1e-12) and free["out"] == found["out"]


def test_the_first_layer_has_no_gradient_of_its_input():
    lora = job("llama-2-7b", "compiled", 4096, LORA)
    one, many = (compute.block(lora.other(layers=n), machine.from_datasheet(lora)) for n in (1, 2))
    again = compute.block(lora.other(layers=1, checkpointing="full"), machine.from_datasheet(lora))
    assert one.backward.matmul < many.backward.matmul < again.backward.matmul - again.forward.matmul
    two = 2 * many.backward.matmul - one.backward.matmul  # of the second layer
    assert again.backward.matmul == pytest.approx(two + again.forward.matmul, rel=1e-9)


def test_targets_and_dtype_of_adapters():
    lora = job("llama-2-7b", "eager", 4096, LORA)
    few, wide = lora.other(adapter_targets="q+v"), lora.other(adapter_dtype="fp32")
    assert few.trained_parameters() == 32 * 2 * 16 * 2 * 4096
    assert block(few).forward.seconds < block(lora).forward.seconds < block(wide).forward.seconds
    assert block(lora.other(adapter_dropout=0.1)).forward.moves > block(lora).forward.moves


def test_weights_in_four_bits_are_made_sixteen_each_time():
    """QLoRA: 4.127 bits read and 16 written for each weight, forward and backward; and a copy of each output."""
    lora, qlora = (job("llama-2-7b", "compiled", 4096, replace(LORA, adapter=name)) for name in ("lora", "qlora"))
    rate = machine.from_datasheet(lora).rates.memory_bytes_per_s
    weights, outputs = 4 * 4096**2 + 3 * 4096 * 11_008, 5 * 4096 + 2 * 11_008
    made = (4.127 / 8 + 2) * weights / rate
    assert block(qlora).backward.moves - block(lora).backward.moves == pytest.approx(made, rel=1e-4)
    copied = 2 * 2 * 4096 * outputs / rate
    assert block(qlora).forward.moves - block(lora).forward.moves == pytest.approx(made + copied, rel=1e-4)


def test_replicas_of_adapters_reduce_little():
    """Rank 16 beside all matrices of Llama 2 7B: 39,976,960 numbers; fully_shard gathers the frozen weights too."""
    lora, n = job("llama-2-7b", "eager", 4096, LORA), 39_976_960
    assert lora.trained_parameters() == n == 32 * 16 * (4 * 8192 + 3 * (4096 + 11_008))
    plain = lora.other(zero=0)
    assert [one.size for one in replica_collectives(plain, plain.rank_parameters())] == [2 * n]
    wide = plain.other(adapter_dtype="fp32")
    assert [one.size for one in replica_collectives(wide, wide.rank_parameters())] == [4 * n]
    sharded = lora.other(zero=3)
    scatter, gather = replica_collectives(sharded, sharded.rank_parameters())
    assert (scatter.size, gather.size) == (2 * n, 2 * (n + 6_738_415_616))
    packed = sharded.other(adapter="qlora")
    linear = 32 * (4 * 4096**2 + 3 * 4096 * 11_008)
    _, gather = replica_collectives(packed, packed.rank_parameters())
    rest = 6_738_415_616 - linear + n
    assert gather.size == pytest.approx(2 * rest + 4.127 / 8 * linear, rel=1e-4)
    rows = exchange.layers(plain, step(plain).work)
    assert sum(one.gradient_bytes for one in rows) == pytest.approx(2 * n)
    layer = 2 * (6_738_415_616 - 2 * 32_000 * 4096 - 4096) / 32
    root, unit = exchange.with_adapters(
        (Piece("", 0.0, 0.0, 7.0, 7.0), Piece("blocks.3", 0.0, 0.0, layer, layer)), exchange.adapter_shares(sharded)
    )
    assert (root.gather_bytes, root.reduce_bytes) == (7, 0)
    assert unit.reduce_bytes == pytest.approx(2 * n / 32) and unit.gather_bytes == pytest.approx(layer + 2 * n / 32)


@over(model=["llama-2-7b", "Qwen3 8B", "Gemma 2 9B"], program=["huggingface", "compiled", "megatron"], zero=[0, 3])
def test_adapters_are_never_slower_than_all_weights(model, program, zero):
    full = job(model, program, 4096, Recipe("bf16"), zero=zero)
    lora, qlora = (step(full.other(adapter=name)).seconds for name in ("lora", "qlora"))
    assert lora < step(full).seconds and (lora < qlora or zero == 3)


def test_utilization_counts_no_gradient_of_a_frozen_weight():
    lora = job("llama-2-7b", "compiled", 4096, LORA)
    found, counts = step(lora), flops(lora.shape, 8, 4096)
    core = flops(lora.shape, 8, 4096, "selective")["recompute"]
    counted = counts["forward"] + counts["backward"] - (counts["forward"] - core)
    assert (
        found.mfu == pytest.approx(counted / found.seconds / 8 / lora.peak_flop_per_s, rel=1e-12) and found.mfu < 0.75
    )


# --- optimizers -----------------------------------------------------------------------------------------------------


@each(
    [
        ("adamw", {}, 2 + 2 * 2 + 2 * 4),
        ("adamw", {"fused_update": True}, 2 + 2 * 2 + 2 * 4),
        ("adamw-8bit", {}, 2 + 2 * 2 + 2 * 2 * (1 + 4 / 256)),
        ("lion", {}, 2 + 2 * 2 + 2 * 4),
        ("lion-8bit", {}, 2 + 2 * 2 + 2 * (1 + 4 / 256)),
        ("adafactor", {}, 2 + 2 * 2 + 84),
        ("sgd", {}, 2 + 2 * 2),
    ]
)
def test_bytes_of_an_update(optimizer, options, size):
    """All weights, gradients and moments in 16 bits, bitsandbytes' in 8 with a scale for 256; one kernel, or as many
    as the program has."""
    one = job("llama-2-7b", "eager", 4096, Recipe("bf16", optimizer, **options), zero=0)
    assert update_bytes(one.recipe) == pytest.approx(size)
    times = 1.0 if options or optimizer not in ("adamw", "sgd") else one.program.update_passes
    rate = machine.from_datasheet(one).rates.memory_bytes_per_s
    assert step(one).parts["update"] == pytest.approx(times * size * 6_738_415_616 / rate, rel=1e-9)


def test_muon_multiplies_too():
    one = job("llama-2-7b", "eager", 4096, Recipe("bf16", "muon"), zero=0)
    square = 4 * 5 * (4 * 4096**3 + 2 * 4096**3) + 3 * 5 * (4 * 4096**2 * 11_008 + 2 * 4096**3)
    on = machine.from_datasheet(one).rates
    moved = one.program.update_passes * update_bytes(one.recipe) * 6_738_415_616 / on.memory_bytes_per_s
    assert step(one).parts["update"] == pytest.approx(moved + 32 * square / on.matmul_flop_per_s, rel=1e-9)


def test_activations_that_wait_in_the_hosts_memory():
    """Hidden while every layer is recomputed; of all that a step saves most of the copies show."""
    one = job("llama-2-7b", "compiled", 4096, Recipe("bf16"), checkpointing="full", zero=0)
    both = one, one.other(checkpointing="none")
    assert [step(each.other(activation_offload=True)).parts["exposed host"] > 0 for each in both] == [False, True]
    saved = rank_account(both[1]).moments["forward"]["activations"]
    found, out = step(both[1].other(activation_offload=True)), machine.from_datasheet(one).host(saved)
    backward = fsum(n * work.backward_seconds for n, work in zip((32, 1, 1), found.work, strict=True))
    forward = fsum(n * work.forward_seconds for n, work in zip((32, 1, 1), found.work, strict=True))
    assert found.parts["exposed host"] == pytest.approx(max(0, out - forward) + max(0, out - backward), rel=1e-9)


# --- closed forms ---------------------------------------------------------------------------------------------------


def test_the_closed_forms_of_a_search_price_every_kind():
    """Within 3% of the whole model, of layouts that a search finds: stages as long as one another."""
    found = []
    for one in variants(80, 3):
        price = Pricer(one)
        if not even(one.shape.layers, one.layout.stages):
            continue
        try:
            parts = price.parts(price.way(one.layout, one.batch), one.recipe.checkpointing)
        except ValueError:  # a framework's own recipe
            continue
        exact = step(replace(one, recipe=price.recipe(one.layout, one.recipe.checkpointing), blocks=None))
        for part in ("compute", "recompute", "launches", "exposed tensor", "update", "host"):
            assert parts[part] == pytest.approx(exact.parts[part], abs=1e-6 * exact.seconds), (part, str(one))
        if exact.parts["exposed data"] < 0.6 * exact.seconds:
            found.append(fsum(parts.values()) / exact.seconds - 1)
    assert len(found) > 30 and max(map(abs, found)) < TOLERANCE, sorted(found)
