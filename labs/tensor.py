"""Rung 03: tensor parallelism by hand and by parallelize_module: every rank has a part of every matrix.

torchrun --nproc-per-node 2 labs/tensor.py --save
torchrun --nproc-per-node 4 labs/tensor.py --sequence-parallel --form llama --kv-heads 2
torchrun --nproc-per-node 2 labs/tensor.py --fault no-backward-reduce      losses agree at step 1, gradients do not
torchrun --nproc-per-node 4 labs/tensor.py --kv-heads 2 --fault kv-copies
sudo .venv/bin/python labs/tensor.py --link 1000,200       two hosts instead of one: starts torchrun itself
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

from dataclasses import asdict, dataclass, replace
from functools import partial

from scaleout.lab import hosts, nodes, options, report, runner, session, tensor_link
from scaleout.lab import tensor as lab_tensor
from scaleout.measure import tensor as measure_tensor
from scaleout.measure import tensor_faults
from scaleout.parallel import parity, tensor_ways
from scaleout.records import results
from scaleout.spec import Recipe, Shape, slices, total_parameters

WARMUP = 3
PARITY_STEPS = 3
PARITY_TOKENS = 128  # at most, of each sequence
PARITY_RATE = 0.1  # of SGD with momentum: AdamW divides a gradient by its own size, rounding too
HOSTS = 2  # of --link
LINK_STEPS, LINK_ROUNDS = 2, 3
LINK_BATCH = 4  # times --micro-batch: what tensor parallelism sends grows with the tokens, gradients do not


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, how it is shared, and what to do with the result."""

    layers: int = options.number(4, "blocks")
    hidden: int = options.number(160, "width of the residual stream", 2)
    heads: int = options.number(8, "attention heads")
    kv_heads: int | None = options.number(None, "key-value heads, where fewer: grouped-query attention")
    form: str = options.choice("gpt", ("gpt", "llama"), "which model: gpt has layer norms, biases and a tied head")
    seq: int = options.number(128, "tokens per sequence")
    micro_batch: int = options.number(4, "sequences per step, the same on every rank")
    sequence_parallel: bool = options.flag("run the ways with sequence parallelism too")
    steps: int = options.number(8, "training steps", WARMUP + 2, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    precision: str = options.choice("fp32", ("fp32", "autocast-bf16"), "dtypes")
    via: str = options.choice("hand", ("hand", "torch", "accelerate"), "the way whose steps are recorded")
    fault: str | None = options.choice(
        None, tuple(lab_tensor.FAULTS), "; ".join(f"{name}: {words}" for name, words in lab_tensor.FAULTS.items())
    )
    link: str | None = options.word(
        None, "time steps over a link of so many Mbit/s between two hosts, next to DDP's", "N,N", const="1000,200"
    )
    machine: str | None = options.word(None, "profile by labs/calibrate.py")
    dataset: str | None = options.dataset()
    save: str | None = options.save("tensor")


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=6, hidden=256, seq=256, steps=12),
    "gpu": Options(layers=20, hidden=2048, heads=16, seq=2048, steps=20, lr=3e-4, precision="autocast-bf16"),
}


def one_batch(s, o, text, step):
    """(tokens, targets) of a step, the same on every rank."""
    return session.batch(text, step, o.micro_batch, o.seq, seed=o.seed, device=s.device)


# --- the same as one process? -------------------------------------------------------------------------------


def equality(lab, names):
    """Check losses and weights of a few steps of momentum SGD and the gradients of the first against this process
    alone, in fp32."""
    o = lab.short(PARITY_TOKENS)
    batches = [one_batch(lab.s, o, lab.text, step) for step in range(PARITY_STEPS)]

    def trained(name):
        return parity.trained(measure_tensor.make(lab.s, o, name, optimizer="momentum", rate=PARITY_RATE), batches)

    lab.equality(trained, names, shared=True)


# --- train, compare, record -----------------------------------------------------------------------------------


def count_checks(lab, rows):
    """Check collectives of each phase, as CommDebugMode counted them, and bytes kept."""
    for name, row in rows.items():
        error = sum(
            abs(row["counts"][phase].get(kind, 0) - row["wanted"][phase].get(kind, 0))
            for phase in row["wanted"]
            for kind in row["wanted"][phase] | row["counts"][phase]
        )
        lab.check(f"{lab.names[name]}: collectives as predicted", error, 0.0)
        if "kept" in row["measured"]:
            pair = row["predicted"]["kept"], row["measured"]["kept"]
            lab.check_prediction(f"{lab.names[name]}: bytes kept as predicted", *pair, tolerance=0.0)


def skips(lab, names):
    """What this run leaves out, and why."""
    o, world = lab.o, lab.s.world
    lab.skip(
        world == 1 and "communication: one process sends nothing (torchrun --nproc-per-node 2)",
        not o.sequence_parallel and "sequence parallelism: not asked for (--sequence-parallel)",
        "torch" not in names and f"parallelize_module: it would split {o.shape.kv} key-value heads into {world} parts",
        o.precision != "fp32" and "saved bytes: predicted for fp32 only",
    )


def by_profile(lab, rows):
    """{way by hand: seconds of its step by the machine's profile}; {} where there is none."""
    guesses = lab.by_profile(
        lambda profile, name: measure_tensor.by_profile(profile, lab.o, lab.s.world, lab_tensor.parts(name)[1]),
        [name for name in rows if name.startswith("hand")],
    )
    for name, seconds in guesses.items():
        figure = f"seconds per step by the machine's profile, {lab.names[name]}"
        lab.predict(figure, seconds, rows[name]["measured"]["seconds"])
    return guesses


