"""fp16 with loss scaling: what it computes, which steps it leaves out, and what a job keeps of it."""

import json
import re
from itertools import pairwise

import pool
import pytest
import specimen_loss_scale
import torch
from capstone_runs import TINY, train, weights
from lab_runs import lab_module
from specimen_capstone import RATE, SHAPE, batch
from specimen_loss_scale import WAYS

from scaleout.lab import session
from scaleout.parallel.shard import DTYPES
from scaleout.records import results
from scaleout.train import job as train_job
from scaleout.train import options
from scaleout.train.metrics import FIELDS, METRICS, Metrics
from scaleout.train.trainer import Setup, Trainer

CLOSE = 2e-3  # fp16 has 11 bits: a product is off by 2^-11 = 5e-4 at most, and errors of opposite signs meet
pytestmark = pytest.mark.usefixtures("no_profile")


# --- the trainer ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    return pool.ranks(specimen_loss_scale.main, 2)[0]


@pytest.mark.parametrize("name", WAYS)
def test_an_overflow_on_one_rank_leaves_the_step_out_on_all(found, name):
    way = found["ways"][name]
    assert way["alike"], "losses, norms, scales and weights of both ranks"
    losses, norms, scales = zip(*way["rows"], strict=True)
    assert scales == (1024, 1024, 2048, 1024, 1024), "doubled after two good steps, halved by the overflow"
    assert way["stood still"] == [False, True, False, False]
    assert way["steps"] == [4], "AdamW counts the steps that it made"
    assert norms[2] is None, "not finite"
    for step in (0, 1, 3, 4):
        loss, norm = found["wanted"][step]
        assert losses[step] == pytest.approx(loss, rel=CLOSE), step
        assert norms[step] == pytest.approx(norm, rel=0.02), "of unscaled gradients"
    assert way["sample"] == 4


def test_both_ranks_sharded(found):
    assert "3 units by block, 74,048 of 148,096 bytes on rank 0" in found["ways"]["block"]["built"]


def gradients(precision, scale=None):
    """Gradients of a loss a hundred million times smaller, over that factor again, unscaled."""
    with session.session("cpu") as s:
        made = Trainer(s, Setup(SHAPE, "one", precision=precision, clip=0.0))
        if scale:
            made.scaler.scale(torch.ones(()))  # it is made at its first use
            made.scaler.update(scale)
        usual = made.loss
        made.loss = lambda *pair: usual(*pair) * 1e-8
        made.gradients(batch(0))
        made.scaler.unscale_(made.optimizer)
        return {name: p.grad * 1e8 for name, p in made.model.named_parameters()}


def test_small_gradients_vanish_without_scaling_and_survive_with_it():
    wanted, lost, kept = gradients("fp32"), gradients("fp16", 1.0), gradients("fp16", 2.0**24)
    inner = [name for name in wanted if name.endswith("v.weight")]
    assert len(inner) == 2
    for name in inner:
        assert lost[name].count_nonzero() == 0
        assert wanted[name].abs().max() > 1e-3
        assert (kept[name] - wanted[name]).abs().max() < 0.02 * wanted[name].abs().max()


def test_other_precisions_do_not_scale():
    with session.session("cpu") as s:
        for precision in ("fp32", "bf16"):
            made = Trainer(s, Setup(SHAPE, "one", precision=precision))
            made.step(batch(0), RATE)
            assert made.scale is None
            assert made.scaler.state_dict() == {}


# --- the job ----------------------------------------------------------------------------------------------

WORDS = ["--precision", "fp16", "--steps", "30"]


