"""What `tensor`'s exercises say of matrices, heads and partial sums, tried with torch in one process."""

import answers
import torch
from torch.nn import functional as F

from scaleout import exercises

T = 4


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def test_columns_by_heads_give_a_rank_its_own_heads_outputs():
    """Attention on a rank's columns of the fused matrix is that of its heads in the whole one."""
    columns, hidden, seq = answers.solution("tensor", "split-heads"), 10, 5

    def attention(qkv, heads, width):
        q, k, v = (part.view(seq, -1, width).transpose(0, 1) for part in qkv)
        k, v = (shared.repeat_interleave(heads // len(shared), 0) for shared in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    for rank, ranks, heads, kv, width in exercises.exercise("tensor", "split-heads").cases:
        qkv = drawn(seq, hidden) @ drawn(hidden, (heads + 2 * kv) * width)
        expected = attention(qkv.split([heads * width, kv * width, kv * width], 1), heads, width)
        rank_heads, indices = heads // ranks, columns(rank, ranks, heads, kv, width)
        kv_columns = (len(indices) - rank_heads * width) // 2
        mine = attention(qkv[:, indices].split([rank_heads * width, kv_columns, kv_columns], 1), rank_heads, width)
        assert torch.allclose(mine, expected[rank * rank_heads : (rank + 1) * rank_heads])


def test_a_gated_mlp_is_a_sum_of_parts_by_columns_and_by_no_other_cut():
    x, gate, up_weight, down_weight = drawn(3, 8), drawn(8, 16), drawn(8, 17)[:, :16], drawn(16, 8)
    expected = (F.silu(x @ gate) * (x @ up_weight)) @ down_weight
    columns = [
        (F.silu(x @ g) * (x @ u)) @ d
        for g, u, d in zip(gate.chunk(T, 1), up_weight.chunk(T, 1), down_weight.chunk(T), strict=True)
    ]
    assert torch.allclose(sum(columns), expected)
    rows = [F.silu(a @ g) * (a @ u) for a, g, u in zip(x.chunk(T, 1), gate.chunk(T), up_weight.chunk(T), strict=True)]
    assert not torch.allclose(sum(rows) @ down_weight, expected)
    reversed_blocks = zip(gate.chunk(T, 1), up_weight.chunk(T, 1)[::-1], down_weight.chunk(T), strict=True)
    assert not torch.allclose(sum((F.silu(x @ g) * (x @ u)) @ d for g, u, d in reversed_blocks), expected)


def test_of_the_steps_only_a_mask_that_all_share_goes_through_the_sum():
    parts, bias, residual, mask = drawn(T, 5, 6), drawn(6), drawn(5, 6), (drawn(5, 6) > 0).double()
    masks = (drawn(T, 5, 6) > -1).double()
    steps = {
        "same-mask": lambda y, rank: y * mask,
        "bias": lambda y, rank: y + bias,
        "residual": lambda y, rank: y + residual,
        "activation": lambda y, rank: F.gelu(y),
        "own-mask": lambda y, rank: y * masks[rank],
        "norm": lambda y, rank: F.layer_norm(y, (6,)),
    }
    assert set(steps) == {option.name for option in exercises.exercise("tensor", "partial-sum").options}
    sums = {name: sum(step(y, rank) for rank, y in enumerate(parts)) for name, step in steps.items()}
    commuting = {name for name, total in sums.items() if torch.allclose(total, steps[name](parts.sum(0), 0))}
    assert commuting == {answers.right("tensor", "partial-sum")}
