"""Exercises of `collectives` on time: seconds, bandwidths, and what decides between algorithms."""

from __future__ import annotations

from scaleout.collectives.alpha_beta import bus_bandwidth, bus_factor
from scaleout.exercises.collectives.sizes import NIC_BYTES_PER_S, reduce_factor, ring
from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.spec.devices import GB
from scaleout.spec.hardware import link

_SECONDS = ("s", "ms", "µs")

_SIZE, _RANKS = 10 * GB, 4
_TIME = ring(_SIZE, _RANKS).seconds

SECONDS = Number(
    key="ring-seconds",
    level=2,
    title="Seconds on the wire",
    prompt="Four nodes with one GPU each all-reduce **10 GB** of gradients in a ring. Each has one network adapter "
    "of **400 Gbit/s**. For such a large message, latency can be neglected. How long does it take at best?",
    hints=("How many bytes does each rank send?", "All ranks send at the same time, each over its own adapter."),
    solution=f"Each rank sends 2 × 3/4 × 10 GB = {ring(_SIZE, _RANKS).sent_bytes / GB:.0f} GB at "
    f"{NIC_BYTES_PER_S / GB:.0f} GB/s: **{_TIME:.1f} s**. While a rank sends a chunk, it also receives one, and that "
    "takes no extra time.",
    value=_TIME,
    unit="s",
    units=_SECONDS,
    dimension="seconds",
    slips=(
        Slip(
            "message-once",
            _SIZE / NIC_BYTES_PER_S,
            "That is the time for 10 GB, the message once. How much does each rank of a ring send?",
        ),
        Slip(
            "message-twice",
            2 * _SIZE / NIC_BYTES_PER_S,
            "That is the time for 20 GB, the message twice. In each lap there is one chunk that a rank does not send.",
        ),
        Slip(
            "half",
            _TIME / 2,
            "Either the all-gather is missing, or you added both directions of the adapter and used 100 GB/s.",
        ),
        Slip("bits", _TIME / 8, "You took 400 Gbit/s for 400 GB/s. A byte has 8 bits."),
        Slip(
            "bits-message-once",
            _SIZE / NIC_BYTES_PER_S / 8,
            "That is 10 GB at 400 GB/s. The adapter's rate is in bits, and each rank does not send 10 GB.",
        ),
        Slip(
            "through-one-rank",
            2 * (_RANKS - 1) * _SIZE / NIC_BYTES_PER_S,
            "That is the time if all bytes pass over one adapter, as when everything goes through rank 0. In a ring "
            "all four adapters send at the same time.",
        ),
        Slip(
            "inverted",
            2 * _RANKS / (_RANKS - 1) * _SIZE / NIC_BYTES_PER_S,
            "That is more than twice the message, as if a fraction were upside down. A rank of a ring never sends "
            "that much.",
        ),
        Slip(
            "no-factor-two",
            (_RANKS - 1) * _SIZE / NIC_BYTES_PER_S,
            "Either you sent the whole message in each of 3 steps, or you added the bytes that a rank receives. In a "
            "step a rank sends one chunk, and an adapter sends and receives at the same time.",
        ),
        Slip(
            "bits-twice",
            8 * _TIME,
            "That is 8 times too long, as if you had divided by 8 twice: 400 Gbit/s are 50 GB/s.",
        ),
    ),
    right="Ranks that exchange messages cannot do better. A smaller message or a faster link would help.",
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
    prompt=f"Six H200 GPUs all-reduce 8 GiB, which is **{_TEST / GB:.2f} GB**, in a ring in **{_MS} ms**. "
    "nccl-tests prints two bandwidths, `algbw` and `busbw`. What is `busbw`?",
    hints=(
        "`algbw` is the size of the message divided by the time.",
        "`busbw` is the rate at which each rank sent: `algbw` × 2(W−1)/W for an all-reduce.",
    ),
    solution=f"`algbw` = {_TEST / GB:.2f} GB / {_MS} ms = {_ALGORITHM / GB:.1f} GB/s. `busbw` = `algbw` × 2 × 5/6 = "
    f"**{_BUS / GB:.0f} GB/s**, which can be compared with the link: NVLink 4 has "
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
            "You used the factor of a reduce-scatter or of an all-gather. An all-reduce is both.",
        ),
        Slip("factor-two", _ALGORITHM * 2, "That is twice algbw. The factor for 6 ranks is a little smaller."),
        Slip(
            "eight-ranks",
            _ALGORITHM * bus_factor("all_reduce", 8),
            "That is 1.75 times algbw, the factor for 8 ranks. Here there are 6.",
        ),
        Slip(
            "gib",
            _BUS / 2**30 * GB,
            "Your number is in GiB/s: you counted the message as 8 GiB. nccl-tests prints GB/s, with 10^9 bytes.",
        ),
        Slip(
            "gb-as-gib",
            _BUS * 2**30 / GB,
            f"You took a GiB for a GB: {_TEST / GB:.2f} GB are 8 GiB, and nccl-tests prints GB/s, with 10^9 bytes.",
        ),
        Slip("all-links", _BUS * _GPUS, "That is the rate of all six links together. busbw is the rate of one link."),
        Slip("bits", _BUS * 8, "That is busbw in Gbit/s. nccl-tests prints bytes, and a byte has 8 bits."),
    ),
    right="busbw can be compared with the link, and between different numbers of ranks. algbw cannot.",
)

