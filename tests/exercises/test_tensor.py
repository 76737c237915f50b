"""The answers of `tensor`'s exercises, against arithmetic by hand, a published formula and the book's other models."""

import json
from functools import partial

import answers
import pytest
from cases import each
from repo import ROOT

from scaleout import exercises
from scaleout.collectives import tensor
from scaleout.exercises.tensor import diagnose, wire
from scaleout.exercises.tensor.sizes import GPT
from scaleout.memory.accounts import Layout, Recipe
from scaleout.memory.activations import Sizes, block_kept
from scaleout.spec.slices import slice_linears
from scaleout.spec.transformer import PRESETS, Shape, total_parameters

MB = 10**6

value = partial(answers.value, "tensor")
right = partial(answers.right, "tensor")
solution = partial(answers.solution, "tensor")


def test_numbers_that_follow_from_one_line_of_arithmetic():
    assert value("block-waits") == pytest.approx(4 * 2 * 7 / 8 * 4096 * 8192 * 2 / 50e9)
    assert value("sequence-bytes") == pytest.approx(10 * 7 / 8 * 4096 * 5120 * 2)
    assert value("kept") == 2048 * 2 * 5120 * (10 + 24 / 4 + 5 * 40 * 2048 / 5120 / 4)
    assert value("kv-heads") == 2 * 5120 * 128


def test_what_prompts_say_of_models_and_links_is_so():
    assert round(total_parameters(GPT) / 1e9) == 13
    assert wire.link("ib-ndr").one_way_bytes_per_s == 400e9 / 8
    assert PRESETS["llama-3-70b"].hidden == 8192
    assert round(wire._WORK * 1e3, 1) == 5.9 and value("block-waits") > 1.5 * wire._WORK, "waits for most of the time"


def test_what_a_block_keeps_is_what_the_memory_model_and_the_paper_say():
    published = json.loads((ROOT / "tests/published/activation_recomputation.json").read_text(encoding="utf-8"))
    assert "table 2" in published["source"]
    for split, expected in ((False, value("kept")), (True, 20_971_520 * (34 + 80) / 4)):
        recipe = Recipe(precision="bf16", attention="naive", dropout=0.1)
        z = Sizes(GPT, 2, 2048, recipe, Layout(tp=4, sequence_parallel=split))
        assert sum(block_kept(z, "none").values()) == pytest.approx(expected, rel=0.01)
    assert f"{20_971_520 * (34 + 80) / 4 / MB:.0f} MB" in exercises.exercise("tensor", "kept").solution
    assert 10 / 16 == 5 / 8  # "five eighths" of what a fused kernel leaves


@each([2, 3, 4, 8])
def test_split_tokens_send_a_quarter_more_where_they_are_gathered_again(ranks):
    shape = Shape(1, 48, 24, 64)
    plain, gathers_again, keeps = (
        sum(tensor.block(shape, 1, 24, ranks, **options).sent(phase) for phase in ("forward", "backward"))
        for options in ({}, {"sequence_parallel": True}, {"sequence_parallel": True, "gather_again": False})
    )
    assert keeps == pytest.approx(plain) and gathers_again == pytest.approx(1.25 * plain)


def test_a_ranks_columns_are_as_many_as_the_models_and_the_queries_are_shared_out():
    columns = solution("split-heads")
    for rank, ranks, heads, kv, width in exercises.exercise("tensor", "split-heads").cases:
        shape = Shape(1, heads * width, heads, 64, kv_heads=kv, ff=ranks)
        wide = {name: cut for name, (_, cut) in slice_linears(shape, ranks).items()}
        own_columns = columns(rank, ranks, heads, kv, width)
        assert own_columns == sorted(set(own_columns)) and len(own_columns) == wide["q"] + wide["k"] + wide["v"]
        by_rank = [columns(rank, ranks, heads, kv, width) for rank in range(ranks)]
        assert sorted(c for part in by_rank for c in part if c < heads * width) == list(range(heads * width))
        assert {c for part in by_rank for c in part} == set(range((heads + 2 * kv) * width))


def test_of_four_ranks_equal_blocks_give_the_first_queries_alone_and_the_last_values_alone():
    mistakes = {mistake.name: mistake.wrong for mistake in exercises.exercise("tensor", "split-heads").mistakes}
    wrong = mistakes["equal-blocks"]
    first, last = wrong(0, 4, 8, 8, 2), wrong(3, 4, 8, 8, 2)
    assert max(first) < 16 and min(last) >= 32


def test_messages_that_hide_are_the_backwards():
    """What stays of the backward's is its contention with compute and what is longer than compute."""
    plain, overlapped = wire._PLAIN, wire._OVERLAPPED
    assert right("hidden") == "backward"
    assert plain.forward.exposed == plain.backward.exposed == overlapped.forward.exposed
    contention = wire.PROGRAMS["megatron"].contention
    assert contention <= overlapped.backward.exposed / plain.backward.exposed < contention + 0.02


def test_the_two_runs_show_what_the_solution_says_of_them():
    a, b = (
        {name for name, error in run.errors.items() if error > diagnose.WRONG}
        for run in (diagnose.SILENT, diagnose.COPIES)
    )
    assert list(diagnose.SILENT.errors) == list(diagnose.COPIES.errors)
    assert a == set(list(diagnose.SILENT.errors)[2:])
    assert b == {"3.attention.v", "3.attention.k"}
    for run in (diagnose.SILENT, diagnose.COPIES):
        errors = [abs(loss / expected - 1) for loss, expected in zip(run.losses, run.alone, strict=True)]
        assert errors[0] < 1e-6 and errors[1] > 5e-4
        for losses in (run.losses, run.alone):
            assert [*losses] == sorted(losses, reverse=True), "a loss that looks right: both runs learn"
    assert max(errors) < 0.001 and all(run.losses[n] < run.alone[n] for n in (1, 2)), "less than a tenth of a per cent"
