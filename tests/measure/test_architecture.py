"""What the lab of architecture injects, how documents are packed, and what its saves are predicted to block."""

import pytest
import torch
from cases import each

from scaleout.lab import architecture as lab_architecture
from scaleout.measure import architecture, architecture_input, architecture_saves
from scaleout.timing.diagnosis import FAULTS, NAN


class Session:
    """A place among ranks that sends nothing."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world


class Sizes:
    micro_batch = 3


# --- faults -------------------------------------------------------------------------------------------------


def added(amounts, steps, ranks):
    """Seconds that a run with these Amounts sleeps longer than one without a fault, on the rank that sleeps longest."""
    slept = [max(amounts.seconds(rank, step) for rank in range(ranks)) + amounts.link(0, step) for step in range(steps)]
    return sum(slept) - steps * architecture.DEVICE


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("steps", [8, 9, 16, 30])
def test_every_fault_costs_the_injected_seconds_per_step(steps, ranks):
    made = architecture.faults(0.15, steps, ranks, lab_architecture.culprits(ranks))
    assert tuple(made) == FAULTS
    for fault, amounts in made.items():
        device = amounts.device - architecture.DEVICE  # sequences of uneven length also make the usual ones longer
        assert added(amounts, steps, ranks) == pytest.approx(0.15 * steps * (fault != NAN) + steps * device), fault


def test_only_nan_breaks_a_loss_and_only_once():
    made = architecture.faults(0.15, 8, 4, lab_architecture.culprits(4))
    broken = {
        fault: [(rank, step) for rank in range(4) for step in range(8) if amounts.broken(rank, step)]
        for fault, amounts in made.items()
    }
    assert broken.pop(NAN) == [(lab_architecture.culprits(4)[NAN], 4)] and not any(broken.values())


@each([2, 3, 4, 8])
def test_a_turn_is_one_ranks_per_step_and_everyones_in_a_round(ranks):
    takes_turn = architecture.turn(ranks)
    order = [[rank for rank in range(ranks) if takes_turn(rank, step)] for step in range(3 * ranks)]
    assert all(len(turn) == 1 for turn in order)
    rounds = [[rank for turn in order[i : i + ranks] for rank in turn] for i in range(0, 3 * ranks, ranks)]
    assert all(sorted(one) == [*range(ranks)] for one in rounds) and rounds[0] != rounds[1]


def test_every_run_saves_collects_and_evaluates_at_the_same_steps():
    """So that a tag alone tells nothing: what a fault changes is how long it takes."""
    made = architecture.faults(0.15, 8, 4, lab_architecture.culprits(4))
    rare = {
        fault: [sorted({*amounts.before(0, step), *amounts.after(0, step)} & {"save", "evaluate"}) for step in range(8)]
        for fault, amounts in made.items()
    }
    healthy = [[], [], ["evaluate"], ["save"], [], ["evaluate"], [], ["save"]]
    assert all(tags == healthy for tags in rare.values())
    assert all("save" not in amounts.after(1, step) for amounts in made.values() for step in range(8))


def test_the_words_of_several_faults_are_what_is_injected():
    amounts, words = architecture.mixed(0.06, 20, 8)
    slept = [[amounts.seconds(rank, step) - amounts.device for step in range(20)] for rank in range(8)]
    assert slept[5] == pytest.approx([0.06] * 20) and "rank 5 computes 60 ms longer in every step" in words
    assert [step for step in range(20) if slept[2][step] > 0.1] == [4, 5] and "in steps 4 and 5" in words
    assert slept[7][8] == pytest.approx(0.18) and "rank 7 collects garbage for 180 ms in step 8" in words
    assert slept[0][9] == pytest.approx(0.18) and "rank 0 saves for 180 ms after step 9" in words
    assert [step for step in range(20) if amounts.link(3, step)] == [14, 15, 16] and "in steps 14 to 16" in words
    assert sum(map(sum, slept)) == pytest.approx(20 * 0.06 + 2 * 0.12 + 2 * 0.18)


# --- input --------------------------------------------------------------------------------------------------


def texts(*words):
    return [torch.tensor([ord(letter) for letter in word], dtype=torch.uint8) for word in words]


def test_rows_are_the_documents_one_after_the_other():
    documents = texts("abcde", "f", "ghi", "jklmnopqrst", "uv")
    packed = architecture_input.Packed(documents, seed=1, row=4)
    stream = [token for i in packed.order for token in [*documents[i].tolist(), architecture_input.SEPARATOR]]
    rows = [packed[number].tolist() for number in range(len(packed))]
    assert len(rows) == len(stream) // 4 == 6
    assert [token for row in rows for token in row] == stream[:24]
    assert sorted(packed.order) == [*range(5)]
    assert architecture_input.Packed(documents, seed=1, row=4).order == packed.order
    separators = stream[:24].count(architecture_input.SEPARATOR)
    assert architecture_input.packed_share(packed) == pytest.approx(1 - separators / 24)


def test_padding_fills_the_last_row_of_each_document():
    assert architecture_input.padded_share(texts("abcde", "f", "abcd"), 4) == pytest.approx(10 / 16)
    assert architecture_input.padded_share(texts("abcd"), 4) == 1.0


def test_empty_lines_separate_documents():
    text = torch.frombuffer(bytearray(b"one\ntwo\n\nthree\n\n\n\nfour"), dtype=torch.uint8)
    assert [bytes(one.tolist()) for one in architecture_input.documents(text)] == [b"one\ntwo", b"three", b"four"]


@each([1, 2, 4])
def test_the_rows_of_all_ranks_are_those_of_one_process_from_any_batch_on(world):
    ranks = [[*architecture_input.Rows(Session(rank, world), Sizes, 2, 3)] for rank in range(world)]
    rows = [row for batch in zip(*ranks, strict=True) for part in batch for row in part]
    assert rows == [*range(2 * 3 * world, 5 * 3 * world)]


def test_loaders_overlap_reading_with_a_step():
    step, read = architecture_input.STEP, architecture_input.READ
    assert [architecture_input.step(workers) for workers in (0, 1, 2, 8)] == [step + read, read, step, step]
    assert architecture_input.first_batch("by reading on") == 6 * architecture_input.first_batch("by position")


# --- saves --------------------------------------------------------------------------------------------------

IDLE = {"synchronous": 0.02, "asynchronous": 0.005, "written": 0.03}


def test_a_synchronous_save_takes_the_disks_time_and_an_asynchronous_one_its_copy():
    assert architecture_saves.waits("synchronous", IDLE) == pytest.approx(0.02 + architecture_saves.DISK)
    assert architecture_saves.waits("asynchronous", IDLE) == pytest.approx(0.005)


def test_a_save_that_comes_too_early_waits_for_the_one_before():
    rest = 0.03 + architecture_saves.DISK - 0.005 - 2 * architecture_saves.STEP  # copied, and overlapped by two steps
    assert architecture_saves.blocked("asynchronous, too often", IDLE) == pytest.approx(0.005 + rest)
    assert architecture_saves.waits("asynchronous, too often", IDLE) == pytest.approx(0.005 + 5 / 6 * rest)


def test_the_steps_after_a_save_are_those_that_follow_it():
    seconds = [0.1] * 12
    seconds[6] = 0.4  # the only step of twelve that follows a save of every sixth
    assert architecture_saves.after("asynchronous", seconds) == (0.4, 0.1)
