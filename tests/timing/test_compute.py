"""What a micro-batch costs on one GPU: each rate and each part by hand."""

from dataclasses import replace
from math import fsum

import pytest

from scaleout.collectives.job import block_of
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import compute, machine, passes, rates
from scaleout.timing.rates import Rates

GPU = Rates(1e15, 5e14, (4e14, 2e14), 2e12, multiprocessors=132, depth=70, ramp=300, narrow=0.2, kernel_seconds=1e-5)
LLAMA = Job(PRESETS["llama-3-8b"], 4096, DEVICES["h100-sxm"], cluster(1, 8), 2, Layout(dp=8, zero=1))
FOUR = LLAMA.other(tp=4, sequence_parallel=True)


def block(job):
    return compute.block(job, machine.from_datasheet(job))


# --- rates ----------------------------------------------------------------------------------------------------------


def test_one_wave_of_tiles_and_one_tile_more():
    """132 tiles of 128 by 256 are one wave of an H100; with a 133rd most of a second wave is lost."""
    fast = replace(GPU, memory_bytes_per_s=2e13)
    whole = fast.matmul(132 * 128, 256, 1000)
    assert whole == pytest.approx(2 * 132 * 128 * 256 * 1070 / 5e14 + 1e-5, rel=1e-12)
    more = fast.matmul(133 * 128, 256, 1000)
    lost = 1 + rates.WAVE * (2 * 132 / 133 - 1)
    assert more == pytest.approx(2 * 133 * 128 * 256 * 1070 * lost / 5e14 + 1e-5, rel=1e-12)


def test_a_thin_multiplication_takes_its_bytes():
    size = 2 * (4096 * 8 + 8 * 4096 + 4096 * 4096)
    assert GPU.matmul(4096, 4096, 8) == pytest.approx(size / 2e12 + 1e-5, rel=1e-12)
    assert GPU.moved(size, 3) == pytest.approx(size / 2e12 + 3e-5, rel=1e-12)


def test_attention_is_half_masked_and_two_and_a_half_times_as_long_backward():
    tiles = 64 * 4096 / 128 / 132
    forward, backward = GPU.attention(1e12, 4096, 128, 64)
    reached = 4096 / 4396
    assert forward == pytest.approx(0.5e12 / 4e14 / reached * (1 + rates.TAIL[0] / tiles), rel=1e-12)
    assert backward == pytest.approx(2.5 * 0.5e12 / 2e14 / reached * (1 + rates.TAIL[1] / tiles), rel=1e-12)
    narrow, _ = GPU.attention(1e12, 4096, 64, 64)
    assert narrow / forward == pytest.approx(2**0.2, rel=1e-12)


@pytest.mark.parametrize(
    ("heads", "forward", "backward"),
    [
        (32, 0.566, 0.488),
        (16, 0.4955, 0.441),
        (8, 0.3885, 0.3815),
        (4, 0.257, 0.3375),
        (64, 0.5935, 0.5025),
    ],
)
def test_attention_with_few_heads_as_measured_on_an_a100(heads, forward, backward):
    """SimuMax, A100 PCIe, 4,096 tokens, heads of 128, causal: shares of 312 TFLOP/s (tests/published/kernels.json)."""
    one = rates.device_rates(DEVICES["a100-80gb"], PROGRAMS["megatron"], "bf16")
    flops = 4 * heads * 4096**2 * 128
    there, back = one.attention(flops, 4096, 128, heads)
    assert flops / 2 / there / 312e12 == pytest.approx(forward, rel=0.15)
    assert 2.5 * flops / 2 / back / 312e12 == pytest.approx(backward, rel=0.1)


@pytest.mark.parametrize("key", DEVICES)
def test_a_family_without_measured_shares_takes_another_s(key):
    """No row has a family of which nothing is known; the guess is named in the row, and there only."""
    one = DEVICES[key]
    assert rates.family(one) in rates.MATMUL and bool(one.priced_as) is (one.architecture not in rates.MATMUL)
    assert rates.device_rates(one, PROGRAMS["eager"], one.half).matmul_flop_per_s < one.fp16_flop_per_s


# --- a block --------------------------------------------------------------------------------------------------------


def test_matrices_by_shape():
    """Megatron multiplies by q, k and v at once, and by gate and up; torch by each."""
    one, on = LLAMA.shape, machine.from_datasheet(LLAMA).rates
    t, h, kv, ff = 2 * 4096, 4096, 1024, 14_336
    for job, columns in (
        (LLAMA, [h + 2 * kv, h, 2 * ff, h]),
        (LLAMA.other(program="compiled"), [h, kv, kv, h, ff, ff, h]),
    ):
        deep = [ff if i == len(columns) - 1 else h for i in range(len(columns))]
        on = machine.from_datasheet(job).rates
        found = block(job)
        assert found.forward.matmul == pytest.approx(
            fsum(on.matmul(t, n, k) for n, k in zip(columns, deep, strict=True)), rel=1e-12
        )
        weights = fsum(on.matmul(k, n, t) for n, k in zip(columns, deep, strict=True))
        inputs = fsum(on.matmul(t, k, n) for n, k in zip(columns, deep, strict=True))
        assert found.weights == pytest.approx(weights, rel=1e-12)
        assert found.backward.matmul == pytest.approx(weights + inputs, rel=1e-12)
        assert [name for name, *_ in found.matrices] == ["q", "k", "v", "out", "gate", "up", "down"]
    assert one.gated_mlp


