"""Exercises of `collectives` on bytes: what a rank sends, and what crosses the network."""

from __future__ import annotations

from scaleout.exercises.collectives.sizes import reduce_factor, ring
from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.spec.devices import GB
from scaleout.spec.hardware import link

_BYTES = ("MB", "GB", "TB", "GiB")
_SHARERS = 4
_NODE_RATE = 4 * link("ib-hdr").one_way_bytes_per_s  # 800 Gbit/s
_RATE = _NODE_RATE / _SHARERS

NIC_RATE = Number(
    key="nic-rate",
    level=1,
    title="A GPU's share of the network",
    prompt=f"A node of **{_SHARERS} GPUs** has **{8 * _NODE_RATE / GB:.0f} Gbit/s** of network bandwidth, shared "
    "evenly. How much of it does each GPU have, in GB/s, one way?",
    hints=("Networks are sold in bits per second, and this asks for bytes.", "A byte has 8 bits, and four GPUs share."),
    solution=f"Each GPU has 800 / 4 = {8 * _RATE / GB:.0f} Gbit/s, and {8 * _RATE / GB:.0f} × 10^9 bits / 8 = "
    f"**{_RATE / GB:.0f} GB/s**, in both directions at the same time. Measured rates are a little lower, because "
    f"headers are sent too.\n\nA node with one adapter of {8 * _RATE / GB:.0f} Gbit/s per GPU has this. Source: "
    f"{link('ib-hdr').source}.",
    value=_RATE,
    unit="GB/s",
    unit_given=True,
    units=("MB/s", "GB/s", "GiB/s", "Gbit/s"),
    dimension="bytes/s",
    accepted_units=("bytes/s", "kB/s", "MB/s", "GB/s", "TB/s"),
    slips=(
        Slip("whole-node", _NODE_RATE, "That is the bandwidth of the whole node. Its GPUs share it."),
        Slip(
            "bits-as-bytes",
            8 * _RATE,
            "Either you took bits for bytes, and a byte has 8 bits; or that is the whole node with both directions "
            "added, and this asks for one GPU, one way.",
        ),
        Slip(
            "node-in-bits",
            8 * _NODE_RATE,
            "That is the whole node, and you took bits for bytes. A byte has 8 bits, and the GPUs share.",
        ),
        Slip(
            "multiplied",
            64 * _RATE,
            "Either you multiplied a GPU's share by 8, although a byte is larger than a bit; or that is the whole node "
            "with both directions, with bits taken for bytes.",
        ),
        Slip(
            "gib",
            _RATE / 2**30 * GB,
            "You divided by 2^30, which gives GiB/s. For networks G is 10^9, and for GB too.",
        ),
        Slip(
            "gb-as-gib",
            _RATE * 2**30 / GB,
            "You took a GiB for a GB. In Gbit/s and in GB/s, G is 10^9.",
        ),
        Slip(
            "both-directions",
            2 * _RATE,
            "Either you added both directions, and a network's rate is for one way; or you divided it among too few "
            "GPUs.",
        ),
        Slip(
            "halved",
            _RATE / 2,
            "Either you divided it between the two directions, and the link is full duplex; or you divided it among 8 "
            "GPUs, and this node has 4.",
        ),
        Slip(
            "ten-bits",
            _RATE * 0.8,
            "You divided by 10, as for links that send 8 bits as 10. The rate that is sold is the rate of the data.",
        ),
    ),
    right=f"Inside a node, NVLink 4 is {link('nvlink4').one_way_bytes_per_s / _RATE:.0f} times as fast.",
)

_NODES, _GPUS, _MESSAGE = 4, 8, 8 * GB
_SHARE = _MESSAGE / _GPUS
_CROSSES = ring(_SHARE, _NODES).sent_bytes

