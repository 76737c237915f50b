"""Attention in tiles against the formula, torch's kernels and flex_attention: outputs, gradients, saved bytes."""

import math
import types

import pytest
import torch
from cases import over

from scaleout.measure import kernels_attention as measure
from scaleout.parallel import kernels, kernels_ways, private
from scaleout.parallel.kernels_ways import KERNELS

CPU = torch.device("cpu")
ALONE = types.SimpleNamespace(world=1, rank=0, device=CPU)


def draw(seq, head=8, dtype="fp32", heads=2):
    return measure.draw(ALONE, types.SimpleNamespace(seed=3, batch=2, heads=heads), seq, head, dtype)


# --- by hand ----------------------------------------------------------------------------------------------------------


@over(seq=(2, 7, 16, 33), tile=(1, 5, 16, 64), mask=tuple(kernels.MASKS))
def test_tiles_give_what_the_formula_gives(seq, tile, mask):
    """In fp64, where only the order of additions differs: 1e-12, whatever the tile divides."""
    qkv = [x.detach().double().requires_grad_() for x in draw(seq)]
    right = measure.exact(qkv, mask)
    found = measure.errors(lambda *inputs: kernels.tiled(*inputs, tile), qkv, mask, right)
    assert max(found) < 1e-12


def test_the_backward_is_the_derivative_of_the_forward():
    qkv = [x.detach().double().requires_grad_() for x in draw(9, 4)]
    assert torch.autograd.gradcheck(lambda *inputs: kernels.tiled(*inputs, kernels.causal, 4), qkv)


def test_keys_may_be_more_than_queries():
    q, (k, v) = draw(5)[0], draw(12)[1:]
    found = kernels.tiled(q, k, v, None, 4)
    assert torch.allclose(found, kernels.naive(q, k, v), atol=1e-6)


