"""What the exercises of `tensor` share: a GPT that is 5,120 wide, and the bytes that a block of it communicates."""

from __future__ import annotations

from scaleout.collectives.tensor import Block, block
from scaleout.spec.transformer import PRESETS, Shape

# The width and the heads of Llama 2 13B in a GPT's block: two matrices in the MLP, layer norms with dropout between.
GPT = Shape(40, PRESETS["llama-2-13b"].hidden, PRESETS["llama-2-13b"].heads, 50_257, max_seq=4096)


def sent(layer: Block) -> float:
    """Bytes that each rank sends for a block, forward and backward, by rings."""
    return layer.sent("forward") + layer.sent("backward")


def stream(shape: Shape, batch: int, seq: int) -> int:
    """Bytes of the residual stream in 16 bits."""
    return block(shape, batch, seq, 1).tensors[0].bytes
