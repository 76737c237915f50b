"""The stages of a pipeline: a Transformer cut into runs of neighbouring blocks.

b: sequences of a micro-batch, s: tokens, h: hidden, V: vocabulary.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from scaleout.parallel.transformer import Transformer


class Stage(nn.Module):
    """Neighbouring blocks of a Transformer, under their names in it. The first stage has the token table too, the last
    the norm, the head and the loss. A tied head is a copy of the table, whose gradient is half of the story, unless one
    stage is the whole model.

    edges: of the last forward, where the graph leaves each layer with weights of its own: [(edge, its weights)].
    """

    def __init__(self, model: Transformer, blocks: range) -> None:
        super().__init__()
        self.first, self.last = blocks.start == 0, blocks.stop == len(model.blocks)
        self.shape, self.p, self.full = model.shape, model.p, model.full
        self.tied = model.shape.tied_head and not (self.first and self.last)
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in blocks})
        if self.first:
            self.tokens, self.positions = model.tokens, model.positions
        if self.last:
            self.norm, self.head = model.norm, model.head if self.first else copy.deepcopy(model.head)
        self.edges: list = []
        for layer in self.modules():
            if any(True for _ in layer.parameters(recurse=False)):
                layer.register_forward_hook(self._note)

    def _note(self, layer: nn.Module, inputs, output: Tensor) -> None:
        if output.requires_grad:
            self.edges.append((get_gradient_edge(output), list(layer.parameters(recurse=False))))

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Tokens (b, s) or activations (b, s, h) in, activations out; of the last stage logits (b, s, V), and with
        targets the mean loss."""
        self.edges = []
        if self.first:
            tokens, x = x, self.tokens(x)
            if self.positions is not None:
                x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks.values():
            x = block(x)
        if not self.last:
            return x
        logits = self.head(self.norm(x))
        return logits if targets is None else self.loss(logits, targets)

    @staticmethod
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a micro-batch in nats per token, () fp32. logits: (b, s, V), targets: (b, s)."""
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def stages_of(
    model: Transformer, layers: tuple[int, ...], mine: list[int], device, kind: type[Stage] = Stage
) -> dict[int, Stage]:
    """{stage: Stage} of a rank: `layers` of each stage of the model, `mine` the stages that this rank has."""
    ends = [sum(layers[: i + 1]) for i in range(len(layers))]
    return {i: kind(model, range(ends[i] - layers[i], ends[i])).to(device) for i in mine}


def tied_weights(stages: dict[int, Stage]) -> list[nn.Parameter]:
    """Of this rank's stages: the token table and the copy of it in the head, where the head is tied."""
    table = [stage.tokens.weight for stage in stages.values() if stage.first and stage.tied]
    return table + [stage.head.weight for stage in stages.values() if stage.last and stage.tied]


def named(name: str, stage: Stage) -> str:
    """A parameter of a stage as the whole model calls it."""
    return "tokens.weight" if stage.tied and name == "head.weight" else name
