"""Families of transformers' models: their parameters to the last one, and in one line what is not known of them."""

import json
import math
import sys

import pytest
from cases import each, over, refused
from repo import ROOT

from scaleout.memory.accounts import account
from scaleout.memory.job import accounts, fullest
from scaleout.memory.states import tensor_sizes
from scaleout.spec import config as config_json
from scaleout.spec.families import FAMILIES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, tensors, units
from scaleout.spec.slices import block_parameters, stage_parameters
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape, active_parameters, check_priced, flops, plain, total_parameters
from scaleout.spec.variant import Experts, Latent, Variant

TABLE = json.loads((ROOT / "tests/published/hugging_face_parameters.json").read_text(encoding="utf-8"))
MODELS = TABLE["models"]


def config(name):
    return MODELS[name]["config"]


def priced(shape):
    try:
        check_priced(shape)
    except ValueError:
        return False
    return True


PRICED = [name for name in MODELS if priced(Shape.from_config(config(name)))]


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_that_transformers_builds(name):
    shape = Shape.from_config(config(name))
    assert total_parameters(shape) == MODELS[name]["total"]
    assert active_parameters(shape) == MODELS[name]["active"]
    assert config_json.unread(config(name)) == ()


def test_each_family_has_been_counted():
    assert {row["config"]["model_type"] for row in MODELS.values()} == set(FAMILIES)
    assert len(MODELS) >= 60 and len(PRICED) >= 45 and TABLE["transformers"][0].isdigit()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_transformers_counts_the_same_today(name, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed: its models are counted where it is")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import hugging_face_parameters

    assert hugging_face_parameters.counted(config(name)) == {key: MODELS[name][key] for key in ("total", "active")}


# Published: Mixtral (arXiv 2401.04088: 47B, 13B); DeepSeek V2 and V3 (arXiv 2405.04434: 236B, 21B; arXiv 2412.19437:
# 671B, 37B); Qwen3 (arXiv 2505.09388, table 2: 30B, 3B and 235B, 22B).
@each(
    [
        ("Mixtral 8x7B", 47, 13),
        ("DeepSeek V2", 236, 21),
        ("DeepSeek V3", 671, 37),
        ("Qwen3 235B A22B", 235, 22),
    ]
)
def test_models_with_experts_are_as_large_as_their_papers_say(name, billions, active):
    row = MODELS[name]
    assert (row["total"] / 1e9, row["active"] / 1e9) == pytest.approx((billions, active), rel=0.02)


def test_gpt_oss_without_its_embedding_is_as_active_as_its_paper_says():
    """arXiv 2508.10925, table 1."""
    for name, active in (("gpt-oss 120B", 5.13), ("gpt-oss 20B", 3.61)):
        shape = Shape.from_config(config(name))
        assert (active_parameters(shape) - shape.vocab * shape.hidden) / 1e9 == pytest.approx(active, abs=0.005)


# --- one model, one number, wherever it is counted ------------------------------------------------------------------


@pytest.mark.parametrize("name", PRICED)
def test_rooms_count_the_same_parameters(name):
    shape = Shape.from_config(config(name))
    total = total_parameters(shape)
    assert sum(math.prod(size) for size in tensors(shape).values()) == total
    assert stage_parameters(shape, Layout(), 0, shape.layers) == total
    assert sum(tensor_sizes(shape, Recipe(), Layout())) == total
    assert sum(unit.parameters for unit in units(shape, Sharding(wrap="layer"))) == total


@each([(2,), (4,)])
def test_tensor_parallel_ranks_share_what_belongs_to_heads(tp):
    shape = Shape.from_config(config("olmo2, biases"))
    norms = 2 * shape.hidden
    copies = tp // min(tp, shape.kv)  # of a key-value head
    keys = shape.kv * shape.d * (shape.hidden + 1) * 2 + shape.kv * shape.d
    whole = block_parameters(shape) - norms - shape.hidden  # the bias of out is on each rank
    assert tp * (block_parameters(shape, tp) - norms - shape.hidden) == whole + (copies - 1) * keys


@over(
    name=["qwen3, biases", "gemma3, biases", "olmo2, biases", "opt, no biases", "falcon, one after the other",
          "gpt_neox, no biases of attention"],
    ranks=[("fp32", Layout()), ("bf16-master", Layout(tp=2, sequence_parallel=True)),
           ("autocast-bf16", Layout(dp=4, zero=3))],
)  # fmt: skip
def test_gradients_of_a_step_are_as_many_as_parameters(name, ranks):
    """The walk of a step keeps each gradient that the optimizer then reads."""
    shape, (precision, layout) = Shape.from_config(config(name)), ranks
    one = account(shape, 1, 16, Recipe(precision), layout)
    assert one.moments["optimizer"]["gradients"] == pytest.approx(one.states["gradients"], abs=8 * shape.layers)


# --- FLOPs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_flops_of_the_matrices_are_two_for_each_active_parameter(name):
    """All but the tables that are looked up, norms, biases and sinks; and of a tied head the table."""
    shape = Shape.from_config(config(name))
    forward = {seq: flops(shape, 1, seq)["forward"] for seq in (1, 2)}
    core = (forward[2] - 2 * forward[1]) // 2  # of one token that looks at itself
    looked_up = shape.vocab * shape.hidden * (not (shape.tied_head and shape.features.labels is None))
    active = active_parameters(shape) - looked_up - shape.position_rows * shape.hidden
    assert 0.97 * active <= (forward[1] - core) / 2 <= active
    latent = shape.features.latent
    per_head = latent.nope + latent.rope + latent.value if latent else 2 * shape.d
    assert core == 2 * shape.layers * shape.heads * per_head


# --- files, heads and what is not known ------------------------------------------------------------------------------


def test_a_file_a_folder_and_a_dictionary_are_one_model(tmp_path):
    llama = config("Llama 3.1 8B")
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps(llama), encoding="utf-8")
    for given in (llama, tmp_path, tmp_path / "config.json", str(tmp_path)):
        assert Shape.from_config(given) == Shape.from_config(llama)
    assert Shape.from_config(llama | {"max_position_embeddings": 8192}) == PRESETS["llama-3-8b"]
    assert Shape.from_config(config("GPT-2")) == PRESETS["gpt2"]
    refused(lambda: Shape.from_config(tmp_path / "none.json"), "none.json' is no config.json, and no folder with one")
    refused(lambda: Shape.from_config("x" * 5000), "x' is no config.json")
    refused(lambda: Shape.from_config(7), "a model is a config.json, its folder or a dictionary, not 7")
    (tmp_path / "weights.bin").write_bytes(b"\xff\xfe\x00")
    refused(lambda: Shape.from_config(tmp_path / "weights.bin"), "is no config.json")


