"""Tensor parallelism by hand and by parallelize_module on real processes: values, messages, bytes kept, faults; and
labs/tensor.py as a reader starts it."""

import statistics

import pool
import pytest
import samples
import specimen_tensor
import torch
from host_runs import real
from lab_runs import ROOT, lab_module, recorded, without

from scaleout.lab import tensor as lab_tensor
from scaleout.lab import tensor_link
from scaleout.lab.hosts import GOODPUT, burst
from scaleout.lab.session import session
from scaleout.parallel import parity, tensor_model
from scaleout.parallel.tensor import Group, VocabularyLoss
from scaleout.records import profiles, results
from scaleout.spec.transformer import Shape

RECORDS = ROOT / "labs" / "results" / "tensor"
TOLERANCE = 1e-5  # fp32, sums in other orders: a few units in the last place of 1.2e-7, see parallel/parity.py
FAST = ["labs/tensor.py", "--layers", "2", "--hidden", "64", "--seq", "32", "--steps", "5"]
GROUPED = ["--form", "llama", "--kv-heads", "2"]


@pytest.fixture(scope="module")
def cases():
    with session("cpu") as s:
        alone = specimen_tensor.main(s)
    return {1: alone, 2: pool.ranks(specimen_tensor.main, 2)[0], 4: pool.ranks(specimen_tensor.main, 4)[0]}


@pytest.fixture(scope="module")
def runs(cases):
    found = {(tp, name): case for tp, each in cases.items() for name, case in each.items() if "gradients" in case}
    assert len(found) == 8 + 8 + 6
    return found


def test_losses_all_gradients_and_weights_are_one_processs(runs):
    for name, run in runs.items():
        for what in ("loss", "gradients", "weights"):
            assert run[what] < TOLERANCE, (name, what)
        assert run["apart"] == 0, f"{name}: ranks that have copies made the same of them"


def test_a_group_need_not_be_all_ranks(cases):
    assert cases[4]["pairs"]["error"] < TOLERANCE


def test_collectives_are_those_of_the_pure_model(runs):
    for name, run in runs.items():
        counted, predicted = run["counts"]
        assert counted == predicted, name
    assert runs[4, "gpt hand"]["counts"][0] == {
        "forward": {"all_reduce": 8},
        "backward": {"all_reduce": 5},
        "copies": {},
    }
    assert runs[4, "llama hand, sequence"]["counts"][0] == {
        "forward": {"all_gather": 5, "reduce_scatter": 5, "all_reduce": 3},
        "backward": {"all_gather": 5, "reduce_scatter": 5},
        "copies": {"all_reduce": 2},
    }
    assert not any(runs[1, "gpt hand"]["counts"][0].values())


def test_blocks_keep_what_the_memory_model_says_to_the_byte(runs):
    for name, run in runs.items():
        measured, predicted = run["kept"]
        assert measured == predicted, name
    kept = [runs[tp, "gpt hand"]["kept"][0] for tp in (1, 2, 4)]
    assert kept[0] > kept[1] > kept[2] > kept[0] / 4, "norms keep whole inputs"


def test_a_rank_has_its_part_and_says_so(runs):
    assert runs[4, "gpt hand"]["built"] == (
        "TensorTransformer, 6 of 24 query columns per rank (ColumnLinear): 18,192 of 65,280 bytes of parameters here"
    )
    assert "6 of 24 query columns per rank (DTensor)" in runs[4, "gpt torch"]["built"]


def test_without_fs_backward_losses_agree_and_gradients_above_the_last_sum_only(cases):
    for tp in (2, 4):
        loss, wrong, apart = cases[tp]["faults"]["no-backward-reduce"]
        assert loss < TOLERANCE
        right = {"head", "norm", "blocks.1.mlp.down", "blocks.1.mlp.up"}
        assert {part for part, error in wrong.items() if error < TOLERANCE} == right - {"head"}, "GPT's head is tied"
        assert all(error > 0.01 for part, error in wrong.items() if part not in right)
        assert apart > 1e-4, "each rank steps its norms by a gradient of its own"


