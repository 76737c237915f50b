"""Exercises of `tensor` on messages: their share of the time, their backward, their seconds, and what hides them."""

from __future__ import annotations

from dataclasses import replace

from scaleout.collectives.tensor import block
from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.tensor.sizes import GPT, products, sent, stream
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import link
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.timing import compute, machine

_FOUR, _PER_BYTE, _BY_CARD = block(GPT, 1, 2048, 4), 1370, 10_500
_SHARE = sent(_FOUR) * _PER_BYTE / products(_FOUR)

WIDE = Number(
    key="wide-enough",
    level=2,
    minutes=2,
    title="Is it wide enough?",
    prompt=f"A GPT of 13 billion parameters is **{GPT.hidden:,}** wide. Its blocks are split over the **4** H100s of "
    f"a node, at half of their peak: {_PER_BYTE:,} operations while NVLink sends a byte. How long do a block's "
    "messages take, forward and backward, as a share of the time of its **products**?",
    hints=("It is the chapter's equation with numbers in it.", "2/9 · (t − 1) · Rβ / h, and t is 4."),
    solution=f"2/9 × 3 × {_PER_BYTE:,} / {GPT.hidden:,} = **{_SHARE:.1%}**: less than a fifth, so four GPUs are "
    f"fine. With eight it would be 7/3 as much, {_SHARE * 7 / 3:.0%}: too many for this width.\n\nThe two parts: a "
    f"rank sends {sent(_FOUR) / 2048 / 1e3:.1f} kB for each token of the batch, in the time of "
    f"{sent(_FOUR) / 2048 * _PER_BYTE / 1e6:.1f} million operations, and it does {products(_FOUR) / 2048 / 1e6:,.0f} "
    "million.",
    value=_SHARE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("t", _SHARE * 4 / 3, "You multiplied by t. In a ring a rank's own part stays where it is."),
        Slip(
            "t-forgotten",
            _SHARE / 3,
            "Either the number of ranks is missing, or you took two. More ranks have less work each, and send nearly "
            "as much.",
        ),
        Slip(
            "forward-only",
            sent(_FOUR) / 2 * _PER_BYTE / (products(_FOUR) / 3),
            "Either that is the forward alone, or your backward has no more products than your forward.",
        ),
        Slip(
            "backward-only",
            sent(_FOUR) / 2 * _PER_BYTE / (products(_FOUR) * 2 / 3),
            "Either that is the backward alone, or you took a rank's own part off twice.",
        ),
        Slip(
            "ring-share",
            _SHARE / 4,
            "Either you left all products on each rank, and a rank has its part of them; or you counted one "
            "all-reduce of a block.",
        ),
        Slip(
            "one-way",
            _SHARE / 2,
            "Either each all-reduce sends the tensor once, and a ring sends it nearly twice; or you counted the "
            "messages of the forward alone, and the products of both.",
        ),
        Slip(
            "of-both",
            _SHARE / (1 + _SHARE),
            "That is the share of messages and products together. The question is for messages over products.",
        ),
        Slip("no-constant", _SHARE * 4.5, "The constant of the chapter's equation is missing."),
        Slip(
            "at-the-peak", _SHARE * 2, "Either that is for GPUs at their full peak, or you counted every message twice."
        ),
        Slip(
            "by-cards",
            _SHARE * _BY_CARD / _PER_BYTE,
            f"That is over network cards, at {_BY_CARD:,} operations a byte. Inside of a node there is NVLink.",
        ),
        Slip("inverted", 1 / _SHARE, "That is products over messages. The question is the other way round."),
    ),
    right="Whatever the batch: each token brings its own messages along.",
)

