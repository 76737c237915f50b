"""Autograd without contents beside torch's own: the same functions, and the bytes that are there while they run."""

import math

import pytest
import torch
from cases import over
from hugging_face_memory import Seen
from torch import nn
from torch.utils.checkpoint import checkpoint

from scaleout.measure.memory import fake_tensors
from scaleout.memory.activations import Sizes
from scaleout.memory.graph import Graph
from scaleout.memory.tape import Recorder, Tape
from scaleout.memory.transformers import Model
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

BATCH, SEQ, HIDDEN, FF = 2, 64, 256, 512
GPT = Shape(1, HIDDEN, 4, 300, ff=FF)
LLAMA = Shape(1, HIDDEN, 4, 300, ff=FF, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary")


class Norm(nn.Module):
    """LlamaRMSNorm, as transformers has it."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN, dtype=dtype))

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + 1e-6)
        return self.weight * hidden_states.to(input_dtype)


class Gated(nn.Module):
    """LlamaMLP behind its norm, with the stream that it is added to."""

    def __init__(self, dtype):
        super().__init__()
        self.norm = Norm(dtype)
        self.gate, self.up = (nn.Linear(HIDDEN, FF, bias=False, dtype=dtype) for _ in range(2))
        self.down = nn.Linear(FF, HIDDEN, bias=False, dtype=dtype)

    def mlp(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))

    def forward(self, x):
        residual = x
        hidden_states = self.norm(x)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class GeluNew(nn.Module):
    """NewGELUActivation."""

    def __init__(self, dtype):
        super().__init__()

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gated(model, x):
    residual = x
    hidden_states = model.norm(x)
    hidden_states = model.mlp(hidden_states)
    return model.add(residual, hidden_states)


CASES = {
    "norm": (Norm, LLAMA, lambda model, x: model.norm(x)),
    "gated MLP": (Gated, LLAMA, gated),
    "gelu_new": (GeluNew, GPT, lambda model, x: model.activation(x)),
}


def by_torch(module, dtype, times, again):
    """Peaks of the forward and of the backward beside what is there before, and bytes between the two."""
    with fake_tensors():
        parts = nn.ModuleList(module(dtype) for _ in range(times))
        x = torch.ones(BATCH, SEQ, HIDDEN, dtype=dtype, requires_grad=True)
        ledger = Seen()
        for held in (x, *parts.parameters()):
            ledger.claim(held, "weights")
        before = sum(ledger.now.values())
        with ledger:
            y = x * 1.0
            for part in parts:
                y = checkpoint(part, y, use_reentrant=False) if again else part(y)
            gradient = torch.ones_like(y)
            ledger.enter("loss")
            between = sum(ledger.now.values())
            y.backward(gradient)
    forward, backward = (sum(ledger.moments[moment].values()) for moment in ("forward", "loss"))
    return forward - before, between - before, backward - before


def by_graph(function, shape, precision, times, again):
    recipe = Recipe(precision, operations="transformers")
    tape, z = Recorder(), Sizes(shape, BATCH, SEQ, recipe, Layout())
    graph = Graph(tape)
    model = Model(z, graph, ("full",))
    y = model.scaled(graph.apply([graph.weight(BATCH * SEQ * HIDDEN, z.r)], BATCH * SEQ * HIDDEN, z.r, firsts=[0]))
    for _ in range(times):
        y = graph.checkpoint(lambda one: function(model, one), y) if again else function(model, y)
    gradient = graph.tensor(y.count, y.width)
    tape.mark("backward")
    node = y.node
    graph.backward(node, 0)  # no bytes of its own: the caller has the gradient, and a name for it to the end
    del gradient
    played, marks = Tape(), []
    for part in ("begin", "backward"):
        played.enter(part)
        for what, kind, size in tape.parts[part]:
            if what in ("hold", "drop"):
                getattr(played, what)(kind, size)
            elif what == "gradient":
                played.drop("temporaries", size)
                played.hold("gradients", size)
        marks.append(played.total)
    forward, backward = (played.fullest[part][0] for part in ("begin", "backward"))
    return forward, marks[0], backward


@over(name=list(CASES), precision=["fp32", "bf16"], times=[1, 2], again=[False, True])
def test_what_is_there_in_a_function_and_its_backward(name, precision, times, again):
    module, shape, function = CASES[name]
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    seen = by_torch(module, dtype, times, again)
    found = by_graph(function, shape, precision, times, again)
    tokens = BATCH * SEQ  # a name for a number per token is forgotten earlier here
    assert found == pytest.approx(seen, abs=2 * 4 * tokens), (seen, found)
