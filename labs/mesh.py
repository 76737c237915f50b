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

from scaleout.lab import hosts, mesh_link, nodes, options, recording, runner, session
from scaleout.lab import mesh as lab_mesh
from scaleout.measure import mesh as measure_mesh
from scaleout.measure import mesh_faults, mesh_seconds
from scaleout.parallel import mesh as parallel_mesh
from scaleout.parallel import parity
from scaleout.spec import Recipe
from scaleout.timing import calibrated

WARMUP = 2
PARITY_STEPS = 2
PARITY_TOKENS = 64  # at most, of each sequence: every rank also trains on the sequences of all replicas
PARITY_RATE = 0.1  # of SGD with momentum: AdamW divides a gradient by its own size, rounding too
SAMPLES = 5  # rounds of the calibration of --search
HOSTS, HOST_RANKS = 2, 4  # of --link, and ranks on each
LINK_BATCH = 4  # times the sequences: messages longer than what a link lets through at once
LINK_ROUNDS = 2  # steps of each case


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, the layout, and what to do with the result."""

    layers: int = options.number(8, "blocks")
    hidden: int = options.number(64, "width of the residual stream")
    heads: int = options.number(8, "attention heads")
    form: str = options.choice("gpt", ("gpt", "llama"), "which model: with layer norms, biases and a tied head, or not")
    seq: int = options.number(32, "tokens per sequence")
    sequences: int | None = options.number(None, "of a step, of all replicas (default: two for each rank)")
    layout: str | None = options.word(
        None,
        "degrees; dp is what is left, zero the stage among replicas, m the micro-"
        "batches of one (default: of 8 ranks tp=2,pp=2)",
        "tp=N,pp=N,zero=N,m=N,v=N",
    )
    order: str = options.word(
        "pp,dp,tp", "the axes, outermost first; ranks along the last have consecutive numbers", "AXIS,AXIS,AXIS"
    )
    sequence_parallel: bool = options.flag("shard the activations between matmuls by tokens along tp")
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


def draw(lab):
    """batch(way, step) of the ways of a run."""
    return lambda way, step: measure_mesh.batches(lab.s, lab.o, lab.text, way.layout, way.batch, step)


# --- the same as one process? -------------------------------------------------------------------------------


def equality(lab, laid, vias):
    """Check losses and weights of a few steps of momentum SGD and the gradients of the first against this process alone
    on what all replicas have, in fp32."""
    s, o = lab.s, lab.short(PARITY_TOKENS)
    steps = [measure_mesh.batches(s, o, lab.text, *laid, step) for step in range(PARITY_STEPS)]

    def trained(via):
        way = measure_mesh.MeshWay(s, o, *laid, via, lab_mesh.order(o.order), "momentum", PARITY_RATE)
        result = parity.trained(way, steps)
        way.close()
        return result

    lab.equality(trained, vias, shared=True)


# --- one layout -----------------------------------------------------------------------------------------------


def look(lab, laid, way, batch):
    """([(stage, sent, predicted)], [(stage, stored, predicted)]) of a way by hand, for a rank of each stage; all ranks
    are checked."""
    o, pp, sizes = lab.o, way.place["pp"], [p.numel() for p in way.mesh.model.parameters()]
    expected = measure_mesh.messages(o.shape, laid[1], o.seq, laid[0], pp, sizes)
    stored = way.spoken(batch), expected, way.held(batch), measure_mesh.states(o.shape, laid[0], pp)
    rows, words = lab.s.gathered((pp, *stored)), lab.names[way.via]
    wrong_ranks = sum(seen != wanted for _, seen, wanted, _, _ in rows)
    lab.check(f"{words}: ranks that send along an axis what is not predicted", wrong_ranks, 0.0)
    predicted = [wanted[name] for *_, found, wanted in rows for name in found]
    measured = [size for *_, found, _ in rows for size in found.values()]
    name = f"{words}: bytes of weights, gradients and optimizer on every rank as predicted"
    lab.check_prediction(name, predicted, measured)
    first = {row[0]: row for row in reversed(rows)}
    return [first[pp][:3] for pp in sorted(first)], [(pp, *first[pp][3:]) for pp in sorted(first)]


def predict_bytes(lab, sent, stored):
    """Add the bytes that each stage stores and sends, predicted and measured."""
    for stage, seen, wanted in stored:
        for name in seen:
            lab.predict(f"bytes of {name}, stage {stage}", wanted[name], seen[name])
    for stage, seen, wanted in sent:
        for axis in wanted:
            asked = (sum(call[0] for call in calls[axis].values()) for calls in (wanted, seen))
            lab.predict(f"bytes asked for along {axis}, stage {stage}", *asked)


def train(lab):
    """Check, look, train in alternation, record."""
    s, o = lab.s, lab.o
    laid = o.laid(s.world)
    equality(lab, laid, measure_mesh.vias(s, o, laid[0]))
    order = lab_mesh.order(o.order)
    ways = {via: measure_mesh.MeshWay(s, o, *laid, via, order) for via in dict.fromkeys(("hand", o.via))}
    sent, stored = look(lab, laid, ways["hand"], measure_mesh.batches(s, o, lab.text, *laid, 0))
    units = mesh_seconds.Units(s, o, [laid])
    seconds, losses = mesh_seconds.alternate(s, ways, o.steps, draw(lab), units.sample)
    guess, parts = units.predicted(*laid, mesh_seconds.shared(s))
    middles = {via: statistics.median(seen[WARMUP:]) for via, seen in seconds.items()}
    lab.note(ways)
    lab.predict("seconds per step, by hand", guess, middles["hand"])
    profiled, reason = mesh_seconds.by_profile(s, o, *laid)
    if profiled:
        lab.predict("seconds per step by the machine's profile, by hand", profiled, middles["hand"])
    predict_bytes(lab, sent, stored)
    lab.skip(*measure_mesh.skips(s, o, laid[0]), reason and f"seconds by the machine's profile: {reason}")
    lab.skip(*calibrated.lacking(lab.profile))
    r = record(lab, laid, seconds, losses)
    rows = {via: (middles[via], guess if via == "hand" else None) for via in ways}
    tables = lab_mesh.sent(sent), lab_mesh.state_table(stored), lab_mesh.steps(rows)
    s.say("\n" + "\n\n".join(filter(None, tables)) + "\n")
    lab.report(
        r,
        lab_mesh.made_of(parts),
        *lab_mesh.profile_lines(profiled, middles["hand"], s.world, mesh_seconds.shared(s)),
        *(f"built: {note}" for note in lab.notes),
        way="torch" if o.via == "hand" else o.via,
    )
    lab.end()


def record(lab, laid, seconds, losses):
    """The Record of this run."""
    layout, batch = laid
    recipe = asdict(Recipe(precision="fp32", foreach=False)) | {
        "layout": lab_mesh.title(layout),
        "order": lab.o.order,
        "micro_batches": layout.m,
        "zero": layout.zero,
        "sequence_parallel": layout.sequence_parallel,
    }
    return lab.record(seconds, losses, recipe, layout.dp * layout.m * batch)


# --- all layouts ------------------------------------------------------------------------------------------------


def search(lab):
    """Predict the step time of every layout from its parts, run four whose predictions differ, compare the rankings."""
    s, o = lab.s, lab.o
    candidates = lab_mesh.layouts(o.shape, s.world, o.count(s.world), sequence_parallel=o.sequence_parallel)
    laid = {lab_mesh.title(layout): (layout, batch) for layout, batch in candidates}
    units = mesh_seconds.Units(s, o, candidates)
    for _ in range(SAMPLES):
        units.sample()
    shared = mesh_seconds.shared(s)
    guesses = {title: units.predicted(*pair, shared) for title, pair in laid.items()}
    names, factor = lab_mesh.chosen({name: guess[0] for name, guess in guesses.items()})
    ways = {name: measure_mesh.MeshWay(s, o, *laid[name], "hand", lab_mesh.order(o.order)) for name in names}
    seconds, losses = mesh_seconds.alternate(s, ways, o.steps, draw(lab))
    middles = {name: statistics.median(samples[WARMUP:]) for name, samples in seconds.items()}
    rows = [
        {"name": name, "seconds": total, "parts": parts, "measured": middles.get(name)}
        for name, (total, parts) in guesses.items()
    ]
    wrong, pairs = lab_mesh.inversions([guesses[name][0] for name in names], [middles[name] for name in names])
    lab.check(f"of {pairs} pairs that differ {lab_mesh.SURE:g} times, in another order than predicted", wrong, 0.0)
    loss_gap = max(abs(losses[name][0] / losses[names[0]][0] - 1) for name in names)
    lab.check("the chosen layouts have the same loss at step 1", loss_gap)
    lab.notes += [
        lab_mesh.decides(rows),
        f"chosen: each is predicted to take at least {factor:.1f} times as long as the one before",
    ]
    for name in names:
        lab.predict(f"seconds per step, {name}", guesses[name][0], middles[name])
        lab.series[f"seconds per step, {name}"] = seconds[name]
    lab.skip(*measure_mesh.skips(s, o, laid[names[0]][0]))
    r = record(lab, laid[names[0]], seconds[names[0]], losses[names[0]])
    s.say(f"\n{lab_mesh.ranking(rows)}\n")
    lab.report(r, *lab.notes, way="search")
    lab.end()


# --- two hosts --------------------------------------------------------------------------------------------------


def plan(o):
    """What measure.mesh_link does on each host."""
    o = replace(o, sequences=LINK_BATCH * o.count(HOSTS * HOST_RANKS), steps=LINK_ROUNDS)
    rates = None, *(rate * 1e6 for rate in nodes.rates(o.link, "--link"))
    return asdict(o) | {"model": asdict(o.shape), "rates": rates, "threads": 1, "warmup": WARMUP}


def over_links(lab):
    """The same layout with each axis across two hosts in turn; or the recorded run."""
    s, o, lack = lab.s, lab.o, hosts.refused()
    if lack:
        s.say(f"labs/mesh.py: {lack}; these are the runs recorded elsewhere")
        records = mesh_link.recorded(lab.results)
    else:
        s.say(f"{HOSTS} hosts with {HOST_RANKS} ranks each, {lab_mesh.title(o.laid(HOSTS * HOST_RANKS)[0])}")
        job, folder = plan(o), lab.results.parents[2]
        measured, _ = nodes.run("scaleout.measure.mesh_link", job, HOSTS, folder, processes=HOST_RANKS)
        records = [mesh_link.record(lab.tier, job, measured)]
    for r in records:
        s.say(f"\n{r.device}, size {r.tier}\n{mesh_link.show(r)}")
    if o.save and not lack:
        recording.keep(s, records[0], o.save, lab.results, "link")


def refuse(lab):
    """Refuse what could not work, before any work. ValueError, one line."""
    s, o = lab.s, lab.o
    if o.machine and (o.link or o.search or o.fault):
        raise ValueError("--machine predicts the steps of one layout: leave out --link, --search and --fault")
    lab.refuse()
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
            lab.refuse_idle(options.named(flag), *idle)
    if (o.search or o.fault) and s.world == 1:
        flag = "--search" if o.search else "--fault"
        raise ValueError(f"{flag} is about several ranks: use torchrun --nproc-per-node 8")
    measure_mesh.refuse(s, o, layout)
    if o.fault:
        mesh_faults.refuse(o, layout)


def main(s, argv=None):
    """One layout by all ways, all layouts ranked, a fault, or two hosts."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv, names=lab_mesh.NAMES, warmup=WARMUP)
    refuse(lab)
    o = lab.o
    if o.link:
        over_links(lab)
        return
    layout, batch = o.laid(s.world)
    size = f"{layout.m} micro-batches of {batch} x {o.seq} tokens a replica"
    lab.begin(f"{lab_mesh.title(layout)}, {size}")
    if o.fault:
        mesh_faults.show(s, o, (layout, batch), lab.text)
    else:
        (search if o.search else train)(lab)


if __name__ == "__main__":
    session.run(main)
