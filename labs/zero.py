"""Rung 05: ZeRO by hand, by ZeroRedundancyOptimizer and by fully_shard: every rank holds its shards of the states.

torchrun --nproc-per-node 2 labs/zero.py --save
torchrun --nproc-per-node 4 labs/zero.py --accumulation 4         stages 2 and 3 send in every pass
torchrun --nproc-per-node 4 labs/zero.py --optimizer muon         a shard of a matrix cannot be made orthogonal
torchrun --nproc-per-node 2 labs/zero.py --fault clip             each rank clips by its own shard's norm
torchrun --nproc-per-node 2 labs/zero.py --via accelerate         its DDP; it splits no state itself
torchrun --nproc-per-node 2 labs/zero.py --via deepspeed-2        where DeepSpeed is installed
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import statistics
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from scaleout.lab import fits, options, recording, report, session
from scaleout.lab import zero as lab_zero
from scaleout.measure import zero as measure_zero
from scaleout.measure import zero_faults, zero_muon, zero_seconds
from scaleout.parallel import parity, zero_deepspeed, zero_ways
from scaleout.records import profiles
from scaleout.spec import Recipe, total_parameters
from scaleout.timing import calibrated

WARMUP = 3
PARITY_STEPS = 3
PARITY_TOKENS = 128  # at most, of each sequence: every rank also runs the sequences of all ranks
TOLERANCE = 0.02  # of bytes held, sent and at the peak, and what the book promises
SMALL = 10**6  # bytes by TCP: below, what gloo says beside the messages counts
SIDE_BY_SIDE = [via for via in zero_ways.WAYS if via not in ("one", "accelerate")]
RESULTS = Path(__file__).resolve().parent / "results" / "zero"


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, and what to do with the result. Few tokens, so that states are most of what is held."""

    layers: int = options.number(4, "blocks")
    hidden: int = options.number(192, "width of the residual stream")
    heads: int = options.number(6, "attention heads")
    seq: int = options.number(64, "tokens a sequence")
    micro_batch: int = options.number(1, "sequences a rank and pass")
    accumulation: int = options.number(1, "passes a step, whose gradients add up", highest=1000)
    steps: int = options.number(8, "training steps", WARMUP + 2, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    clip: float | None = options.number(None, "largest norm of the gradient", 1e-9, None)
    via: str = options.choice(
        "stage-2",
        (*zero_ways.WAYS[1:], *zero_ways.DEEPSPEED),
        "the way whose steps are recorded; accelerate and deepspeed-N add one",
    )
    optimizer: str = options.choice("adamw", ("adamw", "muon"), "of the blocks' matrices; the rest has AdamW")
    fault: str | None = options.choice(None, ("clip",), "clip: each rank clips its shard by that shard's norm")
    machine: str | None = options.word(None, "profile by labs/calibrate.py, to predict seconds from")
    dataset: str | None = options.dataset()
    save: str | None = options.save("zero")


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=6, hidden=384, heads=8, seq=128, steps=12),
    # seven models side by side, each with its states: 20 layers would be 117 GB on one GPU
    "gpu": Options(layers=8, hidden=2048, heads=16, seq=2048, steps=20, lr=3e-4),
}


# --- the same as one process? -------------------------------------------------------------------------------


def short(s, o, text):
    """(options, batches of this rank, batches of all ranks together) of a few steps to compare by."""
    o = replace(o, seq=min(o.seq, PARITY_TOKENS), micro_batch=1)
    return o, *([session.batches(s, o, text, step, alone) for step in range(PARITY_STEPS)] for alone in (False, True))


def equality(s, o, text, vias):
    """{way: {what: largest relative error}} of losses, gradients, weights and both states of AdamW after a few steps
    against this process alone on all batches, in fp32."""
    o, batches, whole_batches = short(s, o, text)
    wanted, errors = _trained(s, o, "one", whole_batches), {}
    for via in vias:
        result = _trained(s, o, via, batches)
        pairs = zip(result.pop("losses"), wanted["losses"], strict=True)
        errors[via] = {"losses": max(abs(s.mean(f) / w - 1) for f, w in pairs)}
        errors[via] |= {kind: parity.worst(s, tensors, wanted[kind]) for kind, tensors in result.items()}
    return errors


