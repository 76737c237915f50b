"""Rung 04: a pipeline by hand and by torch.distributed.pipelining: bubbles, bytes and lanes beside their predictions.

torchrun --nproc-per-node 4 labs/pipeline.py
torchrun --nproc-per-node 2 labs/pipeline.py --schedules all --save
torchrun --nproc-per-node 4 labs/pipeline.py --trace lanes.json      for ui.perfetto.dev: a lane a rank
torchrun --nproc-per-node 4 labs/pipeline.py --hop-ms 25             every message takes half a forward
torchrun --nproc-per-node 4 labs/pipeline.py --fault both-send       a hang, and who waits for whom
torchrun --nproc-per-node 4 labs/pipeline.py --fault receive         receives that are waited for too early
torchrun --nproc-per-node 4 labs/pipeline.py --fault head            the last stage has the head, and is late
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import math
import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from scaleout.lab import fits, join, limits, options, recording, report, session
from scaleout.lab import pipeline as lab_pipeline
from scaleout.measure import pipeline as measure_pipeline
from scaleout.measure import pipeline_faults, pipeline_sleep
from scaleout.memory import most_held, stage_kept
from scaleout.parallel import Transformer, parity, pipeline_stage, pipeline_ways
from scaleout.records import files
from scaleout.spec import Recipe, mesh
from scaleout.spec import pipeline as spec_pipeline
from scaleout.timing import pipeline as timing_pipeline

WARMUP = 2
PARITY_TOKENS = 128  # at most, of each sequence: every rank also runs the whole batch alone
MEMORY = 0.02  # of the bytes kept for backward, and what the book promises
RESULTS = Path(__file__).resolve().parent / "results" / "pipeline"


@dataclass(frozen=True)
class Options(options.Model):
    """The model, its micro-batches, the schedules, and what to do with the result."""

    layers: int = options.number(8, "blocks")
    hidden: int = options.number(64, "width of the residual stream")
    heads: int = options.number(4, "attention heads")
    seq: int = options.number(64, "tokens a sequence")
    micro_batch: int = options.number(2, "sequences of a micro-batch")
    micro_batches: int | None = options.number(None, "of a step (default: two for each rank)", highest=1024)
    schedules: str = options.word("gpipe,1f1b,interleaved,zb1", "which: all, or names", "NAME,NAME")
    stage_ms: float = options.number(50.0, "forward of a rank's stages that sleep, in ms", 1, 10_000)
    repeats: int = options.number(1, "steps of stages that sleep, of which the fastest counts", highest=100)
    steps: int = options.number(6, "training steps with 1F1B", WARMUP + 1, 10**6)
    lr: float = options.number(3e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    hop_ms: float = options.number(0.0, "what a message takes between stages that sleep, in ms", 0, 10_000)
    fault: str = options.choice("none", ("none", *pipeline_faults.FAULTS), "what is wrong, on purpose")
    trace: str | None = options.word(None, "write the lanes of stages that sleep for ui.perfetto.dev", "FILE.json")
    dataset: str | None = options.dataset()
    save: str | None = options.save("pipeline")


TIERS = {
    "smoke": Options(),
    "cpu": Options(hidden=128, seq=128, schedules="all", repeats=5, steps=20),
    "gpu": Options(
        layers=16,
        hidden=2048,
        heads=16,
        seq=1024,
        micro_batch=1,
        micro_batches=16,
        schedules="all",
        repeats=3,
        steps=20,
        lr=3e-4,
    ),
}


@dataclass(frozen=True)
class Plan:
    """What is asked for, on so many ranks: schedules as (name, v), micro-batches m."""

    o: Options
    p: int

    @property
    def m(self):
        return self.o.micro_batches or 2 * self.p

    @property
    def chosen(self):
        return [("gpipe", 1)] if self.p == 1 else lab_pipeline.schedules(self.o.schedules)

    def layers(self, v):
        """Layers of each stage."""
        return mesh.blocks(self.o.layers, self.p * v)

    def refuse(self):
        """ValueError for what cannot be cut into stages, or is no schedule."""
        needed = [("interleaved", 2)] if self.o.fault == "receive" else [("1f1b", 1)]  # which it trains with
        chosen = [*lab_pipeline.schedules(self.o.schedules), *needed]
        stages = self.p * math.lcm(*(v for _, v in self.chosen))
        if self.o.fault == "head":  # whose layers are another model's
            pipeline_faults.refuse_head(self.p)
        elif self.o.layers % stages:
            nearest = max(1, round(self.o.layers / stages)) * stages
            raise ValueError(
                f"--layers {self.o.layers} cannot be cut into {stages} equal stages: use --layers {nearest}"
            )
        for name, v in chosen if self.p > 1 else ():
            with lab_pipeline.flags():
                pipeline_ways.placed(name, self.p, self.m, v)

    def sleep(self, s, via, name, v, costs, **options):
        """measure.pipeline_sleep.run of this plan."""
        return pipeline_sleep.run(s, via, name, self.m, v, costs, self.o.repeats, timeout=join.GROUP_TIMEOUT, **options)


# --- the same as one process? -----------------------------------------------------------------------------------


def micro_batches(s, o, text, step, m):
    """(tokens, targets), each m tensors (b, s): the same on every rank."""
    pairs = [session.batch(text, step * m + i, o.micro_batch, o.seq, seed=o.seed, device=s.device) for i in range(m)]
    return [tokens for tokens, _ in pairs], [targets for _, targets in pairs]


def model_way(s, o, plan, via, name, v, **options):
    """A Way of the Transformer."""
    like = torch.empty(o.micro_batch, o.seq, o.hidden, device=s.device)
    options |= {"timeout": join.GROUP_TIMEOUT} if via == "hand" else {}
    stages = pipeline_ways.of_model(o.shape, plan.layers(v), s.device, o.seed)
    return pipeline_ways.Way(s, via, name, plan.m, stages, like, v, **options)


def equality(s, plan, text):
    """Checks of a Record: loss and gradients of one step of every way against one process on the whole batch."""
    o = replace(plan.o, seq=min(plan.o.seq, PARITY_TOKENS), micro_batch=1)
    tokens, targets = micro_batches(s, o, text, 0, plan.m)
    torch.manual_seed(o.seed)
    model = Transformer(o.shape).to(s.device)
    loss, wanted = parity.loss_and_gradients(model, torch.cat(tokens), torch.cat(targets))
    checks = {}
    for via, name, v in ways(s, plan, naive=True):
        way = model_way(s, o, plan, via, name, v)
        value = way.step(tokens, targets)
        mine = way.gradients()
        way.close()
        error = max(abs(value / loss - 1), parity.worst(s, mine, {key: wanted[key] for key in mine}))
        checks[f"{lab_pipeline.title(name, v)}, {lab_pipeline.VIAS[via]}: loss and gradients equal one process"] = (
            parity.check(error)
        )
    return checks


def ways(s, plan, naive=False):
    """[(via, schedule, v)]: torch's need a process group, and some a new torch."""
    chosen = [
        (via, name, v)
        for name, v in plan.chosen
        for via in pipeline_ways.ROUTES
        if via == "hand" or pipeline_ways.torch_has(s, name)
    ]
    return [("hand", "naive", 1), *chosen] if naive else chosen


