"""Checkpoints of real models: at other numbers of ranks and other strategies, damaged, on a full disk.

What needs ranks is in specimen_checkpoint.py; the rest is one process.
"""

import contextlib
import errno
import os
import random
import re
import resource
import subprocess

import pool
import pytest
import specimen_checkpoint as specimen
import torch
from cases import refused
from specimen_checkpoint import model, session, train, whole
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from scaleout.spec.transformer import Shape
from scaleout.train import faults
from scaleout.train.checkpoint import Checkpoints

ONE = session(0, 1)
CLOSE = {"rel": 1e-5}  # ranks add gradients in another order; fp32
NO_SPACE = "no space left on device: free some space, or use a smaller --keep; the last good one is step 1"


@contextlib.contextmanager
def tiny_disk(folder, size="1100k"):
    """A file system with room for one checkpoint and a half; None where this user may not mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        yield folder if mounted.returncode == 0 else None
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """(what the ranks found, the folder they left, whether the tiny disk was there)."""
    folder = tmp_path_factory.mktemp("ranks")
    with tiny_disk(tmp_path_factory.mktemp("disk") / "tiny") as disk:
        found = {
            "begin": pool.ranks(specimen.begin, 4, folder)[0],
            "two": pool.ranks(specimen.two, 2, folder, disk)[0],
            "four": pool.ranks(specimen.go_on, 4, folder, 7, 9)[0],
        }
    return found, folder, disk is not None


# --- ranks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["ddp", "fsdp", "hybrid"])
def test_four_ranks_save_and_two_go_on_with_the_same_losses(case, launch):
    begun, two = launch[0]["begin"], launch[0]["two"][case]
    assert two["weights"] == begun["weights"], "bit for bit: nothing is added when a checkpoint is read"
    assert two["losses"] == pytest.approx(begun["losses"][3:6], **CLOSE)
    assert (two["rate"], two["betas"]) == (1e-2 / 3, True), "settings of the optimizer, and of their own type"


def test_back_on_four_ranks_the_losses_still_are_those_of_the_run_that_never_stopped(launch):
    found = launch[0]
    assert found["four"]["extra"] == {"step": 6, "place": [1, 2.5, "x"]}
    assert found["four"]["losses"] == pytest.approx(found["begin"]["losses"][6:9], **CLOSE)
    assert found["four"]["weights"] != found["begin"]["weights"]


def test_one_process_reads_what_four_ranks_wrote(launch):
    made, optimizer = model(seed=5)
    extra = Checkpoints(ONE, launch[1] / "hybrid").load(made, optimizer)
    assert extra == {}
    assert whole(made) == launch[0]["begin"]["weights"]
    assert train(made, optimizer, 4, 5) == pytest.approx(launch[0]["begin"]["losses"][3:5], **CLOSE)


def test_every_rank_gets_its_own_random_state_back(launch):
    every = launch[0]["two"]["chance"]
    assert all(first == again for first, again in every)
    assert every[0] != every[1]


def test_a_damaged_newest_checkpoint_is_named_on_all_ranks_and_the_one_before_is_used(launch):
    found = launch[0]["two"]["damaged"]
    assert found["extra"] == {"step": 2}
    assert found["said"] == ["checkpoint step 3 is damaged (__1_0.distcp differs from what was written): using step 2"]
    assert found["left"] == [4, 2, 1], "the damaged one goes once there is a newer good one"


@pytest.mark.parametrize(("case", "rank"), [("full on rank 1", 1), ("full while publishing", 0), ("full tmpfs", None)])
def test_a_full_disk_is_one_line_on_all_ranks_and_the_last_good_checkpoint_is_intact(case, rank, launch):
    found, _, mounted = launch
    if case == "full tmpfs" and not mounted:
        pytest.skip("a tiny file system cannot be mounted here: the disk is only said to be full")
    full = found["two"][case]
    assert full["lines"][0] == full["lines"][1]
    who = "[01]" if rank is None else str(rank)
    assert re.fullmatch(
        f".*: checkpoint step 2 could not be written: rank {who}: " + re.escape(NO_SPACE), full["lines"][0][0]
    ), full["lines"]
    assert (full["newest"], full["problem"], full["last"], full["extra"]) == (1, None, 1, {"step": 1})
    assert full["left"] == ["step-00000001"], "what was begun is removed, and makes room"


# --- one process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_checkpoint_holds_what_was_there_when_it_was_made(asynchronous, tmp_path):
    made, optimizer = model()
    train(made, optimizer, 1, 2)
    weights, kept = whole(made), Checkpoints(ONE, tmp_path, asynchronous=asynchronous)
    spent = kept.save(2, made, optimizer, {"step": 2})
    expected = train(made, optimizer, 3, 5)
    kept.finish()
    assert kept.blocked == [spent]
    assert len(kept.written) == 1
    other, its = model(seed=3)
    assert Checkpoints(ONE, tmp_path).load(other, its) == {"step": 2}
    assert whole(other) == weights
    assert train(other, its, 3, 5) == expected, "bit for bit: optimizer, learning rate and weights are all there"


def test_memory_kept_from_one_checkpoint_to_the_next_holds_each_in_turn(tmp_path, monkeypatch):
    """As on a GPU, but that nothing can be pinned here."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    made, optimizer = model()
    kept, weights, pointers = Checkpoints(ONE, tmp_path), [], []
    kept.stager = BlockingAsyncStager(cache_staged_state_dict=True)
    for step in (1, 2):
        train(made, optimizer, step, step)
        kept.save(step, made, optimizer, {"step": step})
        weights.append(whole(made))
        pointers.append(kept.stager.state_dict_cache["model.norm.weight"].data_ptr())
    train(made, optimizer, 3, 3)
    for step in (1, 2):
        assert kept.load(made, optimizer, step) == {"step": step}
        assert whole(made) == weights[step - 1]
    assert pointers[0] == pointers[1] != made.norm.weight.data_ptr()


