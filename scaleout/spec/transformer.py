"""The shape of a decoder-only transformer, its parameters and its floating-point operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from scaleout.spec import checks
from scaleout.spec import config as config_json
from scaleout.spec.variant import LIKE_LLAMA, NORMS, Variant

MOST_PARAMETERS = 10**14  # of a config.json


@dataclass(frozen=True)
class Shape:
    """What fixes the size of a GPT- or Llama-style model. Fields left None take the usual value.

    Raises ValueError, in one line, for sizes that no model can have.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    kv_heads: int | None = None  # fewer than heads: grouped-query attention
    head_dim: int | None = None  # hidden // heads
    ff: int | None = None  # 4 * hidden
    gated_mlp: bool = False  # SwiGLU: three matrices instead of two
    bias: bool = True  # on the linear layers and the layer norms
    norm: str = "layernorm"  # or "rmsnorm"
    positions: str = "learned"  # or "rotary"
    max_seq: int = 1024  # rows of the learned position table
    tied_head: bool = True  # the output head is the token table
    variant: Variant | None = None  # what its blocks have beside that: experts, latent attention, other norms

    @staticmethod
    def from_config(config: Mapping | str | Path) -> Shape:
        """The shape of a model of Hugging Face's transformers: of a config.json, its folder, or what is in it.

        Its parameters, in total and active, are those of the model that transformers builds. ValueError, in one line,
        for families that are not known and for fields whose values are not; `config.unread` names fields that are not
        read.
        """
        fields = config_json.fields(config)
        try:
            shape = Shape(**fields)
        except ValueError as error:
            raise ValueError(f"this config.json: {error}") from None
        if (total := total_parameters(shape)) > MOST_PARAMETERS:
            raise ValueError(
                f"this config.json is of {total:.1e} parameters: at most {MOST_PARAMETERS:.0e} are counted"
            )
        return shape

    def __post_init__(self) -> None:
        self._check_types()
        self._check_variant()
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"{self.heads} heads do not divide hidden size {self.hidden}: change one of the two")
        if self.heads % self.kv:
            raise ValueError(f"{self.kv} key-value heads do not divide {self.heads} heads")
        if self.norm not in ("layernorm", "rmsnorm"):
            raise ValueError(f"norm must be layernorm or rmsnorm, not {self.norm!r}")
        if self.positions not in ("learned", "rotary"):
            raise ValueError(f"positions must be learned or rotary, not {self.positions!r}")
        if self.positions == "rotary" and self.d % 2:
            raise ValueError(f"rotary positions turn pairs, so head_dim must be even, not {self.d}")

    def _check_types(self) -> None:
        for name in ("layers", "hidden", "heads", "vocab", "kv_heads", "head_dim", "ff", "max_seq"):
            value = getattr(self, name)
            if value is None and name in ("kv_heads", "head_dim", "ff"):
                continue
            checks.whole(name, value)
        for name in ("gated_mlp", "bias", "tied_head"):
            checks.flag(name, getattr(self, name))

    def _check_variant(self) -> None:
        if isinstance(self.variant, dict):  # from a file
            object.__setattr__(self, "variant", checks.built("variant", Variant, self.variant))
        if self.variant is not None:
            checks.instance("variant", self.variant, Variant)

    @property
    def features(self) -> Variant:
        """Its variant, or that of GPT's and Llama's blocks."""
        return self.variant or LIKE_LLAMA

    def has_bias(self, name: str) -> bool:
        """Whether a matrix of its blocks, or what `Variant.biases` calls "norm" or "head", has a bias."""
        biases = self.features.biases
        return self.bias and name not in ("head", "router") if biases is None else name in biases

    @property
    def position_rows(self) -> int:
        """Rows of its table of learned positions; 0 where it has none."""
        return self.max_seq + self.features.position_offset if self.positions == "learned" else 0

    @property
    def head_width(self) -> int:
        """Outputs of its head: as many as the vocabulary has tokens, or labels."""
        labels = self.features.labels
        return self.vocab if labels is None else labels

    @property
    def kv(self) -> int:
        """Key-value heads."""
        return self.kv_heads or self.heads

    @property
    def d(self) -> int:
        """Width of one head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def h_ff(self) -> int:
        """Width of the MLP's inner layer."""
        return self.ff or 4 * self.hidden

    @property
    def llama(self) -> bool:
        """Whether its blocks are Llama's, or a variant of them: RMS norms, rotary positions, a gated MLP, no biases."""
        return self.gated_mlp and not self.bias and (self.norm, self.positions) == ("rmsnorm", "rotary")

    def tokens(self, seq: int) -> int:
        """`seq`, or as many tokens of it as a learned table of positions has rows."""
        return min(seq, self.max_seq) if self.positions == "learned" else seq


