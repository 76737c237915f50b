"""Layers of each kind, a job of each by hand: windows, norms, experts, latent attention, adapters, optimizers."""

import json
from dataclasses import replace
from math import ceil, fsum

import pytest
from cases import each, over
from jobs import variants
from repo import ROOT

from scaleout.collectives.job import block_of, replica_collectives, traffic
from scaleout.memory.job import rank_account
from scaleout.spec.blocks import kinds, matrices
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape, flops
from scaleout.timing import compute, exchange, kernels, machine, passes, rates
from scaleout.timing.fsdp_plan import Piece
from scaleout.timing.job import step, update_bytes
from scaleout.timing.quick import TOLERANCE, Pricer
from scaleout.timing.search import even

MODELS = json.loads((ROOT / "tests/published/hugging_face_parameters.json").read_text(encoding="utf-8"))["models"]
H100, NODE = DEVICES["h100-sxm"], cluster(1, 8)
BF16 = Recipe("bf16-master", main_gradients="instead")
T = 8192  # tokens of a micro-batch


def job(name, program="megatron", seq=T, recipe=BF16, **changes):
    shape = PRESETS.get(name) or Shape.from_config(MODELS[name]["config"])
    one = Job(shape, seq, H100, NODE, 1, Layout(dp=8, zero=1), recipe, PROGRAMS[program])
    return one.other(**changes) if changes else one


def block(one):
    return compute.block(one, machine.from_datasheet(one))


def without(one, **fields):
    """The same job of a model without some of its features."""
    return replace(one, shape=replace(one.shape, variant=replace(one.shape.features, **fields)))


# --- windows and scores ---------------------------------------------------------------------------------------------


def test_a_window_leaves_out_the_scores_before_it():
    """Mistral: 8,192 tokens of which each looks back over 4,096: 3/4 of the scores below the diagonal."""
    sliding = job("Mistral 7B v0.1")
    on, full = machine.from_datasheet(sliding).rates, without(sliding, window=None)
    pairs = sum(min(query + 1, 4096) for query in range(T))
    assert compute.attended(T, 4096) == 0.75 == pytest.approx(pairs / (T * T / 2), rel=1e-3)
    ramp, tiles = 0.75 * T / (0.75 * T + rates.RAMP), 32 * T / 128 / 132
    forward = 0.75 * 4 * T * T * 4096 / 2 / on.attention_flop_per_s[0] / ramp * (1 + rates.TAIL[0] / tiles)
    assert block(sliding).forward.attention == pytest.approx(forward, rel=1e-12)
    assert block(without(sliding, window=T)).forward == block(full).forward
    assert block(sliding).forward.matmul == block(full).forward.matmul


def test_layers_of_two_kinds_are_priced_as_their_mean():
    """Gemma 2 9B: 21 of 42 layers have a window of 4,096."""
    gemma = job("Gemma 2 9B")
    assert [(kind.layers, kind.window) for kind in kinds(gemma.shape)] == [(21, 4096), (21, None)]
    all_of_it, none = without(gemma, global_layers=()), without(gemma, window=None)
    mean = (block(all_of_it).forward.attention + block(none).forward.attention) / 2
    assert block(gemma).forward.attention == pytest.approx(mean, rel=1e-12)
    assert fsum(times for _, times, _ in block(gemma).matrices) == pytest.approx(block(gemma).forward.seconds)


def test_a_kernel_that_takes_a_mask_computes_all_scores():
    """transformers hands sdpa a mask where a window is shorter than the sequence; a longer one is none."""
    eager = job("Mistral 7B v0.1", "huggingface")
    on, tiles = machine.from_datasheet(eager).rates, 32 * T / 128 / 132
    ramp = 2 * T / (2 * T + rates.RAMP)
    share = rates.ATTENTION["efficient"]["hopper"][0]
    forward = 4 * T * T * 4096 / (share * on.peak) / ramp * (1 + rates.TAIL[0] / tiles)
    assert block(eager).forward.attention == pytest.approx(forward, rel=1e-12)
    short = job("Mistral 7B v0.1", "huggingface", 4096)
    assert block(short) == block(without(short, window=None))


