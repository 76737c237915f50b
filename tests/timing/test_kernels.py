"""Attention kernel by kernel: against published cycles and speeds, and by counting bytes and FLOPs otherwise."""

import json
from dataclasses import replace

import pytest
from repo import text

from scaleout.memory.activations import Sizes, core_kept
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS
from scaleout.timing import kernels
from scaleout.timing.kernels import DIRECTIONS, GENERATIONS, KERNELS, TILE, Attention, clocks

PAPER = json.loads(text("tests/published/attention.json"))
SERIES = {one["series"]: one for one in json.loads(text("tests/published/kernels.json"))["series"]}
A100, H100, B200, B300 = GENERATIONS.values()
SQUARE = Attention(8192, 128, 32)


def test_a_tile_on_b200_takes_the_papers_cycles():
    forward, one, two = (clocks(B200, SQUARE, *way[:1], pair=len(way) > 1) for way in
                         (("forward",), ("backward",), ("backward", "pair")))  # fmt: skip
    said = PAPER["cycles"]["B200"]
    assert (forward.matmul, forward.exponentials, forward.shared) == tuple(said["forward"].values())
    assert (one.matmul, one.exponentials) == (said["backward"]["mma"], said["backward"]["exp"])
    assert (one.shared, two.shared) == (said["backward"]["smem"], said["backward"]["smem_two_cta"])
    hopper = clocks(H100, SQUARE)
    assert (hopper.matmul, hopper.exponentials) == tuple(PAPER["cycles"]["H100"]["forward"].values())


@pytest.mark.parametrize("head", [64, 128, 256])
def test_the_papers_formulas_hold_at_other_head_sizes(head):
    found, m, n = clocks(B200, Attention(8192, head, 16)), TILE, TILE
    assert found.matmul == 4 * m * n * head / 8192 and found.exponentials == m * n / 16
    assert found.shared == 3 * m * n * head / 8192
    assert found.exponentials / found.matmul == 128 / head


def test_clocks_are_the_datasheets():
    """1,410 MHz for A100 and 1,830 for H100, as spec/devices.py has them from whitepapers."""
    assert A100.clock == pytest.approx(1.41e9, rel=1e-3) and H100.clock == pytest.approx(1.83e9, rel=1e-3)
    per_clock = PAPER["per_SM_and_clock"]
    for chip in (H100, B200):
        assert chip.flop[2] == per_clock["MMA_flop"][chip.name] and chip.shared == per_clock["smem_bytes"]
        assert chip.peak(1) == pytest.approx(chip.device.fp8_flop_per_s, rel=1e-3)
        assert chip.peak(2) == pytest.approx(chip.device.bf16_flop_per_s)
    assert {chip.name: chip.exponentials for chip in GENERATIONS.values()} == per_clock["exp"]


def rows(series, **wanted):
    columns = SERIES[series]["columns"]
    found = [dict(zip(columns, row, strict=True)) for row in SERIES[series]["rows"]]
    return [row for row in found if all(row[name] == value for name, value in wanted.items())]


