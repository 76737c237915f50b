"""Exercises of `collectives` on time: steps, seconds, bandwidths, and what decides between algorithms."""

from __future__ import annotations

from scaleout.collectives.alpha_beta import bus_bandwidth, bus_factor
from scaleout.exercises.collectives.sizes import NIC_BYTES_PER_S, reduce_factor, ring
from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.spec.devices import GB
from scaleout.spec.hardware import link

_SECONDS = ("s", "ms", "µs")

STEPS = Number(
    key="ring-steps",
    level=1,
    title="Steps of a ring",
    prompt="How many steps does a ring all-reduce on **16 ranks** take, one after the other?",
    hints=(
        "In a reduce-scatter each chunk has to visit every other rank once.",
        "Then each finished chunk has to visit every other rank again.",
    ),
    solution=f"15 steps until each rank has one finished chunk, 15 more until everybody has every chunk: "
    f"**{ring(GB, 16).steps}**, 2(W−1). Each starts a message, so the ring pays the latency 2(W−1) times. With 1,024 "
    f"ranks that is {ring(GB, 1024).steps:,} times: for small messages a ring is the wrong choice.",
    value=ring(GB, 16).steps,
    unit="steps",
    units=("steps",),
    dimension="steps",
    tolerance=0.0,
    slips=(
        Slip("forgot-all-gather", 15, "That is the reduce-scatter alone, or the all-gather alone. What is missing?"),
        Slip("twice-the-ranks", 32, "That sends each chunk back to the rank where it began. Does it have to go there?"),
        Slip(
            "once-around", 16, "That is once around the ring. How many other ranks does a chunk visit, and how often?"
        ),
        Slip("thirty-one", 31, "31 is odd, and the two halves of a ring take equally many. Count the steps of one."),
        Slip("twenty-nine", 29, "29 is odd, and the two halves of a ring take equally many. Count the steps of one."),
        Slip(
            "two-short", 28, "How many other ranks does a chunk visit, until one of them has its sum? Count them again."
        ),
        Slip("eight-ranks", ring(GB, 8).steps, "That is a ring of 8 ranks. Here there are 16."),
        Slip("tree", 8, "That is a tree, level by level up and down again. A ring passes every rank."),
        Slip("logarithm", 4, "That is the logarithm of 16: one way through a tree. A ring passes every rank."),
    ),
    right="Each of them pays the latency α once.",
)

_SIZE, _RANKS = 10 * GB, 4
_TIME = ring(_SIZE, _RANKS).seconds

SECONDS = Number(
    key="ring-seconds",
    level=2,
    title="Seconds on the wire",
    prompt="Four nodes with one GPU each all-reduce **10 GB** of gradients in a ring. Each has one adapter of "
    "**400 Gbit/s**. The message is so large that the latency does not count. How long does it take at best?",
    hints=("How many bytes does each rank send?", "All ranks send at the same time, each over its own adapter."),
    solution=f"Each rank sends 2 × 3/4 × 10 GB = {ring(_SIZE, _RANKS).sent_bytes / GB:.0f} GB at "
    f"{NIC_BYTES_PER_S / GB:.0f} GB/s: **{_TIME:.1f} s**. While a rank sends a chunk to its right it receives one from "
    "its left: nothing has to be added for that.",
    value=_TIME,
    unit="s",
    units=_SECONDS,
    dimension="seconds",
    slips=(
        Slip(
            "message-once",
            _SIZE / NIC_BYTES_PER_S,
            "That is the message once, 10 GB. How much of it does each rank of a ring send?",
        ),
        Slip(
            "message-twice",
            2 * _SIZE / NIC_BYTES_PER_S,
            "That is the message twice, 20 GB. In each half of the ring there is one chunk that a rank never sends.",
        ),
        Slip(
            "half",
            _TIME / 2,
            "Either the all-gather is missing, or you added both directions of the adapter to 100 GB/s.",
        ),
        Slip("bits", _TIME / 8, "That takes 400 Gbit/s for 400 GB/s. A byte is 8 bits."),
        Slip(
            "bits-message-once",
            _SIZE / NIC_BYTES_PER_S / 8,
            "That is 10 GB at 400 GB/s. The adapter is sold in bits, and 10 GB is not what each rank sends.",
        ),
        Slip(
            "through-one-rank",
            2 * (_RANKS - 1) * _SIZE / NIC_BYTES_PER_S,
            "That is the time when all bytes pass over one adapter, as in the naive all-reduce through rank 0. In a "
            "ring all four adapters work at once.",
        ),
        Slip(
            "inverted",
            2 * _RANKS / (_RANKS - 1) * _SIZE / NIC_BYTES_PER_S,
            "That is more than twice the message, as if a fraction stood upside down. A rank of a ring never sends "
            "that much.",
        ),
        Slip(
            "no-factor-two",
            (_RANKS - 1) * _SIZE / NIC_BYTES_PER_S,
            "That sends the whole message in each of 3 steps, or adds what a rank receives to what it sends. A step "
            "moves a chunk, and an adapter sends and receives at once.",
        ),
        Slip(
            "bits-twice",
            8 * _TIME,
            "That is 8 times too long, as if 8 bits were divided by twice: 400 Gbit/s are 50 GB/s.",
        ),
    ),
    right="Ranks that exchange messages cannot do better: what helps is a smaller message or a faster link.",
)