# --- the Transformer ------------------------------------------------------------------------------------------------


def memory(s, plan, text):
    """([(title, bytes kept by rank, predicted, measured)], checks)."""
    o, rows, checks = plan.o, [], {}
    batch = micro_batches(s, o, text, 0, plan.m)
    for name, v in plan.chosen:
        way = model_way(s, o, plan, "hand", name, v)
        seen = measure_pipeline.most_kept(way, *batch)
        way.close()
        stage_bytes = stage_kept(o.shape, o.micro_batch, o.seq, plan.layers(v), Recipe(precision="fp32"))
        wanted = most_held(spec_pipeline.orders(name, plan.p, plan.m, v), stage_bytes)
        title = lab_pipeline.title(name, v)
        rows.append((title, wanted, seen))
        checks[f"{title}: bytes kept for backward within 2% on every rank"] = parity.check(
            max(abs(p / m - 1) for p, m in zip(wanted, seen, strict=True)), MEMORY
        )
    return rows, checks


def train(s, plan, text):
    """1F1B by hand for some steps: ({"losses", "seconds", "predicted"}, checks)."""
    o = plan.o
    way = model_way(s, o, plan, "hand", "1f1b", 1)
    measured = measure_pipeline.costs(way, *micro_batches(s, o, text, 0, plan.m))
    line = timing_pipeline.step("1f1b", plan.p, plan.m, 1, measured)
    shared = sum(line.work) / min(plan.p, limits.cores()) if s.device.type == "cpu" else 0.0
    wanted = max(line.seconds, shared)  # ranks on the same cores take turns
    optimizer = torch.optim.AdamW(way.stages[s.rank].parameters(), lr=o.lr)
    result = {"losses": [], "seconds": [], "predicted": wanted, "built": way.built}
    for step in range(o.steps):
        batch = micro_batches(s, o, text, step + 1, plan.m)
        s.barrier()
        begin = s.clock()
        result["losses"].append(way.step(*batch))
        result["seconds"].append(s.largest(s.clock() - begin))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    ends = s.gathered([w.detach().cpu() for w in pipeline_stage.tied_weights(way.stages)])
    tables = [w for row in ends for w in row]
    distance = max(((w - tables[0]).abs().max().item() for w in tables), default=0.0)  # one stage has no copy
    return result, {"token table and tied head are equal after training": parity.check(distance, 0.0)}


