"""Rung 01: train a transformer on real text, and set the bytes it takes beside the bytes predicted.

python labs/memory.py
torchrun --nproc-per-node 2 labs/memory.py --save
accelerate launch --config_file labs/launch/accelerate.yaml --num_processes 2 labs/memory.py --via accelerate
python labs/memory.py --fake 70b           a step of any size on fake tensors: sizes, no contents
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import statistics
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch

from scaleout.lab import compare, corpus, fits, numbers, options, progress, recording, session, summary
from scaleout.measure import measure, memory_trace, watch
from scaleout.memory import Account, account
from scaleout.parallel import ROUTES, Replicas, Training, parity
from scaleout.records import profiles
from scaleout.spec import (
    CHOICES,
    MEASURED,
    Job,
    Layout,
    Recipe,
    Shape,
    cluster,
    flops,
    preset,
    total_parameters,
)
from scaleout.timing import calibrated, machine, step_on
from scaleout.timing import profile as timing_profile

TOLERANCE = 0.02  # of the peak, and what the book promises
RESULTS = Path(__file__).resolve().parent / "results" / "memory"
WARMUP = 3  # DDP rebuilds its buckets in the second step
PARITY_TOKENS = 256  # at most, of each sequence: every rank also runs the sequences of all ranks


@dataclass(frozen=True)
class Options:
    """The model, the step, the recipe, and what to do with the result."""

    layers: int = options.number(4, "blocks")
    hidden: int = options.number(160, "width of the residual stream")
    heads: int = options.number(5, "attention heads")
    kv_heads: int | None = options.number(None, "key-value heads (default: as many as heads)")
    gated_mlp: bool = options.flag("SwiGLU: three matrices instead of two")
    seq: int = options.number(128, "tokens a sequence")
    micro_batch: int = options.number(4, "sequences a rank and step")
    steps: int = options.number(20, "training steps", WARMUP + 1, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    precision: str = options.choice("fp32", CHOICES["precision"], "dtypes by role")
    optimizer: str = options.choice("adamw", ("sgd", "momentum", "adamw"), "what steps the weights")
    foreach: bool = options.flag("step all tensors at once", True)
    attention: str = options.choice("sdpa", CHOICES["attention"], "kernel")
    dropout: float = options.number(0.0, "probability", 0, 0.99)
    checkpointing: str = options.choice("none", CHOICES["checkpointing"], "what backward computes again")
    gradients: str = options.choice("fresh", CHOICES["gradients"], "between steps: set to None, or kept and zeroed")
    via: str = options.choice("torch", ROUTES, "what makes the replicas")
    bucket_view: bool = options.flag("gradients are views of DDP's buckets")
    dataset: str | None = options.dataset()
    machine: str | None = options.word(None, "profile by labs/calibrate.py")
    save: str | None = options.save("memory")
    plot: str | None = options.word(None, "draw memory over time", "FILE.svg")
    snapshot: str | None = options.word(
        None, "write every allocation of a step, for docs.pytorch.org/memory_viz", "FILE.pickle"
    )
    fake: str | None = options.word(None, "no training: measure a step of 7b, 70b or a preset on fake tensors", "MODEL")

    @property
    def recipe(self):
        """The memory recipe of these options."""
        return Recipe(**{f.name: getattr(self, f.name) for f in fields(Recipe) if hasattr(self, f.name)})

    @property
    def shape(self):
        """The transformer of these options, on bytes."""
        return Shape(
            self.layers,
            self.hidden,
            self.heads,
            corpus.VOCABULARY,
            kv_heads=self.kv_heads,
            gated_mlp=self.gated_mlp,
            max_seq=self.seq,
        )


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=12, seq=256, micro_batch=8, steps=150),
    "gpu": Options(
        layers=20,
        hidden=2048,
        heads=16,
        seq=2048,
        micro_batch=4,
        steps=50,
        lr=3e-4,
        precision="autocast-bf16",
        dataset=corpus.LIBRARY,
    ),
}


# --- the same as one process? ----------------------------------------------------------------------------


def equality(s, o, text):
    """Checks of a Record: N ranks on one sequence each against this process on all of them, fp32, no dropout."""
    if s.world == 1:
        return {}
    seq = min(o.seq, PARITY_TOKENS)
    torch.manual_seed(o.seed)  # the same weights on every rank, without help from DDP
    training = Training(o.shape, replace(o.recipe, precision="fp32", dropout=0.0), s.device, o.lr)
    share = session.batch(text, 0, 1, seq, s.rank, s.world, o.seed, s.device)
    whole_batch = session.batch(text, 0, s.world, seq, seed=o.seed, device=s.device)
    wanted_loss, wanted = parity.loss_and_gradients(training.model, *whole_batch)
    checks = {}
    for via in ("hand", "torch") if o.via != "accelerate" else ROUTES:
        loss, grads = parity.loss_and_gradients(training.model, *share, Replicas(s, training.model, via, o.bucket_view))
        error = abs(s.mean(loss) - wanted_loss) / wanted_loss
        checks[f"{via}: loss equals one process"] = parity.check(error)
        checks[f"{via}: gradients equal one process"] = parity.check(parity.worst(s, grads, wanted))
    return checks


# --- train and measure ------------------------------------------------------------------------------------


class Run:
    """A training run on this rank: `step` makes one step and returns the mean loss over ranks."""

    def __init__(self, s, o, text):
        self.s, self.o, self.text = s, o, text
        torch.manual_seed(o.seed)
        self.training = Training(o.shape, o.recipe, s.device, o.lr)
        self.replicas = Replicas(s, self.training.model, o.via, o.bucket_view)
        if self.replicas.accelerator is not None:
            self.training.optimizer = self.replicas.accelerator.prepare(self.training.optimizer)

    def batch(self, step):
        """(tokens, targets) of this rank."""
        o, s = self.o, self.s
        return session.batch(self.text, step, o.micro_batch, o.seq, s.rank, s.world, o.seed, s.device)

    def one(self, batch, before_update=lambda: None):
        """Forward, backward, update; returns this rank's loss, a tensor."""
        loss = self.training.loss(*batch, self.replicas)
        self.replicas.backward(loss)
        before_update()
        self.training.step()
        return loss.detach()

    def train(self):
        """(seconds, losses) of every step, the mean loss over ranks. Gradients are emptied after each step."""
        seconds, losses = [], []
        for step in progress(range(self.o.steps), "train", self.s.main):
            batch = self.batch(step)
            self.replicas.look.watching = step == self.o.steps - 1
            start = self.s.clock()
            loss = self.one(batch)
            self.training.clear()
            seconds.append(self.s.largest(self.s.clock() - start))
            losses.append(self.s.mean(loss.item()))
        self.replicas.look.watching = False
        return seconds, losses

    def measured(self):
        """One more step under the ledger: an Account of what it allocated, with its timeline."""
        batch = self.batch(self.o.steps)
        session.reset_allocator(self.s)
        with watch(self.training, *batch, timeline=bool(self.o.plot)) as ledger:
            for bucket in self.replicas.look.buckets.values():
                ledger.claim(bucket, "gradients")
            self.one(batch, lambda: ledger.enter("optimizer"))
        self.training.clear()
        return Account(ledger.moments, {}), ledger.timeline