# stas00/ml-engineering, network: bus bandwidths of all-reduce in GB/s. By ring on six H200, 8 GiB.
_TEST, _GPUS, _MEASURED = 2**33, 6, 365.1 * GB
_FACTOR = bus_factor("all_reduce", _GPUS)
_MS = round(_TEST * _FACTOR / _MEASURED * 1e3, 1)
_ALGORITHM = _TEST / _MS * 1e3
_BUS = bus_bandwidth("all_reduce", _TEST, _GPUS, _MS / 1e3)

BUS = Number(
    key="bus-bandwidth",
    level=2,
    title="The column busbw",
    prompt=f"Six H200 GPUs all-reduce 8 GiB, which are **{_TEST / GB:.2f} GB**, in a ring in **{_MS} ms**. "
    "nccl-tests prints two bandwidths, `algbw` and `busbw`. What is `busbw`?",
    hints=(
        "`algbw` is the size of the message divided by the time.",
        "`busbw` is what each link carried: `algbw` × 2(W−1)/W for an all-reduce.",
    ),
    solution=f"`algbw` = {_TEST / GB:.2f} GB / {_MS} ms = {_ALGORITHM / GB:.1f} GB/s. `busbw` = `algbw` × 2 × 5/6 = "
    f"**{_BUS / GB:.0f} GB/s**, which can be held against the link: NVLink 4 carries "
    f"{link('nvlink4').one_way_bytes_per_s / GB:.0f} GB/s one way.\n\nSources: `doc/PERFORMANCE.md` of "
    "NVIDIA/nccl-tests "
    f"for the columns; Stas Bekman, *Machine Learning Engineering*, for the measured {_MEASURED / GB:.1f} GB/s, from "
    "which the time here follows.",
    value=_BUS,
    unit="GB/s",
    units=("MB/s", "GB/s", "GiB/s", "Gbit/s"),
    dimension="bytes/s",
    slips=(
        Slip(
            "algbw",
            _ALGORITHM,
            "That is algbw, the message divided by the time. Each link carried more than the message.",
        ),
        Slip(
            "inverted",
            _ALGORITHM / _FACTOR,
            "That is smaller than algbw. The links carry more than the message, so busbw is larger.",
        ),
        Slip(
            "forgot-two",
            _ALGORITHM * _FACTOR / 2,
            "That is the factor of a reduce-scatter or of an all-gather. An all-reduce is both.",
        ),
        Slip("factor-two", _ALGORITHM * 2, "That is twice algbw. The factor of 6 ranks is a little smaller."),
        Slip(
            "eight-ranks",
            _ALGORITHM * bus_factor("all_reduce", 8),
            "That is 1.75 times algbw, the factor of 8 ranks. Here there are 6.",
        ),
        Slip(
            "gib",
            _BUS / 2**30 * GB,
            "Your number is in GiB/s: you took the message as 8 GiB. nccl-tests prints GB/s, with 10^9 bytes.",
        ),
        Slip(
            "gb-as-gib",
            _BUS * 2**30 / GB,
            f"A GiB was taken for a GB: {_TEST / GB:.2f} GB are 8 GiB, and nccl-tests prints GB/s, with 10^9 bytes.",
        ),
        Slip("all-links", _BUS * _GPUS, "That is what all six links carried together. busbw is the rate of one link."),
        Slip("bits", _BUS * 8, "That is busbw in Gbit/s. nccl-tests prints bytes, and a byte has 8 bits."),
    ),
    right="busbw can be compared between numbers of ranks, and with the link. algbw cannot.",
)