def _llama(layers: int, hidden: int, heads: int, vocab: int, **options) -> Shape:
    return Shape(
        layers,
        hidden,
        heads,
        vocab,
        gated_mlp=True,
        bias=False,
        norm="rmsnorm",
        positions="rotary",
        tied_head=False,
        **options,
    )


PRESETS: dict[str, Shape] = {
    # Radford et al. 2019, table 2; heads and vocabulary from the released checkpoints' hparams.json
    "gpt2": Shape(12, 768, 12, 50_257),
    "gpt2-medium": Shape(24, 1024, 16, 50_257),
    "gpt2-large": Shape(36, 1280, 20, 50_257),
    "gpt2-xl": Shape(48, 1600, 25, 50_257),
    # Touvron et al. 2023 (arXiv 2307.09288), table 1 and appendix A.2; widths from the released config.json
    "llama-2-7b": _llama(32, 4096, 32, 32_000, ff=11_008, max_seq=4096),
    "llama-2-13b": _llama(40, 5120, 40, 32_000, ff=13_824, max_seq=4096),
    "llama-2-70b": _llama(80, 8192, 64, 32_000, kv_heads=8, ff=28_672, max_seq=4096),
    # Grattafiori et al. 2024 (arXiv 2407.21783), table 3
    "llama-3-8b": _llama(32, 4096, 32, 128_256, kv_heads=8, ff=14_336, max_seq=8192),
    "llama-3-70b": _llama(80, 8192, 64, 128_256, kv_heads=8, ff=28_672, max_seq=8192),
    "llama-3-405b": _llama(126, 16_384, 128, 128_256, kv_heads=8, ff=53_248, max_seq=131_072),
    # Brown et al. 2020 (arXiv 2005.14165), table 2.1; GPT-2's vocabulary
    "gpt-3-175b": Shape(96, 12_288, 96, 50_257, max_seq=2048),
    # Rajbhandari et al. 2020 (arXiv 1910.02054) give a parameter count; these are the sizes of the 1T model of
    # Narayanan et al. 2021 (arXiv 2104.04473), table 1
    "zero-1t": Shape(128, 25_600, 160, 51_200, max_seq=2048),
}


def preset(name: str) -> Shape:
    """The preset of that name. Raises ValueError that lists the names when there is none."""
    return checks.known("model", name, PRESETS)


def attention_matrices(shape: Shape) -> dict[str, tuple[int, int]]:
    """The matrices of one block's attention, by name: (input width, output width)."""
    h, wide, narrow = shape.hidden, shape.heads * shape.d, shape.kv * shape.d
    latent = shape.features.latent
    if latent is None:
        return {"q": (h, wide), "k": (h, narrow), "v": (h, narrow), "out": (wide, h)}
    queries = shape.heads * (latent.nope + latent.rope)
    matrices = {"q": (h, queries)}
    if latent.q_rank is not None:
        matrices = {"q down": (h, latent.q_rank), "q up": (latent.q_rank, queries)}
    return {
        **matrices,
        "kv down": (h, latent.kv_rank + latent.rope),
        "kv up": (latent.kv_rank, shape.heads * (latent.nope + latent.value)),
        "out": (shape.heads * latent.value, h),
    }


def mlp_matrices(shape: Shape, ff: int) -> dict[str, tuple[int, int]]:
    """The matrices of an MLP, or of an expert, of that width."""
    first = ("up", "gate") if shape.gated_mlp else ("up",)
    return dict.fromkeys(first, (shape.hidden, ff)) | {"down": (ff, shape.hidden)}


@lru_cache(maxsize=64)  # every price and every account asks
def linears(shape: Shape) -> dict[str, tuple[int, int]]:
    """The matrices of one block, by name: (input width, output width). ValueError as in `check_priced`."""
    check_priced(shape)
    return attention_matrices(shape) | mlp_matrices(shape, shape.h_ff)


