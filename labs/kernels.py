"""Rung 13: kernels. Attention by hand, in tiles and by torch's backends, fusion, FP8, and a block before and after.

python labs/kernels.py
torchrun --nproc-per-node 2 labs/kernels.py --save     each process has its share of the heads
python labs/kernels.py --mask prefix --precision bf16
python labs/kernels.py --fault recompile               also mask and fp8: found by counters, names and a roofline
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import statistics
from dataclasses import asdict, dataclass
from functools import cached_property, partial

import torch

from scaleout.lab import kernels as lab_kernels
from scaleout.lab import options, recording, runner, session
from scaleout.measure import (
    kernels_attention,
    kernels_block,
    kernels_faults,
    kernels_fp8,
    kernels_fusion,
)
from scaleout.parallel import kernels, kernels_ways, low
from scaleout.spec import Shape

PARITY_TOKENS, PARITY_TILE = 96, 64  # of the comparison with fp64: the last tile is not a whole one
MASKS = tuple(kernels.MASKS)
USUAL = "naive,checkpointed,tiled,sdpa,math,flex"
HALVES = ("fp16", "bf16")
OWN = "fp32", "prefix"  # a mask that no kernel has a flag for
NOT_ASKED = "not asked for (--compile)"
SMALLER = 0.85  # FP8's error with rotation, by that without: the least that counts as a gain


@dataclass(frozen=True)
class Options:
    """The sizes of each part, and what to do with the result."""

    seqs: str = options.word("128,512,1024", "sequences of the attention kernels", "N,N")
    head_sizes: str = options.word("32,64", "head sizes of the attention kernels", "N,N")
    heads: int = options.number(4, "heads of all processes", 1, 4096)
    batch: int = options.number(1, "sequences of a call", 1, 4096)
    mask: str = options.choice("causal", MASKS, "which keys a query may attend to")
    precision: str = options.choice("fp32", tuple(kernels_attention.TOLERANCES), "dtype of Q, K and V")
    ways: str = options.word(USUAL, f"kernels: of {', '.join(kernels_ways.KERNELS)}", "NAME,NAME")
    tile: int = options.number(128, "queries, and keys, of a tile by hand", 1, 4096)
    rounds: int = options.number(3, "samples of each time", 2, 1000)
    elements: int = options.number(2**22, "numbers of the chains that are fused", 64, 2**31)
    fp8_seq: int = options.number(1024, "tokens of FP8 attention, emulated", 128, 2**16)
    fp8_head: int = options.number(128, "its head size, a power of two", 2, 512)
    fp8_tokens: int = options.number(4096, "rows of FP8 matrix multiplications", 16, 2**20)
    fp8_widths: str = options.word("512,1024,2048,4096,8192", "widths of their square weights", "N,N")
    hidden: int = options.number(128, "width of the block", 2)
    block_heads: int = options.number(2, "heads of the block", 1, 4096)
    block_seq: int = options.number(256, "tokens per sequence of the block", 2, 2**20)
    micro_batch: int = options.number(2, "sequences of the block")
    compile: bool = options.flag("torch.compile too, where there is a compiler", True)
    seed: int = options.seed()
    fault: str | None = options.choice(
        None, tuple(lab_kernels.FAULTS), "; ".join(f"{name}: {words}" for name, words in lab_kernels.FAULTS.items())
    )
    save: str | None = options.save("kernels")

    @cached_property
    def lengths(self):
        """Tokens of the attention kernels, ascending."""
        return lab_kernels.numbers(self.seqs, "--seqs", 4, 2**20)

    @cached_property
    def head_dims(self):
        """Head sizes of the attention kernels, ascending."""
        return lab_kernels.numbers(self.head_sizes, "--head-sizes", 8, 512)

    @cached_property
    def fp8_sides(self):
        """Widths of the weights of FP8 matrix multiplications, ascending."""
        return lab_kernels.numbers(self.fp8_widths, "--fp8-widths", 16, 2**16)

    @cached_property
    def block_shape(self):
        """The model of one block whose step is timed."""
        return Shape(1, self.hidden, self.block_heads, 256, max_seq=self.block_seq)


TIERS = {
    "smoke": Options(),
    "cpu": Options(
        seqs="256,1024,4096",
        head_sizes="64,128",
        elements=2**25,
        hidden=512,
        block_heads=8,
        block_seq=1024,
    ),
    "gpu": Options(
        seqs="1024,2048,4096,8192",
        head_sizes="64,128",
        heads=32,
        batch=2,
        precision="bf16",
        ways=f"{USUAL},flash,efficient,cudnn,compiled",
        tile=1024,
        rounds=10,
        elements=2**28,
        fp8_seq=4096,
        fp8_widths="512,1024,2048,4096,8192,16384",
        hidden=4096,
        block_heads=32,
        block_seq=4096,
    ),
}


def chosen(s, o):
    """([kernel], [what is left out and why])."""
    wanted = list(kernels_ways.KERNELS) if o.ways == "all" else list(dict.fromkeys(["naive", *o.ways.split(",")]))
    unknown = [name for name in wanted if name not in kernels_ways.KERNELS]
    if unknown:
        raise ValueError(f"--ways {unknown[0]}: no such kernel: use all, or {', '.join(kernels_ways.KERNELS)}")
    dtype, head = low.DTYPES[o.precision], max(o.head_dims)
    lacks = {name: kernels_ways.refused(name, s.device, dtype, head, o.mask) for name in wanted}
    if "compiled" in lacks and not o.compile:
        lacks["compiled"] = NOT_ASKED
    return [name for name in wanted if not lacks[name]], [
        f"{kernels_ways.KERNELS[name].words}: {lack}" for name, lack in lacks.items() if lack
    ]


# --- the same numbers? ------------------------------------------------------------------------------------------------


def compare(lab, names):
    """Check outputs and gradients of every kernel against naive attention in fp64: with the chosen dtype and mask, in
    16 bits, and with a mask that no kernel has a flag for."""
    s, o, worst = lab.s, lab.o, {}
    head = min(o.head_dims)
    for precision, mask in dict.fromkeys([(o.precision, o.mask), *((half, "causal") for half in HALVES), OWN]):
        qkv = kernels_attention.draw(s, o, PARITY_TOKENS, head, precision)
        right = kernels_attention.exact(qkv, mask)
        for name in names:
            compiles_once = name != "compiled" or (precision, mask) == (o.precision, o.mask)
            if not compiles_once or kernels_ways.refused(name, s.device, low.DTYPES[precision], head, mask):
                continue
            kernel = kernels_ways.KERNELS[name]
            run = partial(kernels.tiled, tile=PARITY_TILE) if name == "tiled" else kernel.run
            measured = kernels_attention.errors(run, qkv, mask, right)
            words = f"{kernel.words}, {precision}: output{' and gradients' * (measured[1] is not None)} as fp64's"
            worst.setdefault(words, (precision, []))[1].extend(error for error in measured if error is not None)
    for words, (precision, errors) in worst.items():
        lab.check(words, s.largest(max(errors)), kernels_attention.TOLERANCES[precision])


def compare_ranks(lab):
    """Check that the ranks' heads together are what one process computes: attention never looks across heads."""
    s, o = lab.s, lab.o
    sizes = s, o, PARITY_TOKENS, min(o.head_dims), "fp32"
    mine, every = kernels_attention.draw(*sizes), kernels_attention.draw(*sizes, heads=o.heads)
    mask = kernels.MASKS[o.mask]
    parts = s.gathered(kernels.tiled(*mine, mask).detach().cpu())
    right = kernels.naive(*every, mask).detach().cpu()
    error = kernels_attention.distance(torch.cat(parts, dim=1), right.double())
    lab.check(f"heads of {s.world} processes together: output as one process's", error, 1e-5)


