"""What a class plan tells the instructor to expect: right and wrong answers, figures on the screen, a broken line."""

import contextlib
import io
import json
import re
from itertools import product

import pytest
from repo import ROOT, text

from scaleout import exercises, views
from scaleout.exercises.mesh import wires
from scaleout.memory.accounts import account
from scaleout.records import results
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.timing import profile

PLAN = text("book/instructor/collectives.md")
ROW = re.compile(r"^\| ([^|]+) \| ([\d.]+[^|]*) \| ([\d.]+[^|]*) \| ([^|]+) \|$", re.M)
ROWS = ROW.findall(PLAN)
PLANS = {stem: text(f"book/instructor/{stem}.md") for stem in exercises.stems()}
EVERY_ROW = [(stem, *row[:3]) for stem, plan in PLANS.items() for row in ROW.findall(plan)]
KEYS = {exercise.title: exercise.key for exercise in exercises.catalogue("collectives")}


@pytest.mark.parametrize(("stem", "title", "right", "wrong"), EVERY_ROW)
def test_a_wrong_answer_to_expect_is_one_that_the_checker_names(stem, title, right, wrong):
    key = next(exercise.key for exercise in exercises.catalogue(stem) if exercise.title == title)
    assert exercises.check(stem, key, right)["ok"]
    assert exercises.check(stem, key, wrong)["slip"] in [slip.name for slip in exercises.exercise(stem, key).slips]


@pytest.mark.parametrize(("stem", "name"), [("fsdp", "06_fsdp"), ("capstone", "11_capstone")])
def test_minutes_are_those_that_the_exercises_say(stem, name):
    """In the class plan for each of them, at the chapter's beginning for all, to five minutes."""
    minutes = {exercise.title: exercise.spec()["minutes"] for exercise in exercises.catalogue(stem)}
    planned = re.findall(r"\*([A-Z0-9][^*]+)\* \((\d+)(?: minutes)?\)", PLANS[stem])
    assert len(planned) > 8 and {title: int(number) for title, number in planned} == {
        title: minutes[title] for title, _ in planned
    }
    total = int(re.search(r"whole chapter \| \d+ min \| (\d+) min", text(f"notebooks/{name}.ipynb"))[1])
    assert total == 5 * round(sum(minutes.values()) / 5)


def test_each_plan_has_wrong_answers_and_names_exercises_that_there_are():
    for stem, plan in PLANS.items():
        titles = {title.title for title in exercises.catalogue(stem)} | {"Predict", "For a room"}
        named = set(re.findall(r"\*([A-Z0-9][^*]+)\*(?!\*)", plan))
        assert len(ROW.findall(plan)) >= 5 and len(named) > 7, stem
        assert not {title for title in named if title.rstrip(",.") not in titles and title not in titles}, stem


def test_the_two_wrong_answers_are_slips_of_the_question_and_of_exercises():
    assert len(ROWS) == 5
    slips = {round(value, 3): words for value, words in views.question("collectives")["slips"]}
    assert {0.875, 7.0} <= set(slips), slips
    for key, half, slip in (("ring-seconds", "0.15 s", "half"), ("hierarchical", "0.75 GB", "forgot-all-gather")):
        assert exercises.check("collectives", key, half)["slip"] == slip and half in PLAN


def test_the_figures_to_expect_are_the_recorded_ones():
    run = results.load(ROOT / "labs/results/collectives/cpu-cpu-2.json")
    for algorithm, words in (("gloo", "272 µs and moves 1.47 GB/s"), ("ring", "471 µs and 1.32 GB/s")):
        point = re.compile(rf"{algorithm} all_reduce, (\d+) B: seconds, its line")
        swept = [
            (int(match[1]), seconds) for name, seconds in run.measurement.items() if (match := point.fullmatch(name))
        ]
        line = profile.fit(sorted(swept))
        alpha, rate = re.findall(r"[\d.]+", words)
        assert f"{line['alpha_seconds'] * 1e6:.0f}" == alpha and f"{1e-9 / line['seconds_per_byte']:.2f}" == rate
        assert words in PLAN and f"{max(swept)[0] / max(swept)[1] / 1e9:.2f}" == "1.39"