def check_timed(shape: Shape) -> None:
    """ValueError, in one line, for models whose parameters and FLOPs are counted, and no step of which is priced."""
    labels = shape.features.labels
    if labels is not None:
        head = f"a head of {labels:,} label{'s' * (labels > 1)}" if labels else "no head"
        raise ValueError(
            f"the model has {head}, a kind that is not priced yet: take the language model that it was made from"
        )


def check_priced(shape: Shape, operations: str = "book") -> None:
    """ValueError, in one line, for models without a formula of memory where these operations run them: those of
    `check_timed`, those with latent attention, and, but as transformers' modules run them, those with experts."""
    check_timed(shape)
    if shape.features.latent:
        raise ValueError("the model has latent attention, which is not priced yet: take a model with key-value heads")
    if shape.features.experts and operations != "transformers":
        raise ValueError(
            "the model has experts, whose memory is not priced yet but with Hugging Face's transformers: "
            "use program hf, operations transformers"
        )


def plain(shape: Shape) -> Shape:
    """The shape, if its blocks are GPT's or Llama's, as those of the book's own Transformer. ValueError for others."""
    if replace(shape.features, family="") != LIKE_LLAMA:
        raise ValueError("the book's Transformer has the blocks of GPT and Llama: use a shape without a variant")
    return replace(shape, variant=None) if shape.variant else shape


def unpriced(shape: Shape, operations: str = "book") -> tuple[str, ...]:
    """What of a model is left out of its memory, a phrase each: `parameters` and the step time have it, and no formula
    of bytes of the book's modules or Megatron-LM's. Transformers' are followed operation by operation. A window changes
    no memory of fused attention, which stores no scores."""
    if operations not in ("book", "megatron"):
        return ()
    features = shape.features
    phrases = {
        "the norms after attention and MLP": features.norms == "around",
        "one norm for attention and MLP (two are counted)": features.norms == "shared",
        "attention and MLP side by side (counted one after the other)": features.parallel,
        f"the tanh that caps {' and '.join(features.caps)}": bool(features.caps),
    }
    return tuple(f"the memory of {phrase}" for phrase, there in phrases.items() if there)


def norm_parameters(shape: Shape) -> int:
    """A layer norm has a gain and, with biases, a shift; an RMS norm has a gain."""
    return shape.hidden * (2 if shape.norm == "layernorm" and shape.has_bias("norm") else 1)


