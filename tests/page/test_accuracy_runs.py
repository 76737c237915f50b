"""Published fine-tuning runs: rebuilt as jobs, judged by the model as it stands, beside public calculators."""

import json
import re

import calculators
import fine_tuning
import judge_fine_tuning
import measured
import pytest
import repo
from calculators import Asked

from scaleout.page import accuracy, accuracy_runs
from scaleout.spec.transformer import Shape, total_parameters

RUNS = fine_tuning.runs()
PAGE = repo.text("book/accuracy.md")
# Rows that the book is examined on, and that neither a fit nor a test may use.
KEPT_BACK = ("nanotron", "torchtitan", "megascale", "mt-nlg", "megatron-lm/blob", "llm-foundry")


def test_the_stored_predictions_are_the_models():
    """Whoever changes a formula of seconds or bytes runs tools/judge_fine_tuning.py again."""
    judged = json.loads(accuracy_runs.JUDGED.read_text())
    assert tuple(judged["columns"]) == judge_fine_tuning.COLUMNS and len(judged["rows"]) == len(RUNS)
    for stored, run in zip(judged["rows"], RUNS, strict=True):
        for name, value, now in zip(judged["columns"], stored, judge_fine_tuning.judged(run), strict=True):
            assert value == (pytest.approx(now, rel=2e-3) if isinstance(now, float) else now), (name, run.values)


def test_every_row_says_where_it_comes_from_and_none_is_kept_back():
    found = json.loads(fine_tuning.FILE.read_text())
    assert {row[0] for row in found["rows"]} == found["series"].keys() == accuracy_runs.PROJECTS.keys()
    for series in found["series"].values():
        assert series["source"].startswith("https://") and series["framework"] and series["assumed"]
        assert not any(name in series["source"].lower() for name in KEPT_BACK)
    assert all(run.seconds > 0 and (run.memory_bytes is None) == (run.values["memory"] is None) for run in RUNS)


def test_a_row_is_rebuilt_as_a_job():
    """Of each series the sequences and GPUs are those of its row, and the model has the parameters of its name."""
    for run in RUNS:
        job, values = run.job, run.values
        assert job.sequences == values["batch"] * values["micro_batches"] * job.layout.dp
        assert job.layout.ranks == values["gpus"]
        amount, unit = re.search(r"([\d.]+)([bm])$", values["model"]).groups()
        named = float(amount) * {"b": 1e9, "m": 1e6}[unit]
        assert total_parameters(run.shape) == pytest.approx(named, rel=0.18), values["model"]
        assert (job.recipe.adapter == "none") == (values["method"] == "full")


def test_sizes_that_a_source_does_not_have_agree_with_its_bytes():
    """PowerLM 3B in bf16: weights, moments and nothing else are allocated after a step (refs/a100_80gb_granite.csv)."""
    shape = next(run.shape for run in RUNS if run.values["model"] == "powerlm 3b")
    assert 6 * total_parameters(shape) == pytest.approx(21_088_791_040, rel=2e-3)


# One block of width 4 with 2 heads, one of them of keys and values, an MLP of 8 and 10 words, and what follows by hand.
TINY = Shape(layers=1, hidden=4, heads=2, vocab=10, kv_heads=1, ff=8, gated_mlp=True, bias=False, norm="rmsnorm",
             positions="rotary", max_seq=64, tied_head=False)  # fmt: skip
PARAMETERS = 10 * 4 * 2 + (16 + 8 + 8 + 16) + 3 * 4 * 8 + 3 * 4
FULL = Asked(TINY, 6, 3, 1, "full", False, True, False)
OVERHEAD = 650 * 2**20


@pytest.mark.parametrize(
    ("name", "asked", "answer"),
    [
        ("accelerate estimate-memory", FULL, 8 * PARAMETERS),
        ("DeepSpeed's ZeRO-3 estimator", FULL, 18 * PARAMETERS + 4 * 40),
        ("Transformer Math 101", FULL, 16 * PARAMETERS + (34 + 5 * 2 * 6 / 4) * 6 * 3 * 4),
        (
            "EleutherAI's cookbook",
            FULL,
            18 * (80 + 4 * 6 + 32 + 8 + 2 * 1.5 * 16 + 3 * 4 * 8) + (34 + 15) * 6 * 3 * 4,
        ),
        # per token: inputs, q, k, v and what the output matrix reads, two masks of dropout, scores; the MLP; norms
        (
            "vram.asmirnov.xyz",
            FULL,
            18 * PARAMETERS
            + 18 * (8 + 2 * 2 * (4 + 2) + 5 * 2 * 6 + 4 + 8 + 32 + 4 + 16)
            + 2 * 4 * 18 * 10
            + 1000 * 2**20,
        ),
        (
            "gpu_poor",
            FULL,
            8 * (80 + 64 + 96) + OVERHEAD + 3 * (6 * 4 * 16 + 36 * 2 * 8 + 6 * 4 * 4 + 6 * 8 * 12 + 48 + 6 * 4 * 12),
        ),
        ("LLaMA-Factory's table", FULL, 18 * PARAMETERS),
    ],
)
def test_a_calculator_says_what_its_formula_says(name, asked, answer):
    assert calculators.CALCULATORS[name](asked) == pytest.approx(answer)


def test_calculators_have_no_answer_where_they_know_no_adapters():
    lora = Asked(TINY, 6, 3, 1, "lora", False, False, False)
    answers = {name for name, calculate in calculators.CALCULATORS.items() if calculate(lora)}
    assert answers == {"gpu_poor", "LLaMA-Factory's table"}
    assert calculators.gpu_poor(Asked(TINY, 6, 3, 2, "full", False, False, True)) is None


def test_the_sharded_answer_of_two_gpus_is_half_of_the_states():
    half = Asked(TINY, 6, 3, 2, "full", False, True, True)
    assert calculators.accelerate(half) == 4 * PARAMETERS
    assert calculators.llama_factory(half) == 9 * PARAMETERS
    assert calculators.deepspeed(half) == 9 * PARAMETERS + 4 * 40


def test_the_tables_count_every_run_once():
    for what, kind in (("seconds", "runs"), ("seconds", "run-projects"), ("gib", "run-memory")):
        counts = [line.split("|")[2].strip() for line in accuracy.TABLES[kind]().splitlines()[2:]]
        assert sum(map(int, counts[:-1])) == int(counts[-1]) == len(accuracy_runs.runs(what)), kind
    lines = accuracy.TABLES["calculators"]().splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == list(calculators.CALCULATORS)


def test_the_words_of_the_page():
    assert f"{len(RUNS)} runs that fine-tune" in PAGE
    assert {run.values["gpus"] for run in RUNS} <= set(range(1, 33))
    assert measured.PUBLISHED.joinpath("fine_tuning_runs.json").exists()
