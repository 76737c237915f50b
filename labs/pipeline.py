"""Rung 04: a pipeline by hand and by torch.distributed.pipelining: bubbles, bytes and timelines, with predictions.

torchrun --nproc-per-node 4 labs/pipeline.py
torchrun --nproc-per-node 2 labs/pipeline.py --schedules all --save
torchrun --nproc-per-node 4 labs/pipeline.py --trace lanes.json      for ui.perfetto.dev: one lane per rank
torchrun --nproc-per-node 4 labs/pipeline.py --hop-ms 25             every hop takes half a forward
torchrun --nproc-per-node 4 labs/pipeline.py --fault both-send       a hang, and which rank waits for which
torchrun --nproc-per-node 4 labs/pipeline.py --fault receive         receives that block the work behind them
torchrun --nproc-per-node 4 labs/pipeline.py --fault head            the last stage has the head and is slower
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import math
import statistics
from dataclasses import asdict, dataclass

import torch

from scaleout.lab import join, limits, options, runner, session
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


@dataclass(frozen=True)
class Options(options.Model):
    """The model, its micro-batches, the schedules, and what to do with the result."""

    layers: int = options.number(8, "blocks")
    hidden: int = options.number(64, "width of the residual stream")
    heads: int = options.number(4, "attention heads")
    seq: int = options.number(64, "tokens per sequence")
    micro_batch: int = options.number(2, "sequences per micro-batch")
    micro_batches: int | None = options.number(None, "per step (default: two per rank)", highest=1024)
    schedules: str = options.word("gpipe,1f1b,interleaved,zb1", "which: all, or names", "NAME,NAME")
    stage_ms: float = options.number(50.0, "time of a rank's forward in sleeping stages, in ms", 1, 10_000)
    repeats: int = options.number(1, "steps with sleeping stages; the fastest counts", highest=100)
    steps: int = options.number(6, "training steps with 1F1B", WARMUP + 1, 10**6)
    lr: float = options.number(3e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    hop_ms: float = options.number(0.0, "time of a hop between sleeping stages, in ms", 0, 10_000)
    fault: str = options.choice("none", ("none", *pipeline_faults.FAULTS), "what is wrong, on purpose")
    trace: str | None = options.word(None, "write the timeline of sleeping stages for ui.perfetto.dev", "FILE.json")
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


def model_pipeline(s, o, plan, via, name, v, **options):
    """A Pipeline of the Transformer."""
    like = torch.empty(o.micro_batch, o.seq, o.hidden, device=s.device)
    options |= {"timeout": join.GROUP_TIMEOUT} if via == "hand" else {}
    stages = pipeline_ways.of_model(o.shape, plan.layers(v), s.device, o.seed)
    return pipeline_ways.Pipeline(s, via, name, plan.m, stages, like, v, **options)


def equality(lab, plan):
    """Check loss and gradients of one step of every way against one process on the whole batch."""
    s, o = lab.s, lab.short(PARITY_TOKENS)
    tokens, targets = micro_batches(s, o, lab.text, 0, plan.m)
    torch.manual_seed(o.seed)
    model = Transformer(o.shape).to(s.device)
    loss, wanted = parity.loss_and_gradients(model, torch.cat(tokens), torch.cat(targets))
    for via, name, v in ways(s, plan, naive=True):
        way = model_pipeline(s, o, plan, via, name, v)
        result = {"loss": [way.step(tokens, targets)], "gradients": way.gradients()}
        way.close()
        errors = parity.errors(s, result, {"loss": [loss], "gradients": wanted}, shared=True)
        words = f"{lab_pipeline.title(name, v)}, {lab_pipeline.VIAS[via]}"
        lab.check(f"{words}: loss and gradients equal one process", max(errors.values()))


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


def memory(lab, plan):
    """[(title, bytes kept by rank, predicted, measured)] of the schedules, checked."""
    s, o, rows = lab.s, lab.o, []
    batch = micro_batches(s, o, lab.text, 0, plan.m)
    for name, v in plan.chosen:
        way = model_pipeline(s, o, plan, "hand", name, v)
        seen = measure_pipeline.most_kept(way, *batch)
        way.close()
        stage_bytes = stage_kept(o.shape, o.micro_batch, o.seq, plan.layers(v), Recipe(precision="fp32"))
        wanted = most_held(spec_pipeline.orders(name, plan.p, plan.m, v), stage_bytes)
        title = lab_pipeline.title(name, v)
        rows.append((title, wanted, seen))
        lab.check_prediction(f"{title}: bytes kept for backward within 2% on every rank", wanted, seen)
        for rank in range(plan.p):
            lab.predict(f"bytes kept for backward, {title}, rank {rank}", wanted[rank], seen[rank])
    return rows


def train(lab, plan):
    """1F1B by hand for some steps: (losses, seconds, predicted seconds)."""
    s, o, losses, seconds = lab.s, lab.o, [], []
    way = model_pipeline(s, o, plan, "hand", "1f1b", 1)
    measured = measure_pipeline.costs(way, *micro_batches(s, o, lab.text, 0, plan.m))
    line = timing_pipeline.step("1f1b", plan.p, plan.m, 1, measured)
    shared = sum(line.work) / min(plan.p, limits.cores()) if s.device.type == "cpu" else 0.0
    predicted = max(line.seconds, shared)  # ranks on the same cores take turns
    optimizer = torch.optim.AdamW(way.stages[s.rank].parameters(), lr=o.lr)
    for step in range(o.steps):
        batch = micro_batches(s, o, lab.text, step + 1, plan.m)
        s.barrier()
        begin = s.clock()
        losses.append(way.step(*batch))
        seconds.append(s.largest(s.clock() - begin))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    ends = s.gathered([w.detach().cpu() for w in pipeline_stage.tied_weights(way.stages)])
    tables = [w for row in ends for w in row]
    distance = max(((w - tables[0]).abs().max().item() for w in tables), default=0.0)  # one stage has no copy
    lab.check("token table and tied head are equal after training", distance, 0.0)
    lab.predict("seconds per step, training", predicted, statistics.median(seconds[WARMUP:]))
    lab.notes.insert(0, way.built)
    return losses, seconds, predicted


def skips(lab, plan):
    """What this run leaves out."""
    s = lab.s
    lab.skip("Accelerate: it has no pipeline of its own for training (prepare_pippy is for inference)")
    if s.world == 1:
        lab.skip(
            "bubbles, lanes and torch's schedules: one process is no pipeline (torchrun --nproc-per-node 2 "
            "labs/pipeline.py)"
        )
        return
    for name, v in plan.chosen:
        needs = f"over gloo it needs torch 2.13, this is {torch.__version__}"
        lab.skip(not pipeline_ways.torch_has(s, name) and f"torch's {lab_pipeline.title(name, v)}: {needs}")


# --- the lab ----------------------------------------------------------------------------------------------------


def sleep(lab, plan):
    """Bubbles of all schedules on stages that sleep; the spans of the lanes that are shown."""
    rows, shown = pipeline_sleep.schedules(lab.s, plan, ways(lab.s, plan))
    lab.notes += lab_pipeline.explain(rows)
    lab.s.say(f"\n{lab_pipeline.bubbles(rows)}\n\n{lab_pipeline.both_lanes(**shown)}")
    for row in rows:
        label = f"{row['name']}, {lab_pipeline.VIAS[row['via']]}, {row['ms']:g} ms stages"
        lab.predict(f"seconds per step, {label}", row["predicted"], row["measured"])
        lab.predict(f"bubble of the step, {label}", row["bubble"], row["found"])
    return shown["measured"]


def whole(lab, plan):
    """Check, sleep, weigh, train, record. Exit code 1 where a check failed."""
    s, o = lab.s, lab.o
    equality(lab, plan)
    spans = sleep(lab, plan) if s.world > 1 else None
    rows = memory(lab, plan)
    s.say("\n".join([*lab.notes, "", lab_pipeline.memory(rows), ""]))
    losses, seconds, predicted = train(lab, plan)
    skips(lab, plan)
    most = max((max(measured) for _, _, measured in rows), default=0)
    recipe = asdict(Recipe(precision="fp32")) | {
        "schedules": ", ".join(lab_pipeline.title(*schedule) for schedule in plan.chosen),
        "micro_batches": plan.m,
        "stage ms": o.stage_ms,
        "hop ms": o.hop_ms,
    }
    peak = {"activations": most} | session.allocator(s, "allocator: ")
    r = lab.record(seconds, losses, recipe, o.micro_batch * plan.m, peak_memory=peak)
    lab.report(r, lab_pipeline.training(r, predicted, s.world))
    write_trace(lab, spans)
    lab.end()


def write_trace(lab, spans):
    """--trace, on rank 0."""
    if spans:
        lab.write("trace", lambda path: files.write_json(lab_pipeline.trace(spans), path), runner.PERFETTO)


def refuse(lab, plan):
    """Refuse what could not work, before any work. ValueError, one line."""
    s, o = lab.s, lab.o
    lab.refuse()
    plan.refuse()
    lab_pipeline.refuse(s.world, s.nodes, s.device.type, o.fault, o.hop_ms, o.trace)
    if o.fault != "none":
        idle = ("trace", "stage_ms", "repeats") if o.fault == "both-send" else ()  # which sleeps for no stage
        lab.refuse_idle(f"--fault {o.fault}", "schedules", "steps", "lr", *idle)


def main(s, argv=None):
    """The whole lab, or one fault."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv, warmup=WARMUP)
    o = lab.o
    plan = Plan(o, s.world)
    refuse(lab, plan)
    lab.begin(f"{plan.m} micro-batches of {o.micro_batch} x {o.seq} tokens")
    if o.fault == "none":
        whole(lab, plan)
    else:
        write_trace(lab, pipeline_faults.FAULTS[o.fault](s, plan))


if __name__ == "__main__":
    session.run(main)