def quick(job):
    """The scale doubles after five good steps: the job comes to where gradients overflow."""
    job.trainer.scaler.set_growth_interval(5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 30 steps that nothing stopped, its folder and its Record."""
    folder = tmp_path_factory.mktemp("whole")
    job = train(
        *WORDS, "--folder", str(folder), "--checkpoint-every", "none", "--save", str(folder / "r.json"), at={1: quick}
    )
    return job, folder, results.load(folder / "r.json")


def test_the_record_shows_the_scale_and_the_steps_left_out(whole):
    job, folder, record = whole
    left_out = [row["step"] for row in job.metrics.steps if row["norm"] is None]
    scales = record.series["loss scale"]
    assert scales[0] == 2**16
    assert len(scales) == len(record.series["gradient norm"]) == len(record.losses) == 30
    assert left_out, "it must come to an overflow to show one"
    for n in left_out:
        assert record.series["gradient norm"][n - 1] == 0
        assert n == 30 or scales[n] == scales[n - 1] / 2
    assert max(b / a for a, b in pairwise(scales)) == 2, "and it grew"
    note = (
        f"loss scale 65,536 to {scales[-1]:,g}, at least {min(scales):,g}: {len(left_out)} of 30 steps overflowed "
        "fp16 and were skipped"
    )
    assert note in record.notes
    assert record.precision == "fp16"
    assert record.mfu_peak["source"].startswith("fp16 matmuls")
    assert record.failures == []
    assert record.checks["peak within 2% of the prediction"]["passed"], "fp16 takes the bytes of bf16"
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]  # Infinity is no JSON
    assert [row["step"] for row in rows if row.get("norm", 0) is None] == left_out
    assert record.losses[-1] < record.losses[0] - 1


def test_utilization_is_relative_to_products_of_this_precision(monkeypatch):
    monkeypatch.setattr(train_job.measure_peak, "matmul_rate", lambda s, dtype, effort: (dtype.itemsize, 64))
    with session.session("cpu") as s:
        rates = {precision: train_job.peak(s, options.Options(precision=precision), 9) for precision in DTYPES}
    assert {name: rate for name, (rate, _) in rates.items()} == {"fp32": 4, "bf16": 2, "fp16": 2}
    assert DTYPES["fp16"] is torch.float16


def test_it_goes_on_with_the_scale_bit_for_bit(whole, tmp_path, capsys):
    other, *_ = whole
    words = [*WORDS, "--folder", str(tmp_path), "--checkpoint-every", "13"]
    with pytest.raises(SystemExit):
        train(*words, "--inject", "nan:20", at={1: quick})
    job = train(*words)
    for name in ("step", "loss", "rate", "norm", "scale"):
        assert job.metrics.column(name) == other.metrics.column(name), name
    assert torch.equal(weights(job), weights(other))
    assert len({row["scale"] for row in job.metrics.steps[13:]}) > 1, "a scale that stays shows nothing"
    (said,) = (row["event"] for row in job.metrics.events)
    assert said.startswith("started again: resumes after step 13 on 1 process(es)"), "no word of a fresh scale"


def test_the_rows_of_steps_left_out_are_read_again(tmp_path):
    row = dict.fromkeys(FIELDS, 1.0) | {"step": 1, "norm": None, "scale": 2.0}
    lines = [
        row,
        row | {"step": 2, "scale": None},
        row | {"step": 3, "norm": 1.0, "scale": "much"},
        {**dict.fromkeys(FIELDS, 1.0), "step": 4, "norm": None},
        row | {"step": 5, "norm": 3.0},
    ]
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = Metrics(tmp_path, True)
    _, said = metrics.begin(9)
    assert [row["step"] for row in metrics.steps] == [1, 5], "without a scale nothing is left out"
    assert said[0].startswith(f"{METRICS}: 3 of 5 line(s) cannot be read, the first is line 2")


def test_a_run_that_changes_to_fp16_begins_with_a_fresh_scale_and_says_so(tmp_path, capsys):
    words = ["--folder", str(tmp_path), "--checkpoint-every", "8"]
    train(*words, "--steps", "8")
    job = train(*words, "--steps", "12", "--precision", "fp16")
    line = "fp16 begins with a loss scale of 65,536: the checkpoint holds none"
    assert [row["event"] for row in job.metrics.events][-2:] == ["--precision fp32 -> fp16 from step 9 on", line]
    assert line in capsys.readouterr().out
    assert job.metrics.steps[8]["scale"] == 65536
    assert len(job.metrics.column("scale")) == 4
    back = train(*words, "--steps", "16")
    assert len(back.metrics.column("scale")) == 4, "fp32 again: nothing is scaled"


def test_gradients_that_overflow_by_themselves_end_the_job(tmp_path, capsys):
    def overflow(job):
        usual, job.trainer.loss = job.trainer.loss, lambda *pair: usual(*pair) * 1e20
        job.trainer.scaler.update(8.0)

    with pytest.raises(SystemExit) as caught:
        train(*WORDS, "--folder", str(tmp_path), "--checkpoint-every", "5", "--log-every", "1", at={8: overflow})
    assert caught.value.code == 2
    assert (
        "the gradient overflows fp16 at step 11 with a loss scale of 1: use --precision fp32, or a lower --lr"
        in capsys.readouterr().err
    )
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000005", "step-00000010"]


def test_offload_is_refused():
    module = lab_module("capstone")
    with (
        session.session("cpu") as s,
        pytest.raises(
            ValueError,
            match=re.escape(
                "--offload puts gradients where loss scaling cannot reach them: use --precision bf16 or fp32"
            ),
        ),
    ):
        module.main(s, [*TINY, "--precision", "fp16", "--offload", "--strategy", "fsdp"])
