"""Exercises of `collectives` on bytes: what a rank sends, what crosses the network, what a bandwidth column means."""

from __future__ import annotations

from scaleout.exercises.collectives.sizes import NIC_BYTES_PER_S, reduce_factor, ring
from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.spec.hardware import GB, link

_BYTES = ("MB", "GB", "TB", "GiB")
_RANKS = 8
_SENT = ring(GB, _RANKS).sent_bytes

RING_BYTES = Number(
    key="ring-bytes", level=1, title="What one rank sends",
    prompt="Eight ranks all-reduce a message of **1 GB** in a ring. How many bytes does **one rank** send, from "
    "start to end?",
    hints=("The message is cut into 8 chunks. In every step each rank sends one chunk to its right.",
           "Reduce-scatter takes 7 steps, and the all-gather after it 7 more."),
    solution=f"Each chunk has 1/8 GB, and a rank sends 2 × 7 = 14 of them: 14/8 GB = **{_SENT / GB:.2f} GB**.\n\n"
    "In general each of W ranks sends 2(W−1)/W of the message. That approaches 2 and stops: with 1,024 ranks it is "
    f"{reduce_factor(1024):.3f} GB.\n\nSource: Patarasuk and Yuan, *Bandwidth optimal all-reduce "
    "algorithms for clusters of workstations*, 2009.",
    value=_SENT, unit="GB", units=_BYTES,
    slips=(
        Slip("forgot-all-gather", _SENT / 2,
             "That is the reduce-scatter alone, or the all-gather. After the first each rank has one finished chunk, "
             "and those have to go round."),
        Slip("two-messages", 2 * GB,
             "That is the whole message twice. In each half of the ring there is one chunk that a rank never sends."),
        Slip("divided-by-neighbours", 2 / (_RANKS - 1) * GB,
             "That is two chunks of 1/7 GB. The message is cut into as many chunks as there are ranks, and each half "
             "has more than one step."),
        Slip("one-chunk", GB / _RANKS, "That is one chunk, what a rank sends in one step. There are more steps."),
        Slip("one-chunk-each-half", 2 / _RANKS * GB,
             "Those are two chunks of 1/8 GB: one step of each half. Each half has more."),
        Slip("inverted", 2 * _RANKS / (_RANKS - 1) * GB,
             "That is more than twice the message, as if a fraction stood upside down. A rank of a ring never sends "
             "that much."),
        Slip("all-ranks", 2 * (_RANKS - 1) * GB,
             "That is what all 8 ranks send together, or what one would send if it passed on the whole message "
             "in every step. A step moves one chunk from each rank."),
        Slip("whole-message", (_RANKS - 1) * GB,
             "That is the whole message 7 times, or one half of the ring on all 8 ranks. This asks for one rank, "
             "and it sends chunks."),
        Slip("both-directions", 2 * _SENT,
             "That is twice as much: perhaps you added what the rank receives. Links carry both directions at once: "
             "count what it sends."),
        Slip("twelve-chunks", 12 / _RANKS * GB,
             "That is 12 chunks of 1/8 GB, a step too few in each half; or a ring of 4 ranks, and here there are 8."),
        Slip("one-message", GB,
             "That is the message once. All-reduce has two halves, and a rank sends in both."),
    ),
    right="With more ranks it hardly grows: never above 2 GB.",
)  # fmt: skip

NIC_RATE = Number(
    key="nic-rate", level=1, title="Gbit/s and GB/s",
    prompt="An InfiniBand NDR adapter is sold as **400 Gbit/s**. What is that in GB/s, one way?",
    hints=("A byte is 8 bits.", "Networks are sold in bits, messages are counted in bytes."),
    solution=f"400 × 10^9 bits / 8 = **{NIC_BYTES_PER_S / GB:.0f} GB/s**, in each of the two directions at the same "
    "time. Measured rates are a little lower: headers travel too.\n\n"
    f"Source: {link('ib-ndr').source}.",
    value=NIC_BYTES_PER_S, unit="GB/s", units=("MB/s", "GB/s", "GiB/s", "Gbit/s"), dimension="bytes/s",
    only=("bytes/s", "kB/s", "MB/s", "GB/s", "TB/s"),
    slips=(
        Slip("bits-as-bytes", 8 * NIC_BYTES_PER_S,
             "That takes bits for bytes. A byte has 8 bits."),
        Slip("multiplied", 64 * NIC_BYTES_PER_S,
             "You multiplied by 8. A byte is larger than a bit, so fewer of them pass in a second."),
        Slip("gib", NIC_BYTES_PER_S / 2**30 * GB,
             "You divided by 2^30: that is GiB/s. A network's G is 10^9, and so is the G of GB."),
        Slip("gb-as-gib", NIC_BYTES_PER_S * 2**30 / GB,
             "You took a GiB for a GB: the G of 400 Gbit/s is 10^9, and so is that of GB/s."),
        Slip("both-directions", 2 * NIC_BYTES_PER_S,
             "You added both directions. An adapter's rate is one way, and it has that rate both ways at once."),
        Slip("halved", NIC_BYTES_PER_S / 2,
             "That is half the rate. If it is for the two directions: the link is full duplex, the whole rate each "
             "way."),
        Slip("ten-bits", NIC_BYTES_PER_S * 0.8,
             "That divides by 10, as where 8 bits travel as 10. The rate that is sold is that of the data."),
    ),
    right="That is a ninth of what NVLink 4 moves inside the node.",
)  # fmt: skip