def test_key_value_heads_that_are_not_summed_go_apart_alone(cases):
    loss, wrong, apart = cases[4]["faults"]["kv-copies"]
    assert loss < TOLERANCE
    assert {part for part, error in wrong.items() if error > 0.01} == {
        f"blocks.{i}.attention.{name}" for i in (0, 1) for name in ("k", "v")
    }
    assert max(error for part, error in wrong.items() if part[-2:] not in (".k", ".v")) < TOLERANCE
    assert apart > 1e-4


def test_the_way_back_is_the_order_of_the_backward(cases):
    assert cases[1]["order"] == [
        "norm",
        "blocks.1.mlp.down",
        "blocks.1.mlp.up",
        "blocks.1.norm2",
        "blocks.1.attention.out",
        "blocks.1.attention.v",
        "blocks.1.attention.k",
        "blocks.1.attention.q",
        "blocks.1.norm1",
        "blocks.0.mlp.down",
        "blocks.0.mlp.up",
        "blocks.0.norm2",
        "blocks.0.attention.out",
        "blocks.0.attention.v",
        "blocks.0.attention.k",
        "blocks.0.attention.q",
        "blocks.0.norm1",
        "positions",
        "tokens",
    ]


def test_a_vocabulary_in_parts_has_torchs_loss_and_gradient():
    logits = torch.randn(7, 30, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.arange(7) * 4
    wanted = torch.nn.functional.cross_entropy(logits, targets)
    wanted.backward()
    gradient, logits.grad = logits.grad, None
    loss = VocabularyLoss.apply(logits, targets, slice(0, 30), Group())
    (2 * loss).backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert parity.relative_error({"": logits.grad}, {"": 2 * gradient}) < TOLERANCE


@pytest.mark.parametrize(
    ("shape", "dropout", "said"),
    [
        (Shape(1, 24, 4, 64), 0.0, "tp 3 does not divide 4 heads: the nearest that works is"),
        (Shape(1, 24, 3, 64), 0.0, "tp 3 does not divide a vocabulary of 64: use 2, or pad it to 66"),
        (Shape(1, 24, 3, 66), 0.1, "use dropout 0"),
    ],
)
def test_a_model_without_equal_parts_is_refused(shape, dropout, said):
    with pytest.raises(ValueError, match=said):
        tensor_model.refuse(shape, 3, dropout)


# --- the lab ----------------------------------------------------------------------------------------------------------


def test_the_lab_on_two_processes(tmp_path):
    line = {"alpha_seconds": 1e-3, "seconds_per_byte": 0.0}
    lines = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), line)
    machine = profiles.save(samples.profile(collectives=lines), tmp_path / "machine.json")
    record, said = recorded(pool.lab, [*FAST, "--sequence-parallel", "--machine", machine], 2, tmp_path)
    guess = record.prediction["seconds per step by the machine's profile, by hand"]
    assert 0.013 < guess < 0.02, "8 + 5 messages of a millisecond, and little else"
    assert all(check["passed"] for check in record.checks.values())
    ways = [name for via, name in lab_tensor.NAMES.items() if via != "one"]
    for name in ways:
        for what in (
            "losses equal one process",
            "gradients equal one process",
            "weights equal one process",
            "collectives as predicted",
            "bytes kept as predicted",
            "copies are equal on all ranks",
        ):
            assert f"{name}: {what}" in record.checks
        assert (
            record.measurement[f"collectives per step, {name}"]
            == record.prediction[f"collectives per step, {name}"]
            > 0
        )
        assert (
            record.prediction[f"seconds per step, {name}"] > record.prediction[f"exposed seconds per step, {name}"] > 0
        )
        assert len(record.series[f"seconds per step, {name}"]) == 5
    assert (record.recipe["tp"], record.effective_batch) == (2, 4)
    assert len(record.skipped) == 1 and "the machine's profile is an older one" in record.skipped[0]
    assert record.losses[-1] < record.losses[0]
    assert "8 of 8" not in said
    assert "32 of 64 query columns per rank (DTensor)" in said


