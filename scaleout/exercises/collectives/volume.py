"""Exercises of `collectives` on bytes: what a rank sends, what crosses the network, what a bandwidth column means."""

from __future__ import annotations

from scaleout.exercises.collectives.sizes import reduce_factor, ring
from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.spec.devices import GB
from scaleout.spec.hardware import link

_BYTES = ("MB", "GB", "TB", "GiB")
_SIZE, _RANKS = 1.5 * GB, 6
_SENT = ring(_SIZE, _RANKS).sent_bytes

RING_BYTES = Number(
    key="ring-bytes",
    level=1,
    title="What one rank sends",
    prompt=f"Six ranks all-reduce a message of **{_SIZE / GB} GB** in a ring. How many bytes does **one rank** send, "
    "from start to end?",
    hints=(
        "The message is cut into 6 chunks. In every step each rank sends one chunk to its right.",
        "Reduce-scatter takes 5 steps, and the all-gather after it 5 more.",
    ),
    solution=f"Each chunk has {_SIZE / GB}/6 = {_SIZE / _RANKS / GB} GB, and a rank sends 2 × 5 = 10 of them: "
    f"**{_SENT / GB:.1f} GB**.\n\n"
    "In general each of W ranks sends 2(W−1)/W of the message. That approaches 2 and stops: with 1,024 ranks it is "
    f"{reduce_factor(1024):.3f} times the message.\n\nSource: Patarasuk and Yuan, *Bandwidth optimal all-reduce "
    "algorithms for clusters of workstations*, 2009.",
    value=_SENT,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "forgot-all-gather",
            _SENT / 2,
            "That is the reduce-scatter alone, or the all-gather. After the first each rank has one finished chunk, "
            "and those have to go round.",
        ),
        Slip(
            "two-messages",
            2 * _SIZE,
            "That is the whole message twice. In each half of the ring there is one chunk that a rank never sends.",
        ),
        Slip(
            "divided-by-neighbours",
            2 / (_RANKS - 1) * _SIZE,
            "That is two chunks of a fifth. The message is cut into as many chunks as there are ranks, and each half "
            "has more than one step.",
        ),
        Slip("one-chunk", _SIZE / _RANKS, "That is one chunk, what a rank sends in one step. There are more steps."),
        Slip(
            "one-chunk-each-half",
            2 / _RANKS * _SIZE,
            "Those are two chunks of a sixth: one step of each half. Each half has more.",
        ),
        Slip(
            "inverted",
            2 * _RANKS / (_RANKS - 1) * _SIZE,
            "That is more than twice the message, as if a fraction stood upside down. A rank of a ring never sends "
            "that much.",
        ),
        Slip(
            "all-ranks",
            2 * (_RANKS - 1) * _SIZE,
            "That is what all 6 ranks send together, or what one would send if it passed on the whole message "
            "in every step. A step moves one chunk from each rank.",
        ),
        Slip(
            "whole-message",
            (_RANKS - 1) * _SIZE,
            "That is the whole message 5 times, or one half of the ring on all 6 ranks. This asks for one rank, "
            "and it sends chunks.",
        ),
        Slip(
            "both-directions",
            2 * _SENT,
            "Perhaps you added what the rank receives. Links carry both directions at once: count what it sends.",
        ),
        Slip(
            "eight-chunks",
            8 / _RANKS * _SIZE,
            "That is 8 chunks of a sixth, as if each half of the ring had 4 steps; or a ring of 3 ranks, and here "
            "there are 6.",
        ),
        Slip("one-message", _SIZE, "That is the message once. All-reduce has two halves, and a rank sends in both."),
        Slip(
            "eight-ranks", reduce_factor(8) * _SIZE, "That is 1.75 times the message, as on 8 ranks. Here there are 6."
        ),
        Slip(
            "of-one-gigabyte",
            reduce_factor(_RANKS) * GB,
            f"That is what a rank sends of a message of 1 GB. This one has {_SIZE / GB}.",
        ),
    ),
    right=f"With more ranks it hardly grows: never above {2 * _SIZE / GB:.0f} GB.",
)

_SHARERS = 4
_NODE_RATE = 4 * link("ib-hdr").one_way_bytes_per_s  # 800 Gbit/s
_RATE = _NODE_RATE / _SHARERS

