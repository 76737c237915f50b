"""Muon by hand: Newton-Schulz against the singular value decomposition, and a step against torch.optim.Muon."""

import pytest
import torch

from scaleout.parallel.zero_muon import DECAY, A, B, C, Muon, orthogonal
from scaleout.spec import muon
from scaleout.spec.transformer import Shape


@pytest.mark.parametrize("size", [(7, 7), (5, 12), (12, 5), (1, 4)])
def test_newton_schulz_keeps_the_vectors_and_moves_each_singular_value_by_the_same_polynomial(size):
    matrix = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    x = s / matrix.norm()
    for _ in range(5):
        x = A * x + B * x**3 + C * x**5
    torch.testing.assert_close(orthogonal(matrix), u * x @ v)
    assert (x[s > 0.1 * s.max()] > 0.6).all()
    assert x.max() < 1.3


def test_rows_by_themselves_give_another_direction():
    matrix = torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alike = torch.cat([matrix[:4], matrix[:4] + 0.1 * matrix[4:]])
    apart = torch.cat([orthogonal(half) for half in alike.chunk(2)])
    assert torch.linalg.matrix_norm(orthogonal(alike), 2) < 1.3
    assert torch.linalg.matrix_norm(apart, 2) > 1.3, "up to the root of the number of parts"


@pytest.mark.parametrize("size", [(24, 24), (48, 16), (16, 48)])
def test_a_step_is_torchs_but_for_bf16(size):
    start = torch.randn(size, generator=torch.Generator().manual_seed(1))
    made = []
    for kind, more in ((Muon, {}), (torch.optim.Muon, {"weight_decay": DECAY})):
        p = torch.nn.Parameter(start.clone())
        optimizer = kind([p], lr=0.02, **more)
        for step in range(3):
            p.grad = torch.randn(size, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        made.append((p.detach(), optimizer.state[p]["momentum_buffer"]))
    (ours, kept), (theirs, wanted) = made
    torch.testing.assert_close(kept, wanted)
    assert (ours - theirs).norm() < 0.02 * (start - theirs).norm(), "of the way that three steps have come"


def test_muon_takes_the_matrices_of_the_blocks():
    shape = Shape(2, 32, 4, 50, max_seq=16)
    found = muon.matrices(shape)
    assert len(found) == 12 and all(name.startswith("blocks.") for name in found)
