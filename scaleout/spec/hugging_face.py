"""The shape of a model from its config.json on the Hugging Face Hub, if the book can model its blocks.

Names of keys are those of transformers' configurations of llama, mistral, qwen2, qwen3 and gpt2. What is a thousandth
of a model or less is left out: qwen2's biases of q, k and v, qwen3's norms of q and k. So is a sliding window
(`window`): attention is priced over all tokens before.
"""

from __future__ import annotations

import json

from scaleout.spec import checks
from scaleout.spec.transformer import Shape, total_parameters

LLAMA = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
GPT2 = ("n_layer", "n_embd", "n_head", "vocab_size")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
# What a family takes where its config.json is silent, as its configuration class in transformers 5.24 has it
# (models/*/configuration_*.py): key-value heads (None: as many as heads), width of a head (None: hidden / heads),
# positions. A Qwen3 of hidden size 5,120 with 64 heads has heads of 128, and not of 80.
SILENT: dict[str, dict[str, int | None]] = {
    "llama": {"num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048},
    "mistral": {"num_key_value_heads": 8, "head_dim": None, "max_position_embeddings": 131_072},
    "qwen2": {"num_key_value_heads": 32, "head_dim": None, "max_position_embeddings": 32_768},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32_768},
}
KNOWN = (*SILENT, "gpt2")
HEADS = ("ForCausalLM", "LMHeadModel")  # ends of the architectures whose head is as wide as the vocabulary
OPTIONAL = ("model_type", "architectures", "num_key_value_heads", "head_dim", "max_position_embeddings",
        "tie_word_embeddings", "n_positions", "n_inner", "sliding_window", "use_sliding_window")  # fmt: skip
KEYS = tuple(dict.fromkeys((*OPTIONAL, *LLAMA, *GPT2, *EXPERTS)))  # all that is read
MOST_PARAMETERS, DEEPEST = 10**14, 1024  # parameters, and layers


def read(text: str) -> dict:
    """What of a config.json is read. ValueError, in one line, for a text that is none."""
    try:
        config = json.loads(text.lstrip("\ufeff"))  # a byte-order mark, as some editors write it
    except (ValueError, RecursionError):
        raise ValueError("this is not JSON: paste a whole config.json, from { to }") from None
    if not isinstance(config, dict):
        raise ValueError("a config.json is an object, from { to }")
    values = {key: config[key] for key in KEYS if config.get(key) is not None}
    if "num_key_value_heads" in config:  # null is as many as heads, and not what the family has where it is silent
        values.setdefault("num_key_value_heads", None)
    return values


def shape(text: str) -> Shape:
    """The transformer of a config.json. ValueError, in one line, for what is missing, and for models whose blocks are
    others."""
    config = read(text)
    kind = config.get("model_type")
    if any(config.get(key) for key in EXPERTS):  # some dense ones say 0
        raise ValueError("this config.json has experts, which are not priced yet: take a dense model")
    if kind not in KNOWN:
        reason = f"is of model_type {str(kind)[:40]!r}" if kind else "lacks model_type"
        raise ValueError(f"this config.json {reason}: {', '.join(KNOWN)} are known")
    _check_head(config.get("architectures", []))
    try:
        model = _gpt2(config) if kind == "gpt2" else _llama(config)
    except ValueError as error:
        raise ValueError(f"this config.json: {error}") from None
    if model.layers > DEEPEST or total_parameters(model) > MOST_PARAMETERS:
        raise ValueError(
            f"this config.json is of {model.layers:,} layers and {total_parameters(model):.1e} "
            f"parameters: at most {DEEPEST:,} and {MOST_PARAMETERS:.0e} are priced"
        )
    return model


def window(text: str) -> int | None:
    """Tokens that layers of the model look back over at most, None where they look back over all. qwen's say so apart
    (`use_sliding_window` of transformers' Qwen2Config, False where it is silent)."""
    config = read(text)
    used = config.get("use_sliding_window", config.get("model_type") == "mistral")
    tokens = config.get("sliding_window")
    return tokens if used and checks.is_whole(tokens) else None


def _check_head(architectures: object) -> None:
    """ValueError for a model whose head is another than a language model's: a reward model's, a classifier's, none."""
    names = architectures if isinstance(architectures, list) else [architectures]
    wrong = next((str(name)[:60] for name in names if not str(name).endswith(HEADS)), None)
    if wrong:
        raise ValueError(
            f"this config.json is of a {wrong}, whose head is not the vocabulary's: language models "
            f"(...{HEADS[0]}) are priced, so paste that of the one it was made from"
        )


def _needs(config: dict, keys: tuple[str, ...]) -> list:
    for key in keys:
        if key not in config:
            raise ValueError(f"a {config['model_type']} lacks {key}")
    return [config[key] for key in keys]


def _llama(config: dict) -> Shape:
    layers, hidden, heads, vocab, ff = _needs(config, LLAMA)
    config = SILENT[config["model_type"]] | config
    return Shape(
        layers,
        hidden,
        heads,
        vocab,
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        ff=ff,
        gated_mlp=True,
        bias=False,
        norm="rmsnorm",
        positions="rotary",
        max_seq=config["max_position_embeddings"],
        tied_head=config.get("tie_word_embeddings", False),
    )


def _gpt2(config: dict) -> Shape:
    layers, hidden, heads, vocab = _needs(config, GPT2)
    return Shape(
        layers,
        hidden,
        heads,
        vocab,
        ff=config.get("n_inner"),
        max_seq=config.get("n_positions", 1024),
        tied_head=config.get("tie_word_embeddings", True),
    )
