"""What the blocks of each family of models are, by the keys of its config.json, as transformers builds them.

Each family has what it takes where a config.json is silent (transformers' models/*/configuration_*.py), its own names
of the keys that most families share, and the fields of `Shape` and `Variant` that follow from the rest
(models/*/modeling_*.py). Only models whose parameters have been counted against transformers' own are here
(tests/published/hugging_face_parameters.json).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scaleout.spec import checks
from scaleout.spec.variant import ATTENTION, MLP

Config = Mapping[str, Any]
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
LLAMA = {"gated_mlp": True, "bias": False, "norm": "rmsnorm", "positions": "rotary"}
GPT = {"gated_mlp": False, "bias": True, "norm": "layernorm", "kv_heads": None, "head_dim": None}
LAYER_TYPES = ("full_attention", "sliding_attention")


class Family(NamedTuple):
    """silent: values of the keys that a config.json may leave out. blocks: the fields of Shape and Variant that its
    values give, beside sizes. names: its own names of shared keys. modules: `Variant.family`."""

    silent: dict[str, Any]
    blocks: Callable[[Config], dict[str, Any]]
    names: Mapping[str, str] = {}
    modules: str = ""


def _flag(config: Config, key: str) -> bool:
    checks.flag(key, config[key])
    return config[key]


def _only(config: Config, **allowed: Any) -> None:
    """ValueError, in one line, for a value whose blocks are not known."""
    for key, value in allowed.items():
        if config[key] != value:
            raise ValueError(f"{key} {checks.said(config[key])} is not known, only {value!r}")


def _biases(config: Config, attention: tuple[str, ...] = ATTENTION) -> tuple[str, ...]:
    """Biases of attention's matrices and of the MLP's, where the configuration has them."""
    return attention * _flag(config, "attention_bias") + MLP * ("mlp_bias" in config and _flag(config, "mlp_bias"))


def _window(config: Config, sliding: Callable[[int], bool] = lambda layer: True) -> dict[str, Any]:
    """The window of attention and the layers without one: by `layer_types`, or by the family's rule where the
    configuration is silent."""
    window, layers = config["sliding_window"], config["num_hidden_layers"]
    if window is None:
        return {}
    checks.whole("num_hidden_layers", layers)
    kinds = config.get("layer_types") or [LAYER_TYPES[bool(sliding(layer))] for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ValueError(f"layer_types must be a list of {layers} kinds, one for each layer")
    for kind in kinds:
        checks.one_of("layer_types", kind, LAYER_TYPES)
    if LAYER_TYPES[1] not in kinds:
        return {}
    return {"window": window, "global_layers": tuple(i for i, kind in enumerate(kinds) if kind == LAYER_TYPES[0])}


def _llama(config: Config) -> dict[str, Any]:
    return {**LLAMA, "biases": _biases(config)}


def _mistral(config: Config) -> dict[str, Any]:
    return {**LLAMA, **_window(config)}


def _qwen_window(config: Config) -> dict[str, Any]:
    if not _flag(config, "use_sliding_window"):
        return {}
    checks.whole("max_window_layers", config["max_window_layers"], 0)
    return _window(config, lambda layer: layer >= config["max_window_layers"])


def _qwen2(config: Config) -> dict[str, Any]:
    return {**LLAMA, "biases": ("q", "k", "v"), **_qwen_window(config)}


def _qwen3(config: Config) -> dict[str, Any]:
    return {**LLAMA, "biases": _biases(config), "qk_norm": "head", **_qwen_window(config)}


def _gemma(config: Config, sliding: Callable[[int], bool], qk_norm: str = "none") -> dict[str, Any]:
    caps = {"scores": "attn_logit_softcapping", "logits": "final_logit_softcapping"}
    return {
        **LLAMA,
        "biases": _biases(config),
        "norms": "around",
        "qk_norm": qk_norm,
        "caps": tuple(name for name, key in caps.items() if config[key]),
        **_window(config, sliding),
    }


def _gemma2(config: Config) -> dict[str, Any]:
    return _gemma(config, lambda layer: layer % 2 == 0)


def _gemma3(config: Config) -> dict[str, Any]:
    period = config["sliding_window_pattern"]
    checks.whole("sliding_window_pattern", period)
    return _gemma(config, lambda layer: (layer + 1) % period != 0, "head")


def _smollm3(config: Config) -> dict[str, Any]:
    _only(config, use_sliding_window=False)
    return _llama(config)


def _olmo2(config: Config) -> dict[str, Any]:
    return {**LLAMA, "biases": _biases(config), "norms": "after", "qk_norm": "whole"}


def _olmo3(config: Config) -> dict[str, Any]:
    return _olmo2(config) | _window(config, lambda layer: (layer + 1) % 4 != 0)


def _glm(config: Config) -> dict[str, Any]:
    return {**LLAMA, "biases": _biases(config, ("q", "k", "v"))}


def _glm4(config: Config) -> dict[str, Any]:
    return _glm(config) | {"norms": "around"}


def _gpt_neox(config: Config) -> dict[str, Any]:
    biases = (*ATTENTION * _flag(config, "attention_bias"), *MLP, "norm")
    return {**GPT, "positions": "rotary", "biases": biases, "parallel": _flag(config, "use_parallel_residual")}


def _opt(config: Config) -> dict[str, Any]:
    _only(config, do_layer_norm_before=True, _remove_final_layer_norm=False, layer_norm_elementwise_affine=True)
    if config["word_embed_proj_dim"] not in (None, config["hidden_size"]):
        raise ValueError("word_embed_proj_dim other than hidden_size is not known")
    return {**GPT, "biases": (*(*ATTENTION, *MLP) * _flag(config, "enable_bias"), "norm"), "position_offset": 2}


def _falcon(config: Config) -> dict[str, Any]:
    _only(config, alibi=False)
    new, side_by_side = _flag(config, "new_decoder_architecture"), _flag(config, "parallel_attn")
    norms = config["num_ln_in_parallel_attn"] or 1 + new
    return {
        **GPT,
        "positions": "rotary",
        "kv_heads": config["num_kv_heads"] if new else 1 if _flag(config, "multi_query") else None,
        "biases": (*(*ATTENTION, *MLP) * _flag(config, "bias"), "norm"),
        "norms": "shared" if side_by_side and norms == 1 else "before",
        "parallel": side_by_side,
    }


# --- experts ---------------------------------------------------------------------------------------------------------


def _mixtral(config: Config) -> dict[str, Any]:
    experts = {"count": config["num_local_experts"], "active": config["num_experts_per_tok"]}
    return _mistral(config) | {"experts": experts | {"ff": config["intermediate_size"]}}


def _qwen_experts(config: Config) -> dict[str, Any]:
    """The experts of Qwen's models, in all layers but `mlp_only_layers` and those between two sparse ones."""
    layers, step, dense = config["num_hidden_layers"], config["decoder_sparse_step"], config["mlp_only_layers"]
    for key in ("num_hidden_layers", "decoder_sparse_step"):
        checks.whole(key, config[key])
    checks.instance("mlp_only_layers", dense, list)
    return {
        "count": config["num_experts"],
        "active": config["num_experts_per_tok"],
        "ff": config["moe_intermediate_size"],
        "dense": tuple(layer for layer in range(layers) if layer in dense or (layer + 1) % step),
    }


