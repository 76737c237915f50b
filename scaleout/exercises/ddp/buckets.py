"""Exercises of `ddp` on buckets: why they are neither tiny nor huge, and which gradient goes into which."""

from __future__ import annotations

from scaleout.exercises.collectives.sizes import ring
from scaleout.exercises.engine import Choice, Function, Mistake, Option
from scaleout.spec.devices import GB
from scaleout.spec.hardware import link
from scaleout.spec.topology import Wire
from scaleout.timing.ddp import BUCKET_CAP, FIRST_BUCKET_CAP, MIB, Layer, buckets

BUCKET_SIZE = Choice(
    key="bucket-size",
    level=2,
    title="Why 25 MiB",
    prompt=f"DDP sends gradients in buckets of about **{BUCKET_CAP // MIB} MiB**. Why neither one tensor at a time, "
    "nor all gradients at once?",
    hints=(
        "What does every message cost before its first byte?",
        "When can the first message start, if it holds the gradients of all layers?",
    ),
    solution="**Small buckets pay the latency often; one big bucket can only start when the backward is over**, so "
    f"nothing hides it. Between the two lies a wide optimum. The first bucket is smaller, {FIRST_BUCKET_CAP // MIB} "
    "MiB, so that the link has something to do early.\n\nSource: Li et al., *PyTorch Distributed*, arXiv 2006.15704, "
    "sections 3.2.2 and 3.2.3.",
    options=(
        Option(
            "both-ends",
            "Small ones start too often, one big one too late",
            "Right: latency on one side, no backward left to hide it on the other.",
            True,
        ),
        Option(
            "memory",
            "Larger buckets would not fit into the GPU's memory",
            "All buckets together are as large as the gradients, whatever the size of one. The size decides when a "
            "message can start, and how many there are.",
        ),
        Option(
            "bytes",
            "Smaller buckets would send more bytes in a step",
            "The bytes are the same, those of all gradients. What each message adds is a start.",
        ),
        Option(
            "accuracy",
            "Smaller buckets would round the sums more often",
            "Each gradient is summed over the ranks once, in whichever bucket it travels.",
        ),
        Option(
            "link",
            "25 MiB is the largest message that a link carries",
            "Links carry messages of any size, in packets. The time of a message is α + β × bytes.",
        ),
    ),
)

_STUB = '''\
def assign_buckets(sizes, cap, first_cap):
    """Lists of indices into `sizes`, in the order of sending.

    sizes: bytes of each gradient, in the order of the forward
    """
    return ...
'''

_SOLUTION = """\
def assign_buckets(sizes, cap, first_cap):
    buckets, members, held, limit = [], [], 0, first_cap
    for index in reversed(range(len(sizes))):
        members.append(index)
        held += sizes[index]
        if held >= limit:
            buckets.append(members)
            members, held, limit = [], 0, cap
    return buckets + [members] if members else buckets
"""


def _assigned(sizes: list[int], cap: int, first_cap: int) -> list[list[int]]:
    return buckets([Layer("", 0.0, 0.0, size) for size in sizes], cap, first_cap)


def _filled(order, sizes, cap, first_cap, full=lambda filled_bytes, limit: filled_bytes >= limit) -> list[list[int]]:
    """Buckets filled in another order, or closed at another moment."""
    buckets, members, filled_bytes, limit = [], [], 0, first_cap
    for index in order:
        members.append(index)
        filled_bytes += sizes[index]
        if full(filled_bytes, limit):
            buckets.append(members)
            members, filled_bytes, limit = [], 0, cap
    return [*buckets, members] if members else buckets


def _never_above(sizes: list[int], cap: int, first_cap: int) -> list[list[int]]:
    """A gradient that would go over the cap begins a new bucket."""
    buckets, filled_bytes, limit = [], 0, 0
    for index in reversed(range(len(sizes))):
        if not buckets or filled_bytes + sizes[index] > limit:
            limit = cap if buckets else first_cap
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += sizes[index]
    return buckets


def _without_rest(sizes: list[int], cap: int, first_cap: int) -> list[list[int]]:
    """Only the buckets that became full."""
    buckets = _assigned(sizes, cap, first_cap)
    limits = [first_cap] + [cap] * len(buckets)
    return [bucket for bucket, limit in zip(buckets, limits, strict=False) if sum(sizes[i] for i in bucket) >= limit]