def test_two_notebooks_lose_and_round_what_the_plan_of_precision_says():
    plan = PLANS["precision"]
    match = re.search(r"ten gradients, (.*) and ([\d.]+), and two activations, ([\d.]+) and ([\d,]+)\.", plan)
    gradients = [float(number) for number in [*match[1].split(", "), match[2]]]
    twelve = [*gradients, float(match[3]), float(match[4].replace(",", ""))]
    assert len(gradients) == 10 and len(twelve) == 12
    lost = lambda x: not 0.001 <= float(f"{x:.2e}") <= 999  # noqa: E731
    assert [sum(map(lost, twelve)), sum(x < 0.0005 for x in twelve)] == [4, 3] and "(Four, all in the first" in plan
    assert sum(float(f"{x:.1e}") != x for x in twelve) == 7 and "rounds seven" in plan
    assert [ten for ten in (1, 10, 100, 1000) if not any(lost(ten * x) for x in gradients)] == [100]
    assert float(f"{1 + 0.04:.1e}") == 1.0 and round(1 + 10 * 0.04, 1) == 1.4


def test_the_figures_of_precision_to_expect_are_the_recorded_ones():
    run, plan = results.load(ROOT / "labs/results/precision/smoke-cpu-1.json"), PLANS["precision"]
    lost = "share of gradients that are zero, fp16 matmuls, no loss scale"
    for shares in (run.prediction, run.measurement):
        assert round(shares[lost], 2) == 0.08 and shares[lost.replace("no loss", "loss")] < 0.002
        assert 0.24 < shares["share of weights that an update does not change, bf16 throughout"] < 0.27
        assert shares["steps skipped"] == 1
    for words in (
        "8% of the gradients become zero",
        "a quarter of the weights do not change",
        "skips one of the first seed",
    ):
        assert words in plan
    losses = [run.series[f"loss, {way}, seed 0"] for way in ("fp32", "fp16 matmuls, no loss scale")]
    assert len(losses[0]) == 24 and all(abs(a / b - 1) < 5e-4 for a, b in zip(*losses, strict=True))
    parts = next(note for note in run.notes if "gradients' errors are of" in note).split(", then ")[1:]
    _, *errors = run.series["relative error of gradients by part, fp16 matmuls, no loss scale"]
    worst = {part: error for part, error in zip(parts, errors, strict=True) if error > 0.4}
    assert [*worst] == ["block 2, queries and keys"] and round(*worst.values(), 1) == 0.5
    assert "an error of half its own size" in plan


def test_the_norms_that_the_plan_of_zero_says_are_those_of_the_chapters_run():
    cells = {cell["id"]: cell for cell in json.loads(text("notebooks/05_zero.ipynb"))["cells"]}
    first = re.search(r"^1 .*$", "".join(cells["zero-fault"]["outputs"][0]["text"]), re.M)[0].split()
    match = re.search(r"norms are ([\d.]+) and ([\d.]+) in the first step", PLANS["zero"])
    assert [float(number) for number in match.groups()] == pytest.approx(
        [float(number) for number in first[3:5]], rel=2e-3
    )


def test_eight_people_send_and_walk_what_the_plan_of_three_axes_says():
    blocks, micro, weights = 3, 2, 4
    cards = list(product((0, 1), repeat=3))  # stage, replica, part
    sent = {card: (micro * (card[0] == 0), weights, blocks * micro) for card in cards}
    assert set(sent.values()) == {(2, 4, 6), (0, 4, 6)} and "(6, 2 or none, and 4.)" in PLANS["mesh"]
    walked = [sum(bytes_by_axis[axis] for bytes_by_axis in sent.values()) for axis in (2, 0)]
    assert "({} and {}.)".format(*walked) in PLANS["mesh"]
    once = wires.sent
    two_micro_batches, four_micro_batches = (once(4, 2, 2, m, 3, 1, 4) for m in (2, 4))
    assert [b / a for a, b in zip(two_micro_batches, four_micro_batches, strict=True)] == [
        2,
        1,
        2,
    ] and "(Two of the three.)" in PLANS["mesh"]


