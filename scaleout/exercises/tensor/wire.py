"""Exercises of `tensor` on communication: its backward, its seconds, and what it can overlap with."""

from __future__ import annotations

from dataclasses import replace

from scaleout.collectives.tensor import block
from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.tensor.sizes import sent, stream
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import link
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.timing import compute, machine

BACKWARD = Choice(
    key="f-and-g",
    level=2,
    minutes=3,
    title="Backwards through an all-reduce",
    prompt="For g, the all-reduce after a row-split matrix, a colleague uses torch's differentiable `all_reduce` "
    "(of `torch.distributed.nn`), whose **backward is an all-reduce too**. Each of 4 ranks computes the same loss "
    "from the same y. The forward pass is right. What is the gradient of the row-split matrix?",
    hints=(
        "y is the sum of four parts. By how much does y change if one part changes by 1?",
        "Every rank has computed the whole gradient of y before its backward pass reaches g. What does an all-reduce "
        "make of four equal tensors?",
    ),
    solution="**Four times too large, on every rank.** Each rank already has the whole gradient of y, the same one, "
    "and the gradient of y *is* the gradient of each part. So g has nothing to communicate in the backward pass. An "
    "all-reduce adds the same gradient four times.\n\nIt is not a bug in torch. Its `all_reduce` differentiates the "
    "sum of all ranks' losses. Where each rank has a different part of the loss, as under sequence parallelism, that "
    "is right. Here four copies of one loss are counted as four losses. With SGD this acts like a learning rate that "
    "is too large. AdamW divides most of the factor out, so the run goes on, but it is wrong where the branch and the "
    "residual meet, because only the branch has the factor.",
    options=(
        Option(
            "four-times",
            "It is four times too large on every rank",
            "Right: four equal gradients, each of which was complete already, have been added.",
            True,
        ),
        Option(
            "right",
            "It is right, as sums are undone by sums",
            "A backward pass does not undo a forward pass. It asks how much y changes with a part, and y changes by "
            "as much as the part.",
        ),
        Option(
            "fourth",
            "It is a quarter of it, the rank's own part",
            "That would need ranks that have only a part of the gradient of y. Here each rank computes the loss from "
            "the whole y, so every rank has all of its gradient.",
        ),
        Option(
            "differs",
            "It is right on average, but ranks differ",
            "An all-reduce gives all ranks the same result, and here it adds four equal tensors.",
        ),
        Option(
            "sixteen",
            "It is sixteen times too large on all ranks",
            "The forward pass's all-reduce adds four different parts, once, and that is right. How many sums too many "
            "are there between the loss and this matrix in the backward pass?",
        ),
    ),
)


def _of_block(shape: Shape, seq: int, overlap: str) -> compute.Work:
    """A block on eight H100s of a node, by Megatron-LM with one way to overlap."""
    job = Job(
        shape,
        seq,
        DEVICES["h100-sxm"],
        cluster(1, 8),
        layout=Layout(tp=8),
        program=replace(PROGRAMS["megatron"], tensor_overlap=overlap),
    )
    return compute.block(job, machine.from_datasheet(job))


_LLAMA, _RANKS, _SEQ = PRESETS["llama-3-70b"], 8, 4096
_X, _CARD = stream(_LLAMA, 1, _SEQ), link("ib-ndr").one_way_bytes_per_s
_WAIT = sent(block(_LLAMA, 1, _SEQ, _RANKS)) / _CARD
_BLOCK = _of_block(_LLAMA, _SEQ, "none")
_WORK = _BLOCK.forward_seconds + _BLOCK.backward_seconds - _BLOCK.exposed

