"""Rung 09: activation checkpointing by hand and by torch.utils.checkpoint, with six budgets for what blocks save.

python labs/recompute.py
torchrun --nproc-per-node 2 labs/recompute.py --save
python labs/recompute.py --form llama --dropout 0.1
python labs/recompute.py --compile         one block under torch.compile's own memory budgets
python labs/recompute.py --fault router    the loss is right, an expert's gradient is not, no error
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

from dataclasses import asdict, dataclass, replace
from functools import cached_property

import torch

from scaleout.lab import corpus, options, report, runner, session
from scaleout.lab import recompute as lab_recompute
from scaleout.measure import recompute as measure_recompute
from scaleout.measure import recompute_faults
from scaleout.memory import Sizes
from scaleout.parallel import parity
from scaleout.spec import DEVICES, MEASURED, PROGRAMS, Job, Layout, Recipe, cluster
from scaleout.timing import machine
from scaleout.timing import recompute as timing_recompute

WARMUP = 3
PARITY_TOKENS = 128  # at most, of each sequence
CHOSEN_FOR = "h100-sxm"  # what the tiles are priced for where this machine has no profile


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, and what to do with the result."""

    layers: int = options.number(3, "blocks")
    hidden: int = options.number(128, "width of the residual stream")
    heads: int = options.number(4, "attention heads")
    kv_heads: int | None = options.number(None, "key-value heads, where fewer: grouped-query attention")
    form: str = options.choice("gpt", ("gpt", "llama"), "which model: with layer norms, biases and a tied head, or not")
    attention: str = options.choice("sdpa", ("sdpa", "naive"), "kernel")
    seq: int = options.number(128, "tokens per sequence")
    micro_batch: int = options.number(4, "sequences per rank and step")
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
    machine: str | None = options.word(None, "profile by labs/calibrate.py, for the times to recompute")
    dataset: str | None = options.dataset()
    save: str | None = options.save("recompute")

    @cached_property
    def recipe(self):
        """Its recipe, with everything saved."""
        return Recipe(self.precision, foreach=False, attention=self.attention, dropout=self.dropout)

    @cached_property
    def sizes(self):
        """What the pure model computes with."""
        return Sizes(self.shape, self.micro_batch, self.seq, self.recipe, Layout())


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=6, hidden=256, heads=8, seq=256, steps=12),
    # seven models at once, each with its states: 20 layers would be 135 GB on one GPU
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


def policies(lab):
    """({share: Policy}, what they were priced for): of fewest seconds for each of six budgets."""
    o, profile = lab.o, lab.profile
    device, runs = (
        (DEVICES[CHOSEN_FOR], PROGRAMS["eager"]) if profile is None else (machine.device_of(profile), MEASURED)
    )
    job = Job(o.shape, o.seq, device, cluster(1, 1), o.micro_batch, Layout(), o.recipe, runs)
    rank = machine.from_datasheet(job) if profile is None else machine.from_profiles(job, {1: profile})
    chosen = timing_recompute.budgets(job, rank, lab_recompute.SHARES)
    return dict(zip(lab_recompute.SHARES, chosen, strict=True)), (
        DEVICES[CHOSEN_FOR].name if profile is None else "this machine's profile"
    )


# --- the same gradients? ------------------------------------------------------------------------------------


def compare(lab, rows, via):
    """Check one way: bytes and FLOPs as predicted, gradients equal to the last bit."""
    s, words = lab.s, lab_recompute.VIAS[via]
    # a GPU's kernels add in another order each time; on a CPU the second run is the first to the last bit
    tolerance = 0.0 if s.device.type == "cpu" else runner.BYTES
    for share, row in list(rows.items())[1:]:
        name = f"{words}, {lab.names[share]}"
        lab.check(f"{name}: gradients as with everything saved", s.largest(row["off"]), tolerance)
        for figure, p in row["predicted"].items():
            m = row["measured"][figure]
            error = s.largest(abs(p - m) / max(p, m, 1))
            lab.check(f"{name}: {lab_recompute.FIGURES[figure]} as predicted", error, runner.BYTES)


def equality(lab, chosen):
    """Check N ranks under DDP, with a part and with everything recomputed, against one process with all data."""
    s, o = lab.s, lab.short(PARITY_TOKENS, dropout=0.0)

    def trained(way):
        (batch,) = lab.batches(0, way == "one", o)
        if way == "one":
            model = measure_recompute.make(s, o, chosen[1.0], "torch").model
            loss, grads = parity.loss_and_gradients(model, *batch)
        else:
            via, budget = way
            way = measure_recompute.RecomputeWay(s, o, chosen[budget], via)
            loss, grads = parity.loss_and_gradients(way.training.model, *batch, way.replicas)
        return {"loss": [loss], "gradients": dict(enumerate(grads.values()))}  # checkpointing renames what it wraps

    ways = [(via, budget) for via in lab_recompute.VIAS for budget in (0.4, 0.0)]
    names = {(via, budget): f"{lab_recompute.VIAS[via]}, {lab.names[budget]}, {s.world} ranks" for via, budget in ways}
    lab.equality(trained, ways, names)


