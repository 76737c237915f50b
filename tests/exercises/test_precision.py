"""The answers of `precision`'s exercises, against arithmetic by hand and the book's models of formats and seconds."""

import json
import math
import random
import re
from functools import partial

import answers
import pytest
from cases import each
from repo import ROOT

from scaleout import exercises
from scaleout.exercises.precision import diagnose, ends, fp8, half, scale, sums
from scaleout.numerics.blocks import BLOCKS, quantized
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.octaves import kept_bits
from scaleout.numerics.rounding import rounded, ulp
from scaleout.numerics.scaling import Scaler, search
from scaleout.timing.job import step
from scaleout.timing.precision import fp8_seconds

FP16, BF16, E4M3 = FORMATS["fp16"], FORMATS["bf16"], FORMATS["e4m3"]
FP8 = json.loads((ROOT / "tests/published/fp8.json").read_text(encoding="utf-8"))["steps"]

value = partial(answers.value, "precision")
right = partial(answers.right, "precision")
solution = partial(answers.solution, "precision")
texts = partial(answers.texts, "precision")


def test_numbers_that_follow_from_one_line_of_arithmetic():
    assert value("below-normal") == 25 - 14
    assert value("clipped-first") == pytest.approx(0.7 * 2**15)
    assert value("what-halves") == pytest.approx(2 * 8.03 / 41.8)
    assert value("products-twice") == pytest.approx(1 / (0.34 + 0.33))
    assert value("beside-an-outlier") == 448 * 2**10
    assert value("no-further") == pytest.approx(0.125 / rounded(0.01, BF16))


def test_a_gradient_is_halved_to_zero():
    gradient, halvings = FP16.smallest_normal, 0
    while gradient := rounded(gradient / 2, FP16):
        halvings += 1
        assert halvings < 11
    assert halvings + 1 == value("below-normal")
    assert kept_bits(-20, FP16) == 5 and "at 2^-20 it has 5 of its 11" in texts("below-normal")
    assert "94% lie below 2^-14, and 0.7% become zero" in texts("below-normal")
    assert ends.UNDERFLOWS > 0.9 > 0.01 > ends.LOST


def test_each_of_three_numbers_has_the_format_that_is_nearer():
    nearer = ["bf16" if ends.relative_error(x, "bf16") < ends.relative_error(x, "fp16") else "fp16" for x in ends.THREE]
    assert nearer == right("which-is-nearer").split("-") == ["fp16", "bf16", "bf16"]
    rows = texts("which-is-nearer").split("```")[3].strip().splitlines()
    assert [" ".join(row.split()) for row in rows] == [
        "bf16 fp16",
        "1.003 1 1.00293",
        "100,000 99840 inf",
        "3e-9 2.99769e-09 0",
    ]
    for option in exercises.exercise("precision", "which-is-nearer").options:
        assert option.right == (option.label.startswith("fp16 the first; bf16 the second and"))


def test_twice_the_scale_moves_octaves_and_changes_only_what_was_cut_short():
    draw = random.Random(3)
    for _ in range(500):
        g = math.ldexp(draw.uniform(1, 2), draw.randint(-40, -8))
        once, twice = (rounded(g * s, FP16) / s for s in (1024, 2048))
        normal = g * 1024 >= FP16.smallest_normal
        assert once == twice if normal else abs(twice - g) <= abs(once - g)
    assert right("doubled-scale") == "cut-short"


def test_the_log_brackets_the_largest_gradient():
    least = max(65504 / line.scale for line in scale.LOG if line.skipped and line.step > 2)
    upper = min(65504 / line.scale for line in scale.LOG if not line.skipped)
    assert 0.49 < least < 0.51 and 0.99 < upper < 1.01 and right("scaler-log") == "half-to-one"
    assert all(least < line < upper for line in scale.LARGEST)
    assert [line.scale for line in scale.LOG] == [2.0**19, 2.0**18, 2.0**17, *[2.0**16] * 4, 2.0**17, *[2.0**16] * 4]
    rows = [line.split() for line in texts("scaler-log").split("```")[1].strip().splitlines()[1:]]
    assert [(int(step), float(s.replace(",", "")), *skipped) for step, s, *skipped in rows] == [
        (line.step, line.scale, *(["yes"] if line.skipped else [])) for line in scale.LOG
    ]