EXPOSED = Number(
    key="block-waits",
    level=2,
    minutes=3,
    title="How long a block waits",
    prompt=f"Eight nodes have **one** H100 each, with a network adapter of **400 Gbit/s**. The blocks of Llama 3 70B "
    f"are split over these eight GPUs: {_LLAMA.hidden:,} wide, one sequence of **{_SEQ:,}** tokens, bf16, no sequence "
    "parallelism. The all-reduces are rings at the adapter's full rate, and nothing overlaps. How long does **one "
    "block** wait for its communication, forward and backward together?",
    hints=(
        "The tensor in one all-reduce has tokens × width × 2 bytes.",
        "Four all-reduces, and a ring sends 2 (t − 1)/t of the tensor from each rank.",
        "400 Gbit/s are 50 GB/s.",
    ),
    solution=f"The tensor has {_SEQ:,} × {_LLAMA.hidden:,} × 2 bytes = {_X / 1e6:.1f} MB. Four all-reduces send "
    f"2 × 7/8 of it each, {_WAIT * _CARD / 1e6:.0f} MB in all. At 50 GB/s that takes **{_WAIT * 1e3:.1f} ms**. By the "
    f"book's model the block computes for {_WORK * 1e3:.1f} ms. On the NVLink of one node the communication would take "
    f"{_WAIT * 1e3 * _CARD / link('nvlink4').one_way_bytes_per_s:.1f} ms, without start-up times.",
    value=_WAIT,
    unit="ms",
    units=("µs", "ms", "s"),
    dimension="seconds",
    slips=(
        Slip(
            "bits",
            _WAIT / 8,
            "Either you took 400 Gbit/s for 400 GB/s, or you divided by the eight ranks, but all of them wait.",
        ),
        Slip("half", _WAIT / 2, "Either that is the forward alone, or you counted each all-reduce as one collective."),
        Slip(
            "whole",
            _WAIT * 8 / 7,
            "You sent the whole tensor in both halves of the ring. A part of it never leaves a rank.",
        ),
        Slip(
            "once",
            4 * _X / _CARD,
            "You sent each tensor once, and whole. How much of it does a ring all-reduce send?",
        ),
        Slip("one-all-reduce", _WAIT / 4, "That is one all-reduce. How many does a block need, forward and backward?"),
        Slip("fp32", _WAIT * 2, "Either you took fp32, and activations are bf16; or you counted too many all-reduces."),
        Slip(
            "all-ranks",
            _WAIT * 8,
            "Either that is what all eight ranks send, but they send at the same time; or you converted bits to bytes "
            "twice.",
        ),
        Slip(
            "nvlink",
            _WAIT * _CARD / link("nvlink4").one_way_bytes_per_s,
            "That is at the rate of NVLink. These GPUs are in eight nodes, connected by network adapters.",
        ),
        Slip(
            "per-rank",
            _WAIT / 7,
            "You sent one of the eight parts of each tensor. A ring has more steps than that.",
        ),
    ),
    right="Every block waits that long: over network adapters, eight GPUs wait for most of the time.",
)

_PLAIN, _OVERLAPPED = (_of_block(PRESETS["llama-3-405b"], 8192, overlap) for overlap in ("none", "backward"))

HIDDEN = Choice(
    key="hidden",
    level=3,
    minutes=3,
    title="Hidden like DDP's",
    prompt="DDP's all-reduces overlap with the backward pass. So somebody starts a block's four all-reduces with "
    "`async_op=True` and waits for each just before the first operation that reads its result. There is no sequence "
    "parallelism, and nothing is split into chunks. Which of this communication can be hidden?",
    hints=(
        "What reads g's result, and how soon?",
        "In the backward pass, two matrix multiplications follow for a column-split matrix: one gives the gradient of "
        "its input, which f all-reduces, and one gives the gradient of its weight. Which should come first?",
    ),
    solution="**Nothing in the forward pass; in the backward pass f's all-reduces, behind the gradients of the "
    "weights.** Communication can be hidden if there is work that does not need its result. DDP's gradients are "
    "needed at the end of the step. g's result is needed at once, by the residual sum. But in the backward pass the "
    "gradient of the input can be computed first, and all-reduced while the gradients of the weights are computed, "
    "which nothing waits for. Megatron-LM does so. For a block of Llama 3.1 405B on eight H100s with 8,192 tokens, the "
    f"book's model has {_PLAIN.backward.exposed * 1e3:.1f} ms of communication in the backward pass. Of these, "
    f"{_OVERLAPPED.backward.exposed * 1e3:.1f} ms stay exposed, because hidden communication takes multiprocessors and "
    "memory bandwidth from the matrix multiplication. All "
    f"{_OVERLAPPED.forward.exposed * 1e3:.1f} ms of the forward pass stay.\n\n"
    "To hide those too, there must be work that needs only a part of the result: split the matrix multiplication and "
    "the communication into chunks, and send one chunk while another is multiplied. That is asynchronous tensor "
    "parallelism.",
    options=(
        Option(
            "backward",
            "None in the forward, most in the backward",
            "Right: only the gradients of the weights can be computed meanwhile, and f's all-reduces overlap with "
            "them.",
            True,
        ),
        Option(
            "all",
            "All of the forward's, all of the backward's",
            "DDP's results are needed at the end of the step. The next operation needs these.",
        ),
        Option(
            "none",
            "None in the forward, none in the backward",
            "The next operation reads each result, but it is not the only work that is left. What needs only data "
            "that is there already?",
        ),
        Option(
            "forward",
            "Most in the forward, none in the backward",
            "The next operation of the forward pass is the residual sum, and it reads g's result. There is nothing to "
            "compute before it.",
        ),
        Option(
            "half",
            "Half in the forward, half in the backward",
            "There are two all-reduces each way, but attention and MLP are in a chain, so one cannot overlap with the "
            "other.",
        ),
    ),
)

EXERCISES = (BACKWARD, EXPOSED, HIDDEN)
