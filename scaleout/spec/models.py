"""Open models that many people train, by the name that commands and menus take: their config.json, as far as it says
what the model is.

The configurations are those of tests/published/hugging_face_parameters.json, whose parameters were counted on the
models that transformers builds. Only models whose memory and step time are priced are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from scaleout.spec import checks
from scaleout.spec.transformer import PRESETS, Shape


class Model(NamedTuple):
    """An open model: its name in words, and its config.json."""

    name: str
    config: Mapping[str, Any]


MODELS = {
    "llama-3.1-8b": Model("Llama 3.1 8B", {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "intermediate_size": 14336, "vocab_size": 128256, "num_key_value_heads": 8,
        "max_position_embeddings": 131072}),
    "llama-3.2-1b": Model("Llama 3.2 1B", {"model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048,
        "num_attention_heads": 32, "intermediate_size": 8192, "vocab_size": 128256, "num_key_value_heads": 8,
        "head_dim": 64, "tie_word_embeddings": True}),
    "mistral-7b-v0.1": Model("Mistral 7B v0.1", {"model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "intermediate_size": 14336, "vocab_size": 32000, "num_key_value_heads": 8,
        "sliding_window": 4096, "max_position_embeddings": 32768}),
    "mistral-nemo-12b": Model("Mistral Nemo 12B", {"model_type": "mistral", "num_hidden_layers": 40, "hidden_size":
        5120, "num_attention_heads": 32, "intermediate_size": 14336, "vocab_size": 131072, "num_key_value_heads": 8,
        "head_dim": 128, "sliding_window": None}),
    "qwen2-0.5b": Model("Qwen2 0.5B", {"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896,
        "num_attention_heads": 14, "intermediate_size": 4864, "vocab_size": 151936, "num_key_value_heads": 2,
        "tie_word_embeddings": True, "use_sliding_window": False}),
    "qwen2.5-7b": Model("Qwen2.5 7B", {"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584,
        "num_attention_heads": 28, "intermediate_size": 18944, "vocab_size": 152064, "num_key_value_heads": 4,
        "use_sliding_window": False}),
    "qwen2.5-72b": Model("Qwen2.5 72B", {"model_type": "qwen2", "num_hidden_layers": 80, "hidden_size": 8192,
        "num_attention_heads": 64, "intermediate_size": 29568, "vocab_size": 152064, "num_key_value_heads": 8,
        "use_sliding_window": False}),
    "qwen3-0.6b": Model("Qwen3 0.6B", {"model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024,
        "num_attention_heads": 16, "intermediate_size": 3072, "vocab_size": 151936, "num_key_value_heads": 8,
        "head_dim": 128, "tie_word_embeddings": True}),
    "qwen3-8b": Model("Qwen3 8B", {"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096,
        "num_attention_heads": 32, "intermediate_size": 12288, "vocab_size": 151936, "num_key_value_heads": 8,
        "head_dim": 128}),
    "qwen3-32b": Model("Qwen3 32B", {"model_type": "qwen3", "num_hidden_layers": 64, "hidden_size": 5120,
        "num_attention_heads": 64, "intermediate_size": 25600, "vocab_size": 151936, "num_key_value_heads": 8}),
    "gemma-2b": Model("Gemma 2B", {"model_type": "gemma", "num_hidden_layers": 18, "hidden_size": 2048,
        "num_attention_heads": 8, "intermediate_size": 16384, "vocab_size": 256000, "num_key_value_heads": 1,
        "head_dim": 256}),
    "gemma-2-2b": Model("Gemma 2 2B", {"model_type": "gemma2", "num_hidden_layers": 26, "hidden_size": 2304,
        "num_attention_heads": 8, "intermediate_size": 9216, "vocab_size": 256000, "num_key_value_heads": 4}),
    "gemma-2-9b": Model("Gemma 2 9B", {"model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584,
        "num_attention_heads": 16, "intermediate_size": 14336, "vocab_size": 256000, "num_key_value_heads": 8,
        "head_dim": 256}),
    "gemma-2-27b": Model("Gemma 2 27B", {"model_type": "gemma2", "num_hidden_layers": 46, "hidden_size": 4608,
        "num_attention_heads": 32, "intermediate_size": 36864, "vocab_size": 256000, "num_key_value_heads": 16,
        "head_dim": 128}),
    "gemma-3-1b": Model("Gemma 3 1B", {"model_type": "gemma3_text", "num_hidden_layers": 26, "hidden_size": 1152,
        "num_attention_heads": 4, "intermediate_size": 6912, "vocab_size": 262144, "num_key_value_heads": 1, "head_dim":
        256, "sliding_window": 512}),
    "gemma-3-4b": Model("Gemma 3 4B (text)", {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size":
        10240, "num_hidden_layers": 34, "sliding_window": 1024}),
    "phi-3-mini": Model("Phi 3 mini", {"model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072,
        "num_attention_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "sliding_window": 2047}),
    "phi-3-medium": Model("Phi 3 medium", {"model_type": "phi3", "num_hidden_layers": 40, "hidden_size": 5120,
        "num_attention_heads": 40, "intermediate_size": 17920, "vocab_size": 32064, "num_key_value_heads": 10}),
    "phi-4": Model("Phi 4", {"model_type": "phi3", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads":
        40, "intermediate_size": 17920, "vocab_size": 100352, "num_key_value_heads": 10, "max_position_embeddings":
        16384}),
    "phi-4-mini": Model("Phi 4 mini", {"model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072,
        "num_attention_heads": 24, "intermediate_size": 8192, "vocab_size": 200064, "num_key_value_heads": 8,
        "tie_word_embeddings": True, "partial_rotary_factor": 0.75}),
    "smollm2-1.7b": Model("SmolLM2 1.7B", {"model_type": "llama", "num_hidden_layers": 24, "hidden_size": 2048,
        "num_attention_heads": 32, "intermediate_size": 8192, "vocab_size": 49152, "num_key_value_heads": 32,
        "tie_word_embeddings": True, "max_position_embeddings": 8192}),
    "smollm3-3b": Model("SmolLM3 3B", {"model_type": "smollm3", "num_hidden_layers": 36, "hidden_size": 2048,
        "num_attention_heads": 16, "intermediate_size": 11008, "vocab_size": 128256, "num_key_value_heads": 4,
        "no_rope_layer_interval": 4}),
    "olmo-2-7b": Model("OLMo 2 7B", {"model_type": "olmo2", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 100352}),
    "olmo-2-32b": Model("OLMo 2 32B", {"model_type": "olmo2", "num_hidden_layers": 64, "hidden_size": 5120,
        "num_attention_heads": 40, "intermediate_size": 27648, "vocab_size": 100352, "num_key_value_heads": 8}),
    "olmo-3-7b": Model("OLMo 3 7B", {"model_type": "olmo3", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 100278, "sliding_window": 4096}),
    "granite-3.1-8b": Model("Granite 3.1 8B", {"model_type": "granite", "num_hidden_layers": 40, "hidden_size": 4096,
        "num_attention_heads": 32, "intermediate_size": 12800, "vocab_size": 49155, "num_key_value_heads": 8,
        "tie_word_embeddings": True, "embedding_multiplier": 12.0}),
    "glm-4-9b": Model("GLM 4 9B", {"model_type": "glm", "num_hidden_layers": 40, "hidden_size": 4096,
        "num_attention_heads": 32, "intermediate_size": 13696, "vocab_size": 151552, "num_key_value_heads": 2,
        "head_dim": 128, "attention_bias": True}),
    "glm-4-9b-0414": Model("GLM 4 9B 0414", {"model_type": "glm4", "num_hidden_layers": 40, "hidden_size": 4096,
        "num_attention_heads": 32, "intermediate_size": 13696, "vocab_size": 151552, "num_key_value_heads": 2,
        "head_dim": 128, "attention_bias": True}),
    "falcon-7b": Model("Falcon 7B", {"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544,
        "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True, "parallel_attn": True, "bias": False,
        "alibi": False, "new_decoder_architecture": False}),
    "falcon-40b": Model("Falcon 40B", {"model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192,
        "num_attention_heads": 128, "vocab_size": 65024, "num_kv_heads": 8, "new_decoder_architecture": True, "bias":
        False}),
    "falcon-2-11b": Model("Falcon 2 11B", {"model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 4096,
        "num_attention_heads": 32, "vocab_size": 65024, "num_kv_heads": 8, "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 16384, "tie_word_embeddings": False}),
    "pythia-160m": Model("Pythia 160M", {"model_type": "gpt_neox", "num_hidden_layers": 12, "hidden_size": 768,
        "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 50304}),
    "pythia-6.9b": Model("Pythia 6.9B", {"model_type": "gpt_neox", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "intermediate_size": 16384, "vocab_size": 50432}),
    "gpt-neox-20b": Model("GPT-NeoX 20B", {"model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144,
        "num_attention_heads": 64, "intermediate_size": 24576, "vocab_size": 50432}),
    "opt-125m": Model("OPT 125M", {"model_type": "opt", "num_hidden_layers": 12, "hidden_size": 768,
        "num_attention_heads": 12, "ffn_dim": 3072, "vocab_size": 50272, "max_position_embeddings": 2048,
        "word_embed_proj_dim": 768}),
    "opt-6.7b": Model("OPT 6.7B", {"model_type": "opt", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "ffn_dim": 16384, "vocab_size": 50272, "max_position_embeddings": 2048}),
}  # fmt: skip


@lru_cache(maxsize=64)
def shape(name: str) -> Shape:
    """The shape of a model of the book (`transformer.PRESETS`) or of an open one. ValueError
    that lists the names, where there is none."""
    if name in PRESETS:
        return PRESETS[name]
    return Shape.from_config(checks.known("model", name, MODELS).config)