BACKWARD = Choice(
    key="f-and-g",
    level=2,
    minutes=3,
    title="Backwards through an all-reduce",
    prompt="For g, the all-reduce after a row-cut matrix, a colleague takes torch's differentiable "
    "`all_reduce` (of `torch.distributed.nn`), whose **backward is an all-reduce too**. 4 ranks share one block, and "
    "each works out the same loss from the same y. The forward is right. What is the gradient of that row-cut "
    "matrix?",
    hints=(
        "y is the sum of four parts. By how much does y change if one part changes by 1?",
        "Every rank has worked out the whole gradient of y before its backward comes to g. What does an all-reduce "
        "make of four equal tensors?",
    ),
    solution="**Four times too large, on every rank.** Each rank has the whole gradient of y already, the same one, "
    "and y's gradient *is* each part's: g has nothing to send in the backward. An all-reduce adds the same gradient "
    "four times.\n\nIt is not a bug of torch. There the loss that is differentiated is the sum of all ranks' losses, "
    "and where each rank has a different part of the loss, as under sequence parallelism, that convention is the right "
    "one. Here four copies of one loss are counted as four. With a step of SGD it is a learning rate that is too "
    "large; AdamW divides most of it out, so that the run goes on and is wrong where branch and residual meet: one has "
    "the factor, the other not.",
    options=(
        Option(
            "four-times",
            "It is four times too large on every rank",
            "Right: four equal gradients, which were whole already, have been added up.",
            True,
        ),
        Option(
            "right",
            "It is right, as sums are undone by sums",
            "A backward does not undo a forward. It asks how y changes with a part, and that is by as much as the "
            "part.",
        ),
        Option(
            "fourth",
            "It is a fourth of it, the rank's own part",
            "Only where each rank has but a part of y's gradient. Here the loss is the same on all, from the whole "
            "y: every rank has all of it.",
        ),
        Option(
            "differs",
            "It is right on average, other on each rank",
            "An all-reduce gives all ranks the same, and what it adds here are four equal tensors.",
        ),
        Option(
            "sixteen",
            "It is sixteen times too large on all ranks",
            "The forward's all-reduce adds four different parts, once, and that is right. How many sums too many "
            "lie between the loss and this matrix, on the way back?",
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
    prompt=f"Eight nodes have **one** H100 each, with a network card of **400 Gbit/s**. Somebody splits the blocks of "
    f"Llama 3 70B over the eight: {_LLAMA.hidden:,} wide, one sequence of **{_SEQ:,}** tokens, bf16, no sequence "
    "parallelism. The all-reduces are rings at the card's full rate, and nothing hides. How long does **one block** "
    "wait for its messages, forward and backward together?",
    hints=(
        "The size of one message: tokens × width × 2 bytes.",
        "Four all-reduces, and a ring sends 2 (t − 1)/t of the message from each rank.",
        "400 Gbit/s are 50 GB/s.",
    ),
    solution=f"A message is {_SEQ:,} × {_LLAMA.hidden:,} × 2 bytes = {_X / 1e6:.1f} MB. Four of them, 2 × 7/8 of each, "
    f"are {_WAIT * _CARD / 1e6:.0f} MB, at 50 GB/s: **{_WAIT * 1e3:.1f} ms**. By the book's model the block computes "
    f"for {_WORK * 1e3:.1f} ms. On the NVLink of one node the messages would take "
    f"{_WAIT * 1e3 * _CARD / link('nvlink4').one_way_bytes_per_s:.1f} ms, starts not counted.",
    value=_WAIT,
    unit="ms",
    units=("µs", "ms", "s"),
    dimension="seconds",
    slips=(
        Slip(
            "bits",
            _WAIT / 8,
            "Either you took 400 Gbit/s for 400 GB/s, or you divided by the eight ranks, and all of them wait.",
        ),
        Slip("half", _WAIT / 2, "Either that is the forward alone, or you counted each all-reduce as one collective."),
        Slip(
            "whole",
            _WAIT * 8 / 7,
            "You sent all of each message in both halves of the ring. A part of it never leaves a rank.",
        ),
        Slip(
            "once", 4 * _X / _CARD, "You sent each message once, and whole. What does a ring's all-reduce send of it?"
        ),
        Slip("one-all-reduce", _WAIT / 4, "That is one all-reduce. How many has a block, forward and backward?"),
        Slip("fp32", _WAIT * 2, "Either you took fp32, and activations are bf16; or you counted too many all-reduces."),
        Slip(
            "all-ranks",
            _WAIT * 8,
            "Either that is what all eight send, and they send at the same time; or you made bytes of the bits twice.",
        ),
        Slip(
            "nvlink",
            _WAIT * _CARD / link("nvlink4").one_way_bytes_per_s,
            "That is NVLink's rate. These GPUs stand in eight nodes, and cards join them.",
        ),
        Slip("per-rank", _WAIT / 7, "You sent one of the parts of each message. A ring has more steps than that."),
    ),
    right="And every block does: over cards, eight GPUs wait for most of the time.",
)

_PLAIN, _OVERLAPPED = (_of_block(PRESETS["llama-3-405b"], 8192, overlap) for overlap in ("none", "backward"))

HIDDEN = Choice(
    key="hidden",
    level=3,
    minutes=3,
    title="Hidden like DDP's",
    prompt="DDP's all-reduces hide behind the backward. So somebody starts a block's four with `async_op=True` and "
    "waits only just before the first operation that reads the result: g's two in the forward, f's two in the "
    "backward. No sequence parallelism, nothing cut in chunks. Which of their seconds can hide?",
    hints=(
        "What reads g's result, and how soon?",
        "In the backward a column-cut matrix has two products to make: the gradient of its input, which f adds up, "
        "and the gradient of its weight. Which must come first?",
    ),
    solution="**Nothing in the forward; in the backward f's, behind the gradients of the weights.** A message hides "
    "if there is work that does not need it. DDP's gradients are needed at the end of the step. g's result is read "
    "at once, by the residual sum. But in the backward the input's gradient can be made first and sent while the "
    "weights' gradients are made, which nobody waits for. Megatron-LM does so. For a block of Llama 3.1 405B on eight "
    f"H100s, 8,192 tokens, the book's model has {_PLAIN.backward.exposed * 1e3:.1f} ms of communication in the "
    f"backward. Of these {_OVERLAPPED.backward.exposed * 1e3:.1f} ms stay, for hidden communication takes "
    "multiprocessors and memory bandwidth from the matrix multiplication beside it. The forward's "
    f"{_OVERLAPPED.forward.exposed * 1e3:.1f} ms all stay.\n\n"
    "To hide the rest, work must be made that does not need all of the message: cut the product and the message into "
    "chunks, and send one while another is multiplied. That is asynchronous tensor parallelism.",
    options=(
        Option(
            "backward",
            "None in the forward, most in the backward",
            "Right: only the gradients of weights can wait, and they are what f's sums go beside.",
            True,
        ),
        Option(
            "all",
            "All of the forward's, all of the backward's",
            "DDP's messages are needed at the end of the step. These are needed by the next operation.",
        ),
        Option(
            "none",
            "None in the forward, none in the backward",
            "Each message is read by the next operation, but not by all that is still to be done. What needs only "
            "what is there already?",
        ),
        Option(
            "forward",
            "Most in the forward, none in the backward",
            "The next operation of the forward is the residual sum, and it reads g's result. There is nothing to do "
            "before.",
        ),
        Option(
            "half",
            "Half in the forward, half in the backward",
            "There are two messages each way, but those of attention and MLP are in a chain: one cannot run beside "
            "the other.",
        ),
    ),
)

EXERCISES = (WIDE, BACKWARD, EXPOSED, HIDDEN)
