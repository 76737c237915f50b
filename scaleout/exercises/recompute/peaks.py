"""Exercises of `recompute` on the peak: where it goes when activations fall, and what a pipeline multiplies."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip
from scaleout.exercises.recompute.sizes import BLOCK, NAME, RECIPE, SEQ, X, gb
from scaleout.memory.accounts import Account, account
from scaleout.memory.activations import Sizes
from scaleout.memory.recompute import Policy, full, none
from scaleout.spec.devices import GB
from scaleout.spec.layout import Layout
from scaleout.spec.transformer import PRESETS

_BYTES = ("MB", "GB", "GiB")
_SHAPE, _BATCH, _SEQ = PRESETS["gpt2-medium"], 4, 1024


def _account(policy_of) -> Account:
    policy: Policy = policy_of(Sizes(_SHAPE, _BATCH, _SEQ, RECIPE, Layout()))
    return account(_SHAPE, _BATCH, _SEQ, RECIPE, Layout(), policy)


def _bytes_at(memory: Account, moment: str) -> int:
    return sum(memory.moments[moment].values())


KEEPS, RECOMPUTES = _account(none), _account(full)
_LOSS, _UPDATE = KEEPS.moments["loss"], KEEPS.moments["optimizer"]
_STATES = sum(KEEPS.moments["loss"][kind] for kind in ("weights", "master", "optimizer"))
_ACTIVATIONS, _INPUTS = (memory.moments["loss"]["activations"] for memory in (KEEPS, RECOMPUTES))
_FALLS = KEEPS.peak_bytes - RECOMPUTES.peak_bytes
_SAVED = _bytes_at(KEEPS, "loss") - _bytes_at(RECOMPUTES, "loss")

FALLS = Number(
    key="peak-falls",
    level=2,
    minutes=4,
    title="How far the peak falls",
    prompt="GPT-2 medium trains in bf16 with an fp32 master copy and AdamW, 4 sequences of 1,024 tokens. Weights, "
    f"master copy and moments take **{gb(_STATES, 1)}** all the time. Beside them there are\n\n"
    f"- at the loss: **{gb(_ACTIVATIONS, 1)}** of activations, and **{gb(_LOSS['logits'], 1)}** of logits and what is "
    "made of them;\n"
    f"- in the update, when no activations are left: **{gb(_UPDATE['gradients'], 1)}** of gradients, and "
    f"**{gb(_UPDATE['temporaries'], 1)}** that AdamW takes for a moment.\n\n"
    f"Now every block is made again in full: at the loss **{gb(_INPUTS, 1)}** of activations are left, and no moment "
    "of the backward is fuller than the loss. By how much does the peak of the step fall?",
    hints=("Add up each of the two moments, before and after.", "The peak is the fullest moment. Which is it now?"),
    solution=f"Before, the loss is the fullest: {_STATES / GB:.1f} + {_ACTIVATIONS / GB:.1f} + "
    f"{_LOSS['logits'] / GB:.1f} = {gb(KEEPS.peak_bytes, 1)}. After, it has {gb(_bytes_at(RECOMPUTES, 'loss'), 1)}, "
    f"but the update still has {_STATES / GB:.1f} + {_UPDATE['gradients'] / GB:.1f} + "
    f"{_UPDATE['temporaries'] / GB:.1f} = {gb(RECOMPUTES.peak_bytes, 1)}, and that is the peak now. It falls by "
    f"**{gb(_FALLS, 1)}**, not by the {gb(_SAVED, 1)} that activations fell.\n\n"
    "Recomputation lowers one kind at some moments. To free more here you would change the update (`fused=True` or "
    "`foreach=False` take next to nothing), and then the logits: torchtitan computed the loss in chunks, and "
    "fell from 49.6 to 42.3 GiB with the blocks as they were (pull request 996). That a checkpoint *does not appear "
    "to reduce peak memory* (pytorch, issue 78731), that *I was not able to observe a significant improvement* "
    "(rasbt/deeplearning-models, issue 74), is asked often: before you look for a fault, find the moment of the peak.",
    value=_FALLS,
    unit="GB",
    units=_BYTES,
    tolerance=0.016,
    slips=(
        Slip(
            "activations", _SAVED, "That is what activations fall by at the loss. Is the loss still the fullest moment?"
        ),
        Slip("all-activations", _ACTIVATIONS, "Those are all activations. Inputs of blocks stay, and the peak moves."),
        Slip("new-peak", RECOMPUTES.peak_bytes, "That is the new peak. The question is how far it fell."),
        Slip(
            "no-states-later",
            KEEPS.peak_bytes - _UPDATE["gradients"] - _UPDATE["temporaries"],
            "Weights, master copy and moments are there in the update too.",
        ),
        Slip(
            "no-gradients",
            KEEPS.peak_bytes - RECOMPUTES.peak_bytes + _UPDATE["gradients"],
            "You left the gradients out of the update. They are there until it is done.",
        ),
    ),
    right="The peak moved to the update, where nothing is recomputed.",
)

_STAGES, _BLOCKS, _MICRO = 4, 8, 16
_REBUILT = BLOCK - X


def _block_bytes(flying: int = _STAGES, rebuilt: int = 1, kept_bytes: int = X) -> int:
    """Bytes of the first rank's blocks, `rebuilt` of them made again."""
    return flying * _BLOCKS * kept_bytes + rebuilt * _REBUILT


