"""Operations of transformers' modules on a graph: products, sums, casts, norms, and a matrix with its biases.

In what the families differ is in `Modules` (transformers 5.24, models/*/modeling_*.py).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from scaleout.memory.activations import Sizes
from scaleout.memory.graph import PASSED, REDUCED, Graph, Storage, Tensor


class Modules(NamedTuple):
    """In what a family's modules differ from Llama's; what `Shape` has is not here.

    norm: "llama" (weights times what was normalised, in the input's dtype), "gemma" (1 + weights, in fp32), "olmo"
    (weights, in fp32) or "layer". activation: one "kernel", "relu", which saves its output, or "gelu_new", several
    operations. qkv: one matrix for queries, keys and values, cut by "slice" or "split"; "" for three. gate_up: one
    matrix for both. rotary: the part of a head that is rotated, if heads are cut for it; interleaved: pairs of
    neighbours, whose cosines and sines are made in each layer. block: how its parts follow on each other, if not as
    in Llama's. scaled: whether embeddings are multiplied by a number; multiplied: and the branches, before they are
    added to the stream, and the logits.
    """

    norm: str = "llama"
    activation: str = "kernel"
    qkv: str = ""
    gate_up: bool = False
    rotary: float | None = None
    interleaved: bool = False
    block: str = "llama"
    scaled: bool = False
    multiplied: bool = False


# By `Variant.family`. The parts of heads that are rotated are those of the families' own configurations.
MODULES = {
    "llama": Modules(),
    "granite": Modules(scaled=True, multiplied=True),
    "gemma": Modules("gemma", scaled=True),
    "phi3": Modules(qkv="slice", gate_up=True, rotary=1.0),
    "olmo2": Modules("olmo"),
    "glm": Modules(gate_up=True, rotary=0.5, interleaved=True),
    "gpt2": Modules("layer", "gelu_new", "split"),
    "gpt_neox": Modules("layer", qkv="split", rotary=0.25, block="gpt_neox"),
    "opt": Modules("layer", "relu", block="opt"),
    "falcon": Modules("layer", qkv="slice", block="falcon"),
    "qwen_moe": Modules(block="qwen_moe"),
    "gpt_oss": Modules("olmo", block="gpt_oss"),
}


class Operations:
    """Operations on a graph, of a rank with these sizes."""

    def __init__(self, z: Sizes, graph: Graph) -> None:
        self.z, self.graph, self.tape = z, graph, graph.tape
        self.modules = MODULES[z.shape.features.family or ("llama" if z.shape.gated_mlp else "gpt2")]
        self.trains = z.recipe.adapter == "none"
        self.width = z.recipe.width("weight") if self.trains else z.r  # of the model's own weights

    # --- operations ---------------------------------------------------------------------------------------------

    def to(self, x: Tensor, width: int) -> Tensor:
        """A cast, or the same tensor where it has that width."""
        return x if x.width == width else self.graph.apply([x], x.count, width, firsts=[x.bytes])

    def half(self, x: Tensor) -> Tensor:
        """What autocast makes of the input of a matrix product."""
        return self.to(x, self.z.e) if self.graph.half else x

    def half_weight(self, w: Tensor) -> Tensor:
        """Autocast's copy of a weight, made once in a forward; none of weights that were gathered in 16 bits."""
        if not self.graph.half or w.width == self.z.e:
            return w
        z = self.z
        storage = Storage(self.tape, "weights", w.count * z.e if self.graph.copies else 0)
        edges = [(w.node, w.bytes, w.bytes)] if w.node else []
        copy = Tensor(storage, w.count, z.e, self.graph._node(edges, ()))
        # autocast caches copies of weights that are trained, and are no views, as those that FalconLinear transposes
        if w.node and self.modules.block != "falcon":
            self.graph.cache.append(copy)
        return copy

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """A product of tensors, one of which may be broadcast; each is saved for the other's gradient."""
        count, width = max(a.count, b.count), max(a.width, b.width)
        saved = [other for x, other in ((a, b), (b, a)) if x.node]
        whole = count * width
        return self.graph.apply([a, b], count, width, saved, firsts=[whole, whole])

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """A sum: its gradient is both terms'."""
        count, width = max(a.count, b.count), max(a.width, b.width)
        firsts = [PASSED if (x.count, x.width) == (count, width) else REDUCED for x in (a, b)]
        return self.graph.apply([a, b], count, width, firsts=firsts)

    def scaled(self, x: Tensor, kind: str = "activations") -> Tensor:
        """A product with a number."""
        return self.graph.apply([x], x.count, x.width, kind=kind)

    def matrix(self, x: Tensor, w: Tensor, columns: int, bias: bool = False, kind: str = "activations") -> Tensor:
        """x W^T, and a bias of so many columns; the gradients of the input and of the weights are views."""
        x, w = self.half(x), self.half_weight(w)
        saved = [other for one, other in ((w, x), (x, w)) if one.node]
        count = x.count // (w.count // columns) * columns
        inputs, firsts = [x, w], [x.bytes, w.bytes]
        if bias and self.trains:
            inputs, firsts = [self.graph.weight(columns, self.width), x, w], [REDUCED, *firsts]
        return self.graph.apply(inputs, count, w.width, saved, firsts=firsts, views=True, kind=kind)

    def tanh(self, x: Tensor, kind: str = "activations") -> Tensor:
        return self.graph.apply([x], x.count, x.width, keeps=True, kind=kind)

    def dropout(self, x: Tensor, probability: float | None = None) -> Tensor:
        """native_dropout: what is left, and a mask of a byte for each number, which alone is saved."""
        if not (self.z.recipe.dropout if probability is None else probability):
            return x
        return self.graph.apply([x], x.count, x.width, beside=x.count)

    # --- norms --------------------------------------------------------------------------------------------------

    def norm(self, x: Tensor, name: str = "") -> Tensor:
        """A norm of the residual stream."""
        if name:
            self.tape.pre_forward(name)
            x = self.graph.hook(x, partial(self.tape.post_backward, name))
        y = self.layer_norm(x) if self.modules.norm == "layer" else self.rms_norm(x, self.z.shape.hidden)
        if name:
            self.tape.post_forward(name)
            y = self.graph.hook(y, partial(self.tape.pre_backward, name))
        return y

    def layer_norm(self, x: Tensor) -> Tensor:
        """torch.nn.LayerNorm, one kernel: it saves its input, and the mean and deviation of each token."""
        hidden = self.z.shape.hidden
        weights = [self.graph.weight(hidden, self.width, self.trains)]
        weights += [self.graph.weight(hidden, self.width, self.trains)] * self.z.shape.has_bias("norm")
        firsts = [x.bytes, *(w.bytes for w in weights)]
        tokens = x.count // hidden
        return self.graph.apply([x, *weights], x.count, x.width, [x], beside=2 * 4 * tokens, firsts=firsts)

    def rms_norm(self, x: Tensor, width: int) -> Tensor:
        """LlamaRMSNorm, GemmaRMSNorm, Olmo2RMSNorm: operations in fp32 over `width` numbers each."""
        kind = self.modules.norm
        w = self.graph.weight(width, self.width, self.trains)
        hidden_states = self.normalised(self.to(x, 4), width)
        if kind == "llama":
            return self.mul(w, self.to(hidden_states, x.width))
        if kind == "gemma":
            w = self.scaled(self.to(w, 4))
        hidden_states = self.mul(w, hidden_states)
        return self.to(hidden_states, x.width)

    def normalised(self, x: Tensor, width: int) -> Tensor:
        """x / sqrt(mean(x^2) + eps)."""
        g = self.graph
        squares = g.apply([x], x.count, 4, [x], scratch=2 * x.bytes)
        variance = g.apply([squares], x.count // width, 4, firsts=[x.bytes])
        del squares
        return self.mul(x, g.apply([variance], variance.count, 4, keeps=True))
