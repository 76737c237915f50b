"""labs/scaling.py: which runs, predictions, what limits, a graded prediction, refusals; and real runs."""

import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pool
import pytest
import samples
from cases import refused
from repo import ROOT

from scaleout.records import results
from scaleout.spec.sharding import units
from scaleout.spec.transformer import flops, total_parameters
from scaleout.train import curves, worlds
from scaleout.train import options as train_options
from scaleout.train.worlds import BEYOND, FROM_ONE, RATE, SECONDS, Run, plan

sys.path.insert(0, str(ROOT / "labs"))

import scaling

LAB = "labs/scaling.py"
NO_ROOM = "labs/capstone.py: no room"
TINY = ["--layers", "1", "--hidden", "32", "--heads", "2", "--ff", "64", "--seq", "32", "--steps", "8"]
JOB = train_options.Options(layers=2, hidden=64, heads=4, ff=None, seq=64, batch=8)


def record(world, seconds, batch=8, strategy="fsdp", device="2-core x86-64 CPU", peak=5e10, **more):
    """A Record of the training job with equal steps."""
    spent = [9.0, *[seconds] * 5]
    work = flops(JOB.shape, batch, JOB.seq)
    return replace(
        samples.sample(),
        stem="capstone",
        device=device,
        device_count=world,
        backend="none" if world == 1 else "gloo",
        model=asdict(JOB.shape),
        recipe={"strategy": strategy},
        effective_batch=batch,
        sequence_length=JOB.seq,
        step_seconds=spent,
        tokens_per_second=batch * JOB.seq / seconds,
        losses=[3.0] * 6,
        peak_memory={},
        prediction={},
        measurement={},
        mfu=(work["forward"] + work["backward"]) / seconds / peak / world,
        mfu_peak={"flops_per_second": peak * world, "source": "this test"},
        **more,
    )


def profile(world, kind="cpu"):
    lines = samples.profile(world)["collectives"]
    lines.pop("broadcast", None)  # which the job does not call
    return samples.profile(world, device_kind=kind, collectives=lines)


# --- which runs ---------------------------------------------------------------------------------------------------


def test_the_plan_shares_its_largest_runs_and_its_single_process():
    runs = plan([1, 2, 4], ("strong", "weak"), ("fsdp", "ddp"), 8)
    assert [(r.mode, r.world, r.strategy, r.batch) for r in runs] == [
        ("strong", 1, "one", 8),
        ("strong", 2, "fsdp", 8),
        ("strong", 2, "ddp", 8),
        ("strong", 4, "fsdp", 8),
        ("strong", 4, "ddp", 8),
        ("weak", 1, "one", 2),
        ("weak", 2, "fsdp", 4),
        ("weak", 2, "ddp", 4),
        ("weak", 4, "fsdp", 8),
        ("weak", 4, "ddp", 8),
    ]
    assert len({run.work for run in runs}) == 8, "the largest are run once"
    assert runs[3].name("cpu", "cuda") == "cpu-cuda-strong-4-fsdp.json"


def test_the_job_gets_the_words_that_this_lab_does_not_know():
    assert worlds.job("smoke", ["--hidden", "96", "--steps", "7"]).hidden == 96
    words = worlds.command(Run("weak", 2, "ddp", 4), ["--steps", "7"], "x.json")
    options = worlds.parse(train_options.TIERS, "", words)[1]
    assert (options.batch, options.strategy, options.steps, options.save, options.sample) == (4, "ddp", 7, "x.json", 0)
    asked = ["--wrap", "layer", "--offload", "--reshard", "false"]
    for strategy, found in (("fsdp", ("layer", True, "false")), ("ddp", ("block", False, "true"))):
        options = worlds.parse(train_options.TIERS, "", worlds.command(Run("weak", 2, strategy, 4), asked, "x.json"))[1]
        assert (options.wrap, options.offload, options.reshard) == found
    runs = plan([1, 2], ("strong",), ("fsdp", "ddp"), 8)
    scaling.refuse(worlds.job("smoke", asked), runs, "cpu")  # what is asked of shards is for the runs of fsdp
    with pytest.raises(ValueError, match="--checkpoint-every is chosen by this lab"):
        worlds.job("smoke", ["--checkpoint-every", "3"])


# --- prediction ---------------------------------------------------------------------------------------------------


