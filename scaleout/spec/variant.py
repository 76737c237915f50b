"""In what the blocks of a model differ from GPT's and Llama's: biases, norms, windows, experts, latent attention."""

from __future__ import annotations

from dataclasses import dataclass, fields

from scaleout.spec import checks

# Norms of a block by their place: before attention and before the MLP (GPT-2, Llama), after each of them (OLMo 2, arXiv
# 2501.00656), before and after each (Gemma 2, arXiv 2408.00118), or one before both, which then run side by side
# (Falcon 7B, arXiv 2311.16867).
NORMS = {"before": 2, "after": 2, "around": 4, "shared": 1}
QK_NORMS = ("none", "head", "whole")
MODULES = ("", "granite", "gemma", "phi3", "olmo2", "glm", "gpt_neox", "opt", "falcon", "qwen_moe", "gpt_oss")
CAPS = ("scores", "logits")
ATTENTION, MLP = ("q", "k", "v", "out"), ("up", "gate", "down")
BIASED = (*ATTENTION, "q down", "q up", "kv down", "kv up", *MLP, "router", "norm", "head")


@dataclass(frozen=True)
class Experts:
    """The MLPs of layers with experts (Mixtral, arXiv 2401.04088; DeepSeekMoE, arXiv 2401.06066).

    count: experts of a layer that a router chooses from; active: chosen for each token; ff: width of one. shared_ff:
    width, added up, of those that all tokens pass through; shared_gate: one number per token scales their output
    (Qwen1.5-MoE). dense: layers that have an MLP of the model's own width instead, counted from 0.
    """

    count: int
    active: int
    ff: int
    shared_ff: int = 0
    shared_gate: bool = False
    dense: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _tuples(self)
        checks.whole("experts", self.count)
        checks.whole("active experts", self.active, limit=self.count)
        checks.whole("width of an expert", self.ff)
        checks.whole("width of the shared experts", self.shared_ff, 0)
        checks.flag("shared_gate", self.shared_gate)
        for layer in self.dense:
            checks.whole("a dense layer", layer, 0)


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Keys and values of all heads are made from `kv_rank` numbers per token, queries from `q_rank` (None: from the
    residual stream). A head's queries and keys are `nope` numbers without positions and `rope` with rotary ones, which
    all heads' keys share; its values are `value` numbers.
    """

    kv_rank: int
    nope: int
    rope: int
    value: int
    q_rank: int | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            if entry.name != "q_rank" or self.q_rank is not None:
                checks.whole(entry.name, getattr(self, entry.name))


@dataclass(frozen=True)
class Variant:
    """Each field says "as GPT's and Llama's" where it is left out.

    biases: what has a bias (BIASED), None for all or nothing, by `Shape.bias`. norms: one of NORMS. parallel: attention
        and MLP both read the block's input. qk_norm: RMS norms of queries and keys, of each "head" (Qwen 3) or of the
        "whole" width (OLMo 2). sinks: each head has a learned score that no value belongs to (gpt-oss).
    window: tokens that attention looks back over at most, itself included; global_layers: layers without that limit,
        counted from 0. caps: of "scores" and "logits" those that tanh limits (Gemma 2).
    position_offset: rows of the table of learned positions before that of the first token (2 in OPT). labels: outputs
        of a head that is not the vocabulary's, 0 for a model without one.
    experts, latent: in place of a dense MLP, and of queries, keys and values from the stream.
    family: whose modules of transformers the model has, where their operations are not Llama's or GPT-2's
        (memory/transformers.py).

    Raises ValueError, in one line, for what cannot be.
    """

    biases: tuple[str, ...] | None = None
    norms: str = "before"
    parallel: bool = False
    qk_norm: str = "none"
    sinks: bool = False
    window: int | None = None
    global_layers: tuple[int, ...] = ()
    caps: tuple[str, ...] = ()
    position_offset: int = 0
    labels: int | None = None
    experts: Experts | None = None
    latent: Latent | None = None
    family: str = ""

    def __post_init__(self) -> None:
        _tuples(self)
        checks.one_of("norms", self.norms, tuple(NORMS))
        checks.one_of("qk_norm", self.qk_norm, QK_NORMS)
        checks.one_of("family", self.family, MODULES)
        for name in ("parallel", "sinks"):
            checks.flag(name, getattr(self, name))
        for bias in self.biases or ():
            checks.one_of("biases", bias, BIASED)
        for cap in self.caps:
            checks.one_of("caps", cap, CAPS)
        for layer in self.global_layers:
            checks.whole("a layer of global_layers", layer, 0)
        checks.whole("position_offset", self.position_offset, 0)
        for name, least in (("window", 1), ("labels", 0)):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), least)
        for name, kind in (("experts", Experts), ("latent", Latent)):
            value = getattr(self, name)
            if isinstance(value, dict):
                object.__setattr__(self, name, checks.built(name, kind, value))
            elif value is not None:
                checks.instance(name, value, kind)


def _tuples(record) -> None:
    """Lists, as JSON has them, become tuples. ValueError for what is neither."""
    for entry in fields(record):
        value = getattr(record, entry.name)
        if str(entry.type).startswith("tuple") and (value, entry.name) != (None, "biases"):
            if not isinstance(value, (list, tuple)):
                raise ValueError(f"{entry.name} must be a list, not {checks.said(value)}")
            object.__setattr__(record, entry.name, tuple(value))


LIKE_LLAMA = Variant()
