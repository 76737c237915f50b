"""labs/memory.py --model: the model of a config.json on real processes, whole, in DDP, in shards and with Accelerate.

Where transformers is installed it is Hugging Face's own model, else the book's of the same shape.
"""

import json

import lab_runs
import pool
import pytest
import repo
from lab_runs import accelerate, lab_module

from scaleout.lab.session import session
from scaleout.measure import model_run
from scaleout.memory.accounts import KINDS
from scaleout.parallel import hugging_face

CONFIG = repo.ROOT / "tests" / "ranks" / "small_llama.json"
LAB = ["labs/memory.py", "--model", str(CONFIG), "--seq", "64", "--steps", "3"]


def recorded(start, words, world, folder):
    return lab_runs.recorded(start, [*LAB, *words], world, folder, XDG_CACHE_HOME=str(folder))


@pytest.mark.parametrize(
    ("start", "world", "words", "built"),
    [
        (pool.lab, 1, [], "Transformer on 1 rank(s), by torch"),
        (pool.lab, 2, ["--layers", "1", "--optimizer", "momentum"], "DistributedDataParallel on 2 rank(s), by torch"),
        (pool.lab, 2, ["--shard", "--precision", "autocast-bf16"], "fully_shard"),
        (pool.lab, 4, ["--shard", "--checkpointing", "full", "--no-foreach"], "fully_shard"),
        (accelerate, 2, ["--via", "accelerate"], "DistributedDataParallel on 2 rank(s), by accelerate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_measured_is_what_is_predicted(start, world, words, built, tmp_path):
    record, said = recorded(start, words, world, tmp_path)
    assert record.device_count == world and record.effective_batch == 2 * world
    assert record.model["layers"] == (1 if "--layers" in words else 3) and record.model["vocab"] == 512
    assert len(record.losses) == len(record.step_seconds) == 3
    assert set(KINDS) <= set(record.peak_memory) and record.measurement["peak bytes"] > 500_000
    for name, seen in record.measurement.items():
        if "peak" in name:
            assert record.prediction[name] == pytest.approx(seen, rel=0.02, abs=6_000), name
    assert record.checks["peak within 2% of the prediction"]["passed"]
    assert hugging_face.installed() or built in record.notes[-1], record.notes
    own = (
        "transformers' own model" if hugging_face.installed() else "transformers is not installed: these are the book's"
    )
    assert own in said and str(tmp_path) not in json.dumps(record.command)


def test_a_model_that_this_machine_has_no_memory_for_runs_on_fake_tensors(monkeypatch, capsys):
    monkeypatch.setattr(model_run.limits, "memory", lambda: 2_000_000)
    with session("cpu") as s:
        lab_module("memory").main(s, [*LAB[1:], "--save", "record.json"])
    said = capsys.readouterr().out
    assert "on fake tensors, which have shapes and no data" in said and "peak, all kinds" in said
    assert "skipped the Record: fake tensors take no seconds" in said
    assert "ok     peak within 2% of the prediction" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "gone.json"], "'gone.json' is no config.json, and no folder with one"),
        (["--layers", "9"], "--layers 9: the config.json has 3: use at most as many"),
        (["--seq", "0"], "--seq is 0: it must be from 1"),
        (["--steps", "2"], "--steps is 2: it must be from 3"),
        (["--hidden", "64"], "unrecognized arguments: --hidden 64"),
        (["--precision", "bf16-master"], "invalid choice: 'bf16-master'"),
        (["--shard", "--via", "accelerate"], "--shard is torch's fully_shard: leave out --via"),
        (["--save", "record.txt"], "the name must end in .json"),
    ],
)
def test_wrong_arguments_are_one_line(words, said):
    with session("cpu") as s, pytest.raises(ValueError) as caught:
        lab_module("memory").main(s, [*LAB[1:], *words])
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words", "said"),
    [
        ({}, ["--lora"], "--lora and --qlora are PEFT's: pip install transformers peft"),
        ({"model_type": "qwen3", "head_dim": 16}, [], "the book's own blocks are none of this model"),
        ({"model_type": "bert"}, [], "this config.json is of model_type 'bert'"),
        ({"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}, [], "the model has a head of 1 label"),
        ({"num_hidden_layers": "3"}, ["--layers", "2"], "layers must be a whole number of at least 1, not '3'"),
    ],
)
def test_without_transformers_it_says_what_is_missing(config, words, said, tmp_path, monkeypatch):
    monkeypatch.setattr(hugging_face, "installed", lambda package="transformers": False)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(CONFIG.read_text()) | config))
    with session("cpu") as s, pytest.raises(ValueError) as caught:
        lab_module("memory").main(s, ["--model", str(path), *words])
    assert said in str(caught.value) and "\n" not in str(caught.value)