def predicted(o, replicas):
    """The Account of the pure model, with DDP's buckets where DDP does the work."""
    buckets = ("views" if o.bucket_view else "beside") if replicas.ddp else "none"
    return account(o.shape, o.micro_batch, o.seq, replace(o.recipe, buckets=buckets))


# --- what is said and kept --------------------------------------------------------------------------------


def seconds(s, o, spent):
    """(predicted seconds of a step, its median, MFU, its peak); without a machine profile only the median."""
    profile, middle = profiles.find(o.machine, s.device.type, s.world), statistics.median(spent[WARMUP:])
    if profile is None:
        return None, middle, None, None
    work = flops(o.shape, o.micro_batch, o.seq, o.checkpointing)
    dtype = "fp32" if o.precision == "fp32" else "bf16"
    runs = replace(MEASURED, data_overlap=s.device.type == "cuda")
    job = Job(
        o.shape,
        o.seq,
        machine.device_of(profile),
        cluster(1, s.world),
        o.micro_batch,
        Layout(dp=s.world),
        o.recipe,
        runs,
    )
    guess = step_on(job, machine.from_profiles(job, {s.world: profile})).seconds
    return guess, middle, *timing_profile.mfu(profile, work["forward"] + work["backward"], dtype, middle)


def record(s, tier, o, run, checks, wanted, seen, spent, losses):
    """The Record of this run."""
    guess, middle, mfu, peak = seconds(s, o, spent)
    prediction, measurement, skipped = numbers(wanted), numbers(seen), []
    if guess is None:
        skipped.append("seconds and MFU: no machine profile (labs/calibrate.py at this number of processes)")
    else:
        prediction["seconds a step"], measurement["seconds a step"] = guess, middle
        skipped += calibrated.lacking(profiles.find(o.machine, s.device.type, s.world))
    if s.world == 1:
        skipped.append("equal to one process: this run is one process (torchrun --nproc-per-node 2)")
    elif o.via != "accelerate":
        skipped.append("Accelerate: not asked for (--via accelerate)")
    checks["peak within 2% of the prediction"] = parity.check(abs(wanted.peak_bytes / seen.peak_bytes - 1), TOLERANCE)
    stalls = [
        f"step {i} took {t:.3g} s, the median is {middle:.3g} s"
        for i, t in enumerate(spent)
        if i >= WARMUP and t > 3 * middle
    ]
    return recording.record(
        s,
        "memory",
        tier,
        dataset=o.dataset,
        notes=[run.replicas.built],
        model=asdict(o.shape),
        recipe=asdict(o.recipe),
        effective_batch=o.micro_batch * s.world,
        sequence_length=o.seq,
        precision=o.precision,
        step_seconds=spent,
        warmup_steps=WARMUP,
        losses=losses,
        peak_memory=seen.peak | session.allocator(s, "allocator: "),
        mfu=mfu,
        mfu_peak=peak,
        prediction=prediction,
        measurement=measurement,
        checks=checks,
        skipped=skipped,
        stalls=stalls,
    )


