"""What `tensor`'s exercises say of matrices, heads, losses and gradients, tried with torch in one process."""

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

    def attention(out, heads, width):
        q, k, v = (part.view(seq, -1, width).transpose(0, 1) for part in out)
        k, v = (one.repeat_interleave(heads // len(one), 0) for one in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    for rank, ranks, heads, kv, width in exercises.exercise("tensor", "split-heads").cases:
        out = drawn(seq, hidden) @ drawn(hidden, (heads + 2 * kv) * width)
        whole = attention(out.split([heads * width, kv * width, kv * width], 1), heads, width)
        each, held = heads // ranks, columns(rank, ranks, heads, kv, width)
        own = (len(held) - each * width) // 2
        mine = attention(out[:, held].split([each * width, own, own], 1), each, width)
        assert torch.allclose(mine, whole[rank * each : (rank + 1) * each])


def test_a_loss_from_parts_is_torchs():
    loss, logits = answers.solution("tensor", "split-loss"), 50 * drawn(12)
    for target in (0, 4, 11):
        parts = []
        for rank, own in enumerate(logits.chunk(T)):
            here = rank * 3 <= target < rank * 3 + 3
            parts.append([own.max().item(), (own - own.max()).exp().sum().item(), logits[target].item() * here])
        expected = F.cross_entropy(logits[None], torch.tensor([target])).item()
        assert abs(loss(parts) - expected) < 1e-9 * max(1, expected)


def test_a_gated_mlp_is_a_sum_of_parts_by_columns_and_by_no_other_cut():
    x, gate, up, down = drawn(3, 8), drawn(8, 16), drawn(8, 17)[:, :16], drawn(16, 8)
    whole = (F.silu(x @ gate) * (x @ up)) @ down
    columns = [
        (F.silu(x @ g) * (x @ u)) @ d for g, u, d in zip(gate.chunk(T, 1), up.chunk(T, 1), down.chunk(T), strict=True)
    ]
    assert torch.allclose(sum(columns), whole)
    rows = [F.silu(a @ g) * (a @ u) for a, g, u in zip(x.chunk(T, 1), gate.chunk(T), up.chunk(T), strict=True)]
    assert not torch.allclose(sum(rows) @ down, whole)
    other = zip(gate.chunk(T, 1), up.chunk(T, 1)[::-1], down.chunk(T), strict=True)
    assert not torch.allclose(sum((F.silu(x @ g) * (x @ u)) @ d for g, u, d in other), whole)


def test_of_the_steps_only_a_mask_that_all_share_goes_through_the_sum():
    parts, bias, residual, mask = drawn(T, 5, 6), drawn(6), drawn(5, 6), (drawn(5, 6) > 0).double()
    own = (drawn(T, 5, 6) > -1).double()
    steps = {
        "same-mask": lambda y, rank: y * mask,
        "bias": lambda y, rank: y + bias,
        "residual": lambda y, rank: y + residual,
        "activation": lambda y, rank: F.gelu(y),
        "own-mask": lambda y, rank: y * own[rank],
        "norm": lambda y, rank: F.layer_norm(y, (6,)),
    }
    assert set(steps) == {option.name for option in exercises.exercise("tensor", "partial-sum").options}
    after = {name: sum(step(y, rank) for rank, y in enumerate(parts)) for name, step in steps.items()}
    through = {name for name, found in after.items() if torch.allclose(found, steps[name](parts.sum(0), 0))}
    assert through == {answers.right("tensor", "partial-sum")}