def test_one_process_calibrates_and_the_model_says_the_rest():
    share = worlds.efficiency(profile(1), record(1, 0.05, strategy="one"), JOB)
    assert worlds.predict(Run("strong", 1, "one", 8), JOB, profile(1), share).seconds == pytest.approx(0.05)
    two = worlds.predict(Run("strong", 2, "fsdp", 8), JOB, profile(2), share)
    root, *blocks = [4 * 2 * unit.shard(2) for unit in units(JOB.shape, JOB.sharding(2))]
    moved = 2 * root + 3 * sum(blocks)
    assert two.communication == pytest.approx((3 * len(blocks) + 2) * 1e-3 + moved * 1e-9), "one after the other"
    update = 28 * total_parameters(JOB.shape) / 1e10
    parts = two.communication + 2 * moved / 1e10, (0.05 - update) / 2  # FSDP's copies; half of the sequences
    assert (two.parts["exposed data"], two.parts["compute"]) == pytest.approx(parts, rel=1e-3)
    copied = worlds.predict(Run("weak", 2, "ddp", 4), JOB, profile(2), share)
    parts = copied.communication, (0.05 - update) / 4
    assert (copied.parts["exposed data"], copied.parts["compute"]) == pytest.approx(parts, rel=1e-3)
    refused(lambda: worlds.efficiency(profile(1), record(1, 1e-9), JOB), "give the time of a whole step")
    assert worlds.predict(Run("strong", 2, "fsdp", 8), JOB, profile(2, kind="cuda"), share).seconds < two.seconds


def test_the_rate_of_products_is_the_one_timed_in_the_run():
    slow = worlds.at_the_time(profile(2), record(2, 0.05, peak=2.5e10))
    assert slow["matmul_flops_per_second"] == {"fp32": 2.5e10} and slow["world"] == 2
    assert profile(2)["matmul_flops_per_second"] == {"fp32": 5e10}
    assert worlds.at_the_time(profile(2), replace(record(2, 0.05), mfu=None, mfu_peak=None)) == profile(2)


def test_prediction_and_measurement_stand_in_the_record(tmp_path):
    guess = worlds.predict(Run("strong", 2, "fsdp", 8), JOB, profile(2), 0.5)
    found = worlds.with_prediction(record(2, 0.04), guess)
    again = results.load(results.save(found, tmp_path / "x.json"))
    assert again.prediction == {FROM_ONE: guess.seconds} and again.measurement == {FROM_ONE: 0.04}
    assert again.rate == pytest.approx(8 * 64 / 0.04), "the median step, not the first"
    assert curves.predicted_rate(again) == pytest.approx(8 * 64 / guess.seconds)
    words = worlds.basis(profile(2), 0.5, "fp32")
    assert "of which the run on one process reached 0.50" in words and "all_gather: alpha 1.000 ms" in words


# --- what it says -------------------------------------------------------------------------------------------------


def series():
    """Strong: 100, 60, 40 ms on 1, 2, 4. Weak begins with a quarter of the batch; 4 processes are shared."""
    found = {
        Run("strong", 1, "one", 8): record(1, 0.1, strategy="one"),
        Run("strong", 2, "fsdp", 8): record(2, 0.06),
        Run("strong", 4, "fsdp", 8): record(4, 0.04),
        Run("weak", 1, "one", 2): record(1, 0.03, 2, "one"),
        Run("weak", 2, "fsdp", 4): record(2, 0.035, 4),
    }
    share = worlds.efficiency(profile(1), found[Run("strong", 1, "one", 8)], JOB)
    found = {
        run: worlds.with_prediction(r, worlds.predict(run, JOB, profile(run.world), share)) for run, r in found.items()
    }
    own = {"peak bytes": 10**6, BEYOND: 0.01, SECONDS: 0.1, RATE: 1.0}
    return {run: replace(r, prediction=r.prediction | own, measurement=r.measurement | own) for run, r in found.items()}


def test_records_in_a_folder_are_found_again(tmp_path):
    for run, r in series().items():
        results.save(r, tmp_path / run.name("smoke", "cpu"))
    results.save(record(2, 0.1), tmp_path / "gpu-cpu-strong-2-fsdp.json")
    found = worlds.found_in(tmp_path, "smoke", "cpu")
    assert found == dict(sorted({**series(), Run("weak", 4, "fsdp", 8): series()[Run("strong", 4, "fsdp", 8)]}.items()))
    assert all(results.load(worlds.file_of(tmp_path, run, "smoke", "cpu")) == r for run, r in found.items())
    assert worlds.found_in(tmp_path / "none", "smoke", "cpu") == {}


