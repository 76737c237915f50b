"""The modules of Hugging Face's transformers, 5.24, in the operations of `graph`: what a step of theirs allocates.

Each function is the `forward` of a module in transformers/models/*/modeling_*.py, line by line, with the same local
names where they keep a tensor alive. Families differ by `Modules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import NamedTuple

from scaleout.memory import adapters
from scaleout.memory.activations import Sizes
from scaleout.memory.forward import PATHS
from scaleout.memory.graph import LAST, PASSED, REDUCED, Graph, Storage, Tensor
from scaleout.memory.loss import CHUNKS

FULL, SLIDING = "full", "sliding"


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
}

Positions = tuple[Tensor, Tensor] | None


class Model:
    """A causal language model on a graph. layers: the kind of each, FULL or SLIDING."""

    def __init__(self, z: Sizes, graph: Graph, layers: Sequence[str]) -> None:
        self.z, self.graph, self.tape, self.layers = z, graph, graph.tape, layers
        self.modules = MODULES[z.shape.features.family or ("llama" if z.shape.gated_mlp else "gpt2")]
        self.trains = z.recipe.adapter == "none"
        self.width = z.recipe.width("weight") if self.trains else z.r  # of the model's own weights
        self.caches: list[list[Tensor]] = []  # autocast's copies of weights, by layer
        # sdpa has no cap of scores, and transformers takes eager attention for a model with one
        self.eager = z.recipe.attention == "naive" or "scores" in z.shape.features.caps
        table = z.vocab * z.shape.hidden
        self.table = graph.weight(table, self.width, self.trains, shared=z.shape.tied_head and z.first and z.last)

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
        if w.node:  # autocast caches copies of weights that are trained
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

    def scaled(self, x: Tensor) -> Tensor:
        """A product with a number."""
        return self.graph.apply([x], x.count, x.width)

    def matrix(self, x: Tensor, w: Tensor, columns: int, bias: bool = False) -> Tensor:
        """x W^T, and a bias of so many columns; the gradients of the input and of the weights are views."""
        x, w = self.half(x), self.half_weight(w)
        saved = [other for one, other in ((w, x), (x, w)) if one.node]
        count = x.count // (w.count // columns) * columns
        inputs, firsts = [x, w], [x.bytes, w.bytes]
        if bias and self.trains:
            inputs, firsts = [self.graph.weight(columns, self.width), x, w], [REDUCED, *firsts]
        return self.graph.apply(inputs, count, w.width, saved, firsts=firsts, views=True)

    def linear(self, x: Tensor, *names: str) -> Tensor:
        """A matrix product of a block, with one matrix or several beside each other."""
        z, paths = self.z, [PATHS[name] for name in names]
        for path in paths:
            self.tape.pre_forward(path)
            x = self.graph.hook(x, partial(self.tape.post_backward, path))
        rows, columns = z.matrices[names[0]][0], sum(z.matrices[name][1] for name in names)
        bias = z.shape.has_bias(names[0])
        if z.frozen:
            result = self.frozen(x, rows, columns, names, bias)
        else:
            result = self.matrix(x, self.graph.weight(rows * columns, self.width), columns, bias)
        for path in reversed(paths):
            self.tape.post_forward(path)
            result = self.graph.hook(result, partial(self.tape.pre_backward, path))
        return result

    def frozen(self, x: Tensor, rows: int, columns: int, names: tuple[str, ...], bias: bool) -> Tensor:
        """A matrix that is not trained, with what is trained beside it."""
        return adapters.linear(self, x, rows, columns, names, bias)

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

    # --- attention ----------------------------------------------------------------------------------------------

    def rotary_embedding(self) -> Positions:
        """Cosines and sines for all tokens, in the dtype of the stream."""
        z = self.z
        if z.shape.positions != "rotary":
            return None
        count = z.seq * int(z.shape.d * (self.modules.rotary or 1))
        return self.graph.tensor(count, z.r), self.graph.tensor(count, z.r)

    def rotate_half(self, x: Tensor) -> Tensor:
        """The two halves of each head change places, one with the other sign."""
        g = self.graph
        first = g.part(x, x.count // 2)
        second = g.part(x, x.count // 2)
        negative = g.apply([second], x.count // 2, x.width)
        return g.apply([negative, first], x.count, x.width, firsts=[PASSED, PASSED])

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """apply_rotary_pos_emb, of queries or of keys."""
        if self.modules.rotary is None:
            return self.add(self.mul(x, cos), self.mul(self.rotate_half(x), sin))
        rotary = int(x.count * self.modules.rotary)
        x_rot, x_pass = self.graph.part(x, rotary), self.graph.part(x, x.count - rotary)
        embed = self.add(self.mul(x_rot, cos), self.mul(self.rotate_half(x_rot), sin))
        return self.graph.apply([embed, x_pass], x.count, embed.width, firsts=[PASSED, PASSED])

    def rotary(self, q: Tensor, k: Tensor, positions: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        cos, sin = self.angles(positions)
        return self.rotated(q, cos, sin), self.rotated(k, cos, sin)

    def angles(self, positions: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Cosines and sines as a layer reads them."""
        if not self.modules.interleaved:
            return positions
        cos, sin = (self.graph.tensor(one.count, one.width) for one in positions)
        return cos, sin

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, with their norms."""
        z, kind, norms = self.z, self.modules.qkv, self.z.shape.features.qk_norm
        if kind:
            fused = self.linear(x, "q", "k", "v")
            counts = [z.tokens * z.matrices[name][1] for name in ("q", "k", "v")]
            if kind == "slice":
                return self.sliced(fused, *counts)
            q, k, v = self.graph.split(fused, *counts)
            return q, k, v
        if norms == "whole":
            q = self.rms_norm(self.linear(x, "q"), z.matrices["q"][1])
            k = self.rms_norm(self.linear(x, "k"), z.matrices["k"][1])
            return q, k, self.linear(x, "v")
        q, k, v = self.linear(x, "q"), self.linear(x, "k"), self.linear(x, "v")
        if self.modules.block == "opt":  # OPT
            q = self.scaled(q)
        if norms == "head":
            q = self.rms_norm(q, z.shape.d)
            k = self.rms_norm(k, z.shape.d)
        return q, k, v

    def sliced(self, fused: Tensor, *counts: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values cut from one tensor; Falcon copies keys and values of groups for each head."""
        q, k, v = (self.graph.part(fused, count) for count in counts)
        if self.modules.block == "falcon" and 1 < self.z.shape.kv < self.z.shape.heads:
            k, v = self.repeat_kv(k), self.repeat_kv(v)
        return q, k, v

    def attention(self, x: Tensor, positions: Positions, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Attention, and the probabilities where they are made."""
        tape = self.tape
        tape.pre_forward("attention")
        x = self.graph.hook(x, partial(tape.post_backward, "attention"))
        q, k, v = self.projections(x)
        if positions is not None:
            q, k = self.rotary(q, k, positions)
        out, weights = (self.eager_core if self.eager else self.sdpa)(q, k, v, mask)
        y = self.dropout(self.linear(out, "out"))
        tape.post_forward("attention")
        return self.graph.hook(y, partial(tape.pre_backward, "attention")), weights

    def repeat_kv(self, x: Tensor) -> Tensor:
        """repeat_kv: keys or values of fewer heads, copied for each head that reads them."""
        z = self.z
        if z.kv == z.q:
            return x
        return self.graph.apply([x], z.q // z.e, x.width, firsts=[x.bytes])

    def sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, None]:
        """scaled_dot_product_attention by a fused kernel (integrations/sdpa_attention.py)."""
        z, g = self.z, self.graph
        if mask is not None:
            k, v = self.repeat_kv(k), self.repeat_kv(v)
        q, k, v = self.half(q), self.half(k), self.half(v)
        saved = [q, k, v]
        if mask is not None:  # from bool to what is added to the scores
            saved.append(g.tensor(z.batch * z.seq**2, z.e))
        attn_output = g.apply([q, k, v], q.count, z.e, saved, keeps=True, beside=z.lse)
        # its output lies in memory as the queries do: with heads outermost where these were concatenated
        return self.copied(attn_output, self.modules.rotary is not None and z.shape.heads > 1), None

    def copied(self, x: Tensor, copies: bool) -> Tensor:
        """What a batched product reads: a copy where heads do not lie one after another; its gradient is the same."""
        return self.graph.apply([x], x.count, x.width, firsts=[PASSED]) if copies else x

    def eager_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """eager_attention_forward: the scores of all pairs, in several operations."""
        z, g = self.z, self.graph
        several, grouped, ordered = z.batch > 1, z.kv != z.q, self.modules.rotary is not None
        key_states, value_states = self.repeat_kv(k), self.repeat_kv(v)
        pairs = z.scores // z.e
        attn_weights = self.scaled(
            self.product(q, key_states, pairs, several and not ordered, several and not (grouped or ordered))
        )
        if "scores" in z.shape.features.caps:
            attn_weights = self.capped(attn_weights)
        if mask is not None:
            attn_weights = self.add(attn_weights, mask)
        attn_weights = self.softmax(attn_weights, q, v)
        attn_weights = self.dropout(attn_weights)
        attn_output = self.product(attn_weights, value_states, z.q // z.e, False, several and not grouped)
        attn_output = g.apply([attn_output], attn_output.count, z.e, firsts=[attn_output.bytes if several else PASSED])
        return attn_output, attn_weights

    def product(self, a: Tensor, b: Tensor, count: int, copies_a: bool, copies_b: bool) -> Tensor:
        """A batched matrix product."""
        a, b = self.half(a), self.half(b)
        a, b = self.copied(a, copies_a), self.copied(b, copies_b)
        return self.graph.apply([a, b], count, self.z.e, [b, a], firsts=[a.bytes, b.bytes])

    def softmax(self, x: Tensor, q: Tensor, v: Tensor) -> Tensor:
        """Probabilities, made in fp32, in the queries' dtype; GPT-2 leaves it to autocast, and takes the values'."""
        z, gpt2 = self.z, self.modules.activation == "gelu_new"
        if self.modules.block == "falcon":  # in the dtype of the norm's output
            return self.probabilities(x, z.r)
        width = 4 if self.graph.half or not gpt2 else x.width
        return self.to(self.probabilities(x, width), v.width if gpt2 else q.width)

    def probabilities(self, x: Tensor, width: int) -> Tensor:
        return self.graph.apply([self.to(x, width)], x.count, width, keeps=True)

    def capped(self, x: Tensor, kind: str = "activations") -> Tensor:
        """cap * tanh(x / cap)."""
        x = self.graph.apply([x], x.count, x.width, kind=kind)
        x = self.graph.apply([x], x.count, x.width, keeps=True, kind=kind)
        return self.graph.apply([x], x.count, x.width, kind=kind)

    # --- MLP ----------------------------------------------------------------------------------------------------

    def activation(self, x: Tensor) -> Tensor:
        """The activation function (activations.py): one kernel, but for NewGELUActivation."""
        g, kind = self.graph, self.modules.activation
        if kind == "relu":
            return g.apply([x], x.count, x.width, keeps=True)
        if kind == "kernel":
            return g.apply([x], x.count, x.width, [x])
        # 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 pow(x, 3))))
        half = self.scaled(x)
        return self.mul(half, self.plus_one(self.tanh(self.scaled(self.add(x, self.scaled(self.cube(x)))))))

    def cube(self, x: Tensor) -> Tensor:
        """A power, which autocast makes in fp32."""
        wide = self.to(x, 4) if self.graph.half else x
        return self.graph.apply([wide], x.count, wide.width, [wide], scratch=2 * wide.bytes)

    def tanh(self, x: Tensor) -> Tensor:
        return self.graph.apply([x], x.count, x.width, keeps=True)

    def plus_one(self, x: Tensor) -> Tensor:
        return self.graph.apply([x], x.count, x.width, firsts=[PASSED])

    def mlp(self, x: Tensor) -> Tensor:
        tape = self.tape
        tape.pre_forward("mlp")
        x = self.graph.hook(x, partial(tape.post_backward, "mlp"))
        if not self.z.shape.gated_mlp:
            hidden_states = self.linear(x, "up")
            hidden_states = self.activation(hidden_states)
            y = self.dropout(self.linear(hidden_states, "down"))
        elif self.modules.gate_up:
            y = self._fused_mlp(x)
        else:
            y = self.linear(self.gated(x), "down")
        tape.post_forward("mlp")
        return self.graph.hook(y, partial(tape.pre_backward, "mlp"))

    def gated(self, x: Tensor) -> Tensor:
        return self.mul(self.activation(self.linear(x, "gate")), self.linear(x, "up"))

    def _fused_mlp(self, x: Tensor) -> Tensor:
        up_states = self.linear(x, "gate", "up")
        gate, up_states = self.graph.split(up_states, up_states.count // 2, up_states.count // 2)
        up_states = self.mul(up_states, self.activation(gate))
        return self.linear(up_states, "down")

    # --- the model ----------------------------------------------------------------------------------------------

    def block(self, x: Tensor, positions: Positions, mask: Tensor | None) -> Tensor:
        """LlamaDecoderLayer, with norms around both parts Gemma2DecoderLayer and Glm4DecoderLayer, with norms after
        them Olmo2DecoderLayer."""
        norms = self.z.shape.features.norms
        names = iter(("norm1", "norm2", "norm3", "norm4"))
        residual = x
        hidden_states = x if norms == "after" else self.norm(x, next(names))
        hidden_states, _ = self.attention(hidden_states, positions, mask)
        if norms != "before":
            hidden_states = self.norm(hidden_states, next(names))
        hidden_states = self.joined(residual, hidden_states)
        residual = hidden_states
        if norms != "after":
            hidden_states = self.norm(hidden_states, next(names))
        hidden_states = self.mlp(hidden_states)
        if norms != "before":
            hidden_states = self.norm(hidden_states, next(names))
        return self.joined(residual, hidden_states)

    def joined(self, residual: Tensor, x: Tensor) -> Tensor:
        """The stream and a branch; Granite multiplies the branch by a number."""
        return self.add(residual, self.scaled(x) if self.modules.multiplied else x)

    def gpt_neox_block(self, x: Tensor, positions: Positions, mask: Tensor | None) -> Tensor:
        """GPTNeoXLayer."""
        attn_output, _ = self.attention(self.norm(x, "norm1"), positions, mask)
        attn_output = self.dropout(attn_output)
        if self.z.shape.features.parallel:
            mlp_output = self.dropout(self.mlp(self.norm(x, "norm2")))
            return self.add(self.add(mlp_output, attn_output), x)
        attn_output = self.add(attn_output, x)
        return self.add(self.dropout(self.mlp(self.norm(attn_output, "norm2"))), attn_output)

    def opt_block(self, x: Tensor, positions: Positions, mask: Tensor | None) -> Tensor:
        """OPTDecoderLayer, whose MLP is no module of its own."""
        residual = x
        hidden_states = self.norm(x, "norm1")
        hidden_states, _ = self.attention(hidden_states, positions, mask)
        hidden_states = self.dropout(hidden_states)
        hidden_states = self.add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.norm(hidden_states, "norm2")
        hidden_states = self.linear(hidden_states, "up")
        hidden_states = self.activation(hidden_states)
        hidden_states = self.linear(hidden_states, "down")
        hidden_states = self.dropout(hidden_states)
        return self.add(residual, hidden_states)

    def falcon_block(self, x: Tensor, positions: Positions, mask: Tensor | None) -> Tensor:
        """FalconDecoderLayer."""
        features = self.z.shape.features
        residual = x
        attention_layernorm_out = self.norm(x, "norm1")
        mlp_layernorm_out = attention_layernorm_out
        if features.parallel and features.norms == "before":
            mlp_layernorm_out = self.norm(x, "norm2")
        attention_output, _ = self.attention(attention_layernorm_out, positions, mask)
        if not features.parallel:
            residual = self.add(residual, self.dropout(attention_output))
            mlp_layernorm_out = self.norm(residual, "norm2")
        mlp_output = self.mlp(mlp_layernorm_out)
        if features.parallel:
            mlp_output = self.graph.added_in_place(mlp_output, attention_output)
        return self.add(residual, self.dropout(mlp_output))

    def masks(self) -> dict[str, Tensor | None]:
        """masking_utils.py: none where the kernel knows the causal mask."""
        z = self.z
        found: dict[str, Tensor | None] = {}
        for kind in dict.fromkeys(self.layers):
            always = self.eager or self.modules.block == "falcon"
            if not always and (kind == FULL or z.recipe.attention == "flash"):
                found[kind] = None
            elif self.eager:
                found[kind] = self.graph.tensor(z.batch * z.seq**2, z.r)
            else:
                found[kind] = self.graph.tensor(z.seq**2, 1)
        return found

    def embedded(self) -> list[Tensor]:
        """The token table's rows, those of positions, and their sum, the last of them."""
        z, g = self.z, self.graph
        if not z.first:
            return [g.received(z.x // z.r, z.r)]
        self.tape.pre_forward("tokens")
        inputs_embeds = g.apply([self.table], z.x // z.r, z.r, firsts=[self.table.bytes])
        self.tape.post_forward("tokens")
        inputs_embeds = g.hook(inputs_embeds, partial(self.tape.pre_backward, "tokens"))
        if self.modules.scaled:
            inputs_embeds = self.scaled(inputs_embeds)
        if z.shape.positions != "learned":
            return [inputs_embeds]
        rows = g.weight(z.shape.position_rows * z.shape.hidden, self.width, self.trains)
        # OPT looks up positions for each sequence
        count = (z.tokens if self.modules.block == "opt" else z.seq) * z.shape.hidden
        position_embeds = g.apply([rows], count, z.r, firsts=[rows.bytes])
        return [inputs_embeds, position_embeds, self.dropout(self.add(inputs_embeds, position_embeds))]

    def model(self) -> Tensor:
        """LlamaModel: all layers and the last norm."""
        embeds = self.embedded()
        masks = self.masks()
        hidden_states = embeds[-1]
        positions = {kind: self.rotary_embedding() for kind in masks}
        if self.modules.norm != "gemma" or self.z.shape.features.qk_norm == "none":  # Gemma 3 has other angles by kind
            positions = dict.fromkeys(masks, next(iter(positions.values())))
        for i, kind in enumerate(self.layers):
            hidden_states = self.layer(i, hidden_states, positions[kind], masks[kind])
        self.tape.mark("end")
        return self.norm(hidden_states, "norm") if self.z.last else hidden_states

    def layer(self, i: int, x: Tensor, positions: Positions, mask: Tensor | None) -> Tensor:
        """GradientCheckpointingLayer: a block, of which full checkpointing saves the input."""
        tape, g = self.tape, self.graph
        tape.mark(("forward", i))
        if i == 0:
            x = g.hook(x, partial(tape.mark, "finish"))
        blocks = {"llama": self.block, "gpt_neox": self.gpt_neox_block, "opt": self.opt_block}
        blocks["falcon"] = self.falcon_block
        block = partial(blocks[self.modules.block], positions=positions, mask=mask)
        y = g.checkpoint(block, x) if self.z.recipe.checkpointing == "full" else block(x)
        self.caches.append(g.cache)
        g.cache = []
        return g.hook(y, partial(tape.mark, ("backward", i)))

    def forward(self) -> Tensor:
        """`causal_lm` under autocast, whose copies of weights are freed when it ends."""
        result = self.causal_lm()
        self.graph.cache.clear()
        for i, cache in enumerate(self.caches):
            self.tape.mark(("cast", i))
            cache.clear()
        return result

    def causal_lm(self) -> Tensor:
        """LlamaForCausalLM with labels: the loss, or the output of a pipeline's stage."""
        hidden_states = self.model()
        if not self.z.last:
            return hidden_states
        if self.z.recipe.loss.startswith("chunked"):
            chunked = self.chunked_loss if self.z.recipe.loss == "chunked" else self.loss_by_chunks
            return chunked(hidden_states)
        tape, z = self.tape, self.z
        tape.pre_forward("head")
        x = self.graph.hook(hidden_states, partial(tape.post_backward, "head"))
        logits = self.matrix(x, self._head_weight(), z.vocab, z.shape.has_bias("head"))
        tape.post_forward("head")
        logits = self.graph.hook(logits, self._head_begins)
        if "logits" in z.shape.features.caps:
            logits = self.capped(logits, "logits")
        elif self.modules.multiplied:
            logits = self.graph.apply([logits], logits.count, logits.width, kind="logits")
        if z.recipe.loss == "fused":
            return self.graph.apply([logits], z.tokens, 4, [logits], firsts=[logits.bytes])
        return self.loss(logits)

    def _head_weight(self) -> Tensor:
        """The table, if it is tied and on this rank, or a weight of that size."""
        z = self.z
        own = not (z.shape.tied_head and z.first)
        return self.graph.weight(self.table.count, self.width, self.trains) if own else self.table

    def _head_begins(self) -> None:
        self.tape.enter("head")
        self.tape.pre_backward("head")

    def loss(self, logits: Tensor) -> Tensor:
        """ForCausalLMLoss (loss/loss_utils.py): labels moved by one token, and cross-entropy of logits in fp32."""
        z, g = self.z, self.graph
        labels = g.tensor(z.batch * (z.seq + 1), 8)
        shift_labels = g.tensor(z.tokens, 8)
        del labels
        logits = self.to(logits, 4)
        log_softmax = g.apply([logits], logits.count, 4, keeps=True)
        return g.apply([log_softmax], 1, 4, [log_softmax, shift_labels], firsts=[log_softmax.bytes])

    def chunked_loss(self, x: Tensor) -> Tensor:
        """The head and the loss, a chunk of tokens at a time (memory/loss.py): the forward makes the gradients."""
        z, tape = self.z, self.tape
        tape.pre_forward("head")
        x = self.half(self.graph.hook(x, partial(tape.post_backward, "head")))
        w = self.half_weight(self._head_weight())
        gradients = [Storage(tape, "temporaries", one.bytes) for one in (x, w) if one.node]
        narrow = z.logits if z.e == 2 else 0
        tape.passing("logits", (z.vocab32 + narrow) * z.loss_chunk // z.tokens)
        tape.post_forward("head")
        loss = self.graph.apply([x, w], 1, 4, firsts=[x.bytes, w.bytes])
        assert loss.node is not None
        loss.node.saved += gradients
        loss.node.event = partial(self._loss_backward, loss.node.saved)
        return loss

    def _loss_backward(self, gradients: list[Storage]) -> None:
        """torch fills with zeros, once, gradients that nobody asks for; those there are become the gradients."""
        self.tape.passing("temporaries", *(gradient.size for gradient in gradients))
        self._head_begins()
        gradients.clear()

    def loss_by_chunks(self, x: Tensor) -> Tensor:
        """The head by parts of the tokens, and then their losses (memory/loss.py, "chunked-logits")."""
        z, g, tape = self.z, self.graph, self.tape
        tape.pre_forward("head")
        x = g.hook(x, partial(tape.post_backward, "head"))
        w = self._head_weight()
        if w.node and w.node.number == LAST:  # its gradient is complete when those of all chunks are there
            w.node.number = g.numbers + 0.5
        logits = [self.matrix(g.part(x, x.count // CHUNKS), w, z.vocab) for _ in range(CHUNKS)]
        logits[-1] = g.hook(logits[-1], self._head_begins)
        tape.post_forward("head")
        losses = [g.apply([chunk], 1, 4, [chunk], firsts=[chunk.bytes]) for chunk in logits]
        return reduce(self.add, losses)