# The same source: on eight H200, 16 GiB, by ring and with the switch.
RING_BUS, NVLS_BUS = 367.2 * GB, 480.0 * GB

BUS_ABOVE_LINK = Choice(
    key="above-the-link",
    level=2,
    title="Faster than the link",
    prompt=f"On eight H200 GPUs nccl-tests prints a `busbw` of **{NVLS_BUS / GB:.0f} GB/s** for all-reduce. NVLink 4 "
    f"carries {link('nvlink4').one_way_bytes_per_s / GB:.0f} GB/s one way. With the ring forced, the same machine "
    f"prints {RING_BUS / GB:.0f}. What happened?",
    hints=(
        "`busbw` is computed from the time, with the factor 2(W−1)/W of a ring.",
        "What if the GPUs did not send that many bytes?",
    ),
    solution="**The switch adds.** With NVLink SHARP each GPU sends its data to the switch once and receives the sum: "
    "about the message instead of 2(W−1)/W = 1.75 times it. nccl-tests still multiplies by 1.75, so "
    f"`busbw` is no longer what a link carried. {NVLS_BUS / GB:.0f} / 1.75 = {NVLS_BUS / reduce_factor(8) / GB:.0f} "
    "GB/s is `algbw`, well below the link.\n\nSource: Stas Bekman, *Machine Learning Engineering*, the chapter on "
    "network benchmarks.",
    options=(
        Option(
            "in-network",
            "The switch did the sum on the way",
            "Right: the GPUs sent less than a ring would. busbw assumes the bytes of a ring, and here that is "
            "wrong: the time is simply better.",
            True,
        ),
        Option(
            "two-ways",
            "The tool added up both directions",
            "It does not: then the forced ring would also be above 450, and it is at 367. Something changed in "
            "how many bytes have to be sent.",
        ),
        Option(
            "units",
            "One figure is in GB/s, one in GiB/s",
            "480 GB/s are 447 GiB/s, so that would almost fit. But both tools and datasheets mean 10^9 here, "
            "and the forced ring reads 367 on the same machine with the same tool.",
        ),
        Option(
            "compression",
            "NCCL compressed the data on the way",
            "NCCL sends every bit as it is. And a ring with compressed data would be above the link as well.",
        ),
        Option(
            "cache",
            "The GPUs' caches held the message",
            "The message of such a test has gigabytes, more than any cache, and it has to cross the link in any case.",
        ),
    ),
)

TINY = Choice(
    key="tiny-message",
    level=2,
    title="Eight bytes on 64 ranks",
    prompt="After each step 64 ranks all-reduce one number, the loss: **8 bytes**. Starting a message costs 5 µs, a "
    "rank starts or takes one at a time, and the link carries 50 GB/s. Which algorithm is fastest?",
    hints=(
        "How long do 8 bytes take at 50 GB/s, next to 5 µs?",
        "So what counts is how many messages follow each other.",
    ),
    solution="Eight bytes need 0.16 ns on the wire: only the number of steps counts. A tree goes up in log2(64) = 6 "
    "steps and down in 6: 12 × 5 µs = **60 µs**. The ring takes 2 × 63 = 126 steps: 630 µs. Therefore NCCL has both, "
    "and chooses by the size of the message.",
    options=(
        Option(
            "tree",
            "A tree: pairs work at the same time",
            "Right: 60 µs instead of the ring's 630. For tiny messages latency is all there is.",
            True,
        ),
        Option(
            "ring",
            "A ring: no rank has many bytes to send",
            "True, and bytes cost nothing here: 8 of them take 0.16 ns. But it takes 126 steps of 5 µs each.",
        ),
        Option(
            "naive",
            "Rank 0: it takes and sends them all",
            "Rank 0 takes 63 messages and sends 63, one after the other: as many starts as the ring has.",
        ),
        Option(
            "same",
            "All alike: 8 bytes are next to none",
            "The bytes are the same, the number of messages that wait for each other is not: 12 or 126, at 5 µs each.",
        ),
    ),
)

