"""Rung 08: one model in fp32, bf16, fp16 with and without a loss scale, bf16 weights with and without fp32 copies, and
FP8: what each does to gradients, updates and losses, next to its prediction.

    python labs/precision.py
    python labs/precision.py --ways all --seeds 3 --save
    torchrun --nproc-per-node 2 labs/precision.py
    python labs/precision.py --histogram            gradients by part and power of two, and what fp16 does to them
    python labs/precision.py --fault overflow       a loss that is NaN; also underflow and stagnation: one that is flat
    torchrun --nproc-per-node 2 labs/precision.py --fault bad-rank
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import statistics
from dataclasses import asdict, dataclass

import torch

from scaleout.lab import options, runner, session
from scaleout.lab import precision as lab_precision
from scaleout.measure import matmul_rate, precision_faults, precision_runs
from scaleout.parallel import low, parity
from scaleout.parallel import precision as parallel_precision
from scaleout.spec import Recipe, flops

WARMUP = 2
WORDS = {name: kind.words for name, kind in parallel_precision.WAYS.items()}
USUAL = "fp32,bf16,fp16,fp16-scaled,bf16-weights,bf16-master,fp8,accelerate-bf16"
SHARES = 0.01  # of what is counted: predicted and measured shares lie this near
HALF_STEP = 2.0**-9  # of bf16, relative: two ways that differ by less do the same
GRADIENTS = 0.01  # relative: fp16's 2^-11 in every matmul, and errors that accumulate over the layers


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the ways, the step, and what to do with the result."""

    layers: int = options.number(2, "blocks")
    hidden: int = options.number(64, "width of the residual stream", 2)
    heads: int = options.number(4, "attention heads")
    seq: int = options.number(64, "tokens per sequence")
    micro_batch: int = options.number(2, "sequences of a rank's step")
    ways: str = options.word(USUAL, "which: all, or names", "NAME,NAME")
    steps: int = options.number(24, "training steps", lab_precision.LAST, 10**6)
    seeds: int = options.number(2, "runs of each way, with other weights and batches", highest=100)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    growth_interval: int = options.number(8, "good steps after which the loss scale doubles (torch's own: 2,000)")
    seed: int = options.seed()
    via: str = options.choice("fp32", tuple(WORDS), "the way whose steps are recorded")
    compile: bool = options.flag("blocks by torch.compile")
    histogram: bool = options.flag("print the gradients by part and power of two")
    fault: str | None = options.choice(
        None,
        tuple(precision_faults.FAULTS),
        "; ".join(f"{name}: {one.words}" for name, one in precision_faults.FAULTS.items()),
    )
    dataset: str | None = options.dataset()
    save: str | None = options.save("precision")


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=4, hidden=128, seq=128, micro_batch=4, steps=48, lr=5e-4, ways=USUAL + ",mxfp8,nvfp4"),
    "gpu": Options(
        layers=20,
        hidden=2048,
        heads=16,
        seq=2048,
        micro_batch=4,
        steps=20,
        seeds=1,
        lr=3e-4,
        ways="fp32,bf16,fp16,fp16-scaled,bf16-weights,bf16-master,torchao,accelerate-bf16,accelerate-fp16",
        via="bf16",
        compile=True,
    ),
}


class Effort:
    """How long matmuls are timed for the peak."""

    largest_matrix, seconds = 8192, 1.0


def chosen(s, o):
    """([way], [what is left out and why]). ValueError for an unknown one, or where the recorded one cannot run."""
    names = list(WORDS) if o.ways == "all" else list(dict.fromkeys(["fp32", *o.ways.split(","), o.via]))
    lacks = {
        name: parallel_precision.refused(s, name) or parallel_precision.misfit(name, o.hidden, o.micro_batch * o.seq)
        for name in names
    }
    if lacks[o.via]:
        raise ValueError(f"--via {o.via}: {lacks[o.via]}")
    return [name for name in names if not lacks[name]], [f"{WORDS[n]}: {lack}" for n, lack in lacks.items() if lack]


def batches(lab):
    """This rank's batch by seed and step."""
    s, o = lab.s, lab.o
    return lambda seed, step: session.batch(lab.text, step, o.micro_batch, o.seq, s.rank, s.world, seed, s.device)


def compare(lab, exact, rows, runs):
    """Add what was predicted of gradients, loss scales and updates next to what was measured, and check it."""

    def pair(name, predicted, measured, tolerance=None):
        lab.predict(name, predicted, measured)
        if tolerance is not None:
            lab.check(name, abs(predicted - measured), tolerance)

    for name, row in rows.items():
        if parallel_precision.WAYS[name].cast and row["zero"] is not None:
            pair(f"share of gradients that are zero, {WORDS[name]}", row["predicted"], row["zero"], SHARES)
    if "fp16-scaled" in runs:
        steps, run = precision_runs.predicted_scales(lab.o, exact), runs["fp16-scaled"][0]
        pair("loss scale after the last step", steps[-1].after, run.scale)
        pair("steps skipped", sum(step.skipped for step in steps), run.skipped)
        error = rows["fp16-scaled"]["errors"]["all"]
        lab.check("gradient of fp16 with a loss scale, unscaled, as fp32's", error, GRADIENTS)
    for name, seeds in runs.items():
        if seeds[0].stuck:
            pair(f"share of weights that an update does not change, {WORDS[name]}", *seeds[0].stuck, SHARES)
    if {"bf16", "accelerate-bf16"} <= set(runs):
        pairs = zip(runs["bf16"], runs["accelerate-bf16"], strict=True)
        distance = max(parity.worst_loss(mine.losses, theirs.losses) for mine, theirs in pairs)
        lab.check("Accelerate's losses are torch.amp's, bf16", distance, HALF_STEP)


