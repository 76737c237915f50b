"""A model's shape from its config.json: as many parameters as its authors count, or in one line why not."""

import json

import pytest
from cases import each, refused

from scaleout.spec import hugging_face
from scaleout.spec.transformer import PRESETS, total_parameters

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256, "intermediate_size": 14_336,
         "max_position_embeddings": 8192, "tie_word_embeddings": False, "head_dim": None}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50_257}
# The Hub's: Qwen/Qwen2.5-7B, which counts 7,615,616,512 parameters, and mistralai/Mistral-7B-v0.3, 7,248,023,552.
QWEN = {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152_064, "intermediate_size": 18_944, "tie_word_embeddings": False,
        "use_sliding_window": False}  # fmt: skip
MISTRAL = LLAMA | {"model_type": "mistral", "vocab_size": 32_768}


def shape(config):
    return hugging_face.shape(json.dumps(config))


def test_the_books_own_models_are_their_configs():
    assert shape(LLAMA) == PRESETS["llama-3-8b"]
    assert shape(GPT2) == PRESETS["gpt2"]


@pytest.mark.parametrize(("config", "published"), [(QWEN, 7_615_616_512), (MISTRAL, 7_248_023_552)], ids=str)
def test_parameters_are_those_that_the_hub_counts(config, published):
    assert total_parameters(shape(config)) == pytest.approx(published, rel=2e-5)


def test_a_llama_without_key_value_heads_has_as_many_as_heads():
    assert shape({key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}).kv == 32


@each([("", "this is no JSON"), ("{", "this is no JSON"), ("[" * 10**5, "this is no JSON"), ("[]", "is an object"),
       ("{}", "lacks model_type: llama, mistral, qwen2, qwen3, gpt2 are known"),
       ({"model_type": "gemma"}, "this config.json is of model_type 'gemma': llama"),
       ({"model_type": "llama", "hidden_size": 64}, "this config.json: a llama lacks num_hidden_layers"),
       (LLAMA | {"num_local_experts": 8}, "experts, which are not priced yet"),
       (LLAMA | {"hidden_size": "4096"}, "this config.json: hidden must be a whole number"),
       (LLAMA | {"num_attention_heads": 33, "num_key_value_heads": 33}, "33 heads do not divide hidden size 4096"),
       (LLAMA | {"num_hidden_layers": 10**6}, "1,000,000 layers"), (LLAMA | {"vocab_size": 10**12}, "at most 1,024"),
       (LLAMA | {"tie_word_embeddings": "no"}, "tied_head")])  # fmt: skip
def test_what_is_none_is_told_in_one_line(config, said):
    text = config if isinstance(config, str) else json.dumps(config)
    refused(lambda: hugging_face.shape(text), said)