HIERARCHICAL = Number(
    key="hierarchical",
    level=3,
    minutes=3,
    title="What crosses the network",
    prompt="4 nodes with 8 GPUs each all-reduce **8 GB** hierarchically: a reduce-scatter inside each node, then "
    "rings across the nodes, then an all-gather inside each node. In the middle part, GPU i of a node communicates "
    "only with GPU i of each other node, through its own adapter. How much does **one GPU** send over the network?",
    hints=(
        "After the reduce-scatter inside the node, how much of the message does each GPU have?",
        "That share is all-reduced by a ring of 4 ranks.",
    ),
    solution=f"After the reduce-scatter each GPU has the node's sum of 8/8 = {_SHARE / GB:.0f} GB. A ring of 4 "
    f"all-reduces it: 2 × 3/4 × {_SHARE / GB:.0f} GB = **{_CROSSES / GB:.1f} GB**. The eight adapters of a node "
    f"send at the same time, {_GPUS * _CROSSES / GB:.0f} GB together.\n\n"
    f"If only rank 0 of each node took part, its one adapter would carry all {_GPUS * _CROSSES / GB:.0f} GB, and "
    "seven would be idle.",
    value=_CROSSES,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "one-adapter",
            _GPUS * _CROSSES,
            "That is a ring of 4 with all 8 GB, which the node sends through its eight adapters together. "
            "This asks for one GPU.",
        ),
        Slip(
            "flat-ring",
            reduce_factor(_NODES * _GPUS) * _MESSAGE,
            "That is one ring of all 32 GPUs with 8 GB. Here each node adds inside first, and each GPU sends only a "
            "share over the network.",
        ),
        Slip(
            "flat-factor",
            reduce_factor(_NODES * _GPUS) * _SHARE,
            "That is the right share in a ring of all 32 GPUs. How many communicate with each other across the nodes?",
        ),
        Slip(
            "inside-factor",
            reduce_factor(_GPUS) * _SHARE,
            "That is the right share in a ring of 8. How many GPUs communicate with each other across the nodes?",
        ),
        Slip(
            "share-twice",
            2 * _SHARE,
            "That is twice the share of one GPU, or the message divided by the number of nodes. In each lap of a ring "
            "there is one chunk that a rank does not send.",
        ),
        Slip(
            "inside-the-node",
            reduce_factor(_GPUS) * _MESSAGE,
            "That is an all-reduce of the 8 GB among the 8 GPUs of a node, over NVLink. This asks for the network.",
        ),
        Slip(
            "forgot-all-gather",
            _CROSSES / 2,
            "That is only the reduce-scatter across the nodes, or only the all-gather. Which one is missing?",
        ),
        Slip(
            "split-by-nodes",
            reduce_factor(_NODES) * _MESSAGE / _NODES,
            "Either you divided the message by the number of nodes, although the 8 GPUs of a node share it; or you "
            "added the bytes that the GPU receives. Count the bytes it sends.",
        ),
        Slip(
            "share-once",
            _SHARE,
            "That is the share of one GPU, once. It is all-reduced across the nodes, so how much of it is sent?",
        ),
    ),
    right="Each GPU sends only its eighth over the slow link, and all eight adapters are busy.",
)

HALVES = Choice(
    key="two-halves",
    level=2,
    title="Each rank one part of the states",
    short=True,
    prompt="In data parallelism each rank has all the weights and computes gradients on its own data. The optimizer's "
    "states are what Adam remembers for each weight.\n\nNow each of W ranks stores the states of only **one part** "
    "of the weights, 1/W of them, and updates only that part. Which two collectives replace the all-reduce of the "
    "gradients, so that every rank begins the next step with all weights, and **none sends more than before**? (A "
    "weight has as many bytes as its gradient.)",
    hints=(
        "Which gradients does a rank need to update its part, and summed over which ranks?",
        "After the update each part of the weights is on one rank. Who needs it?",
    ),
    solution="First **reduce-scatter the gradients**: each rank gets the sums of its own part, which is all that its "
    "update needs. Then **all-gather the weights**. In each of the two a rank sends (W−1)/W of the message, together "
    "2(W−1)/W, as in the ring all-reduce. That was these two collectives, one after the other, and now the update is "
    "between them. ZeRO and FSDP do this: sharding the optimizer communicates no more bytes than DDP.",
    options=(
        Option(
            "rs-ag",
            "Reduce-scatter gradients, all-gather weights",
            "Right: these two are the halves of the all-reduce, with the update between them.",
            True,
        ),
        Option(
            "all-reduce-ag",
            "All-reduce gradients, all-gather weights",
            "Every rank ends with the right weights, but that is a reduce-scatter and two all-gathers: half as much "
            "again as before. A rank uses only 1/W of the sums. Which collective gives it only those?",
        ),
        Option(
            "reduce-broadcast",
            "Reduce gradients to rank 0, broadcast weights",
            "Rank 0 then has all the sums, but optimizer states for only one part. And everything passes over its "
            "link while the other links are idle. Which pair keeps every rank equally busy?",
        ),
        Option(
            "ag-rs",
            "All-gather gradients, reduce-scatter weights",
            "In this order the all-gather gives every rank W whole sets of gradients, and the reduce-scatter leaves "
            "each rank with one part of the weights. Reduce first; at the end every rank needs all weights.",
        ),
        Option(
            "gather-scatter",
            "Gather gradients on rank 0, scatter weights",
            "Rank 0 would have to add and update everything alone, and after a scatter each rank has only one part. "
            "Every rank needs all weights.",
        ),
    ),
)

EXERCISES = (NIC_RATE, HALVES, HIERARCHICAL)
