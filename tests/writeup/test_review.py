"""The review checklist: what a Record answers, and what it says that it cannot."""

import re
from dataclasses import replace

import pytest
import repo
from samples import sample, untrained

from scaleout.memory import allocator
from scaleout.records.results import tokens_per_second
from scaleout.spec.devices import DEVICES
from scaleout.writeup import document, facts, review

H100 = DEVICES["h100-sxm"]


def run(seconds, count=2, **more):
    """A Record of steps of these seconds, none of them warm-up."""
    fields = {"step_seconds": seconds, "warmup_steps": 0, "losses": [5.0] * len(seconds), "device_count": count,
              "tokens_per_second": tokens_per_second(seconds, 0, 8, 128)}  # fmt: skip
    return replace(sample(), **(fields | more))


def line(record, beginning, baselines=()):
    return next(one for one in review.answers(record, baselines) if one.question.startswith(beginning))


def on_h100(peak_bytes):
    return run([0.5] * 8, device="NVIDIA H100 80GB HBM3", device_kind="cuda", peak_memory={"weights": peak_bytes})


@pytest.mark.parametrize(("excess", "words"), [(0, ": fits, 100% of"), (10**8, ": does not fit, ")])
def test_memory_is_held_against_what_a_gpu_can_use(excess, words):
    usable = allocator.usable(H100.memory_bytes)
    found = line(on_h100(usable + excess), "Does it fit")
    assert words in found.shown and f"{usable / 1e9:.1f} GB usable" in found.shown and not found.lacking


def test_a_run_on_a_cpu_says_nothing_of_a_gpus_memory():
    found = line(run([0.5] * 8), "Does it fit")
    assert "100 B" in found.shown and "made on a 2-core x86-64 CPU" in found.lacking
    assert line(replace(sample(), peak_memory={}), "Does it fit").shown == "nothing"


def test_utilization_is_sustained_where_the_last_quarter_is_as_fast_as_the_first():
    peak = {"flops_per_second": 1e15, "source": "datasheet"}
    slower = line(run([0.5] * 6 + [0.75] * 2, mfu=0.41, mfu_peak=peak), "Is utilization")
    assert "the last quarter takes 1.50 times as long as the first" in slower.shown and not slower.lacking
    assert "MFU 41.0% of datasheet" in slower.shown
    few = line(run([0.5] * 7), "Is utilization")
    assert few.lacking == "at least 8 timed steps and a utilization with its peak"


def test_a_checkpoint_that_nobody_has_loaded_proves_nothing():
    saved = run([0.5] * 8, checkpoint_cadence="every 4 steps", series={"checkpoint blocked seconds": [0.2, 0.4, 0.3]})
    found = line(saved, "Are checkpoints")
    assert found.shown == "every 4 steps; 3 saved, each blocks the step for 300 ms, at most 400 ms"
    assert "was loaded" in found.lacking and line(sample(), "Are checkpoints").shown == "no checkpoints"


def test_recovery_is_answered_by_a_failure_alone():
    assert "a rank is killed" in line(sample(), "Is recovery").lacking
    assert line(replace(sample(), failures=["rank 1 was killed"]), "Is recovery").shown == "rank 1 was killed"


def test_a_baseline_is_beaten_by_more_than_a_hundredth_on_as_many_devices():
    fast, slow = run([0.5] * 8), run([0.6] * 8)
    assert "1.20 times the tokens per second of slow: it beats it" in line(fast, "Does it beat", [("slow", slow)]).shown
    assert "does not beat it" in line(slow, "Does it beat", [("fast", fast)]).shown
    assert "does not beat it" in line(run([0.497] * 8), "Does it beat", [("fast", fast)]).shown
    alone = line(fast, "Does it beat", [("one", run([0.9] * 8, count=1))])
    assert alone.shown == "1.80 times the tokens per second of one, on 2 times the devices" and not alone.lacking


def test_another_job_is_no_baseline():
    other = line(run([0.5] * 8), "Does it beat", [("other", run([0.6] * 8, sequence_length=64))])
    assert other.shown == "nothing" and other.lacking.endswith("other has another sequence length")
    assert "cannot be compared" in line(untrained(), "Does it beat", [("twin", untrained())]).lacking
    assert "one technique less" in line(sample(), "Does it beat").lacking


def test_the_command_prints_the_checklist_and_what_is_wrong_with_the_record(capsys, tmp_path):
    record = "labs/results/bottlenecks/smoke-cpu-2.json"
    assert document.main(["--review", str(repo.ROOT / record)]) == 0
    printed = capsys.readouterr().out
    assert (
        printed.startswith("# Review: bottlenecks, smoke-cpu-2") and "The Record answers 0 of 5 questions." in printed
    )
    assert document.main(["--review", str(repo.ROOT / record), "--out", str(tmp_path / "page.md")]) == 2
    assert "leave out --out" in capsys.readouterr().err
    broken = replace(
        sample(), commit="abc+changes", skipped=["Accelerate: not asked for"],
        checks={"same loss": {"value": 3.0, "tolerance": 1.0, "passed": False}},
    )  # fmt: skip
    words = str(review.blocks(facts.runs([broken])))
    assert all(part in words for part in ("same loss", "not asked for", "Not reproducible"))


def test_the_page_has_the_same_questions_in_the_same_order():
    page = repo.text("book/review.md")
    questions = [(one.question, one.chapter) for one in review.answers(sample())]
    assert re.findall(r"^## \d\. (.+)$", page, re.M) == [question for question, _ in questions]
    for part, (_, chapter) in zip(page.split("\n## ")[1:], questions, strict=False):
        assert f"notebooks/{chapter}_" in part