def test_efficiencies_and_the_table():
    found = {**series(), Run("weak", 4, "fsdp", 8): series()[Run("strong", 4, "fsdp", 8)]}
    groups = curves.series(found)
    assert list(groups) == [("strong", "fsdp"), ("weak", "fsdp")]
    assert curves.shares(groups["strong", "fsdp"]) == pytest.approx({1: 1, 2: 100 / 120, 4: 100 / 160})
    assert curves.shares(groups["weak", "fsdp"]) == pytest.approx({1: 1, 2: 30 / 35, 4: 30 / 40})
    text = curves.report(found)
    row = next(line for line in text.splitlines() if line.split()[:3] == ["strong,", "fsdp", "4"])
    assert row.split()[2:5] == ["4", "2", "40.0"] and "0.62" in row and "12,800" in row
    assert sum(line.startswith("strong, one") for line in text.splitlines()) == 1
    assert "busy" not in text
    for load, said in ((4.9, False), (5.1, True)):
        noted = replace(record(4, 0.04), notes=[f"load average {load} on 2 cores, this run included"])
        words = curves.report({**found, Run("strong", 4, "fsdp", 8): noted})
        assert (f"The machine was busy (load average {load} on 2 cores)" in words) is said
    assert sum("The largest part" in line for line in text.splitlines()) == 2, "one line a series"


def test_what_limits_is_the_larger_part():
    def say(seconds, waits):
        found = {BEYOND: waits}
        four = replace(record(4, seconds), prediction=found, measurement=found)
        return curves.limit(("strong", "fsdp"), {1: record(1, 0.1, strategy="one"), 4: four})

    assert "15.0 ms per step more than the ideal 25.0 ms. The largest part, 12.0 ms: communication" in say(0.04, 0.012)
    assert "11.0 ms: computation and updates, slower next to other processes (4 processes on 2 cores)" in say(
        0.04, 0.004
    )
    assert "nothing is lost" in say(0.025, 0.0)
    bare = curves.limit(("strong", "fsdp"), {1: record(1, 0.1, strategy="one"), 4: record(4, 0.04)})
    assert bare.endswith("efficiency 0.62; without a calibration the reason is unknown")


def test_the_figure_shows_every_series(tmp_path):
    curves.plot(series(), tmp_path / "a.svg", "a test")
    curves.plot(series(), tmp_path / "b.svg", "a test")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn == (tmp_path / "b.svg").read_text(), "the same bytes"
    panels = ("tokens per second", "efficiency", "MFU", "communication, copies, waiting", "peak memory")
    for words in (*panels, "strong, fsdp, measured", "weak, fsdp, predicted"):
        assert words in drawn
    bare = {run: replace(r, prediction={}, measurement={}) for run, r in series().items()}
    curves.plot(bare, tmp_path / "c.svg", "a test")
    drawn = (tmp_path / "c.svg").read_text()
    assert [words in drawn for words in panels] == [True, True, True, False, False], "nothing is made up"


def test_what_a_doubling_gave():
    said = curves.doubling(12_000, 18_000, 17_000)
    assert "Twice the processes gave 1.50 times the 12,000 tokens/s" in said and "an efficiency of 0.75" in said
    assert "The book's model predicted 17,000, 0.94 times that" in said
    assert "model" not in curves.doubling(12_000, 18_000)


KEPT = sorted((ROOT / "labs" / "results" / "scaling").glob("*.json"))


@pytest.mark.skipif(not KEPT, reason="labs/results/scaling holds no Records: python labs/scaling.py makes them")
def test_recorded_runs_hold_what_was_predicted_of_their_memory():
    for path in KEPT:
        r = results.load(path)
        if "peak bytes" in r.prediction:
            assert r.prediction["peak bytes"] == pytest.approx(r.measurement["peak bytes"], rel=0.02), path.name
        assert path.name.startswith(f"{r.tier}-{r.device_kind}-") and path.stem.endswith(r.recipe["strategy"])
    tiers = {(r.tier, r.device_kind) for r in map(results.load, KEPT)}
    for tier, kind in tiers:
        found = curves.series(worlds.found_in(KEPT[0].parent, tier, kind))
        assert all(min(records) == 1 and len(records) > 1 for records in found.values()), "each curve has its start"


# --- refusals -----------------------------------------------------------------------------------------------------

REFUSED = [
    (["--worlds", "1,two"], "--worlds 1,two: give numbers of processes from 1 to 64"),
    (["--mode", "big"], "--mode big: give one or several of strong, weak"),
    (["--strategies", "zero"], "--strategies zero: give one or several of fsdp, ddp"),
    (["--folder", "README.md"], "--folder README.md: is a file"),
    (["--plot", "x.png"], "the name must end in .svg"),
    (["--seconds", "99"], "--seconds is 99: it must be from 0 to 60"),
    (["--nonsense", "1"], "unrecognized arguments"),
    (["--save", "README.md"], "--save README.md: is a file"),
    (["--save", ""], "argument --save: needs"),
    (["--folder", "README.md/x"], "--folder README.md/x: is a file, or"),
    (["--inject", "nan:3"], "is chosen by this lab"),
    (["--hidden", "33"], "do not divide hidden size 33"),
    (["--replicas", "2", "--worlds", "1,2"], "--replicas 2 does not divide 1 processes"),
]