def _qwen2_moe(config: Config) -> dict[str, Any]:
    shared = {"shared_ff": config["shared_expert_intermediate_size"], "shared_gate": True}
    biases = ("q", "k", "v") * _flag(config, "qkv_bias")
    return {**LLAMA, "biases": biases, **_qwen_window(config), "experts": _qwen_experts(config) | shared}


def _qwen3_moe(config: Config) -> dict[str, Any]:
    window = _window(config) if _flag(config, "use_sliding_window") else {}
    experts = _qwen_experts(config)
    return {**LLAMA, "biases": _biases(config), "qk_norm": "head", "experts": experts, **window}


def _deepseek(config: Config) -> dict[str, Any]:
    _only(config, mlp_bias=False)
    whole = ("num_hidden_layers", "moe_intermediate_size", "n_shared_experts", "qk_nope_head_dim", "qk_rope_head_dim")
    for key in whole:
        checks.whole(key, config[key])
    checks.whole("first_k_dense_replace", config["first_k_dense_replace"], 0)
    first, ff = config["first_k_dense_replace"], config["moe_intermediate_size"]
    low_rank = ("q down",) if config["q_lora_rank"] is not None else ()
    return {
        **LLAMA,
        "kv_heads": None,
        "head_dim": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "biases": (*low_rank, "kv down", "out") * _flag(config, "attention_bias"),
        "experts": {
            "count": config["n_routed_experts"],
            "active": config["num_experts_per_tok"],
            "ff": ff,
            "shared_ff": ff * config["n_shared_experts"],
            "dense": tuple(range(min(first, config["num_hidden_layers"]))),
        },
        "latent": {
            "kv_rank": config["kv_lora_rank"],
            "nope": config["qk_nope_head_dim"],
            "rope": config["qk_rope_head_dim"],
            "value": config["v_head_dim"],
            "q_rank": config["q_lora_rank"],
        },
    }


def _gpt_oss(config: Config) -> dict[str, Any]:
    experts = {"count": config["num_local_experts"], "active": config["num_experts_per_tok"]}
    return {
        **LLAMA,
        "biases": (*ATTENTION * _flag(config, "attention_bias"), *MLP, "router"),
        "sinks": True,
        "experts": experts | {"ff": config["intermediate_size"]},
        **_window(config, lambda layer: layer % 2 == 0),
    }


# --- by model_type ---------------------------------------------------------------------------------------------------