# The same source: on eight H200, 16 GiB, by ring and with the switch.
RING_BUS, NVLS_BUS = 367.2 * GB, 480.0 * GB

BUS_ABOVE_LINK = Choice(
    key="above-the-link",
    level=2,
    title="Faster than the link",
    prompt=f"On eight H200 GPUs nccl-tests prints a `busbw` of **{NVLS_BUS / GB:.0f} GB/s** for all-reduce. NVLink 4 "
    f"has {link('nvlink4').one_way_bytes_per_s / GB:.0f} GB/s one way. When a ring is forced, the same machine prints "
    f"{RING_BUS / GB:.0f}. What happened?",
    hints=(
        "`busbw` is computed from the time, with the factor 2(W−1)/W of a ring.",
        "What if the GPUs did not send that many bytes?",
    ),
    solution="**The switch adds.** With NVLink SHARP each GPU sends its data to the switch once and receives the sum: "
    "about once the message instead of 2(W−1)/W = 1.75 times. nccl-tests still multiplies by 1.75, so "
    f"`busbw` is no longer the rate of a link. {NVLS_BUS / GB:.0f} / 1.75 = {NVLS_BUS / reduce_factor(8) / GB:.0f} "
    "GB/s is `algbw`, well below the link.\n\nSource: Stas Bekman, *Machine Learning Engineering*, the chapter on "
    "network benchmarks.",
    options=(
        Option(
            "in-network",
            "The switch did the sum on the way",
            "Right: the GPUs sent fewer bytes than in a ring. busbw assumes the bytes of a ring, which is wrong here; "
            "the time is still right, and better.",
            True,
        ),
        Option(
            "two-ways",
            "The tool added up both directions",
            "No: then the forced ring would be above 450 too, and it is at 367. The number of bytes that have to be "
            "sent has changed.",
        ),
        Option(
            "units",
            "One figure is in GB/s, one in GiB/s",
            "480 GB/s are 447 GiB/s, so that would almost fit. But the tool and the datasheet both mean 10^9, "
            "and the same tool prints 367 for the forced ring on the same machine.",
        ),
        Option(
            "compression",
            "NCCL compressed the data on the way",
            "NCCL sends every bit as it is. And a ring with compressed data would exceed the link as well.",
        ),
        Option(
            "cache",
            "The GPUs' caches held the message",
            "The message has gigabytes, more than any cache, and it has to cross the link in any case.",
        ),
    ),
)

TINY = Choice(
    key="tiny-message",
    level=2,
    title="Eight bytes on 64 ranks",
    prompt="After each training step, 64 ranks all-reduce one number, the loss: **8 bytes**. Each message has a "
    "latency of 5 µs, a rank sends or receives one at a time, and the link has 50 GB/s. Which algorithm is fastest?",
    hints=(
        "How long do 8 bytes take at 50 GB/s, compared with 5 µs?",
        "So the number of messages that follow one another decides.",
    ),
    solution="Eight bytes need 0.16 ns on the wire, so only the number of steps matters. A tree goes up in "
    "log2(64) = 6 steps and down in 6: 12 × 5 µs = **60 µs**. The ring takes 2 × 63 = 126 steps: 630 µs. That is why "
    "NCCL has both, and chooses by the size of the message.",
    options=(
        Option(
            "tree",
            "A tree: pairs work at the same time",
            "Right: 60 µs instead of the ring's 630. Tiny messages are all latency.",
            True,
        ),
        Option(
            "ring",
            "A ring: no rank has many bytes to send",
            "True, but 8 bytes take only 0.16 ns, and a ring takes 126 steps of 5 µs each.",
        ),
        Option(
            "naive",
            "Rank 0: it takes and sends them all",
            "Rank 0 receives 63 messages and sends 63, one after the other: as many latencies as in the ring.",
        ),
        Option(
            "same",
            "All alike: 8 bytes are next to none",
            "The bytes take no time, but the messages that wait for one another do: 12 or 126, at 5 µs each.",
        ),
    ),
)