def _trained(s, o, via, batches):
    """{"losses": of the steps, "gradients": of the first, "weights", "momentum", "variance": after the last}."""
    way = measure_zero.make(s, o, via)
    measure_zero.calm(way.optimizer)
    result = dict(zip(("losses", "gradients", "weights"), parity.trained(way, batches), strict=True))
    return result | {measure_zero.STATES[kind]: tensors for kind, tensors in way.states().items()}


def parity_checks(errors):
    """Checks of a Record."""
    return {
        f"{lab_zero.NAMES[via]}: {kind} equal one process": parity.check(error)
        for via, kinds in errors.items()
        for kind, error in kinds.items()
    }


# --- train, compare, record -----------------------------------------------------------------------------------


def byte_checks(rows, figures):
    """Checks of a Record: bytes held, sent and at the peak, within 2% of the prediction."""
    checks = {}
    for via, row in rows.items():
        for figure in (f for f in figures if f != "seconds" and {f} <= {*row["measured"]} & {*row["predicted"]}):
            wanted, seen = row["predicted"][figure], row["measured"][figure]
            if figure == "tcp" and seen < SMALL:
                continue
            checks[f"{lab_zero.NAMES[via]}: {figures[figure]} as predicted"] = parity.check(
                abs(wanted / seen - 1) if seen else wanted, TOLERANCE
            )
    return checks


def record(s, tier, o, timed, rows, figures, checks, notes):
    """The Record of this run."""
    prediction, measurement = report.pairs(rows, lab_zero.NAMES, figures)
    skipped = []
    if o.optimizer == "muon":
        skipped.append("prediction of seconds: of AdamW's steps only")
    elif profiles.find(o.machine, s.device.type, s.world) is None:
        skipped.append(lab_zero.NO_PROFILE)
    skipped += calibrated.lacking(profiles.find(o.machine, s.device.type, s.world))
    if s.world == 1:
        skipped.append("messages: one process sends nothing (torchrun --nproc-per-node 2)")
    if any(row["measured"].get("tcp", SMALL) < SMALL for row in rows.values()):
        skipped.append(f"check of bytes by TCP: below {SMALL / 1e6:g} MB gloo's own words count")
    if o.accumulation > 1:
        skipped.append("peaks: predicted for one pass a step")
    if o.via not in zero_ways.DEEPSPEED:
        skipped.append("DeepSpeed: not asked for (--via deepspeed-1, where the package is)")
    if o.via != "accelerate":
        skipped.append("Accelerate: not asked for (--via accelerate); it splits no state itself")
    return recording.record(
        s,
        "zero",
        tier,
        dataset=o.dataset,
        notes=notes,
        model=asdict(o.shape),
        recipe=asdict(Recipe(precision="fp32"))
        | {"optimizer": o.optimizer, "accumulation": o.accumulation, "clip": o.clip},
        effective_batch=o.micro_batch * s.world * o.accumulation,
        sequence_length=o.seq,
        precision="fp32",
        step_seconds=timed.seconds[o.via],
        warmup_steps=WARMUP,
        losses=timed.losses[o.via],
        peak_memory=session.allocator(s),
        prediction=prediction,
        measurement=measurement,
        checks=checks,
        skipped=skipped,
        series={f"seconds a step, {lab_zero.NAMES[via]}": samples for via, samples in timed.seconds.items()},
    )


def by_profile(s, o, rows):
    """Put the predicted seconds of a step beside those measured, where this machine has a profile."""
    profile = profiles.find(o.machine, s.device.type, s.world)
    for via in rows if profile else ():
        guess = zero_seconds.by_profile(profile, o, s.world, via)
        rows[via]["predicted"] |= {} if guess is None else {"seconds": guess}


def train(s, tier, o, text):
    """Check, train all ways in alternation, look at what they hold and send, record."""
    names = list(dict.fromkeys([*SIDE_BY_SIDE, o.via]))
    errors = equality(s, o, text, names)
    timed = measure_zero.Rounds(s, o, names, partial(session.batches, s, o, text))
    timed.alternate(o.steps)
    rows = timed.rows(WARMUP)
    by_profile(s, o, rows)
    checks = parity_checks(errors) | byte_checks(rows, lab_zero.FIGURES)
    notes = [f"{lab_zero.NAMES[via]}: {way.built}" for via, way in timed.ways.items()]
    r = record(s, tier, o, timed, rows, lab_zero.FIGURES, checks, notes)
    piece = 4 * total_parameters(o.shape) * (s.world - 1) / s.world
    finish(
        s,
        o,
        r,
        [*filter(None, [report.closing(rows)]), *notes],
        lab_zero.parity(errors),
        lab_zero.rank_states(rows),
        lab_zero.sent(rows, piece),
        lab_zero.steps(rows),
    )


