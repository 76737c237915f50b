"""The answers of `kernels`' exercises, against models of timing, softmaxes in full, published figures and a Record."""

import json
import math
from functools import partial
from itertools import permutations
from random import Random

import answers
import pytest
import repo

from scaleout import exercises
from scaleout.exercises.kernels import clocks, moved, online, remedies, runs
from scaleout.records import results
from scaleout.timing import kernels, precision
from scaleout.timing.kernels import GENERATIONS, Attention

value = partial(answers.value, "kernels")
solution = partial(answers.solution, "kernels")
texts = partial(answers.texts, "kernels")
B200, H100 = GENERATIONS["b200"], GENERATIONS["h100"]


def test_bytes_and_flops_are_the_models():
    a = Attention(moved.SEQ, moved.HEAD, moved.HEADS * moved.SEQUENCES)
    passes = kernels.hbm_bytes(a, "naive") - 4 * 2 * a.row
    assert value("scores-in-hbm") == passes / 4
    flops = [sum(kernels.made_flops(a, kernel, one) for one in kernels.DIRECTIONS) for kernel in kernels.KERNELS]
    assert value("more-flops") == pytest.approx(flops[1] / flops[0] - 1)


def test_a_fused_chain_by_counting_what_each_line_touches():
    """By names: each line reads what is right of its sign and writes what is left; fused, names that are made inside
    are neither read nor written."""
    lines = exercises.exercise("kernels", "fused-chain").prompt.split("```")[1].strip().splitlines()
    made, read = [], []
    for line in lines:
        left, right = line.split(" = ")
        made.append(left)
        read.append([name for name in ("x", "a", "b", "c", "mask", "residual") if name in right.replace("gelu", "")
                     .replace("max", "").replace("(", " ").replace(")", " ").split()])  # fmt: skip
    apart = sum(map(len, read)) + len(made)
    outside = {name for names in read for name in names} - set(made)
    assert value("fused-chain") == apart / (len(outside) + 1) and (apart, len(outside)) == (moved.APART, 3)


def softmax(scores, values):
    top = max(scores)
    weights = [math.exp(one - top) for one in scores]
    return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)


def partial_result(scores, values):
    top = max(scores)
    weights = [math.exp(one - top) for one in scores]
    return [top, math.fsum(weights), math.fsum(w * v for w, v in zip(weights, values, strict=True))]


def test_merged_blocks_are_the_softmax_over_all_keys():
    merge, random = solution("merge-blocks"), Random(3)
    for _ in range(50):
        scores = [random.uniform(-30, 30) for _ in range(9)]
        values = [random.uniform(-1, 1) for _ in range(9)]
        cuts = sorted(random.sample(range(1, 9), 2))
        spans = list(zip([0, *cuts], [*cuts, 9], strict=True))
        right = softmax(scores, values)
        for order in permutations(spans):
            total = [7, 0, 0]  # a block in which all is hidden
            for low, high in order:
                total = merge(total, partial_result(scores[low:high], values[low:high]))
            assert total[2] / total[1] == pytest.approx(right)
    first, second = online.FIRST, online.SECOND
    m, total, weighted = merge(list(first), list(second))
    assert value("two-blocks") == pytest.approx(weighted / total) and m == 4


def test_the_gradient_of_a_score_by_difference():
    def loss(scores):
        weights = [math.exp(one) for one in scores]
        return math.fsum(w * g for w, g in zip(weights, online.DP, strict=True)) / math.fsum(weights)

    scores, step = [math.log(p) for p in online.P], 1e-6
    moved_scores = [x + step * (i == 2) for i, x in enumerate(scores)]
    assert value("score-gradient") == pytest.approx((loss(moved_scores) - loss(scores)) / step, rel=1e-4)
    assert math.fsum(online.P) == pytest.approx(1)


def test_ceilings_and_gains_are_the_models():
    assert value("heads-of-96") == pytest.approx(kernels.ceiling(B200, Attention(16384, clocks.HEAD, 8)))
    gain = kernels.fp8_gain(H100, Attention(16384, clocks.TURN_HEAD, 8), overlapped=False)
    assert value("fp8-in-turn") == pytest.approx(gain)


@pytest.mark.parametrize("chip", ["b200", "b300"])
@pytest.mark.parametrize("head", [32, 64, 128, 256])
@pytest.mark.parametrize("width", [1, 2])
def test_the_share_of_the_peak_is_the_models(chip, head, width):
    """On long sequences, where HBM does not decide."""
    one, share = GENERATIONS[chip], solution("share-of-peak")
    for overlapped in (True, False):
        found = share([one.flop[width], one.exponentials, one.shared], head, width, overlapped)
        a = Attention(16384, head, 4, width=width)
        assert found == pytest.approx(kernels.ceiling(one, a, overlapped=overlapped))


def test_the_share_that_was_converted_gives_the_steps_speedup():
    share = value("fp8-share")
    assert 1 / (1 - share + share / remedies.PART) == pytest.approx(remedies.STEP)
    assert precision.FASTER == remedies.PART


def test_published_figures_in_solutions_are_the_files():
    data = json.loads(repo.text("tests/published/attention.json"))
    series = {one["series"]: one for one in json.loads(repo.text("tests/published/kernels.json"))["series"]}
    layers = {tuple(row[:3]): row[3] for row in series["FP8 linear against bf16, H100"]["rows"]}
    assert f"{layers[1024, 2048, 1024]} times" in texts("five-remedies")
    rate = data["pr2605_fa4_d64"]
    assert f"{rate['TFLOPs'][-1] / rate['peak_TFLOPs']:.1%}" in texts("share-of-peak")
    fp8, fp16 = (next(row[-1] for row in series[name]["rows"] if row[: len(key)] == key) for name, key in (
        ("attention H100, FP8 forward", [256, 0, "fa3"]),
        ("attention H100, FlashAttention-3's figures", [256, 0, "fwd", "fa3"])))  # fmt: skip
    assert f"{fp8 / fp16:.2f} times" in texts("fp8-in-turn")
    assert f"{kernels.fp8_gain(H100, Attention(16384, 256, 8), overlapped=False):.2f}" in texts("fp8-in-turn")


def test_kernels_without_names_are_the_records():
    record = results.load(repo.ROOT / runs.RECORD)
    for name, saved in runs.KERNELS.values():
        for tokens, size in zip(runs.TOKENS, saved, strict=True):
            measured = record.measurement[f"bytes saved, {name}, {tokens} tokens, heads of {runs.HEAD}"]
            assert round(measured / 1e6, 2) == size
    kinds = dict(runs.KERNELS.values())
    fused, naive, again = (kinds[name] for name in ("SDPA, its choice", "naive", "naive, checkpointed"))
    assert naive[2] > 3 * naive[1] and fused[2] / again[2] == pytest.approx(4 / 3, rel=0.02)