# --- measure ----------------------------------------------------------------------------------------------------------


def attention(lab, names):
    """Saved bytes and seconds of every kernel and size, with predictions."""
    s, o = lab.s, lab.o
    bench = kernels_attention.Bench(s, o, names)
    times, rates = bench.run()
    bytes_of = bench.saved()
    for head in o.head_dims:
        for seq in o.lengths:
            rows = {}
            for name in names:
                row = {"saved": bytes_of[name, seq, head]} if (name, seq, head) in bytes_of else {}
                for phase in kernels_attention.PHASES:
                    if samples := times.get((name, seq, head, phase)):
                        row[phase] = bench.predicted(rates, name, seq, head, phase), statistics.median(samples)
                rows[kernels_ways.KERNELS[name].words] = row
            keep(lab, rows, f"{seq} tokens, heads of {head}")
            s.say(lab_kernels.attention(rows, f"{seq:,} tokens, d {head}") + "\n")
    for name in names:
        pairs = [pair for (kernel, *_), pair in bytes_of.items() if kernel == name and pair[0]]
        if pairs:
            words = f"{kernels_ways.KERNELS[name].words}: saved bytes as predicted"
            lab.check_prediction(words, *map(list, zip(*pairs, strict=True)))
    lab.skip(
        *(f"{kernels_ways.KERNELS[n].words}, {q} tokens, d {d}: {reason}" for (n, q, d), reason in bench.failed.items())
    )