def test_a_ring_with_the_sign_turned_passes_no_sum_on():
    cells = json.loads(text("notebooks/10_collectives.ipynb"))["cells"]
    source = "".join(next(cell for cell in cells if cell["id"] == "collectives-ring")["source"])
    assert "(rank - step) % ranks" in source and "(rank + step) % ranks" in PLAN
    ring = source[source.index("def ring") : source.index("\n\n")].splitlines()
    assert len(ring) == 14 and "14 lines" in source and "fourteen lines" in PLAN
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(source.replace("(rank - step)", "(rank + step)"), names)
    assert max(len(part) for mine in names["held"] for part in mine) == 2


def test_the_figures_of_recomputation_are_the_recorded_ones():
    run, plan = results.load(ROOT / "labs/results/recompute/smoke-cpu-2.json"), PLANS["recompute"]
    ends = {
        saved: {
            name: run.measurement[f"{name}, {saved}, torch.utils.checkpoint"]
            for name in ("bytes the blocks keep", "bytes at the peak", "FLOPs recomputed")
        }
        for saved in ("everything", "inputs alone")
    }
    saved, peak, recomputed = ([figures[name] for figures in ends.values()] for name in ends["everything"])
    assert "save {:.1f} MB with everything and {:.1f} with inputs alone".format(*(n / 1e6 for n in saved)) in plan
    assert "from {:.1f} MB to {:.1f}".format(*(n / 1e6 for n in peak)) in plan
    assert f"({recomputed[1] / 1e9:.2f} GFLOP with inputs alone)" in plan and recomputed[0] == 0
    gathers = {n for name, n in run.measurement.items() if name.startswith("all-gathers per step")}
    assert gathers == {7} and "7 all-gathers per step" in plan


def test_the_figures_of_the_capstone_are_the_recorded_ones():
    plan = PLANS["capstone"]
    run = {
        n: results.load(ROOT / f"labs/results/scaling/smoke-cpu-strong-{n}.json")
        for n in ("1-one", "2-ddp", "2-fsdp", "4-ddp", "4-fsdp")
    }
    efficiency = {n: record.rate / int(n[0]) / run["1-one"].rate for n, record in run.items()}
    assert f"efficiency {efficiency['2-ddp']:.2f} for DDP and {efficiency['2-fsdp']:.2f} for FSDP" in plan
    assert max(efficiency["4-ddp"], efficiency["4-fsdp"]) < 0.25
    peak = results.load(ROOT / "labs/results/capstone/smoke-cpu-2-fsdp.json").measurement["peak bytes"]
    assert f"{peak / 1e6:.2f} MB" in plan
    slips = {round(value): words for value, words in views.question("capstone")["slips"]}
    assert {512, 64} <= set(slips) and f"where {views.render('capstone')['values']['strong_speed_up']:.0f} is" in plan


def test_squares_on_a_sheet_make_the_moments_that_the_plan_of_memory_says():
    plan, loss = PLANS["memory"], [12 + tokens * (2 * 2 + 1) for tokens in (1, 2)]
    sentence = "(One token: {} at the loss, 20 at the update. Two tokens: {} at the loss, and the sheet has 21.)"
    assert sentence.format(*loss) in plan
    assert loss[0] < 12 + 4 + 4 < 21 < loss[1]
    cells = json.loads(text("notebooks/01_memory.ipynb"))["cells"]
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec("".join(next(cell for cell in cells if cell["id"] == "memory-by-hand")["source"]), names)
    moments = {tokens: names["by_hand"](*names["gpt2"], tokens) for tokens in (834, 835)}
    assert [max(sizes, key=sizes.get) for sizes in moments.values()] == ["update", "loss"] and "(835.)" in plan


def test_the_figures_of_memory_to_expect_are_the_recorded_ones():
    plan, folder = PLANS["memory"], ROOT / "labs/results/memory"
    two, alone = (results.load(folder / f"smoke-cpu-{n}.json") for n in (2, 1))
    peaks = [run.measurement["peak bytes"] for run in (two, alone)]
    for size in (*peaks, peaks[0] - peaks[1]):
        assert f"{size / 1e6:.2f} MB" in plan
    assert abs(two.prediction["peak bytes"] - peaks[0]) < 1000
    large = account(PRESETS["llama-2-70b"], 4, 2048)
    assert f"{large.peak_bytes / 1e9:,.2f} GB, at the update" in plan and large.peak_moment == "optimizer"
    parameters = total_parameters(PRESETS["llama-2-7b"])
    slips = [round(value, 1) for value, _ in views.question("memory")["slips"]]
    assert {round(16 * parameters / 1e9, 1), round(2 * parameters / 1e9, 1)} == {107.8, 13.5} <= set(slips)
    assert all(f"**{words}** in *Predict*" in plan for words in ("108 GB", "13.5 GB"))


