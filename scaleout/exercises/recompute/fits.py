"""The exercise of `recompute` on the batch that gets through more than the first step."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip
from scaleout.exercises.recompute.sizes import gb
from scaleout.memory.accounts import account
from scaleout.spec.devices import GB
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS

SHAPE, SEQ = PRESETS["gpt2-large"], 1024
USABLE = 36_400_000_000  # bytes of an A100 of 40 GB (memory/allocator.py)
_CHECKPOINTED = account(SHAPE, 1, SEQ, Recipe(checkpointing="full")).moments
_SAVED = account(SHAPE, 1, SEQ, Recipe()).moments["loss"]
LOSS, UPDATE = _CHECKPOINTED["loss"], _CHECKPOINTED["optimizer"]
_WEIGHTS, _AVERAGES = LOSS["weights"], LOSS["optimizer"]
_GRADIENTS, _SCRATCH = UPDATE["gradients"], UPDATE["temporaries"]
_INPUTS, _LOGITS = LOSS["activations"], LOSS["logits"]  # of one sequence


def largest_batch(fixed: float = _WEIGHTS + _AVERAGES, sequence_bytes: float = _INPUTS + _LOGITS) -> int:
    """Sequences that fit next to what does not depend on them."""
    return int((USABLE - fixed) // sequence_bytes)


LARGEST_BATCH = largest_batch()

BATCH = Number(
    key="as-many-as-fit",
    level=2,
    minutes=5,
    title="As many as fit",
    prompt=f"GPT-2 large trains with AdamW under bf16 autocast, on an A100 of 40 GB, **{gb(USABLE, 1)}** of which are "
    f"usable. Every block is recomputed in full. The batch is processed at once, without accumulation, in "
    f"sequences of {SEQ:,} tokens. The job needs:\n\n- weights, with autocast's bf16 copies at the loss: "
    f"**{gb(_WEIGHTS, 1)}**\n- "
    f"gradients, when the backward pass is over: **{gb(_GRADIENTS, 1)}**\n- AdamW's averages: "
    f"**{gb(_AVERAGES, 1)}**\n- temporary memory in the update: **{gb(_SCRATCH, 1)}**\n- for each sequence: "
    f"**{gb(_INPUTS, 3)}** of block inputs, and at the loss **{gb(_LOGITS, 3)}** for the logits and what the "
    "loss computes from them\n\nNo moment of the backward pass needs more than the loss. With how many sequences, at "
    "most, can the job train for a day?",
    hints=(
        "Which moment grows with the number of sequences? What else is in memory then?",
        "A day has many steps. What is in memory at the loss of the second step that was not there in the first?",
    ),
    solution=f"At the loss of every step but the first, memory holds weights and averages, {_WEIGHTS / GB:.1f} + "
    f"{_AVERAGES / GB:.1f} = {gb(_WEIGHTS + _AVERAGES, 1)}, and {(_INPUTS + _LOGITS) / GB:.3f} GB for each sequence: "
    f"({USABLE / GB:.1f} − {(_WEIGHTS + _AVERAGES) / GB:.1f}) / {(_INPUTS + _LOGITS) / GB:.3f} = "
    f"{(USABLE - _WEIGHTS - _AVERAGES) / (_INPUTS + _LOGITS):.1f}, so **{LARGEST_BATCH} sequences**. The update needs "
    f"{gb(sum(UPDATE.values()), 1)}, whatever the batch.\n\nWith {LARGEST_BATCH + 1} to {largest_batch(_WEIGHTS)} it "
    "prints a loss and ends in step 2, because at the first step's loss AdamW has not yet allocated its averages. A "
    "search for the largest batch that stops after one step finds one of those. And look at what a sequence needs now: "
    "three quarters are logits, which recomputing blocks does not free. Without recomputation a sequence needs "
    f"{gb(_SAVED['activations'] + _SAVED['logits'], 1)}, and "
    f"{largest_batch(_SAVED['weights'] + _AVERAGES, _SAVED['activations'] + _SAVED['logits'])} fit.",
    value=LARGEST_BATCH,
    unit="sequences",
    units=("sequences",),
    dimension="sequences",
    tolerance=0,
    slips=(
        Slip(
            "first-step",
            largest_batch(_WEIGHTS),
            "So many get through the first step. What does AdamW allocate in its first update?",
        ),
        Slip(
            "gradients-too",
            largest_batch(_WEIGHTS + _AVERAGES + _GRADIENTS),
            "You counted whole gradients at the loss. The backward pass has not begun there.",
        ),
        Slip(
            "all-at-once",
            largest_batch(_WEIGHTS + _AVERAGES + _GRADIENTS + _SCRATCH),
            "You added everything that the job ever needs. How much of it is in memory at one moment?",
        ),
        Slip(
            "no-logits",
            largest_batch(sequence_bytes=_INPUTS),
            "You left the logits out. They are in memory at the peak.",
        ),
        Slip(
            "logits-alone",
            largest_batch(sequence_bytes=_LOGITS),
            "You left the inputs of the blocks out. They are in memory until the backward pass.",
        ),
        Slip(
            "nothing-again",
            largest_batch(_SAVED["weights"] + _AVERAGES, _SAVED["activations"] + _SAVED["logits"]),
            "That is without recomputation.",
        ),
        Slip("rounded-up", LARGEST_BATCH + 1, "Does the last of them still fit, with its logits?"),
        Slip("averages-alone", largest_batch(_AVERAGES), "The weights are in memory too."),
    ),
    right="Weights and averages leave room for that many at the loss, in every step but the first.",
)

EXERCISES = (BATCH,)
