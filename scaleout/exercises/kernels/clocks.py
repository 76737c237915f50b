"""Exercises of `kernels` on cycles: a ceiling, what FP8 gains, which unit decides, and the share of the peak."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip

HEAD, FLOP, EXP, TILE = 96, 8192, 16, 128
MATMUL, SOFTMAX = 4 * TILE * TILE * HEAD / FLOP, TILE * TILE / EXP
CEILING = Number(
    key="heads-of-96",
    level=2,
    minutes=3,
    title="Heads of 96",
    prompt=f"A multiprocessor of a B200 computes {FLOP:,} FLOPs of bf16 matrix multiplication and {EXP} "
    f"exponentials per clock. Take the forward of attention with heads of **{HEAD}**, in tiles of 128 queries by "
    "128 keys, and no other limit. If both units work all the time that they can, which share of the tensor cores' "
    "peak does the kernel reach at most?",
    hints=(
        "A tile has 128 × 128 scores. Each is one exponential, and 4 × 96 FLOPs.",
        "The longer of the two times decides. For which part of it do the tensor cores work?",
    ),
    solution=f"The matrix multiplications take 4 × 128 × 128 × {HEAD} / {FLOP:,} = {MATMUL:.0f} cycles, the "
    f"exponentials 128 × 128 / {EXP} = {SOFTMAX:,.0f}. The tensor cores work for {MATMUL:.0f} of {SOFTMAX:,.0f} "
    f"cycles: **{MATMUL / SOFTMAX:.0%}**. In general it is d / 128 on this GPU, as long as d is below 128.",
    value=MATMUL / SOFTMAX,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("in-turn", MATMUL / (MATMUL + SOFTMAX), "That is a kernel which uses one unit after the other."),
        Slip("inverse", SOFTMAX / MATMUL, "That is more than all of the peak. Divide the other way."),
        Slip("one-matmul", MATMUL / SOFTMAX / 2, "You counted one of the two matrix multiplications of a tile."),
        Slip("heads-of-64", 0.5, "That is the ceiling with heads of 64."),
        Slip(
            "softmax-share", SOFTMAX / (MATMUL + SOFTMAX), "That is the share of the exponentials in the sum of both."
        ),
    ),
    right="A kernel at 72% of the peak would be excellent here. The missing quarter is out of reach as long as one "
    "unit computes all exponentials.",
)

TURN_HEAD, HOPPER = 96, 4096
_BF16 = 4 * TILE * TILE * TURN_HEAD / HOPPER
GAIN = (_BF16 + SOFTMAX) / (_BF16 / 2 + SOFTMAX)
IN_TURN = Number(
    key="fp8-in-turn",
    level=2,
    minutes=3,
    title="FP8 on an H100",
    prompt=f"On an H100 a tile of 128 × 128 with heads of **{TURN_HEAD}** takes {_BF16:,.0f} cycles of matrix "
    f"multiplication in bf16 and {SOFTMAX:,.0f} cycles of exponentials. A kernel does **one after the other**. In "
    "FP8 the matrix multiplications are twice as fast, and the exponentials stay in fp32. How many times as fast is "
    "the kernel in FP8?",
    hints=("How many cycles does a tile take in bf16, and in FP8?", "Divide the old number of cycles by the new one."),
    solution=f"({_BF16:,.0f} + {SOFTMAX:,.0f}) / ({_BF16 / 2:,.0f} + {SOFTMAX:,.0f}) = {_BF16 + SOFTMAX:,.0f} / "
    f"{_BF16 / 2 + SOFTMAX:,.0f} = **{GAIN:.2f} times**. FlashAttention-3 overlaps the two units partly. With heads "
    "of 256, where this sum gives 1.67, it became 1.55 times as fast.",
    value=GAIN,
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip("matmuls-alone", 2.0, "That is the gain of the matrix multiplications alone."),
        Slip(
            "overlapped",
            max(_BF16, SOFTMAX) / max(_BF16 / 2, SOFTMAX),
            "That is a kernel which overlaps both units perfectly. This one does not.",
        ),
        Slip("inverse", 1 / GAIN, "That is the new time as a part of the old time."),
        Slip(
            "added-gain",
            1 + _BF16 / (_BF16 + SOFTMAX),
            "That is 1 plus the share of the matrix multiplications. Divide the old time by the new one.",
        ),
    ),
    right="The part that FP8 leaves as it is decides.",
)


def _option(name: str, units: tuple[str, ...], reason: str, right: bool = False) -> Option:
    return Option(name, " · ".join(units), reason, right)


WHICH = Choice(
    key="which-idle",
    level=2,
    minutes=4,
    title="Four kernels, four idle units",
    prompt="Each of these four attention kernels was the answer to one finding about its predecessor. Which finding "
    "belongs to FlashAttention **1**, **2**, **3** and **4**, in this order?\n\n"
    "- *HBM*: arithmetic waits while scores travel to memory and back\n"
    "- *SMs*: with few and long sequences most multiprocessors have no work\n"
    "- *softmax*: tensor cores wait while the exponentials of their tile are computed\n"
    "- *MUFU*: the exponential unit is busy all the time, and tensor cores wait for it even so",
    hints=(
        "The first had to bring the scores on chip. The second divides the queries, too, among blocks of threads.",
        "Asynchronous tensor cores came with Hopper. What changed between H100 and B200: overlap, or rates?",
    ),
    solution="**HBM · SMs · softmax · MUFU.** FlashAttention keeps the scores on chip. FlashAttention-2 divides the "
    "queries of a head among blocks, so that long sequences fill the GPU, and does less that is no matrix "
    "multiplication. FlashAttention-3 uses Hopper's asynchronous instructions: one group of warps multiplies while the "
    "other computes its softmax. On B200 tensor cores are twice as fast and exponentials are not, so that overlap "
    "is not enough: FlashAttention-4 computes a part of them as polynomials on the FMA units.",
    options=(
        _option("rising", ("HBM", "SMs", "softmax", "MUFU"), "Right. Each fix exposed the next unit.", True),
        _option("swapped-middle", ("HBM", "softmax", "SMs", "MUFU"),
                "FlashAttention-2 ran on A100s, whose matrix multiplications are not asynchronous. What did it "
                "divide?"),
        _option("swapped-end", ("HBM", "SMs", "MUFU", "softmax"),
                "On an H100 with heads of 128 the exponentials take half as long as the matrix multiplications. Can "
                "their unit be busy all the time there?"),
        _option("scores-late", ("SMs", "softmax", "HBM", "MUFU"),
                "Before the first FlashAttention, what did the scores of a tile do after they were computed?"),
        _option("all-later", ("HBM", "softmax", "MUFU", "SMs"),
                "The first is right. Work for all multiprocessors was found early, and without new instructions."),
    ),
)  # fmt: skip

_STUB = '''\
def share_of_peak(gpu, head, bytes_each, overlapped):
    """Share of the tensor cores' peak in a forward tile, at most.

    gpu: [FLOPs, exponentials, bytes of shared memory] per clock,
         the FLOPs for operands of bytes_each
    head: head size; bytes_each: of an element of Q, K and V
    overlapped: True if the kernel uses all three units at once,
         False if exponentials and matrix multiplications take turns
    """
    return ...
'''
_SOLUTION = """\
def share_of_peak(gpu, head, bytes_each, overlapped):
    flops, exps, smem = gpu
    tile = 128 * 128
    matmul = 4 * tile * head / flops
    softmax = tile / exps
    shared = 3 * 128 * head * bytes_each / smem
    if overlapped:
        return matmul / max(matmul, softmax, shared)
    return matmul / max(matmul + softmax, shared)