@pytest.mark.parametrize(
    "job",
    [
        LLAMA,
        FOUR,
        LLAMA.other(checkpointing="full"),
        LLAMA.other(program="eager"),
        FOUR.other(checkpointing="selective"),
    ],
)
def test_matrices_add_up_to_the_phases(job):
    found = block(job)
    for phase, place in ((found.forward, 1), (found.backward, 2)):
        assert fsum(row[place] for row in found.matrices) == pytest.approx(phase.seconds, rel=1e-12)


def test_what_is_recomputed():
    """Full: the forward once more, its communication too; selective: attention."""
    plain, full, core = (block(FOUR.other(checkpointing=how)) for how in ("none", "full", "selective"))
    assert full.backward.seconds == pytest.approx(plain.backward.seconds + plain.forward.seconds, rel=1e-12)
    assert full.repeated == plain.forward and plain.repeated == compute.Phase() and plain.recompute == 0
    assert full.recompute == pytest.approx(plain.forward.seconds - plain.forward.exposed, rel=1e-12)
    assert full.launches == pytest.approx(plain.launches, rel=1e-12) == core.launches
    assert core.backward.seconds == pytest.approx(plain.backward.seconds + plain.forward.attention, rel=1e-12)
    assert core.recompute == pytest.approx(plain.forward.attention, rel=1e-12)


def test_a_programs_kernels():
    """Bytes that kernels move, and a gap for each of them, twice as many backward."""
    plain = block(LLAMA)
    twice = block(replace(LLAMA, program=replace(LLAMA.program, moves=2.0)))
    assert twice.forward.moves == pytest.approx(2 * plain.forward.moves, rel=1e-12)
    assert plain.forward.launches == pytest.approx(14 * LLAMA.program.kernel_seconds, rel=1e-12)
    assert plain.backward.launches == pytest.approx(2 * plain.forward.launches, rel=1e-12)


def test_operations_of_their_own_move_more():
    """An RMS norm, rotary positions and a gate in one kernel each, and one operation at a time."""
    on = machine.from_datasheet(LLAMA).rates
    split = block(replace(LLAMA, program=replace(LLAMA.program, fused=False)))
    sizes = {one.name: one.bytes for one in block_of(LLAMA).tensors}
    more = 2 * passes.RMS_NORM[0] * sizes["x"] + 7 * (sizes["q"] + sizes["k"]) + 2 * sizes["up"]
    assert split.forward.moves - block(LLAMA).forward.moves == pytest.approx(more / on.memory_bytes_per_s, rel=1e-12)


def test_context_parallelism_shares_the_queries():
    """Each of two ranks has half of the queries, and all of the keys: half of the attention."""
    two = LLAMA.other(cp=2)
    alone, shared = block(LLAMA).forward.attention, block(two).forward.attention
    assert alone / 2 < shared < 0.56 * alone  # fewer tiles are in flight


@pytest.mark.parametrize("program", ["megatron", "eager"])
def test_each_half_of_a_block_has_its_own_seconds(program):
    """A wider MLP changes no matrix of attention, more heads for keys none of the MLP."""
    job = LLAMA.other(program=program)
    wide, keys = (job.other(shape=replace(job.shape, **one)) for one in ({"ff": 2 * 14336}, {"kv_heads": 32}))
    plain, wide, keys = ({name: times for name, *times in block(each).matrices} for each in (job, wide, keys))
    assert all(wide[name] == plain[name] for name in ("q", "k", "v", "out"))
    assert all(keys[name] == plain[name] for name in ("gate", "up", "down"))
    assert all(wide[name] > plain[name] for name in ("gate", "up", "down")) and keys["k"] > plain["k"]


# --- tensor parallelism ---------------------------------------------------------------------------------------------


def overlapped(how, contention=0.0, job=FOUR):
    return block(replace(job, program=replace(job.program, tensor_overlap=how, contention=contention)))


def test_what_hides_communication():
    none, back, chunked = (overlapped(how) for how in ("none", "backward", "chunked"))
    assert none.forward.exposed == pytest.approx(none.forward.communication, rel=1e-12)
    assert back.forward.exposed == none.forward.exposed and back.backward.exposed < none.backward.exposed
    assert chunked.forward.exposed < 0.2 * none.forward.exposed
    assert chunked.forward.communication == none.forward.communication


def test_hidden_communication_takes_its_share_of_compute():
    free, dear, all_of_it = (overlapped("chunked", share).forward for share in (0.0, 0.25, 1.0))
    hidden = free.communication - free.exposed
    assert dear.exposed == pytest.approx(free.exposed + 0.25 * hidden, rel=1e-12)
    assert all_of_it.exposed == pytest.approx(free.communication, rel=1e-12)


def test_chunks_stay_inside_a_node_and_cut_gathers():
    wide = LLAMA.other(cluster=cluster(2, 4), tp=8, sequence_parallel=True)
    assert compute.overlap(wide, machine.from_datasheet(wide)) == "backward"
    whole = LLAMA.other(tp=4)
    assert compute.overlap(whole, machine.from_datasheet(whole)) == "backward"
    assert compute.overlap(FOUR, machine.from_datasheet(FOUR)) == "chunked"