def test_scales_are_those_of_the_books_scaler():
    scales, reference, draw = (
        solution("scale-by-step"),
        exercises.exercise("precision", "scale-by-step").reference,
        (random.Random(4)),
    )
    for _ in range(300):
        overflowed = [draw.random() < 0.3 for _ in range(draw.randint(0, 20))]
        first, interval = 2.0 ** draw.randint(1, 20), draw.randint(1, 5)
        gradients = [4.0 if overflow else 1e-9 for overflow in overflowed]
        scaler, expected = Scaler(first, interval=interval), []
        for overflow in overflowed:
            expected.append(scaler.scale)
            scaler = scaler.after(overflow)
        assert scales(overflowed, first, interval) == reference(overflowed, first, interval) == expected
        assert len(search(gradients, FP16, Scaler(first, interval=interval))) == len(overflowed)


def test_a_weight_stops_at_a_power_of_two_and_is_too_fast_before():
    def stops(f, weight=sums.BEGIN, update=sums.UPDATE):
        total = rounded(weight, f)
        while (next_total := rounded(total + update, f)) != total:
            total = next_total
        return total

    assert stops(BF16) == sums.STOPS == 0.125 and 3e-4 < ulp(0.125, BF16) / 2 < 2 * 3e-4
    assert ulp(0.1, BF16) == pytest.approx(4.9e-4, rel=0.01) and ulp(0.05, BF16) == pytest.approx(2.4e-4, rel=0.02)
    for update in (1e-5, 3e-4, 2e-3, 0.1):
        assert 2**8 <= stops(BF16, 1e-4, update) / update <= 2**9
    assert stops(FP16) == sums.STOPS_FP16 == 1.0
    assert "12.5 times 0.01" in texts("no-further")


def test_halves_and_shares_that_the_texts_say():
    slips = {slip.name: slip.message for slip in exercises.exercise("precision", "what-halves").slips}
    assert half.PEAK_BEFORE / 2 == 20.9 and "20.9 GB" in slips["all"]
    assert "8.03 GB saved were 16.06 GB before: **38.4%**" in texts("what-halves")


def test_fp8_is_worth_what_the_table_says_and_the_model_of_seconds():
    published = FP8["nemotron-4-15b"]
    assert (published["gpus"][0], published["seq"], published["sequences_per_gpu"]) == (16, 4096, 4)
    assert published["bf16_seconds"][0] == fp8.BF16_SECONDS and published["fp8_seconds"][0] == fp8.FP8_SECONDS
    assert all(getattr(fp8.NEMOTRON, name) == size for name, size in published["shape"].items())
    assert fp8.JOB.sequences == 4 * fp8.JOB.layout.ranks and fp8.JOB.layout.ranks == 16
    model = step(fp8.JOB)
    assert model.seconds == pytest.approx(fp8.BF16_SECONDS, rel=0.02)
    assert model.seconds / fp8_seconds(model) == pytest.approx(fp8.faster(fp8.FASTER), rel=0.01)
    gains = [
        round(FP8[name]["bf16_seconds"][0] / FP8[name]["fp8_seconds"][0], 2)
        for name in ("nemotron-4-15b", "llama-3-8b", "llama-3-70b")
    ]
    assert gains == [1.36, 1.34, 1.34] and "1.36 times" in texts("products-twice") and "1.34" in texts("products-twice")
    assert "**1.49 times**" in texts("products-twice") and "1.72 in place of 2" in texts("products-twice")
    assert fp8.faster(1e9) == pytest.approx(1 / 0.34)