def muon(s, tier, o, text):
    """The same model with Muon for its matrices: what each way makes of cut ones, and what mending that moves."""
    names = zero_ways.MUON
    rows = zero_muon.rows(*short(s, o, text), s)
    timed = measure_zero.Rounds(s, o, names[1:], partial(session.batches, s, o, text))
    timed.alternate(o.steps)
    for via in names[1:]:
        rows[via] |= {"loss": timed.losses[via][-1]}
        rows[via]["measured"]["seconds"] = statistics.median(timed.seconds[via][WARMUP:])
    errors = {via: rows[via]["errors"] for via in names[1:]}
    checks = parity_checks({via: errors[via] for via in zero_muon.RIGHT}) | byte_checks(rows, lab_zero.MUON_FIGURES)
    notes = [lab_zero.wrong(rows, via) for via in ("reshard", "rows")]
    r = record(s, tier, o, timed, rows, lab_zero.MUON_FIGURES, checks, notes)
    finish(s, o, r, notes, lab_zero.parity(errors), lab_zero.muon(rows), lab_zero.moved(rows))


def finish(s, o, r, notes, *tables):
    """Print, keep the Record, and exit with code 1 where a check failed."""
    failed = {name: check for name, check in r.checks.items() if not check["passed"]}
    s.say("\n" + "\n\n".join(tables))
    s.say(
        "\n".join(
            [
                "",
                *notes,
                f"ok     {len(r.checks) - len(failed)} of {len(r.checks)} checks: equal to one "
                f"process within {parity.TOLERANCE:g}, bytes within {TOLERANCE:.0%} of the prediction",
                *report.verdicts(failed, r.skipped, r.stalls, r.failures),
            ]
        )
    )
    recording.keep(s, r, o.save, RESULTS, named(o))
    recording.end(s, r.checks)


def named(o):
    """What the file of a Record ends with, where it is not the usual run's."""
    suffix = "-".join(word for word in (o.optimizer, o.via) if word not in ("adamw", *SIDE_BY_SIDE))
    return suffix or "torch"


def check(s, tier, o):
    """Refuse what could not work, before any work. ValueError, one line."""
    fits.check(s, o.shape)
    options.check_save(o.save, RESULTS)
    options.check_sound(o.save, o.fault)
    zero_deepspeed.refuse(o.via, o.accumulation)
    zero_ways.refuse(s, o.via)
    profiles.find(o.machine, s.device.type, s.world)  # refuse a wrong one before the work
    if o.fault:
        options.check_idle("--fault", o, TIERS[tier], ("machine", "steps"))
        zero_faults.refuse(s, o)
    if o.optimizer == "muon" and o.via not in zero_ways.MUON:
        raise ValueError(f"--optimizer muon with --via {o.via}: use one of {', '.join(zero_ways.MUON[1:])}")
    if o.optimizer == "muon" and (o.clip or o.accumulation > 1):
        raise ValueError("--optimizer muon is shown by itself: leave out --clip and --accumulation")
    if o.optimizer == "muon":
        options.check_idle("--optimizer muon", o, TIERS[tier], ("machine",))


def main(s, argv=None):
    """Train all ways with AdamW or with Muon, or a few steps with a fault."""
    tier, o = options.parse(TIERS, __doc__, argv)
    check(s, tier, o)
    text = session.dataset(o.dataset, o.seq)
    s.say(f"{recording.heading(s, o.shape)}, {o.accumulation} x {o.micro_batch} x {o.seq} tokens a rank and step")
    if o.fault:
        zero_faults.show(s, o, partial(session.batches, s, o, text))
    else:
        (muon if o.optimizer == "muon" else train)(s, tier, o, text)


if __name__ == "__main__":
    session.run(main)
