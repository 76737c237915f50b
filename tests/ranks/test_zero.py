"""ZeRO by hand, by ZeroRedundancyOptimizer and by fully_shard on real processes: values, messages, what each rank
holds; Muon on cut matrices, a clipped shard; and labs/zero.py as a reader starts it."""

import importlib.util
import json
import re

import pool
import pytest
import samples
import specimen_zero
from lab_runs import recorded, torchrun, without

from scaleout.collectives import zero as wire
from scaleout.lab import runner
from scaleout.lab import zero as lab_zero
from scaleout.measure import zero_muon
from scaleout.parallel import zero_deepspeed
from scaleout.records import profiles

TOLERANCE = 1e-5  # fp32, sums in other orders: a few units in the last place of 1.2e-7, see parallel/parity.py
PADDED = 0.06  # of a byte count: rows and units that this model's odd sizes make longer
FAST = ["labs/zero.py", "--layers", "2", "--hidden", "64", "--heads", "2", "--seq", "32", "--steps", "5"]


# What a step of the lab sends in calls, of three units, 36 tensors, one bucket; the lab counts them.
CALLS = {
    "ddp": {"all_reduce": 1},
    "stage-1": {"all_gather": 3, "reduce_scatter": 3},
    "stage-2": {"all_gather": 3, "reduce_scatter": 3},
    "stage-3": {"all_gather": 6, "reduce_scatter": 3},
    "zero-redundancy": {"all_reduce": 1, "broadcast": 36},
    "keep": {"all_gather": 3, "reduce_scatter": 3},
    "reshard": {"all_gather": 5, "reduce_scatter": 3},
}


@pytest.fixture(scope="module")
def cases():
    return {ranks: pool.ranks(specimen_zero.main, ranks)[0] for ranks in (2, 4)}


@pytest.fixture(scope="module")
def runs(cases):
    return {(ranks, via): run for ranks, found in cases.items() for via, run in found["ways"].items()}


def test_losses_all_gradients_weights_and_states_are_one_processs(runs, cases):
    assert len(runs) == 16
    for name, run in (runs | cases[2]["passes"]).items():
        for what in ("losses", "gradients", "weights", "exp_avg", "exp_avg_sq"):
            assert run[what] < TOLERANCE, (name, what)


def test_a_step_sends_what_the_pure_model_says(runs, cases):
    for name, run in (runs | cases[2]["passes"]).items():
        found, wanted = run["sent"]
        assert found == pytest.approx(wanted, rel=PADDED), name
        for collective, count in run["counts"].items():
            assert count in (None, run["calls"][collective]), (name, collective)
    assert runs[4, "stage-3"]["calls"] == {"all_gather": 6, "reduce_scatter": 3}
    assert runs[4, "zero-redundancy"]["calls"]["broadcast"] == 36, "one a tensor"


def test_stage_2_reduces_in_every_pass_and_stage_1_in_the_last(cases):
    calls = {via: run["calls"] for via, run in cases[2]["passes"].items()}
    assert calls["ddp"]["all_reduce"] == 1
    norm = {"all_reduce": 1}
    assert calls["stage-1"] == {"reduce_scatter": 3, "all_gather": 3} | norm, "they are clipped"
    assert calls["stage-2"] == {"reduce_scatter": 6, "all_gather": 3} | norm
    assert calls["stage-3"] == {"reduce_scatter": 6, "all_gather": 12} | norm


def test_each_rank_holds_of_every_state_what_its_stage_says(runs):
    for name, run in runs.items():
        for state, (found, wanted) in run["held"].items():
            assert found == pytest.approx(wanted, rel=PADDED), (name, state)
    whole = {
        via: [state for state, (found, _) in run["held"].items() if found > 80_000]
        for (ranks, via), run in runs.items()
        if ranks == 4
    }
    assert whole == {
        "ddp": ["weights", "gradients", "momentum", "variance"],
        "stage-1": ["weights", "gradients"],
        "stage-2": ["weights"],
        "stage-3": [],
        "zero-redundancy": ["weights", "gradients"],
        "keep": [],
        "reshard": [],
        "accelerate": ["weights", "gradients"],
    }


