"""A model's shape from its config.json: as many parameters as its authors count, or in one line why not."""

import json

import pytest
from cases import each, refused

from scaleout.spec import hugging_face
from scaleout.spec.transformer import PRESETS, Shape, flops, parameters, total_parameters

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


# Qwen/Qwen3-32B without its head_dim of 128, which is no 64th of its hidden size. The Hub counts 32,762,123,264.
QWEN3 = {"model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25_600, "num_hidden_layers": 64,
         "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 151_936,
         "tie_word_embeddings": False}  # fmt: skip


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


@each(
    [
        (without(LLAMA, "num_key_value_heads"), 32, 128, 8192),
        (without(LLAMA, "max_position_embeddings"), 8, 128, 2048),
        (LLAMA | {"num_key_value_heads": None}, 32, 128, 8192),
        (LLAMA | {"head_dim": 64}, 8, 64, 8192),
        (without(MISTRAL, "num_key_value_heads"), 8, 128, 8192),
        (MISTRAL | {"num_key_value_heads": None}, 32, 128, 8192),
        (without(MISTRAL, "max_position_embeddings"), 8, 128, 131_072),
        (QWEN, 4, 128, 32_768),
        (without(QWEN | {"num_attention_heads": 64, "hidden_size": 4096}, "num_key_value_heads"), 32, 64, 32_768),
        (QWEN3, 8, 128, 32_768),
        (QWEN3 | {"head_dim": None}, 8, 128, 32_768),
        (QWEN3 | {"head_dim": 80}, 8, 80, 32_768),
        (without(QWEN3, "num_key_value_heads"), 32, 128, 32_768),
    ]
)
def test_where_a_config_is_silent_its_family_speaks(config, kv, head_dim, positions):
    """As transformers 5.24 reads the same: LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config."""
    found = shape(config)
    assert (found.kv, found.d, found.max_seq) == (kv, head_dim, positions)


def test_a_qwen3_without_head_dim_has_the_parameters_that_the_hub_counts():
    assert total_parameters(shape(QWEN3)) == pytest.approx(32_762_123_264, rel=2e-5)
    assert total_parameters(shape(QWEN3 | {"head_dim": 80})) < 0.94 * 32_762_123_264


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel", "MistralForCausalLM"])
def test_a_language_model_by_its_architecture_is_what_it_was(name):
    for architectures in ([name], name, [], None):
        assert shape(LLAMA | {"architectures": architectures}) == shape(LLAMA)


@pytest.mark.parametrize(
    "name",
    [
        "LlamaForSequenceClassification",
        "MistralModel",
        "Qwen2ForRewardModel",
        "Qwen3ForTokenClassification",
        "LlamaForQuestionAnswering",
        "GPT2DoubleHeadsModel",
    ],
)
def test_a_model_with_another_head_is_refused_by_its_name(name):
    for architectures in ([name], name, ["LlamaForCausalLM", name]):
        refused(lambda given=architectures: shape(LLAMA | {"architectures": given}), f"is of a {name}, whose head")


@each(
    [
        ("", "this is not JSON"),
        ("{", "this is not JSON"),
        ("[" * 10**5, "this is not JSON"),
        ("[]", "is an object"),
        ("{}", "lacks model_type: llama, mistral, qwen2, qwen3, gemma, gemma2, "),
        ({"model_type": "gemma3n"}, "this config.json is of model_type 'gemma3n', and not gemma: llama"),
        ({"model_type": "llama", "hidden_size": 64}, "this config.json: a llama lacks num_hidden_layers"),
        (LLAMA | {"num_local_experts": 8}, "this config.json: a llama has no experts, and no num_local_experts"),
        (LLAMA | {"hidden_size": "4096"}, "this config.json: hidden must be a whole number"),
        (LLAMA | {"num_attention_heads": 33, "num_key_value_heads": 33}, "33 heads do not divide hidden size 4096"),
        (LLAMA | {"num_hidden_layers": 10**6}, "1,000,000 layers"),
        (LLAMA | {"vocab_size": 10**12}, "this config.json is of 8.2e+15 parameters: at most 1e+14 are counted"),
        (MISTRAL | {"num_hidden_layers": 10**12}, "1,000,000,000,000 layers are more than the 1,024"),
        ({"model_type": ["llama"]}, "is of model_type \"['llama']\""),
        (LLAMA | {"tie_word_embeddings": "no"}, "tied_head"),
        (LLAMA | {"architectures": 7}, "is of a 7"),
        (LLAMA | {"num_key_value_heads": "8"}, "kv_heads"),
    ]
)
def test_what_is_none_is_told_in_one_line(config, said):
    text = config if isinstance(config, str) else json.dumps(config)
    refused(lambda: hugging_face.shape(text), said)


@each(
    [
        (MISTRAL | {"sliding_window": 4096}, 4096),
        (MISTRAL | {"sliding_window": None}, None),
        (MISTRAL, 4096),
        (QWEN | {"sliding_window": 4096}, None),
        (QWEN | {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 27}, 4096),
        (without(QWEN, "use_sliding_window") | {"sliding_window": 4096}, None),
        (LLAMA | {"sliding_window": "4096", "use_sliding_window": True}, None),
        (QWEN | {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, None),
    ]
)
def test_a_sliding_window_is_read_and_changes_no_count(config, tokens):
    assert Shape.from_config(config).features.window == tokens
    unlimited = shape(config | {"sliding_window": None})
    assert parameters(shape(config)) == parameters(unlimited) and flops(shape(config), 1, 8192) == flops(
        unlimited, 1, 8192
    )


def test_a_byte_order_mark_and_no_experts_are_a_dense_model():
    assert hugging_face.shape("\ufeff" + json.dumps(LLAMA)) == PRESETS["llama-3-8b"]
    assert shape(LLAMA | {"num_experts": 0, "num_local_experts": None}) == PRESETS["llama-3-8b"]
    refused(lambda: shape(LLAMA | {"num_experts": 8}), "a llama has no experts, and no num_experts")