def qk_norm_widths(shape: Shape, tp: int = 1) -> tuple[int, ...]:
    """Gains of the norms of queries and of keys on one of tp ranks, empty where there are none."""
    heads = {"none": (), "head": (1, 1), "whole": (shape.heads // tp, max(1, shape.kv // tp))}
    return tuple(n * shape.d for n in heads[shape.features.qk_norm])


def vector_parameters(shape: Shape, tp: int = 1) -> int:
    """Parameters of a block beside its matrices and their biases, on one of tp ranks that share its heads: its norms,
    whole on each, and what belongs to heads."""
    features, latent = shape.features, shape.features.latent
    latent_norms = latent.kv_rank + (latent.q_rank or 0) if latent else 0
    sinks = shape.heads // tp if features.sinks else 0
    return NORMS[features.norms] * norm_parameters(shape) + sum(qk_norm_widths(shape, tp)) + latent_norms + sinks


def _with_biases(shape: Shape, matrices: Mapping[str, tuple[int, int]]) -> int:
    return sum(a * b + b * shape.has_bias(name) for name, (a, b) in matrices.items())


def _dense_layers(shape: Shape) -> int:
    """Layers with an MLP of the model's own width. A shape of fewer layers has fewer of them."""
    experts = shape.features.experts
    return sum(layer < shape.layers for layer in experts.dense) if experts else shape.layers


def _mlp_parameters(shape: Shape) -> tuple[int, int]:
    """Parameters of all layers' MLPs: (in total, in experts that a token does not pass through)."""
    experts = shape.features.experts
    dense = _with_biases(shape, mlp_matrices(shape, shape.h_ff))
    if experts is None:
        return shape.layers * dense, 0
    dense_layers = _dense_layers(shape)
    layers = shape.layers - dense_layers
    one = _with_biases(shape, mlp_matrices(shape, experts.ff))
    shared = _elements(mlp_matrices(shape, experts.shared_ff)) + shape.hidden * experts.shared_gate
    router = _with_biases(shape, {"router": (shape.hidden, experts.count)})
    return (
        dense_layers * dense + layers * (experts.count * one + shared + router),
        layers * (experts.count - experts.active) * one,
    )


def parameters(shape: Shape) -> dict[str, int]:
    """Parameters by part of the model. "attention", "mlp" and "norms" are of all layers together; "head" is 0
    where it is tied to the token table. Experts are in "mlp", and what belongs to heads in "norms"."""
    head = shape.head_width * (shape.hidden + shape.has_bias("head"))
    return {
        "tokens": shape.vocab * shape.hidden,
        "positions": shape.position_rows * shape.hidden,
        "attention": shape.layers * _with_biases(shape, attention_matrices(shape)),
        "mlp": _mlp_parameters(shape)[0],
        "norms": shape.layers * vector_parameters(shape) + norm_parameters(shape),
        "head": 0 if shape.tied_head and shape.features.labels is None else head,
    }


def total_parameters(shape: Shape) -> int:
    """All parameters, each counted once."""
    return sum(parameters(shape).values())


def active_parameters(shape: Shape) -> int:
    """Parameters that one token passes through: all but the experts that its router does not choose."""
    return total_parameters(shape) - _mlp_parameters(shape)[1]


def _elements(matrices: Mapping[str, tuple[int, int]]) -> int:
    return sum(a * b for a, b in matrices.values())


def _mlp_elements(shape: Shape) -> int:
    """Elements of the matrices of all layers' MLPs that a token passes through."""
    experts, dense = shape.features.experts, _elements(mlp_matrices(shape, shape.h_ff))
    if experts is None:
        return shape.layers * dense
    routed = _elements(mlp_matrices(shape, experts.active * experts.ff + experts.shared_ff))
    layer = routed + shape.hidden * (experts.count + experts.shared_gate)
    return _dense_layers(shape) * dense + (shape.layers - _dense_layers(shape)) * layer


def check_run(batch: int, seq: int) -> None:
    """Raise ValueError unless batch (sequences) and seq (tokens each) are whole numbers of at least 1."""
    checks.whole("batch", batch)
    checks.whole("seq", seq)


def check_positions(shape: Shape, seq: int) -> None:
    """Raise ValueError, in one line, where the model's table of positions has fewer rows than seq tokens."""
    if shape.positions == "learned" and seq > shape.max_seq:
        raise ValueError(f"seq {seq:,} is longer than the position table: use at most {shape.max_seq:,}")


def flops(shape: Shape, batch: int, seq: int, checkpointing: str = "none") -> dict[str, int]:
    """Floating-point operations of one step on batch x seq tokens: "forward", "backward", "recompute".

    Matrix multiplications only, two operations a multiply-add; the attention scores are counted in full, not halved
    for the causal mask or a window, as in Narayanan et al. 2021 and Korthikanti et al. 2022 (arXiv 2205.05198, appendix
    A). Of experts those are counted that a token passes through. Backward is twice forward, as where all weights are
    trained (`timing.job.utilization` leaves out the gradients of frozen ones). "full" recomputes every block,
    "selective" the attention core.
    """
    checks.instance("shape", shape, Shape)
    check_run(batch, seq)
    tokens = batch * seq
    latent = shape.features.latent
    score, value = (latent.nope + latent.rope, latent.value) if latent else (shape.d, shape.d)
    core = 2 * tokens * seq * shape.heads * (score + value) * shape.layers  # QK^T and the weighted sum of V
    matrices = 2 * tokens * (shape.layers * _elements(attention_matrices(shape)) + _mlp_elements(shape))
    forward = core + matrices + 2 * tokens * shape.hidden * shape.head_width
    recomputed = {"none": 0, "selective": core, "full": core + matrices}
    if not isinstance(checkpointing, str) or checkpointing not in recomputed:
        raise ValueError(f"checkpointing must be none, selective or full, not {checkpointing!r}")
    return {"forward": forward, "backward": 2 * forward, "recompute": recomputed[checkpointing]}
