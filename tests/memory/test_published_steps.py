"""Published steps (tools/measured.py): each ran, so that none is called too large; and the memory that SimuMax measured
of Megatron-LM on B200."""

import sys
from collections import Counter

import pytest
from cases import over
from repo import ROOT

from scaleout.memory import allocator
from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes
from scaleout.memory.megatron import placeholders
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import CHOICES, Recipe
from scaleout.spec.transformer import PRESETS

sys.path.insert(0, str(ROOT / "tools"))

import measured
import measured_memory

ROWS = measured.rows()
B200 = [row for row in ROWS if row.gib]
MEGATRON = Recipe("bf16-master", main_gradients="instead", fused_update=True, operations="megatron")


def test_every_step_that_ran_fits_or_may_fit():
    found = {}
    for row in ROWS:
        verdict = allocator.verdict(measured_memory.peak(row), measured_memory.device_bytes(row))
        found.setdefault(verdict, []).append(f"{row.series}: {row.name}")
    assert set(found) == {"fits", "may fit"}, found.get("does not fit")
    assert len(found["fits"]) >= 0.9 * len(ROWS) and len(ROWS) == 227
    may = Counter(name.split()[0] for name in found["may fit"])
    assert set(may) == {"llm-foundry", "dgxc", "torchtitan"}


def test_of_one_recipe_for_all_programs_eight_would_not():
    """Which is why each has its own: what a timed job takes for granted is not what the program keeps."""
    too_large = [
        row
        for row in ROWS
        if allocator.verdict(measured_memory.fullest(row.job).peak_bytes, row.job.device.memory_bytes) == "does not fit"
    ]
    assert {row.series.split()[0] for row in too_large} == {"kempner", "torchtitan", "dgxc"} and len(too_large) == 8


@pytest.mark.parametrize("row", B200, ids=lambda row: f"{row.name[:16]} {row.job.layout.degrees} m {row.job.layout.m}")
def test_what_megatron_allocated_on_b200(row):
    """24 runs of two models in four layouts: 0.2% low in the median. What is missing, 40 to 190 MB, is of the size of
    cuBLAS's workspaces and a pipeline's buffers, which are no tensors of the account."""
    missing = row.gib * 2**30 - measured_memory.peak(row)
    assert 0 < missing < 0.0035 * row.gib * 2**30
    assert missing < 0.25 * 2**30


def test_without_megatrons_own_operations_the_same_runs_are_up_to_3_per_cent_off():
    off = [measured_memory.fullest(row.job).peak_bytes / (row.gib * 2**30) - 1 for row in B200]
    assert max(map(abs, off)) > 0.025 and len(off) == 24


def test_a_placeholder_for_each_shape_of_weights():
    """Of Llama 3 70B on one rank: Q, K and V 160 MiB, the projection 128, gate and up 896, down 448."""
    shape = PRESETS["llama-3-70b"]
    whole, eighth = (Sizes(shape, 1, 4096, MEGATRON, Layout(tp=tp)) for tp in (1, 8))
    assert placeholders(whole) == (160 + 128 + 896 + 448) * 2**20 == 8 * placeholders(eighth)
    book = Recipe("bf16-master", main_gradients="instead")
    assert placeholders(Sizes(shape, 1, 4096, book, Layout())) == 0
    without = Recipe("bf16-master", operations="megatron")
    assert placeholders(Sizes(shape, 1, 4096, without, Layout())) == 0, "there is no main gradient to add to"


@over(
    name=["llama-3-8b", "gpt2"],
    gradients=["none", "instead"],
    checkpointing=CHOICES["checkpointing"],
    layout=[Layout(), Layout(tp=2, sequence_parallel=True), Layout(pp=2, micro_batches=4)],
)
def test_what_a_step_saves_its_backward_frees(name, gradients, checkpointing, layout):
    recipe = Recipe("bf16-master", main_gradients=gradients, checkpointing=checkpointing, operations="megatron")
    shape, batch, seq = PRESETS[name], 2, 16
    moments = account(shape, batch, seq, recipe, layout).moments
    assert moments["optimizer"]["activations"] == 2 * 8 * batch * seq
    assert all(size >= 0 for kinds in moments.values() for size in kinds.values())
