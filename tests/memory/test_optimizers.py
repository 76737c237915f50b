"""What optimizers store and allocate, by hand."""

import pytest

from scaleout.memory.accounts import account
from scaleout.memory.optimizers import Trained, stored, temporaries
from scaleout.memory.states import paged_bytes, states, tensor_shapes
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, Shape, total_parameters

SMALL = Shape(4, 64, 4, 300, max_seq=64)
MATRICES = [(512, 1024), (1024, 512), (256, 256)]
TRAINED = Trained([], MATRICES, [])


def test_muon_leaves_tables_and_vectors_to_adamw():
    """torch's Muon refuses what has not two dimensions, and its description leaves embeddings and head to AdamW."""
    matrices = 4 * (4 * 64 * 64 + 2 * 64 * 256)
    held = states(SMALL, Recipe("fp32", "muon"), Layout())["optimizer"]
    assert held == 4 * (2 * total_parameters(SMALL) - matrices)
    assert states(SMALL, Recipe("fp32", "muon"), Layout(dp=2, zero=1))["optimizer"] == held / 2


def test_eight_bit_states_are_bytes_and_a_scale_for_each_256():
    """bitsandbytes' BlockwiseQuantization: tensors of fewer than 4,096 numbers stay in fp32."""
    trained = Trained([(300, 64)], [(64, 64), (64, 63), (64,)], [])
    scales = 300 * 64 // 256 + 64 * 64 // 256
    one = (300 * 64 + 64 * 64) + 4 * scales + 4 * (64 * 63 + 64)
    assert stored(trained, Recipe(optimizer="adamw-8bit")) == 2 * one
    assert stored(trained, Recipe(optimizer="lion-8bit")) == one
    large = states(PRESETS["llama-2-7b"], Recipe(optimizer="adamw-8bit"), Layout())["optimizer"]
    assert large == pytest.approx(2 * (1 + 4 / 256) * total_parameters(PRESETS["llama-2-7b"]), rel=1e-4)


def test_adafactor_stores_rows_and_columns():
    assert stored(Trained([], [(300, 64), (64,)], []), Recipe(optimizer="adafactor")) == 4 * (300 + 64 + 64)
    # transformers 5.24, Adafactor(scale_parameter=False, relative_step=False, weight_decay=0.01), by the ledger, whose
    # largest tensor has 512 x 1,024 numbers: 6,291,464 bytes in fp32 and 10,485,768 in bf16
    for precision, seen in (("fp32", 6_291_464), ("bf16", 10_485_768)):
        assert temporaries(TRAINED, Recipe(precision, "adafactor"), 0) == pytest.approx(seen, rel=1e-5)


def test_states_of_bitsandbytes_are_fp32_whatever_the_weights_are():
    for optimizer, paged, moments in (("lion", False, 1), ("adamw", True, 2)):
        held = states(SMALL, Recipe("bf16", optimizer, paged=paged), Layout())["optimizer"]
        assert held == 4 * moments * total_parameters(SMALL)
    assert states(SMALL, Recipe("bf16"), Layout())["optimizer"] == 2 * 2 * total_parameters(SMALL)


def test_paged_states_can_leave_the_gpu_but_for_small_tensors():
    """bitsandbytes pages tensors of 100,000 numbers and more."""
    shape, recipe = PRESETS["gpt2"], Recipe(optimizer="adamw-8bit", paged=True)
    small = [n for n in tensor_shapes(shape, recipe, Layout()).elements if n < 100_000]
    left = states(shape, recipe, Layout())["optimizer"] - paged_bytes(shape, recipe, Layout())
    assert 0 < left == stored(Trained([], [(n,) for n in small], []), recipe)
    assert paged_bytes(shape, Recipe(optimizer="adamw-8bit"), Layout()) == 0


def test_the_account_has_the_optimizers_own_temporaries():
    shape = PRESETS["gpt2"]
    table = shape.vocab * shape.hidden
    for recipe, extra in (
        (Recipe("fp32", fused_update=True), 0),
        (Recipe("fp32", "lion"), 0),
        (Recipe("fp32", "adafactor"), 12 * table),
        (Recipe("bf16", "adafactor"), 20 * table),
    ):
        assert account(shape, 1, 64, recipe).moments["optimizer"]["temporaries"] == extra
