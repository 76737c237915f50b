"""The command `python -m scaleout.fit`: the view planner's figures, in one table, and in one line what cannot be."""

import contextlib
import io
import json

import pytest
from cases import each
from repo import ROOT

from scaleout.fit import answer
from scaleout.fit.command import main, parser, question
from scaleout.memory import job as memory
from scaleout.memory.allocator import usable
from scaleout.spec.devices import DEVICES
from scaleout.spec.transformer import PRESETS, Shape, total_parameters
from scaleout.timing.job import step
from scaleout.timing.price import run_cost
from scaleout.views.planner.setting import Cuts, picked, search

MODELS = json.loads((ROOT / "tests/published/hugging_face_parameters.json").read_text(encoding="utf-8"))["models"]
NODE = ("--gpus", "8", "--device", "h100-sxm")
ONE = ("--gpus", "2", "--device", "h200")


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """A folder with the config.json of each model, under its name."""
    folder = tmp_path_factory.mktemp("models")
    for name, row in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(row["config"]), encoding="utf-8")
    return folder


def said(capsys, *argv):
    """(exit code, standard output, standard error) of the command."""
    code = main([str(word) for word in argv])
    return code, *capsys.readouterr()


def found(capsys, *argv):
    code, out, err = said(capsys, *argv, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def asked(*argv):
    return question(parser().parse_args([str(word) for word in argv]))[0]


def test_the_figures_are_the_planners(capsys):
    given = ("llama-3-8b", *NODE, "--seq", "4096", "--batch", "128")
    result, ranking = found(capsys, *given), search(asked(*given))
    plan, best = ranking.best, result["best"]
    assert (best["seconds"], best["bytes"], best["mfu"]) == (plan.seconds, plan.bytes, plan.mfu)
    assert best["seconds"] == pytest.approx(step(plan.job).seconds)
    assert sum(best["parts"].values()) == pytest.approx(best["seconds"])
    assert best["bytes"] == max(sum(kinds.values()) for kinds in best["memory"].values())
    assert best["bytes"] <= result["usable_bytes"] == usable(DEVICES["h100-sxm"].memory_bytes)
    assert best["tokens_per_second"] == pytest.approx(128 * 4096 / best["seconds"])
    assert [one["seconds"] for one in result["layouts"]] == [one.seconds for one in ranking.plans[: answer.RANKED]]
    assert result["fitting"] == len(ranking.plans) and result["model"]["parameters"] == 8_030_261_248


def test_a_whole_run_is_the_price_of_its_tokens(capsys):
    result = found(capsys, "llama-2-7b", *NODE, "--tokens", "2e12", "--price", "3", "--currency", "USD")
    cost = run_cost(2e12, result["best"]["tokens_per_second"], 8, 0, 3)
    assert {name: result["run"][name] for name in ("hours", "gpu_hours", "price", "currency")} == {
        "hours": cost.hours,
        "gpu_hours": cost.gpu_hours,
        "price": cost.price,
        "currency": "USD",
    }


def test_a_layout_of_ones_own(capsys):
    given = ("llama-3-8b", *NODE)
    result = found(capsys, *given, "--layout", "tp=2,zero=1", "--recompute", "full")
    assert result["best"]["seconds"] == picked(asked(*given), Cuts(2, 1, 1, 1, "full")).seconds
    free = found(capsys, *given, "--layout", "tp=2,zero=1")["best"]
    assert free["recompute"] == "none" and free["fits"] and free["seconds"] < result["best"]["seconds"]


@each([("llama-3-8b", "tp=2,zero=1"), ("gpt2-xl", "zero=3"), ("llama-2-13b", "tp=4,pp=2,zero=0")])
def test_one_sequence_more_than_the_largest_micro_batch_does_not_fit(model, layout):
    plan = answer.own(asked(model, *NODE), layout, None)
    room = usable(DEVICES["h100-sxm"].memory_bytes)
    most = answer.largest(plan.job, room)
    assert most >= plan.job.batch
    assert memory.fullest(plan.job.other(batch=most)).peak_bytes <= room
    assert memory.fullest(plan.job.other(batch=most + 1)).peak_bytes > room


def test_what_does_not_fit_is_shown_with_what_would(capsys):
    code, out, _ = said(capsys, "llama-3-70b", *NODE)
    assert code == 0 and "does not fit by" in out and "the largest that fits is 0" in out
    assert "It fits on 32 GPUs" in out or "It fits on 16 GPUs" in out


@pytest.mark.parametrize("name", ["Qwen2.5 7B", "Gemma 2 9B", "OLMo 2 7B", "OPT 6.7B", "Falcon 7B"])
def test_a_config_is_answered_with_what_is_left_out(capsys, configs, name):
    code, out, err = said(capsys, configs / name, *ONE)
    assert (code, err) == (0, "")
    assert f"({MODELS[name]['total']:,} parameters) on 2 H200" in out and "per step ±" in out
    left_out = {
        "Gemma 2 9B": "the memory of the norms after attention and MLP; the memory of the tanh that caps scores",
        "Falcon 7B": "the memory of one norm for attention and MLP (two are counted)",
    }
    assert left_out.get(name, "") in out and ("not priced yet" in out) == (name in left_out)


def test_a_window_makes_a_step_of_long_sequences_shorter(capsys, configs):
    """Mistral 7B v0.1 looks back over 4,096 tokens; of that length it is as fast as one without a window."""
    sliding, full = configs / "Mistral 7B v0.1", configs / "Mistral without a window"
    full.mkdir()
    config = MODELS["Mistral 7B v0.1"]["config"] | {"sliding_window": None}
    (full / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for seq, shorter in (("4096", False), ("16384", True)):
        rates = [found(capsys, config, *ONE, "--seq", seq)["best"]["tokens_per_second"] for config in (sliding, full)]
        assert (rates[0] > 1.05 * rates[1]) is shorter and rates[0] >= rates[1]
    assert "window" not in said(capsys, sliding, *ONE)[1]


def test_a_model_with_experts_is_counted_and_no_step_is_guessed(capsys, configs):
    code, out, err = said(capsys, configs / "DeepSeek V3", *NODE)
    assert (code, err) == (0, "")
    assert "671,026,404,352 parameters, 37,552,282,624 of them active" in out
    assert (
        "No step is predicted: the model has latent attention, which is not priced yet" in out
        and "per step ±" not in out
    )
    result = found(capsys, configs / "DeepSeek V3", *NODE)
    total = total_parameters(Shape.from_config(configs / "DeepSeek V3"))
    assert sum(result["states"].values()) == pytest.approx(total * (2 + 4 + 4 + 8) / 8, abs=8)
    assert "best" not in result


def test_hugging_faces_own_modules_need_more_memory(capsys, configs):
    given = ("llama-3-8b", *NODE, "--seq", "2048", "--layout", "zero=3", "--recompute", "none", "--program")
    theirs, books = found(capsys, *given, "hf"), found(capsys, *given, "eager")
    assert theirs["program"] == "Hugging Face" and theirs["model"]["not_priced"] == []
    more = theirs["best"]["memory"]["head"]["activations"] / books["best"]["memory"]["head"]["activations"]
    assert theirs["best"]["micro_batch"] == books["best"]["micro_batch"] and 1.1 < more < 1.2
    assert "Try torch.compile" in theirs["lever"]
    phi = said(capsys, configs / "Phi 4", *ONE, "--program", "hf")[1]
    assert "not priced yet" not in phi  # whose modules are followed too


def test_fields_that_are_not_read_are_named(capsys, tmp_path):
    config = MODELS["Qwen2.5 7B"]["config"] | {"made_by": "me", "rope_scaling": None, "rope_theta": 1e6}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "Fields of the config.json that are not read: made_by." in said(capsys, tmp_path, *ONE)[1]
    assert found(capsys, tmp_path, *ONE)["unread"] == ["made_by"]


def test_the_longest_sequence_is_the_models():
    assert asked("gpt2", *NODE).seq == PRESETS["gpt2"].max_seq == 1024
    assert asked("llama-2-7b", *NODE).seq == 4096 and asked("llama-3-405b", *NODE).seq == 8192


@each(
    [
        (("nothing.json", *NODE), "'nothing.json' is no config.json, and no folder with one: there is no such file"),
        (("llama-3-8b", "--gpus", "12", "--device", "h100-sxm"), "gpus above 8 fill whole nodes of 8: use 16, not 12"),
        (("llama-3-8b", "--gpus", "0", "--device", "h100-sxm"), "gpus must be a whole number of at least 1, not 0"),
        (("llama-3-8b", "--gpus", "8", "--device", "h100"), "device 'h100' is unknown: use one of v100"),
        (("llama-3-8b", "--gpus", "8"), "the following arguments are required: --device"),
        (("llama-3-8b", *NODE, "--program", "jax"), "program 'jax' is unknown: use one of hf, torchtitan, megatron"),
        (("llama-3-8b", *NODE, "--network", "dsl"), "network 'dsl' is unknown"),
        (("llama-3-8b", *NODE, "--loss", "mean"), "loss must be one of eager, fused, chunked"),
        (("gpt2", *NODE, "--seq", "2048"), "seq 2,048 is longer than the position table: use at most 1,024"),
        (("llama-3-8b", *NODE, "--seq", "0"), "seq must be a whole number of at least 1"),
        (
            ("gpt2-xl", *NODE, "--seq", "1023", "--batch", "1"),
            "no layout of 8 GPUs is possible for 1 sequence a step: use 8",
        ),
        (("llama-3-8b", *NODE, "--tokens", "-1"), "tokens must be a finite number from 0"),
        (("llama-3-8b", *NODE, "--layout", "tp=3"), "tp"),
        (("llama-3-8b", *NODE, "--layout", "tp=2,m=4"), "m, v and schedule are chosen"),
        (("llama-3-8b", *NODE, "--layout", "tp=2", "--recompute", "some"), "recompute must be one of none"),
        (("llama-3-8b", *NODE, "--program", "hf", "--loss", "fused"), "Transformers has no fused loss"),
    ]
)
def test_what_cannot_be_is_one_line(argv, words):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        assert main(list(argv)) == 2
    line = error.getvalue()
    assert line.startswith("fit: ") and line.count("\n") == 1 and words in line, line
