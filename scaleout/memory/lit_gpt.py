"""The modules of Lit-GPT (0.2, litgpt/model.py and litgpt/lora.py) in the operations of `graph`, where they differ from
those of transformers: one matrix for queries, keys and values, whose adapter is merged; rotary tables in fp32; the head
by chunks of tokens, and cross-entropy of each in the dtype of the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from scaleout.memory.activations import Sizes
from scaleout.memory.attention import Positions
from scaleout.memory.graph import PASSED, Graph, Tensor
from scaleout.memory.loss import CHUNKS
from scaleout.memory.operations import Modules
from scaleout.memory.transformers import Model
from scaleout.spec.blocks import Kind


class LitGpt(Model):
    """litgpt.model.GPT, with LLaMAMLP and RMSNorm."""

    def __init__(self, z: Sizes, graph: Graph, layers: Sequence[Kind]) -> None:
        super().__init__(z, graph, layers)
        self.modules = Modules(qkv="split", rotary=1.0)

    def rotary_embedding(self) -> Positions:
        count = self.z.seq * self.z.shape.d
        return self.graph.tensor(count, 4), self.graph.tensor(count, 4)

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """apply_rope, and the concatenation with what is not rotated."""
        roped = self.to(self.add(self.mul(x, cos), self.mul(self.rotate_half(x), sin)), x.width)
        return self.graph.apply([roped], x.count, x.width, firsts=[PASSED])

    def frozen(self, x: Tensor, rows: int, columns: int, names: tuple[str, ...], bias: bool) -> Tensor:
        targets = [name for name in names if name in self.z.recipe.targets]
        if len(names) == 1 or not targets:
            return super().frozen(x, rows, columns, names, bias)
        return self.merged(x, rows, columns, targets)

    def merged(self, x: Tensor, rows: int, columns: int, targets: list[str]) -> Tensor:
        """LoRAQKVLinear: the updates of some of queries, keys and values, put between zeros; index_copy saves them."""
        g, z = self.graph, self.z
        recipe, width = z.recipe, sum(z.matrices[name][1] for name in targets)
        pretrained = self.pretrained(x, rows, columns)
        down = g.weight(len(targets) * recipe.adapter_rank * rows, recipe.adapter_bytes)
        up = g.weight(width * recipe.adapter_rank, recipe.adapter_bytes)
        after_a = self.matrix(self.dropout(x, recipe.adapter_dropout), down, len(targets) * recipe.adapter_rank)
        after_b = g.apply(
            [after_a, up], z.tokens * width, after_a.width, [after_a, up], firsts=[after_a.bytes, up.bytes]
        )
        source = g.apply([after_b], after_b.count, after_b.width, firsts=[PASSED])
        zeros = g.tensor(z.tokens * columns, after_b.width)
        padded = g.apply([source], zeros.count, zeros.width, [source], firsts=[source.bytes])
        del zeros, source
        return self.add(pretrained, self.scaled(padded))

    def loss_by_chunks(self, x: Tensor) -> Tensor:
        """chunked_cross_entropy of a list of logits, which the training loop holds until the backward has read them."""
        g, tape = self.graph, self.tape
        tape.pre_forward("head")
        x = g.hook(x, partial(tape.post_backward, "head"))
        w = self._head_weight()
        logits = [self.matrix(g.part(x, x.count // CHUNKS), w, self.z.vocab) for _ in range(CHUNKS)]
        logits[-1] = g.hook(logits[-1], self._head_begins)
        tape.post_forward("head")
        softmax = [g.apply([chunk], chunk.count, chunk.width, keeps=True) for chunk in logits]
        # the list itself: as saved, it is there until each chunk's loss is differentiated
        losses = [g.apply([one], 1, 4, [one, *logits], firsts=[one.bytes]) for one in softmax]
        return reduce(self.add, losses)
