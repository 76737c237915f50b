"""Fine-tuning with adapters: the account beside PEFT's models, and what a choice of the recipe changes."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from cases import refused

from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes
from scaleout.memory.job import fullest
from scaleout.memory.operations import MODULES
from scaleout.memory.states import FUSED, GATE_UP, QKV, adapter_parameters, states, tensor_shapes
from scaleout.memory.traces import Steps
from scaleout.spec import models
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape

PUBLISHED = Path(__file__).parents[1] / "published"
TRUTH = json.loads((PUBLISHED / "adapters_memory.json").read_text(encoding="utf-8"))
SEVEN = PRESETS["llama-2-7b"]
LORA = Recipe("autocast-bf16", adapter="lora", operations="transformers")


def of(row: dict) -> tuple[int, int]:
    """(predicted, measured) bytes of a row of the table."""
    shape = Shape.from_config(TRUTH["configs"][row["model"]])
    return account(shape, TRUTH["batch"], TRUTH["seq"], Recipe(**row["recipe"])).peak_bytes, row["measured"]


def test_the_account_is_that_of_peft_and_bitsandbytes():
    """Real models of transformers with PEFT's adapters, on fake tensors: tools/adapters_memory.py."""
    assert len(TRUTH["rows"]) >= 45
    errors = []
    for row in TRUTH["rows"]:
        predicted, seen = of(row)
        assert predicted == row["predicted"], row
        errors.append(abs(predicted / seen - 1))
    assert median(errors) < 1e-6 and max(errors) < 3e-5


def test_the_table_tries_what_changes_memory():
    recipes = [Recipe(**row["recipe"]) for row in TRUTH["rows"]]
    for name, values in {
        "adapter": {"lora", "qlora"},
        "adapter_targets": {"all", "q+v", "attention", "mlp"},
        "adapter_dtype": {"weight", "fp32"},
        "unquantized": {"compute", "fp32"},
        "double_quantization": {True, False},
        "checkpointing": {"none", "full"},
        "attention": {"sdpa", "naive"},
        "precision": {"autocast-bf16", "bf16", "fp32"},
    }.items():
        assert {getattr(recipe, name) for recipe in recipes} == values
    assert len({recipe.adapter_rank for recipe in recipes}) >= 3 and any(recipe.adapter_dropout for recipe in recipes)


def test_targets_choose_the_matrices():
    pairs = {"q": (4096, 4096), "v": (4096, 4096)}
    some = replace(LORA, adapter_targets="q+v", adapter_rank=8)
    assert adapter_parameters(SEVEN, some) * 32 == 4_194_304 == 32 * sum(8 * (a + b) for a, b in pairs.values())
    each = [adapter_parameters(SEVEN, replace(LORA, adapter_targets=name)) for name in ("attention", "mlp", "all")]
    assert each[0] + each[1] == each[2]
    refused(lambda: states(PRESETS["gpt2"], replace(LORA, adapter_targets="gate"), Layout()), "are no matrices of this")


def test_matrices_that_are_one_linear_layer_have_one_adapter():
    """Phi 3's qkv_proj and gate_up_proj, GPT-2's c_attn: as the modules of these families have them."""
    for family, modules in MODULES.items():
        assert FUSED.get(family, ()) == (QKV,) * bool(modules.qkv) + (GATE_UP,) * modules.gate_up
    hidden = PRESETS["gpt2"].hidden
    one = tensor_shapes(PRESETS["gpt2"], LORA, Layout()).blocks[:2]
    assert one == [(16, hidden), (3 * hidden, 16)]
    refused(lambda: states(PRESETS["gpt2"], replace(LORA, adapter_targets="q+v"), Layout()), "use all")


