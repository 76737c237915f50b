"""The modules of Hugging Face's transformers, 5.24: what a step of a language model of theirs allocates.

Each function here, in `blocks`, `attention` and `operations` is the `forward` of a module in
transformers/models/*/modeling_*.py, line by line, with the same local names where they keep a tensor alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from scaleout.memory.activations import Sizes
from scaleout.memory.attention import Positions
from scaleout.memory.blocks import Blocks
from scaleout.memory.graph import LAST, Graph, Storage, Tensor
from scaleout.memory.loss import CHUNKS
from scaleout.spec.blocks import Kind

FULL: int | None = None  # the window of a layer without one


class Model(Blocks):
    """A causal language model on a graph. layers: the kind of each."""

    def __init__(self, z: Sizes, graph: Graph, layers: Sequence[Kind]) -> None:
        super().__init__(z, graph)
        self.layers = layers
        self.shared: dict[int | None, list[Storage | None]] = {}  # by window (`share`)
        self.caches: list[list[Tensor]] = []  # autocast's copies of weights, by layer
        table = z.vocab * z.shape.hidden
        self.table = graph.weight(table, self.width, self.trains, shared=z.shape.tied_head and z.first and z.last)

    def masks(self) -> dict[int | None, Tensor | None]:
        """What is added to scores; none where the kernel knows the causal mask."""
        z = self.z
        found: dict[int | None, Tensor | None] = {}
        for window in dict.fromkeys(kind.window for kind in self.layers):
            always = self.eager or self.modules.block == "falcon"
            if z.recipe.attention == "flash" or (window is FULL and not always):
                found[window] = None
            elif self.eager:
                found[window] = self.graph.tensor(z.batch * z.seq**2, z.r)
            else:
                found[window] = self.graph.tensor(z.seq**2, 1)
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
        positions = {window: self.rotary_embedding() for window in masks}
        if self.modules.norm != "gemma" or self.z.shape.features.qk_norm == "none":  # Gemma 3: others by window
            positions = dict.fromkeys(masks, next(iter(positions.values())))
        self.share(positions, masks)
        for i, kind in enumerate(self.layers):
            hidden_states = self.layer(i, hidden_states, positions[kind.window], masks[kind.window])
        self.tape.mark("end")
        return self.norm(hidden_states, "norm") if self.z.last else hidden_states

    def share(self, positions: dict[int | None, Positions], masks: dict[int | None, Tensor | None]) -> None:
        """What layers save together and the first does not, as its window is another or nothing before its rotation is
        trained: it is there until the last of them is done, which need not be one that is simulated."""
        first, full = self.layers[0].window, self.z.recipe.checkpointing == "full"
        if not full and len(self.layers) > 1 and not self.trained_before_rotation:
            self.shared[first] = [one.storage for one in positions[first] or ()]
        for window in masks:
            if window != first:
                own = positions[window] if positions[window] is not positions[first] else ()
                found = [*(own or ()), *([masks[window]] if full else [])]
                self.shared[window] = [one.storage for one in found if one is not None]

    def layer(self, i: int, x: Tensor, positions: Positions, mask: Tensor | None) -> Tensor:
        """GradientCheckpointingLayer: a block, of which full checkpointing saves the input."""
        tape, g = self.tape, self.graph
        tape.mark(("forward", i))
        if i == 0:
            x = g.hook(x, partial(tape.mark, "finish"))
        blocks = {"gpt_neox": self.gpt_neox_block, "opt": self.opt_block, "falcon": self.falcon_block}
        default = partial(self.block, experts=self.layers[i].experts)
        block = partial(blocks.get(self.modules.block, default), positions=positions, mask=mask)
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
        self.outputs = None
        if not self.z.last:
            return hidden_states
        if self.z.recipe.loss.startswith("chunked"):
            chunked = self.chunked_loss if self.z.recipe.loss == "chunked" else self.loss_by_chunks
            return chunked(hidden_states)
        tape, z = self.tape, self.z
        tape.pre_forward("head")
        x = self.graph.hook(hidden_states, partial(tape.post_backward, "head"))
        logits = self.matrix(x, self._head_weight(), z.vocab, z.shape.has_bias("head"), kind="logits")
        tape.post_forward("head")
        logits = self.graph.hook(logits, self._head_begins)
        if "logits" in z.shape.features.caps:
            logits = self.scaled(logits, "logits")
            logits = self.tanh(logits, "logits")
            logits = self.scaled(logits, "logits")
        elif self.modules.multiplied:
            logits = self.scaled(logits, "logits")
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
        if logits.width != 4:
            logits = g.apply([logits], logits.count, 4, firsts=[logits.bytes], kind="logits")
        log_softmax = g.apply([logits], logits.count, 4, keeps=True, kind="logits")
        return g.apply([log_softmax], 1, 4, [log_softmax, shift_labels], firsts=[log_softmax.bytes])

    def chunked_loss(self, x: Tensor) -> Tensor:
        """The head and the loss, a chunk of tokens at a time (memory/loss.py): the forward makes the gradients."""
        tape = self.tape
        tape.pre_forward("head")
        x = self.half(self.graph.hook(x, partial(tape.post_backward, "head")))
        w = self.half_weight(self._head_weight())
        gradients = [Storage(tape, "temporaries", one.bytes) for one in (x, w) if one.node]
        tape.passing("logits", self.chunk_logits())
        tape.post_forward("head")
        loss = self.graph.apply([x, w], 1, 4, firsts=[x.bytes, w.bytes])
        assert loss.node is not None
        loss.node.saved += gradients
        loss.node.event = partial(self._loss_backward, loss.node.saved)
        return loss

    def chunk_logits(self) -> int:
        """Bytes of the logits of a chunk, with what the loss widens them to."""
        z = self.z
        return (z.vocab32 + (z.logits if z.e == 2 else 0)) * z.loss_chunk // z.tokens

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