def test_random_numbers_go_on_where_they_were(tmp_path):
    made, optimizer = model()
    kept = Checkpoints(ONE, tmp_path)
    kept.save(1, made, optimizer, {})
    drawn = [random.random(), torch.rand(1).item()]
    kept.load(made, optimizer)
    assert [random.random(), torch.rand(1).item()] == drawn


def test_a_step_is_saved_once(tmp_path):
    made, optimizer = model()
    kept = Checkpoints(ONE, tmp_path)
    kept.save(4, made, optimizer, {"first": True})
    kept.save(4, made, optimizer, {"first": False})
    kept.finish()
    assert (kept.last, len(kept.blocked)) == (4, 1)
    assert kept.load(made, optimizer) == {"first": True}


def test_the_last_two_and_the_best_are_kept(tmp_path):
    made, optimizer = model()
    kept = Checkpoints(ONE, tmp_path, keep=2)
    with pytest.raises(ValueError, match="has no checkpoint of step 1: use auto: it has none yet"):
        kept.load(made, optimizer, 1)
    for step, loss in enumerate([3.0, 1.0, None, 2.0, 2.5], 1):
        kept.save(step, made, optimizer, {"step": step}, loss)
    kept.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000004", "step-00000005"]
    assert kept.load(made, optimizer, 2) == {"step": 2}
    with pytest.raises(ValueError, match=r"has no checkpoint of step 1: use auto, or one of \[2, 4, 5\]"):
        kept.load(made, optimizer, 1)


def test_a_start_removes_what_a_kill_left(tmp_path):
    (tmp_path / ".writing-00000009-0").mkdir()
    kept = Checkpoints(ONE, tmp_path)
    assert kept.said == ["removed 1 unfinished checkpoint(s)"]
    assert kept.load(*model()) is None


def test_where_all_are_damaged_nobody_starts_anew_unasked(tmp_path):
    made, optimizer = model()
    kept = Checkpoints(ONE, tmp_path)
    kept.save(1, made, optimizer, {})
    kept.finish()
    (tmp_path / "step-00000001" / "__0_0.distcp").unlink()
    with pytest.raises(ValueError, match=r"no checkpoint in .* is good \(step 1: __0_0.distcp is missing\): rem"):
        Checkpoints(ONE, tmp_path).load(made, optimizer)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            Shape(layers=2, hidden=64, heads=4, vocab=64, max_seq=16),
            " of 64 x 32, this job 64 x 64",
        ),
        (
            Shape(layers=3, hidden=32, heads=4, vocab=64, max_seq=16, ff=50),
            "has no model.blocks.2.",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_one_line(other, said, tmp_path):
    kept = Checkpoints(ONE, tmp_path)
    kept.save(1, *model(), {})
    line = refused(lambda: kept.load(*model(shape=other)), said)
    assert "cannot be loaded: tensors.json: has " in line and "model." in line


def test_a_number_that_json_has_not_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Checkpoints(ONE, tmp_path).save(1, *model(), {"loss": float("inf")})
    assert list(tmp_path.iterdir()) == []


def test_a_file_too_large_for_the_disk_is_the_disks_own_word(tmp_path):
    """What a quota or RLIMIT_FSIZE answers: the OSError, and not torch's error around it."""
    kept = Checkpoints(ONE, tmp_path)
    kept.save(1, *model(), {})
    kept.finish()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(
            ValueError,
            match=f"step 2 could not be written: rank 0: {os.strerror(errno.EFBIG).lower()};"
            " the last good one is step 1",
        ):
            kept.save(2, *model(), {})
            kept.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    kept.save(3, *model(), {"step": 3})
    assert kept.load(*model()) == {"step": 3}, "with room again it goes on"


def test_an_injected_full_disk_strikes_once_and_a_kill_only_in_the_first_attempt():
    asked = faults.parse("full:6,kill:0:3,kill:0:saving:5", 0, 1, attempt=1)
    with pytest.raises(OSError, match="No space left"):
        asked.writing(6)
    asked.writing(7)
    asked.begin(3)
    asked.saving(5)  # still alive
