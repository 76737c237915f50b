"""The answers of `budget`'s exercises, against simulations, datasheets, published figures and the package."""

import json
import math
from functools import partial
from random import Random

import answers
import pytest
import repo
from cases import each

from scaleout.exercises.budget import cluster, lab, samples, tails
from scaleout.numerics.decoding import TOY, decoded
from scaleout.records import results
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import LINKS
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.timing.budget import LAWS, Budget

value = partial(answers.value, "budget")
right = partial(answers.right, "budget")
solution = partial(answers.solution, "budget")
texts = partial(answers.texts, "budget")
PUBLISHED = json.loads(repo.text("tests/published/self_distillation.json"))


def test_the_share_of_answers_is_that_of_counted_flops():
    parameters = total_parameters(PRESETS["llama-3-8b"])
    training = Budget(6 * parameters * 15e12, 0)
    answering = 2 * parameters * 1e9 * 12 * 2000
    whole = Budget(training.flops + answering, 1e9 * 2000).plan(parameters, 12)
    assert whole.tokens == pytest.approx(15e12)
    assert value("answers-share") == pytest.approx(whole.answering_share)


def test_a_compute_optimal_model_of_llama_3s_flops():
    flops = 6 * 8e9 * 15e12
    parameters = math.sqrt(flops / 6 / 20)
    assert round(parameters / 1e9) == 77 and round(20 * parameters / 1e12, 1) == 1.5
    assert "77 billion" in texts("waste-of-tokens") and right("waste-of-tokens") == "per-sample"
    law = LAWS["besiroglu"]
    assert law.loss(parameters, 20 * parameters) < law.loss(8e9, 15e12), "the statement about the loss"


@each(["besiroglu", "hoffmann"])
def test_the_best_of_a_list_is_near_the_best_of_all(name):
    law = LAWS[name]
    constants = [law.floor, law.model, law.model_power, law.data, law.data_power]
    sizes = [1e7 * 1.05**i for i in range(150)]
    for k in (1, 8, 64):
        place = solution("best-model")(sizes, 3e21, 1e10, k, constants)
        assert sizes[place] == pytest.approx(Budget(3e21, 1e10).best(law, k).parameters, rel=0.05)


def test_two_groups_by_drawing():
    random, questions = Random(1), 60_000
    solved = 0
    for i in range(questions):
        p = samples.P if i % 2 else 0.0
        solved += any(random.random() < p for _ in range(samples.K))
    assert value("two-groups") == pytest.approx(solved / questions, abs=0.006)


def test_the_estimator_is_unbiased_and_plugging_in_is_too_low():
    random, n, k = Random(4), 10, 8
    accuracies = [random.betavariate(0.4, 1.6) for _ in range(3000)]
    truth = sum(1 - (1 - p) ** k for p in accuracies) / len(accuracies)
    found = [sum(random.random() < p for _ in range(n)) for p in accuracies]
    plugged = sum(1 - (1 - c / n) ** k for c in found) / len(found)
    assert solution("pass-at")(found, n, k) == pytest.approx(truth, abs=0.012) and plugged < truth - 0.015


def test_a_sample_picked_at_random_is_right_as_often_as_one():
    random = Random(6)
    accuracies = [0.4, 0.0] * 500
    shown = [random.choice([random.random() < p for _ in range(64)]) for p in accuracies * 20]
    assert right("who-picks") == "twenty" and sum(shown) / len(shown) == pytest.approx(0.2, abs=0.01)


def test_the_sampler_is_the_packages():
    random = Random(8)
    for _ in range(100):
        p = [random.random() for _ in range(random.randint(1, 9))]
        p = [x / sum(p) for x in p]
        setting = random.uniform(0.3, 3), random.uniform(0.1, 0.99)
        assert solution("sampler")(p, *setting) == pytest.approx(decoded(p, *setting))


def test_locks_before_and_after_training():
    before, after = (toy.decoded(2.0) for toy in (TOY, TOY.trained()))
    assert round(before.right[2], 2) == 0.45 and after.right[2] == 1 and right("sure-at-two") == "no-tail"
    assert sum(p > 0 for p in TOY.trained().lock) == 2 and sum(p > 0 for p in before.lock) == 6
    assert decoded(TOY.trained().lock, 2.0)[0] > 0.8


