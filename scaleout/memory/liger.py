"""transformers' modules with Liger's kernels (liger-kernel 0.8, ops/), as `use_liger_kernel` puts them in.

Norms are one kernel, whose backward writes over the gradient that it reads; rotary positions are written over queries
and keys; of a gated MLP the inputs of the activation and of the product are saved, and their gradients written over
them; the head and the loss run by chunks of tokens, and write the gradient of a chunk's logits over these.
"""

from __future__ import annotations

from math import ceil

from scaleout.memory.graph import PASSED, Storage, Tensor
from scaleout.memory.transformers import Model


class Liger(Model):
    """A causal language model with LigerRMSNorm, LigerRopeFunction, LigerSiLUMul and the fused linear cross-entropy."""

    def rms_norm(self, x: Tensor, width: int) -> Tensor:
        w = self.graph.weight(width, self.width, self.trains)
        beside = 4 * (x.count // width)
        return self.graph.apply([x, w], x.count, x.width, [x], beside=beside, firsts=[PASSED, w.bytes])

    def rotary(self, q: Tensor, k: Tensor, positions: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return q, k

    def gated(self, x: Tensor) -> Tensor:
        gate, up = self.linear(x, "gate"), self.linear(x, "up")
        product = self.graph.apply([gate, up], up.count, up.width, [gate, up], firsts=[gate.bytes, up.bytes])
        if product.node:
            product.node.overwrites = True
        return product

    def chunk_logits(self) -> int:
        """LigerFusedLinearCrossEntropyFunction: a chunk's logits are about as large as the hidden states."""
        z = self.z
        share = ceil(z.tokens / ceil(z.vocab / z.shape.hidden))
        return z.logits * min(1 << (share - 1).bit_length(), z.tokens) // z.tokens

    def _loss_backward(self, gradients: list[Storage]) -> None:
        """The gradients of the hidden states and the head's weights are there since the forward."""
        self._head_begins()
        gradients.clear()
