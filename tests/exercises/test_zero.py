"""The answers of `zero`'s exercises, against arithmetic by hand, the paper's table, and the book's other models."""

import random
from functools import partial
from itertools import chain

import answers
import pytest
from cases import each

from scaleout import exercises
from scaleout.collectives import zero as wire
from scaleout.exercises.zero import sizes, stages
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe

N = 8_030_261_248  # parameters of Llama 3 8B
ADAMW = Recipe(precision="bf16-master")

value = partial(answers.value, "zero")
right = partial(answers.right, "zero")
solution = partial(answers.solution, "zero")
texts = partial(answers.texts, "zero")


def test_numbers_that_follow_from_one_line_of_arithmetic():
    assert sizes.PARAMETERS == N
    assert value("more-gpus") == pytest.approx(N + 46e9)
    assert value("first-stage-share") == pytest.approx(1 / 3 * 7 / 8)
    assert value("offload-wait") == pytest.approx(28 * N / 300e9 + 2 * N / 8 / 25e9)


def test_what_the_solutions_say_beside_their_numbers_is_so():
    assert round(1 - value("more-gpus") / (2 * N + 46e9), 2) == 0.13 and "13% less" in texts("more-gpus")
    assert "65.6%" in texts("first-stage-share") and round(12 / 16 * 7 / 8, 3) == 0.656
    assert "in 14 ms" in texts("offload-wait") and round(28 * N / 8 / 2.039e12, 3) == 0.014


@each([1, 8, 16])
def test_what_a_rank_holds_is_the_papers_formula(ranks):
    paper = [16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks]  # ZeRO, figure 1
    assert [sizes.total(stage, ranks) / N for stage in range(4)] == pytest.approx(paper)
    assert sizes.states_of(1, ranks) == pytest.approx(
        {"weights": 2 * N, "gradients": 2 * N, "optimizer": 12 * N / ranks}
    )


def test_the_fewest_ranks_are_those_that_counting_up_finds_and_the_papers_table_has():
    fewest, draw = solution("fewest-ranks"), random.Random(5)
    for _ in range(300):
        unsharded, stage, room = [draw.randint(0, 9) for _ in range(3)], draw.randint(0, 3), draw.randint(1, 20)
        weights, gradients, optimizer = unsharded
        fits = (
            n
            for n in range(1, 2000)
            if room * n
            >= weights * (1 if stage > 2 else n) + gradients * (1 if stage > 1 else n) + optimizer * (1 if stage else n)
        )
        assert fewest(unsharded, stage, room) == next(fits, 0), (unsharded, stage, room)
    assert fewest([256, 256, 1536], 3, 32) == 64 and fewest([256, 256, 1536], 1, 896) == 4  # ZeRO, table 1, 128B
    assert [fewest([26, 26, 156], stage, 60) for stage in (1, 2, 3)] == [20, 6, 4]
    assert "takes 20 GPUs at stage 1, 6 at stage 2 and 4 at stage 3" in texts("fewest-ranks")
    assert fewest([30, 30, 180], 1, 60) == fewest([60, 60, 360], 2, 60) == 0 < fewest([29, 29, 174], 1, 60)


def test_pieces_are_those_of_the_message_model():
    pieces = solution("pieces-sent")
    for stage, passes, keep in exercises.exercise("zero", "pieces-sent").cases:
        expected = wire.pieces(N, ADAMW, Layout(dp=8, zero=stage), keep=keep, passes=passes)
        assert pieces(stage, passes, keep) == pytest.approx(expected), (stage, passes, keep)


def test_torchs_optimizer_around_ddp_has_three_n_and_deepspeed_by_default_too():
    assert right("wrapped-optimizer") == "state-3"
    for way in ("ZeroRedundancyOptimizer", "DeepSpeed"):
        assert wire.pieces(N, ADAMW, Layout(dp=8, zero=1), way) == pytest.approx(3)


def test_every_element_has_one_owner_and_parts_are_equal():
    owned, draw = solution("whose-elements"), random.Random(7)
    for _ in range(200):
        shapes, ranks = [draw.randint(0, 12) for _ in range(draw.randint(0, 6))], draw.randint(1, 9)
        parts = [
            [(tensor, i) for tensor, first, end in owned(shapes, ranks, rank) for i in range(first, end)]
            for rank in range(ranks)
        ]
        assert list(chain(*parts)) == [(tensor, i) for tensor, size in enumerate(shapes) for i in range(size)]
        part = -(-sum(shapes) // ranks)
        assert all(len(elements) == part or not sum(map(len, parts[rank + 1 :])) for rank, elements in enumerate(parts))


def test_each_job_takes_the_first_stage_that_fits_and_no_other_sends_as_little():
    chosen = dict(zip("ABC", map(int, right("which-stage").split("-")), strict=True))
    for name, job in stages.JOBS.items():
        fits = [stage for stage in range(4) if job.needs(stage) <= stages.USABLE]
        sent = {stage: job.sends(stage) for stage in fits}
        assert chosen[name] == fits[0] and all(sent[fits[0]] < sent[stage] for stage in fits[1:]), name
    assert [stages.JOBS["A"].sends(stage) for stage in (1, 2, 3)] == pytest.approx([2, 1 + 16, 3 * 16])


def test_without_the_activations_b_and_c_would_take_a_stage_less():
    """So that the option that forgets them is one that somebody reaches."""
    fits = {
        name: [job.needs(stage) - job.activations <= stages.USABLE for stage in (1, 2, 3)].index(True) + 1
        for name, job in stages.JOBS.items()
    }
    assert fits == {"A": 1, "B": 2, "C": 1}