def test_the_log_sum_exp_is_that_of_the_scores():
    q, k, v = (x.detach() for x in draw(20))
    _, lse = kernels.forward(q, k, v, None, 8)
    assert torch.allclose(lse, (q @ k.mT / math.sqrt(8)).logsumexp(-1), atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_large_scores_do_not_overflow(scale):
    """exp of a score of 1e4 is infinite; of a score less its row's maximum it never is."""
    q, k, v = draw(24, 16)
    q = (scale * q).detach().requires_grad_()
    assert (q @ k.mT).abs().max() > 1e3 or scale < 300
    found = measure.errors(lambda *x: kernels.tiled(*x, 8), (q, k, v), "none", measure.exact((q, k, v), "none"))
    assert max(found) < 1e-3  # fp32 scores of 1e4 have steps of 1e-3


def test_a_query_that_may_attend_to_nothing_gives_zero_and_gets_no_gradient():
    def later_half(batch, head, query, key):
        return (query >= key) & (query >= 8)

    qkv = draw(16)
    out = kernels.tiled(*qkv, later_half, 4)
    grads = torch.autograd.grad(out.sum(), qkv)
    assert out[..., :8, :].eq(0).all() and grads[0][..., :8, :].eq(0).all()
    assert all(torch.isfinite(x).all() for x in (out, *grads)) and out[..., 8:, :].ne(0).all()


@over(mask=("causal", "window", "prefix"), rows=((0, 7), (60, 70)), columns=((0, 9), (62, 65)))
def test_masks_say_who_attends_to_whom(mask, rows, columns):
    rule = {
        "causal": lambda i, j: i >= j,
        "window": lambda i, j: 0 <= i - j < 64,
        "prefix": lambda i, j: i >= j or j < 64,
    }[mask]
    found = kernels.allowed(kernels.MASKS[mask], slice(*rows), slice(*columns), CPU)
    assert found.tolist() == [[rule(i, j) for j in range(*columns)] for i in range(*rows)]


class Largest(private.TorchDispatchMode):
    """The most numbers that a tensor had, for each head."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in private.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dim() == 4:
                self.most = max(self.most, leaf.shape[-1] * leaf.shape[-2])
        return result


@pytest.mark.parametrize("name", ["naive", "tiled"])
def test_only_naive_attention_has_a_tensor_of_all_scores(name):
    qkv, run = draw(96), {"naive": kernels.naive, "tiled": lambda *x: kernels.tiled(*x, 16)}[name]
    with Largest() as seen:
        out = run(*qkv, kernels.causal)
    with Largest() as seen_backward:
        torch.autograd.grad(out.sum(), qkv)
    assert (seen.most, seen_backward.most) == {"naive": (96 * 96, 96 * 96), "tiled": (96 * 8, 96 * 8)}[name]


def test_tiles_that_the_mask_forbids_are_not_computed():
    q, k, _ = draw(64)
    counts = {name: len(list(kernels.tiles(q, k, mask, 8))) for name, mask in kernels.MASKS.items()}
    assert counts == {"none": 64, "causal": 36, "window": 36, "prefix": 64}
    q, k, _ = draw(256)
    assert len(list(kernels.tiles(q, k, kernels.window, 64))) == 4 + 3, "the diagonal and the tile before it"


# --- side by side -----------------------------------------------------------------------------------------------------


@over(dtype=tuple(measure.TOLERANCES), mask=("causal", "prefix"))
def test_every_kernel_gives_what_fp64_gives(dtype, mask):
    qkv = draw(70, 16, dtype)
    right = measure.exact(qkv, mask)
    for name in ("naive", "checkpointed", "tiled", "sdpa", "math", "flash", "flex"):
        out, backward = measure.errors(KERNELS[name].run, qkv, mask, right)
        assert out < measure.TOLERANCES[dtype], name
        assert (backward is None) == (name == "flex"), "flex_attention has no backward on a CPU"
        assert backward is None or backward < measure.TOLERANCES[dtype], name


def test_the_tolerance_tells_a_wrong_mask_from_rounding():
    qkv = draw(70, 16, "bf16")
    out, backward = measure.errors(KERNELS["sdpa"].run, qkv, "causal", measure.exact(qkv, "window"))
    assert min(out, backward) > 5 * measure.TOLERANCES["bf16"]


@over(seq=(16, 100), head=(8, 32), dtype=("fp32", "bf16"), mask=("none", "causal", "prefix"))
def test_saved_bytes_are_predicted(seq, head, dtype, mask):
    qkv, width = draw(seq, head, dtype), 4 if dtype == "fp32" else 2
    for name in ("naive", "checkpointed", "tiled", "sdpa", "math", "flash"):
        predicted = measure.predicted_bytes(KERNELS[name].kind, 2, 2, seq, head, width, mask)
        assert measure.saved_bytes(KERNELS[name].run, qkv, mask) == predicted, name


def test_saved_bytes_grow_with_the_square_of_the_sequence_only_where_scores_are_saved():
    """From 1,024 to 2,048 tokens, 16 bits, heads of 64: twice as much, or nearly four times."""
    growth = {
        kind: measure.predicted_bytes(kind, 1, 4, 2048, 64, 2, "causal")
        / measure.predicted_bytes(kind, 1, 4, 1024, 64, 2, "causal")
        for kind in ("naive", "recomputed", "tiled", "fused", "math")
    }
    assert growth["tiled"] == growth["fused"] == growth["recomputed"] == 2
    assert 3.5 < growth["naive"] < 4 and 3.5 < growth["math"] < 4
    assert measure.predicted_bytes("compiled", 1, 4, 1024, 64, 2, "causal") is None, "its partitioner decides"


# --- what cannot run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "able"), [("sdpa", True), ("flash", True), ("efficient", False), ("cudnn", False)])
def test_a_backend_that_is_not_there_is_refused_by_its_reason(name, able):
    why = kernels_ways.refused(name, CPU, torch.float32, 16, "causal")
    assert (why == "") is able
    assert able or why.startswith("torch has no such kernel here (No viable backend")


@pytest.mark.parametrize(
    ("program", "headers", "said"),
    [
        (None, True, "torch.compile needs a C++ compiler, and there is no g++"),
        ("c++", False, "torch.compile needs Python's headers, and there is no Python.h (Debian: python3-dev)"),
        ("c++", True, ""),
    ],
)
def test_without_a_compiler_it_is_said_what_is_missing(program, headers, said, monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(kernels_ways.shutil, "which", lambda name: program)
    if headers:
        (tmp_path / "Python.h").touch()
    monkeypatch.setattr(kernels_ways.sysconfig, "get_path", lambda name: str(tmp_path))
    assert kernels_ways.no_compiler(CPU) == kernels_ways.refused("compiled", CPU, torch.float32, 16, "causal") == said
    monkeypatch.setattr(kernels_ways, "find_spec", lambda name: None)
    gpu = torch.device("cuda")
    assert kernels_ways.no_compiler(gpu) == (said or "torch.compile needs the package triton on a GPU")