DOMINATES = Choice(
    key="more-ranks",
    level=2,
    title="64 times the ranks",
    prompt="A ring all-reduce of 10 GB runs on 8 ranks, then on **512**. A link carries 50 GB/s, and starting a "
    "message costs 10 µs. What happens to the time?",
    hints=("Write down 2(W−1)/W for W = 8 and for W = 512.", "And 2(W−1) × 10 µs, next to seconds for the bytes."),
    solution=f"A rank sends {reduce_factor(8):.2f} times the message on 8 ranks and {reduce_factor(512):.3f} "
    "times on 512: "
    f"{reduce_factor(512) / reduce_factor(8) - 1:.0%} more. The starts grow from 14 to 1,022, but 1,022 × 10 µs "
    "is only 10 "
    "ms. Together: 0.35 s and **0.41 s**. **The bytes and the bandwidth decide, not the number of ranks**, as "
    "long as the message is large.",
    options=(
        Option(
            "little",
            "It grows by about a sixth",
            "Right: 0.35 s and 0.41 s. That is what makes data parallelism scale, and why its limit is the bandwidth.",
            True,
        ),
        Option(
            "linear",
            "It grows 64 times, as the ranks do",
            "That would be so if one rank had to talk to all others. In a ring each talks to two, and the chunks "
            "get smaller as the ranks get more.",
        ),
        Option(
            "logarithm",
            "It grows 3 times, as log2 does",
            "The steps of a tree grow like that. In a ring the time of a large message is its bytes over the "
            "bandwidth, and those hardly grow.",
        ),
        Option(
            "same",
            "It stays exactly the same",
            "Nearly. But a rank sends a little more of the message, and there are 1,008 more starts of 10 µs: a "
            "difference that you can measure.",
        ),
        Option(
            "shorter",
            "It shrinks, as the chunks do",
            "The chunks are 64 times smaller, but there are 73 times as many steps.",
        ),
    ),
)

_ALPHA, _RATE, _TENSORS, _BUCKETS, _GRADIENTS = 100e-6, 10 * GB, 400, 40, 0.2 * GB
_SAVED = (_TENSORS - _BUCKETS) * _ALPHA

BUCKETING = Number(
    key="bucketing",
    level=2,
    title="Many small messages",
    prompt="A model has 400 gradient tensors, 200 MB in all. On this network an all-reduce takes **100 µs + its "
    "bytes / (10 GB/s)**. How much time does it save to send them as **40** larger messages (*buckets*) instead of one "
    "by one?",
    hints=("The bytes are the same in both cases.", "What does each message cost before its first byte?"),
    solution="One by one: 400 × 0.1 ms + 200 MB / (10 GB/s) = 40 + 20 = 60 ms. In 40 buckets: 4 + 20 = 24 "
    f"ms. Saved: 360 × 0.1 ms = **{_SAVED * 1e3:.1f} ms**, all of it latency.",
    value=_SAVED,
    unit="ms",
    units=_SECONDS,
    dimension="seconds",
    slips=(
        Slip("all-starts", _TENSORS * _ALPHA, "Those are all 400 starts. Some of them remain: one for each bucket."),
        Slip(
            "one-by-one",
            _TENSORS * _ALPHA + _GRADIENTS / _RATE,
            "That is the time one by one. The question is by how much the buckets are faster.",
        ),
        Slip(
            "buckets",
            _BUCKETS * _ALPHA + _GRADIENTS / _RATE,
            "That is the time with 40 buckets. The question is how much less it is.",
        ),
        Slip("starts-left", _BUCKETS * _ALPHA, "Those are the starts that remain. How many fell away?"),
        Slip(
            "bytes",
            _GRADIENTS / _RATE,
            "That is the time of the bytes, the same in both cases. What is saved is starts.",
        ),
        Slip(
            "tensors-in-a-bucket",
            (_TENSORS - _TENSORS / _BUCKETS) * _ALPHA,
            "That is the saving of 10 buckets, with 40 tensors in each. Here there are 40 buckets.",
        ),
    ),
    right="Two thirds of the time were starts. This is what DDP's buckets are for.",
)

EXERCISES = (STEPS, SECONDS, BUS, BUS_ABOVE_LINK, TINY, DOMINATES, BUCKETING)
