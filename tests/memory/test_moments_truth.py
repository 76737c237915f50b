"""Every moment of a step by itself, the end of the forward too: within 2% of its own bytes, not of the peak's.

Shapes where a moment that is not the peak was wrong once: one head (no copy is made to bring heads together), and full
checkpointing with a wide or a narrow MLP, dropout, a naive core or autocast, where the forward has tensors in passing.
"""

import pytest
from cases import quicker_fake

from scaleout.measure.memory import measure
from scaleout.memory.accounts import Recipe, account
from scaleout.spec.transformer import Shape

LLAMA = {"gated_mlp": True, "bias": False, "norm": "rmsnorm", "positions": "rotary", "tied_head": False}
GPT = {"max_seq": 512}
MIXED = {"gated_mlp": True, "positions": "rotary"}
CASES = [
    # one head
    (Shape(3, 64, 1, 300, **LLAMA), 4, 64, Recipe("fp32")),
    (Shape(3, 64, 1, 300, **LLAMA), 4, 64, Recipe("autocast-bf16")),
    (Shape(3, 64, 1, 300, **LLAMA), 4, 64, Recipe("bf16", checkpointing="full")),
    (Shape(1, 64, 1, 32, ff=64, **LLAMA), 1, 128, Recipe("fp32", attention="naive", checkpointing="full")),
    (Shape(3, 64, 1, 300, **GPT), 4, 64, Recipe("fp32")),
    # the forward under full checkpointing
    (Shape(2, 64, 1, 32, ff=64, **GPT), 16, 256, Recipe("bf16", dropout=0.1, checkpointing="full")),
    (Shape(2, 64, 1, 32, ff=1024, **GPT), 1, 256, Recipe("autocast-bf16", "sgd", attention="naive",
                                                        checkpointing="full")),
    (Shape(8, 128, 4, 300, ff=1024, **MIXED), 16, 128, Recipe("autocast-bf16", "sgd", dropout=0.1,
                                                             checkpointing="full")),
    (Shape(4, 128, 2, 32, ff=64, bias=False, tied_head=False, **GPT), 16, 16, Recipe("bf16", "sgd",
                                                                                    checkpointing="full")),
    (Shape(8, 128, 2, 32, ff=64, **LLAMA), 1, 256, Recipe("fp32", "sgd", dropout=0.1, checkpointing="full")),
    (Shape(8, 128, 2, 32, kv_heads=1, ff=1024, **LLAMA), 16, 256, Recipe("autocast-bf16", checkpointing="full")),
    (Shape(1, 128, 2, 300, kv_heads=1, ff=64, **MIXED), 4, 128, Recipe("fp32", "sgd", attention="naive", dropout=0.1,
                                                                      checkpointing="full")),
    # and of what is recomputed selectively
    (Shape(3, 64, 2, 32, ff=64, **LLAMA), 4, 128, Recipe("bf16-master", attention="naive", checkpointing="selective")),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "batch", "seq", "recipe"), CASES)
def test_every_moment_is_right(shape, batch, seq, recipe):
    truth = measure(shape, batch, seq, recipe, fake=quicker_fake(shape, batch, seq))
    model = account(shape, batch, seq, recipe)
    assert model.peak_bytes == pytest.approx(truth.peak_bytes, rel=0.01)
    for moment, kinds in truth.moments.items():
        here, there = sum(model.moments[moment].values()), sum(kinds.values())
        assert here == pytest.approx(there, rel=0.02), f"{moment}: {here / there - 1:+.2%}"
