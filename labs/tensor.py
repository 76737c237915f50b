"""Rung 03: tensor parallelism by hand and by parallelize_module: every rank holds a part of every matrix.

torchrun --nproc-per-node 2 labs/tensor.py --save
torchrun --nproc-per-node 4 labs/tensor.py --sequence-parallel --form llama --kv-heads 2
torchrun --nproc-per-node 2 labs/tensor.py --fault no-backward-reduce      losses agree at step 1, gradients do not
torchrun --nproc-per-node 4 labs/tensor.py --kv-heads 2 --fault kv-copies
sudo .venv/bin/python labs/tensor.py --link 1000,200       two hosts instead of one: starts torchrun itself
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scaleout.lab import corpus, fits, hosts, nodes, options, recording, report, session, tensor_link
from scaleout.lab import tensor as lab_tensor
from scaleout.measure import tensor as measure_tensor
from scaleout.measure import tensor_faults
from scaleout.parallel import parity, tensor_ways
from scaleout.records import profiles, results
from scaleout.spec import Recipe, Shape, slices, total_parameters
from scaleout.timing import calibrated

WARMUP = 3
PARITY_STEPS = 3
PARITY_TOKENS = 128  # at most, of each sequence
PARITY_RATE = 0.1  # of SGD with momentum: AdamW divides a gradient by its own size, rounding too
HOSTS = 2  # of --link
LINK_STEPS, LINK_ROUNDS = 2, 3
LINK_BATCH = 4  # times --micro-batch: what tensor parallelism sends grows with the tokens, gradients do not
RESULTS = Path(__file__).resolve().parent / "results" / "tensor"
LLAMA = {"gated_mlp": True, "bias": False, "norm": "rmsnorm", "positions": "rotary", "tied_head": False}


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, how it is shared, and what to do with the result."""

    layers: int = options.number(4, "blocks")
    hidden: int = options.number(160, "width of the residual stream", 2)
    heads: int = options.number(8, "attention heads")
    kv_heads: int | None = options.number(None, "key-value heads, where fewer: grouped-query attention")
    form: str = options.choice("gpt", ("gpt", "llama"), "which model: with layer norms, biases and a tied head, or not")
    seq: int = options.number(128, "tokens a sequence")
    micro_batch: int = options.number(4, "sequences a step, the same on every rank")
    sequence_parallel: bool = options.flag("the ways with sequence parallelism too")
    steps: int = options.number(8, "training steps", WARMUP + 2, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    precision: str = options.choice("fp32", ("fp32", "autocast-bf16"), "dtypes")
    via: str = options.choice("hand", ("hand", "torch", "accelerate"), "the way whose steps are recorded")
    fault: str | None = options.choice(
        None, tuple(lab_tensor.FAULTS), "; ".join(f"{name}: {words}" for name, words in lab_tensor.FAULTS.items())
    )
    link: str | None = options.word(
        None, "steps over a link between two hosts, of so many Mbit/s, beside DDP's", "N,N", const="1000,200"
    )
    machine: str | None = options.word(None, "profile by labs/calibrate.py")
    dataset: str | None = options.dataset()
    save: str | None = options.save("tensor")

    @property
    def shape(self):
        """The transformer of these options, on bytes."""
        family = LLAMA if self.form == "llama" else {}
        return Shape(
            self.layers, self.hidden, self.heads, corpus.VOCABULARY, kv_heads=self.kv_heads, max_seq=self.seq, **family
        )


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=6, hidden=256, seq=256, steps=12),
    "gpu": Options(layers=20, hidden=2048, heads=16, seq=2048, steps=20, lr=3e-4, precision="autocast-bf16"),
}


def one_batch(s, o, text, step):
    """(tokens, targets) of a step, the same on every rank."""
    return session.batch(text, step, o.micro_batch, o.seq, seed=o.seed, device=s.device)


# --- the same as one process? -------------------------------------------------------------------------------


def equality(s, o, text, names):
    """Checks of a Record: losses and weights of a few steps of momentum SGD and the gradients of the first against this
    process alone, in fp32."""
    checks, o = {}, replace(o, seq=min(o.seq, PARITY_TOKENS), micro_batch=1, precision="fp32")
    settings = {"optimizer": "momentum", "rate": PARITY_RATE}
    batches = [one_batch(s, o, text, step) for step in range(PARITY_STEPS)]
    wanted = parity.trained(measure_tensor.make(s, o, "one", **settings), batches)
    for name in names:
        way = measure_tensor.make(s, o, name, **settings)
        result, words = parity.trained(way, batches), lab_tensor.NAMES[name]
        losses = max(abs(f - w) / w for f, w in zip(result[0], wanted[0], strict=True))
        checks[f"{words}: losses equal one process"] = parity.check(s.largest(losses))
        for kind, f, w in (("gradients", result[1], wanted[1]), ("weights", result[2], wanted[2])):
            checks[f"{words}: {kind} equal one process"] = parity.check(parity.worst(s, f, w))
    return checks


