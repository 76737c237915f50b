"""Rung 01: train a transformer on real text, and compare the memory that it takes with the prediction.

python labs/memory.py
torchrun --nproc-per-node 2 labs/memory.py --save
accelerate launch --config_file labs/launch/accelerate.yaml --num_processes 2 labs/memory.py --via accelerate
python labs/memory.py --fake 70b           a step of any size on fake tensors: shapes, no data
python labs/memory.py --model config.json  a model of Hugging Face's: --model config.json --help has its options
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import statistics
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch

from scaleout.lab import compare, corpus, fits, numbers, options, progress, runner, session, summary
from scaleout.measure import measure, memory_trace, watch
from scaleout.memory import Account, account
from scaleout.parallel import ROUTES, Replicas, Training, parity
from scaleout.spec import (
    CHOICES,
    MEASURED,
    Job,
    Layout,
    Recipe,
    cluster,
    flops,
    preset,
    total_parameters,
)
from scaleout.timing import calibrated, machine, step_on
from scaleout.timing import profile as timing_profile

WARMUP = 3  # DDP rebuilds its buckets in the second step
PARITY_TOKENS = 256  # at most, of each sequence: every rank also runs the sequences of all ranks


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, the recipe, and what to do with the result."""

    layers: int = options.number(4, "blocks")
    hidden: int = options.number(160, "width of the residual stream")
    heads: int = options.number(5, "attention heads")
    kv_heads: int | None = options.number(None, "key-value heads (default: as many as heads)")
    gated_mlp: bool = options.flag("SwiGLU: three matrices instead of two")
    seq: int = options.number(128, "tokens per sequence")
    micro_batch: int = options.number(4, "sequences per rank and step")
    steps: int = options.number(20, "training steps", WARMUP + 1, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    precision: str = options.choice("fp32", CHOICES["precision"], "dtypes by role")
    optimizer: str = options.choice("adamw", ("sgd", "momentum", "adamw"), "what steps the weights")
    foreach: bool = options.flag("step all tensors at once", True)
    attention: str = options.choice("sdpa", ("sdpa", "naive"), "kernel")
    dropout: float = options.number(0.0, "probability", 0, 0.99)
    checkpointing: str = options.choice("none", CHOICES["checkpointing"], "what the backward pass recomputes")
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
    model: str | None = options.word(None, "a config.json of Hugging Face's, with options of its own (--help)")

    @property
    def recipe(self):
        """The memory recipe of these options."""
        return Recipe(**{f.name: getattr(self, f.name) for f in fields(Recipe) if hasattr(self, f.name)})


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


def equality(lab):
    """Check N ranks on one sequence each against this process on all of them, fp32, no dropout."""
    s, o = lab.s, lab.short(PARITY_TOKENS, dropout=0.0)
    torch.manual_seed(o.seed)  # the same weights on every rank, without help from DDP
    model = Training(o.shape, o.recipe, s.device, o.lr).model

    def trained(via):
        alone = via == "one"
        (batch,) = lab.batches(0, alone, o)
        replicas = None if alone else Replicas(s, model, via, o.bucket_view)
        loss, grads = parity.loss_and_gradients(model, *batch, replicas)
        return {"loss": [loss], "gradients": grads}

    ways = ("hand", "torch") if o.via != "accelerate" else ROUTES
    lab.equality(trained, ways, {via: via for via in ways})


# --- train and measure ------------------------------------------------------------------------------------


class Run:
    """A training run on this rank: `step` makes one step and returns the mean loss over ranks."""

    def __init__(self, lab):
        s, o = self.s, self.o = lab.s, lab.o
        self.lab = lab
        torch.manual_seed(o.seed)
        self.training = Training(o.shape, o.recipe, s.device, o.lr)
        self.replicas = Replicas(s, self.training.model, o.via, o.bucket_view)
        if self.replicas.accelerator is not None:
            self.training.optimizer = self.replicas.accelerator.prepare(self.training.optimizer)

    def batch(self, step):
        """(tokens, targets) of this rank."""
        return self.lab.batches(step)[0]

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


def predict_seconds(lab, spent):
    """Add the predicted step time; (MFU, its peak), both None without a machine profile."""
    s, o, profile = lab.s, lab.o, lab.profile
    if profile is None:
        lab.skip("seconds and MFU: no machine profile (labs/calibrate.py at this number of processes)")
        return None, None
    work = flops(o.shape, o.micro_batch, o.seq, o.checkpointing)
    dtype, middle = "fp32" if o.precision == "fp32" else "bf16", statistics.median(spent[WARMUP:])
    runs = replace(MEASURED, data_overlap=s.device.type == "cuda")
    layout, device = Layout(dp=s.world), machine.device_of(profile)
    job = Job(o.shape, o.seq, device, cluster(1, s.world), o.micro_batch, layout, o.recipe, runs)
    guess = step_on(job, machine.from_profiles(job, {s.world: profile})).seconds
    lab.predict("seconds per step", guess, middle)
    lab.skip(*calibrated.lacking(profile))
    return timing_profile.mfu(profile, work["forward"] + work["backward"], dtype, middle)


def draw(lab, timeline, shape):
    """The picture that --plot asks for."""
    title = f"Memory of one step, {total_parameters(shape) / 1e6:,.1f} M parameters"
    lab.write("plot", lambda path: memory_trace.plot(timeline, path, title))


def train(lab):
    """Check, train, measure, compare, record. Exit code 1 where a check failed."""
    s, o = lab.s, lab.o
    lab.begin(f"{o.precision}, {o.micro_batch} x {o.seq} tokens per rank and step")
    if s.world > 1:
        equality(lab)
    run = Run(lab)
    lab.notes.append(run.replicas.built)
    s.say(f"built: {run.replicas.built}\n")
    spent, losses = run.train()
    seen, timeline = run.measured()
    wanted = predicted(o, run.replicas)
    s.say(compare(wanted, seen))
    if s.world > 1:
        lab.check("weights are equal on all ranks", run.replicas.spread(), 0.0)
    lab.check_prediction("peak within 2% of the prediction", wanted.peak_bytes, seen.peak_bytes)
    lab.prediction, lab.measurement = numbers(wanted), numbers(seen)
    mfu, peak = predict_seconds(lab, spent)
    lab.skip(
        s.world == 1 and "equal to one process: this run is one process (torchrun --nproc-per-node 2)",
        s.world > 1 and o.via != "accelerate" and "Accelerate: not asked for (--via accelerate)",
    )
    lab.stall(spent, "step")
    memory = seen.peak | session.allocator(s, "allocator: ")
    batch = o.micro_batch * s.world
    r = lab.record(spent, losses, asdict(o.recipe), batch, peak_memory=memory, mfu=mfu, mfu_peak=peak)
    lab.report(r, *summary(r), way=o.via)
    draw(lab, timeline, o.shape)
    if o.snapshot:
        source = memory_trace.snapshot(s, lambda: run.one(run.batch(0)), o.snapshot)
        s.say(f"snapshot: {Path(o.snapshot).name}, from {source}; open it at https://docs.pytorch.org/memory_viz")
    lab.end()


# --- fake tensors -----------------------------------------------------------------------------------------

FAKE = {f.name for f in fields(Recipe)} | {"micro_batch", "seq", "plot", "fake"}  # the options it has a use for
SHORT = {"7b": "llama-2-7b", "13b": "llama-2-13b", "70b": "llama-2-70b", "8b": "llama-3-8b"}


def fake(lab):
    """The table of a step that this machine could not run: tensors without data, one rank, on the CPU."""
    s, o = lab.s, lab.o
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
    draw(lab, seen.timeline, shape)


def refuse(lab):
    """Refuse what could not work, before any work. ValueError, one line."""
    if lab.o.fake:
        lab.refuse_idle("--fake", *(f.name for f in fields(lab.o) if f.name not in FAKE))
        if lab.s.world > 1:
            raise ValueError("--fake measures one rank: start it with python, not torchrun")
    lab.refuse(None if lab.o.fake else fits.WEIGHTS)


def main(s, argv=None):
    """Train and measure, or measure on fake tensors."""
    words = sys.argv[1:] if argv is None else argv
    flags = {word.split("=")[0] for word in words}
    if "--model" in flags:
        from scaleout.measure import model_run  # sharding and more, which a training of the book's model does not need

        model_run.main(s, __file__, words)
        return
    sizes = "gpu" if "--fake" in flags else "smoke"
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv, warmup=WARMUP, defaults=sizes)
    refuse(lab)
    (fake if lab.o.fake else train)(lab)


if __name__ == "__main__":
    session.run(main)