def keep(lab, rows, size):
    """Add the predictions and measurements of one size."""
    for name, row in rows.items():
        for figure, (predicted, measured) in row.items():
            words = f"{lab_kernels.FIGURES[figure]}, {name}, {size}"
            if predicted is None:
                lab.series[words] = [measured]
            else:
                lab.predict(words, predicted, measured)


def fusion(lab):
    """Three chains, one operation at a time and fused."""
    s, o = lab.s, lab.o
    lack = kernels_ways.no_compiler(s.device) if o.compile else NOT_ASKED
    seconds, predicted, wrong, failed = kernels_fusion.measure(s, o, list(kernels_fusion.CHAINS), not lack)
    words = {name: chain.words for name, chain in kernels_fusion.CHAINS.items()}
    spent = {key: statistics.median(samples) for key, samples in seconds.items()}
    for (chain, way), measured in spent.items():
        lab.predict(f"seconds, {words[chain]}, {lab_kernels.WAYS[way]}", predicted[chain, way], measured)
    for chain, name in words.items():
        error = max(error for (each, _), error in wrong.items() if each == chain)
        lab.check(f"{name}: the same numbers fused", s.largest(error), 1e-5)
    s.say(lab_kernels.fusion(spent, predicted, words) + "\n")
    lab.skip(*failed, *[f"fusion by torch.compile: {lack}"] * bool(lack))


def fp8(lab):
    """Errors of FP8 attention by ingredient, and on a GPU that has FP8 the seconds of its matrix multiplications."""
    s, o = lab.s, lab.o
    rows, half = kernels_fp8.errors(o, s.device)
    for name, row in rows.items():
        lab.predict(f"RMS error, FP8 attention, {lab_kernels.VARIANTS[name]}", row["predicted"], row["error"])
    lab.check(
        "FP8 attention: error with rotation, by that without", rows["both"]["error"] / rows["blocks"]["error"], SMALLER
    )
    s.say(lab_kernels.fp8_errors(rows, half) + "\n")
    if kernels_fp8.has_fp8(s.device):
        device, predicted, measured = kernels_faults.slow_fp8(s, o)
        for (width, way), seconds in measured.items():
            lab.predict(f"seconds, {way}, {o.fp8_tokens} tokens, width {width}", predicted[width][way], seconds)
        s.say(lab_kernels.by_shape(o.fp8_tokens, predicted, measured, device) + "\n")