MIXTRAL, GEMMA, OPT, FALCON = (config(name) for name in ("Mixtral 8x7B", "Gemma 2 9B", "OPT 125M", "Falcon 7B"))
DEEPSEEK, MOE = config("deepseek_v3, biases"), config("Qwen3 30B A3B")


def without(values, *keys):
    return {key: value for key, value in values.items() if key not in keys}


@each(
    [
        ({"model_type": "llama4"}, "is of model_type 'llama4', and not llama: llama, mistral"),
        ({"model_type": "mamba"}, "is of model_type 'mamba': llama, mistral"),
        ({"model_type": "gemma3", "text_config": {}}, "with a language model inside it: take its text_config"),
        (without(MIXTRAL, "intermediate_size"), "a mixtral lacks intermediate_size"),
        (without(MOE, "num_experts"), "a qwen3_moe lacks num_experts"),
        (without(OPT, "ffn_dim"), "an opt lacks ffn_dim"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "active experts must be a whole number from 1 to 8, not 9"),
        (MIXTRAL | {"num_local_experts": "8"}, "experts must be a whole number"),
        (MOE | {"mlp_only_layers": 3}, "mlp_only_layers must be a list"),
        (OPT | {"do_layer_norm_before": False}, "do_layer_norm_before False is not known, only True"),
        (OPT | {"word_embed_proj_dim": 512}, "word_embed_proj_dim other than hidden_size is not known"),
        (FALCON | {"alibi": True}, "alibi True is not known, only False"),
        (FALCON | {"bias": 1}, "bias must be True or False, not 1"),
        (DEEPSEEK | {"kv_lora_rank": None}, "a deepseek_v3 lacks kv_lora_rank"),
        (DEEPSEEK | {"q_lora_rank": 0}, "q_rank must be a whole number of at least 1, not 0"),
        (GEMMA | {"layer_types": ["full_attention"]}, "layer_types must be a list of 42 kinds"),
        (GEMMA | {"layer_types": ["linear_attention"] * 42}, "layer_types must be one of full_attention, sliding"),
        (GEMMA | {"sliding_window": "4096"}, "window must be a whole number"),
        (GEMMA | {"architectures": ["Gemma2ForRewards"]}, "the head of a Gemma2ForRewards is not known"),
        (GEMMA | {"architectures": ["GPT2DoubleHeadsModel"]}, "the head of a GPT2DoubleHeadsModel is not known"),
        (GEMMA | {"architectures": ["Gemma2Model", "Gemma2ForCausalLM"]}, "architectures of several heads"),
    ]
)
def test_what_is_not_known_is_named_in_one_line(values, said):
    refused(lambda: Shape.from_config(values), said)


