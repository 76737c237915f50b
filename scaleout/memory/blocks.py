"""The blocks of transformers' families: the MLP, and how attention, MLP and norms follow on each other."""

from __future__ import annotations

from functools import partial

from scaleout.memory.activations import Sizes
from scaleout.memory.attention import Positions
from scaleout.memory.experts import Experts
from scaleout.memory.graph import PASSED, Graph, Tensor


class Blocks(Experts):
    """Blocks on a graph."""

    def __init__(self, z: Sizes, graph: Graph) -> None:
        super().__init__(z, graph)
        self.outputs: Tensor | None = None  # what FalconModel has of the layer before, beside the stream

    # --- MLP ----------------------------------------------------------------------------------------------------

    def activation(self, x: Tensor) -> Tensor:
        """The activation function: one kernel, but for NewGELUActivation."""
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

    def block(self, x: Tensor, positions: Positions, mask: Tensor | None, experts: bool = False) -> Tensor:
        """LlamaDecoderLayer, with norms around both parts Gemma2DecoderLayer and Glm4DecoderLayer, with norms after
        them Olmo2DecoderLayer, with experts MixtralDecoderLayer."""
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
        hidden_states = self.mixture(hidden_states) if experts else self.mlp(hidden_states)
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
        attention_output, attn_weights = self.attention(attention_layernorm_out, positions, mask)
        if not features.parallel:
            residual = self.add(residual, self.dropout(attention_output))
            mlp_layernorm_out = self.norm(residual, "norm2")
        mlp_output = self.mlp(mlp_layernorm_out)
        if features.parallel:
            mlp_output = self.graph.added_in_place(mlp_output, attention_output)
        output = self.add(residual, self.dropout(mlp_output))
        if not self.graph.again:
            self.outputs = attn_weights
        return output
