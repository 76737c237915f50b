"""Rung 09: recomputation by hand and by torch.utils.checkpoint: six budgets for what the blocks keep.

python labs/recompute.py
torchrun --nproc-per-node 2 labs/recompute.py --save
python labs/recompute.py --form llama --dropout 0.1
python labs/recompute.py --compile         one block under torch.compile's own budgets, beside the tiles
python labs/recompute.py --fault router    the loss is right, an expert's gradient is far off, nothing errors
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from scaleout.lab import corpus, fits, options, recording, report, session
from scaleout.lab import recompute as lab_recompute
from scaleout.measure import recompute as measure_recompute
from scaleout.measure import recompute_faults
from scaleout.memory import Sizes
from scaleout.parallel import parity
from scaleout.records import profiles
from scaleout.spec import DEVICES, MEASURED, PROGRAMS, Job, Layout, Recipe, Shape, cluster
from scaleout.timing import machine
from scaleout.timing import recompute as timing_recompute

WARMUP = 3
TOLERANCE = 0.02  # of the peak
PARITY_TOKENS = 128  # at most, of each sequence
CHOSEN_FOR = "h100-sxm"  # what the tiles are priced for where this machine has no profile
RESULTS = Path(__file__).resolve().parent / "results" / "recompute"
LLAMA = {"gated_mlp": True, "bias": False, "norm": "rmsnorm", "positions": "rotary", "tied_head": False}


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, and what to do with the result."""

    layers: int = options.number(3, "blocks")
    hidden: int = options.number(128, "width of the residual stream")
    heads: int = options.number(4, "attention heads")
    kv_heads: int | None = options.number(None, "key-value heads, where fewer: grouped-query attention")
    form: str = options.choice("gpt", ("gpt", "llama"), "which model: with layer norms, biases and a tied head, or not")
    attention: str = options.choice("sdpa", ("sdpa", "naive"), "kernel")
    seq: int = options.number(128, "tokens a sequence")
    micro_batch: int = options.number(4, "sequences a rank and step")
    dropout: float = options.number(0.0, "probability", 0, 0.99)
    steps: int = options.number(8, "training steps", WARMUP + 2, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    precision: str = options.choice("fp32", ("fp32", "autocast-bf16"), "dtypes")
    via: str = options.choice("torch", tuple(lab_recompute.VIAS), "the way whose steps are timed and recorded")
    compile: bool = options.flag("torch.compile's budgets for one block, and nothing else")
    fault: str | None = options.choice(
        None, tuple(lab_recompute.FAULTS), "; ".join(f"{name}: {words}" for name, words in lab_recompute.FAULTS.items())
    )
    machine: str | None = options.word(None, "profile by labs/calibrate.py, to price the tiles by")
    dataset: str | None = options.dataset()
    save: str | None = options.save("recompute")

    @cached_property
    def shape(self):
        """The transformer of these options, on bytes."""
        family = LLAMA if self.form == "llama" else {}
        return Shape(
            self.layers, self.hidden, self.heads, corpus.VOCABULARY, kv_heads=self.kv_heads, max_seq=self.seq, **family
        )

    @cached_property
    def recipe(self):
        """Its recipe, with everything kept."""
        return Recipe(self.precision, foreach=False, attention=self.attention, dropout=self.dropout)

    @cached_property
    def sizes(self):
        """What the pure model computes with."""
        return Sizes(self.shape, self.micro_batch, self.seq, self.recipe, Layout())


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=6, hidden=256, heads=8, seq=256, steps=12),
    # seven models side by side, each with its states: 20 layers would be 135 GB on one GPU
    "gpu": Options(
        layers=8,
        hidden=2048,
        heads=16,
        seq=2048,
        form="llama",
        steps=20,
        lr=3e-4,
        precision="autocast-bf16",
        dataset=corpus.LIBRARY,
    ),
}


def policies(s, o):
    """({share: Policy}, what they were priced for): of fewest seconds for each of six budgets."""
    profile = profiles.find(o.machine, s.device.type, s.world)
    device, runs = (
        (DEVICES[CHOSEN_FOR], PROGRAMS["eager"]) if profile is None else (machine.device_of(profile), MEASURED)
    )
    job = Job(o.shape, o.seq, device, cluster(1, 1), o.micro_batch, Layout(), o.recipe, runs)
    rank = machine.from_datasheet(job) if profile is None else machine.from_profiles(job, {1: profile})
    chosen = timing_recompute.budgets(job, rank, lab_recompute.SHARES)
    return dict(zip(lab_recompute.SHARES, chosen, strict=True)), (
        DEVICES[CHOSEN_FOR].name if profile is None else "this machine's profile"
    )


