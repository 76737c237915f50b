"""What flows through a model's linear layers, by size: the gradients of a step in octaves, the largest values by layer,
and what an update does to weights in few bits. Of a parallel.precision.PrecisionWay."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from scaleout.numerics.octaves import Histogram, together
from scaleout.parallel.low import LowLinear

HALVES = {
    "q": "queries and keys",
    "k": "queries and keys",
    "v": "values and output",
    "out": "values and output",
    "up": "MLP",
    "gate": "MLP",
    "down": "MLP",
}
BETAS = 0.9, 0.999  # of AdamW, as recipe.make_optimizer leaves them


def part(name: str) -> str:
    """The part of the model that a parameter or linear layer is in: "block 1, MLP", "head", "embeddings", "norms"."""
    inside = re.match(r"blocks\.(\d+)\.(?:attention|mlp)\.(\w+)", name)
    if inside:
        return f"block {int(inside[1]) + 1}, {HALVES[inside[2]]}"
    return "head" if name.startswith("head") else "embeddings" if name.startswith(("tokens", "positions")) else "norms"


def octaves(x: Tensor) -> Histogram:
    """The Histogram of a tensor's finite numbers."""
    x = x.detach().flatten().float()
    x = x[x.isfinite()]
    sizes = x[x != 0].abs()
    if not len(sizes):
        return Histogram(0, (), len(x), 0.0)
    exponents = torch.frexp(sizes)[1] - 1
    first = int(exponents.min())
    counts = torch.bincount((exponents - first).long()).tolist()
    return Histogram(first, tuple(counts), len(x) - len(sizes), sizes.max().item())


def largest(x: Tensor) -> float:
    """The largest |x|, infinity where one is not finite."""
    value = x.detach().abs().max().item()
    return value if math.isfinite(value) else math.inf


def weights(way) -> dict[str, Histogram]:
    """{part: Histogram} of the gradients of the parameters, as they stand."""
    histograms = {}
    for name, p in way.model.named_parameters():
        if p.grad is not None:
            histograms.setdefault(part(name), []).append(octaves(p.grad))
    return {name: together(rows) for name, rows in histograms.items()}


class Watch:
    """Looks at the outputs of a way's linear layers and at the gradients that come back to them: what 16-bit matmuls
    store in 16 bits. Idle outside of `looking`.

    forward, backward: {layer: largest |value|}, in the order of coming; infinity where one is not finite. Gradients are
    those of the unscaled loss, and so are `matrices`, the largest gradient of each layer's weights that its product
    makes. gradients: {part: Histogram}; zeros: [zeros, numbers] of all of them.
    """

    def __init__(self, way) -> None:
        self.way, self.on, self.counting = way, False, True
        self.clear()
        for name, layer in way.model.named_modules():
            if isinstance(layer, (nn.Linear, LowLinear)):
                layer.register_forward_hook(self._hook(name))

    def clear(self) -> None:
        self.forward, self.backward, self.matrices = {}, {}, {}
        self.rows, self.zeros = {}, [0, 0]

    def _hook(self, name):
        def look(layer, inputs, output):
            if self.on:
                self.forward[name] = largest(output)
                if output.requires_grad:
                    output.register_hook(lambda g: self._backward(name, inputs[0].detach(), g))

        return look

    def _backward(self, name: str, x: Tensor, g: Tensor) -> None:
        scale = self.way.scale
        self.backward[name] = largest(g) / scale
        flat = g.flatten(0, -2).float()
        self.matrices[name] = largest(flat.T @ x.flatten(0, -2).float()) / scale
        if not self.counting:
            return
        histogram = octaves(g).scaled(-round(math.log2(scale)))
        self.rows.setdefault(part(name), []).append(histogram)
        self.zeros[0] += histogram.zeros
        self.zeros[1] += histogram.total

    @contextmanager
    def looking(self, counting: bool = True):
        """Forget, and look at what comes. counting: not only at the largest values."""
        self.clear()
        self.on, self.counting = True, counting
        try:
            yield self
        finally:
            self.on = False

    @property
    def gradients(self) -> dict[str, Histogram]:
        return {name: together(rows) for name, rows in self.rows.items()}

    @property
    def top(self) -> float:
        """The largest gradient that 16-bit matmuls compute: of activations, and of weights."""
        return max(*self.backward.values(), *self.matrices.values())


# --- updates --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def wanted_update(way) -> list[Tensor]:
    """What AdamW would add to each parameter in fp64, from the gradients and the state that the way has now."""
    updates, group = [], way.training.optimizer.param_groups[0]
    for p in way.training.trained:
        state, g = way.training.optimizer.state.get(p, {}), p.grad.double()
        t = float(state.get("step", 0)) + 1
        mean = BETAS[0] * state.get("exp_avg", torch.zeros_like(p)).double() + (1 - BETAS[0]) * g
        square = BETAS[1] * state.get("exp_avg_sq", torch.zeros_like(p)).double() + (1 - BETAS[1]) * g * g
        step = mean / (1 - BETAS[0] ** t) / ((square / (1 - BETAS[1] ** t)).sqrt() + group["eps"])
        updates.append(-group["lr"] * (step + group["weight_decay"] * p.double()))
    return updates


@torch.no_grad()
def stuck(way) -> tuple[float, float]:
    """(predicted, measured) share of the weights that an update does not change; makes the update. Predicted: the
    update in fp64, added, rounded once to the weights' dtype."""
    olds = [p.detach().clone() for p in way.training.trained]
    wanted = [(p.double() + change).to(p.dtype) == p for p, change in zip(olds, wanted_update(way), strict=True)]
    way.update()
    count = sum(p.numel() for p in olds)
    stayed = sum((p == old).sum().item() for p, old in zip(way.training.trained, olds, strict=True))
    return sum(w.sum().item() for w in wanted) / count, stayed / count


def total(histograms: dict[str, Histogram]) -> Histogram:
    """All parts together."""
    return together(histograms.values())