def test_what_becomes_of_small_numbers_beside_an_outlier():
    b = BLOCKS["fp8-tensor"]
    unit = 6.6e4 / 448
    with_outlier = lambda x: quantized([6.6e4, x], b).values[1]  # noqa: E731
    assert with_outlier(0.14) == 0 != with_outlier(0.15) and "below 0.14" in texts("beside-an-outlier")
    assert unit * E4M3.smallest_normal == pytest.approx(2.3, abs=0.01) and "from 2.3 to 30" in texts(
        "beside-an-outlier"
    )
    assert all(abs(with_outlier(x) / x - 1) <= 2**-4 + 1e-9 for x in (2.4, 3.3, 7.7, 29.0))
    assert max(abs(with_outlier(x) - x) for x in (0.8, 0.9, 1.0, 1.1, 1.2)) <= unit * E4M3.smallest / 2 + 1e-9
    assert unit * E4M3.smallest == pytest.approx(0.29, abs=0.003)
    assert unit * E4M3.smallest / 2 == pytest.approx(1 / 7, abs=5e-3) and "a seventh" in texts("beside-an-outlier")
    assert quantized([6.6e7, 30.0], b).values[1] == 0
    assert math.log2(value("beside-an-outlier")) == pytest.approx(18.8, abs=0.05)


@each(["fp16", "bf16", "tf32", "e5m2", "e4m3", "e3m2", "e2m3", "e2m1"])
def test_rounding_is_that_of_every_format_between_its_ends(name):
    round_to, draw, f = solution("round-to"), random.Random(9), FORMATS[name]
    for _ in range(500):
        x = draw.choice((-1, 1)) * math.ldexp(draw.uniform(1, 2), draw.randint(max(f.lowest_octave, -60) - 14, 1))
        x = x if draw.random() < 0.7 else rounded(x, f) + draw.choice((-0.5, 0.5)) * ulp(x, f)
        if abs(x) < f.largest:
            assert round_to(x, f.exponent, f.mantissa) == rounded(x, f), x


def test_the_four_runs_are_told_apart_by_what_their_table_has():
    """The questions of the solution, asked of the table in their order, name each run's fix."""
    rows = {line[:16].strip(): line[16:].split() for line in diagnose.LOGS.splitlines()[1:] if line[16:].strip()}
    fixes = {}
    for i, name in enumerate("ABCD"):
        percent = lambda key, i=i: float(rows[key][i].rstrip("%").replace("-", "0"))  # noqa: E731
        ranks = [rows[f"rank {r}"][i] for r in (0, 1)]
        fixes[name] = (
            "bf16"
            if rows["largest output"][i] == "inf"
            else "without rank 1"
            if ranks[1] == "NaN"
            else "a loss scale"
            if percent("gradients zero") > 50
            else "fp32 copies"
            if percent("not changed") > 50
            else ""
        )
    label = next(option.label for option in exercises.exercise("precision", "four-runs").options if option.right)
    assert dict(re.findall(r"([ABCD]) ([^,]+)", label)) == fixes
    assert 16 - -9 == 25 and "halving it 25 times" in texts("four-runs") and 16 - 2 == 14


def test_each_run_takes_the_format_in_which_it_fits():
    rows = [line.split() for line in diagnose.RUNS.splitlines()[3:]]
    forward = [float(x.replace(",", "")) for x in rows[0][2:]]
    assert max(len(line) for log in (diagnose.RUNS, diagnose.LOGS) for line in log.splitlines()) <= 39, "on a phone"
    assert [x > FP16.largest for x in forward] == [False, True, False, False]
    assert 0.2 * 2**18 < FP16.largest < 0.7 * 2**18 and round(0.2 * 2**18) == 52429
    assert rounded(2.0**-34 * 2**18, FP16) > 0 == rounded(2.0**-34, FP16) == rounded(2.0**-33, FP16)
    assert FP16.largest > 0.05 * 2**18 and FP16.epsilon / 2 < 1e-3 < BF16.epsilon / 2
    assert "52,429" in texts("which-format") and right("which-format") == "scaled-c-fp16-d"