def test_more_ranks_than_key_value_heads_and_what_torch_would_cut(tmp_path):
    record, said = recorded(pool.lab, [*FAST, *GROUPED], 4, tmp_path)
    assert record.checks["by hand: copies are equal on all ranks"]["value"] == 0
    assert "skipped parallelize_module: it would split 2 key-value heads into 4 parts" in said
    assert "skipped sequence parallelism: not asked for (--sequence-parallel)" in said


def test_one_process_says_what_it_skips(tmp_path):
    record, _ = recorded(pool.lab, FAST, 1, tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert record.skipped[-1].startswith("seconds by the machine's profile: there is none")
    assert "communication: one process sends nothing (torchrun --nproc-per-node 2)" in record.skipped
    assert record.measurement["collectives per step, by hand"] == 0


def test_a_fault_is_shown_beside_one_process():
    output = pool.output([*without(FAST, "--steps"), "--fault", "no-backward-reduce"], 2)
    steps = [line.split() for line in output.splitlines() if line[:1].isdigit() and len(line.split()) == 5]
    assert len(steps) == 5
    assert abs(float(steps[0][3])) < TOLERANCE < abs(float(steps[1][3]))
    assert output.rstrip().endswith("the first wrong gradient, from the loss backward: blocks.1.norm2")


# --- over a link ------------------------------------------------------------------------------------------------------

FOUND = {"quiet_seconds": 0.1, "messages": [[500_000, 0.002]] * 10}


def test_a_slow_link_is_predicted_by_hand():
    rate = 100e6
    free = min(burst(rate), 0.01 * rate / 8)  # ten messages, and 10 ms of compute before each
    wire = (500_000 - free) / (rate / 8 * GOODPUT)
    assert tensor_link.predicted(FOUND, rate) == pytest.approx(0.1 + 10 * wire)
    assert tensor_link.predicted(FOUND, None) == tensor_link.predicted(FOUND, 1e11) == pytest.approx(0.12)


@real
def test_two_hosts_run_both_ways(tmp_path):
    pool.output([*without(FAST, "--steps"), "--micro-batch", "2", "--link", "200", "--save", tmp_path])
    made = lab_module("tensor").recorded_links(tmp_path)[0]
    assert [r.recipe["link Mbit/s"] for r in made] == [None, 200]
    for r in made:
        assert (r.nodes, r.device_count, r.recipe["tp"], len(r.step_seconds)) == (2, 2, 2, 6)
        assert r.effective_batch == 8
        assert r.prediction["seconds per step"] > 0
    sent = made[0].recipe["bytes a rank sends, tensor parallel"]
    tokens = 8 * 32
    assert sent == (2 * 4 + 2) * tokens * 64 * 4 + 3 * tokens * 4, "two sums a half and phase, two ends, the loss"
    speed = 200e6 / 8
    assert min(made[1].step_seconds) > 10 * (tokens * 64 * 4 - burst(200e6)) / speed


def test_the_recorded_runs_show_what_the_chapter_says():
    folder = RECORDS
    kept = {}
    for path in folder.glob("*-cpu-*.json"):
        r = results.load(path)
        assert all(check["passed"] for check in r.checks.values())
        kept[r.tier, r.device_count] = r
    assert {("smoke", 2), ("smoke", 4), ("cpu", 2), ("cpu", 4)} <= set(kept)
    for (tier, tp), r in kept.items():
        one, mine = (r.measurement[f"bytes the blocks keep, {name}"] for name in ("one process", "by hand"))
        assert one / tp < mine < one, (tier, tp)
    for rows in lab_module("tensor").recorded_links(RECORDS):
        slowest = rows[-1]
        assert slowest.measurement["seconds per step"] > rows[0].measurement["seconds per step"]
        ddp = statistics.median(slowest.series[tensor_link.SERIES])
        assert slowest.measurement["seconds per step"] > ddp, "it sends more, and hides it behind nothing"