def test_fields_that_are_not_read_are_named():
    strange = GEMMA | {"linear_layers": 3, "quantization_config": {"bits": 4}, "nothing": None, "rope_theta": 1e6}
    assert config_json.unread(strange) == ("linear_layers", "quantization_config")
    assert Shape.from_config(strange) == Shape.from_config(GEMMA)


@each(
    [
        (
            "Mixtral 8x7B",
            "the model has experts, whose memory is not priced yet but with Hugging Face's transformers: use",
        ),
        ("a reward model", "the model has a head of 1 label, a kind that is not priced yet: take the language model"),
        ("embeddings", "the model has no head, a kind that is not priced yet: take the language model"),
    ]
)
def test_what_is_counted_only_is_refused_where_it_would_be_priced(name, said):
    shape = Shape.from_config(config(name))
    from scaleout.spec.devices import DEVICES

    refused(lambda: account(shape, 1, 128), said)
    if not shape.features.experts:  # a step of experts is timed
        refused(lambda: Job(shape, 128, DEVICES["h100-sxm"], cluster(1, 1)), said)
        refused(lambda: tensors(shape), said)


TIMED = [name for name in MODELS if Shape.from_config(config(name)).features.labels is None]


@pytest.mark.parametrize("name", [name for name in TIMED if name not in PRICED])
def test_experts_and_latent_attention_are_timed_and_their_memory_is_refused(name):
    """Every door of memory refuses in one line; the parameters that ranks share are those of the model."""
    shape = Shape.from_config(config(name))
    from scaleout.spec.devices import DEVICES

    job = Job(shape, 128, DEVICES["h100-sxm"], cluster(1, 8), layout=Layout(dp=8, zero=3))
    assert job.rank_parameters() == sum(math.prod(size) for size in tensors(shape).values()) == total_parameters(shape)
    for door in (fullest, accounts, lambda one: account(shape, 1, 128, one.recipe, one.layout)):
        refused(lambda door=door: door(job), "not priced yet")


def test_the_books_own_transformer_has_no_variant():
    assert plain(PRESETS["gpt2"]) == PRESETS["gpt2"]
    refused(lambda: plain(Shape.from_config(config("Qwen2.5 7B"))), "use a shape without a variant")


def test_windows_are_where_the_family_has_them():
    def layers(name, **more):
        features = Shape.from_config(config(name) | more).features
        return features.window, features.global_layers

    assert layers("Mistral 7B v0.1") == (4096, ())
    assert layers("Gemma 2 2B") == (4096, tuple(range(1, 26, 2)))
    assert layers("Gemma 3 1B") == (512, (5, 11, 17, 23))
    assert layers("gpt-oss 20B") == (128, tuple(range(1, 24, 2)))
    assert layers("OLMo 3 7B") == (4096, tuple(range(3, 32, 4)))
    assert layers("qwen2, windows in the upper half") == (16, (0, 1))
    assert layers("Qwen2.5 7B") == (None, ())
    kinds = ["sliding_attention"] * 25 + ["full_attention"]
    assert layers("Gemma 3 1B", layer_types=kinds) == (512, (25,))
    assert layers("Gemma 3 1B", layer_types=["full_attention"] * 26) == (None, ())


def test_a_variant_survives_a_file():
    for name in ("Qwen2.5 7B", "Gemma 2 2B", "DeepSeek V2", "falcon, one after the other"):
        shape = Shape.from_config(config(name))
        from dataclasses import asdict

        again = Shape(**json.loads(json.dumps(asdict(shape))))
        assert again == shape and hash(again) == hash(shape)


@each(
    [
        (lambda: Variant(norms="none"), "norms must be one of before, after, around, shared"),
        (lambda: Variant(biases=("q", "x")), "biases must be one of q, k, v, out"),
        (lambda: Variant(window=0), "window must be a whole number of at least 1"),
        (lambda: Variant(experts=8), "experts must be a Experts"),
        (lambda: Experts(8, 9, 64), "active experts must be a whole number from 1 to 8"),
        (lambda: Latent(0, 8, 8, 8), "kv_rank must be a whole number"),
        (lambda: Variant(global_layers=(-1,)), "a layer of global_layers must be"),
        (lambda: Variant(caps=("values",)), "caps must be one of scores, logits"),
        (lambda: Experts(8, 2, 64, dense=(-1,)), "a dense layer must be"),
        (lambda: Shape(2, 64, 4, 512, variant=7), "variant must be a Variant"),
    ]
)
def test_variants_that_cannot_be(make, said):
    refused(make, said)


def test_without_transformers_the_tool_says_what_to_install(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    import hugging_face_parameters

    monkeypatch.setattr(sys, "argv", ["tool", "table.json"])
    assert hugging_face_parameters.main() == 2
    assert "pip install transformers" in capsys.readouterr().err
