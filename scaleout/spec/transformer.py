"""The shape of a dense decoder-only transformer, its parameters and its floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.spec import checks


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

    def __post_init__(self) -> None:
        self._check_types()
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
        """Whether its blocks are Llama's: RMS norms, rotary positions, a gated MLP, no biases."""
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


def linears(shape: Shape) -> dict[str, tuple[int, int]]:
    """The matrices of one block, by name: (input width, output width)."""
    h, wide, narrow = shape.hidden, shape.heads * shape.d, shape.kv * shape.d
    widths = {"q": (h, wide), "k": (h, narrow), "v": (h, narrow), "out": (wide, h), "up": (h, shape.h_ff)}
    if shape.gated_mlp:
        widths["gate"] = (h, shape.h_ff)
    return {**widths, "down": (shape.h_ff, h)}


def norm_parameters(shape: Shape) -> int:
    """A layer norm has a gain and, with biases, a shift; an RMS norm has a gain."""
    return shape.hidden * (2 if shape.norm == "layernorm" and shape.bias else 1)


def parameters(shape: Shape) -> dict[str, int]:
    """Parameters by part of the model. "attention", "mlp" and "norms" are of all layers together; "head" is 0
    where it is tied to the token table."""
    sizes = {name: a * b + (b if shape.bias else 0) for name, (a, b) in linears(shape).items()}
    attention = sum(sizes[name] for name in ("q", "k", "v", "out"))
    norm = norm_parameters(shape)
    return {
        "tokens": shape.vocab * shape.hidden,
        "positions": shape.max_seq * shape.hidden if shape.positions == "learned" else 0,
        "attention": shape.layers * attention,
        "mlp": shape.layers * (sum(sizes.values()) - attention),
        "norms": (2 * shape.layers + 1) * norm,
        "head": 0 if shape.tied_head else shape.vocab * shape.hidden,
    }


def total_parameters(shape: Shape) -> int:
    """All parameters, each counted once."""
    return sum(parameters(shape).values())


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
    for the causal mask, as in Narayanan et al. 2021 and Korthikanti et al. 2022 (arXiv 2205.05198, appendix A).
    Backward is twice forward. "full" recomputes every block, "selective" the attention core.
    """
    checks.instance("shape", shape, Shape)
    check_run(batch, seq)
    tokens = batch * seq
    core = 2 * 2 * tokens * seq * shape.heads * shape.d * shape.layers  # QK^T and the weighted sum of V
    matrices = 2 * tokens * sum(a * b for a, b in linears(shape).values()) * shape.layers
    forward = core + matrices + 2 * tokens * shape.hidden * shape.vocab
    recomputed = {"none": 0, "selective": core, "full": core + matrices}
    if not isinstance(checkpointing, str) or checkpointing not in recomputed:
        raise ValueError(f"checkpointing must be none, selective or full, not {checkpointing!r}")
    return {"forward": forward, "backward": 2 * forward, "recompute": recomputed[checkpointing]}
