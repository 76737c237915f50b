"""Open models by name: their configurations are the published ones, and each is priced."""

import json

from cases import refused
from repo import ROOT

from scaleout.spec import models
from scaleout.spec.models import MODELS
from scaleout.spec.transformer import PRESETS, Shape, check_priced, total_parameters

TABLE = json.loads((ROOT / "tests/published/hugging_face_parameters.json").read_text(encoding="utf-8"))["models"]
RENAMED = {"Gemma 3 4B (text)": "Gemma 3 4B, its text model", "GLM 4 9B 0414": "GLM 4 9B of April 2025"}


def test_each_is_a_published_configuration_with_its_parameters():
    for key, model in MODELS.items():
        row = TABLE[RENAMED.get(model.name, model.name)]
        assert dict(model.config) == {name: value for name, value in row["config"].items() if name != "architectures"}
        assert models.shape(key) == Shape.from_config(row["config"])
        assert total_parameters(models.shape(key)) == row["total"]
        check_priced(models.shape(key))


def test_names_are_those_of_commands_and_links():
    assert len(MODELS) >= 36 and not MODELS.keys() & PRESETS.keys()
    assert all(key == key.lower() and " " not in key for key in MODELS)
    assert len({model.name for model in MODELS.values()}) == len(MODELS)
    assert models.shape("gpt2") is PRESETS["gpt2"]
    refused(lambda: models.shape("llama-9"), "model 'llama-9' is unknown: use one of llama-3.1-8b")