def test_a_carrier_makes_wait_as_long_as_the_plan_of_data_parallelism_says():
    waits = []
    for slips in (1, 2, 4, 8):
        free = 0
        for ready in range(slips, 9, slips):
            free = max(ready, free) + 1 + slips
        waits.append(free - 8)
    assert "({}, {}, {} and {} claps.)".format(*waits) in PLANS["ddp"]


def test_the_figures_of_data_parallelism_to_expect_are_the_recorded_ones():
    plan, run = PLANS["ddp"], results.load(ROOT / "labs/results/ddp/smoke-cpu-2.json")
    milliseconds = {
        way: run.measurement[f"seconds per step, {way}"] * 1e3
        for way in ("naive", "buckets by hand", "torch DDP", "one process, all threads")
    }
    assert (
        "naive takes {:.0f} ms per step, buckets by hand {:.0f}, torch DDP {:.0f}, "
        "one process with both cores {:.0f}".format(*milliseconds.values())
    ) in plan
    assert all(
        abs(run.prediction[f"seconds per step, {way}"] / milliseconds[way] * 1e3 - 1) < 0.15
        for way in list(milliseconds)[:3]
    )
    sent = [run.measurement[f"collectives per step, {way}"] for way in ("naive", "torch DDP")]
    assert f"naive starts {sent[0]:.0f} all-reduces per step and the others {sent[1]:.0f}" in plan
    assert f"all {len(run.checks)} checks" in plan
    folder = ROOT / "labs/results/slow_link"
    link = [results.load(folder / f"cpu-2-hosts-{rate}.json").measurement for rate in ("unlimited", "100-mbit")]
    assert (
        "from {:.0f} ms to {:.0f} at 100 Mbit/s".format(
            *(1e3 * measurement["seconds per step"] for measurement in link)
        )
        in plan
    )
    slips = [round(value, 1) for value, _ in views.question("ddp")["slips"]]
    assert {50.9, 3.9} <= set(slips) and "**50.9%** in *Predict*" in plan and "**3.9%** in *Predict*" in plan


def test_the_figures_of_fsdp_are_the_recorded_ones_and_its_wrong_guesses_are_slips():
    run, plan = results.load(ROOT / "labs/results/fsdp/smoke-cpu-2.json"), PLANS["fsdp"]
    ways = ("by hand, naive", "by hand, prefetching", "fully_shard")
    for way in ways:
        assert run.measurement[f"all-gathers per step, {way}"] == 9 == run.prediction[f"all-gathers per step, {way}"]
        assert run.measurement[f"reduce-scatters per step, {way}"] == 5
    assert "9 all-gathers and 5 reduce-scatters" in plan
    assert f"peaks at {run.measurement['peak bytes'] / 1e6:.2f} MB" in plan
    milliseconds = [f"{1e3 * run.measurement[f'seconds per step, {way}']:.1f}" for way in ways]
    assert "{} ms by hand and naive, {} with one gather ahead, {} by `fully_shard`".format(*milliseconds) in plan
    sweep = results.load(ROOT / "labs/results/fsdp/smoke-cpu-2-sweep.json").peak_memory
    rows = (
        "wrap model, checkpointing none",
        "wrap block, reshard true, checkpointing none",
        "wrap block, reshard true, checkpointing full",
    )
    sentence = "{} MB with the model as one unit, {} by blocks, {} by blocks with checkpointing"
    assert sentence.format(*(f"{sweep[row] / 1e6:.2f}" for row in rows)) in plan
    slips = {round(value, 1) for value, _ in views.question("fsdp")["slips"]}
    assert {10.9, 8.0} <= slips and "10.9 GiB" in plan and "8 GiB" in plan