@pytest.mark.parametrize("head", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_no_published_kernel_of_an_h100_beats_the_longest_clock(head, causal):
    """Most of what FlashAttention-3 reaches lies near what tensor cores and exponentials take in turn."""
    for row in rows("attention H100, FlashAttention-3's figures", head_dim=head, causal=int(causal)):
        for seq in ("512", "2048", "16384"):
            a = Attention(int(seq), head, 2048 // head * 16384 // int(seq), causal)
            direction = {"fwd": "forward", "bwd": "backward"}[row["pass"]]
            if row[seq]:
                assert row[seq] * 1e12 < kernels.ceiling(H100, a, direction) * H100.peak(2)
    measured = [row["16384"] for row in rows("attention H100, FlashAttention-3's figures", head_dim=head, kernel="fa3",
                                             causal=0, **{"pass": "fwd"})]  # fmt: skip
    a = Attention(16384, head, 2048 // head)
    in_turn = kernels.ceiling(H100, a, overlapped=False) * H100.peak(2) / 1e12
    assert 0.94 < measured[0] / in_turn < 1.01


def test_b200_with_heads_of_64_reaches_the_exponentials_ceiling():
    a = Attention(16384, 64, 32)
    assert kernels.ceiling(B200, a) == pytest.approx(0.5)
    reached = PAPER["pr2605_fa4_d64"]["TFLOPs"][-1] / PAPER["pr2605_fa4_d64"]["peak_TFLOPs"]
    assert reached == pytest.approx(0.49) and 0.95 < reached / kernels.ceiling(B200, a) < 1
    assert kernels.ceiling(B200, a, emulated=0.25) == pytest.approx(2 / 3)


def test_fp8_gains_what_was_measured_where_the_exponentials_decide():
    """FlashAttention-4 on Blackwell, heads of 64, no exponentials emulated: at most 3%, and 1.3 times on a B300,
    whose doubled exponentials allow 2 with heads of 128."""
    said = PAPER["pr2109_fp8_d64"]
    measured = [fp8 / bf16 for fp8, bf16 in zip(said["fp8_TFLOPs"], said["bf16_TFLOPs"], strict=True)]
    for seq, gain in zip(said["seq"], measured, strict=True):
        bound = kernels.fp8_gain(B200, Attention(seq, 64, 32 * 16384 // seq))
        assert bound == pytest.approx(1) and 1 < gain < 1.035
    b300 = PAPER["issue2701_b300"]
    assert 1.25 < b300["fp8_TFLOPs"] / b300["bf16_TFLOPs"] < kernels.fp8_gain(B300, SQUARE) == pytest.approx(2)
    h100 = 1171 / 756  # FlashAttention-3, heads of 256, no mask
    assert kernels.fp8_gain(H100, Attention(16384, 256, 8), overlapped=False) == pytest.approx(5 / 3) and h100 < 5 / 3


def test_fp8_numbers_of_the_paper_are_in_their_order():
    """FlashAttention-3, table 3: rotation is what helps its FP8, block scales alone do not."""
    error = PAPER["fa3_rmse"]
    assert error["fp16_fa"] < error["fp16_standard"] < error["fa3_fp8"] < error["without_block_scales"]
    assert error["without_rotation"] == error["fp8_per_tensor"] > 2.5 * error["fa3_fp8"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq", [128, 512, 1000, 4096])
def test_tiles_and_flops_by_counting(seq, causal):
    a = Attention(seq, 64, 3, causal)
    blocks = [(i, j) for i in range(0, seq, TILE) for j in range(0, seq, TILE) if not causal or j <= i]
    assert a.tiles() == 3 * len(blocks)
    assert kernels.made_flops(a, "fused") == 3 * len(blocks) * 2 * 2 * TILE * TILE * 64
    assert kernels.made_flops(a, "naive") == 3 * 4 * seq * seq * 64
    assert kernels.made_flops(a, "fused", "backward") == 2.5 * kernels.made_flops(a, "fused")
    assert kernels.model_flops(a, "backward") == 2.5 * kernels.model_flops(a)


def test_fused_attention_computes_more_and_moves_less():
    """3.5 times the forward's FLOPs instead of 3, and a fraction of the bytes, which grows with the sequence."""
    for seq in (1024, 4096, 16384):
        a = Attention(seq, 128, 16)
        flops, moved = ({kernel: sum(count(a, kernel, way) for way in DIRECTIONS) for kernel in KERNELS}
                        for count in (kernels.made_flops, kernels.hbm_bytes))  # fmt: skip
        assert flops["fused"] / flops["naive"] == pytest.approx(7 / 6)
        # 11 tensors of 2 bytes and 11 passes of the scores; 12 tensors and four fp32 numbers per query
        assert moved["naive"] / moved["fused"] == (22 * 128 + 22 * seq) / (24 * 128 + 16)


@pytest.mark.parametrize(
    "direction, steps",
    [
        ("forward", ["q k -> x", "x -> p", "p v -> o"]),
        ("backward", ["p do -> dv", "do v -> dp", "p dp -> dx", "dx k -> dq", "dx q -> dk"]),
    ],
)
def test_passes_over_the_scores_by_counting_what_each_step_touches(direction, steps):
    """Standard attention, one operation at a time: x, p, dp and dx have a number per pair of tokens."""
    large = sum(name in ("x", "p", "dp", "dx") for step in steps for name in step.replace("->", "").split())
    a = Attention(4096, 128, 16)
    assert (
        kernels.hbm_bytes(a, "naive", direction)
        == 2 * a.scores * large + 2 * a.row * (kernels.TENSORS["naive"][direction])
    )


def test_kept_bytes_are_those_of_the_memory_model():
    """What `memory` saves of the core of attention: with learned positions, it keeps nothing else there, but for the
    naive kernel's mask, a byte per pair of tokens, and the output, which the projection saves."""
    shape = PRESETS["gpt2"]
    a = Attention(1024, shape.hidden // shape.heads, shape.heads)
    for kernel, name in (("fused", "sdpa"), ("naive", "naive")):
        z = Sizes(shape, 1, 1024, Recipe("bf16-master", attention=name), Layout())
        beside = a.seq**2 + 2 * a.row if kernel == "naive" else 0
        assert kernels.kept_bytes(a, kernel) == core_kept(z) - beside


def test_shared_memory_is_shared_by_more_rows_in_each_generation():
    shares = [clocks(chip, SQUARE).shared for chip in (A100, H100, B200)]
    assert shares == sorted(shares, reverse=True) and clocks(B300, SQUARE).shared == shares[-1]
    grown = [clocks(chip, SQUARE).exponentials / clocks(chip, SQUARE).matmul for chip in (A100, H100, B200)]
    assert grown == [1 / 4, 1 / 2, 1]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="A100 multiplies no numbers of 1 byte: use 2"):
        clocks(A100, replace(SQUARE, width=1))
    with pytest.raises(ValueError, match="kernel"):
        kernels.hbm_bytes(SQUARE, "sparse")
    with pytest.raises(ValueError, match="direction"):
        kernels.model_flops(SQUARE, "sideways")
    with pytest.raises(ValueError, match="head must be a whole number"):
        Attention(128, 0)
    with pytest.raises(ValueError, match="emulated"):
        clocks(B200, SQUARE, emulated=2)
