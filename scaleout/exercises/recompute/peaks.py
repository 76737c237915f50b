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
    f"master copy and AdamW's moments need **{gb(_STATES, 1)}** all the time. In addition\n\n"
    f"- the loss needs **{gb(_ACTIVATIONS, 1)}** for activations, and **{gb(_LOSS['logits'], 1)}** for the logits "
    "and what the loss computes from them;\n"
    f"- the update, with no activations left, needs **{gb(_UPDATE['gradients'], 1)}** for gradients, and "
    f"**{gb(_UPDATE['temporaries'], 1)}** of temporary memory.\n\n"
    f"Now every block is recomputed in full. At the loss **{gb(_INPUTS, 1)}** of activations are left, and no moment "
    "of the backward pass needs more than the loss. By how much does the peak of the step fall?",
    hints=(
        "Add the bytes of each of the two moments, before and after.",
        "The peak is the moment that needs the most memory. Which one is it now?",
    ),
    solution=f"Before, the loss needs the most: {_STATES / GB:.1f} + {_ACTIVATIONS / GB:.1f} + "
    f"{_LOSS['logits'] / GB:.1f} = {gb(KEEPS.peak_bytes, 1)}. After, it needs {gb(_bytes_at(RECOMPUTES, 'loss'), 1)}, "
    f"but the update still needs {_STATES / GB:.1f} + {_UPDATE['gradients'] / GB:.1f} + "
    f"{_UPDATE['temporaries'] / GB:.1f} = {gb(RECOMPUTES.peak_bytes, 1)}, and that is the peak now. It falls by "
    f"**{gb(_FALLS, 1)}**, not by the {gb(_SAVED, 1)} that activations fell.\n\n"
    "Recomputation lowers one kind of memory, at some moments. To free more here you would change the update "
    "(`fused=True` or `foreach=False` need almost no temporary memory), and then the logits: torchtitan computed the "
    "loss in chunks, and its peak fell by 15% with the blocks unchanged (pull request 996). Many people "
    "ask why a checkpoint *does not appear to reduce peak memory* (pytorch, issue 78731), or write that *I was not "
    "able to observe a significant improvement* (rasbt/deeplearning-models, issue 74). Before you look for a fault, "
    "find the moment of the peak.",
    value=_FALLS,
    unit="GB",
    units=_BYTES,
    tolerance=0.016,
    slips=(
        Slip(
            "activations",
            _SAVED,
            "That is how far the loss falls. Is the loss still the moment that needs the most memory?",
        ),
        Slip(
            "all-activations",
            _ACTIVATIONS,
            "Those are all activations. Inputs of blocks stay, and the peak moves to another moment.",
        ),
        Slip("new-peak", RECOMPUTES.peak_bytes, "That is the new peak. The question is how far it fell."),
        Slip(
            "no-states-later",
            KEEPS.peak_bytes - _UPDATE["gradients"] - _UPDATE["temporaries"],
            "Weights, master copy and moments are in memory in the update too.",
        ),
        Slip(
            "no-gradients",
            KEEPS.peak_bytes - RECOMPUTES.peak_bytes + _UPDATE["gradients"],
            "You left the gradients out of the update. They are in memory until it is done.",
        ),
    ),
    right="The peak moved to the update, where recomputation frees nothing.",
)

_STAGES, _BLOCKS, _MICRO = 4, 8, 16
_REBUILT = BLOCK - X


def _block_bytes(flying: int = _STAGES, rebuilt: int = 1, kept_bytes: int = X) -> int:
    """Bytes of the first rank's blocks, `rebuilt` of them recomputed."""
    return flying * _BLOCKS * kept_bytes + rebuilt * _REBUILT


FLIGHT = Number(
    key="in-flight-inputs",
    level=2,
    minutes=4,
    title="Four micro-batches in flight",
    prompt=f"{NAME} runs through a pipeline of **{_STAGES}** stages with **{_BLOCKS}** blocks each, under 1F1B, "
    f"**{_MICRO}** micro-batches of one sequence of {SEQ:,} tokens. A block saves **{gb(BLOCK, 3)}** per micro-batch, "
    f"of which **{gb(X, 4)}** are its input. Every block is recomputed in full, one at a time. How much memory do the "
    "activations of the **first** stage's blocks need, at most?",
    hints=(
        "How many micro-batches are in flight on the first stage under 1F1B?",
        "What is saved for each of them, and how many blocks are recomputed at one time?",
    ),
    solution=f"The first of {_STAGES} stages has {_STAGES} micro-batches in flight, and saves the inputs of "
    f"{_BLOCKS} blocks for each: {_STAGES} × {_BLOCKS} × {X / GB:.4f} = {gb(_block_bytes(rebuilt=0))}. One block of "
    f"one micro-batch has "
    f"all of its tensors in memory while its backward pass runs, {gb(_REBUILT)} more than its input. Together "
    f"**{gb(_block_bytes())}**.\n\nWithout recomputation it would be {_STAGES} × {_BLOCKS} × {BLOCK / GB:.3f} = "
    f"{gb(_STAGES * _BLOCKS * BLOCK, 1)}. Saved tensors are in memory once for each micro-batch in flight, recomputed "
    "ones only once. So the first stages gain most, and the last stage, with one micro-batch in flight, hardly needs "
    "recomputation. NeMo can therefore skip part of it: on the first of four stages for one micro-batch in four, on "
    "the last stage for all of them (NVIDIA-NeMo/Speech, pull request 4813).",
    value=_block_bytes(),
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "all-in-flight",
            _block_bytes(_MICRO),
            f"You counted all {_MICRO} micro-batches. 1F1B starts backward passes before all of them have begun.",
        ),
        Slip("one-in-flight", _block_bytes(1), "That is the last stage, with one micro-batch in flight."),
        Slip(
            "no-rebuild",
            _block_bytes(rebuilt=0),
            "Those are the inputs. One block has all of its tensors in memory while its backward pass runs.",
        ),
        Slip(
            "rebuilt-for-each",
            _block_bytes(rebuilt=_STAGES),
            "You recomputed a block of each micro-batch. One backward pass runs at a time.",
        ),
        Slip(
            "stage-rebuilt",
            _block_bytes(rebuilt=_BLOCKS),
            "You recomputed all blocks of the stage together. They are recomputed one at a time.",
        ),
        Slip("none-made-again", _STAGES * _BLOCKS * BLOCK, "That is without recomputation."),
        Slip("input-twice", _block_bytes() + X, "The input of the recomputed block is among the inputs already."),
        Slip(
            "in-bytes-of-one-block",
            X * _STAGES + _REBUILT,
            "You counted the inputs of one block. The stage has eight blocks.",
        ),
    ),
    right="Saved tensors are multiplied by the micro-batches in flight. Recomputed ones are not.",
)

EXERCISES = (FALLS, FLIGHT)