def test_tanh_around_scores():
    """One special function for each score that is attended to, forward and, where it is made again, backward: 16 per
    clock and multiprocessor, while tensor cores make 4,096 FLOPs."""
    gemma = without(job("Gemma 2 9B"), window=None)
    bare, chip = without(gemma, caps=("logits",)), kernels.GENERATIONS["h100"]
    seconds = 16 * T * T / 2 / chip.exponentials / chip.clock / 132
    for phase in ("forward", "backward"):
        more = getattr(block(gemma), phase).attention - getattr(block(bare), phase).attention
        assert more == pytest.approx(seconds, rel=1e-9)
    split, plain = (one.other(program="huggingface", attention="naive") for one in (gemma, bare))
    size, moved = 2 * 16 * T * T, machine.from_datasheet(split).rates.memory_bytes_per_s
    more = block(split).backward.moves - block(plain).backward.moves
    assert more == pytest.approx(7 * size / moved, rel=1e-9)


@pytest.mark.parametrize("chip", kernels.GENERATIONS)
def test_a_special_function_is_counted_as_attention_is(chip):
    one, family = kernels.GENERATIONS[chip], {"a": "ampere", "h": "hopper", "b": "blackwell"}[chip[0]]
    assert chip == "b300" or rates.FLOPS_OF_TANH[family] == one.flop[2] / one.exponentials


def test_naive_attention_moves_its_scores_as_kernels_says():
    assert passes.SCORES == (4, 7)
    sunk = job("gpt-oss 20B", "huggingface", attention="naive")
    assert passes.scores(sunk) == (4 + 5, 7 + 5) and passes.scores(without(sunk, sinks=False)) == (4, 7)
    assert passes.scores(job("Gemma 2 9B", "eager", attention="naive", dropout=0.1)) == (4 + 2.5 + 6, 7 + 2.5 + 7)


# --- norms and order ------------------------------------------------------------------------------------------------


@each([("after", 0), ("around", 2), ("shared", -1)])
def test_norms_elsewhere(norms, more):
    """So many norms more in a layer than two: one kernel that reads and writes the stream, forward."""
    base = without(job("Gemma 2 9B"), norms="before", window=None)
    other, on = without(base, norms=norms), machine.from_datasheet(base).rates
    stream = T * base.shape.hidden * 2
    assert block(other).forward.moves - block(base).forward.moves == pytest.approx(
        more * 2 * stream / on.memory_bytes_per_s, abs=1e-12
    )
    assert block(other).backward.moves - block(base).backward.moves == pytest.approx(
        more * 3 * stream / on.memory_bytes_per_s, abs=1e-12
    )
    assert block(other).forward.launches - block(base).forward.launches == pytest.approx(
        more * base.program.kernel_seconds, abs=1e-12
    )


def test_an_rms_norm_of_transformers_is_eight_kernels():
    base = without(job("Gemma 2 9B", "huggingface"), norms="before", window=None)
    more = block(without(base, norms="around")).forward.launches - block(base).forward.launches
    assert more == pytest.approx(2 * 8 * base.program.kernel_seconds, rel=1e-9)


def test_norms_of_queries_and_keys():
    qwen = job("Qwen3 8B")
    bare, rate = without(qwen, qk_norm="none"), machine.from_datasheet(qwen).rates.memory_bytes_per_s
    heads = T * (4096 + 1024) * 2
    assert block(qwen).forward.moves - block(bare).forward.moves == pytest.approx(2 * heads / rate, rel=1e-9)
    assert block(qwen).backward.moves - block(bare).backward.moves == pytest.approx(3 * heads / rate, rel=1e-9)
    assert block(qwen).forward.launches - block(bare).forward.launches == pytest.approx(2 * 16.6e-6, rel=1e-9)