@pytest.mark.parametrize(("words", "line"), REFUSED)
def test_what_cannot_be_is_refused_before_any_work(words, line, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=re.escape(line)):
        scaling.options(words)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--worlds", "1,3"], "--worlds: 3 processes do not divide --batch 8: give --batch a multiple of 3"),
        (["--predict", "3:100"], "--predict 3:100: give PROCESSES:TOKENS_PER_SECOND, an even number"),
        (["--predict", "4:100", "--folder", "nowhere"], "there is no strong run of fsdp on 2 process(es) in nowhere"),
        (["--read", "--folder", "nowhere"], "nowhere holds no runs of tier smoke on cpu"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(words, line):
    done = pool.lab([LAB, *words])
    assert done.returncode == 2 and done.stdout == ""
    assert line in done.stderr and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("labs/scaling.py: ")


@pytest.mark.parametrize(
    ("words", "folder", "save"),
    [
        ([], scaling.RESULTS, None),
        (["--save"], scaling.RESULTS, scaling.RESULTS),
        (["--folder", "a"], Path("a"), Path("a")),
        (["--save", "b"], scaling.RESULTS, Path("b")),
        (["--folder", "a", "--save", "b"], Path("a"), Path("b")),
    ],
)
def test_records_are_kept_where_that_is_asked_for_and_nowhere_else(words, folder, save):
    o, _, _ = scaling.options(words)
    assert (o.folder, o.save) == (folder, save)


@pytest.mark.parametrize("name", ["scaling", "hang", "slow_link"])
def test_a_lab_that_starts_processes_is_not_started_several_times(name):
    for rank, said in (
        ("0", f"labs/{name}.py: starts its own processes: start it with python, not with torchrun\n"),
        ("1", ""),
    ):
        done = pool.lab([f"labs/{name}.py"], RANK=rank, WORLD_SIZE="2", TORCHELASTIC_RUN_ID="x")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


# --- real runs ----------------------------------------------------------------------------------------------------


def test_a_prediction_is_run_and_graded(tmp_path):
    """One process, then the reader's figure for two, which are sharded and share the batch."""
    more = ["--strategies", "fsdp", "--seconds", "0", "--folder", str(tmp_path), *TINY]
    pool.output([LAB, "--worlds", "1", "--mode", "strong", *more])
    assert [path.name for path in tmp_path.iterdir()] == ["smoke-cpu-strong-1-one.json"]
    output = pool.output([LAB, "--predict", "2:1000", *more])
    two = results.load(tmp_path / "smoke-cpu-strong-2-fsdp.json")
    assert (two.device_count, two.effective_batch, two.recipe["strategy"], two.recipe["ranks"]) == (2, 8, "fsdp", 2)
    assert two.prediction[worlds.READER] == 1000.0 and FROM_ONE not in two.prediction
    assert two.measurement[worlds.READER] == pytest.approx(two.rate)
    assert re.search(r"you predicted 1,000 tokens/s on 2 processes, and the run reached [\d,]+", output)
    assert "Twice the processes gave" in output
    output = pool.output([LAB, "--read", "--folder", str(tmp_path), "--plot", str(tmp_path / "x.svg")])
    assert "strong, fsdp" in output and (tmp_path / "x.svg").exists()


@pytest.mark.slow
def test_strong_and_weak_with_a_calibration(tmp_path):
    output = pool.output(
        [LAB, "--worlds", "1,2", "--seconds", "0.02", "--folder", tmp_path, "--strategies", "ddp", *TINY]
    )
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == [f"smoke-cpu-{name}.json" for name in ("strong-1-one", "strong-2-ddp", "weak-1-one")]
    one, two = (results.load(tmp_path / kept[i]) for i in (0, 1))
    assert one.prediction[FROM_ONE] == pytest.approx(one.measurement[FROM_ONE]), "this run calibrates"
    assert two.prediction[FROM_ONE] > 0 and "collectives timed just before: all_reduce: alpha" in two.notes[-1]
    assert two.prediction[BEYOND] > 0 and two.prediction[SECONDS] > 0 and two.prediction["peak bytes"] > 0
    assert "weak, ddp, 2 processes" in output


def test_a_run_that_fails_is_one_line(monkeypatch, capsys):
    def fail():
        raise RuntimeError("the run on 2 process(es) ended with code 1: " + NO_ROOM)

    monkeypatch.setattr(scaling, "main", fail)
    with pytest.raises(SystemExit) as error:
        scaling.shielded()
    assert error.value.code == 1
    assert capsys.readouterr().err == f"labs/scaling.py: the run on 2 process(es) ended with code 1: {NO_ROOM}\n"
