"""Rung 07: data, tensor and pipeline parallelism on one grid of ranks: equal to one process, counted, timed and ranked.

torchrun --nproc-per-node 8 labs/mesh.py --save
torchrun --nproc-per-node 8 labs/mesh.py --layout tp=4,pp=2 --sequence-parallel --order tp,pp,dp
torchrun --nproc-per-node 8 labs/mesh.py --search          all layouts of these ranks, ranked; four of them run
torchrun --nproc-per-node 8 labs/mesh.py --fault data      what is wrong on purpose, and which check finds it
sudo .venv/bin/python labs/mesh.py --link        the axes in three orders over two hosts; starts torchrun itself
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scaleout.lab import corpus, fits, hosts, mesh_link, nodes, options, recording, report, session
from scaleout.lab import mesh as lab_mesh
from scaleout.measure import mesh as measure_mesh
from scaleout.measure import mesh_faults, mesh_seconds
from scaleout.parallel import mesh as parallel_mesh
from scaleout.parallel import parity
from scaleout.records import profiles
from scaleout.spec import Recipe, Shape
from scaleout.timing import calibrated

WARMUP = 2
PARITY_STEPS = 2
PARITY_TOKENS = 64  # at most, of each sequence: every rank also trains on the sequences of all replicas
PARITY_RATE = 0.1  # of SGD with momentum: AdamW divides a gradient by its own size, rounding too
TOLERANCE = 0.02  # of bytes held, and what the book promises
SAMPLES = 5  # rounds of the calibration of --search
HOSTS, HOST_RANKS = 2, 4  # of --link, and ranks on each
LINK_BATCH = 4  # times the sequences: messages longer than what a link lets through at once
LINK_ROUNDS = 2  # steps of each case
RESULTS = Path(__file__).resolve().parent / "results" / "mesh"
LLAMA = {"gated_mlp": True, "bias": False, "norm": "rmsnorm", "positions": "rotary", "tied_head": False}


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, the layout, and what to do with the result."""

    layers: int = options.number(8, "blocks")
    hidden: int = options.number(64, "width of the residual stream")
    heads: int = options.number(8, "attention heads")
    form: str = options.choice("gpt", ("gpt", "llama"), "which model: with layer norms, biases and a tied head, or not")
    seq: int = options.number(32, "tokens a sequence")
    sequences: int | None = options.number(None, "of a step, of all replicas (default: two for each rank)")
    layout: str | None = options.word(
        None,
        "degrees; dp is what is left, zero the stage among replicas, m the micro-"
        "batches of one (default: of 8 ranks tp=2,pp=2)",
        "tp=N,pp=N,zero=N,m=N,v=N",
    )
    order: str = options.word(
        "pp,dp,tp", "the axes, outermost first: the last one's neighbours lie side by side", "AXIS,AXIS,AXIS"
    )
    sequence_parallel: bool = options.flag("cut the tokens between matrices along tp")
    steps: int = options.number(6, "training steps", WARMUP + 2, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    via: str = options.choice("hand", measure_mesh.WAYS[1:], "the way whose steps are recorded")
    search: bool = options.flag("predict and rank all layouts, and run four of them")
    fault: str | None = options.choice(
        None, tuple(lab_mesh.FAULTS), "; ".join(f"{name}: {words}" for name, words in lab_mesh.FAULTS.items())
    )
    link: str | None = options.word(
        None, "the layout in three orders over a link between two hosts, of so many Mbit/s", "N,N", const="50"
    )
    machine: str | None = options.word(None, "profile of all ranks by labs/calibrate.py, with that of their groups")
    dataset: str | None = options.dataset()
    save: str | None = options.save("mesh")

    @property
    def shape(self):
        """The transformer of these options, on bytes."""
        family = LLAMA if self.form == "llama" else {}
        return Shape(self.layers, self.hidden, self.heads, corpus.VOCABULARY, max_seq=self.seq, **family)

    def count(self, world):
        """Sequences of a step."""
        return self.sequences or 2 * world

    def laid(self, world):
        """(Layout, sequences of a micro-batch) of so many ranks."""
        words = self.layout or lab_mesh.usual(world)
        return lab_mesh.layout(self.shape, words, world, self.count(world), self.sequence_parallel)


TIERS = {
    "smoke": Options(),
    "cpu": Options(hidden=128, seq=64, sequences=32, steps=10),
    "gpu": Options(layers=24, hidden=2048, heads=16, seq=2048, steps=20, lr=3e-4),
}


def draw(s, o, text):
    """batch(way, step) of the ways of a run."""
    return lambda way, step: measure_mesh.batches(s, o, text, way.layout, way.batch, step)


# --- the same as one process? -------------------------------------------------------------------------------


def equality(s, o, text, laid, vias):
    """Checks of a Record: losses and weights of a few steps of momentum SGD and the gradients of the first against this
    process alone on what all replicas have, in fp32."""
    checks, o = {}, replace(o, seq=min(o.seq, PARITY_TOKENS))
    steps = [measure_mesh.batches(s, o, text, *laid, step) for step in range(PARITY_STEPS)]
    wanted = _trained(s, o, laid, "one", steps)
    for via in vias:
        result, words = _trained(s, o, laid, via, steps), lab_mesh.NAMES[via]
        losses = max(abs(f / w - 1) for f, w in zip(result[0], wanted[0], strict=True))
        checks[f"{words}: losses equal one process"] = parity.check(s.largest(losses))
        for kind, f, w in (("gradients", result[1], wanted[1]), ("weights", result[2], wanted[2])):
            missing = set(w) - {name for names in s.gathered([*f]) for name in names}
            error = parity.worst(s, f, {name: w[name] for name in f}) if not missing else float("inf")
            checks[f"{words}: {kind} equal one process"] = parity.check(error)
    return checks


def _trained(s, o, laid, via, steps):
    """What `parity.trained` gives of a way, whose groups are given back."""
    way = measure_mesh.Way(s, o, *laid, via, lab_mesh.order(o.order), "momentum", PARITY_RATE)
    result = parity.trained(way, steps)
    way.close()
    return result


# --- one layout -----------------------------------------------------------------------------------------------


def looked_at(s, o, laid, way, batch):
    """([(stage, sent, predicted)], [(stage, held, predicted)], checks) of a way by hand, of a rank of each stage."""
    pp, sizes = way.place["pp"], [p.numel() for p in way.mesh.model.parameters()]
    expected = measure_mesh.messages(o.shape, laid[1], o.seq, laid[0], pp, sizes)
    rows = s.gathered((pp, way.spoken(batch), expected, way.held(batch), measure_mesh.states(o.shape, laid[0], pp)))
    wrong_ranks = sum(seen != wanted for _, seen, wanted, _, _ in rows)
    worst = max(abs(wanted[name] / found[name] - 1) for *_, found, wanted in rows for name in found)
    words = lab_mesh.NAMES[way.via]
    checks = {
        f"{words}: ranks that send along an axis what is not predicted": parity.check(wrong_ranks, 0.0),
        f"{words}: bytes of weights, gradients and optimizer on every rank as predicted": parity.check(
            worst, TOLERANCE
        ),
    }
    first = {row[0]: row for row in reversed(rows)}
    return ([first[pp][:3] for pp in sorted(first)], [(pp, *first[pp][3:]) for pp in sorted(first)], checks)


def train(s, tier, o, text):
    """Check, look, train in alternation, record."""
    laid, order = o.laid(s.world), lab_mesh.order(o.order)
    vias = measure_mesh.vias(s, o, laid[0])
    checks = equality(s, o, text, laid, vias)
    ways = {via: measure_mesh.Way(s, o, *laid, via, order) for via in dict.fromkeys(("hand", o.via))}
    sent, stored, looks = looked_at(s, o, laid, ways["hand"], measure_mesh.batches(s, o, text, *laid, 0))
    units = mesh_seconds.Units(s, o, [laid])
    seconds, losses = mesh_seconds.alternate(s, ways, o.steps, draw(s, o, text), units.sample)
    guess, parts = units.predicted(*laid, mesh_seconds.shared(s))
    middles = {via: statistics.median(seen[WARMUP:]) for via, seen in seconds.items()}
    notes = [f"{lab_mesh.NAMES[via]}: {way.built}" for via, way in ways.items()]
    prediction, measurement = {"seconds a step, by hand": guess}, {"seconds a step, by hand": middles["hand"]}
    profiled, reason = mesh_seconds.by_profile(s, o, *laid)
    if profiled:
        figure = "seconds a step by the machine's profile, by hand"
        prediction[figure], measurement[figure] = profiled, middles["hand"]
    for stage, seen, wanted in stored:
        for name in seen:
            prediction[f"bytes of {name}, stage {stage}"] = wanted[name]
            measurement[f"bytes of {name}, stage {stage}"] = seen[name]
    for stage, seen, wanted in sent:
        for axis in wanted:
            for side, calls in ((prediction, wanted), (measurement, seen)):
                side[f"bytes asked for along {axis}, stage {stage}"] = sum(call[0] for call in calls[axis].values())
    skipped = [f"seconds by the machine's profile: {reason}"] if reason else []
    skipped += calibrated.lacking(profiles.find(o.machine, s.device.type, s.world))
    r = record(
        s,
        tier,
        o,
        laid,
        skipped,
        checks=checks | looks,
        notes=notes,
        prediction=prediction,
        measurement=measurement,
        step_seconds=seconds[o.via],
        losses=losses[o.via],
        series={f"seconds a step, {lab_mesh.NAMES[via]}": seen for via, seen in seconds.items()},
    )
    rows = {via: (middles[via], guess if via == "hand" else None) for via in ways}
    s.say("\n" + "\n\n".join(filter(None, (lab_mesh.sent(sent), lab_mesh.state_table(stored), lab_mesh.steps(rows)))))
    s.say(
        "\n".join(
            [
                "",
                lab_mesh.made_of(parts),
                *lab_mesh.profile_lines(profiled, middles["hand"], s.world, mesh_seconds.shared(s)),
                *(f"built: {note}" for note in notes),
                *report.verdicts(r.checks, r.skipped),
            ]
        )
    )
    recording.keep(s, r, o.save, RESULTS, "torch" if o.via == "hand" else o.via)
    recording.end(s, r.checks)


def record(s, tier, o, laid, skipped=(), **fields):
    """The Record of this run. skipped: what it left out beside what the layout lacks."""
    layout, batch = laid
    skipped = [*measure_mesh.skips(s, o, layout), *skipped]
    return recording.record(
        s,
        "mesh",
        tier,
        dataset=o.dataset,
        model=asdict(o.shape),
        recipe=asdict(Recipe(precision="fp32", foreach=False))
        | {
            "layout": lab_mesh.title(layout),
            "order": o.order,
            "micro_batches": layout.m,
            "zero": layout.zero,
            "sequence_parallel": layout.sequence_parallel,
        },
        effective_batch=layout.dp * layout.m * batch,
        sequence_length=o.seq,
        precision="fp32",
        warmup_steps=WARMUP,
        peak_memory=session.allocator(s),
        skipped=skipped,
        **fields,
    )


# --- all layouts ------------------------------------------------------------------------------------------------


def search(s, tier, o, text):
    """Predict a step of every layout from its pieces, run four whose predictions differ, compare the orders."""
    candidates = lab_mesh.layouts(o.shape, s.world, o.count(s.world), sequence_parallel=o.sequence_parallel)
    units = mesh_seconds.Units(s, o, candidates)
    for _ in range(SAMPLES):
        units.sample()
    shared = mesh_seconds.shared(s)
    guesses = {lab_mesh.title(layout): units.predicted(layout, batch, shared) for layout, batch in candidates}
    names, factor = lab_mesh.chosen({name: guess[0] for name, guess in guesses.items()})
    laid = {lab_mesh.title(layout): (layout, batch) for layout, batch in candidates if lab_mesh.title(layout) in names}
    ways = {name: measure_mesh.Way(s, o, *laid[name], "hand", lab_mesh.order(o.order)) for name in names}
    seconds, losses = mesh_seconds.alternate(s, ways, o.steps, draw(s, o, text))
    middles = {name: statistics.median(samples[WARMUP:]) for name, samples in seconds.items()}
    rows = [
        {"name": name, "seconds": total, "parts": parts, "measured": middles.get(name)}
        for name, (total, parts) in guesses.items()
    ]
    wrong, pairs = lab_mesh.inversions([guesses[name][0] for name in names], [middles[name] for name in names])
    loss_gap = max(abs(losses[name][0] / losses[names[0]][0] - 1) for name in names)
    checks = {
        f"of {pairs} pairs that differ {lab_mesh.SURE:g} times, in another order than predicted": parity.check(
            wrong, 0.0
        ),
        "the chosen layouts have the same loss at step 1": parity.check(loss_gap),
    }
    lines = [
        lab_mesh.decides(rows),
        f"chosen: each is predicted to take at least {factor:.1f} times as long as the one before",
    ]
    r = record(
        s,
        tier,
        o,
        laid[names[0]],
        checks=checks,
        notes=lines,
        step_seconds=seconds[names[0]],
        losses=losses[names[0]],
        prediction={f"seconds a step, {name}": guesses[name][0] for name in names},
        measurement={f"seconds a step, {name}": middles[name] for name in names},
        series={f"seconds a step, {name}": samples for name, samples in seconds.items()},
    )
    s.say(f"\n{lab_mesh.ranking(rows)}\n")
    s.say("\n".join([*lines, *report.verdicts(r.checks, r.skipped)]))
    recording.keep(s, r, o.save, RESULTS, "search")
    recording.end(s, r.checks)


# --- two hosts --------------------------------------------------------------------------------------------------


def plan(o):
    """What measure.mesh_link does on each host."""
    o = replace(o, sequences=LINK_BATCH * o.count(HOSTS * HOST_RANKS), steps=LINK_ROUNDS)
    rates = None, *(rate * 1e6 for rate in nodes.rates(o.link, "--link"))
    return asdict(o) | {"model": asdict(o.shape), "rates": rates, "threads": 1, "warmup": WARMUP}


def over_links(s, tier, o):
    """The same layout with each axis across two hosts in turn; or the recorded run."""
    lack = hosts.refused()
    if lack:
        s.say(f"labs/mesh.py: {lack}; these are the runs recorded elsewhere")
        records = mesh_link.recorded(RESULTS)
    else:
        s.say(f"{HOSTS} hosts with {HOST_RANKS} ranks each, {lab_mesh.title(o.laid(HOSTS * HOST_RANKS)[0])}")
        measured, _ = nodes.run("scaleout.measure.mesh_link", plan(o), HOSTS, RESULTS.parents[2], processes=HOST_RANKS)
        records = [mesh_link.record(tier, plan(o), measured)]
    for r in records:
        s.say(f"\n{r.device}, size {r.tier}\n{mesh_link.show(r)}")
    if o.save and not lack:
        recording.keep(s, records[0], o.save, RESULTS, "link")


def check(s, tier, o):
    """Refuse what could not work, before any work. ValueError, one line."""
    fits.check(s, o.shape)
    options.check_save(o.save, RESULTS)
    options.check_sound(o.save, o.fault)
    lab_mesh.order(o.order)
    if o.link and s.world > 1:
        raise ValueError("--link starts its own processes: start it with python, not with torchrun")
    world = HOSTS * HOST_RANKS if o.link else s.world
    layout, _ = o.laid(world)
    parallel_mesh.refuse(o.shape, layout, world, o.seq)
    if o.link:
        nodes.rates(o.link, "--link")
    if sum(map(bool, (o.link, o.search, o.fault))) > 1:
        raise ValueError("--link, --search and --fault are shown by themselves: leave out all but one")
    for flag, idle in (("link", ("order", "via", "steps")), ("search", ("layout", "via")), ("fault", ("via", "steps"))):
        if getattr(o, flag):
            options.check_idle(options.named(flag), o, TIERS[tier], idle)
    if (o.search or o.fault) and s.world == 1:
        flag = "--search" if o.search else "--fault"
        raise ValueError(f"{flag} is about several ranks: use torchrun --nproc-per-node 8")
    measure_mesh.refuse(s, o, layout)
    if o.machine and (o.link or o.search or o.fault):
        raise ValueError("--machine predicts the steps of one layout: leave out --link, --search and --fault")
    profiles.find(o.machine, s.device.type, s.world)  # refuse a wrong one before the work
    if o.fault:
        mesh_faults.refuse(o, layout)


def main(s, argv=None):
    """One layout by all ways, all layouts ranked, a fault, or two hosts."""
    tier, o = options.parse(TIERS, __doc__, argv)
    check(s, tier, o)
    text = session.dataset(o.dataset, o.seq)
    if o.link:
        over_links(s, tier, o)
        return
    layout, batch = o.laid(s.world)
    s.say(
        f"{recording.heading(s, o.shape)}, {lab_mesh.title(layout)}, {layout.m} micro-batches of {batch} x {o.seq} "
        "tokens a replica"
    )
    if o.fault:
        mesh_faults.show(s, o, (layout, batch), text)
    else:
        (search if o.search else train)(s, tier, o, text)


if __name__ == "__main__":
    session.run(main)