"""


def share(gpu, head, bytes_each, overlapped, operands=3, matmuls=2, scored=1.0, shares=True) -> float:
    """Share of the peak; the other arguments make mistakes."""
    flops, exps, smem = gpu
    matmul = 2 * matmuls * TILE * TILE * head / flops
    softmax, shared = scored * TILE * TILE / exps, operands * TILE * head * bytes_each / smem * shares
    return matmul / (max(matmul, softmax, shared) if overlapped else max(matmul + softmax, shared))


def _summed(gpu, head, bytes_each, overlapped) -> float:
    flops, exps, smem = gpu
    parts = (4 * TILE * TILE * head / flops, TILE * TILE / exps, 3 * TILE * head * bytes_each / smem)
    return parts[0] / (max(parts) if overlapped else sum(parts))


_B200, _B200_8, _H100 = [8192, 16, 128], [16384, 16, 128], [4096, 16, 128]
_B300, _THIN = [8192, 32, 128], [16384, 64, 64]
PEAK = Function(
    key="share-of-peak",
    level=3,
    minutes=10,
    title="A ceiling for any GPU",
    prompt="Write `share_of_peak(gpu, head, bytes_each, overlapped)`: which share of the tensor cores' peak the "
    "forward of attention reaches at most, for tiles of 128 queries by 128 keys.\n\n"
    "- The two matrix multiplications of a tile take 4 · 128 · 128 · head FLOPs together, and each score one "
    "exponential.\n- Three operands of 128 × head elements are read from shared memory, as on a B200.\n"
    "- `overlapped`: the unit that takes longest decides. Otherwise matrix multiplications and exponentials take "
    "turns, and shared memory is read meanwhile.",
    hints=(
        "Compute the cycles of each of the three units first.",
        "The tensor cores work for their own cycles. Divide these by the cycles of the tile.",
    ),
    solution=f"```python\n{_SOLUTION}```\n\nFor a B200 and heads of 64 it gives 50%. A FlashAttention-4 measured 49.0% "
    "there. `scaleout/timing/kernels.py` adds HBM, masks and the backward.",
    function="share_of_peak",
    stub=_STUB,
    reference=share,
    cases=(
        (_B200, 64, 2, True),
        (_B200, 128, 2, True),
        (_B200, 256, 2, True),
        (_B200, 96, 2, False),
        (_B200_8, 128, 1, True),
        (_B200_8, 80, 1, False),
        (_H100, 64, 2, False),
        (_H100, 128, 2, False),
        (_H100, 32, 2, True),
        (_B300, 64, 2, True),
        (_B300, 48, 2, True),
        (_THIN, 128, 2, True),
        (_THIN, 256, 2, False),
        (_THIN, 96, 2, False),
        ([16384, 64, 128], 128, 2, True),
        ([16384, 64, 128], 192, 1, False),
        ([16384, 64, 16], 128, 2, True),
    ),
    mistakes=(
        Mistake("never-overlapped", lambda g, d, w, o: share(g, d, w, False), "You let the units take turns always."),
        Mistake("always-overlapped", lambda g, d, w, o: share(g, d, w, True), "You overlap the units always."),
        Mistake("all-in-turn", _summed, "Where units take turns you add shared memory, too, which is read meanwhile."),
        Mistake(
            "no-shared",
            lambda g, d, w, o: share(g, d, w, o, shares=False),
            "You left out shared memory. On some GPUs it takes longest.",
        ),
        Mistake("one-matmul", lambda g, d, w, o: share(g, d, w, o, matmuls=1),
                "You counted one of the two matrix multiplications."),
        Mistake("two-exponentials", lambda g, d, w, o: share(g, d, w, o, scored=2.0),
                "A score takes one exponential. You counted two."),
        Mistake("one-operand", lambda g, d, w, o: share(g, d, w, o, operands=1),
                "Three operands are read. You counted one."),
    ),
    right="With three rates you can say what no kernel will reach on a GPU, before it is built.",
)  # fmt: skip

EXERCISES = (CEILING, IN_TURN, WHICH, PEAK)
