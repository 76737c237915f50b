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
    """Sequences that fit beside what does not depend on them."""
    return int((USABLE - fixed) // sequence_bytes)


LARGEST_BATCH = largest_batch()

BATCH = Number(
    key="as-many-as-fit",
    level=2,
    minutes=5,
    title="As many as fit",
    prompt=f"GPT-2 large trains with AdamW under bf16 autocast, on an A100 of 40 GB, **{gb(USABLE, 1)}** of which are "
    f"usable. Every block is made again in full. A batch is one pass, of sequences of {SEQ:,} tokens. What the job "
    f"needs:\n\n- weights, and what autocast has of them in bf16 at the loss: **{gb(_WEIGHTS, 1)}**\n- gradients, when "
    f"the backward is over: **{gb(_GRADIENTS, 1)}**\n- AdamW's averages: **{gb(_AVERAGES, 1)}**\n- what the update "
    f"takes for a moment: **{gb(_SCRATCH, 1)}**\n- of each sequence: **{gb(_INPUTS, 3)}** of inputs of blocks, and at "
    f"the loss **{gb(_LOGITS, 3)}** of logits and what is made of them\n\nNo moment of the backward is fuller than the "
    "loss. With how many sequences at most does the job train for a day?",
    hints=(
        "Which moment grows with the sequences? What stands there beside them?",
        "A day has many steps. What is there at the loss of the second one that the first did not have?",
    ),
    solution=f"At the loss of every step but the first there are weights and averages, {_WEIGHTS / GB:.1f} + "
    f"{_AVERAGES / GB:.1f} = {gb(_WEIGHTS + _AVERAGES, 1)}, and {(_INPUTS + _LOGITS) / GB:.3f} GB of each sequence: "
    f"({USABLE / GB:.1f} − {(_WEIGHTS + _AVERAGES) / GB:.1f}) / {(_INPUTS + _LOGITS) / GB:.3f} = "
    f"{(USABLE - _WEIGHTS - _AVERAGES) / (_INPUTS + _LOGITS):.1f}, so **{LARGEST_BATCH} sequences**. The update has "
    f"{gb(sum(UPDATE.values()), 1)}, whatever the batch.\n\nWith {LARGEST_BATCH + 1} to {largest_batch(_WEIGHTS)} it "
    "prints a loss and ends in step 2: the first step's loss comes before AdamW has made its averages. A search for "
    "the largest batch that stops after one step finds one of those. And look at what a sequence costs now: three "
    "quarters of it are logits, which recomputation of blocks leaves as they are. Without it a sequence costs "
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
            "So many get through the first step. What does AdamW make in its update?",
        ),
        Slip(
            "gradients-too",
            largest_batch(_WEIGHTS + _AVERAGES + _GRADIENTS),
            "That has whole gradients at the loss. The backward has not begun there.",
        ),
        Slip(
            "all-at-once",
            largest_batch(_WEIGHTS + _AVERAGES + _GRADIENTS + _SCRATCH),
            "You added up everything that the job ever needs. Which of it is there at one moment?",
        ),
        Slip(
            "no-logits",
            largest_batch(sequence_bytes=_INPUTS),
            "You left the logits out. They are there at the fullest moment.",
        ),
        Slip(
            "logits-alone",
            largest_batch(sequence_bytes=_LOGITS),
            "You left the inputs of the blocks out. They are kept until the backward.",
        ),
        Slip(
            "nothing-again",
            largest_batch(_SAVED["weights"] + _AVERAGES, _SAVED["activations"] + _SAVED["logits"]),
            "That is without recomputation.",
        ),
        Slip("rounded-up", LARGEST_BATCH + 1, "Does the loss of the last of them still fit, all of it?"),
        Slip("averages-alone", largest_batch(_AVERAGES), "The weights are there too."),
    ),
    right="Weights and averages leave that much at the loss, in every step but the first.",
)

EXERCISES = (BATCH,)
