"""Rung 05: ZeRO by hand, with ZeroRedundancyOptimizer and with fully_shard: every rank stores its shards of the states.

torchrun --nproc-per-node 2 labs/zero.py --save
torchrun --nproc-per-node 4 labs/zero.py --accumulation 4         stages 2 and 3 communicate in each micro-batch
torchrun --nproc-per-node 4 labs/zero.py --optimizer muon         a shard of a matrix cannot be orthogonalized
torchrun --nproc-per-node 2 labs/zero.py --fault clip             each rank clips by its own shard's norm
torchrun --nproc-per-node 2 labs/zero.py --via accelerate         its DDP; it shards no state itself
torchrun --nproc-per-node 2 labs/zero.py --via deepspeed-2        where DeepSpeed is installed
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import statistics
from dataclasses import asdict, dataclass

from scaleout.lab import options, report, runner, session
from scaleout.lab import zero as lab_zero
from scaleout.measure import zero as measure_zero
from scaleout.measure import zero_faults, zero_muon, zero_seconds
from scaleout.parallel import parity, zero_deepspeed, zero_ways
from scaleout.spec import Recipe, total_parameters
from scaleout.timing import calibrated

WARMUP = 3
PARITY_STEPS = 3
PARITY_TOKENS = 128  # at most, per sequence: every rank also runs the sequences of all ranks
SMALL = 10**6  # bytes by TCP: below, gloo's own headers count
SIDE_BY_SIDE = [via for via in zero_ways.WAYS if via not in ("one", "accelerate")]


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, and what to do with the result. Few tokens, so that states are most of the memory."""

    layers: int = options.number(4, "blocks")
    hidden: int = options.number(192, "width of the residual stream")
    heads: int = options.number(6, "attention heads")
    seq: int = options.number(64, "tokens per sequence")
    micro_batch: int = options.number(1, "sequences per rank and micro-batch")
    accumulation: int = options.number(1, "micro-batches per step (gradient accumulation)", highest=1000)
    steps: int = options.number(8, "training steps", WARMUP + 2, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    clip: float | None = options.number(None, "largest norm of the gradient", 1e-9, None)
    via: str = options.choice(
        "stage-2",
        (*zero_ways.WAYS[1:], *zero_ways.DEEPSPEED),
        "the implementation whose steps are recorded; accelerate and deepspeed-N add one",
    )
    optimizer: str = options.choice("adamw", ("adamw", "muon"), "for the blocks' matrices; the rest uses AdamW")
    fault: str | None = options.choice(None, ("clip",), "clip: each rank clips by the norm of its own shard")
    machine: str | None = options.word(None, "profile by labs/calibrate.py, to predict seconds from")
    dataset: str | None = options.dataset()
    save: str | None = options.save("zero")


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=6, hidden=384, heads=8, seq=128, steps=12),
    # seven models at once, each with its states: 20 layers would be 117 GB on one GPU
    "gpu": Options(layers=8, hidden=2048, heads=16, seq=2048, steps=20, lr=3e-4),
}


# --- the same as one process? -------------------------------------------------------------------------------


def short(lab):
    """(options, batches of this rank, batches of all ranks together) of a few steps to compare by."""
    o = lab.short(PARITY_TOKENS)
    return o, *([lab.batches(step, alone, o) for step in range(PARITY_STEPS)] for alone in (False, True))


def equality(lab, vias):
    """{way: {what: largest relative error}} of losses, gradients, weights and both states of AdamW after a few steps
    against this process alone on all batches, in fp32."""
    o, batches, whole_batches = short(lab)

    def trained(via):
        way = measure_zero.make(lab.s, o, via)
        measure_zero.calm(way.optimizer)
        result = parity.trained(way, whole_batches if via == "one" else batches)
        return result | {measure_zero.STATES[kind]: tensors for kind, tensors in way.states().items()}

    return lab.equality(trained, vias)


# --- train, compare, record -----------------------------------------------------------------------------------


def byte_checks(lab, rows, figures):
    """Check the bytes stored, sent and at the peak, within 2% of the prediction."""
    for via, row in rows.items():
        for figure in (f for f in figures if f != "seconds" and {f} <= {*row["measured"]} & {*row["predicted"]}):
            wanted, seen = row["predicted"][figure], row["measured"][figure]
            if figure != "tcp" or seen >= SMALL:
                lab.check_prediction(f"{lab.names[via]}: {figures[figure]} as predicted", wanted, seen)


def skips(lab, rows):
    """What this run skips, and why."""
    o = lab.o
    lab.skip(
        lab.s.world == 1 and "communication: one process sends nothing (torchrun --nproc-per-node 2)",
        any(row["measured"].get("tcp", SMALL) < SMALL for row in rows.values())
        and f"check of bytes by TCP: below {SMALL / 1e6:g} MB gloo's own headers count",
        o.accumulation > 1 and "peaks: predicted for one micro-batch per step",
        o.via not in zero_ways.DEEPSPEED and "DeepSpeed: not asked for (--via deepspeed-1, if it is installed)",
        o.via != "accelerate" and "Accelerate: not asked for (--via accelerate); it shards no state itself",
    )