# --- weigh, train, record -------------------------------------------------------------------------------------


def skips(lab):
    """What this run leaves out, and why."""
    lab.skip(
        "torch.compile's budgets: not asked for (--compile)",
        "Accelerate: its FSDP2 recomputes on GPUs only, with other random numbers in the second run (--fault random)",
        lab.s.world == 1
        and "replicas and FSDP's gathers: one process does not communicate (torchrun --nproc-per-node 2)",
    )


def weigh(lab, chosen, timed):
    """{way: {share: {"predicted", "measured": {figure: number}}}} of six budgets in both ways, checked."""
    o, rows = lab.o, {}
    for via, words in lab_recompute.VIAS.items():
        rows[via] = measure_recompute.six(lab.s, o, chosen, via, lab.batches(0)[0])
        compare(lab, rows[via], via)
        if via == o.via:
            for share, seconds in timed.middles(WARMUP).items():
                rows[via][share]["measured"]["seconds"] = seconds
                rows[via][share]["predicted"]["seconds"] = timed.predicted(WARMUP)[share]
        names = {share: f"{lab.names[share]}, {words}" for share in chosen}
        lab.predict_ways(rows[via], lab_recompute.FIGURES, names)
    return rows


def count_gathers(lab, chosen):
    """{share: all-gathers of a step under FSDP}, checked: recomputation adds none."""
    s, o, counts = lab.s, lab.o, {}
    for share, policy in chosen.items():
        orders = measure_recompute.messages(s, o, policy, lab.batches(0)[0])[:2]
        counts[share] = "".join(orders).count("G")
        lab.check(f"{lab.names[share]}: no additional all-gather", abs(counts[share] - 2 * o.layers - 1), 0.0)
        lab.predict(f"all-gathers per step, {lab.names[share]}", 2 * o.layers + 1, counts[share])
    return counts


def train(lab):
    """Weigh six budgets in both ways, check, train, compare, record. Exit code 1 where a check failed."""
    s, o = lab.s, lab.o
    chosen, chosen_for = policies(lab)
    lab.notes.append(f"times to recompute are those of: {chosen_for}")
    s.say(f"{lab.notes[0]}\n{lab_recompute.drops(chosen)}\n")
    if s.world > 1:
        equality(lab, chosen)
    timed = measure_recompute.Rounds(s, o, chosen, lab.batches)
    timed.alternate(o.steps)
    rows = weigh(lab, chosen, timed)
    counts = count_gathers(lab, chosen) if s.world > 1 else {}
    skips(lab)
    full = lab_recompute.SHARES[-1]
    recipe = asdict(o.recipe) | {"recomputation": lab.names[full]}
    lab.series = {f"seconds per step, {lab.names[share]}": samples for share, samples in timed.seconds.items()}
    r = lab.record(timed.seconds[full], timed.losses[full], recipe, o.micro_batch * s.world)
    for via, budgets in rows.items():
        s.say(lab_recompute.budgets(budgets, lab_recompute.VIAS[via]) + "\n")
    if counts:
        s.say(lab_recompute.gathers(counts, 2 * o.layers + 1) + "\n")
    lab.report(r, report.closing(rows[o.via], lab_recompute.SHARES[:1]), way=o.via)
    lab.end()


def refuse(lab):
    """ValueError, in one line, for what could not work."""
    o = lab.o
    lab.refuse()
    if o.compile or o.fault:
        lab.refuse_idle("--compile" if o.compile else "--fault", "steps", "lr", "via", "machine", "precision")
    if o.compile and (lab.s.world > 1 or o.save or o.fault):
        raise ValueError("--compile runs by itself: leave out --save and --fault, and start it with python")
    if o.compile and o.attention == "naive":
        raise ValueError("--compile is compared with the tensors of a fused kernel: leave out --attention naive")
    if o.compile and o.dropout:
        raise ValueError("--compile measures a block without dropout: leave out --dropout")
    if o.fault == "random" and not o.dropout:
        raise ValueError("--fault random needs random numbers: add --dropout 0.1")


def main(s, argv=None):
    """Six budgets, or torch.compile's, or a fault."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv, names=lab_recompute.NAMES, warmup=WARMUP)
    refuse(lab)
    o = lab.o
    precision = "fp32" if o.compile else o.precision  # one block is weighed in fp32, whatever trains
    lab.begin(f"{precision}, {o.micro_batch} x {o.seq} tokens per rank and step, dropout {o.dropout:g}")
    if o.compile:
        o = replace(o, precision=precision)
        s.say("\n" + lab_recompute.compiled(measure_recompute.compiled(o, lab_recompute.BUDGETS, s.device)))
    elif o.fault == "router":
        torch.manual_seed(o.seed)
        recompute_faults.show_router(s, torch.randn(o.micro_batch, o.seq, o.hidden, device=s.device))
    elif o.fault == "random":
        recompute_faults.show_random(s, o, lab.batches(0)[0][0])
    else:
        train(lab)


if __name__ == "__main__":
    session.run(main)
