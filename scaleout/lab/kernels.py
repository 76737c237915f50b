"""What the lab of kernels prints: attention by kernel, fusion, FP8's errors, a block, three faults. Standard library
only."""

from __future__ import annotations

import textwrap
from itertools import pairwise

from scaleout.lab.text import fixed, megabytes, ms, ratio, table

FAULTS = {
    "recompile": "a compiled function whose input has another length at each step",
    "mask": "a causal mask that FlashAttention does not take",
    "fp8": "FP8 matrix multiplications too small to gain",
}
VARIANTS = {
    "tensor": "one scale per tensor",
    "both": "block scales and rotation",
    "rotation": "rotation, without block scales",
    "blocks": "block scales, without rotation",
}
HALF = {"fp16": "fp16, scores stored in fp16", "fp16-fused": "fp16, scores stay in fp32"}
# FlashAttention-3 (arXiv 2407.08608), table 3; its inputs are drawn in the same way, its length is not given.
PUBLISHED = {
    "tensor": 2.4e-2,
    "both": 9.1e-3,
    "rotation": 9.3e-3,
    "blocks": 2.4e-2,
    "fp16": 3.2e-4,
    "fp16-fused": 1.9e-4,
}
FIGURES = {"saved": "bytes saved", "forward": "seconds forward", "step": "seconds forward and backward"}
WAYS = {"eager": "one by one", "chunks": "in chunks", "compiled": "compiled"}
PRODUCTS = ("bf16", "fp8", "fp8 with casts")


def numbers(words: str, flag: str, lowest: int = 1, highest: int = 10**7) -> tuple[int, ...]:
    """The numbers of "128,256", sorted, each once. ValueError, one line, for anything else."""
    parts = [part.strip() for part in words.split(",")]
    if not all(part.isascii() and part.isdigit() and lowest <= int(part) <= highest for part in parts):
        raise ValueError(f"{flag} {words}: give whole numbers from {lowest} to {highest:,}, as 128,256")
    return tuple(sorted({int(part) for part in parts}))


def attention(rows, title):
    """Kernels on one size, as text. rows: {kernel: {"saved", "forward", "step": (predicted, measured)}}, predicted None
    where nothing says it."""
    head = (title, "MB saved", "pred.", "fwd, ms", "pred.", "step, ms", "pred.", "ratio")
    lines = []
    for name, row in rows.items():
        cells = []
        for figure, words in (("saved", megabytes), ("forward", ms), ("step", ms)):
            predicted, measured = row.get(figure) or (None, None)
            cells += [words(measured).removesuffix(" MB"), words(predicted).removesuffix(" MB")]
        lines.append((name, *cells, ratio(*(row.get("step") or row.get("forward") or (None, None)))))
    return table(head, lines)


def fusion(measured, predicted, names):
    """Chains by way, as text. measured, predicted: {(chain, way): seconds}; names: {chain: words}."""
    lines = []
    for (chain, way), seconds in measured.items():
        gain = measured[chain, "eager"] / seconds
        expected = predicted[chain, "eager"] / predicted[chain, way]
        lines.append(
            (f"{names[chain]}, {WAYS[way]}", ms(seconds), ms(predicted[chain, way]), f"{gain:.2f}", f"{expected:.2f}")
        )
    return table(("chain of operations", "ms", "predicted", "speedup", "predicted"), lines)


def fp8_errors(rows, half):
    """Errors of FP8 attention, as text: what `measure.kernels_fp8.errors` gives, with the published ones."""
    lines = [
        (VARIANTS[name], f"{row['error']:.2e}", f"{row['predicted']:.2e}", f"{PUBLISHED[name]:.2e}")
        for name, row in rows.items()
    ]
    lines += [(HALF[name], f"{error:.2e}", "-", f"{PUBLISHED[name]:.2e}") for name, error in half.items()]
    parts = [name for name in rows["tensor"] if name not in ("error", "predicted")]
    alone = table(
        ("only this operand is rounded", *parts),
        [(VARIANTS[name], *(f"{row[part]:.2e}" for part in parts)) for name, row in rows.items()],
    )
    head = ("FP8 attention, emulated", "RMS error", "predicted", "FA3, table 3")
    return f"{table(head, lines)}\n\n{alone}"


def block(rows, names, peak, source):
    """A block before and after each kernel, as text. rows: {way: {"seconds", "mfu"}}."""
    before = next(iter(rows.values()))["seconds"]
    lines = [
        (names[way], ms(row["seconds"]), f"{before / row['seconds']:.2f}", f"{row['mfu']:.2f}")
        for way, row in rows.items()
    ]
    text = table(("a block, forward and backward", "ms", "speedup", "MFU"), lines)
    return f"{text}\nMFU of {peak / 1e9:,.0f} GFLOP/s: {source}"


