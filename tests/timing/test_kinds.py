"""Layers of each kind, a job of each by hand: windows, norms, experts, latent attention."""

from dataclasses import replace
from math import ceil, fsum

import pytest
from cases import each, over
from jobs import CONFIGS, TOKENS
from jobs import on_a_node as job

from scaleout.collectives.job import block_of, replica_collectives, traffic
from scaleout.spec.blocks import kinds, matrices
from scaleout.spec.program import PROGRAMS
from scaleout.spec.transformer import flops
from scaleout.timing import compute, kernels, machine, passes, products, rates
from scaleout.timing.job import step

KERNEL = PROGRAMS["eager"].kernel_seconds

T = TOKENS


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
    assert products.attended(T, 4096) == 0.75 == pytest.approx(pairs / (T * T / 2), rel=1e-3)
    ramp, tiles = 0.75 * T / (0.75 * T + rates.RAMP), 32 * T / 128 / 132
    forward = 0.75 * 4 * T * T * 4096 / 2 / on.attention_flop_per_s[0] / ramp * (1 + rates.TAIL[0] / tiles)
    assert block(sliding).forward.attention == pytest.approx(forward, rel=1e-12)
    assert block(without(sliding, window=T)).forward == block(full).forward
    assert block(sliding).forward.matmul == block(full).forward.matmul


@over(name=["Mistral 7B v0.1", "Gemma 3 4B, its text model", "OLMo 3 7B", "gpt-oss 20B"], seq=[1024, 4096, 16_384],
      program=[name for name, one in PROGRAMS.items() if one.windows])  # fmt: skip
def test_a_window_is_never_slower(name, seq, program):
    """And the shorter one never slower than the longer, in programs that leave out what lies before it."""
    one = job(name, program, seq)
    seconds = [step(without(one, window=window)).seconds for window in (128, 1000, 4096, 10**6, None)]
    assert seconds == sorted(seconds) and seconds[-1] == seconds[-2]


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
    assert block(qwen).forward.launches - block(bare).forward.launches == pytest.approx(2 * KERNEL, rel=1e-9)


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
    assert more == pytest.approx(passes.EXPERTS_KERNELS[True] * KERNEL, rel=1e-9)


def test_replicas_reduce_the_gradients_of_all_experts():
    mixtral = job("Mixtral 8x7B")
    assert mixtral.rank_parameters() == CONFIGS["Mixtral 8x7B"]["total"]
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
