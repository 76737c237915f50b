"""Each way to make the loss against what torch allocates: its own operations, one kernel, the head in chunks."""

import pytest
import torch
from torch.nn import LinearCrossEntropyOptions
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from scaleout.measure.memory import allocations, measure
from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes
from scaleout.parallel import transformer
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

# few blocks beside many tokens of a large vocabulary: the end of the model is where memory is fullest
SHAPE = Shape(2, 64, 4, 4096, bias=False, norm="rmsnorm", positions="rotary", tied_head=False, max_seq=128)
BATCH, SEQ = 4, 128
CHUNKED = LinearCrossEntropyOptions(acc_policy="compact", chunking_method="aspect_ratio:2")  # as it is on a GPU


@torch.library.custom_op("book::fused_loss", mutates_args=())
def fused_loss(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean loss and log-sum-exp, as a kernel that reads the logits once gives them."""
    normal = logits.float().logsumexp(-1)
    return (normal - logits.float().gather(-1, targets[:, None])[:, 0]).mean(), normal


@torch.library.custom_op("book::fused_loss_backward", mutates_args=())
def fused_loss_backward(logits: torch.Tensor, targets: torch.Tensor, normal: torch.Tensor) -> torch.Tensor:
    """The logits' gradient, in their dtype."""
    chosen = F.one_hot(targets, logits.shape[-1])
    return (((logits.float() - normal[:, None]).exp() - chosen) / len(targets)).to(logits.dtype)


for op, fake in (
    (
        fused_loss,
        lambda logits, targets: (
            logits.new_empty((), dtype=torch.float32),
            logits.new_empty(len(targets), dtype=torch.float32),
        ),
    ),
    (fused_loss_backward, lambda logits, targets, normal: torch.empty_like(logits)),
):
    op.register_fake(fake)


class Fused(torch.autograd.Function):
    """What flash-attn's CrossEntropyLoss keeps and makes (flash_attn/ops/triton/cross_entropy.py)."""

    @staticmethod
    def forward(ctx, logits, targets):
        loss, normal = fused_loss(logits, targets)
        ctx.save_for_backward(logits, targets, normal)
        return loss

    @staticmethod
    def backward(ctx, up):
        return fused_loss_backward(*ctx.saved_tensors), None


def fused(model, x, targets):
    return Fused.apply(model.head(model.norm(x)).flatten(0, 1), targets.flatten())


def chunked(model, x, targets):
    hidden, weight = model.norm(x).flatten(0, 1), model.head.weight
    if torch.is_autocast_enabled("cpu"):
        hidden, weight = hidden.bfloat16(), weight.bfloat16()
    return F.linear_cross_entropy(hidden, weight, targets.flatten(), options=CHUNKED)


@pytest.fixture
def way(request, monkeypatch):
    """A Transformer ends with this loss."""

    def forward(model, tokens, targets):
        x = model.tokens(tokens)
        for block in model.blocks:
            x = block(x)
        return {"fused": fused, "chunked": chunked}[request.param](model, x, targets)

    if request.param != "eager":
        monkeypatch.setattr(transformer.Transformer, "forward", forward)
    return request.param


@pytest.mark.parametrize("precision", ["fp32", "bf16-master", "autocast-bf16"])
@pytest.mark.parametrize("way", ["eager", "fused", "chunked"], indirect=True)
def test_the_peak_is_torchs(way, precision):
    recipe = Recipe(precision, "sgd", loss=way)
    truth = max(sum(kinds.values()) for kinds in measure(SHAPE, BATCH, SEQ, recipe).moments.values())
    assert account(SHAPE, BATCH, SEQ, recipe).peak_bytes == pytest.approx(truth, rel=0.01)


@pytest.mark.parametrize("tokens", [512, 300, 40])
def test_the_chunk_is_torchs(tokens):
    """Its buffer is the largest thing that the operation takes and gives back."""
    hidden, weight = torch.randn(tokens, SHAPE.hidden), torch.randn(SHAPE.vocab, SHAPE.hidden)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        F.linear_cross_entropy(hidden, weight, torch.zeros(tokens, dtype=torch.long), options=CHUNKED)
    z = Sizes(SHAPE, 1, tokens, Recipe("fp32", loss="chunked"), Layout())
    assert max(size for size, _ in allocations(seen)) == 4 * z.loss_chunk * SHAPE.vocab
