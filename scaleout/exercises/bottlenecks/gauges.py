"""Exercises of `bottlenecks` on gauges: what `nvidia-smi` shows, a utilization with a wrong peak, and the roofline."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.spec.devices import DEVICES

BUSY = Choice(
    key="busy-gpu",
    level=2,
    minutes=3,
    title="98% on the screen",
    prompt="A job trains on eight H100s with DDP. `nvidia-smi` shows a GPU utilization of **98%** on all of them, all "
    "day. The model FLOPs utilization, computed with care, is **19%**. Which of these can **not** be the reason why "
    "the second number is so much smaller?",
    hints=(
        "For each of the four: does a kernel run on the GPU while it happens?",
        "An all-reduce is a kernel too, and it runs until the last rank has arrived.",
    ),
    solution="**The data loader.** While a GPU waits for a batch, no kernel runs on it, and `nvidia-smi` would show "
    "less. The other three keep some kernel running: NCCL's kernel waits on the GPU for the slow rank, an elementwise "
    "kernel reads and writes memory and makes few FLOPs, and a small matmul occupies the GPU for its whole time though "
    "most of its multiprocessors have nothing to do.\n\nSo a *low* figure in `nvidia-smi` is a finding: look at the "
    "input, at the host, and at gaps between kernels. A high figure says that some kernel runs, and not what it "
    "achieves.",
    options=(
        Option(
            "loader",
            "Each GPU waits for its batches a third of the time",
            "Right. During that time no kernel runs, so the figure could not be 98%.",
            True,
        ),
        Option(
            "slow-rank",
            "Seven GPUs wait in the all-reduce for a slow one",
            "It can be. The all-reduce is a kernel that runs while it waits, so the GPU counts as busy.",
        ),
        Option(
            "elementwise",
            "Most of the time goes to norms, masks and copies",
            "It can be. Such kernels wait for memory and make few FLOPs, and the GPU counts as busy while they run.",
        ),
        Option(
            "small-matmuls",
            "Matmuls are so small that most SMs have no work",
            "It can be. The figure asks whether a kernel runs, not how much of the GPU it uses.",
        ),
    ),
)

PRINTED, OF, GPUS, SPARSE = 0.36, 4, 16, 2
TRUE = PRINTED * OF / GPUS * SPARSE
GAUGE = Number(
    key="gauge-16",
    level=2,
    minutes=3,
    title="A gauge that was copied from another job",
    prompt=f"A job on **{GPUS}** H100s prints a model FLOPs utilization of **{PRINTED:.0%}**. Its code divides the "
    f"FLOP/s of all {GPUS} GPUs by `{OF} * 1979e12`. It was copied from a job on {OF} GPUs. And 1,979 TFLOP/s is the "
    "peak rate with structured sparsity, which nobody uses here; dense bf16 matmuls reach 989.5 at most. What is the "
    "true utilization?",
    hints=(
        "Which peak should stand below the fraction?",
        "Correct one mistake at a time: in which direction does each of them move the figure?",
    ),
    solution=f"The FLOP/s are {PRINTED:.0%} of {OF} × 1,979 = {OF * 1979:,} TFLOP/s, or {PRINTED * OF * 1979:,.0f} "
    f"TFLOP/s. The dense peak of {GPUS} GPUs is {GPUS} × 989.5 = {GPUS * 989.5:,.0f}. The true utilization is "
    f"**{TRUE:.0%}**. The wrong number of GPUs made the figure four times too large, and the wrong peak made it half "
    "as large as it should be. Mistakes of opposite direction are dangerous because the result looks plausible.",
    value=TRUE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("as-printed", PRINTED, "That is what the log prints."),
        Slip("gpus-alone", PRINTED * OF / GPUS, "You corrected the number of GPUs, and not the rate with sparsity."),
        Slip("peak-alone", PRINTED * SPARSE, "You corrected the rate with sparsity, and not the number of GPUs."),
        Slip(
            "peak-wrong-way",
            PRINTED * OF / GPUS / SPARSE,
            "You corrected the rate in the wrong direction. Does a smaller peak give a larger or a smaller share?",
        ),
        Slip(
            "gpus-wrong-way",
            PRINTED * GPUS / OF * SPARSE,
            "You corrected the number of GPUs in the wrong direction: no GPU exceeds its peak.",
        ),
    ),
    right="Check both numbers of every utilization: how many GPUs the peak is of, and which peak it is.",
)

H100 = DEVICES["h100-sxm"]
BALANCE = H100.matmul_flop_per_s("bf16") / H100.memory_bytes_per_s  # FLOPs per byte


def matmul(m: int, k: int, n: int) -> float:
    """FLOPs per byte of an m x k by k x n matmul in 16 bits: each matrix is read or written once."""
    return 2 * m * k * n / (2 * (m * k + k * n + m * n))


GELU = 10 / 4  # about ten operations per element, two bytes read and two written
KERNELS = {"B": (8192, 8192, 8192), "C": (256, 8192, 8192), "D": (8192, 8192, 128)}
INTENSITY = Choice(
    key="intensity",
    level=2,
    minutes=5,
    title="Four kernels under one roof",
    prompt="An H100 makes 295 bf16 FLOPs in the time in which it reads or writes one byte of its memory. Four kernels "
    "of a training step, all in bf16; each reads its inputs once and writes its output once:\n\n"
    "- **A** is a GeLU on 8,192 tokens of width 32,768, with about ten operations per element.\n"
    "- **B** multiplies 8,192 × 8,192 by 8,192 × 8,192.\n"
    "- **C** multiplies 256 × 8,192 (few tokens) by 8,192 × 8,192.\n"
    "- **D** multiplies 8,192 × 8,192 by 8,192 × 128 (the first matrix of a LoRA adapter).\n\n"
    "Which of them are bound by memory bandwidth?",
    hints=(
        "Count FLOPs, count bytes, and divide.",
        "A matmul of m × k by k × n makes 2mkn FLOPs, and its three matrices have mk + kn + mn elements of two bytes.",
    ),
    solution="```\n   FLOPs per byte   bound by\n"
    f"A  {GELU:14.1f}   memory\nB  {matmul(*KERNELS['B']):14,.0f}   arithmetic\n"
    f"C  {matmul(*KERNELS['C']):14.0f}   memory\nD  {matmul(*KERNELS['D']):14.0f}   memory\n```\n\n"
    "**A, C and D** are below 295. The intensity of a matmul is at most its smallest side, in FLOPs per byte with two "
    "bytes per element: a matmul with a side of 256 or 128 cannot reach 295, however large its other sides are. That "
    "is why few tokens per GPU, narrow adapters and a high degree of tensor parallelism make matmuls slow. The "
    "arithmetic intensity says which of two times is longer. C is near the balance, so both times are nearly equal.",
    options=(
        Option(
            "a-c-d",
            "A, C and D: too few FLOPs for each byte",
            "Right. A side of 256 or 128 limits a matmul to fewer than 295 FLOPs per byte.",
            True,
        ),
        Option(
            "a",
            "A alone, because it is the only one without matmuls",
            "A matmul can be bound by memory too. Count the bytes of the large matrix in C, and of the input in D.",
        ),
        Option(
            "a-d",
            "A and D: only their inputs are large enough",
            "For C too the bytes count: the weights are read for few tokens.",
        ),
        Option(
            "c-d",
            "C and D: a GeLU is arithmetic in each element",
            "A GeLU makes about ten operations for four bytes. And C and D?",
        ),
        Option(
            "a-b",
            "A and B: theirs are the most bytes of the four",
            "B has the most bytes of the three matmuls, and by far the most FLOPs. What counts is FLOPs per byte.",
        ),
    ),
)

EXERCISES = (BUSY, GAUGE, INTENSITY)
