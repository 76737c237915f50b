"""The lab of precisions: predictions beside measurements, the same on two ranks, and four faults that its log tells
apart."""

import pool
import pytest
import torch
from lab_runs import lab_module, recorded

from scaleout.lab import precision as lab_precision
from scaleout.lab import session
from scaleout.measure import precision as measure_precision
from scaleout.measure import precision_runs
from scaleout.numerics.octaves import histogram, together
from scaleout.parallel.precision import PrecisionWay
from scaleout.spec.transformer import Shape

FAST = ["labs/precision.py", "--layers", "2", "--hidden", "32", "--heads", "2", "--seq", "32"]
SHAPE = Shape(2, 32, 2, 256, max_seq=32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    words = [*FAST, "--steps", "12", "--growth-interval", "3", "--histogram"]
    return recorded(pool.lab, words, 1, tmp_path_factory.mktemp("run"))


def test_what_was_predicted_was_measured(run):
    record, _ = run
    assert all(check["passed"] for check in record.checks.values())
    for name, predicted in record.prediction.items():
        if name.startswith("share"):
            assert record.measurement[name] == pytest.approx(predicted, abs=0.01), name
    lost = "share of gradients that are zero, fp16 matmuls, no loss scale"
    assert record.measurement[lost] > 0.01 > record.measurement[lost.replace("no loss", "loss")]
    assert record.measurement["share of weights that an update does not change, bf16 throughout"] > 0.01
    assert abs(record.prediction["steps skipped"] - record.measurement["steps skipped"]) <= 1
    assert record.measurement["steps skipped"] >= 1, "a scaler that never comes to the end shows nothing"
    assert record.checks["Accelerate's losses are torch.amp's, bf16"]["value"] == 0


def test_the_record_says_what_a_cpu_cannot_show(run):
    record, said = run
    assert any(line.startswith("speed and MFU: a CPU does") for line in record.skipped)
    assert record.mfu is None
    assert "tokens/s" not in said
    assert "gradients of activations, block 2, queries and keys: " in said
    assert "spread of fp32 over 2 seed(s)" in said
    moments = lab_precision.moments_of(record.series)
    assert set(moments) == {"first step", "last step"}
    assert set(moments["first step"]["activations"]) == {
        "head",
        *(f"block {i}, {half}" for i in (1, 2) for half in ("MLP", "queries and keys", "values and output")),
    }
    tokens = 2 * 32
    assert moments["last step"]["activations"]["head"].total == tokens * 256
    assert moments["last step"]["weights"]["embeddings"].total == (256 + 32) * 32


def test_two_ranks_share_the_batch(tmp_path):
    words = [*FAST, "--steps", "8", "--seeds", "1", "--micro-batch", "1", "--ways", "bf16,fp16-scaled,accelerate-bf16"]
    record, said = recorded(pool.lab, words, 2, tmp_path)
    alone, _ = recorded(pool.lab, [*words, "--micro-batch", "2"], 1, tmp_path)
    assert (record.effective_batch, alone.effective_batch) == (2, 2)
    assert record.losses == pytest.approx(alone.losses, rel=1e-5)
    assert "DistributedDataParallel by accelerate" in said
    assert all(check["passed"] for check in record.checks.values())
    assert record.measurement["steps skipped"] == 1, "its gradients are compared at half the first loss scale"


@pytest.mark.parametrize(("fault", "world"), [("overflow", 1), ("underflow", 1), ("stagnation", 1), ("bad-rank", 2)])
def test_the_log_names_the_fault(fault, world):
    output = pool.output([*FAST, "--fault", fault], world)
    assert f"\nwhat the log says: {fault}\n" in output
    steps = [line.split() for line in output.splitlines() if line[:1].isdigit() and "2^" in line]
    first, last = steps[0], steps[-1]
    assert len(steps) == 12
    assert float(last[2]) < float(first[2]), "the sound run learns"
    assert abs(float(last[3]) - float(last[2])) < 0.1, "and the fixed run does as well"
    assert last[1] == "nan" or float(last[1]) > float(last[2]) + 0.01


def test_a_run_that_leaves_fp32_too_has_nothing_to_compare_with():
    done = pool.lab([*FAST, "--steps", "8", "--seeds", "1", "--ways", "bf16", "--lr", "1000"])
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("there is nothing to compare with: --lr 1000 is too large")


def test_a_way_whose_gradients_are_not_finite_has_no_share_of_zeros():
    batch = tuple(torch.randint(256, (2, 2, 32), generator=torch.Generator().manual_seed(1)))
    o = type("o", (), {"shape": SHAPE, "lr": 1e-3, "seed": 0, "steps": 1, "growth_interval": 100})
    with session.session("cpu") as s:
        found = precision_runs.reference(s, o, lambda seed, step: batch)
        found.state["blocks.0.mlp.up.weight"] *= 2.0**24
        rows = precision_runs.compare(s, o, ["fp32", "fp16-scaled"], found)
    assert rows["fp32"]["zero"] is not None
    assert rows["fp16-scaled"]["zero"] is None
    assert rows["fp16-scaled"]["errors"]["all"] == lab_precision.HUGE


@pytest.mark.parametrize("way", ["mxfp8", "nvfp4"])
def test_a_way_whose_blocks_do_not_fit_is_left_out(way):
    left, why = lab_module("precision").chosen(
        None, type("o", (), {"ways": f"bf16,{way}", "via": "fp32", "hidden": 48, "micro_batch": 1, "seq": 8})
    )
    assert left == ["fp32", "bf16"]
    assert len(why) == 1


# --- what is measured -----------------------------------------------------------------------------------------------


def test_octaves_of_a_tensor_are_those_of_its_numbers():
    x = torch.randn(50, 7) * torch.exp2(torch.randint(-140, 90, (50, 7)).float())
    x[3], x[4, 0] = 0, float("inf")
    finite = [value for value in x.flatten().tolist() if abs(value) != float("inf")]
    assert measure_precision.octaves(x) == histogram(finite)
    assert measure_precision.octaves(torch.zeros(3)) == histogram([0.0] * 3)
    assert measure_precision.largest(x) == float("inf")


def test_gradients_are_looked_at_unscaled():
    batch = tuple(torch.randint(256, (2, 2, 32), generator=torch.Generator().manual_seed(1)))
    with session.session("cpu") as s:
        seen = {}
        for name in ("fp32", "fp16-scaled"):
            watch = measure_precision.Watch(PrecisionWay(s, SHAPE, name))
            with watch.looking():
                watch.way.gradients(batch)
            seen[name] = watch
            assert len(watch.forward) == len(watch.backward) == 2 * 6 + 1
            assert measure_precision.total(measure_precision.weights(watch.way)).total == sum(
                p.numel() for p in watch.way.model.parameters()
            )
        a, b = seen["fp32"], seen["fp16-scaled"]
        assert b.top == pytest.approx(a.top, rel=0.01)
        for layer, value in a.backward.items():
            assert b.backward[layer] == pytest.approx(value, rel=0.02), layer
        assert together(b.gradients.values()).total == together(a.gradients.values()).total
        with a.looking(counting=False):
            a.way.gradients(batch)
        assert a.gradients == {}
        assert a.top > 0


def test_updates_that_bf16_leaves_are_those_that_are_less_than_half_a_step():
    batch = tuple(torch.randint(256, (2, 2, 32), generator=torch.Generator().manual_seed(1)))
    with session.session("cpu") as s:
        for rate, low, high in ((1e-5, 0.7, 0.95), (1e-2, 0.0, 0.01)):
            way = PrecisionWay(s, SHAPE, "bf16-weights", rate)
            way.step(batch)
            way.gradients(batch)
            predicted, measured = measure_precision.stuck(way)
            assert low <= measured <= high
            assert measured == pytest.approx(predicted, abs=0.005)


def test_a_step_left_out_takes_the_same_gradient_again():
    """Two steps overflow at 2^16 and 2^15, whatever the gradients of later steps are."""
    found = precision_runs.Reference(tops=[3.0, 1e9, 1e9, 1e9])
    steps = precision_runs.predicted_scales(type("o", (), {"steps": 4, "growth_interval": 100}), found)
    assert [step.skipped for step in steps] == [True, True, False, True]
    assert [step.scale for step in steps] == [2.0**16, 2.0**15, 2.0**14, 2.0**14]
