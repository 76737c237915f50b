"""Models with experts as transformers runs them: the stored table, its predictions made again, and what is refused."""

import json

import pytest
from cases import each, over, refused
from repo import ROOT

from scaleout.memory.accounts import account
from scaleout.memory.mesh_peaks import Peaks, ends_of
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape, total_parameters

TABLE = json.loads((ROOT / "tests/published/hugging_face_experts.json").read_text(encoding="utf-8"))
SHAPES = {name: Shape.from_config(config) for name, config in TABLE["configs"].items()}


def recipe(row):
    values = (row["attention"], row["checkpointing"])
    return Recipe(row["precision"], attention=values[0], checkpointing=values[1], operations="transformers")


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: "-".join(list(row.values())[:4]))
def test_the_predictions_are_todays(row):
    moments = account(SHAPES[row["model"]], TABLE["batch"], TABLE["seq"], recipe(row)).moments
    assert {moment: sum(kinds.values()) for moment, kinds in moments.items()} == row["predicted"]


def test_how_far_off_it_is():
    """Of the peak, and of each moment of the step."""
    off = [abs(max(row["predicted"].values()) / max(row["measured"].values()) - 1) for row in TABLE["rows"]]
    families = {config["model_type"] for config in TABLE["configs"].values()}
    assert len(off) == 54 and families == {"mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"}
    assert max(off) < 5e-4 and sorted(off)[27] < 1e-4
    for row in TABLE["rows"]:
        for moment, size in row["measured"].items():
            assert abs(row["predicted"][moment] / size - 1) < 0.02, (row, moment)


@each(list(SHAPES))
def test_states_are_of_all_experts(name):
    states = account(SHAPES[name], 1, 128, Recipe("bf16", operations="transformers")).states
    total = total_parameters(SHAPES[name])
    for kind, width in (("weights", 2), ("gradients", 2), ("optimizer", 4)):
        assert states[kind] == pytest.approx(width * total, rel=1e-6)


@over(name=list(SHAPES), checkpointing=["none", "full"], zero=[0, 3])
def test_what_a_step_saves_its_backward_frees(name, checkpointing, zero):
    """Whole or sharded; and the search's formula has the peak of it, or a little more."""
    shape, layout = SHAPES[name], Layout(dp=8, zero=zero)
    made = Recipe("bf16", checkpointing=checkpointing, operations="transformers", gradients="kept")
    found = account(shape, 1, 512, made, layout)
    assert found.moments["optimizer"]["activations"] == (0 if zero else 2 * 8 * 512)  # FSDP's are without the batch
    peak, _ = Peaks(shape, 512).peak(1, made, layout, ends_of(layout, [shape.layers]))
    assert found.peak_bytes * 0.97 < peak < found.peak_bytes * (1.4 if zero else 1.1)


def test_tokens_times_chosen_experts_are_what_a_layer_saves():
    """Of bf16 rows: the input, gate and up, the activation and the product, and the output, for each chosen expert."""
    config = TABLE["configs"]["Mixtral"]
    more = Shape.from_config(config | {"num_experts_per_tok": 3})
    shape, made = SHAPES["Mixtral"], Recipe("bf16", operations="transformers")
    saved = [account(one, 1, 512, made).moments["forward"]["activations"] for one in (shape, more)]
    h, f, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    rows = layers * 512 * 2 * (2 * h + 4 * f)
    assert saved[1] - saved[0] == pytest.approx(rows, rel=0.03)


@each(
    [
        ({"operations": "book"}, "use program hf, operations transformers"),
        ({"adapter": "lora"}, "the memory of a model with experts is not priced with adapters"),
        ({"optimizer": "muon"}, "the memory of a model with experts is not priced with muon"),
    ]
)
def test_what_is_not_priced_is_refused(options, said):
    made = Recipe("bf16", **{"operations": "transformers"} | options)
    refused(lambda: account(SHAPES["Mixtral"], 1, 128, made), said)


def test_sinks_are_priced_without_flash_attn():
    made = Recipe("bf16", attention="flash", operations="transformers")
    refused(lambda: account(SHAPES["gpt-oss"], 1, 128, made), "not priced with flash-attn with sinks")