def one_batch(s, o, text, step):
    """(tokens, targets) of this rank in a step."""
    return session.batch(text, step, o.micro_batch, o.seq, s.rank, s.world, o.seed, s.device)


# --- the same gradients? ------------------------------------------------------------------------------------


def verdicts(s, rows, via):
    """Checks of a Record for one way: bytes and FLOPs as predicted, gradients equal to the last bit."""
    checks, words, cpu = {}, lab_recompute.VIAS[via], s.device.type == "cpu"
    for share, row in list(rows.items())[1:]:
        name = f"{words}, {lab_recompute.NAMES[share]}"
        # a GPU's kernels add in another order each time; on a CPU the second run is the first to the last bit
        checks[f"{name}: gradients as with everything kept"] = parity.check(
            s.largest(row["off"]), 0.0 if cpu else TOLERANCE
        )
        for figure, p in row["predicted"].items():
            m = row["measured"][figure]
            checks[f"{name}: {lab_recompute.FIGURES[figure]} as predicted"] = parity.check(
                s.largest(abs(p - m) / max(p, m, 1)), TOLERANCE
            )
    return checks


def equality(s, o, text, chosen):
    """Checks of a Record: N ranks under DDP, some tiles and all of them made again, against this process on all."""
    if s.world == 1:
        return {}
    o = replace(o, seq=min(o.seq, PARITY_TOKENS), micro_batch=1, precision="fp32", dropout=0.0)
    share = one_batch(s, o, text, 0)
    whole_batch = session.batch(text, 0, s.world, o.seq, seed=o.seed, device=s.device)
    everything = measure_recompute.make(s, o, chosen[1.0], "torch")
    wanted_loss, wanted = parity.loss_and_gradients(everything.model, *whole_batch)
    checks = {}
    for via in lab_recompute.VIAS:
        for budget in (0.4, 0.0):
            way = measure_recompute.Way(s, o, chosen[budget], via)
            loss, grads = parity.loss_and_gradients(way.training.model, *share, way.replicas)
            grads = dict(zip(wanted, grads.values(), strict=True))  # checkpointing renames what it wraps
            words = f"{lab_recompute.VIAS[via]}, {lab_recompute.NAMES[budget]}, {s.world} ranks"
            checks[f"{words}: loss equals one process"] = parity.check(abs(s.mean(loss) - wanted_loss) / wanted_loss)
            checks[f"{words}: gradients equal one process"] = parity.check(parity.worst(s, grads, wanted))
    return checks


# --- weigh, train, record -------------------------------------------------------------------------------------


def record(s, tier, o, rows, timed, checks, counts, notes):
    """The Record of this run."""
    prediction, measurement = {}, {}
    for via, results in rows.items():
        names = {share: f"{lab_recompute.NAMES[share]}, {lab_recompute.VIAS[via]}" for share in results}
        figures = report.pairs(results, names, lab_recompute.FIGURES)
        prediction |= figures[0]
        measurement |= figures[1]
    for share, n in counts.items():
        prediction[f"all-gathers a step, {lab_recompute.NAMES[share]}"] = 2 * o.layers + 1
        measurement[f"all-gathers a step, {lab_recompute.NAMES[share]}"] = n
    full = lab_recompute.SHARES[-1]
    return recording.record(
        s,
        "recompute",
        tier,
        dataset=o.dataset,
        notes=notes,
        model=asdict(o.shape),
        recipe=asdict(o.recipe) | {"recomputation": lab_recompute.NAMES[full]},
        effective_batch=o.micro_batch * s.world,
        sequence_length=o.seq,
        precision=o.precision,
        step_seconds=timed.seconds[full],
        warmup_steps=WARMUP,
        losses=timed.losses[full],
        peak_memory=session.allocator(s),
        prediction=prediction,
        measurement=measurement,
        checks=checks,
        skipped=skips(s),
        series={f"seconds a step, {lab_recompute.NAMES[share]}": samples for share, samples in timed.seconds.items()},
    )


