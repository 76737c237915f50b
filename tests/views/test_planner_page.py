"""What the page of the planner says of its own numbers, held against the model and the rows that judge it."""

import re

import fine_tuning
import measured
import pytest
from planner_views import job_of
from repo import ROOT

from scaleout.memory.allocator import FRAGMENTS
from scaleout.memory.job import accounts
from scaleout.timing.band import ERRORS
from scaleout.timing.quick import TOLERANCE
from scaleout.timing.search import cut

PAGE = (ROOT / "book" / "planner.md").read_text(encoding="utf-8")
ROWS = {"GPT-3 175B": "175B"}


def test_the_bands_that_it_names_are_those_of_the_table():
    for name, words in (
        ("megatron", "For Megatron-LM on H100, nine of ten steps are predicted within {}% and half within {}%"),
        ("compiled", "for `torch.compile` on H100 and H200, nine of ten within {}% and half within {}%"),
    ):
        found = ERRORS[name, "hopper"]
        assert words.format(round(100 * found.ninth), round(100 * found.median)) in PAGE
    assert f"within {100 * TOLERANCE:.0f}% of the full model" in PAGE
    assert f"{100 * FRAGMENTS[1]:.0f}% for fragmentation" in PAGE


def test_the_table_is_what_is_predicted():
    rows = re.findall(r"^\| (\S.*?) \| ([\d,]+) \| ([\d.]+) s \| ([\d.]+) s \| (.*?)% \|$", PAGE, re.M)
    assert len(rows) == 2 and {row[0] for row in rows} == set(ROWS)
    for name, gpus, published, predicted, off in rows:
        row = next(
            one
            for one in measured.rows()
            if one.series == "dgxc h100-sxm"
            and one.job.layout.ranks == int(gpus.replace(",", ""))
            and one.name.startswith(f"nvidia {ROWS[name]},")
        )
        found = measured.seconds(row)
        assert (f"{row.seconds:.2f}", f"{found:.2f}") == (published, predicted)
        assert f"{100 * (found / row.seconds - 1):+.1f}" == off


def test_what_is_said_of_llama_3s_own_layout():
    """Degrees of table 4 of arXiv 2407.21783, plain 1F1B, one sequence a micro-batch."""
    job = job_of("llama-3-405b", 16_384)
    plan = cut(job, 2048, tp=8, pp=16)
    assert f"does not fit here by {plan.over / 1e9:.0f} GB" in PAGE
    whole, part = (max(one.peak["gradients"] for one in accounts(plan.job.other(zero=zero))) for zero in (1, 2))
    assert f"saves {(whole - part) / 1e9:.0f} GB and so makes it fit" in PAGE and plan.over < whole - part
    assert whole - part == pytest.approx(4 * 405.85e9 / 128, rel=0.05)


def test_adapters_under_fsdp_are_counted_coarsely():
    """Runs of IBM, with what transformers and FSDP 1 kept in 2024."""
    runs = [
        run
        for run in fine_tuning.runs()
        if run.values["zero"] == 3 and run.values["method"] != "full" and run.values["series"].startswith("fms")
    ]
    over = [fine_tuning.peak_of_2024(run) / run.memory_bytes - 1 for run in runs]
    assert f"the memory of {len(runs)} such runs is predicted up to {100 * max(over):.0f}% too high" in PAGE
    assert min(over) > -0.005