def train(lab):
    """Check, train all ways in alternation, compare, record. Exit code 1 where a check failed."""
    s, o = lab.s, lab.o
    names = [name for name in measure_tensor.names(o) if "torch" not in name or o.shape.kv % s.world == 0]
    equality(lab, names[1:])
    ways = {name: measure_tensor.make(s, o, name) for name in names}
    doors = sorted({lab_tensor.parts(name)[1] for name in names[1:]})
    silent = {door: measure_tensor.make(s, o, f"hand{lab_tensor.SEQUENCE * door}") for door in doors}
    calibration = measure_tensor.Calibration(s, o, silent)
    timed = measure_tensor.Rounds(s, o, ways, calibration, partial(one_batch, s, o, lab.text))
    timed.alternate(o.steps)
    rows = timed.rows(WARMUP)
    count_checks(lab, rows)
    for name in names[1:]:
        lab.check(f"{lab.names[name]}: copies are equal on all ranks", measure_tensor.spread(s, ways[name]), 0.0)
    lab.note(ways)
    lab.predict_ways(rows, lab_tensor.FIGURES)
    skips(lab, names)
    guesses = by_profile(lab, rows)
    recipe = asdict(Recipe(precision=o.precision, foreach=False))
    recipe |= {"tp": s.world, "sequence_parallel": o.sequence_parallel}
    r = lab.record(timed.seconds, timed.losses, recipe, o.micro_batch)
    tables = lab_tensor.ways(rows), lab_tensor.sent(rows), lab_tensor.saved(rows), lab_tensor.guessed(rows, guesses)
    by_torch = [name for name in names if "torch" in name]  # whose Python no prediction has
    s.say("\n" + "\n\n".join(filter(None, tables)) + "\n")
    built = (f"built: {note}" for note in lab.notes)
    lab.report(r, report.closing(rows, by_torch), *built, way=o.via if o.via != "hand" else "torch")
    lab.end()


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


def over_links(lab):
    """Tensor parallelism over links of several rates, beside DDP; or the recorded run."""
    s, o, lack = lab.s, lab.o, hosts.refused()
    if lack:
        s.say(f"labs/tensor.py: {lack}; these are the runs recorded elsewhere")
        records = recorded_links(lab.results)
    else:
        job = plan(o)
        s.say(f"{HOSTS} hosts, one rank each, tp {HOSTS}, {job['micro_batch']} x {o.seq} tokens per step")
        measured, _ = nodes.run("scaleout.measure.tensor_link", job, HOSTS, lab.results.parents[2])
        records = [tensor_link.records(lab.tier, job, HOSTS, measured)]
    for rows in records:
        s.say(
            f"\n{total_parameters(Shape(**rows[0].model)) / 1e6:.2f} M parameters on a {rows[0].device}, size "
            f"{rows[0].tier}\n{tensor_link.show(rows)}"
        )
    if o.save and not lack:
        names = [results.save(r, lab.folder / link_file(r)).name for r in records[0]]
        s.say(f"{len(names)} records saved: {names[0]} and so on")


def link_file(r):
    """The name of the Record of one link."""
    rate = r.recipe["link Mbit/s"]
    return f"{r.tier}-{r.nodes}-hosts-{'unlimited' if rate is None else f'{rate:g}-mbit'}.json"


def recorded_links(folder):
    """The recorded runs over links in a folder, [[Record]]: one list a size, fastest link first."""
    by_tier = {}
    for path in sorted(folder.glob("*-hosts-*.json")):
        r = results.load(path)
        by_tier.setdefault(r.tier, []).append(r)
    return [sorted(rows, key=lambda r: -(r.recipe["link Mbit/s"] or 1e9)) for rows in by_tier.values()]


def refuse(lab):
    """Refuse what could not work, before any work. ValueError, one line."""
    s, o = lab.s, lab.o
    lab.refuse(folder=bool(o.link))
    if o.fault:
        lab.refuse_idle("--fault", "link", "via", "machine", "steps")
        tensor_faults.refuse(s, o)
    if not o.link:
        tensor_ways.refuse(s, o.shape, o.seq, o.sequence_parallel, o.via)
        return
    nodes.rates(o.link, "--link")
    if s.world > 1:
        raise ValueError("--link starts its own processes: start it with python, not with torchrun")
    slices.check_tensor(o.shape, HOSTS)
    lab.refuse_idle("--link", "sequence_parallel", "via", "machine", "steps")
    if o.precision != "fp32":
        raise ValueError(f"--link is shown in fp32: use --precision fp32, not {o.precision}")


def main(s, argv=None):
    """Train all ways, or a few steps with a fault, or over links."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv, names=lab_tensor.NAMES, warmup=WARMUP)
    refuse(lab)
    o = lab.o
    if o.link:
        over_links(lab)
        return
    lab.begin(
        f"{o.precision}, {o.micro_batch} x {o.seq} tokens per step\n"
        f"tp {s.world}, {o.shape.heads} heads, {o.shape.kv} of keys and values"
    )
    if o.fault:
        tensor_faults.show(s, o, partial(one_batch, s, o, lab.text))
    else:
        train(lab)


if __name__ == "__main__":
    session.run(main)