NIC_RATE = Number(
    key="nic-rate",
    level=1,
    title="A GPU's share of the network",
    prompt=f"A node of **{_SHARERS} GPUs** has **{8 * _NODE_RATE / GB:.0f} Gbit/s** of network, shared evenly. What "
    "has each GPU, in GB/s, one way?",
    hints=("Networks are sold in bits, messages are counted in bytes.", "A byte is 8 bits, and four GPUs share."),
    solution=f"A GPU has 800 / 4 = {8 * _RATE / GB:.0f} Gbit/s, and {8 * _RATE / GB:.0f} × 10^9 bits / 8 = "
    f"**{_RATE / GB:.0f} GB/s**, in each of the two directions at the same time. Measured rates are a little lower: "
    f"headers travel too.\n\nAn adapter of {8 * _RATE / GB:.0f} Gbit/s for each GPU makes such a node. Source: "
    f"{link('ib-hdr').source}.",
    value=_RATE,
    unit="GB/s",
    unit_given=True,
    units=("MB/s", "GB/s", "GiB/s", "Gbit/s"),
    dimension="bytes/s",
    accepted_units=("bytes/s", "kB/s", "MB/s", "GB/s", "TB/s"),
    slips=(
        Slip("whole-node", _NODE_RATE, "That is what the whole node has. Its GPUs share it."),
        Slip(
            "bits-as-bytes",
            8 * _RATE,
            "That takes bits for bytes, and a byte has 8 bits; or it is the whole node with both directions added, "
            "and this asks for one GPU, one way.",
        ),
        Slip(
            "node-in-bits",
            8 * _NODE_RATE,
            "That is the whole node, and it takes bits for bytes. A byte has 8 bits, and the GPUs share.",
        ),
        Slip(
            "multiplied",
            64 * _RATE,
            "That multiplies a GPU's share by 8, where a byte is larger than a bit; or it is the whole node with both "
            "directions, and takes bits for bytes.",
        ),
        Slip(
            "gib",
            _RATE / 2**30 * GB,
            "You divided by 2^30: that is GiB/s. A network's G is 10^9, and so is the G of GB.",
        ),
        Slip(
            "gb-as-gib",
            _RATE * 2**30 / GB,
            "You took a GiB for a GB: the G of 800 Gbit/s is 10^9, and so is that of GB/s.",
        ),
        Slip(
            "both-directions",
            2 * _RATE,
            "Either you added both directions, and a network's rate is that of one way; or you shared it among too "
            "few GPUs.",
        ),
        Slip(
            "halved",
            _RATE / 2,
            "Either you divided it between the two directions, and the link is full duplex; or you shared it among 8 "
            "GPUs, and this node has 4.",
        ),
        Slip(
            "ten-bits",
            _RATE * 0.8,
            "That divides by 10, as where 8 bits travel as 10. The rate that is sold is that of the data.",
        ),
    ),
    right=f"Inside a node, NVLink 4 carries {link('nvlink4').one_way_bytes_per_s / _RATE:.0f} times as much.",
)

_NODES, _GPUS, _MESSAGE = 4, 8, 8 * GB
_SHARE = _MESSAGE / _GPUS
_CROSSES = ring(_SHARE, _NODES).sent_bytes