def block(lab):
    """The Record's steps are those of the block with the last kernels that run here: (seconds, MFU, its peak)."""
    s, o = lab.s, lab.o
    names, left_out = kernels_block.able(o, s.device)
    rows, rate = kernels_block.measure(s, o, names)
    side = kernels_block.PEAK_SIDES[s.device.type]
    dtype = "bf16" if s.device.type == "cuda" else "fp32"
    source = f"{dtype} matmuls of side {side}, timed on {s.world} process(es)"
    s.say(lab_kernels.block(rows, kernels_block.WAYS, rate, source) + "\n")
    for way, row in rows.items():
        lab.series[f"seconds per step, block, {kernels_block.WAYS[way]}"] = row["samples"]
        lab.series[f"MFU, block, {kernels_block.WAYS[way]}"] = [row["mfu"]]
    lab.skip(*left_out)
    lab.notes.append(f"the recorded steps are forwards and backwards of one block: {kernels_block.WAYS[names[-1]]}")
    best = rows[names[-1]]
    return best["samples"], best["mfu"], {"flops_per_second": rate * s.world, "source": source}


def whole(lab):
    """Every part. Exit code 1 where a check failed."""
    s, o = lab.s, lab.o
    names, left_out = lab.chosen
    compare(lab, names)
    if s.world > 1:
        compare_ranks(lab)
    attention(lab, names)
    fusion(lab)
    fp8(lab)
    samples, mfu, peak = block(lab)
    if s.device.type == "cpu":
        lab.notes.append("seconds are those of one thread's processor time: waiting for a core is not in them")
    lab.skip(
        *left_out,
        "Accelerate: it chooses no kernel, the model's attn_implementation does",
        s.device.type == "cpu" and "FlashAttention 2 to 4, cuDNN, FP8 units and Triton: they need a GPU",
    )
    recipe = {"kernels": ", ".join(names), "mask": o.mask, "heads": o.heads, "batch": o.batch, "tile": o.tile}
    fields = {"model": asdict(o.block_shape), "sequence_length": o.block_seq, "mfu": mfu, "mfu_peak": peak}
    r = lab.record(samples, [], recipe, o.micro_batch * s.world, **fields)
    lab.report(r)
    lab.end()


def refuse(lab):
    """ValueError, in one line, for what could not work."""
    s, o = lab.s, lab.o
    lab.refuse(least=None)
    if o.heads % s.world:
        raise ValueError(f"--heads {o.heads}: {s.world} processes do not divide them: use a multiple of {s.world}")
    kernels_fp8.check(o)
    _ = o.lengths, o.head_dims, o.block_shape  # a wrong one is refused here
    if o.fault:
        lab.refuse_idle("--fault", "ways", "mask", "tile", "elements", "fp8_seq", "fp8_head", "hidden", "block_seq")


def main(s, argv=None):
    """The whole lab, or one fault."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv)
    refuse(lab)
    o = lab.o
    if s.device.type == "cpu":
        torch.set_num_threads(1)  # threads that wait for each other would count as time
        kernels_attention.keep_freed_memory()
    lab.chosen = chosen(s, o)
    s.say(f"{recording.device_name(s.device)}, {s.world} process(es), backend {s.backend}")
    s.say(f"{o.heads} heads, batch {o.batch}, {o.precision}, mask {o.mask}\n")
    if o.fault == "recompile":
        s.say(lab_kernels.recompile(kernels_faults.recompile(s, o)))
    elif o.fault == "mask":
        s.say(lab_kernels.mask(kernels_faults.slow_path(s, o)))
    elif o.fault == "fp8":
        device, predicted, measured = kernels_faults.slow_fp8(s, o)
        s.say(lab_kernels.fp8(o.fp8_tokens, device, predicted, measured))
    else:
        whole(lab)


if __name__ == "__main__":
    session.run(main)