DOMINATES = Choice(
    key="more-ranks",
    level=2,
    title="64 times the ranks",
    short=True,
    prompt="A ring all-reduce of 10 GB runs on 8 ranks, then on **512**. Each link has 50 GB/s and a latency of "
    "10 µs. What happens to the time?",
    hints=(
        "Write down 2(W−1)/W for W = 8 and for W = 512.",
        "Then compare 2(W−1) × 10 µs with the time for the bytes.",
    ),
    solution=f"A rank sends {reduce_factor(8):.2f} times the message on 8 ranks and {reduce_factor(512):.3f} times on "
    f"512, which is {reduce_factor(512) / reduce_factor(8) - 1:.0%} more. The steps grow from 14 to 1,022, but 1,022 × "
    "10 µs is only 10 ms. Together that is 0.35 s and **0.41 s**. **As long as the message is large, the time depends "
    "on the bytes and the bandwidth, and hardly on the number of ranks.**",
    options=(
        Option(
            "little",
            "It grows by about a sixth",
            "Right: 0.35 s and 0.41 s. That is why data parallelism scales, and why bandwidth is its limit.",
            True,
        ),
        Option(
            "linear",
            "It grows 64 times, as the ranks do",
            "That would be true if one rank had to communicate with all others. In a ring each communicates with two, "
            "and more ranks mean smaller chunks.",
        ),
        Option(
            "logarithm",
            "It grows 3 times, as log2 does",
            "The steps of a tree grow like that. In a ring the time of a large message is the bytes per rank divided "
            "by the bandwidth, and those bytes hardly grow.",
        ),
        Option(
            "same",
            "It stays exactly the same",
            "Nearly. But a rank sends a little more, and there are 1,008 more latencies of 10 µs: a difference that "
            "you can measure.",
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
    "bytes / (10 GB/s)**. How much time is saved by all-reducing them in **40** larger messages (*buckets*) instead of "
    "one by one?",
    hints=("The bytes are the same in both cases.", "What does each message cost apart from its bytes?"),
    solution="One by one: 400 × 0.1 ms + 200 MB / (10 GB/s) = 40 + 20 = 60 ms. In 40 buckets: 4 + 20 = 24 "
    f"ms. Saved: 360 × 0.1 ms = **{_SAVED * 1e3:.1f} ms**, all of it latency.",
    value=_SAVED,
    unit="ms",
    units=_SECONDS,
    dimension="seconds",
    slips=(
        Slip(
            "all-starts",
            _TENSORS * _ALPHA,
            "That is the latency of all 400 tensors. Some of it remains: once for each bucket.",
        ),
        Slip(
            "one-by-one",
            _TENSORS * _ALPHA + _GRADIENTS / _RATE,
            "That is the time one by one. The question is how much time the buckets save.",
        ),
        Slip(
            "buckets",
            _BUCKETS * _ALPHA + _GRADIENTS / _RATE,
            "That is the time with 40 buckets. The question is how much time they save.",
        ),
        Slip("starts-left", _BUCKETS * _ALPHA, "That is the latency that remains. How much of it is saved?"),
        Slip(
            "bytes",
            _GRADIENTS / _RATE,
            "That is the time for the bytes, which is the same in both cases. Only latency is saved.",
        ),
        Slip(
            "tensors-in-a-bucket",
            (_TENSORS - _TENSORS / _BUCKETS) * _ALPHA,
            "That is the time saved with 10 buckets of 40 tensors each. Here there are 40 buckets.",
        ),
    ),
    right="Two thirds of the time was latency. This is what DDP's buckets are for.",
)

EXERCISES = (SECONDS, BUS, BUS_ABOVE_LINK, TINY, DOMINATES, BUCKETING)