def test_published_figures_stand_as_they_were_published():
    base, gained = PUBLISHED["pass1_percent"]["Qwen3-30B-Instruct"]
    wild = PUBLISHED["without_truncation"]
    for number in (base, gained, wild["pass1_percent"], round(100 * wild["samples_without_code"])):
        assert f"{number}%" in texts("no-code-at-all")


def test_the_seconds_to_write_are_those_of_the_datasheet():
    h100 = DEVICES["h100-sxm"]
    per_step = 8e9 * 2 / h100.memory_bytes_per_s
    steps = 40e6 / (8 * 32)
    assert value("time-to-write") == pytest.approx(steps * per_step)
    training = 6 * 8e9 * 40e6 / 8 / (0.4 * h100.bf16_flop_per_s)
    assert training < value("time-to-write") and f"{training:.0f} s at 40%" in texts("time-to-write")
    assert 2 * 8e9 * cluster.BATCH / h100.bf16_flop_per_s < per_step, "it waits for memory"


def test_shards_that_write():
    weights, gpus, usable = 140e9, 16, 80e9
    assert weights / 8 < usable < weights and right("shards-that-write") == "copy-to-tp"
    assert f"{weights / 8 / 1e9:.1f} GB" in texts("shards-that-write")
    assert f"{weights * (1 - 1 / gpus) / 1e9:.0f} GB" in texts("shards-that-write")
    seconds = weights * (1 - 1 / gpus) / LINKS["nvlink4"].one_way_bytes_per_s
    assert f"takes {seconds:.1f} s" in texts("shards-that-write")
    assert f"{1e3 * weights / 8 / DEVICES['h100-sxm'].memory_bytes_per_s:.0f} ms" in texts("shards-that-write")
    shape = PRESETS["llama-3-70b"]
    assert 1e6 < 2 * shape.layers * 2 * shape.hidden < 9e6, "megabytes per token: two all-reduces in each block"


def test_no_exercise_of_tails_says_that_anything_was_checked():
    assert right("own-text-uncut") == "stays" and right("no-code-at-all") == "selection"
    assert tails.DECODED.function == "decoded"


def test_the_table_of_the_lab_is_the_records():
    record = results.load(repo.ROOT / lab.RECORD)
    assert record.device_count == 2 and all(check["passed"] for check in record.checks.values())
    for name, (_, digits, factor) in lab.FIGURES.items():
        for model, (mean, half) in lab.SEEN[name].items():
            found = [factor * value for value in record.series[f"{name}, {model}"]]
            assert round(sum(found) / len(found), digits) == mean
            assert round((max(found) - min(found)) / 2, digits) == half
    assert round(record.measurement["pass@4 of the base"], 4) == lab.PASS_4
    assert round(record.measurement["pass@16 of the base"], 4) == lab.PASS_16


def test_what_was_gained_is_what_the_table_says():
    change = {name: models["own"][0] / models["base"][0] - 1 for name, models in lab.SEEN.items()}
    assert change["sure"] < 5 * change["open"] < 0 and right("what-was-gained") == "sharper"
    assert f"by {-change['sure']:.0%}" in texts("what-was-gained") and f"by {-change['open']:.0%}" in texts(
        "what-was-gained"
    )
    assert lab.SEEN["among"]["own"][0] < lab.SEEN["among"]["base"][0]
    for name in ("loss", "other_loss"):
        rise, half = lab.SEEN[name]["own"][0] - lab.SEEN[name]["base"][0], lab.SEEN[name]["own"][1]
        assert rise > 10 * half and f"{rise:.3f}" in texts("what-was-gained")
        assert lab.SEEN[name]["real"][0] > lab.SEEN[name]["base"][0]
    assert value("from-four-to-sixteen") == pytest.approx(1 - (1 - 0.0793) ** 4) and lab.PASS_16 < lab.ALIKE / 2