def utilization(s, o, run):
    """(MFU, its peak) of the recorded way on GPUs; (None, None) on a CPU."""
    if s.device.type != "cuda":
        return None, None
    dtype = parallel_precision.WAYS[o.via].cast or ("fp32" if o.via == "fp32" else "bf16")
    rate, side = matmul_rate(s, low.DTYPES[dtype], Effort)
    work = flops(o.shape, o.micro_batch, o.seq)
    spent = statistics.median(run.seconds[WARMUP:])
    peak = {
        "flops_per_second": rate * s.world,
        "source": f"{dtype} matrix multiplications of side {side} on {s.world} process(es), timed in this run",
    }
    return (work["forward"] + work["backward"]) / spent / rate, peak


def series(o, exact, rows, runs):
    """What a Record keeps step by step: losses and seconds of each way, and the gradients that predict them."""
    kept_series = {
        f"loss, {WORDS[name]}, seed {o.seed + i}": run.losses
        for name, seeds in runs.items()
        for i, run in enumerate(seeds)
        if all(map(torch.isfinite, torch.tensor(run.losses)))
    }
    kept_series |= {f"seconds per step, {WORDS[name]}": seeds[0].seconds for name, seeds in runs.items()}
    kept_series |= {"largest gradient of 16-bit matmuls, fp32": exact.tops} | lab_precision.series_of(exact.moments)
    if "fp16-scaled" in runs:
        kept_series["loss scale, fp16 matmuls, loss scale"] = runs["fp16-scaled"][0].scales
    return kept_series | {
        f"relative error of gradients by part, {WORDS[name]}": [*row["errors"].values()] for name, row in rows.items()
    }


def record(lab, exact, rows, runs):
    """The Record of this run."""
    s, o, run = lab.s, lab.o, runs[lab.o.via][0]
    compare(lab, exact, rows, runs)
    mfu, peak = utilization(s, o, run)
    lab.series = series(o, exact, rows, runs)
    lab.notes.append(f"gradients' errors are of {', then '.join(rows['fp32']['errors'])}")
    lab.notes += [f"{name}: {seeds[0].built}" for name, seeds in runs.items()]
    recipe = asdict(Recipe(precision="fp32")) | {
        "ways": ", ".join(runs),
        "seeds": o.seeds,
        "learning rate": o.lr,
        "growth interval": o.growth_interval,
        "compile": o.compile,
    }
    batch = o.micro_batch * s.world
    return lab.record(run.seconds, run.losses, recipe, batch, precision=o.via, mfu=mfu, mfu_peak=peak)


def show_octaves(s, exact):
    """--histogram: the gradients by part and power of two."""
    parts = exact.moments["last step"]["activations"].items()
    s.say("\n".join(lab_precision.octaves(h, f"gradients of activations, {part}") for part, h in parts) + "\n")


def whole(lab):
    """One step of every way from the same weights, then training. Exit code 1 where a check failed."""
    s, o = lab.s, lab.o
    names, left_out = chosen(s, o)
    batch = batches(lab)
    exact = precision_runs.reference(s, o, batch)
    rows = precision_runs.compare(s, o, names, exact)
    s.say(f"\n{lab_precision.one_step(rows, WORDS)}\n")
    if o.histogram:
        show_octaves(s, exact)
    runs = {name: [precision_runs.train(s, o, name, o.seed + i, batch) for i in range(o.seeds)] for name in names}
    s.say(f"{lab_precision.training(runs, WORDS)}\n{lab_precision.spread(runs)}\n")
    if "fp16-scaled" in runs:
        s.say(lab_precision.scales(precision_runs.predicted_scales(o, exact), runs["fp16-scaled"][0]) + "\n")
    lab.skip(*left_out)
    if s.device.type == "cuda":
        s.say(lab_precision.seconds(runs, WORDS, o.micro_batch * o.seq * s.world, WARMUP) + "\n")
    else:
        lab.skip(
            "speed and MFU: a CPU does 16-bit matmuls slowly or by conversion; the other numbers hold on any device"
        )
    r = record(lab, exact, rows, runs)
    built = (f"built: {name}: {seeds[0].built}" for name, seeds in runs.items())
    lab.report(r, *built, way="torch" if o.via in ("fp32", "bf16") else o.via)
    lab.end()


def refuse(lab):
    """Refuse what could not work, before any work. ValueError, one line."""
    lab.refuse()
    chosen(lab.s, lab.o)
    if lab.o.fault:
        idle = ("histogram", "compile", "ways", "via", "steps", "seeds", "lr", "growth_interval")
        lab.refuse_idle("--fault", *idle)
        precision_faults.refuse(lab.s, lab.o.fault)


def main(s, argv=None):
    """The whole lab, or one fault."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv, warmup=WARMUP)
    refuse(lab)
    o = lab.o
    lab.begin(f"{o.micro_batch * s.world} x {o.seq} tokens per step, {o.seeds} seed(s)")
    if o.fault:
        precision_faults.show(s, o, o.fault, batches(lab)(o.seed, 0))
    else:
        whole(lab)


if __name__ == "__main__":
    session.run(main)
