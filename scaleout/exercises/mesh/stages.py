"""The exercise of `mesh` on the memory of a pipeline's stages, which differ."""

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
    prompt=f"Llama 3 8B runs in a pipeline of **{PP}** GPUs with {BLOCKS} blocks each, in 1F1B with **{M}** "
    f"micro-batches of one sequence of 4,096 tokens. States take {BYTES} bytes per parameter:\n\n"
    f"- a block: {BLOCK / GB:.2f} GB\n"
    f"- the embedding: {TABLE / GB:.2f} GB; the head as much again (they are not tied)\n\n"
    f"For each micro-batch in flight, a block saves **{ACTIVATIONS / GB:.3f} GB** of activations. The logits "
    f"at the loss take {LOGITS / GB:.1f} GB. How much memory does the **fullest** of the four GPUs need?",
    hints=(
        "How many micro-batches are in flight on each stage of 1F1B at its peak?",
        "The first stage has the embedding, the last one the head. Which of them has more micro-batches in flight?",
    ),
    solution=f"In 1F1B stage i, counted from 0, has p − i micro-batches in flight: 4, 3, 2, 1. The first stage needs "
    f"{BLOCKS} × {BLOCK / GB:.2f} + {TABLE / GB:.2f} + 4 × {BLOCKS} × {ACTIVATIONS / GB:.3f} = "
    f"**{holds() / GB:.1f} GB**. The others need {holds(0, 3) / GB:.1f}, {holds(0, 2) / GB:.1f}, and the last, with "
    f"head and logits, {holds(flying=1, extra=LOGITS) / GB:.1f} GB.\n\n"
    "**A layout needs what its fullest rank needs**, and on a mesh that is nearly always a rank of the first "
    "stage. More micro-batches do not change it. This is one reason to give the two end stages fewer blocks: in "
    "Llama 3's training each of them has one block less (arXiv 2407.21783, section 3.3.2).",
    value=holds(),
    unit="GB",
    units=("MB", "GB", "GiB"),
    slips=(
        Slip(
            "all-in-flight",
            holds(flying=M),
            "You counted all micro-batches in flight, as in GPipe. 1F1B starts backwards before all forwards are done.",
        ),
        Slip(
            "one-in-flight",
            holds(flying=1),
            "You counted one micro-batch in flight. More have started before the first one's backward arrives.",
        ),
        Slip("no-table", holds(0), "You left out the token embedding table."),
        Slip("second-stage", holds(0, 3), "That is the second stage. Is it the fullest?"),
        Slip("last-stage", holds(flying=1, extra=LOGITS), "That is the last stage. Is it the fullest?"),
        Slip("head-too", holds(2 * TABLE), "You put embedding and head on one GPU. The head is on the last stage."),
        Slip("logits-too", holds(extra=LOGITS), "The logits are on the last stage, where the loss is."),
        Slip(
            "states-alone",
            holds(flying=0),
            "Those are only the states. Add the activations of the micro-batches in flight.",
        ),
    ),
    right="With p micro-batches in flight and the embedding, the first stage is the fullest.",
)

EXERCISES = (FIRST,)