_NODES, _GPUS, _MESSAGE = 4, 8, 8 * GB
_SHARE = _MESSAGE / _GPUS
_CROSSES = ring(_SHARE, _NODES).sent_bytes

HIERARCHICAL = Number(
    key="hierarchical", level=3, title="What crosses the network",
    prompt="4 nodes with 8 GPUs each all-reduce **8 GB**, node first: a reduce-scatter inside each node, then "
    "rings across the nodes, then an all-gather inside. In the middle part, GPU i of a node talks only to "
    "the GPUs i of the other nodes, through its own adapter. How much does **one GPU** send over the network?",
    hints=("After the reduce-scatter inside the node, how much of the message is each GPU responsible for?",
           "That share is all-reduced by a ring of 4 ranks."),
    solution=f"After the reduce-scatter a GPU holds the node's sum of 8/8 = {_SHARE / GB:.0f} GB. A ring of 4 "
    f"all-reduces that: 2 × 3/4 × {_SHARE / GB:.0f} GB = **{_CROSSES / GB:.1f} GB**. The eight adapters of a node "
    f"work at the same time and send {_GPUS * _CROSSES / GB:.0f} GB together.\n\n"
    f"If rank 0 of each node did it alone, its one adapter would carry all {_GPUS * _CROSSES / GB:.0f} GB while seven "
    "stand idle.",
    value=_CROSSES, unit="GB", units=_BYTES,
    slips=(
        Slip("one-adapter", _GPUS * _CROSSES,
             "That is a ring of 4 with the whole 8 GB: what the node sends through its eight adapters together. "
             "This asks for one GPU."),
        Slip("flat-ring", reduce_factor(_NODES * _GPUS) * _MESSAGE,
             "That is one ring of all 32 GPUs with 8 GB. Here the nodes add up inside first, and only a share goes out "
             "from each GPU."),
        Slip("flat-factor", reduce_factor(_NODES * _GPUS) * _SHARE,
             "That all-reduces the right share in a ring of all 32 GPUs. How many talk to each other across the "
             "nodes?"),
        Slip("inside-factor", reduce_factor(_GPUS) * _SHARE,
             "That all-reduces the right share in a ring of 8. How many GPUs talk to each other across the nodes?"),
        Slip("share-twice", 2 * _SHARE,
             "That is the share of one GPU twice, or the message over the number of nodes. In each half of a ring "
             "there is one chunk that a rank never sends."),
        Slip("inside-the-node", reduce_factor(_GPUS) * _MESSAGE,
             "That is an all-reduce of the 8 GB among the 8 GPUs of a node, over NVLink. This asks for the network."),
        Slip("forgot-all-gather", _CROSSES / 2,
             "That is half of the all-reduce across the nodes. Which half is missing?"),
        Slip("split-by-nodes", reduce_factor(_NODES) * _MESSAGE / _NODES,
             "You divided the message by the number of nodes, where the 8 GPUs of a node share it. Or you added "
             "what the GPU receives: count what it sends."),
        Slip("share-once", _SHARE,
             "That is the share of one GPU, once. It is all-reduced across the nodes: how much of it is sent then?"),
    ),
    right="The slow link sees an eighth of it from each GPU, and all eight adapters work.",
)  # fmt: skip

HALVES = Choice(
    key="two-halves", level=1, title="The two halves",
    prompt="Which two collectives, one after the other, do what an all-reduce does, without any rank sending more "
    "than in a ring?",
    hints=("After the first, each rank has the finished sum of one part.", "The second makes that known to all."),
    solution="**Reduce-scatter, then all-gather.** Each sends (W−1)/W of the message, together 2(W−1)/W. ZeRO and "
    "FSDP use the two apart: gradients are reduce-scattered, each rank updates its own part, and the "
    "weights are all-gathered. Splitting the optimizer therefore costs no byte more than DDP does.",
    options=(
        Option("rs-ag", "Reduce-scatter, then all-gather",
               "Right: (W−1)/W of the message each. The ring is exactly these two.", True),
        Option("reduce-broadcast", "Reduce to rank 0, then broadcast",
               "The result is right, and so is the sum of all bytes, but they all pass through rank 0: W−1 messages "
               "into its link and W−1 out, while others stand idle. Which pair keeps every rank equally busy?"),
        Option("ag-rs", "All-gather, then reduce-scatter",
               "In this order the all-gather brings W whole messages to every rank, and the reduce-scatter leaves "
               "each with one part of the sum. Reduce first, while the data is still in parts."),
        Option("all-to-all", "All-to-all, then all-to-all again",
               "All-to-all moves parts and adds nothing. (With an addition in between it can serve as a "
               "reduce-scatter, but a second one does not give every rank every part.)"),
        Option("gather-scatter", "Gather on rank 0, then scatter",
               "A scatter gives each rank another part, and nobody has added anything. Every rank needs the whole "
               "sum."),
    ),
)  # fmt: skip

EXERCISES = (RING_BYTES, NIC_RATE, HALVES, HIERARCHICAL)