def skips(s):
    """What this run leaves out, and why."""
    reasons = [
        "torch.compile's budgets: not asked for (--compile)",
        "Accelerate: its FSDP2 recomputes on GPUs only, and draws other random numbers in the second run "
        "(--fault random)",
    ]
    if s.world == 1:
        reasons.append("replicas and FSDP's gathers: one process sends nothing (torchrun --nproc-per-node 2)")
    return reasons


def train(s, tier, o, text):
    """Weigh six budgets in both ways, check, train, compare, record. Exit code 1 where a check failed."""
    chosen, chosen_for = policies(s, o)
    s.say(f"tiles priced for: {chosen_for}\n{lab_recompute.drops(chosen)}\n")
    batch, rows, checks = one_batch(s, o, text, 0), {}, equality(s, o, text, chosen)
    timed = measure_recompute.Rounds(s, o, chosen, lambda step: one_batch(s, o, text, step))
    timed.alternate(o.steps)
    for via in lab_recompute.VIAS:
        rows[via] = measure_recompute.six(s, o, chosen, via, batch)
        checks |= verdicts(s, rows[via], via)
    for share, seconds in timed.middles(WARMUP).items():
        rows[o.via][share]["measured"]["seconds"] = seconds
        rows[o.via][share]["predicted"]["seconds"] = timed.predicted(WARMUP)[share]
    counts = (
        {
            share: "".join(measure_recompute.messages(s, o, policy, batch)[:2]).count("G")
            for share, policy in chosen.items()
        }
        if s.world > 1
        else {}
    )
    for share, n in counts.items():
        checks[f"{lab_recompute.NAMES[share]}: no weight is gathered once more"] = parity.check(
            abs(n - 2 * o.layers - 1), 0.0
        )
    r = record(s, tier, o, rows, timed, checks, counts, [f"tiles priced for: {chosen_for}"])
    for via, results in rows.items():
        s.say(lab_recompute.budgets(results, lab_recompute.VIAS[via]) + "\n")
    if counts:
        s.say(lab_recompute.gathers(counts, 2 * o.layers + 1) + "\n")
    s.say(
        "\n".join(
            [
                report.closing(rows[o.via], lab_recompute.SHARES[:1]),
                *report.verdicts(r.checks, r.skipped, r.stalls, r.failures),
            ]
        )
    )
    recording.keep(s, r, o.save, RESULTS, o.via)
    recording.end(s, r.checks)


def refuse(s, tier, o):
    """ValueError, in one line, for what could not work."""
    if o.compile or o.fault:
        flag = "--compile" if o.compile else "--fault"
        options.check_idle(flag, o, TIERS[tier], ("steps", "lr", "via", "machine", "precision"))
    options.check_sound(o.save, o.fault)
    options.check_save(o.save, RESULTS)
    if o.compile and (s.world > 1 or o.save or o.fault):
        raise ValueError("--compile is shown by itself: leave out --save and --fault, and start it with python")
    if o.compile and o.attention == "naive":
        raise ValueError("--compile is held against the tiles of a fused kernel: leave out --attention naive")
    if o.compile and o.dropout:
        raise ValueError("--compile weighs a block without dropout: leave out --dropout")
    if o.fault == "random" and not o.dropout:
        raise ValueError("--fault random needs random numbers: add --dropout 0.1")


def main(s, argv=None):
    """Six budgets, or torch.compile's, or a fault."""
    tier, o = options.parse(TIERS, __doc__, argv)
    fits.check(s, o.shape)
    profiles.find(o.machine, s.device.type, s.world)  # refuse a wrong one before the work
    refuse(s, tier, o)
    text = session.dataset(o.dataset, o.seq)
    if o.compile:
        o = replace(o, precision="fp32")  # which one block is weighed in, whatever trains
    s.say(
        f"{recording.heading(s, o.shape)}, {o.precision}, {o.micro_batch} x {o.seq} tokens a rank and step, dropout "
        f"{o.dropout:g}"
    )
    batch = one_batch(s, o, text, 0)
    if o.compile:
        s.say("\n" + lab_recompute.compiled(measure_recompute.compiled(o, lab_recompute.BUDGETS, s.device)))
    elif o.fault == "router":
        torch.manual_seed(o.seed)
        recompute_faults.show_router(s, torch.randn(o.micro_batch, o.seq, o.hidden, device=s.device))
    elif o.fault == "random":
        recompute_faults.show_random(s, o, batch[0])
    else:
        train(s, tier, o, text)


if __name__ == "__main__":
    session.run(main)