def record(s, tier, plan, rows, memory_rows, trained, checks, notes):
    """The Record of this run."""
    o, wanted, seen = plan.o, {}, {}
    for row in rows:
        label = f"{row['name']}, {lab_pipeline.VIAS[row['via']]}, {row['ms']:g} ms stages"
        wanted |= {f"seconds a step, {label}": row["predicted"], f"bubble of the step, {label}": row["bubble"]}
        seen |= {f"seconds a step, {label}": row["measured"], f"bubble of the step, {label}": row["found"]}
    for title, predicted, measured in memory_rows:
        for rank in range(plan.p):
            wanted[f"bytes kept for backward, {title}, rank {rank}"] = predicted[rank]
            seen[f"bytes kept for backward, {title}, rank {rank}"] = measured[rank]
    wanted["seconds a step, training"] = trained["predicted"]
    seen["seconds a step, training"] = statistics.median(trained["seconds"][WARMUP:])
    largest = max(((max(m), title) for title, _, m in memory_rows), default=(0, ""))
    return recording.record(
        s,
        "pipeline",
        tier,
        dataset=o.dataset,
        notes=[trained["built"], *notes],
        model=asdict(o.shape),
        recipe=asdict(Recipe(precision="fp32"))
        | {
            "schedules": ", ".join(lab_pipeline.title(*schedule) for schedule in plan.chosen),
            "micro_batches": plan.m,
            "stage ms": o.stage_ms,
            "hop ms": o.hop_ms,
        },
        effective_batch=o.micro_batch * plan.m,
        sequence_length=o.seq,
        precision="fp32",
        step_seconds=trained["seconds"],
        warmup_steps=WARMUP,
        losses=trained["losses"],
        peak_memory={"activations": largest[0]} | session.allocator(s, "allocator: "),
        prediction=wanted,
        measurement=seen,
        checks=checks,
        skipped=skipped(s, plan),
    )


def skipped(s, plan):
    """What this run leaves out."""
    reasons = ["Accelerate: it has no pipeline of its own for training (prepare_pippy is for inference)"]
    if s.world == 1:
        reasons.append(
            "bubbles, lanes and torch's schedules: one process is no pipeline (torchrun --nproc-per-node 2 "
            "labs/pipeline.py)"
        )
        return reasons
    return reasons + [
        f"torch's {lab_pipeline.title(name, v)}: over gloo it needs torch 2.13, this is {torch.__version__}"
        for name, v in plan.chosen
        if not pipeline_ways.torch_has(s, name)
    ]


# --- the lab ----------------------------------------------------------------------------------------------------


def whole(s, tier, plan, text):
    """Check, sleep, weigh, train, record; the spans of the lanes. Exit code 1 where a check failed."""
    checks, rows, shown, notes = equality(s, plan, text), [], None, []
    if s.world > 1:
        rows, shown = pipeline_sleep.schedules(s, plan, ways(s, plan))
        notes = lab_pipeline.explain(rows)
        s.say(f"\n{lab_pipeline.bubbles(rows)}\n\n{lab_pipeline.both_lanes(**shown)}")
    memory_rows, checks_of_memory = memory(s, plan, text)
    s.say("\n".join([*notes, "", lab_pipeline.memory(memory_rows), ""]))
    trained, tied = train(s, plan, text)
    r = record(s, tier, plan, rows, memory_rows, trained, checks | checks_of_memory | tied, notes)
    s.say(lab_pipeline.training(r, trained["predicted"], s.world))
    s.say("\n".join(report.verdicts(r.checks, r.skipped)))
    recording.keep(s, r, plan.o.save, RESULTS)
    write_trace(s, plan.o, shown and shown["measured"])
    recording.end(s, r.checks)


def write_trace(s, o, spans):
    """--trace, on rank 0."""
    if o.trace and spans and s.main:
        files.write_json(lab_pipeline.trace(spans), o.trace)
        s.say(f"trace: {Path(o.trace).name}; open it at https://ui.perfetto.dev")


def main(s, argv=None):
    """The whole lab, or one fault."""
    tier, o = options.parse(TIERS, __doc__, argv)
    plan = Plan(o, s.world)
    fits.check(s, o.shape)
    options.check_target(o.trace, (".json",))
    options.check_save(o.save, RESULTS)
    options.check_sound(o.save, o.fault)
    plan.refuse()
    lab_pipeline.refuse(s.world, s.nodes, s.device.type, o.fault, o.hop_ms, o.trace)
    if o.fault != "none":
        idle = ("trace", "stage_ms", "repeats") if o.fault == "both-send" else ()  # which sleeps for no stage
        options.check_idle(f"--fault {o.fault}", o, TIERS[tier], ("schedules", "steps", "lr", *idle))
    text = session.dataset(o.dataset, o.seq)
    s.say(f"{recording.heading(s, o.shape)}, {plan.m} micro-batches of {o.micro_batch} x {o.seq} tokens")
    if o.fault == "none":
        whole(s, tier, plan, text)
    else:
        write_trace(s, o, pipeline_faults.FAULTS[o.fault](s, plan))


if __name__ == "__main__":
    session.run(main)
