"""labs/fsdp.py as a reader starts it: parity, prediction and measurement, a grid of knobs, refusals."""

import json
import re

import pool
import pytest
from lab_runs import ROOT, lab_module, recorded, torchrun, without

from scaleout.lab import fsdp as lab_fsdp
from scaleout.lab import report
from scaleout.lab.session import session
from scaleout.measure import fsdp_knobs
from scaleout.records import results, trace

FAST = ["--layers", "2", "--hidden", "96", "--heads", "4", "--seq", "64", "--steps", "5"]


def assert_sound(record, names):
    """What every run of several processes must hold."""
    assert all(check["passed"] for check in record.checks.values())
    for name in names:
        for what in ("losses", "gradients", "weights"):
            assert f"{name}: {what} equal one process" in record.checks
        for figure in ("all-gathers per step", "reduce-scatters per step"):
            assert record.measurement[f"{figure}, {name}"] == record.prediction[f"{figure}, {name}"] > 0
        assert 0 < record.prediction[f"seconds per step, {name}"] < 60
        assert record.measurement[f"exposed seconds per step, {name}"] >= 0
        assert len(record.series[f"seconds per step, {name}"]) == len(record.step_seconds)
    assert record.measurement["peak bytes"] == pytest.approx(record.prediction["peak bytes"], rel=0.02)
    assert record.losses[-1] < record.losses[0]


def test_all_ways_on_two_processes_with_memory_over_time_and_a_trace(tmp_path):
    path = tmp_path / "trace.json"
    record, said = recorded(
        torchrun,
        ["labs/fsdp.py", *FAST, "--via", "accelerate-forced", "--timeline", "--clip", "1", "--trace", str(path)],
        2,
        tmp_path,
    )
    names = ("by hand, naive", "by hand, prefetching", "fully_shard", "Accelerate, forced")
    assert_sound(record, names)
    assert [record.measurement[f"all-gathers per step, {name}"] for name in names] == [5, 5, 5, 6]
    assert any(note.startswith("DDP: DistributedDataParallel on 2 rank(s)") for note in record.notes)
    assert any(
        note.startswith("fully_shard: FSDPBlock, FSDPTransformer in 3 unit(s) on a mesh of 2") for note in record.notes
    )
    assert record.recipe["sharding: ranks"] == 2
    lines = [line for line in said.splitlines() if re.match(r"(forward|head|block|embedding|optimizer): ", line)]
    assert lines[1].startswith("forward: gather root")
    assert lines[1].endswith("root")
    assert sum("gather blocks.1" in line for line in lines) == 2
    assert trace.summary(trace.load(path))["collectives"] >= 10
    assert str(tmp_path) not in said + json.dumps(record.command)
    assert "predicted step times: off by" in said


def test_a_grid_of_knobs_in_one_launch(tmp_path):
    words = ["labs/fsdp.py", *without(FAST, "--steps"), "--sweep", "reshard,checkpointing"]
    record, said = recorded(pool.lab, words, 2, tmp_path)
    assert all(check["passed"] for check in record.checks.values())
    peaks = {name: size for name, size in record.measurement.items() if name.startswith("peak")}
    assert list(peaks) == [
        "peak bytes, DDP: all on every rank",
        *(
            f"peak bytes, reshard {reshard}, checkpointing {checkpointing}"
            for reshard in ("true", "false")
            for checkpointing in ("none", "full")
        ),
    ]
    ddp, freed, freed_again, kept, kept_again = peaks.values()
    assert ddp > kept >= freed > kept_again >= freed_again, "two blocks: one computes, the other is on its way"
    gathers = [n for name, n in record.measurement.items() if name.startswith("all-gathers")]
    assert gathers == [0, 5, 5, 3, 3]
    assert "times the first" in said
    assert len(record.series) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "words", "grid"),
    [
        (3, ["--wrap", "size", "--prefetch", "2"], "3 shard(s) x 1 replica(s)"),
        (4, ["--replicas", "2", "--accumulation", "2"], "2 shard(s) x 2 replica(s)"),
    ],
)
def test_three_and_four_processes(count, words, grid, tmp_path):
    record, said = recorded(pool.lab, ["labs/fsdp.py", *FAST, *words], count, tmp_path)
    assert_sound(record, ("fully_shard",))
    assert grid in said


def test_one_process(tmp_path, capsys):
    fsdp, out = lab_module("fsdp"), tmp_path / "one.json"
    with session("cpu") as s:
        fsdp.main(s, [*FAST, "--save", str(out)])
    record, said = results.load(out), capsys.readouterr().out
    assert record.backend == "none"
    assert all(check["passed"] for check in record.checks.values())
    assert record.checks["fully_shard: weights equal one process"]["value"] == 0
    assert "skipped collectives: one process sends nothing" in said


# --- pure parts ---------------------------------------------------------------------------------------------------


def test_reshard_is_read():
    assert lab_fsdp.reshard("True", 1) is True
    assert lab_fsdp.reshard("false", 8) is False
    assert lab_fsdp.reshard("4", 8) == 4
    for wrong in ("1", "8", "3", "-2", "yes"):
        with pytest.raises(ValueError, match=r"use true, false or one of 2, 4$"):
            lab_fsdp.reshard(wrong, 8)


def test_the_fallback_is_said_in_words_that_a_parity_check_does_not_have():
    checks = {"Accelerate, naive: losses equal one process": {"value": 1e-7, "tolerance": 1e-5, "passed": True}}
    counts = {"gathers": 0, "scatters": 0, "all_reduces": 1}
    said = lab_fsdp.fallback(checks, counts, 100, 100, "DistributedDataParallel on 2 rank(s)")
    assert "all equal to one process: it looks as if FSDP works" in said
    assert "nothing is sharded: these are replicas" in said
    sharded = lab_fsdp.fallback(checks, counts | {"gathers": 9}, 50, 100, "FSDPTransformer")
    assert "nothing is sharded" not in sharded


def test_kinds_too_small_to_see_are_left_out_of_the_table():
    said = lab_fsdp.memory({"weights": 10**6, "logits": 10}, {"weights": 2 * 10**6, "logits": 0})
    assert [line.split()[0] for line in said.splitlines()[2:]] == ["weights", "peak,"]
    assert said.splitlines()[2].split()[-1] == "0.500"


def test_a_grid_has_each_setting_once():
    o = lab_module("fsdp").Options()
    names = [name for name, _ in fsdp_knobs.settings(o, ("wrap", "reshard", "prefetch"))]
    assert names[0] == "wrap model"
    assert len(names) == len(set(names)) == 1 + 2 * 2 * 3
    with pytest.raises(ValueError, match="is no knob"):
        fsdp_knobs.chosen("wrap,")


def test_the_median_error_is_of_the_ways_that_are_predicted():
    row = lambda p, m: {"predicted": {"seconds": p} if p else {}, "measured": {"seconds": m}}  # noqa: E731
    assert report.median_error(
        {"ddp": row(None, 1.0), "naive": row(1.1, 1.0), "torch": row(0.8, 1.0)}
    ) == pytest.approx(0.15)
    assert report.median_error({"ddp": row(None, 1.0)}) is None


def test_accelerates_file_says_fsdp2():
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(ROOT / "labs/launch/accelerate-fsdp2.yaml"))
    assert str(config.distributed_type).endswith("FSDP")
    assert config.fsdp_config["fsdp_version"] == 2
    assert config.fsdp_config["fsdp_transformer_layer_cls_to_wrap"] == "Block"
