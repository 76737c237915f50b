"""Experts of transformers' modules: the router, the grouped matrix products of all experts, and the shared ones.

A step of a model without expert parallelism calls `grouped_mm_experts_forward` (transformers 5.24, integrations/moe.py,
the default where torch has grouped_mm): the rows of all tokens, once for each expert that they were sent to, are sorted
by expert and go through one grouped product. Its tensors have the same sizes however the router spreads the tokens. The
eager loop over experts is not simulated.
"""

from __future__ import annotations

from functools import partial

from scaleout.memory.activations import Sizes
from scaleout.memory.attention import Attention
from scaleout.memory.graph import PASSED, Graph, Tensor
from scaleout.spec.variant import Experts as Counts


class Experts(Attention):
    """Layers of experts on a graph."""

    def __init__(self, z: Sizes, graph: Graph) -> None:
        super().__init__(z, graph)
        self.counts = z.shape.features.experts or Counts(1, 1, 1)

    @property
    def experts_width(self) -> int:
        """Bytes of a number of the experts' weights as they are multiplied: autocast does not cast for grouped_mm, so
        that they stay fp32, unless they were gathered in 16 bits."""
        return self.z.e if self.graph.half and not self.graph.copies else self.width

    def mixture(self, x: Tensor) -> Tensor:
        """A layer's experts, in place of its MLP."""
        tape = self.tape
        tape.pre_forward("mlp")
        x = self.graph.hook(x, partial(tape.post_backward, "mlp"))
        y = self.qwen_mixture(x) if self.modules.block == "qwen_moe" else self.mixtral_mixture(x)
        tape.post_forward("mlp")
        return self.graph.hook(y, partial(tape.pre_backward, "mlp"))

    # Each of these has, as the module's forward has, the router's outputs until it returns.

    def mixtral_mixture(self, x: Tensor) -> Tensor:
        """MixtralSparseMoeBlock, GptOssMLP."""
        _, top_k_weights, top_k_index = self.router(x)
        return self.experts(x, top_k_weights, top_k_index)

    def qwen_mixture(self, x: Tensor) -> Tensor:
        """Qwen2MoeSparseMoeBlock, and without a shared expert Qwen3MoeSparseMoeBlock."""
        shared_expert_output = self.shared_mlp(x) if self.counts.shared_ff else None
        _, routing_weights, selected_experts = self.router(x)
        expert_output = self.experts(x, routing_weights, selected_experts)
        if shared_expert_output is None:
            return expert_output
        gate = self.matrix(x, self.graph.weight(self.z.shape.hidden, self.width), 1)
        gate = self.graph.apply([gate], gate.count, gate.width, keeps=True)  # sigmoid
        shared_expert_output = self.mul(gate, shared_expert_output)
        del gate
        return self.add(expert_output, shared_expert_output)

    def shared_mlp(self, x: Tensor) -> Tensor:
        """The MLP of the experts that all tokens pass through."""
        z, g = self.z, self.graph
        wide = self.counts.shared_ff // z.layout.tp
        gate = self.silu(self.matrix(x, g.weight(wide * z.shape.hidden, self.width), wide))
        product = self.mul(gate, self.matrix(x, g.weight(wide * z.shape.hidden, self.width), wide))
        del gate
        return self.matrix(product, g.weight(wide * z.shape.hidden, self.width), z.shape.hidden)

    # --- routers ------------------------------------------------------------------------------------------------

    def router_logits(self, x: Tensor) -> Tensor:
        """One number for each token and expert."""
        shape, count = self.z.shape, self.counts.count
        weight = self.graph.weight(count * shape.hidden, self.width)
        return self.matrix(x, weight, count, shape.has_bias("router"))

    def top_k(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """topk: values and their indices, which the derivative needs."""
        count = self.z.tokens * self.counts.active
        index = self.graph.tensor(count, 8)
        return self.graph.apply([x], count, x.width, [index], firsts=[x.bytes]), index

    def shares(self, x: Tensor) -> Tensor:
        """x /= x.sum(): the division in place saves a copy."""
        return self.mul(x, self.graph.apply([x], self.z.tokens, x.width, firsts=[PASSED]))

    def router(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """MixtralTopKRouter, Qwen3MoeTopKRouter (with norm_topk_prob), GptOssTopKRouter: logits, weights, indices."""
        router_logits = self.router_logits(x)
        if self.modules.block == "gpt_oss":
            router_top_value, router_indices = self.top_k(router_logits)
            return router_logits, self.probabilities(router_top_value, router_top_value.width), router_indices
        router_probs = self.probabilities(router_logits, 4)
        router_top_value, router_indices = self.top_k(router_probs)
        router_top_value = self.shares(router_top_value)
        if self.modules.block == "qwen_moe":
            router_top_value = self.to(router_top_value, router_logits.width)
        return router_logits, router_top_value, router_indices

    # --- experts ------------------------------------------------------------------------------------------------

    def experts(self, x: Tensor, top_k_weights: Tensor, top_k_index: Tensor) -> Tensor:
        """grouped_mm_experts_forward."""
        z, g, experts = self.z, self.graph, self.counts
        hidden, wide, pairs = z.shape.hidden, experts.ff // z.layout.tp, top_k_index.count
        gated, width = 2 * wide, self.experts_width
        expert_ids_g, perm = g.tensor(pairs, 8), g.tensor(pairs, 8)
        selected_hidden_states_g = self.rows(x, pairs * hidden, g.tensor(pairs, 8))
        sample_weights_g = self.rows(top_k_weights, pairs, perm)
        histc_input = g.tensor(pairs, 4)
        selected_biases = self.biases(gated, expert_ids_g)
        proj_out = self.grouped(selected_hidden_states_g, experts.count, gated, width, selected_biases)
        proj_out = self.gate(proj_out)
        selected_biases = self.biases(hidden, expert_ids_g)
        proj_out = self.grouped(proj_out, experts.count, hidden, width, selected_biases)
        weighted_out = self.mul(proj_out, sample_weights_g)
        weighted_out = self.rows(weighted_out, weighted_out.count, g.tensor(pairs, 8))
        final_hidden_states = g.apply([weighted_out], x.count, weighted_out.width, firsts=[weighted_out.bytes])
        del histc_input
        return self.to(final_hidden_states, x.width)

    def rows(self, x: Tensor, count: int, index: Tensor) -> Tensor:
        """x[index]; the derivative adds to a tensor of zeros."""
        return self.graph.apply([x], count, x.width, [index], firsts=[x.bytes])

    def biases(self, columns: int, expert_ids: Tensor) -> Tensor | None:
        """A row of biases for each row of a grouped product."""
        if not self.z.shape.has_bias("up"):
            return None
        bias = self.graph.weight(self.counts.count * columns, self.experts_width)
        return self.rows(bias, expert_ids.count * columns, expert_ids)

    def grouped(self, x: Tensor, count: int, columns: int, width: int, bias: Tensor | None) -> Tensor:
        """A grouped product: each expert's rows by its matrix. The gradient of the weights is made first."""
        g = self.graph
        rows = self.z.tokens * self.counts.active
        depth = x.count // rows
        x, w = self.to(x, width), g.weight(count * depth * columns, width)
        saved = [other for one, other in ((w, x), (x, w)) if one.node]
        out = g.apply([w, x], rows * columns, width, saved, firsts=[w.bytes, x.bytes])
        return g.added_in_place(out, bias) if bias else out

    def gate(self, gate_up: Tensor) -> Tensor:
        """_default_apply_gate, GptOssExperts._apply_gate."""
        half = gate_up.count // 2
        if self.modules.block != "gpt_oss":
            gate, up = self.graph.split(gate_up, half, half)
            return self.mul(self.silu(gate), up)
        gate, up = self.graph.part(gate_up, half), self.graph.part(gate_up, half)
        gate, up = self.clamp(gate), self.clamp(up)
        sigmoid = self.graph.apply([self.scaled(gate)], half, gate.width, keeps=True)
        glu = self.mul(gate, sigmoid)
        del sigmoid
        return self.mul(self.graph.apply([up], half, up.width, firsts=[PASSED]), glu)

    def silu(self, x: Tensor) -> Tensor:
        return self.graph.apply([x], x.count, x.width, [x])

    def clamp(self, x: Tensor) -> Tensor:
        """It saves its input; its derivative has a mask of bytes, and zeros where that is not set."""
        return self.graph.apply([x], x.count, x.width, [x], scratch=x.count)