def train(lab):
    """Check, train all implementations in alternation, measure their states and communication, record."""
    s, o = lab.s, lab.o
    names = list(dict.fromkeys([*SIDE_BY_SIDE, o.via]))
    errors = equality(lab, names)
    timed = measure_zero.Rounds(s, o, names, lab.batches)
    timed.alternate(o.steps)
    rows = timed.rows(WARMUP)
    guesses = lab.by_profile(lambda profile, via: zero_seconds.by_profile(profile, o, s.world, via), rows)
    for via, seconds in guesses.items():
        rows[via]["predicted"]["seconds"] = seconds
    byte_checks(lab, rows, lab_zero.FIGURES)
    lab.note(timed.ways)
    piece = 4 * total_parameters(o.shape) * (s.world - 1) / s.world
    tables = lab_zero.parity(errors), lab_zero.rank_states(rows), lab_zero.sent(rows, piece), lab_zero.steps(rows)
    finish(lab, timed, rows, lab_zero.FIGURES, [*filter(None, [report.closing(rows)]), *lab.notes], tables)


def muon(lab):
    """The same model with Muon for its matrices: what happens to sharded ones, and what the fix communicates."""
    s, o, names = lab.s, lab.o, zero_ways.MUON
    rows = zero_muon.rows(*short(lab), s)
    timed = measure_zero.Rounds(s, o, names[1:], lab.batches)
    timed.alternate(o.steps)
    for via in names[1:]:
        rows[via] |= {"loss": timed.losses[via][-1]}
        rows[via]["measured"]["seconds"] = statistics.median(timed.seconds[via][WARMUP:])
    errors = {via: rows[via]["errors"] for via in names[1:]}
    lab.equal({via: errors[via] for via in zero_muon.RIGHT})
    byte_checks(lab, rows, lab_zero.MUON_FIGURES)
    lab.notes += [lab_zero.wrong(rows, via) for via in ("reshard", "rows")]
    lab.skip("prediction of step time: only for AdamW", *calibrated.lacking(lab.profile))
    tables = lab_zero.parity(errors), lab_zero.muon(rows), lab_zero.moved(rows)
    finish(lab, timed, rows, lab_zero.MUON_FIGURES, lab.notes, tables)


def finish(lab, timed, rows, figures, lines, tables):
    """Record, print, save, and exit with code 1 if a check failed."""
    o = lab.o
    lab.predict_ways(rows, figures)
    skips(lab, rows)
    recipe = asdict(Recipe("fp32")) | {"optimizer": o.optimizer, "accumulation": o.accumulation, "clip": o.clip}
    batch = o.micro_batch * lab.s.world * o.accumulation
    r = lab.record(timed.seconds, timed.losses, recipe, batch, precision="fp32")
    failed = {name: check for name, check in r.checks.items() if not check["passed"]}
    lab.s.say("\n" + "\n\n".join(tables) + "\n")
    verdict = (
        f"ok     {len(r.checks) - len(failed)} of {len(r.checks)} checks: equal to one process within "
        f"{parity.TOLERANCE:g}, bytes within {runner.BYTES:.0%} of the prediction"
    )
    # the end of the file's name, if it is not the usual run
    suffix = "-".join(word for word in (o.optimizer, o.via) if word not in ("adamw", *SIDE_BY_SIDE))
    lab.report(r, *lines, verdict, checks=failed, way=suffix or "torch")
    lab.end()


def refuse(lab):
    """Refuse what cannot work, before any work. ValueError, one line."""
    s, o = lab.s, lab.o
    lab.refuse()
    zero_deepspeed.refuse(o.via, o.accumulation)
    zero_ways.refuse(s, o.via)
    if o.fault:
        lab.refuse_idle("--fault", "machine", "steps")
        zero_faults.refuse(s, o)
    if o.optimizer == "muon" and o.via not in zero_ways.MUON:
        raise ValueError(f"--optimizer muon with --via {o.via}: use one of {', '.join(zero_ways.MUON[1:])}")
    if o.optimizer == "muon" and (o.clip or o.accumulation > 1):
        raise ValueError("--optimizer muon runs by itself: leave out --clip and --accumulation")
    if o.optimizer == "muon":
        lab.refuse_idle("--optimizer muon", "machine")


def main(s, argv=None):
    """Train all implementations with AdamW or with Muon, or a few steps with a fault."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv, names=lab_zero.NAMES, warmup=WARMUP)
    refuse(lab)
    o = lab.o
    lab.begin(f"{o.accumulation} x {o.micro_batch} x {o.seq} tokens per rank and step")
    if o.fault:
        zero_faults.show(s, o, lab.batches)
    else:
        (muon if o.optimizer == "muon" else train)(lab)


if __name__ == "__main__":
    session.run(main)
