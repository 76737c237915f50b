"""The band of a prediction: made from cross-validated errors, and wider where fewer steps are known."""

import json
from statistics import median

import fine_tuning
import fit_seconds
import measured
import pytest

from scaleout.page import accuracy
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import band as bands
from scaleout.timing.band import ERRORS, FEWEST, KNOWN, TUNED, band, errors
from scaleout.timing.job import step


def job(program="megatron", device="h100-sxm", gpus=64, seq=4096):
    return Job(
        PRESETS["llama-3-8b"],
        seq,
        DEVICES[device],
        cluster(-(-gpus // 8), min(8, gpus)),
        1,
        Layout(dp=gpus),
        program=PROGRAMS[program],
    )


@pytest.fixture(scope="module")
def judged():
    """(row, predicted / measured - 1) by constants that its series did not make, as the page of errors has them."""
    return [(row, one["error"]) for row, one in zip(measured.rows(), accuracy.rows(), strict=True)]


def test_the_table_is_that_of_the_page_of_errors(judged):
    found = bands.errors((row.job, error) for row, error in judged)
    assert found.keys() == ERRORS.keys() and ERRORS["", ""].n == len(judged)
    for key, own in ERRORS.items():
        assert (own.n, own.seq, own.gpus) == (found[key].n, found[key].seq, found[key].gpus)
        assert own.median == pytest.approx(found[key].median, abs=0.0015), key
        assert own.ninth == pytest.approx(found[key].ninth, abs=0.0015), key
    for program in {name for name, _ in ERRORS if name}:
        size = sorted(abs(error) for row, error in judged if row.job.program.name == program)
        assert ERRORS[program, ""].median == pytest.approx(median(size), abs=0.0015)
        assert accuracy.ninth(size) == bands.ninth(size)
        inside = sum(one <= ERRORS[program, ""].ninth + 1e-3 for one in size)
        assert inside >= 0.9 * len(size), "nine of ten"


def test_of_the_program_on_the_family_where_there_are_enough():
    found = band(job())
    own = ERRORS["megatron", "hopper"]
    assert (found.n, found.outside, found.share) == (own.n, (), own.ninth)
    assert found.of == "of Megatron-LM with Transformer Engine on Hopper"
    low, high = found.ends(10.0)
    assert (low, high) == (pytest.approx(10 * (1 - own.ninth)), pytest.approx(10 * (1 + own.ninth)))
    assert f"Nine of ten of the {own.n} published steps" in found.why and "outside" not in found.why


@pytest.mark.parametrize(
    ("made", "key", "outside"),
    [
        (
            job("megatron", "a100-80gb"),
            ("megatron", ""),
            "no published step of Megatron-LM with Transformer Engine on Ampere",
        ),
        (job("compiled", "a100-80gb", 8), ("compiled", ""), "only 5 published steps of torch.compile on Ampere"),
        (job("compiled", "b200", 8), ("compiled", ""), "no published step of torch.compile on Blackwell"),
        (
            job("huggingface"),
            ("huggingface", ""),
            "only 1 published step of Hugging Face Transformers, eager on Hopper",
        ),
        (job("huggingface-compiled"), ("", ""), "no published step of Hugging Face Transformers, compiled on Hopper"),
        (job(seq=16_384), ("megatron", "hopper"), "longer sequences than their 4,096 tokens"),
        (job(gpus=4096), ("megatron", "hopper"), "more GPUs than their 2,048"),
        (
            job("composer", "rtx-4090"),
            ("composer", ""),
            "no published step of Composer of 2023 on GeForce RTX 40",
        ),
        (
            job("composer", "rtx-5090"),
            ("composer", ""),
            "no published step on RTX 5090 32 GB, whose kernels are taken for GeForce RTX 40's",
        ),
    ],
)
def test_outside_of_what_a_row_covers_it_says_so(made, key, outside):
    found = band(made)
    assert found.n == KNOWN[key].n >= FEWEST and outside in found.outside and outside in found.why


def test_the_band_of_fine_tuning_is_of_steps_that_no_fit_has_seen():
    """But for two constants of the RTX 4090: every second of its steps."""
    runs = [run for run in fine_tuning.runs() if run.job.program.name == "huggingface"]
    plain = [run for run in runs if not run.values["kernels"].startswith("fused")]
    found = errors((run.job, step(run.job).seconds / run.seconds - 1) for run in plain)
    known = {key: one for key, one in found.items() if key[0]}
    assert known.keys() == TUNED.keys()
    for key, one in TUNED.items():
        assert (known[key].n, known[key].seq, known[key].gpus) == (one.n, one.seq, one.gpus)
        assert (known[key].median, known[key].ninth) == pytest.approx((one.median, one.ninth), abs=0.02), key
    assert "that they did not make, but for two of GeForce GPUs" in band(job("huggingface", "a100-80gb", 1)).why
    assert "fitted without them" in band(job("megatron")).why


def test_the_tool_writes_the_table_of_what_was_judged(tmp_path):
    rows, file = measured.rows(), tmp_path / "cross.json"
    file.write_text(json.dumps([[row.series, row.name, 0.1] for row in rows]))
    lines = fit_seconds.band_table(file, rows).splitlines()
    assert len(lines) == len(ERRORS) and lines[0] == f'    ("", ""): Errors({len(rows)}, 0.105, 0.105, 65536, 3072),'
    file.write_text('[["gone", "row", 0.1]]')
    with pytest.raises(ValueError, match=f"lacks {rows[0].name}: run --cross again"):
        fit_seconds.judged(file, rows)