# --- train, compare, record -----------------------------------------------------------------------------------


def count_checks(rows):
    """Checks of a Record: collectives of each phase, as CommDebugMode counted them, and bytes kept."""
    checks = {}
    for name, row in rows.items():
        error = sum(
            abs(row["counts"][phase].get(kind, 0) - row["wanted"][phase].get(kind, 0))
            for phase in row["wanted"]
            for kind in row["wanted"][phase] | row["counts"][phase]
        )
        checks[f"{lab_tensor.NAMES[name]}: collectives as predicted"] = parity.check(error, 0.0)
        if "kept" in row["measured"]:
            error = abs(row["predicted"]["kept"] / row["measured"]["kept"] - 1)
            checks[f"{lab_tensor.NAMES[name]}: bytes kept as predicted"] = parity.check(error, 0.0)
    return checks


def by_profile(s, o, rows):
    """{way by hand: seconds of its step by the machine's profile}; {} where there is none."""
    profile = profiles.find(o.machine, s.device.type, s.world)
    return (
        {
            name: measure_tensor.by_profile(profile, o, s.world, lab_tensor.parts(name)[1])
            for name in rows
            if name.startswith("hand")
        }
        if profile
        else {}
    )


def record(s, tier, o, timed, rows, checks, notes, guesses):
    """The Record of this run."""
    prediction, measurement = report.pairs(rows, lab_tensor.NAMES, lab_tensor.FIGURES)
    for name, seconds in guesses.items():
        figure = f"seconds a step by the machine's profile, {lab_tensor.NAMES[name]}"
        prediction[figure], measurement[figure] = seconds, rows[name]["measured"]["seconds"]
    skipped = skips(s, o, rows) + (
        []
        if guesses
        else ["seconds by the machine's profile: there is none (labs/calibrate.py at this number of processes)"]
    )
    skipped += calibrated.lacking(profiles.find(o.machine, s.device.type, s.world))
    return recording.record(
        s,
        "tensor",
        tier,
        dataset=o.dataset,
        notes=notes,
        model=asdict(o.shape),
        recipe=asdict(Recipe(precision=o.precision, foreach=False))
        | {"tp": s.world, "sequence_parallel": o.sequence_parallel},
        effective_batch=o.micro_batch,
        sequence_length=o.seq,
        precision=o.precision,
        step_seconds=timed.seconds[o.via],
        warmup_steps=WARMUP,
        losses=timed.losses[o.via],
        peak_memory=session.allocator(s),
        prediction=prediction,
        measurement=measurement,
        checks=checks,
        skipped=skipped,
        series={f"seconds a step, {lab_tensor.NAMES[name]}": samples for name, samples in timed.seconds.items()},
    )


def skips(s, o, names):
    """What this run leaves out, and why."""
    skipped = []
    if s.world == 1:
        skipped.append("messages: one process sends nothing (torchrun --nproc-per-node 2)")
    if not o.sequence_parallel:
        skipped.append("sequence parallelism: not asked for (--sequence-parallel)")
    if "torch" not in names:
        skipped.append(f"parallelize_module: it would cut {o.shape.kv} key-value heads into {s.world} parts")
    if o.precision != "fp32":
        skipped.append("bytes kept: predicted for fp32")
    return skipped


def train(s, tier, o, text):
    """Check, train all ways in alternation, compare, record. Exit code 1 where a check failed."""
    names = [name for name in measure_tensor.names(o) if "torch" not in name or o.shape.kv % s.world == 0]
    checks = equality(s, o, text, names[1:])
    ways = {name: measure_tensor.make(s, o, name) for name in names}
    doors = sorted({lab_tensor.parts(name)[1] for name in names[1:]})
    silent = {door: measure_tensor.make(s, o, f"hand{lab_tensor.SEQUENCE * door}") for door in doors}
    timed = measure_tensor.Rounds(
        s, o, ways, measure_tensor.Calibration(s, o, silent), lambda step: one_batch(s, o, text, step)
    )
    timed.alternate(o.steps)
    rows = timed.rows(WARMUP)
    checks |= count_checks(rows)
    for name in names[1:]:
        checks[f"{lab_tensor.NAMES[name]}: copies are equal on all ranks"] = parity.check(
            measure_tensor.spread(s, ways[name]), 0.0
        )
    notes = [f"{lab_tensor.NAMES[name]}: {way.built}" for name, way in ways.items()]
    guesses = by_profile(s, o, rows)
    r = record(s, tier, o, timed, rows, checks, notes, guesses)
    tables = lab_tensor.ways(rows), lab_tensor.sent(rows), lab_tensor.saved(rows), lab_tensor.guessed(rows, guesses)
    by_torch = [name for name in names if "torch" in name]  # whose Python no prediction has
    s.say("\n" + "\n\n".join(filter(None, tables)))
    s.say(
        "\n".join(
            [
                "",
                report.closing(rows, by_torch),
                *(f"built: {note}" for note in notes),
                *report.verdicts(r.checks, r.skipped, r.stalls, r.failures),
            ]
        )
    )
    recording.keep(s, r, o.save, RESULTS, o.via if o.via != "hand" else "torch")
    recording.end(s, r.checks)