def test_attention_and_mlp_side_by_side_share_their_sum():
    """Pythia's have two norms, Falcon 7B's one: of four messages there and back two and one are saved."""
    pythia = job("Pythia 6.9B", seq=2048, tp=4, sequence_parallel=True)
    falcon = job("Falcon 2 11B", tp=4, sequence_parallel=True)
    for one, left in ((pythia, 3), (falcon, 2)):
        both = block_of(one), block_of(without(one, parallel=False))
        assert [len(cut.moves("forward")) for cut in both] == [left, 4]
        assert traffic(one)["tp"].bytes < traffic(without(one, parallel=False))["tp"].bytes
        assert step(one).parts["exposed tensor"] < step(without(one, parallel=False)).parts["exposed tensor"]


# --- experts --------------------------------------------------------------------------------------------------------


def test_experts_are_grouped_multiplications_of_their_tokens():
    """Mixtral: 8,192 tokens go to 2 of 8 experts each: 2,048 rows for one, its gate and up in one multiplication."""
    mixtral = job("Mixtral 8x7B", "compiled")
    on, h, ff = machine.from_datasheet(mixtral).rates, 4096, 14_336
    times = {name: (forward, backward) for name, forward, backward in block(mixtral).matrices}
    assert list(times) == ["q", "k", "v", "out", "router", "expert_gate", "expert_up", "expert_down"]
    tiles = 8 * ceil(2048 / 128) * ceil(2 * ff / 256)
    wave = 1 + rates.WAVE * (ceil(tiles / 132) * 132 / tiles - 1)
    first = 8 * 2 * 2048 * 2 * ff * (h + rates.DEPTH) * wave / on.matmul_flop_per_s + on.kernel_seconds
    assert times["expert_gate"][0] + times["expert_up"][0] == pytest.approx(first, rel=1e-12)
    assert times["expert_down"][0] == pytest.approx(on.matmul(2048, h, ff, 2, 8), rel=1e-12)
    backward = on.matmul(2048, ff, h, 2, 8) + on.matmul(ff, h, 2048, 2, 8)
    assert times["expert_down"][1] == pytest.approx(backward, rel=1e-12)


def test_the_way_to_the_experts_and_back():
    """Rows of 2 experts gathered (read, written), and summed (read twice, written once): 7 passes of the stream."""
    mixtral, dense = job("Mixtral 8x7B"), job("Mistral 7B v0.1")
    rate, row = machine.from_datasheet(mixtral).rates.memory_bytes_per_s, 4096 * 2
    wider = T * 14_336 * 2 * passes.GATED[0]  # the second expert's activation
    moved = T * (7 * row + passes.ROUTED[0] * 4 * 8) + wider
    assert block(mixtral).forward.moves - block(dense).forward.moves == pytest.approx(moved / rate, rel=1e-9)
    more = block(mixtral).forward.launches - block(dense).forward.launches
    assert more == pytest.approx(passes.EXPERTS_KERNELS[True] * 16.6e-6, rel=1e-9)


def test_replicas_reduce_the_gradients_of_all_experts():
    mixtral = job("Mixtral 8x7B")
    assert mixtral.rank_parameters() == MODELS["Mixtral 8x7B"]["total"]
    gradients, weights = replica_collectives(mixtral, mixtral.rank_parameters())
    assert (gradients.size, weights.size) == (4 * 46_702_792_704, 2 * 46_702_792_704)
    on = machine.from_datasheet(mixtral).rates
    update = mixtral.program.update_passes * 30 * 46_702_792_704 / 8 / on.memory_bytes_per_s
    assert step(mixtral).parts["update"] == pytest.approx(update, rel=1e-9)