def draw(s, o, timeline, shape):
    """The picture that --plot asks for."""
    if o.plot and s.main:
        memory_trace.plot(timeline, o.plot, f"Memory of one step, {total_parameters(shape) / 1e6:,.1f} M parameters")
        s.say(f"picture: {Path(o.plot).name}")


def train(s, tier, o):
    """Check, train, measure, compare, record. Exit code 1 where a check failed."""
    fits.check(s, o.shape)
    profiles.find(o.machine, s.device.type, s.world)  # refuse a wrong one before the work
    text = session.dataset(o.dataset, o.seq)
    s.say(f"{recording.heading(s, o.shape)}, {o.precision}, {o.micro_batch} x {o.seq} tokens a rank and step")
    checks = equality(s, o, text)
    run = Run(s, o, text)
    s.say(f"built: {run.replicas.built}\n")
    spent, losses = run.train()
    seen, timeline = run.measured()
    wanted = predicted(o, run.replicas)
    s.say(compare(wanted, seen))
    if s.world > 1:
        checks["weights are equal on all ranks"] = parity.check(run.replicas.spread(), 0.0)
    r = record(s, tier, o, run, checks, wanted, seen, spent, losses)
    s.say(summary(r))
    recording.keep(s, r, o.save, RESULTS, o.via)
    draw(s, o, timeline, o.shape)
    if o.snapshot:
        source = memory_trace.snapshot(s, lambda: run.one(run.batch(0)), o.snapshot)
        s.say(f"snapshot: {Path(o.snapshot).name}, from {source}; open it at https://docs.pytorch.org/memory_viz")
    recording.end(s, r.checks)


# --- fake tensors -----------------------------------------------------------------------------------------

FAKE = {f.name for f in fields(Recipe)} | {"micro_batch", "seq", "plot", "fake"}  # the options it has a use for
SHORT = {"7b": "llama-2-7b", "13b": "llama-2-13b", "70b": "llama-2-70b", "8b": "llama-3-8b"}


def fake(s, tier, o):
    """The table of a step that this machine could not run: sizes without contents, one rank, on the CPU."""
    options.check_idle("--fake", o, TIERS[tier], [f.name for f in fields(o) if f.name not in FAKE])
    if s.world > 1:
        raise ValueError("--fake measures one rank: start it with python, not torchrun")
    name = SHORT.get(o.fake.lower(), o.fake.lower())
    shape = preset(name)
    seq = min(o.seq, shape.max_seq)
    s.say(
        f"{name}: {total_parameters(shape) / 1e9:,.2f} G parameters, {o.precision}, {o.optimizer}, "
        f"{o.micro_batch} x {seq} tokens, checkpointing {o.checkpointing}"
    )
    wanted = account(shape, o.micro_batch, seq, o.recipe)
    seen = measure(shape, o.micro_batch, seq, o.recipe, timeline=bool(o.plot))
    s.say(f"fake tensors, CPU kernels, all {shape.layers} layers run\n")
    s.say(compare(wanted, seen))
    draw(s, o, seen.timeline, shape)


def main(s, argv=None):
    """Train and measure, or measure on fake tensors."""
    words = sys.argv[1:] if argv is None else argv
    sizes = "gpu" if any(word.split("=")[0] == "--fake" for word in words) else "smoke"
    tier, o = options.parse(TIERS, __doc__, argv, sizes)
    options.check_save(o.save, RESULTS)
    for path, kinds in ((o.plot, (".svg", ".png", ".pdf")), (o.snapshot, (".pickle",))):
        options.check_target(path, kinds)
    if o.fake:
        fake(s, tier, o)
    else:
        train(s, tier, o)


if __name__ == "__main__":
    session.run(main)
