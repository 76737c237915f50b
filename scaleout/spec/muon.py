"""Muon: which tensors it updates, the states that it stores, and the FLOPs of orthogonalizing a matrix.

Jordan et al. 2024, kellerjordan.github.io/posts/muon; torch.optim.Muon. The update of a matrix is its momentum, made
nearly orthogonal by Newton-Schulz steps, which multiply the matrix by itself: every row meets every other, so that a
shard of it alone gives another result. Tables, head, norms and biases are left to AdamW.
"""

from __future__ import annotations

from functools import lru_cache

from scaleout.spec import checks
from scaleout.spec.sharding import tensors
from scaleout.spec.transformer import Shape, linears

STEPS = 5  # torch's ns_steps
NS_BYTES = 2  # the steps run in bf16, so the gathered matrices may be too


def matrices(shape: Shape) -> dict[str, tuple[int, int]]:
    """Dimensions of what Muon takes, by name: the matrices of the blocks. ValueError where it is no Shape."""
    checks.instance("shape", shape, Shape)
    return _matrices(shape)


@lru_cache(maxsize=64)
def _matrices(shape: Shape) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for name, size in tensors(shape).items():
        if name.startswith("blocks.") and len(size) == 3:  # experts, each a matrix of its own
            found |= {f"{name}.{expert}": (size[1], size[2]) for expert in range(size[0])}
        elif name.startswith("blocks.") and len(size) == 2 and not name.endswith(".bias"):
            found[name] = (size[0], size[1])
    return found


def _block(shape: Shape) -> list[tuple[int, int]]:
    """Those of one block: the others' are alike."""
    checks.instance("shape", shape, Shape)
    return [*linears(shape).values()]


def matrix_parameters(shape: Shape) -> int:
    """Parameters that Muon steps, with one state each; all others have AdamW's two."""
    return sum(shape.layers * rows * columns for rows, columns in _block(shape))


def newton_schulz_flops(rows: int, columns: int, steps: int = STEPS) -> int:
    """FLOPs of making one matrix of rows x columns orthogonal, two a multiply-add.

    With n its shorter side and m the longer, a step makes X X^T (n x n), squares it, and multiplies X by the
    result: 2 n^2 m + 2 n^3 + 2 n^2 m.
    """
    for name, value in (("rows", rows), ("columns", columns), ("steps", steps)):
        checks.whole(name, value)
    n, m = sorted((rows, columns))
    return steps * (4 * n * n * m + 2 * n**3)


def step_flops(shape: Shape, steps: int = STEPS) -> int:
    """FLOPs of Newton-Schulz over all matrices of a model, once."""
    return sum(shape.layers * newton_schulz_flops(*size, steps) for size in _block(shape))
