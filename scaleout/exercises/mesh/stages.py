"""The exercise of `mesh` on a pipeline's memory: stages are not alike."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip
from scaleout.spec.devices import GB
from scaleout.spec.slices import block_parameters
from scaleout.spec.transformer import PRESETS

SHAPE, PP, M, BYTES = PRESETS["llama-3-8b"], 4, 16, 18
BLOCKS = SHAPE.layers // PP
BLOCK = block_parameters(SHAPE, 1) * BYTES
TABLE = SHAPE.vocab * SHAPE.hidden * BYTES
ACTIVATIONS, LOGITS = 0.724 * GB, 6.3 * GB  # of a block, and of the loss, for a micro-batch of 4,096 tokens


def holds(table: float = TABLE, flying: int = PP, extra: float = 0) -> float:
    """Bytes of a GPU whose stage has so many micro-batches in flight."""
    return BLOCKS * BLOCK + table + flying * BLOCKS * ACTIVATIONS + extra


FIRST = Number(
    key="fullest-stage",
    level=2,
    minutes=5,
    title="Four GPUs, one of them full",
    prompt=f"Llama 3 8B in a pipeline of **{PP}** GPUs, {BLOCKS} blocks on each, 1F1B, **{M}** micro-batches of one "
    f"sequence of 4,096 tokens. States take {BYTES} bytes for each parameter:\n\n"
    f"- a block: {BLOCK / GB:.2f} GB\n"
    f"- the token table: {TABLE / GB:.2f} GB; the head as much again, for it is not tied\n\n"
    f"For each micro-batch whose backward is still to come, a block keeps **{ACTIVATIONS / GB:.3f} GB**. Around the "
    f"loss there are {LOGITS / GB:.1f} GB of logits. What does the **fullest** of the four GPUs hold?",
    hints=(
        "How many micro-batches are in flight on each stage of 1F1B, when it is fullest?",
        "The first and the last stage have a table or a head. Which of them has more in flight?",
    ),
    solution=f"In 1F1B stage i, counted from 0, has p − i micro-batches in flight: 4, 3, 2, 1. The first holds "
    f"{BLOCKS} × {BLOCK / GB:.2f} + {TABLE / GB:.2f} + 4 × {BLOCKS} × {ACTIVATIONS / GB:.3f} = "
    f"**{holds() / GB:.1f} GB**. The others: {holds(0, 3) / GB:.1f}, {holds(0, 2) / GB:.1f}, and the last, with head "
    f"and logits, {holds(flying=1, extra=LOGITS) / GB:.1f} GB.\n\n"
    "**What a layout needs is what its fullest rank needs**, and on a mesh that is nearly always a rank of the first "
    "stage. More micro-batches do not change it. That is one reason to give the ends fewer blocks than the middle: in "
    "Llama 3's training both ends have one block less (arXiv 2407.21783, section 3.3.2).",
    value=holds(),
    unit="GB",
    units=("MB", "GB", "GiB"),
    slips=(
        Slip(
            "all-in-flight",
            holds(flying=M),
            "You kept all micro-batches, as GPipe does. 1F1B begins with backwards before all of them are in.",
        ),
        Slip(
            "one-in-flight",
            holds(flying=1),
            "You kept one micro-batch. More are on their way before the first comes back.",
        ),
        Slip("no-table", holds(0), "You left the token table out."),
        Slip("second-stage", holds(0, 3), "That is the second stage. Is it the fullest?"),
        Slip("last-stage", holds(flying=1, extra=LOGITS), "That is the last stage. Is it the fullest?"),
        Slip("head-too", holds(2 * TABLE), "You put table and head on one GPU. The head is on the last stage."),
        Slip("logits-too", holds(extra=LOGITS), "Logits are on the last stage, where the loss is."),
        Slip(
            "states-alone", holds(flying=0), "Those are the states. Activations of micro-batches in flight come on top."
        ),
    ),
    right="p micro-batches in flight and the token table: the first stage is the fullest.",
)

EXERCISES = (FIRST,)