FLIGHT = Number(
    key="in-flight-inputs",
    level=2,
    minutes=4,
    title="Four micro-batches in flight",
    prompt=f"{NAME} runs through a pipeline of **{_STAGES}** stages with **{_BLOCKS}** blocks each, under 1F1B, "
    f"**{_MICRO}** micro-batches of one sequence of {SEQ:,} tokens. A block keeps **{gb(BLOCK, 3)}** of a micro-batch; "
    f"of that **{gb(X, 4)}** are its input. Every block is made again in full, one at a time. How much do the blocks "
    "of the **first** stage hold of activations, at most?",
    hints=(
        "How many micro-batches has the first stage in flight under 1F1B?",
        "What is kept of each of them, and how many blocks are whole at one time?",
    ),
    solution=f"The first of {_STAGES} stages has {_STAGES} micro-batches in flight, and keeps of each the inputs of "
    f"{_BLOCKS} blocks: {_STAGES} × {_BLOCKS} × {X / GB:.4f} = {gb(_block_bytes(rebuilt=0))}. One block of one "
    f"micro-batch is whole while its backward runs, {gb(_REBUILT)} more than its input. Together "
    f"**{gb(_block_bytes())}**.\n\nWithout recomputation it would be {_STAGES} × {_BLOCKS} × {BLOCK / GB:.3f} = "
    f"{gb(_STAGES * _BLOCKS * BLOCK, 1)}. What is kept stands as often as micro-batches fly, what is rebuilt stands "
    "once: so the first stages gain most, and the last, with one micro-batch in flight, hardly needs it. "
    "NeMo can therefore spare the first of four stages a part of the work for one micro-batch in four, and the last "
    "for every one (NVIDIA-NeMo/Speech, pull request 4813).",
    value=_block_bytes(),
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "all-in-flight",
            _block_bytes(_MICRO),
            f"You kept all {_MICRO} micro-batches. 1F1B begins with backwards before all of them are in.",
        ),
        Slip("one-in-flight", _block_bytes(1), "That is the last stage, with one micro-batch in flight."),
        Slip("no-rebuild", _block_bytes(rebuilt=0), "Those are the inputs. A block is whole while its backward runs."),
        Slip(
            "rebuilt-for-each",
            _block_bytes(rebuilt=_STAGES),
            "You have a block of each micro-batch whole. One backward runs at a time.",
        ),
        Slip(
            "stage-rebuilt",
            _block_bytes(rebuilt=_BLOCKS),
            "You have all blocks of the stage whole. They are made again one at a time.",
        ),
        Slip("none-made-again", _STAGES * _BLOCKS * BLOCK, "That is without recomputation."),
        Slip("input-twice", _block_bytes() + X, "The input of the block that is whole is among the inputs already."),
        Slip("in-bytes-of-one-block", X * _STAGES + _REBUILT, "You counted one block of the stage. It has eight."),
    ),
    right="What is kept is multiplied by the micro-batches in flight. What is rebuilt is not.",
)

EXERCISES = (FALLS, FLIGHT)
