"""The book's transformer is what its Shape says, computes what it should, and stays short enough to read."""

import inspect
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleout.measure.memory import fake_tensors
from scaleout.parallel import transformer as module
from scaleout.parallel.norm import RMSNorm
from scaleout.parallel.transformer import Transformer
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, Shape, flops, parameters, preset, total_parameters

GPT = Shape(2, 32, 4, 50, max_seq=16)
LLAMA = Shape(
    2, 32, 4, 50, kv_heads=2, ff=88, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", tied_head=False
)
SHAPES = {
    "gpt": GPT,
    "llama": LLAMA,
    "untied": replace(GPT, tied_head=False),
    "one key-value head": replace(GPT, kv_heads=1),
    "wide heads": replace(LLAMA, head_dim=16),
    "gated with biases": replace(GPT, gated_mlp=True, ff=40),
    "layer norm, rotary, no bias": replace(LLAMA, norm="layernorm"),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def shape(request):
    return request.param


def built(shape: Shape, **options) -> Transformer:
    torch.manual_seed(0)
    return Transformer(shape, **options)


def tokens(batch: int = 2, seq: int = 12) -> torch.Tensor:
    return torch.randint(50, (batch, seq), generator=torch.Generator().manual_seed(1))


def gradients(model: Transformer, loss: torch.Tensor) -> list[torch.Tensor]:
    return torch.autograd.grad(loss, list(model.parameters()))


def test_the_model_is_short_enough_to_read():
    assert len(Path(module.__file__).read_text().splitlines()) < 150
    for part in vars(module).values():
        if inspect.isfunction(part) and part.__module__ == module.__name__:
            assert len(inspect.getsource(part).splitlines()) < 40


def test_parameters_are_those_of_the_shape(shape):
    model = built(shape)
    assert sum(p.numel() for p in model.parameters()) == total_parameters(shape)
    part = parameters(shape)
    assert model.tokens.weight.numel() == part["tokens"]
    assert sum(p.numel() for block in model.blocks for p in block.attention.parameters()) == part["attention"]
    assert sum(p.numel() for block in model.blocks for p in block.mlp.parameters()) == part["mlp"]
    assert (model.head.weight is model.tokens.weight) == shape.tied_head


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-2-7b", "llama-3-8b"])
def test_presets_build_with_their_parameters(name):
    with fake_tensors():
        model = Transformer(PRESETS[name])
    assert sum(p.numel() for p in model.parameters()) == total_parameters(PRESETS[name])


def test_logits_and_loss(shape):
    model, x = built(shape), tokens()
    logits = model(x)
    assert logits.shape == (2, 12, 50)
    targets = (7 * x + 3) % 50
    loss = model(x, targets)
    assert loss.dtype == torch.float32
    assert torch.allclose(loss, F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()))
    assert abs(loss.item() - math.log(50)) < 0.15  # before training every token is as likely
    model = model.bfloat16()
    assert model(x).dtype == torch.bfloat16 and model(x, x).dtype == torch.float32


def test_a_token_does_not_see_what_follows(shape):
    model, x = built(shape), tokens()
    changed = x.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 50
    before, after = model(x), model(changed)
    assert torch.allclose(before[:, :7], after[:, :7], atol=1e-5)
    assert not torch.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


def test_positions_matter(shape):
    """The same two tokens in another order give another next token."""
    model = built(shape)
    one, other = (model(torch.tensor([order]))[0, -1] for order in ([1, 2, 3], [2, 1, 3]))
    assert not torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