def by_shape(tokens, predicted, measured, device):
    """FP8 matrix multiplications by width, as text. predicted: {width: {way: seconds}}; measured: {(width, way):
    seconds}, empty where no unit has FP8."""
    lines = []
    for width, row in predicted.items():
        cells = [fixed(row[way], 1e-6) for way in PRODUCTS] + [f"{row['bf16'] / row['fp8 with casts']:.2f}"]
        if measured:
            cells += [fixed(measured[width, way], 1e-6) for way in PRODUCTS]
            cells += [f"{measured[width, 'bf16'] / measured[width, 'fp8 with casts']:.2f}"]
        lines.append((width, *cells))
    head = ("width", "bf16, us", "FP8", "with casts", "speedup")
    words = f"{tokens:,} tokens by a square weight, predicted by the datasheet of: {device}"
    return f"{words}{', then measured' * bool(measured)}\n" + table(head + head[1:] * bool(measured), lines)


# --- faults -----------------------------------------------------------------------------------------------------------


def recompiled(rows):
    """(words, True for a fault) of a run's steps, [(tokens, graphs, seconds)]: it is a fault where torch still compiles
    after the first half, or has given up."""
    counts, steps = [graphs for _, graphs, _ in rows], len(rows)
    compiled = sum(later > before for before, later in pairwise(counts)) + 1  # steps that did
    if compiled == steps:
        return f"compiled at each of {steps} steps", True
    if compiled > steps // 2:
        return f"compiled at {compiled} of {steps} steps, then torch gave up: the rest ran uncompiled", True
    if counts[-1] > counts[steps // 2]:
        return f"still compiling in the second half: {counts[-1]} graphs in {steps} steps", True
    return f"{counts[-1]} graph(s) in {steps} steps, none after step {counts.index(counts[-1]) + 1}", False


def recompile(cases):
    """Graphs of each step by case, as text. cases: {case: (rows, reason)}."""
    names = list(cases)
    lines = []
    for step, every in enumerate(zip(*(rows for rows, _ in cases.values()), strict=True), 1):
        lines.append((step, *(cell for tokens, graphs, spent in every for cell in (tokens, graphs, ms(spent)))))
    head = ("step", *(cell for name in names for cell in (name, "graphs", "ms")))
    words = [table(head, lines), ""]
    for name, (rows, reason) in cases.items():
        verdict, fault = recompiled(rows)
        words.append(f"{'FAULT ' if fault else 'sound '} {name}: {verdict}")
        if reason:
            words.append(f"       torch's reason: {reason}")
    words += [
        "",
        "Look at: torch._dynamo.utils.counters['stats']['unique_graphs'] after each step,",
        "or TORCH_LOGS=recompiles. Fix: dynamic shapes, or a few padded lengths.",
    ]
    return "\n".join(words)


def wrapped(words):
    """Lines of at most 74 characters, indented."""
    return textwrap.wrap(" ".join(words.split()), 74, initial_indent=" " * 7, subsequent_indent=" " * 7)


def slow_path(row):
    """True where a call of scaled_dot_product_attention ran torch's unfused kernel."""
    return any(name.endswith("_math") for name in row["kernels"])


def mask(rows):
    """One causal mask written in several ways, as text: what `measure.kernels_faults.slow_path` gives."""
    lines = [
        (name, ms(row["seconds"]), megabytes(row["saved"]), "yes" if row["flash"] else "NO", f"{row['error']:.0e}")
        for name, row in rows.items()
    ]
    head = ("the same causal mask as", "step, ms", "saved", "flash runs", "difference")
    words = [table(head, lines), ""]
    for name, row in rows.items():
        words.append(f"{'FAULT ' if slow_path(row) else 'sound '} {name}: {', '.join(row['kernels'])}")
        if row["reason"]:
            words += ["       why FlashAttention does not take it, in torch's words:", *wrapped(row["reason"])]
    words += [
        "",
        "Look at: the kernel's name in a profile. A job asserts it with",
        "sdpa_kernel(SDPBackend.FLASH_ATTENTION), which raises RuntimeError where",
        "FlashAttention cannot run, instead of silently taking another kernel.",
    ]
    return "\n".join(words)


def slower(rows):
    """The widths of {width: {way: seconds}} at which FP8 with its casts takes longer than bf16 (list)."""
    return [width for width, row in rows.items() if row["fp8 with casts"] > row["bf16"]]


def fp8(tokens, device, predicted, measured):
    """FP8 by width, and where it loses, as text."""
    words = [by_shape(tokens, predicted, measured, device), ""]
    found = {"predicted": predicted}
    if measured:
        found["measured"] = {width: {way: measured[width, way] for way in PRODUCTS} for width in predicted}
    for name, rows in found.items():
        lost = slower(rows)
        words.append(f"{name}: FP8 is slower at {', '.join(map(str, lost)) or 'no'} of these widths")
    words += [
        "",
        "FP8 halves the arithmetic, which grows with the cube of the width. The casts read",
        "and write every operand, which grows with its square, and are kernels of their own.",
        "Fix: leave small layers in bf16, or fuse the cast into the kernel before.",
    ]
    if not measured:
        words.append("Not measured: this device has no FP8 units.")
    return "\n".join(words)