def test_dense_layers_and_shared_experts():
    """DeepSeek V2 Lite: the first of 27 layers is dense; two shared experts are one MLP of twice the width."""
    lite = job("DeepSeek V2 Lite")
    rows = {matrix.name: matrix for matrix in matrices(lite.shape, True)}
    assert (rows["shared_up"].depth, rows["shared_up"].columns) == (2048, 2 * 1408)
    assert (rows["expert_up"].count, rows["expert_up"].active, rows["router"].columns) == (64, 6, 64)
    assert "router" not in {matrix.name for matrix in matrices(lite.shape)}
    experts = replace(lite.shape.features.experts, dense=())
    every, none = (without(lite, experts=each) for each in (experts, replace(experts, dense=tuple(range(27)))))
    mean = (26 * block(every).forward.matmul + block(none).forward.matmul) / 27
    assert block(lite).forward.matmul == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("name", ["Mixtral 8x7B", "Qwen3 30B A3B", "DeepSeek V2 Lite", "gpt-oss 20B"])
def test_experts_take_at_least_the_time_of_what_a_token_passes_through(name):
    one = job(name, seq=4096)
    found = step(one)
    counted = sum(flops(one.shape, one.sequences, one.seq)[kind] for kind in ("forward", "backward"))
    assert found.seconds > counted / 8 / one.peak_flop_per_s / 0.75
    less = without(one, experts=replace(one.shape.features.experts, active=1))
    assert step(less).seconds < found.seconds


# --- latent attention -----------------------------------------------------------------------------------------------


def test_latent_attention_multiplies_by_its_own_matrices():
    """DeepSeek V2: queries from 1,536 numbers, keys and values from 512, 128 heads of 128 + 64 and 128."""
    v2 = job("DeepSeek V2", "compiled", 4096)
    on, t, h, heads = machine.from_datasheet(v2).rates, 4096, 5120, 128
    times = {name: forward for name, forward, _ in block(without(v2, experts=None)).matrices}
    own = {"q_up": (heads * 192, 1536), "kv_down": (512 + 64, h), "out": (h, heads * 128)}
    for name, (columns, depth) in own.items():
        assert times[name] == pytest.approx(on.matmul(t, columns, depth), rel=1e-12), name
    core = 2 * t * t * heads * (192 + 128)
    forward, _ = on.attention(core, t, 192, heads)
    assert times["kv_up"] == pytest.approx(on.matmul(t, heads * (128 + 128), 512) + forward, rel=1e-12)
    assert block(v2).forward.attention == pytest.approx(forward, rel=1e-12)


def test_ranks_share_the_heads_of_latent_attention():
    """The small matrices are whole on each rank; context parallelism has keys of heads only."""
    cut = {matrix.name: matrix for matrix in matrices(job("DeepSeek V2").shape, tp=4)}
    assert (cut["q_down"].columns, cut["kv_down"].columns) == (1536, 576)
    assert (cut["q_up"].columns, cut["kv_up"].columns, cut["out"].depth) == (32 * 192, 32 * 256, 32 * 128)
    with pytest.raises(ValueError, match="context parallelism is priced with key-value heads only: use cp 1"):
        job("DeepSeek V2", cp=2)


# --- adapters -------------------------------------------------------------------------------------------------------

LORA = Recipe("bf16", adapter="lora", adapter_rank=16)


def test_an_adapter_by_hand():
    """Llama 2 7B, one matrix: the weight has no gradient; tokens x 4,096 x 16 and back, each as long as its bytes."""
    lora, full = (job("llama-2-7b", "compiled", 4096, one) for one in (LORA, Recipe("bf16")))
    on, t, h, r = machine.from_datasheet(lora).rates, 4096, 4096, 16
    thin = 2 * (t * h + h * r + t * r) / on.memory_bytes_per_s + rates.KERNEL_SECONDS
    rank = machine.from_datasheet(lora)
    found, whole = (
        compute.products(one, rank, block_of(one), "attention", kinds(one.shape)[0]) for one in (lora, full)
    )
    forward, backward, weights = whole["out"]
    assert found["out"] == pytest.approx((forward + 2 * thin, backward - weights + 4 * thin, 2 * thin), rel=1e-12)
    free = compute.products(lora, rank, block_of(lora), "attention", kinds(lora.shape)[0], True)
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
        sharded, (Piece("", 0.0, 0.0, 7.0, 7.0), Piece("blocks.3", 0.0, 0.0, layer, layer))
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