def test_the_peak_is_the_predicted_one(runs):
    for name, run in runs.items():
        found, wanted = run["peak"]
        assert wanted == pytest.approx(found, rel=0.01), name


def test_what_was_built_is_said(runs):
    assert runs[2, "stage-2"]["built"] == (
        "Stage2 in 3 unit(s) on 2 rank(s): 89,616 of 89,608 bytes of weights on "
        "this rank, which steps 11,202 of 22,402 parameters"
    )
    assert runs[4, "accelerate"]["built"].endswith("parameters (DistributedType.MULTI_CPU)")


def test_gloo_makes_an_all_reduce_of_a_reduce_scatter(cases):
    for collective, found in cases[2]["gloo"].items():
        as_sent = "all_reduce" if collective == "reduce_scatter" else collective
        assert found == pytest.approx(wire.share(as_sent, 2), rel=0.02), collective


def test_a_state_that_was_never_consolidated_cannot_be_saved(cases):
    assert cases[2]["consolidated"].startswith("RuntimeError: Optimizer state has not been consolidated on this rank")


# --- Muon -------------------------------------------------------------------------------------------------------------


def test_muon_on_gathered_or_whole_matrices_is_one_processs(cases):
    for ranks in (2, 4):
        for via in set(zero_muon.RIGHT) & set(cases[ranks]["muon"]):
            row = cases[ranks]["muon"][via]
            assert max(row["errors"].values()) < 2 * TOLERANCE, (ranks, via)
            assert row["measured"]["sent"] == pytest.approx(row["predicted"]["sent"], rel=PADDED), (ranks, via)
            for state in ("momentum", "variance"):
                assert row["measured"][state] == pytest.approx(row["predicted"][state], rel=PADDED), (ranks, via)


def test_torchs_muon_gathers_inside_every_step_of_newton_schulz(cases):
    row = cases[2]["muon"]["reshard"]
    assert row["errors"]["weights"] < 0.2, "bf16"
    assert row["calls"]["all_gather"].count >= 5 * 12, "at least one a step and matrix"
    assert row["measured"]["sent"] > 1.5 * cases[2]["muon"]["stage-3"]["measured"]["sent"]


def test_rows_made_orthogonal_by_themselves_are_wrong_and_nothing_errors(cases):
    for ranks in (2, 4):
        rows = cases[ranks]["muon"]
        assert rows["rows"]["errors"]["weights"] > 0.1
        assert rows["rows"]["singular"] > 1.2 * rows["one"]["singular"], "ranks' rows point the same way, and add up"
        assert rows["rows"]["calls"] == {}


# --- the fault --------------------------------------------------------------------------------------------------------


def test_a_shards_own_norm_is_found_by_the_assertion_and_by_nothing_else(cases):
    found = cases[2]["fault"]
    one, other = found["norms"]
    assert one**2 + other**2 == pytest.approx(found["whole"] ** 2, rel=1e-5)
    assert found["copies"] == 0, "the ranks have the same wrong weights"
    assert found["apart"] > 1e-3
    assert found["well"] == ""
    assert found["sick"] == (
        f"the ranks clip by different norms ({one:.4f}, {other:.4f}): each used the norm of its own shard; "
        "sum the squares over all ranks first"
    )


# --- the lab ----------------------------------------------------------------------------------------------------------

ALPHAS = {"all_reduce": 1e-3, "all_gather": 2e-3, "reduce_scatter": 3e-3, "broadcast": 4e-3}
PROFILE = samples.profile(
    matmul_flops_per_second={"fp32": 1e15},
    copy_bytes_per_second=1e15,
    collectives={name: {"alpha_seconds": alpha, "seconds_per_byte": 0.0} for name, alpha in ALPHAS.items()},
)


