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
    short=True,
    prompt=f"DDP all-reduces gradients in buckets of about **{BUCKET_CAP // MIB} MiB**. Why does it not send each "
    "tensor alone, or all gradients at once?",
    hints=(
        "What does every all-reduce cost before its first byte is sent?",
        "When can an all-reduce start that contains the gradients of all layers?",
    ),
    solution="**Small buckets pay the latency often. One large bucket can start only when the backward pass is over**, "
    f"so nothing hides it. A wide range of sizes in between is good. The first bucket has {FIRST_BUCKET_CAP // MIB} "
    "MiB only, so that communication starts early.\n\nSource: Li et al., *PyTorch Distributed*, arXiv 2006.15704, "
    "sections 3.2.2 and 3.2.3.",
    options=(
        Option(
            "both-ends",
            "Small ones pay latency often, a large one starts late",
            "Right. Small buckets pay latency often, and for one large bucket no backward is left to hide it.",
            True,
        ),
        Option(
            "memory",
            "Larger buckets would not fit into the memory of a GPU",
            "All buckets together are as large as the gradients, whatever the size of one. The size decides how many "
            "all-reduces there are, and when each can start.",
        ),
        Option(
            "bytes",
            "Smaller buckets would send more bytes in each step",
            "The bytes are the same, those of all gradients. Each bucket adds a latency.",
        ),
        Option(
            "accuracy",
            "Smaller buckets would round the sums more often",
            "Each gradient is summed over the ranks once, in whichever bucket it is.",
        ),
        Option(
            "link",
            "25 MiB is the largest message that a link can carry",
            "Links carry messages of any size, in packets. A message takes α + β × bytes.",
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
    buckets: list[list[int]] = []
    filled_bytes = limit = 0
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
    prompt="Write `assign_buckets(sizes, cap, first_cap)`, DDP's rule for filling buckets. `sizes` are the bytes of "
    "the gradients in the order of the **forward** pass. Return the buckets in the order in which they are sent, each "
    "as a list of indices in the order in which the gradients arrive.\n\n"
    "- Gradients arrive in **reverse**, the last layer's first.\n"
    "- A bucket is closed when it holds **at least** its cap, and the next one begins.\n"
    "- The first bucket's cap is `first_cap`, the others' is `cap`.\n"
    "- Gradients that are left at the end are the last bucket.",
    hints=(
        "Go through `reversed(range(len(sizes)))`, and add each gradient *before* you check whether the bucket is "
        "full.",
        "Use a variable for the current cap. It starts as `first_cap` and becomes `cap`.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "A bucket may hold more than its cap: a large embedding closes the bucket that it is in. The embedding is the "
    "first layer, so its gradient arrives last, and its bucket is the one that no backward pass hides.\n\nSource: "
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
            "You filled the buckets in the order of the forward pass. The backward pass computes the last layer's "
            "gradient first.",
        ),
        Mistake(
            "reversed-at-the-end",
            lambda sizes, cap, first: _filled(range(len(sizes)), sizes, cap, first)[::-1],
            "You filled the buckets from the front and then reversed the list. The small bucket then has the first "
            "layers, whose gradients arrive last.",
        ),
        Mistake(
            "no-first-cap",
            lambda sizes, cap, first: _assigned(sizes, cap, cap),
            "Your first bucket has the same cap as the others. Its cap is smaller, so that communication starts early.",
        ),
        Mistake(
            "first-cap-always",
            lambda sizes, cap, first: _assigned(sizes, first, first),
            "All your buckets use first_cap. From the second bucket on, use cap.",
        ),
        Mistake(
            "never-above-the-cap",
            _never_above,
            "You close a bucket before it would exceed its cap. DDP closes it when it holds at least its cap, so "
            "its last gradient may exceed the cap.",
        ),
        Mistake(
            "strictly-above",
            lambda sizes, cap, first: _filled(
                reversed(range(len(sizes))), sizes, cap, first, lambda filled, limit: filled > limit
            ),
            "You close a bucket when it holds more than its cap. It is full as soon as it holds exactly its cap.",
        ),
        Mistake(
            "empty-rest",
            lambda sizes, cap, first: (
                _assigned(sizes, cap, first)
                + ([] if _without_rest(sizes, cap, first) != _assigned(sizes, cap, first) else [[]])
            ),
            "Your last bucket is sometimes empty: if the bucket before it closes with the last gradient, nothing is "
            "left. Begin a bucket only when there is a gradient for it.",
        ),
        Mistake(
            "dropped-rest",
            _without_rest,
            "The last bucket is missing when it is not full. It has to be sent too.",
        ),
        Mistake(
            "sorted",
            lambda sizes, cap, first: [sorted(bucket) for bucket in _assigned(sizes, cap, first)],
            "The buckets are right, but the indices in each should be in the order of arrival, from high to low.",
        ),
    ),
    right="This is how DDP fills its buckets after its first step, in the order of arrival that it saw there.",
)

_GRADIENTS, _NODES, _LINK = 0.5 * GB, 64, link("ethernet-10g").one_way_bytes_per_s
_WIRE = ring(_GRADIENTS, _NODES, Wire(0.0, _LINK))

BOTTLENECK = Choice(
    key="ddp-bottleneck",
    level=1,
    minutes=2,
    title="Where DDP is slow",
    short=True,
    prompt=f"A DDP job runs on {_NODES} nodes with one GPU each, joined by **10 Gbit/s**. The gradients are 500 MB. A "
    "step takes **800 ms**, of which forward and backward take 40 ms. What limits it, and what helps first?",
    hints=(
        "How long does 1 GB take at 1.25 GB/s?",
        "Which remedy sends fewer bytes per sequence?",
    ),
    solution=f"Each rank sends 2 × 63/64 × 0.5 GB = {_WIRE.sent_bytes / GB:.2f} GB, and at {_LINK / GB:.2f} GB/s that "
    f"takes {_WIRE.seconds * 1e3:.0f} ms, nearly the whole step. **The bandwidth of the gradient all-reduce limits "
    "it.** Accumulation, a larger batch and compression send fewer bytes per sequence. A faster link sends the same "
    "bytes in less time.",
    options=(
        Option(
            "bandwidth",
            "The link's bandwidth: accumulate gradients, or compress",
            "Right: both send fewer bytes per sequence. A faster link helps as well, and costs money.",
            True,
        ),
        Option(
            "latency",
            "The link's latency: send the gradients in larger buckets",
            "500 MB are 20 buckets of 25 MiB. Even if each bucket lost 5 ms to the latency of its 126 ring steps, "
            "that would be 100 ms of the 760 ms that are not compute. The bytes take the rest.",
        ),
        Option(
            "compute",
            "The GPUs' compute: use GPUs with more FLOPs per second",
            "They would shorten the 40 ms, and leave even less backward to hide the communication.",
        ),
        Option(
            "memory",
            "The GPUs' memory: shard the optimizer states with ZeRO",
            "ZeRO would free memory, but it sends as many bytes as DDP, or more.",
        ),
        Option(
            "more-gpus",
            "The number of nodes: split the batch among 128 of them",
            "With more ranks and the same batch each rank computes for less time, and sends as many bytes as before: "
            "2(W−1)/W is nearly 2 already.",
        ),
    ),
)

EXERCISES = (BUCKET_SIZE, ASSIGN, BOTTLENECK)
