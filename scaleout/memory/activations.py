"""The activations that each operation of a block saves for its backward, and the sizes of one rank's tensors.

The rule is one: an operation keeps what its derivative needs. A matrix product keeps its input; a norm keeps its
input and one or two numbers per token; GELU keeps its input; a product keeps both factors; fused attention keeps Q,
K, V, its output and one log-sum-exp a query, and naive attention keeps the probabilities. Korthikanti et al. 2022
(arXiv 2205.05198, section 4) list the same for their model; their 34 + 5as/h is the special case of 16 bits,
naive attention and dropout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from scaleout.memory import pipeline
from scaleout.memory.optimizers import Trained
from scaleout.memory.states import adapter_parameters, check_experts, check_layout, tensor_shapes
from scaleout.spec.blocks import matrices
from scaleout.spec.layout import Layout, alone
from scaleout.spec.recipe import Recipe
from scaleout.spec.slices import check_sequence, loss_chunk, slice_linears
from scaleout.spec.transformer import Shape, check_positions, check_priced, check_run


@dataclass(frozen=True)
class Sizes:
    """Bytes of the tensors that occur in a step, on one rank.

    Residual-stream tensors have the residual's dtype (fp32 under autocast), inputs and outputs of matmuls the
    compute dtype. Tensor parallelism divides the tensors inside attention and the MLP; sequence parallelism divides
    the rest of the block as well, and gathers the inputs of the matrices.
    """

    shape: Shape
    batch: int
    seq: int
    recipe: Recipe
    layout: Layout
    stage: int = 0  # the rank of the pipeline

    def __post_init__(self) -> None:
        check_run(self.batch, self.seq)
        check_priced(self.shape, self.recipe.operations)
        check_experts(self.shape, self.recipe)
        alone(self.layout, "dp", "tp", "pp")
        check_layout(self.shape, self.layout)
        if self.layout.sequence_parallel:
            check_sequence(self.seq, self.layout.tp)
        if self.transformers and (self.gathers or self.recipe.compiled or self.recipe.checkpointing == "selective"):
            kind = (
                "compiled form that is priced"
                if self.recipe.compiled
                else "sequence parallelism"
                if self.gathers
                else "selective checkpointing"
            )
            raise ValueError(f"transformers' modules have no {kind}: use operations book")
        if self.recipe.operations in ("liger", "lit-gpt") and not (self.shape.llama and not self.shape.features.family):
            raise ValueError(f"of {self.recipe.operations} Llama's modules are priced: use operations transformers")
        check_positions(self.shape, self.seq)

    @cached_property
    def first(self) -> bool:
        """Whether the stage has the token table."""
        return self.stage == 0

    @cached_property
    def last(self) -> bool:
        """Whether the stage has the head and the loss."""
        return self.stage == self.layout.last_rank

    @cached_property
    def in_flight(self) -> int:
        """Activations of one chunk and one micro-batch that stand side by side: under 1F1B, where a rank has one
        chunk, a micro-batch for each rank from here on (arXiv 2205.05198, section 4.2.3)."""
        layout = self.layout
        return (
            pipeline.in_flight(layout.schedule, layout.pp, layout.m, layout.chunks)[self.stage] if layout.pp > 1 else 1
        )

    @cached_property
    def ends_in_flight(self) -> tuple[int, int]:
        """Micro-batches of which the last stage has (inputs of norm and head, logits): `pipeline.ends_in_flight`."""
        layout = self.layout
        return pipeline.ends_in_flight(layout.schedule, layout.pp, layout.m) if layout.pp > 1 else (1, 1)

    @cached_property
    def chunk_layers(self) -> int:
        """Blocks of one chunk."""
        return self.shape.layers // self.layout.stages

    @cached_property
    def keeps_gradients(self) -> bool:
        """Whether gradients stand through forward and backward: with a pipeline, those of the micro-batches before."""
        return self.recipe.keeps_gradients or self.layout.pp > 1

    @cached_property
    def trained(self) -> Trained:
        """Dimensions of the tensors that the optimizer steps. A search asks for them as often as for a layout."""
        return tensor_shapes(self.shape, self.recipe, self.layout)

    @cached_property
    def tokens(self) -> int:
        return self.batch * self.seq

    @cached_property
    def auto(self) -> bool:
        """Whether autocast makes 16-bit copies of fp32 inputs and weights; under an adapter these are in 16 bits."""
        return self.recipe.autocast and not self.frozen

    @cached_property
    def frozen(self) -> bool:
        """Whether an adapter is trained, and the model is not."""
        return self.recipe.adapter != "none"

    @cached_property
    def copied(self) -> bool:
        """Whether autocast copies weights. Sharded ones are gathered in 16 bits, unit by unit, which is not priced
        here."""
        return self.auto and (self.layout.zero < 3 or self.layout.dp == 1)

    @cached_property
    def e(self) -> int:
        """Bytes of an element that goes through a matrix product."""
        return self.recipe.width("compute")

    @cached_property
    def r(self) -> int:
        """Bytes of an element of the residual stream: what the embedding and the norms are stored in. The book's
        operations leave out that a 4-bit model whose other weights are in fp32 has such a stream."""
        if not self.frozen:
            return self.recipe.width("stream")
        prepared = self.recipe.adapter == "qlora" and self.recipe.unquantized == "fp32"
        return 4 if prepared and self.transformers else self.e

    @cached_property
    def _outside(self) -> int:
        """Elements of (batch, seq, hidden) on this rank."""
        return self.per_token * self.shape.hidden

    @cached_property
    def gathers(self) -> bool:
        """Whether sequence parallelism gathers and scatters around every pair of matrices."""
        return self.layout.sequence_parallel and self.layout.tp > 1

    @cached_property
    def regathers(self) -> bool:
        """Whether gathered inputs are not saved but gathered again in the backward; they are then cast before it."""
        return self.gathers and self.layout.gather_again

    @cached_property
    def read(self) -> int:
        """What a matrix cut in columns reads, and what one cut in rows gives: all tokens, `hidden` wide."""
        return self.tokens * self.shape.hidden * self.e

    @cached_property
    def read_kept(self) -> int:
        """What is saved of such an input: this rank's tokens, where they are gathered again."""
        return self.y if self.regathers else self.read

    @cached_property
    def gathered(self) -> int:
        """The output of a gather, in the dtype of its input; 0 where nothing is gathered."""
        return (self.read if self.regathers else self.read * self.r // self.e) if self.gathers else 0

    @cached_property
    def x(self) -> int:
        """The residual stream."""
        return self._outside * self.r

    @cached_property
    def y(self) -> int:
        """An input or output, `hidden` wide, of a matrix product."""
        return self._outside * self.e

    @cached_property
    def wide32(self) -> int:
        """(batch, seq, hidden) in fp32."""
        return self._outside * 4

    @cached_property
    def mask(self) -> int:
        """A dropout mask over (batch, seq, hidden), one byte each; 0 without dropout."""
        return self._outside if self.recipe.dropout else 0

    @cached_property
    def batch_bytes(self) -> int:
        """Tokens and targets, int64."""
        return 2 * 8 * self.tokens

    @cached_property
    def transformers(self) -> bool:
        """Whether the modules are those of Hugging Face's transformers, or of Lit-GPT, and not the book's."""
        return self.recipe.operations not in ("book", "megatron")

    @cached_property
    def megatron(self) -> bool:
        """Whether the modules are those of Megatron-LM with Transformer Engine: see memory/megatron.py."""
        return self.recipe.operations == "megatron"

    @cached_property
    def input_copies(self) -> tuple[int, int]:
        """How many copies of the inputs of q, k and v, and of up and gate, are saved: autocast casts once for each
        matrix that reads one."""
        if not self.auto or self.regathers or self.recipe.compiled:
            return 1, 1
        return 3, 2 if self.shape.gated_mlp and not self.megatron else 1

    @cached_property
    def activation_kept(self) -> int:
        """What the activation function saves: its input, with a gate both factors too, of which compiled code makes one
        again; Megatron's gated one is one kernel, which saves its two inputs."""
        if not self.shape.gated_mlp:
            return self.f
        return (2 if self.recipe.compiled or self.megatron else 3) * self.f

    @cached_property
    def per_token(self) -> int:
        """Elements of one number a token."""
        return self.tokens // self.layout.tp if self.gathers else self.tokens

    @cached_property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """This rank's part of one block's matrices: (input width, output width) by name."""
        if self.shape.features.experts:
            return {matrix.name: (matrix.depth, matrix.columns) for matrix in matrices(self.shape, tp=self.layout.tp)}
        return slice_linears(self.shape, self.layout.tp)

    @cached_property
    def q(self) -> int:
        """Queries, or attention's output."""
        return self.tokens * self.shape.heads * self.shape.d * self.e // self.layout.tp

    @cached_property
    def kv(self) -> int:
        """Keys, or values."""
        return self.tokens * self.matrices["k"][1] * self.e

    @cached_property
    def scores(self) -> int:
        """One (batch, heads, seq, seq) tensor."""
        return self.batch * self.shape.heads * self.seq**2 * self.e // self.layout.tp

    @cached_property
    def lse(self) -> int:
        """The log-sum-exp of every query, fp32."""
        return self.tokens * self.shape.heads * 4 // self.layout.tp

    @cached_property
    def f(self) -> int:
        """(batch, seq, ff)."""
        return self.tokens * self.shape.h_ff * self.e // self.layout.tp

    @cached_property
    def vocab(self) -> int:
        """Tokens of the vocabulary on this rank: its share, rounded up, for the tables are padded to equal parts."""
        return math.ceil(self.shape.vocab / self.layout.tp)

    @cached_property
    def vocab32(self) -> int:
        """The logits in fp32."""
        return self.tokens * self.vocab * 4

    @cached_property
    def logits(self) -> int:
        """The logits as the head makes them."""
        return self.vocab32 * self.e // 4

    @cached_property
    def loss_chunk(self) -> int:
        """Tokens whose logits a loss in chunks has at one time."""
        return loss_chunk(self.tokens, self.vocab, self.shape.hidden)

    def copies(self, *names: str) -> int:
        """Autocast's 16-bit copies of these matrices of one block; 0 where it makes none."""
        return sum(2 * self.matrices[n][0] * self.matrices[n][1] for n in names) if self.copied else 0


def norm_kept(z: Sizes) -> int:
    """A norm's input, and for each token the mean and deviation, or the root mean square."""
    return z.x + z.per_token * (2 * z.r if z.shape.norm == "layernorm" else 4)


def qk_norm_kept(z: Sizes) -> int:
    """What the norms of queries and keys save, by the head or over all heads."""
    kind = z.shape.features.qk_norm
    if kind == "none":
        return 0
    numbers = 2 if kind == "whole" else (z.q + z.kv) // (z.tokens * z.shape.d * z.e)  # of a token
    return z.q + z.kv + 4 * z.tokens * numbers


def tables(z: Sizes) -> int:
    """Cosines and sines of rotary positions, once for Q and once for K."""
    return 4 * z.seq * (z.shape.d // 2) * z.e if z.shape.positions == "rotary" and not z.megatron else 0


def relaid(z: Sizes) -> int:
    """Rotary positions leave Q with heads outermost; so is fused attention's output then, and the projection that
    follows keeps a copy of its own, which compiled code makes again. One head on a rank has no order to change, and
    Megatron keeps tokens outermost."""
    turned = z.shape.positions == "rotary" and z.shape.heads > z.layout.tp
    return z.q if turned and not z.recipe.compiled and not z.megatron else 0


def core_kept(z: Sizes) -> int:
    """Attention between Q, K, V and the output projection, the projection's input included."""
    if z.recipe.attention != "naive":
        return tables(z) + 2 * z.q + 2 * z.kv + z.lse + relaid(z)
    drop = z.scores + z.scores // z.e if z.recipe.dropout else 0
    return tables(z) + 4 * z.q + z.seq**2 + z.scores + drop


def core_inputs(z: Sizes) -> int:
    """What remains of the attention core under selective checkpointing: Q, K, V and its output."""
    return tables(z) + 2 * z.q + 2 * z.kv


def block_kept(z: Sizes, checkpointing: str) -> dict[str, int]:
    """Bytes kept by one block between its forward and its backward, by operation. ValueError for modules that are not
    the book's: `traces.block_bytes` has theirs."""
    if z.transformers:
        raise ValueError("bytes by operation are of the book's modules: use operations book")
    if checkpointing == "full":
        return {"block input": z.x}
    times = z.input_copies
    sizes = {
        "norm 1": norm_kept(z),
        "input of q, k, v": times[0] * z.read_kept,
        "attention": qk_norm_kept(z) + (core_kept(z) if checkpointing == "none" else core_inputs(z)),
        "norm 2": norm_kept(z),
        "input of up and gate" if z.shape.gated_mlp else "input of up": times[1] * z.read_kept,
        "activation function": z.activation_kept,
        "input of down": z.f,
    }
    if z.mask:
        sizes["dropout masks"] = 2 * z.mask
    if z.frozen:
        sizes["between adapters"] = adapters_kept(z)
    return sizes


def copies_kept(z: Sizes, checkpointing: str) -> int:
    """The 16-bit copies of one block's weights that matmuls under autocast save for their backward."""
    if checkpointing == "full":
        return 0
    adapters = 2 * adapter_parameters(z.shape, z.recipe, z.layout.tp) if z.recipe.autocast else 0
    return z.copies(*z.matrices) + adapters


def adapters_kept(z: Sizes) -> int:
    """What the adapters of a block save beside their inputs: the narrow tensor between their two matrices, and with
    dropout what is left of the input and a mask of bytes; less the inputs of matrices that nothing is trained beside,
    and that no 4-bit matmul keeps."""
    if not z.frozen:
        return 0
    recipe, targets = z.recipe, [name for name in z.matrices if name in z.recipe.targets]
    saved = z.tokens * recipe.adapter_rank * z.e * len(targets)
    if recipe.adapter_dropout:
        saved += sum((z.e + 1) * z.tokens * z.matrices[name][0] for name in targets)
    if recipe.adapter == "qlora" and recipe.inputs_kept:
        return saved
    reads = [] if recipe.adapter_dropout else targets
    inputs = {"q k v": z.read_kept, "out": relaid(z), "up gate": z.read_kept, "down": z.f}
    return saved - sum(size for names, size in inputs.items() if not set(names.split()) & set(reads))