ASSIGN = Function(
    key="assign-buckets",
    level=3,
    title="Fill the buckets",
    lists=True,
    prompt="Write `assign_buckets(sizes, cap, first_cap)`: which gradient travels in which bucket, by DDP's rule. "
    "`sizes` are the bytes of the gradients in the order of the **forward** pass. Return a list of buckets in the "
    "order in which they are sent, each a list of indices in the order in which the gradients arrive.\n\n"
    "- Gradients arrive in **reverse**: the last layer's first.\n"
    "- A bucket takes gradients until it holds **at least** its cap. Then it is closed, and the next one begins.\n"
    "- The cap of the first bucket is `first_cap`, that of all others `cap`.\n"
    "- What is left at the end is the last bucket.",
    hints=(
        "Go through `reversed(range(len(sizes)))`, and add each gradient *before* you ask whether the bucket is full.",
        "Keep the current limit in a variable that starts as `first_cap` and becomes `cap`.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "A bucket may hold more than its cap: a large embedding closes the bucket it falls into. It is the first layer, "
    "so it comes last, and its bucket is the one that no backward hides.\n\nSource: "
    "`compute_bucket_assignment_by_size` in torch, `torch/csrc/distributed/c10d/reducer.cpp`.",
    function="assign_buckets",
    stub=_STUB,
    reference=_assigned,
    cases=(
        ([10, 10, 10, 10, 10, 10], 20, 10),
        ([40, 5, 8, 8, 8, 3, 3, 7, 2], 20, 5),
        ([100, 1, 1, 1], 10, 2),
        ([6, 6, 6, 6, 6, 6, 6], 15, 5),
        ([3], 100, 10),
        ([9, 4, 4, 30, 4, 4, 1], 25, 1),
        ([7, 13, 2, 11, 5, 3, 12, 1], 19, 4),
        ([2, 3, 5, 7, 11], 11, 11),
    ),
    mistakes=(
        Mistake(
            "forward-order",
            lambda sizes, cap, first: _filled(range(len(sizes)), sizes, cap, first),
            "You filled the buckets in the order of the forward pass. The backward gives the last layer's gradient "
            "first.",
        ),
        Mistake(
            "reversed-at-the-end",
            lambda sizes, cap, first: _filled(range(len(sizes)), sizes, cap, first)[::-1],
            "You filled the buckets from the front and turned the list round. The small first bucket then holds "
            "the first layers, whose gradients come last.",
        ),
        Mistake(
            "no-first-cap",
            lambda sizes, cap, first: _assigned(sizes, cap, cap),
            "Your first bucket has the cap of all others. It is smaller, so that communication can start early.",
        ),
        Mistake(
            "first-cap-always",
            lambda sizes, cap, first: _assigned(sizes, first, first),
            "All your buckets have the first one's cap. From the second on it is cap.",
        ),
        Mistake(
            "never-above-the-cap",
            _never_above,
            "You close a bucket before it would exceed its cap. torch closes it once it holds at least its cap, "
            "so it may exceed it by the last gradient.",
        ),
        Mistake(
            "strictly-above",
            lambda sizes, cap, first: _filled(
                reversed(range(len(sizes))), sizes, cap, first, lambda filled, limit: filled > limit
            ),
            "You close a bucket when it holds more than its cap. At least its cap is enough.",
        ),
        Mistake(
            "empty-rest",
            lambda sizes, cap, first: (
                _assigned(sizes, cap, first)
                + ([] if _without_rest(sizes, cap, first) != _assigned(sizes, cap, first) else [[]])
            ),
            "Your last bucket is sometimes empty: where the one before closes with the last gradient, nothing is "
            "left. Begin a bucket only when there is a gradient for it.",
        ),
        Mistake(
            "dropped-rest",
            _without_rest,
            "The last bucket is missing: it may never become full, and it has to be sent all the same.",
        ),
        Mistake(
            "sorted",
            lambda sizes, cap, first: [sorted(bucket) for bucket in _assigned(sizes, cap, first)],
            "The buckets are right, but inside them the indices should be in the order of arrival, from high to low.",
        ),
    ),
    right="DDP fills its buckets so after its first step, in the order of arrival that it has seen there.",
)

_GRADIENTS, _NODES, _LINK = 0.5 * GB, 64, link("ethernet-10g").one_way_bytes_per_s
_WIRE = ring(_GRADIENTS, _NODES, Wire(0.0, _LINK))

BOTTLENECK = Choice(
    key="ddp-bottleneck",
    level=1,
    minutes=2,
    title="Where DDP is slow",
    prompt=f"A DDP job runs on {_NODES} nodes with one GPU each, joined by **10 Gbit/s**. The gradients have 500 MB. "
    "Of a step of **800 ms**, 40 ms are forward and backward. What limits it, and what helps first?",
    hints=(
        "How long does 1 GB take at 1.25 GB/s?",
        "Which of the remedies sends fewer bytes for the same number of sequences?",
    ),
    solution=f"Each rank sends 2 × 63/64 × 0.5 GB = {_WIRE.sent_bytes / GB:.2f} GB, and at {_LINK / GB:.2f} GB/s that "
    f"takes {_WIRE.seconds * 1e3:.0f} ms: nearly the whole step. **The all-reduce of the gradients limits it, by its "
    "bandwidth.** What helps sends fewer bytes for each sequence (accumulation, a larger batch, compression), or "
    "sends them over a faster link.",
    options=(
        Option(
            "bandwidth",
            "The link's bandwidth: accumulate gradients, or compress",
            "Right: fewer bytes for each sequence. A faster link does the same and costs money.",
            True,
        ),
        Option(
            "latency",
            "The link's latency: send the gradients in larger buckets",
            "500 MB are 20 buckets of 25 MiB. Even at 5 ms for the 126 starts of each one's ring, that is 100 ms "
            "of the 760 that are too much. The bytes take the rest.",
        ),
        Option(
            "compute",
            "The compute: take GPUs with more operations per second",
            "They would make 40 ms shorter, and leave less backward to hide the communication behind.",
        ),
        Option(
            "memory",
            "The memory: shard the optimizer's states with ZeRO",
            "It would free memory. But ZeRO sends as many bytes as DDP, or more.",
        ),
        Option(
            "more-gpus",
            "The number of nodes: share the batch among 128 of them",
            "More ranks make the compute of each shorter in strong scaling, and send as many bytes from each: "
            "2(W−1)/W is nearly 2 already.",
        ),
    ),
)

EXERCISES = (BUCKET_SIZE, ASSIGN, BOTTLENECK)