@pytest.mark.parametrize("attention", ["sdpa", "naive"])
def test_every_kernel_and_every_checkpointing_compute_the_same(shape, attention, checkpointing):
    x = tokens()
    plain, other = built(shape), built(shape, attention=attention, checkpointing=checkpointing)
    wanted, found = plain(x, x), other(x, x)
    assert torch.allclose(wanted, found, atol=1e-6)
    for a, b in zip(gradients(plain, wanted), gradients(other, found), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_dropout_drops_in_training_only_and_recomputes_the_same_mask(checkpointing):
    model, x = built(GPT, attention="naive", dropout=0.3, checkpointing=checkpointing), tokens()
    torch.manual_seed(3)
    loss = model(x, x)
    found = gradients(model, loss)
    plain = built(GPT, attention="naive", dropout=0.3)
    torch.manual_seed(3)
    wanted = gradients(plain, plain(x, x))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(wanted, found, strict=True))
    assert not torch.allclose(model(x, x), loss)
    model.eval()
    assert torch.equal(model(x, x), model(x, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rms_norm_equals_torch(dtype):
    torch.manual_seed(0)
    ours, theirs = RMSNorm(24), nn.RMSNorm(24, eps=1e-5)
    with torch.no_grad():
        ours.weight.copy_(torch.randn(24))
        theirs.weight.copy_(ours.weight)
    x, y = torch.randn(3, 5, 24, requires_grad=True), torch.randn(3, 5, 24)
    a, b = ours(x), theirs(x)
    assert torch.allclose(a, b, atol=1e-6)
    wanted = torch.autograd.grad((b * y).sum(), [x, theirs.weight])
    for found, there in zip(torch.autograd.grad((a * y).sum(), [x, ours.weight]), wanted, strict=True):
        assert torch.allclose(found, there, atol=1e-5)


def test_rms_norm_in_16_bits_is_computed_in_32():
    x = torch.randn(2, 3, 64).bfloat16()
    norm = RMSNorm(64).bfloat16()
    wanted = nn.RMSNorm(64, eps=1e-5)(x.float())
    off = (norm(x).float() - wanted).abs()
    assert (off <= 1.001 * 2**-8 * wanted.abs()).all(), "rounded once: sums of bf16 numbers would be further off"


def test_flops_are_those_that_torch_counts():
    """Matrix products of forward and backward, with the naive kernel, by torch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode

    for shape in (replace(GPT, tied_head=False), LLAMA):
        model, x = built(shape, attention="naive"), tokens()
        with FlopCounterMode(display=False) as counter:
            loss = model(x, x)
            forward = counter.get_total_flops()
            loss.backward()
        wanted = flops(shape, 2, 12)
        assert forward == wanted["forward"]
        assert counter.get_total_flops() == wanted["forward"] + wanted["backward"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: replace(GPT, bias="no"), "bias must be True or False, not 'no'"),
        (lambda: replace(GPT, norm=[]), "norm must be layernorm or rmsnorm, not []"),
        (lambda: replace(GPT, layers=2.0), "layers must be a whole number of at least 1, not 2.0"),
        (lambda: Layout(sequence_parallel="no"), "sequence_parallel must be True or False, not 'no'"),
        (lambda: Layout(zero=2.0), "zero must be 0, 1, 2 or 3, not 2.0"),
        (lambda: Layout(zero=4), "zero must be 0, 1, 2 or 3, not 4"),
        (lambda: Recipe(dropout=math.nan), "dropout must be a number from 0 up to but not including 1, not nan"),
        (lambda: Recipe(dropout=10**400), "dropout must be a number from 0 up to but not including 1, not 1000"),
        (lambda: Recipe(precision=[1]), "precision must be one of fp32, "),
        (lambda: preset([1]), "model [1] is unknown: use one of gpt2, "),
        (lambda: Transformer(GPT, attention="flash-3"), "attention must be one of sdpa, naive, flash, not 'flash-3'"),
        (lambda: flops(GPT, 1, 8, []), "checkpointing must be none, selective or full, not []"),
    ],
)
def test_bad_values_are_refused_in_one_line(call, said):
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_layout_counts_its_ranks():
    assert Layout().ranks == 1 and Layout(dp=4, tp=8, pp=2).ranks == 64
