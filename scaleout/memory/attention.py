"""Attention of transformers' modules: projections, rotary positions, and what makes its output of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from scaleout.memory.adapters import Linears
from scaleout.memory.graph import PASSED, REDUCED, Tensor

Positions = tuple[Tensor, Tensor] | None


class Attention(Linears):
    """Attention on a graph."""

    @property
    def eager(self) -> bool:
        """Whether scores are made by eager_attention_forward: also for a model that caps them or has sinks, where sdpa
        is asked for, which has neither."""
        kernel, features = self.z.recipe.attention, self.z.shape.features
        return kernel == "naive" or (kernel == "sdpa" and ("scores" in features.caps or features.sinks))

    def rotary_embedding(self) -> Positions:
        """Cosines and sines for all tokens, in the dtype of the stream."""
        z = self.z
        if z.shape.positions != "rotary":
            return None
        count = z.seq * int(z.shape.d * (self.modules.rotary or 1)) // (2 if self.modules.block == "gpt_oss" else 1)
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
        if self.modules.block == "gpt_oss":
            first, second = self.graph.split(x, x.count // 2, x.count // 2)
            return self.halves_rotated(first, second, cos, sin)
        if self.modules.rotary is None:
            return self.add(self.mul(x, cos), self.mul(self.rotate_half(x), sin))
        rotary = int(x.count * self.modules.rotary)
        x_rot, x_pass = self.graph.part(x, rotary), self.graph.part(x, x.count - rotary)
        embed = self.add(self.mul(x_rot, cos), self.mul(self.rotate_half(x_rot), sin))
        return self.graph.apply([embed, x_pass], x.count, embed.width, firsts=[PASSED, PASSED])

    def halves_rotated(self, first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """_apply_rotary_emb of gpt-oss: both halves, concatenated."""
        turned = self.sub(self.mul(first, cos), self.mul(second, sin))
        other = self.add(self.mul(second, cos), self.mul(first, sin))
        count = turned.count + other.count
        return self.graph.apply([turned, other], count, turned.width, firsts=[PASSED, PASSED])

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        """A difference: the gradient of what is taken away has the other sign."""
        return self.graph.apply([a, b], a.count, a.width, firsts=[PASSED, b.bytes])

    def rotary(self, q: Tensor, k: Tensor, positions: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        cos, sin = self.angles(positions)
        return self.rotated(q, cos, sin), self.rotated(k, cos, sin)

    def angles(self, positions: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Cosines and sines as a layer reads them."""
        if not self.modules.interleaved:
            return positions
        cos, sin = (self.graph.tensor(one.count, one.width) for one in positions)
        return cos, sin

    def projections(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, with their norms, and the one tensor that they were cut from."""
        z, kind, norms = self.z, self.modules.qkv, self.z.shape.features.qk_norm
        if kind:
            fused = self.linear(x, "q", "k", "v")
            counts = [z.tokens * z.matrices[name][1] for name in ("q", "k", "v")]
            parts = self.sliced(fused, *counts) if kind == "slice" else self.graph.split(fused, *counts)
            return *parts, fused
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
        """Queries, keys and values cut from one tensor. Falcon copies keys and values: for each head that reads them,
        or, if there is one of them, by its index."""
        g, shape = self.graph, self.z.shape
        if self.modules.block == "falcon" and shape.kv == 1:
            k, v = (g.apply([fused], count, fused.width, firsts=[fused.bytes]) for count in counts[1:])
            return g.part(fused, counts[0]), k, v
        q, k, v = (g.part(fused, count) for count in counts)
        if self.modules.block == "falcon":
            k, v = self.repeat_kv(k), self.repeat_kv(v)
        return q, k, v

    def attention(self, x: Tensor, positions: Positions, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Attention, and the probabilities where they are made."""
        tape = self.tape
        tape.pre_forward("attention")
        x = self.graph.hook(x, partial(tape.post_backward, "attention"))
        q, k, v, *_ = self.projections(x)  # what more there is has a name until the function returns
        if positions is not None:
            q, k = self.rotary(q, k, positions)
        out, weights = self.core()(q, k, v, mask)
        y = self.dropout(self.linear(out, "out"))
        tape.post_forward("attention")
        return self.graph.hook(y, partial(tape.pre_backward, "attention")), weights

    def core(self) -> Callable[..., tuple[Tensor, Tensor | None]]:
        """What makes attention's output of queries, keys and values."""
        if self.eager:
            cores = {"falcon": self.falcon_core, "gpt_oss": self.sinks_core}
            return cores.get(self.modules.block, self.eager_core)
        # no fused kernel of torch reads one head of keys for several of queries, unless it is asked for groups
        shape = self.z.shape
        alone = self.modules.block == "falcon" and shape.kv == 1 < shape.heads and self.z.recipe.attention == "sdpa"
        return self.math_core if alone else self.sdpa

    def repeat_kv(self, x: Tensor) -> Tensor:
        """repeat_kv: keys or values of fewer heads, copied for each head that reads them."""
        count = self.z.q // self.z.e
        return x if x.count == count else self.graph.apply([x], count, x.width, firsts=[x.bytes])

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

    def eager_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """eager_attention_forward: the scores of all pairs, in several operations."""
        z, g = self.z, self.graph
        several, grouped, ordered = z.batch > 1, z.kv != z.q, self.modules.rotary is not None
        key_states, value_states = self.repeat_kv(k), self.repeat_kv(v)
        pairs = z.scores // z.e
        attn_weights = self.product(q, key_states, pairs, several and not ordered, several and not (grouped or ordered))
        attn_weights = self.scaled(attn_weights)
        if "scores" in z.shape.features.caps:
            attn_weights = self.scaled(attn_weights)
            attn_weights = self.tanh(attn_weights)
            attn_weights = self.scaled(attn_weights)
        attn_weights = self.add(attn_weights, mask)
        attn_weights = self.softmax(attn_weights, q, v)
        attn_weights = self.dropout(attn_weights)
        attn_output = self.product(attn_weights, value_states, z.q // z.e, False, several and not grouped)
        attn_output = g.apply([attn_output], attn_output.count, z.e, firsts=[attn_output.bytes if several else PASSED])
        return attn_output, attn_weights

    def falcon_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """FalconAttention with eager attention: scores are divided in place, probabilities are in the dtype of the
        norm's output."""
        z, several = self.z, self.z.batch > 1
        attention_scores = self.product(q, self.repeat_kv(k), z.scores // z.e, several, several and z.shape.kv != 1)
        attention_scores = self.probabilities(self.add(attention_scores, mask), z.r)
        attn_output = self.product(attention_scores, self.repeat_kv(v), z.q // z.e, False, several and z.shape.kv != 1)
        return self.copied(attn_output, True), attention_scores

    def sinks_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """GptOss' eager_attention_forward: each head's sink is one more column of scores."""
        z, g = self.z, self.graph
        key_states, value_states = self.repeat_kv(k), self.repeat_kv(v)
        attn_weights = self.scaled(self.product(q, key_states, z.scores // z.e, False, False))
        attn_weights = self.add(attn_weights, mask)
        count = attn_weights.count + z.q // z.e // z.shape.d
        combined_logits = g.apply([attn_weights], count, attn_weights.width, firsts=[PASSED])
        combined_logits = self.less_highest(combined_logits)
        probs = self.probabilities(combined_logits, combined_logits.width)
        attn_weights = self.to(g.part(probs, attn_weights.count), v.width)
        attn_output = self.product(attn_weights, value_states, z.q // z.e, False, False)
        attn_output = g.apply([attn_output], attn_output.count, z.e, firsts=[attn_output.bytes])
        return attn_output, attn_weights

    def less_highest(self, x: Tensor) -> Tensor:
        """x - x.max(): the gradients of the highest are put into a tensor of zeros."""
        rows = self.z.q // self.z.e // self.z.shape.d
        highest = self.graph.apply([x], rows, x.width, [self.graph.tensor(rows, 8)], firsts=[x.bytes])
        return self.graph.apply([x, highest], x.count, x.width, firsts=[PASSED, REDUCED])

    def math_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        """scaled_dot_product_attention where no fused kernel can be taken: in fp32, and in several operations
        (aten/src/ATen/native/transformers/attention.cpp, `_scaled_dot_product_attention_math`)."""
        z, g = self.z, self.graph
        q, k, v = self.half(q), self.half(k), self.half(v)
        added = g.tensor(z.batch * z.seq**2, z.e)
        q, k, v = self.to(q, 4), self.to(k, 4), self.to(v, 4)
        q, k = self.scaled(q), self.scaled(k)
        q, k = self.copied(q, z.batch > 1), self.repeat_kv(k)
        attn = g.apply([q, k], z.scores // z.e, 4, [k, q], firsts=[q.bytes, k.bytes])
        attn = self.add(attn, added)
        attn = self.probabilities(attn, 4)
        returned = self.to(attn, z.e)
        v = self.repeat_kv(v)
        output = self.to(g.apply([attn, v], z.q // z.e, 4, [v, attn], firsts=[attn.bytes, v.bytes]), z.e)
        del returned
        return self.copied(output, z.batch > 1), None

    def product(self, a: Tensor, b: Tensor, count: int, copies_a: bool, copies_b: bool) -> Tensor:
        """A batched matrix product."""
        a, b = self.half(a), self.half(b)
        a, b = self.copied(a, copies_a), self.copied(b, copies_b)
        return self.graph.apply([a, b], count, self.z.e, [b, a], firsts=[a.bytes, b.bytes])

    def softmax(self, x: Tensor, q: Tensor, v: Tensor) -> Tensor:
        """Probabilities, made in fp32, in the queries' dtype; GPT-2 leaves it to autocast, and takes the values'."""
        gpt2 = self.modules.activation == "gelu_new"
        width = 4 if self.graph.half or not gpt2 else x.width
        return self.to(self.probabilities(x, width), v.width if gpt2 else q.width)

    def probabilities(self, x: Tensor, width: int) -> Tensor:
        return self.graph.apply([self.to(x, width)], x.count, width, keeps=True)
