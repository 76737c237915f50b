"""What DDP's factors and AdamW's averages are, held against torch."""

import random

import pytest
import torch
from answers import solution
from cases import each
from torch.nn import functional as F

from scaleout.exercises.ddp.tokens import FACTORS


def gradient(model, features, targets, factor=1.0):
    """Of the mean loss over these tokens, times a factor."""
    model.zero_grad()
    (factor * F.cross_entropy(model(features), targets)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@each([[[40, 8], [8, 8]], [[9, 1, 5], [20, 30, 4]], [[7]], [[3], [50], [11]]])
def test_with_these_factors_passes_and_ranks_make_the_gradient_of_the_mean_over_all_tokens(tokens):
    """Sums over passes, means over ranks: as no_sync and DDP do. In fp64 the two ways differ by rounding alone."""
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 7).double()
    data = [[(torch.randn(n, 5).double(), torch.randint(7, (n,))) for n in rank] for rank in tokens]
    passes = [inputs for rank in data for inputs in rank]
    expected = gradient(model, *(torch.cat(parts) for parts in zip(*passes, strict=True)))

    def averaged(factors):
        ranks = [
            sum(gradient(model, *inputs, factor) for inputs, factor in zip(rank, rank_factors, strict=True))
            for rank, rank_factors in zip(data, factors, strict=True)
        ]
        return sum(ranks) / len(ranks)

    assert torch.allclose(averaged(solution("ddp", "token-factors")(tokens)), expected, atol=1e-12)
    plain = averaged([[1 / len(rank) for _ in rank] for rank in tokens])
    assert torch.allclose(plain, expected, atol=1e-6) == (len({n for rank in tokens for n in rank}) == 1)


def test_each_token_counts_alike():
    draw = random.Random(0)
    for _ in range(50):
        tokens = [[draw.randint(0, 90) + (not i) for i in range(3)] for _ in range(draw.randint(1, 6))]
        factors = FACTORS.reference(tokens)
        per_token = {
            round(factor / n, 12)
            for row, rank in zip(factors, tokens, strict=True)
            for factor, n in zip(row, rank, strict=True)
            if n
        }
        assert len(per_token) == 1 and sum(map(sum, factors)) == pytest.approx(len(tokens))


def test_adamw_makes_its_averages_in_the_first_update_and_keeps_them():
    """Nothing at the loss of the first step, 8 bytes for each fp32 parameter at that of the second."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    state_bytes = []
    for _ in range(2):
        loss = model(torch.randn(3, 64)).square().mean()
        state_bytes.append(sum(t.nbytes for state in optimizer.state.values() for t in state.values() if t.dim()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert state_bytes == [0, 8 * sum(p.numel() for p in model.parameters())]