HIERARCHICAL = Number(
    key="hierarchical",
    level=3,
    minutes=3,
    title="What crosses the network",
    prompt="4 nodes with 8 GPUs each all-reduce **8 GB**, node first: a reduce-scatter inside each node, then "
    "rings across the nodes, then an all-gather inside. In the middle part, GPU i of a node talks only to "
    "the GPUs i of the other nodes, through its own adapter. How much does **one GPU** send over the network?",
    hints=(
        "After the reduce-scatter inside the node, how much of the message is each GPU responsible for?",
        "That share is all-reduced by a ring of 4 ranks.",
    ),
    solution=f"After the reduce-scatter a GPU holds the node's sum of 8/8 = {_SHARE / GB:.0f} GB. A ring of 4 "
    f"all-reduces that: 2 × 3/4 × {_SHARE / GB:.0f} GB = **{_CROSSES / GB:.1f} GB**. The eight adapters of a node "
    f"work at the same time and send {_GPUS * _CROSSES / GB:.0f} GB together.\n\n"
    f"If rank 0 of each node did it alone, its one adapter would carry all {_GPUS * _CROSSES / GB:.0f} GB while seven "
    "stand idle.",
    value=_CROSSES,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "one-adapter",
            _GPUS * _CROSSES,
            "That is a ring of 4 with the whole 8 GB: what the node sends through its eight adapters together. "
            "This asks for one GPU.",
        ),
        Slip(
            "flat-ring",
            reduce_factor(_NODES * _GPUS) * _MESSAGE,
            "That is one ring of all 32 GPUs with 8 GB. Here the nodes add up inside first, and only a share goes out "
            "from each GPU.",
        ),
        Slip(
            "flat-factor",
            reduce_factor(_NODES * _GPUS) * _SHARE,
            "That all-reduces the right share in a ring of all 32 GPUs. How many talk to each other across the nodes?",
        ),
        Slip(
            "inside-factor",
            reduce_factor(_GPUS) * _SHARE,
            "That all-reduces the right share in a ring of 8. How many GPUs talk to each other across the nodes?",
        ),
        Slip(
            "share-twice",
            2 * _SHARE,
            "That is the share of one GPU twice, or the message over the number of nodes. In each half of a ring "
            "there is one chunk that a rank never sends.",
        ),
        Slip(
            "inside-the-node",
            reduce_factor(_GPUS) * _MESSAGE,
            "That is an all-reduce of the 8 GB among the 8 GPUs of a node, over NVLink. This asks for the network.",
        ),
        Slip(
            "forgot-all-gather",
            _CROSSES / 2,
            "That is the reduce-scatter across the nodes, or the all-gather. Which of them is missing?",
        ),
        Slip(
            "split-by-nodes",
            reduce_factor(_NODES) * _MESSAGE / _NODES,
            "You divided the message by the number of nodes, where the 8 GPUs of a node share it. Or you added "
            "what the GPU receives: count what it sends.",
        ),
        Slip(
            "share-once",
            _SHARE,
            "That is the share of one GPU, once. It is all-reduced across the nodes: how much of it is sent then?",
        ),
    ),
    right="The slow link sees an eighth of it from each GPU, and all eight adapters work.",
)

HALVES = Choice(
    key="two-halves",
    level=2,
    title="Each rank one part of the states",
    prompt="Data parallelism: each rank holds all the weights and works out gradients on its own data; the optimizer's "
    "states are what Adam remembers for each weight.\n\nNow each of W ranks keeps the states of **one part** of the "
    "weights only, 1/W of them, and updates that part. Which two collectives replace the all-reduce of the gradients, "
    "so that every rank begins the next step with all weights, and **none sends more than before**? (A weight has as "
    "many bytes as its gradient.)",
    hints=(
        "To update its part, which gradients does a rank need, and summed over which ranks?",
        "After the update each part of the weights is on one rank. Who needs it?",
    ),
    solution="**Reduce-scatter the gradients**: each rank gets the sums of its own part, all that its update needs. "
    "Then **all-gather the weights**. Each sends (W−1)/W of the message, together 2(W−1)/W, as the ring all-reduce "
    "did: it was these two, one after the other, and the update now stands between them. This is what ZeRO and FSDP "
    "do: splitting the optimizer costs no byte more than DDP.",
    options=(
        Option(
            "rs-ag",
            "Reduce-scatter gradients, all-gather weights",
            "Right: these two are the all-reduce, taken apart, with the update between them.",
            True,
        ),
        Option(
            "all-reduce-ag",
            "All-reduce gradients, all-gather weights",
            "Every rank ends with the right weights, but that is a reduce-scatter and two all-gathers: half as much "
            "again as before. Of the sums a rank uses only 1/W. Which collective brings it no others?",
        ),
        Option(
            "reduce-broadcast",
            "Reduce gradients to rank 0, broadcast weights",
            "Rank 0 then has all the sums, but optimizer states for one part only. And everything passes "
            "over its link while others stand idle. Which pair keeps every rank equally busy?",
        ),
        Option(
            "ag-rs",
            "All-gather gradients, reduce-scatter weights",
            "In this order the all-gather brings W whole sets of gradients to every rank, and the reduce-scatter "
            "leaves each with one part of the weights. Reduce first; in the end all need everything.",
        ),
        Option(
            "gather-scatter",
            "Gather gradients on rank 0, scatter weights",
            "Rank 0 would have to add and update all alone, and a scatter gives each rank another part. Every rank "
            "needs all weights.",
        ),
    ),
)

EXERCISES = (RING_BYTES, NIC_RATE, HALVES, HIERARCHICAL)
