"""The shape of a model from its config.json on the Hugging Face Hub, if its blocks are those that are priced.

Names of keys are those of transformers' configurations of llama, mistral, qwen2, qwen3 and gpt2. What is a thousandth
of a model or less is left out: qwen2's biases of q, k and v, qwen3's norms of q and k.
"""

from __future__ import annotations

import json

from scaleout.spec.transformer import Shape, total_parameters

LLAMA = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
GPT2 = ("n_layer", "n_embd", "n_head", "vocab_size")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
KNOWN = ("llama", "mistral", "qwen2", "qwen3", "gpt2")
MORE = ("model_type", "num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings",
        "n_positions", "n_inner")  # fmt: skip
KEYS = tuple(dict.fromkeys((*MORE, *LLAMA, *GPT2, *EXPERTS)))  # all that is read
MOST, DEEPEST = 10**14, 1024  # parameters, and layers


def read(text: str) -> dict:
    """What of a config.json is read. ValueError, in one line, for a text that is none."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("this is no JSON: paste a whole config.json, from { to }") from None
    if not isinstance(config, dict):
        raise ValueError("a config.json is an object, from { to }")
    return {key: config[key] for key in KEYS if config.get(key) is not None}


def shape(text: str) -> Shape:
    """The transformer of a config.json. ValueError, in one line, for what is missing, and for models whose blocks are
    others."""
    config = read(text)
    kind = config.get("model_type")
    if any(key in config for key in EXPERTS):
        raise ValueError("this config.json has experts, which are not priced yet: take a dense model")
    if kind not in KNOWN:
        said = f"is of model_type {str(kind)[:40]!r}" if kind else "lacks model_type"
        raise ValueError(f"this config.json {said}: {', '.join(KNOWN)} are known")
    try:
        found = _gpt2(config) if kind == "gpt2" else _llama(config)
    except ValueError as error:
        raise ValueError(f"this config.json: {error}") from None
    if found.layers > DEEPEST or total_parameters(found) > MOST:
        raise ValueError(f"this config.json is of {found.layers:,} layers and {total_parameters(found):.1e} "
                         f"parameters: at most {DEEPEST:,} and {MOST:.0e} are priced")  # fmt: skip
    return found


def _needs(config: dict, keys: tuple[str, ...]) -> list:
    for key in keys:
        if key not in config:
            raise ValueError(f"a {config['model_type']} lacks {key}")
    return [config[key] for key in keys]


def _llama(config: dict) -> Shape:
    layers, hidden, heads, vocab, ff = _needs(config, LLAMA)
    return Shape(
        layers, hidden, heads, vocab, kv_heads=config.get("num_key_value_heads"), head_dim=config.get("head_dim"),
        ff=ff, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary",
        max_seq=config.get("max_position_embeddings", 8192), tied_head=config.get("tie_word_embeddings", False),
    )  # fmt: skip


def _gpt2(config: dict) -> Shape:
    layers, hidden, heads, vocab = _needs(config, GPT2)
    return Shape(layers, hidden, heads, vocab, ff=config.get("n_inner"), max_seq=config.get("n_positions", 1024),
                 tied_head=config.get("tie_word_embeddings", True))  # fmt: skip
