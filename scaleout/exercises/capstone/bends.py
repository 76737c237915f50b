"""The exercise of `capstone` on four curves that were measured: where each of them bends, and what bends it."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option
from scaleout.words.tables import columns

# What is kept of the first size's rate, in per cent for each process, by processes. Held against the sources by a test.
CURVES = {
    "A": {384: 100, 768: 61, 1536: 31},
    "B": {1: 100, 2: 89, 4: 93, 8: 53, 16: 50, 32: 47},
    "C": {1: 100, 2: 76, 4: 21},
    "D": {16: 100, 64: 99, 256: 98, 1024: 97, 2048: 96},
}
TP_ALONE = 60  # per cent that B's layout of two nodes keeps on one, as tp 4 without data parallelism


def together(name: str) -> list[float]:
    """What all processes get done, the first size being 1."""
    first = min(CURVES[name])
    return [processes / first * percent / 100 for processes, percent in CURVES[name].items()]


def _curve(name: str, unit: str, *rows: tuple) -> str:
    return columns(((unit, *CURVES[name]), *rows, ("kept, %", *CURVES[name].values())), 9, 5)


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
    prompt="What each process gets done in a second, in per cent of what one does at the first size:"
    f"\n\n```\n{_TABLE}\n```\n\n*seqs* are the sequences of one GPU or process. On **one** node of B, tp 4 "
    f"without FSDP keeps {TP_ALONE}%. After which size does each curve bend most, and why? *Batch*: a GPU's part of "
    "it has become too short to hide what it sends. *Layout*: from there on the model is split another way, which is "
    "slower by itself. *Node*: from there on messages leave the node. *Cores*: processes share what they compute "
    "with. *Nowhere*: it loses less than 5% in all.",
    hints=(
        "Multiply: what do all processes together get done at each size? Does it stand still, or fall?",
        "What else changes from one column to the next, beside the number of processes?",
        "How much of B's fall from 93 to 53 is there on one node already?",
    ),
    solution="**A: its batch, after 384.** The 1,536 sequences are shared out, four to a GPU, then two, then one; "
    f"the bytes that a GPU sends stay. All GPUs together do {together('A')[1]:.1f} times the work on 768, and "
    f"{together('A')[2]:.1f} times on 1,536: the step takes as long on twice the GPUs, since it is the messages. "
    "*Source: Narayanan et al., arXiv 2104.04473, table 2.*\n\n**B: its layout, after 4.** From 8 on it is split in "
    f"tensor parallelism too, and that alone keeps {TP_ALONE}% on one node. So two nodes keep {CURVES['B'][8]} of "
    f"{TP_ALONE}, and the adapters cost seven points of forty. The report explains all of it *as communication "
    "crosses to InfiniBand*. Two things changed between two columns, and it blamed one. *Source: KempnerForge, "
    f"benchmarks/mfu_scaling, 2026.*\n\n**C: its cores, after 2.** All together do {together('C')[1]:.1f} times the "
    f"work on 2 and {together('C')[2]:.1f} times on 4: a batch that is too short makes a curve stand still, and this "
    "one **falls**. Four processes have no more cores than two, and wait for each other. *Source: this chapter's "
    "Records.*\n\n**D: nowhere.** 128 times the GPUs lose 4%: each GPU keeps its four sequences, and they hide what "
    "it sends. *Source: NVIDIA, dgxc-benchmarking, Nemotron-4 15B.*",
    options=(
        Option(
            "b-layout",
            _label("batch, after 384", "layout, after 4", "cores, after 2", "nowhere"),
            "Right: ask what else changed between two columns, and whether the whole stands still or falls.",
            True,
        ),
        Option(
            "node-edge",
            _label("batch, after 384", "node, after 4", "cores, after 2", "nowhere"),
            "Messages do leave the node there. But look at the other row of B that changes there, and at what it "
            "costs on one node.",
        ),
        Option(
            "node-and-late",
            _label("batch, after 768", "node, after 4", "cores, after 2", "nowhere"),
            "A loses 39 points in its first doubling. And which other row of B changes where messages leave the node?",
        ),
        Option(
            "node-everywhere",
            _label("node, after 384", "node, after 4", "batch, after 2", "nowhere"),
            "A has left its nodes of 8 long before. In C all processes together do less on 4 than on 2: a short "
            "batch alone makes nothing slower. And which other row of B changes at its second node?",
        ),
        Option(
            "first-dip",
            _label("batch, after 384", "layout, after 1", "cores, after 2", "node, after 256"),
            "B has one layout up to 4 GPUs, and keeps more on 4 than on 2. D has left its node at the first size.",
        ),
        Option(
            "short-batch",
            _label("batch, after 384", "layout, after 4", "batch, after 2", "nowhere"),
            "In C all processes together do less on 4 than on 2. A short batch alone makes nothing slower.",
        ),
    ),
)

EXERCISES = (FOUR,)