# --- two hosts ------------------------------------------------------------------------------------------------


def plan(o):
    """What measure.tensor_link does on each host."""
    o = replace(o, micro_batch=LINK_BATCH * o.micro_batch)
    link_rates = None, *(rate * 1e6 for rate in nodes.rates(o.link, "--link"))
    return asdict(o) | {
        "model": asdict(o.shape),
        "rates": link_rates,
        "rounds": LINK_ROUNDS,
        "steps": LINK_STEPS,
        "threads": nodes.threads(HOSTS),
    }


def over_links(s, tier, o):
    """Tensor parallelism over links of several rates, beside DDP; or the recorded run."""
    lack = hosts.refused()
    if lack:
        s.say(f"labs/tensor.py: {lack}; these are the runs recorded elsewhere")
        records = recorded_links()
    else:
        job = plan(o)
        s.say(f"{HOSTS} hosts, one rank each, tp {HOSTS}, {job['micro_batch']} x {o.seq} tokens a step")
        measured, _ = nodes.run("scaleout.measure.tensor_link", job, HOSTS, RESULTS.parents[2])
        records = [tensor_link.records(tier, job, HOSTS, measured)]
    for rows in records:
        s.say(
            f"\n{total_parameters(Shape(**rows[0].model)) / 1e6:.2f} M parameters on a {rows[0].device}, size "
            f"{rows[0].tier}\n{tensor_link.show(rows)}"
        )
    if o.save and not lack:
        folder = RESULTS if o.save == "auto" else Path(o.save)
        names = [results.save(r, folder / link_file(r)).name for r in records[0]]
        s.say(f"{len(names)} records saved: {names[0]} and so on")


def link_file(r):
    """The name of the Record of one link."""
    rate = r.recipe["link Mbit/s"]
    return f"{r.tier}-{r.nodes}-hosts-{'unlimited' if rate is None else f'{rate:g}-mbit'}.json"


def recorded_links(folder=RESULTS):
    """The recorded runs over links, [[Record]]: one list a size, fastest link first."""
    by_tier = {}
    for path in sorted(folder.glob("*-hosts-*.json")):
        r = results.load(path)
        by_tier.setdefault(r.tier, []).append(r)
    return [sorted(rows, key=lambda r: -(r.recipe["link Mbit/s"] or 1e9)) for rows in by_tier.values()]


def check(s, tier, o):
    """Refuse what could not work, before any work. ValueError, one line."""
    options.check_sound(o.save, o.fault)
    if o.fault:
        options.check_idle("--fault", o, TIERS[tier], ("link", "via", "machine", "steps"))
    if not o.link:
        options.check_save(o.save, RESULTS)
        tensor_ways.refuse(s, o.shape, o.seq, o.sequence_parallel, o.via)
        return
    nodes.rates(o.link, "--link")
    options.check_folder(RESULTS if o.save == "auto" else o.save, "--save")
    if s.world > 1:
        raise ValueError("--link starts its own processes: start it with python, not with torchrun")
    slices.check_tensor(o.shape, HOSTS)
    options.check_idle("--link", o, TIERS[tier], ("sequence_parallel", "via", "machine", "steps"))
    if o.precision != "fp32":
        raise ValueError(f"--link is shown in fp32: use --precision fp32, not {o.precision}")


def main(s, argv=None):
    """Train all ways, or a few steps with a fault, or over links."""
    tier, o = options.parse(TIERS, __doc__, argv)
    fits.check(s, o.shape)
    profiles.find(o.machine, s.device.type, s.world)  # refuse a wrong one before the work
    check(s, tier, o)
    if o.fault:
        tensor_faults.refuse(s, o)
    text = session.dataset(o.dataset, o.seq)
    if o.link:
        over_links(s, tier, o)
        return
    s.say(
        f"{recording.heading(s, o.shape)}, {o.precision}, {o.micro_batch} x {o.seq} tokens a step\n"
        f"tp {s.world}, {o.shape.heads} heads, {o.shape.kv} of keys and values"
    )
    if o.fault:
        tensor_faults.show(s, o, lambda step: one_batch(s, o, text, step))
    else:
        train(s, tier, o, text)


if __name__ == "__main__":
    session.run(main)
