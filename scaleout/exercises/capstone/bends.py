"""The exercise of `capstone` on four measured curves: where each of them bends, and why."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option
from scaleout.words.tables import columns

# Throughput per process in percent of the first size's, by processes. A test compares it with the sources.
CURVES = {
    "A": {384: 100, 768: 61, 1536: 31},
    "B": {1: 100, 2: 89, 4: 93, 8: 53, 16: 50, 32: 47},
    "C": {1: 100, 2: 76, 4: 21},
    "D": {16: 100, 64: 99, 256: 98, 1024: 97, 2048: 96},
}
TP_ALONE = 60  # percent that B's layout on two nodes reaches on one, as tp 4 without data parallelism


def together(name: str) -> list[float]:
    """Throughput of all processes together, relative to the first size."""
    first = min(CURVES[name])
    return [processes / first * percent / 100 for processes, percent in CURVES[name].items()]


def _curve(name: str, unit: str, *rows: tuple) -> str:
    return columns(((unit, *CURVES[name]), *rows, ("percent", *CURVES[name].values())), 9, 5)


_TABLE = "\n\n".join(
    (
        "A: ZeRO 3, 175B, nodes of 8 A100\n" + _curve("A", "GPUs", ("seqs/GPU", 4, 2, 1)),
        "B: 8B, nodes of 4 H200\n" + _curve("B", "GPUs", ("tp", 1, 1, 1, 4, 4, 4), ("FSDP over", 1, 2, 4, 2, 4, 8)),
        "C: DDP, one machine of 2 cores\n" + _curve("C", "processes", ("seqs each", 8, 4, 2)),
        "D: 15B, tp 4, nodes of 8 H100\n" + _curve("D", "GPUs", ("seqs/GPU", 4, 4, 4, 4, 4)),
    )
)


def _label(*answers: str) -> str:
    return " · ".join(f"{name} {answer}" for name, answer in zip(CURVES, answers, strict=True))


FOUR = Choice(
    key="four-bends",
    level=3,
    minutes=8,
    title="Four curves that were measured",
    prompt="Throughput per GPU or process, in percent of the first size:"
    f"\n\n```\n{_TABLE}\n```\n\n*seqs* are sequences, *tp* is the size of tensor parallelism. In B, tp 4 on **one** "
    f"node without FSDP reaches {TP_ALONE}%. After which size does each curve bend most, and why?\n\n"
    "- *Batch*: a GPU has too few sequences to hide its communication.\n"
    "- *Layout*: another way to split the model is slower by itself.\n"
    "- *Node*: communication leaves the node.\n"
    "- *Cores*: processes share cores.\n"
    "- *No bend*: it loses less than 5% in all.",
    hints=(
        "Multiply: what is the total throughput at each size? Does it stand still, or fall?",
        "What else changes from one column to the next, besides the number of processes?",
        "How much of B's fall from 93 to 53 is already there on one node?",
    ),
    solution="**A: its batch, after 384.** The 1,536 sequences are divided: four per GPU, then two, then one. The "
    f"bytes that a GPU sends stay the same. The total throughput is {together('A')[1]:.1f} times the first on 768 "
    f"GPUs, and {together('A')[2]:.1f} times on 1,536. From 768 GPUs on, a step takes as long on twice the GPUs, "
    "because it lasts as long as its communication. *Source: Narayanan et al., arXiv 2104.04473, table 2.*\n\n"
    "**B: its layout, after 4.** "
    f"From 8 GPUs on the model is also split by tensor parallelism, and that alone reaches only {TP_ALONE}% on one "
    f"node. Two nodes reach {CURVES['B'][8]}% instead of {TP_ALONE}%, so the network costs seven of forty points. The "
    "report blames all of it on communication that *crosses to InfiniBand*. Two things changed between two columns, "
    "and it blamed one. *Source: KempnerForge, benchmarks/mfu_scaling, 2026.*\n\n**C: its cores, after 2.** The total "
    f"throughput is {together('C')[1]:.1f} times the first on 2 processes and {together('C')[2]:.1f} times on 4. With "
    "too small a batch it would stand still, and here it **falls**. Four processes have no more cores than two, and "
    "wait for each other. *Source: this chapter's Records.*\n\n**D: no bend.** 128 times the GPUs lose 4%, because "
    "each GPU keeps its four sequences, and they hide its communication. *Source: NVIDIA, dgxc-benchmarking, "
    "Nemotron-4 15B.*",
    options=(
        Option(
            "b-layout",
            _label("batch, after 384", "layout, after 4", "cores, after 2", "no bend"),
            "Right: ask what else changed between two columns, and whether the total stands still or falls.",
            True,
        ),
        Option(
            "node-edge",
            _label("batch, after 384", "node, after 4", "cores, after 2", "no bend"),
            "Communication does leave the node there. But look at the other row of B that changes there, and at what "
            "it costs on one node.",
        ),
        Option(
            "node-and-late",
            _label("batch, after 768", "node, after 4", "cores, after 2", "no bend"),
            "A loses 39 points in its first doubling. And which other row of B changes where communication leaves the "
            "node?",
        ),
        Option(
            "node-everywhere",
            _label("node, after 384", "node, after 4", "batch, after 2", "no bend"),
            "A spans many nodes of 8 from the first size. In C the total throughput is lower on 4 processes than on "
            "2: a small batch alone makes nothing slower. And which other row of B changes at its second node?",
        ),
        Option(
            "first-dip",
            _label("batch, after 384", "layout, after 1", "cores, after 2", "node, after 256"),
            "B has one layout up to 4 GPUs, and reaches more on 4 than on 2. D spans two nodes at its first size.",
        ),
        Option(
            "short-batch",
            _label("batch, after 384", "layout, after 4", "batch, after 2", "no bend"),
            "In C the total throughput is lower on 4 processes than on 2. A small batch alone makes nothing slower.",
        ),
    ),
)

EXERCISES = (FOUR,)
