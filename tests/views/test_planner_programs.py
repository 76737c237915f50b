"""The view `planner`: each program with its own seconds, band and framework; and runs that somebody published."""

import json

import measured
import pytest
from drawn import marks
from planner_views import SMALL, job_of, setting, shown, told
from repo import text

from scaleout.timing.band import band
from scaleout.views.planner import published
from scaleout.views.planner.setting import RUNS, Cuts, cuts_of, picked
from scaleout.words.amounts import took


@pytest.mark.parametrize("program", RUNS)
def test_a_program_s_seconds_and_band_are_its_own(program):
    found = shown({"program": program})
    values, around = found["values"], band(job_of(program=program))
    assert f"Llama 3 70B on 512 H100, {RUNS[program]}: **" in found["sentence"]
    assert values["band"] == around.share and f"± {100 * around.share:.0f}%" in found["sentence"]
    assert (" or more,**" in found["sentence"]) is bool(around.outside)
    assert around.why in [text for kind, text, *_ in told("figures", program=program)["blocks"] if kind == "words"]
    assert values["best"]["cannot"] == "" and values["best"]["fits"]


def test_of_equal_layouts_the_simplest_is_the_best():
    """8B on 64 with torchtitan, compiled and eager: FSDP alone, though another layout is faster by less than the
    band."""
    for params in (SMALL | {"program": "eager"}, SMALL | {"program": "compiled"}):
        now = setting(**params)
        assert cuts_of(now.best)[:4] == (1, 1, 1, 3) and now.result.fastest < now.best.seconds <= now.result.limit
        assert all(plan.simple[:3] >= now.best.simple[:3] for plan in now.result.plans if now.result.equal(plan))
    said = shown(SMALL | {"program": "compiled"})["sentence"]
    assert f"one of {now.counts['alike']} equally fast" in said


def test_a_layout_that_the_framework_cannot_run_is_priced_and_not_proposed():
    own = SMALL | {"program": "compiled", "tp": 2, "zero": 1, "recompute": "none"}
    found = shown(own)
    assert found["sentence"].endswith("torchtitan cannot run your layout.") and found["values"]["yours"]["seconds"] > 0
    assert found["values"]["yours"]["cannot"].endswith("use zero 2 or 3")
    assert found["values"]["yours"]["why"].startswith("torchtitan splits gradients too")
    assert not any(plan.layout.zero == 1 and plan.layout.pp == 1 for plan in setting(**own).plans)
    said = dict(one[1:] for one in told("launch", **own)["blocks"] if one[0] == "fold")
    assert "--compile.enable" in said["torchtitan"] and len(said) == 1


# --- published --------------------------------------------------------------------------------------------------


FP8 = json.loads(text("tests/published/fp8.json"))["steps"]


@pytest.mark.parametrize("runs", published.RUNS, ids=lambda runs: runs.model)
def test_published_runs_are_those_of_the_tables(runs):
    said = FP8.get(runs.model)
    if said:
        assert runs.seconds == dict(zip(said["gpus"], said["bf16_seconds"], strict=True))
        assert (runs.seq, runs.gpu_sequences) == (said["seq"], said["sequences_per_gpu"])
        return
    rows = [row for row in measured.rows() if row.name.startswith("nvidia 175B,")]
    assert runs.seconds == {row.job.layout.ranks: row.seconds for row in rows}
    for row in rows:
        gpus, theirs = row.job.layout.ranks, row.job.layout
        assert (row.job.seq, row.job.sequences) == (runs.seq, runs.gpu_sequences * gpus)
        same = ("tp", "cp", "pp", "chunks", "m", "zero")
        assert [getattr(runs.layout, key) for key in same] == [getattr(theirs, key) for key in same]
        found = published.published_run(
            setting(model=runs.model, gpus=gpus, sequences=runs.gpu_sequences * gpus, seq=runs.seq)
        )
        assert found.seconds == row.seconds and found.predicted == pytest.approx(measured.seconds(row), rel=5e-3)


def test_the_published_run_of_this_job_is_drawn_with_its_prediction():
    run = published.published_run(setting())
    assert run.seconds == FP8["llama-3-70b"]["bf16_seconds"][FP8["llama-3-70b"]["gpus"].index(512)]
    found = marks(shown()["svg"])
    assert "published" in found
    assert found["said published"].text == f"NVIDIA measured: {took(run.seconds)}, predicted {took(run.predicted)}"
    for params in ({"sequences": 512}, {"program": "compiled"}):
        assert "published" not in marks(shown(params)["svg"])


@pytest.mark.parametrize(
    ("program", "context"), [("compiled", "gather"), ("eager", "gather"), ("megatron", "ring"), ("huggingface", "ring")]
)
def test_keys_and_values_reach_the_others_as_the_framework_sends_them(program, context):
    plan = picked(setting(program=program, seq=131_072).question, Cuts(1, 1, 2, 3, "full"))
    assert plan.job.context == context and plan.cannot == ""


@pytest.mark.parametrize(("program", "own"), [("compiled", 0), ("eager", 1)])
def test_in_place_of_a_model_that_the_framework_has_not_it_says_so(program, own):
    """GPT-2 XL on one GPU: it fits, it has seconds, and no line of torchtitan's."""
    asked = {"model": "gpt2-xl", "gpus": 1, "program": program}
    found = told("launch", **asked)["blocks"]
    assert any(
        kind == "words" and "torchtitan cannot run it: torchtitan has Llama's blocks" in text
        for kind, text, *_ in found
    )
    assert [kind for kind, *_ in found].count("fold") == own * len([1 for kind, text, *_ in found if "**" in text])
    assert shown(asked)["values"]["best"]["seconds"] > 0


@pytest.mark.parametrize(
    ("family", "program", "said"),
    [("gemma2", "megatron", True), ("gemma2", "huggingface", False), ("qwen3", "megatron", False)],
)
def test_what_the_memory_of_a_model_leaves_out_is_said(family, program, said):
    """Gemma 2 has norms around attention and MLP; those of queries and keys, which Qwen 3 has, are counted."""
    config = {"model_type": family, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
              "vocab_size": 32_000, "intermediate_size": 14_336, "num_key_value_heads": 8}  # fmt: skip
    blocks = told("figures", config=json.dumps(config), gpus=8, sequences=8, seq=4096, program=program)["blocks"]
    line = "Not in these figures yet: the memory of the norms after attention and MLP; the memory of the tanh"
    assert any(kind == "words" and text.startswith(line) for kind, text, *_ in blocks) is said
