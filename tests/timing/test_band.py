"""The band of a prediction: made from cross-validated errors, and wider where fewer steps are known."""

from math import ceil, exp
from pathlib import Path
from statistics import median

import fit_seconds
import measured
import pytest

from scaleout.spec.hardware import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import band as bands
from scaleout.timing.band import ERRORS, FEWEST, band

CROSS = Path(__file__).parents[1] / "published" / "cross.json"


def job(program="megatron", device="h100-sxm", gpus=64, seq=4096):
    return Job(PRESETS["llama-3-8b"], seq, DEVICES[device], cluster(-(-gpus // 8), min(8, gpus)), 1, Layout(dp=gpus),
               program=PROGRAMS[program])  # fmt: skip


@pytest.fixture(scope="module")
def judged():
    return fit_seconds.judged(CROSS, measured.rows())


def test_the_table_is_made_from_the_errors_of_the_rows(judged):
    assert bands.errors([(row.job, error) for row, error in judged]) == ERRORS
    assert ERRORS["", ""].n == len(judged) == len(measured.rows())
    for (program, family), found in ERRORS.items():
        some = [(row, abs(error)) for row, error in judged if program in ("", row.job.program.name)
                and family in ("", row.job.device.architecture)]  # fmt: skip
        size = sorted(error for _, error in some)
        assert found.n == len(size) and found.median == pytest.approx(median(size), abs=1e-4)
        assert found.ninth == pytest.approx(size[ceil(0.9 * len(size)) - 1], abs=1e-4)
        assert sum(error <= found.ninth + 1e-4 for error in size) >= 0.9 * len(size)
        assert found.seq == max(row.job.seq for row, _ in some)


def test_of_the_program_on_the_family_where_there_are_enough():
    found = band(job())
    own = ERRORS["megatron", "hopper"]
    assert (found.n, found.outside) == (own.n, ()) and found.share == exp(own.ninth) - 1
    assert found.of == "of Megatron-LM with Transformer Engine on Hopper"
    low, high = found.ends(10.0)
    assert low < 10.0 < high and high / 10 == pytest.approx(10 / low) == 1 + found.share
    assert f"Nine of ten of {own.n} published steps" in found.why and "outside" not in found.why


@pytest.mark.parametrize(("made", "key", "outside"), [
    (job("megatron", "a100-80gb"), ("megatron", ""), "no published step of Megatron-LM with Transformer Engine on "
                                                     "Ampere"),
    (job("compiled", "b200", 8), ("compiled", ""), "only 1 of torch.compile on Blackwell"),
    (job("huggingface"), ("", ""), "no published step of Hugging Face Transformers, eager on Hopper"),
    (job(seq=16_384), ("megatron", "hopper"), "longer sequences than their 8,192 tokens"),
    (job(gpus=4096), ("megatron", "hopper"), "more GPUs than their 2,048"),
])  # fmt: skip
def test_outside_of_what_a_row_covers_it_says_so(made, key, outside):
    found = band(made)
    assert found.n == ERRORS[key].n >= FEWEST and outside in found.outside and outside in found.why


def test_a_file_of_other_rows_is_refused(judged, tmp_path):
    other = tmp_path / "cross.json"
    other.write_text('[["gone", "row", 0.1]]')
    with pytest.raises(ValueError, match="has other rows than there are now"):
        fit_seconds.judged(other, measured.rows())
    lines = fit_seconds.band_table(CROSS, measured.rows()).splitlines()
    assert len(lines) == len(ERRORS) and lines[0].startswith('    ("", ""): Errors(')
