"""Seconds of a step in FP8 against published ones (tests/published/fp8.json)."""

import json
from pathlib import Path
from statistics import median

import measured
import pytest

from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import precision
from scaleout.timing.job import step
from scaleout.timing.precision import FASTER, fp8_seconds, linear_share
from scaleout.timing.rates import MEMORY

STEPS = json.loads((Path(__file__).parents[1] / "published" / "fp8.json").read_text())["steps"]
EIGHT = Job(PRESETS["llama-3-8b"], 8192, DEVICES["h100-sxm"], cluster(1, 8), 1, Layout(dp=8, zero=1))


@pytest.fixture(scope="module")
def rows():
    """Of Nemotron-4 15B [(step in bf16 by the model, measured seconds in bf16, and in FP8)]."""
    said, found = STEPS["nemotron-4-15b"], []
    for row in measured.rows():
        if row.name.startswith("nvidia 15B,"):
            i = said["gpus"].index(row.job.layout.ranks)
            assert row.seconds == said["bf16_seconds"][i]
            found.append((step(row.job), row.seconds, said["fp8_seconds"][i]))
    assert len(found) == len(said["gpus"]) == 8
    return found


def test_fp8_is_worth_a_third_and_not_a_factor_of_two(rows):
    errors = [abs(one.seconds / fp8_seconds(one) / (bf16 / fp8) - 1) for one, bf16, fp8 in rows]
    assert median(errors) < 0.01 and max(errors) < 0.02
    tables = [STEPS[name] for name in ("llama-3-8b", "llama-3-70b", "nemotron-4-15b")]
    published = [a / b for said in tables for a, b in zip(said["bf16_seconds"], said["fp8_seconds"], strict=True)]
    assert len(published) == 19 and all(1.3 < gain < 1.4 for gain in published)


def test_the_constant_is_the_best_one_for_these_steps(monkeypatch, rows):
    def off(faster):
        monkeypatch.setattr(precision, "FASTER", faster)
        return sum((fp8_seconds(one) / one.seconds * bf16 / fp8 - 1) ** 2 for one, bf16, fp8 in rows)

    assert min((x / 100 for x in range(130, 201)), key=off) == FASTER


def test_only_linear_layers_get_faster():
    """A longer sequence has more attention, and so a smaller share of matrices; recomputation adds a third of them."""
    short, long = (linear_share(step(EIGHT.other(seq=seq, batch=16_384 // seq))) for seq in (2048, 16_384))
    assert 0.5 < long < short - 0.05 < 0.8
    one, again = step(EIGHT), step(EIGHT.other(checkpointing="full"))
    spent = [linear_share(each) * each.seconds for each in (one, again)]
    assert spent[1] - spent[0] == pytest.approx(32 * one.work[0].forward.matmul, rel=1e-9)
    assert fp8_seconds(one) == pytest.approx(one.seconds - spent[0] * (1 - 1 / FASTER), rel=1e-12)


def test_what_has_no_fp8_is_refused():
    with pytest.raises(ValueError, match="has no FP8: use an H100 or a newer one"):
        fp8_seconds(step(EIGHT.other(device="a100-80gb")))


# --- one matrix multiplication --------------------------------------------------------------------------------------

LINEARS = json.loads((Path(__file__).parents[1] / "published" / "fp8.json").read_text())["linears"]
H100 = DEVICES["h100-sxm"]


@pytest.mark.parametrize(
    ("shape", "speedup"), [(row["tokens_inputs_outputs"], row["speedup"]) for row in LINEARS["rows"]]
)
def test_the_roofline_of_a_linear_layer_is_near_the_published_speedups(shape, speedup):
    """torchao's benchmark: a small layer loses, a large one gains. No constant was made from these two rows."""
    seconds = precision.linear_seconds(H100, *shape)
    found = seconds["bf16"] / seconds["fp8 with casts"]
    assert found == pytest.approx(speedup, rel=0.17) and (found < 1) == (speedup < 1)


def test_the_larger_the_multiplication_the_more_fp8_gains_and_never_twice():
    gains = []
    for width in (512, 2048, 8192, 32768):
        seconds = precision.matmul_seconds(H100, 4096, width, width)
        assert seconds["fp8"] < seconds["fp8 with casts"] and seconds["bf16"] / seconds["fp8"] <= 2
        gains.append(seconds["bf16"] / seconds["fp8 with casts"])
    assert gains == sorted(gains) and gains[0] < 0.6 and 1.4 < gains[-1] < 2
    with pytest.raises(ValueError, match="has no fp8 unit"):
        precision.matmul_seconds(DEVICES["a100-80gb"], 4096, 512, 512)


def test_casts_read_and_write_each_operand_and_are_kernels():
    """Of operands that are large beside the launches: 5 bytes each number, at the rate of kernels that move bytes."""
    seconds = precision.matmul_seconds(H100, 8192, 8192, 8192)
    casts = seconds["fp8 with casts"] - seconds["fp8"] - 4 * 2e-6
    assert casts == pytest.approx(5 * 2 * 8192**2 / (H100.memory_bytes_per_s * MEMORY), rel=1e-6)