_ANY = {"num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048, "tie_word_embeddings": False}
_NO_BIAS = {"attention_bias": False}
_BIAS = {"attention_bias": False, "mlp_bias": False}
_QWEN = _ANY | {"max_position_embeddings": 32_768, "use_sliding_window": False, "max_window_layers": 28}
_QWEN_MOE = {"decoder_sparse_step": 1, "mlp_only_layers": []}
_GEMMA = _ANY | _NO_BIAS | {"head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True}
_GEMMA2 = _GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 4096}
_GEMMA3 = _GEMMA | {"max_position_embeddings": 131_072, "attn_logit_softcapping": None, "final_logit_softcapping": None,
                    "sliding_window": 4096, "sliding_window_pattern": 6, "num_attention_heads": 8,
                    "num_key_value_heads": 4, "vocab_size": 262_208}  # fmt: skip
_GLM = _ANY | {"attention_bias": True, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131_072}
_DEEPSEEK = _ANY | _BIAS | {"q_lora_rank": 1536, "first_k_dense_replace": 0, "n_shared_experts": 2}

FAMILIES: dict[str, Family] = {
    "llama": Family(_ANY | _BIAS, _llama),
    "mistral": Family(_ANY | {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
                      _mistral),
    "qwen2": Family(_QWEN | {"num_key_value_heads": 32, "sliding_window": 4096}, _qwen2),
    "qwen3": Family(_QWEN | _NO_BIAS | {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096}, _qwen3),
    "gemma": Family(_GEMMA | {"num_key_value_heads": 16}, _llama, modules="gemma"),
    "gemma2": Family(_GEMMA2 | {"num_key_value_heads": 4}, _gemma2, modules="gemma"),
    "gemma3_text": Family(_GEMMA3, _gemma3, modules="gemma"),
    "phi3": Family(_ANY | {"max_position_embeddings": 4096, "sliding_window": None}, _mistral,
                   modules="phi3"),
    "olmo2": Family(_ANY | _NO_BIAS, _olmo2, modules="olmo2"),
    "olmo3": Family(_ANY | _NO_BIAS | {"sliding_window": 4096}, _olmo3, modules="olmo2"),
    "smollm3": Family(_ANY | _BIAS | {"num_key_value_heads": 4, "max_position_embeddings": 32_768,
                                      "tie_word_embeddings": True, "use_sliding_window": False}, _smollm3),
    "granite": Family(_ANY | _BIAS, _llama, modules="granite"),
    "glm": Family(_GLM, _glm, modules="glm"),
    "glm4": Family(_GLM, _glm4, modules="glm"),
    "gpt2": Family(_ANY | {"max_position_embeddings": 1024, "tie_word_embeddings": True, "intermediate_size": None},
                   lambda config: GPT,
                   {"n_layer": "num_hidden_layers", "n_embd": "hidden_size", "n_head": "num_attention_heads",
                    "n_positions": "max_position_embeddings", "n_inner": "intermediate_size"}),
    "gpt_neox": Family(_ANY | {"attention_bias": True, "use_parallel_residual": True}, _gpt_neox,
                       modules="gpt_neox"),
    "opt": Family(_ANY | {"tie_word_embeddings": True, "do_layer_norm_before": True, "_remove_final_layer_norm": False,
                          "layer_norm_elementwise_affine": True, "word_embed_proj_dim": None, "enable_bias": True},
                  _opt, {"ffn_dim": "intermediate_size"}, "opt"),
    "falcon": Family(_ANY | {"tie_word_embeddings": True, "alibi": False, "new_decoder_architecture": False,
                             "multi_query": True, "parallel_attn": True, "bias": False, "num_kv_heads": None,
                             "num_ln_in_parallel_attn": None, "intermediate_size": None},
                     _falcon, {"ffn_hidden_size": "intermediate_size"}, "falcon"),
    "mixtral": Family(_ANY | {"num_key_value_heads": 8, "sliding_window": None, "num_local_experts": 8,
                              "num_experts_per_tok": 2, "max_position_embeddings": 131_072}, _mixtral),
    "qwen2_moe": Family(_QWEN | _QWEN_MOE | {"num_key_value_heads": 16, "qkv_bias": True, "sliding_window": 4096},
                        _qwen2_moe, modules="qwen_moe"),
    "qwen3_moe": Family(_QWEN | _QWEN_MOE | _NO_BIAS | {"num_key_value_heads": 4, "sliding_window": 4096}, _qwen3_moe,
                        modules="qwen_moe"),
    "deepseek_v2": Family(_DEEPSEEK, _deepseek),
    "deepseek_v3": Family(_DEEPSEEK | {"first_k_dense_replace": 3, "n_shared_experts": 1,
                                       "max_position_embeddings": 4096}, _deepseek),
    "gpt_oss": Family(_ANY | {"attention_bias": True, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
                              "max_position_embeddings": 131_072}, _gpt_oss, modules="gpt_oss"),
}  # fmt: skip