@pytest.mark.parametrize("targets", ["all", "mlp", "down", "out", "v+down", "q+k+v"])
@pytest.mark.parametrize("model", ["llama-2-7b", "phi-4", "mistral-7b-v0.1"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_whatever_is_adapted_what_a_step_saves_its_backward_frees(model, targets, checkpointing):
    """Angles and masks too, which all layers share, and of which the first saves none where nothing before its
    rotation is trained."""
    recipe = Recipe("bf16", adapter="lora", adapter_targets=targets, checkpointing=checkpointing)
    moments = account(models.shape(model), 2, 8192, replace(recipe, operations="transformers")).moments
    assert moments["optimizer"]["activations"] == moments["embedding"]["activations"] == 2 * 8192 * 2 * 8
    assert moments["optimizer"]["logits"] == 0 and all(n >= 0 for kinds in moments.values() for n in kinds.values())


def test_adapters_in_fp32_have_gradients_and_states_in_fp32():
    half = states(SEVEN, Recipe("bf16", adapter="lora"), Layout())
    wide = states(SEVEN, Recipe("bf16", adapter="lora", adapter_dtype="fp32"), Layout())
    trained = half["gradients"] // 2
    assert wide["gradients"] == 4 * trained and wide["optimizer"] == 2 * half["optimizer"] == 8 * trained
    assert wide["weights"] - half["weights"] == 2 * trained


def test_a_four_bit_matmul_that_keeps_its_input_needs_more():
    """bitsandbytes before its pull request 1270. What adapters do not keep anyway: all inputs of a model whose adapters
    stand beside q and v alone, and the input of q, k and v, which the adapters read after dropout."""
    old = Recipe("bf16", adapter="qlora", adapter_targets="q+v", adapter_dropout=0.1, operations="transformers")
    tokens = 2 * 1024
    new, kept = (account(SEVEN, 2, 1024, replace(old, inputs_kept=keeps)).moments for keeps in (False, True))
    hidden, ff = SEVEN.hidden, SEVEN.h_ff
    # inputs of q, k and v, of gate and up, and of down; the input of out is attention's output, which is there
    each = 2 * tokens * (2 * hidden + ff)
    # the first block's norm has no gradient, but its matmuls are those of the others
    assert kept["loss"]["activations"] - new["loss"]["activations"] == pytest.approx(32 * each, rel=0.02)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_four_bit_weight_is_there_in_16_bits_for_one_matmul(phase):
    """Of one token nothing else is large."""
    recipe = Recipe("bf16", adapter="qlora", adapter_rank=1, operations="transformers")
    held = most = 0
    for what, kind, size in Steps(Sizes(SEVEN, 1, 1, recipe, Layout())).layer(phase, 1).events:
        if kind == "temporaries":
            held += size if what == "hold" else -size
            most = max(most, held)
    assert 0 <= most - 4096 * 11_008 * 2 < 10**6


def test_released_gradients_are_one_tensor_and_offloaded_activations_a_few_blocks():
    shape, recipe = PRESETS["llama-3-8b"], Recipe("bf16", fused_update=True, checkpointing="full")
    for operations in ("book", "transformers"):
        plain = account(shape, 1, 1024, replace(recipe, operations=operations))
        released = account(shape, 1, 1024, replace(recipe, operations=operations, gradients="released"))
        assert released.states["gradients"] == 2 * shape.vocab * shape.hidden < plain.states["gradients"] / 10
        assert released.moments["optimizer"]["gradients"] == 0
        assert released.peak_bytes < plain.peak_bytes - 0.8 * plain.states["gradients"]
        offloaded = account(shape, 1, 1024, replace(recipe, operations=operations, activation_offload=True))
        less = plain.moments["loss"]["activations"] - offloaded.moments["loss"]["activations"]
        assert less == (shape.layers - 5) * 2 * 1024 * shape.hidden


def test_paged_states_are_the_hosts():
    recipe = Recipe("bf16", "adamw-8bit", checkpointing="full")
    plain, paged = (account(SEVEN, 1, 512, replace(recipe, paged=on)) for on in (False, True))
    moved = paged.host["optimizer"]
    assert moved + paged.states["optimizer"] == plain.states["optimizer"] and moved > 0.99 * plain.states["optimizer"]
    assert plain.peak_bytes - paged.peak_bytes == moved


def test_states_that_are_offloaded_are_not_paged_once_more():
    """A node of 8 H100 whose host has all states: none of them is left on the GPU to be taken away, so that adapters of
    a higher rank need no less memory."""
    recipe = replace(LORA, precision="bf16", adapter="qlora", optimizer="adamw-8bit", paged=True, checkpointing="full")
    peaks = []
    for rank in (8, 64, 256):
        job = Job(
            SEVEN,
            512,
            DEVICES["h100-sxm"],
            cluster(1, 8),
            1,
            Layout(dp=8, zero=3),
            replace(recipe, adapter_rank=rank),
            PROGRAMS["huggingface"],
            Replicas(offload="parameters"),
        )
        found = fullest(job)
        assert min(min(kinds.values()) for kinds in found.moments.values()) == 0
        assert found.host["optimizer"] > 0
        peaks.append(found.peak_bytes)
    assert peaks == sorted(peaks)


def test_ligers_kernels_need_less_than_transformers_own():
    recipe = Recipe("bf16", fused_update=True, operations="transformers", loss="chunked")
    own, liger = (account(SEVEN, 1, 2048, replace(recipe, operations=name)) for name in ("transformers", "liger"))
    saved = [found.moments["forward"]["activations"] // 32 for found in (own, liger)]
    tokens, hidden, ff = 2048, SEVEN.hidden, SEVEN.h_ff
    # norms save their input in fp32 and what they normalised, and the MLP the activation: Liger's save neither
    assert saved[0] - saved[1] == pytest.approx(2 * tokens * (2 * 2 * hidden + ff), rel=0.06)
    assert sum(liger.moments["block"].values()) < sum(own.moments["block"].values())