def test_the_lab_on_two_processes(tmp_path):
    machine = profiles.save(PROFILE, tmp_path / "machine.json")
    record, said = recorded(pool.lab, [*FAST, "--machine", machine], 2, tmp_path)
    seconds = {via: record.prediction[f"seconds per step, {lab_zero.NAMES[via]}"] for via in CALLS}
    for via, calls in CALLS.items():
        alphas = sum(count * ALPHAS[name] for name, count in calls.items())
        assert seconds[via] == pytest.approx(alphas, rel=1e-3), via
        assert record.measurement[f"seconds per step, {lab_zero.NAMES[via]}"] > 0
    assert all(words in said for words in ("1 AR + 36 broadcast", "6 AG + 3 RS", "5 AG + 3 RS", "3 AG + 3 RS"))
    assert "ms predicted: by the profile of labs/calibrate.py" in said
    assert "ratio  predicted " in said and "predicted step times: off by " in said
    older = [one for one in record.skipped if "seconds" in one]
    assert len(older) == 1 and "the machine's profile is an older one" in older[0], "this one has no kernels"
    assert all(check["passed"] for check in record.checks.values())
    names = [
        lab_zero.NAMES[via] for via in ("ddp", "stage-1", "stage-2", "stage-3", "zero-redundancy", "keep", "reshard")
    ]
    for name in names:
        for what in ("losses", "gradients", "weights", "momentum", "variance"):
            assert record.checks[f"{name}: {what} equal one process"]["value"] < TOLERANCE
        for figure in ("bytes sent per step", "peak bytes", "bytes of weights", "bytes of momentum"):
            assert record.measurement[f"{figure}, {name}"] == pytest.approx(
                record.prediction[f"{figure}, {name}"], rel=0.02
            )
    assert (record.recipe["optimizer"], record.effective_batch) == ("adamw", 2)
    assert record.losses[-1] < record.losses[0]
    assert "10 AG" not in said and "6 AG + 3 RS" in said


def test_the_lab_with_muon(tmp_path):
    record, said = recorded(pool.lab, [*FAST, "--layers", "1", "--optimizer", "muon"], 2, tmp_path)
    assert "prediction of step time: only for AdamW" in record.skipped
    assert all(check["passed"] for check in record.checks.values())
    assert "each rank its own rows: WRONG" in said
    sent = record.measurement
    assert sent["bytes sent in an update, stage 1 by hand"] > 1.8 * sent["bytes sent in an update, stage 3 by hand"]


def test_without_a_profile_the_lab_says_so(tmp_path):
    record, said = recorded(pool.lab, [*FAST, "--layers", "1"], 1, tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert runner.NO_PROFILE in record.skipped and f"skipped {runner.NO_PROFILE}" in said
    assert not any("seconds" in figure for figure in record.prediction) and "off by" not in said
    assert "peak  ratio " in said and "ms predicted" not in said


def test_the_lab_shows_the_fault():
    output = pool.output([*without(FAST, "--steps"), "--fault", "clip"], 2)
    rows = [line.split() for line in output.splitlines() if line[:1].isdigit() and len(line.split()) == 8]
    assert len(rows) == 5
    assert {row[-1] for row in rows} == {"0.0e+00"}
    assert "RuntimeError: the ranks clip by different norms (" in output.splitlines()[-1]


def test_accelerate_takes_deepspeeds_plugin_on_a_cpu_and_builds_ddp():
    """As the chapter says in *Use it*: nothing is split, nothing is said, and what it built tells."""
    done = torchrun(["tests/ranks/specimen_plugin.py"])
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in re.findall(r"BUILT (.*)", done.stdout)]
    whole = 4 * (64 * 64 + 64)
    assert said == 2 * [{"as asked": False, "wrapper": "DistributedDataParallel", "processes": 2, "momentum": whole}]
    assert "deepspeed" not in (done.stdout + done.stderr).lower()


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="DeepSpeed is here")
def test_without_deepspeed_its_ways_are_refused_in_one_line():
    with pytest.raises(ValueError) as caught:
        zero_deepspeed.refuse("deepspeed-2")
    assert str(caught.value) == (
        "--via deepspeed-2 needs the package deepspeed, which is not installed here: pip "
        "install deepspeed, or use --via stage-2, the same by hand"
    )
    zero_deepspeed.refuse("stage-2", 4)
