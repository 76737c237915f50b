"""`labs/memory.py --model FILE`: a step of the model of a config.json, in memory, beside the account of it.

    python labs/memory.py --model config.json --layers 4
    torchrun --nproc-per-node 2 labs/memory.py --model config.json --layers 4 --shard
    python labs/memory.py --model config.json --lora --precision bf16

The model is transformers' own where that package is installed (pip install transformers), with random weights and
random tokens; else the book's of that shape. One that this machine has no memory for runs on fake tensors, which have
shapes and no data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch

from scaleout.lab import limits, options, recording, runner, session
from scaleout.lab.report import compare, numbers, summary, verdicts
from scaleout.lab.text import megabytes, progress, table
from scaleout.measure import fsdp_ledger, ledger
from scaleout.measure.memory import fake_tensors
from scaleout.memory.accounts import KINDS, UNITS, Account, account
from scaleout.parallel import hugging_face, private, shard
from scaleout.parallel.recipe import Training
from scaleout.parallel.replicas import ROUTES, Replicas
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import CHOICES, Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape, check_positions, plain, total_parameters, unpriced

WARMUP = 2  # DDP rebuilds its buckets in the second step
STATES = 16  # bytes of a parameter, at least: fp32 weights, gradients and AdamW's two moments
PRECISIONS = tuple(name for name in CHOICES["precision"] if name != "bf16-master")


@dataclass(frozen=True)
class Options:
    """The model, the step, the recipe, and what to do with the result."""

    model: str = options.word("", "a config.json of the Hugging Face Hub, or the folder of one")
    layers: int | None = options.number(None, "its first blocks only (default: all)")
    seq: int = options.number(128, "tokens per sequence")
    micro_batch: int = options.number(2, "sequences per rank and step")
    steps: int = options.number(4, "training steps before the one that is measured", WARMUP + 1, 10**6)
    lr: float = options.number(1e-4, "learning rate", 0, 1000)
    seed: int = options.seed()
    precision: str = options.choice("fp32", PRECISIONS, "dtypes by role")
    optimizer: str = options.choice("adamw", ("sgd", "momentum", "adamw"), "what steps the weights")
    foreach: bool = options.flag("step all tensors at once", True)
    attention: str = options.choice("sdpa", CHOICES["attention"], "kernel")
    checkpointing: str = options.choice("none", ("none", "full"), "what the backward pass recomputes")
    lora: bool = options.flag("train PEFT's LoRA on every linear layer")
    qlora: bool = options.flag("the same on weights in NF4 (bitsandbytes)")
    rank: int = options.number(16, "rank of the adapters", 1, 4096)
    shard: bool = options.flag("fully_shard each block over all ranks, in place of DDP")
    via: str = options.choice("torch", ROUTES[1:], "what makes the replicas")
    save: str | None = options.save("memory")

    @cached_property
    def config(self) -> dict[str, Any]:
        return hugging_face.cut(self.model, self.layers)

    @cached_property
    def shape(self) -> Shape:
        return Shape.from_config(self.config)

    @cached_property
    def theirs(self) -> bool:
        """Whether the model is transformers' own."""
        return hugging_face.installed()

    @cached_property
    def recipe(self) -> Recipe:
        """As the account has it. Under `fully_shard` the precision is that of what is stored: see `sharding`."""
        return Recipe(
            "fp32" if self.shard and self.precision == "autocast-bf16" else self.precision,
            optimizer=self.optimizer,
            foreach=self.foreach,
            attention=self.attention,
            checkpointing=self.checkpointing,
            adapter="qlora" if self.qlora else "lora" if self.lora else "none",
            adapter_rank=self.rank,
            # PEFT's autocast_adapter_dtype and prepare_model_for_kbit_training
            adapter_dtype="fp32" if self.precision == "bf16" else "weight",
            unquantized="fp32" if self.qlora else "compute",
            operations="transformers" if self.theirs else "book",
        )

    def sharding(self, world: int) -> Sharding | None:
        """fp32 shards are gathered and reduced in bf16 where autocast is asked for, as Accelerate does it."""
        width = "bf16" if self.precision == "autocast-bf16" else "fp32"
        return Sharding(world, parameter=width, reduce=width) if self.shard else None


TIERS = {"smoke": Options(), "cpu": Options(steps=20), "gpu": Options(seq=2048, steps=20, precision="autocast-bf16")}


class Run:
    """The model on this rank, as it is trained: whole, in DDP, or in shards."""

    def __init__(self, lab: runner.Lab, device: torch.device) -> None:
        s, o = self.s, self.o = lab.s, lab.o
        torch.manual_seed(o.seed)
        model = made(o, device)
        if o.shard:
            shard.shard(s, model, o.sharding(s.world))
            shard.assert_built(s, model, o.shape, o.sharding(s.world))
        self.training = Training.of(model, o.recipe, device, o.lr)
        self.replicas = None if o.shard else Replicas(s, model, o.via)
        if self.replicas and self.replicas.accelerator is not None:
            self.training.optimizer = self.replicas.accelerator.prepare(self.training.optimizer)
        self.training.warm_up()
        self.device = device

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random tokens of this rank, which are their own targets."""
        source = torch.Generator().manual_seed(self.o.seed + step * self.s.world + self.s.rank)
        tokens = torch.randint(self.o.shape.vocab, (self.o.micro_batch, self.o.seq), generator=source).to(self.device)
        return tokens, tokens

    def step(self, batch: tuple[torch.Tensor, torch.Tensor], before_update: Callable[[], None] = lambda: None) -> float:
        """Forward, backward, update; this rank's loss."""
        loss = self.training.loss(*batch, self.replicas)
        self.replicas.backward(loss) if self.replicas else loss.backward()
        before_update()
        self.training.step()
        return loss.detach()

    def train(self) -> tuple[list[float], list[float]]:
        """(seconds, mean losses) of each step."""
        seconds, losses = [], []
        for step in progress(range(self.o.steps), "train", self.s.main):
            batch = self.batch(step)
            if self.replicas:
                self.replicas.look.watching = step == self.o.steps - 1
            start = self.s.clock()
            loss = self.step(batch)
            self.training.clear()
            seconds.append(self.s.largest(self.s.clock() - start))
            losses.append(self.s.mean(loss.item()))
        if self.replicas:
            self.replicas.look.watching = False
        return seconds, losses

    def measured(self) -> Account:
        """One more step under the ledger."""
        batch = self.batch(self.o.steps)
        with self._watch(batch) as seen:
            self.step(batch, lambda: seen.enter("optimizer"))
        self.training.clear()
        return Account({moment: folded(kinds) for moment, kinds in seen.moments.items()}, {})

    @contextlib.contextmanager
    def _watch(self, batch: tuple[torch.Tensor, torch.Tensor]):
        if self.o.shard:
            way = SimpleNamespace(
                s=self.s, model=self.training.model, optimizer=self.training.optimizer, hand=None, buckets={}
            )
            with fsdp_ledger.watch(way, *batch, prepend=True) as seen:
                seen.names_logits = not self.o.theirs
                yield seen
            return
        with ledger.watch(self.training, *batch) as seen:
            seen.names_logits = not self.o.theirs
            for bucket in self.replicas.look.buckets.values():
                seen.claim(bucket, "gradients")
            yield seen


def folded(kinds: dict[str, int]) -> dict[str, int]:
    """Bytes by an account's kinds: those of FSDP's own are copies of them."""
    sums = dict.fromkeys(KINDS, 0)
    for kind, size in kinds.items():
        sums[UNITS.get(kind, kind)] += size
    return sums


def made(o: Options, device: torch.device) -> torch.nn.Module:
    """Transformers' model, or the book's."""
    if o.theirs:
        return hugging_face.make(o.config, o.recipe, device)
    return Training(o.shape, o.recipe, device).model


def predicted(o: Options, world: int) -> tuple[Account | None, str]:
    """(the account of the step, "") or (None, why there is none)."""
    buckets = "none" if o.shard or world == 1 else "beside"
    layout = Layout(dp=world, zero=3 if o.shard else 0)
    try:
        recipe = replace(o.recipe, buckets=buckets)
        found = account(o.shape, o.micro_batch, o.seq, recipe, layout, sharding=o.sharding(world))
    except ValueError as error:
        return None, str(error)
    return found, "; ".join(unpriced(o.shape, o.seq)) if o.theirs else ""


def refuse(lab: runner.Lab) -> bool:
    """Refuse, in one line, what could not work; returns whether the step runs on fake tensors."""
    s, o = lab.s, lab.o
    check_positions(o.shape, o.seq)
    if not o.theirs:
        _refuse_ours(o)
    if o.shard and o.via != "torch":
        raise ValueError("--shard is torch's fully_shard: leave out --via")
    if o.lora and o.qlora:
        raise ValueError("--lora and --qlora are two kinds of adapters: leave out one")
    if o.shard and o.recipe.adapter != "none":
        raise ValueError("--shard is of whole models here: leave out --lora and --qlora")
    lab.refuse(None)
    least = STATES * total_parameters(o.shape) if o.recipe.adapter == "none" else 4 * total_parameters(o.shape)
    memory = (
        torch.cuda.get_device_properties(s.device).total_memory
        if s.device.type == "cuda"
        else limits.memory() / s.local_world
    )
    if least <= memory:
        return False
    if s.world > 1:
        raise ValueError(
            f"the states alone take {least / 1e9:,.1f} GB, and each process has {memory / 1e9:,.1f} GB: use fewer "
            "--layers, or python, which takes fake tensors"
        )
    return True


def _refuse_ours(o: Options) -> None:
    try:
        plain(o.shape)
    except ValueError:
        raise ValueError(
            "the book's own blocks are none of this model, and transformers is not installed: pip install transformers"
        ) from None
    if o.qlora or o.lora:
        raise ValueError("--lora and --qlora are PEFT's: pip install transformers peft")
    if o.attention == "flash":
        raise ValueError("the book's own attention is sdpa or naive: pip install transformers flash-attn")


def say_measured(lab: runner.Lab, seen: Account) -> None:
    """A table of what is measured, where nothing is predicted."""
    rows = [(name, megabytes(sum(kinds.values()))) for name, kinds in seen.moments.items()]
    kinds = [(kind, megabytes(size)) for kind, size in seen.peak.items() if size]
    lab.s.say(table(("at the peak, one rank", "measured"), kinds) + "\n")
    lab.s.say(table(("moment of the step", "measured"), rows))


def judge(lab: runner.Lab, seen: Account) -> None:
    """The measured step beside the account, where there is one of it."""
    wanted, why = predicted(lab.o, lab.s.world)
    if wanted is None:
        say_measured(lab, seen)
        lab.skip(f"prediction: {why}")
        return
    lab.s.say(compare(wanted, seen))
    lab.prediction, lab.measurement = numbers(wanted), numbers(seen)
    if why:
        lab.skip(f"check of the peak: not priced is {why}")
    else:
        lab.check_prediction("peak within 2% of the prediction", wanted.peak_bytes, seen.peak_bytes)


# --- the run ----------------------------------------------------------------------------------------------------------


def fake(lab: runner.Lab) -> None:
    """The step of a model that this machine has no memory for: tensors without data, one rank, on the CPU."""
    looks = hugging_face.without_values() if lab.o.theirs else contextlib.nullcontext()
    lab.s.say("more than this machine has memory for: on fake tensors, which have shapes and no data\n")
    with fake_tensors(), looks:
        try:
            seen = Run(lab, torch.device("cpu")).measured()
        except private.DynamicOutputShape:
            raise ValueError("experts are chosen by values, which fake tensors lack: use fewer --layers") from None
    judge(lab, seen)
    lab.skip(lab.o.save and "the Record: fake tensors take no seconds and have no loss")
    lab.s.say("\n".join(verdicts(lab.checks, lab.skipped)))


def train(lab: runner.Lab) -> None:
    """Train, measure a step, and keep the Record."""
    s, o = lab.s, lab.o
    run = Run(lab, s.device)
    built = "fully_shard" if o.shard else run.replicas.built
    lab.notes += [f"{'transformers' if o.theirs else 'the book'}: {type(run.training.model).__name__}, {built}"]
    s.say(f"built: {built}\n")
    spent, losses = run.train()
    session.reset_allocator(s)
    seen = run.measured()
    judge(lab, seen)
    if run.replicas and s.world > 1:
        lab.check("weights are equal on all ranks", run.replicas.spread(), 0.0)
    memory = seen.peak | session.allocator(s, "allocator: ")
    r = lab.record(spent, losses, asdict(o.recipe), o.micro_batch * s.world, peak_memory=memory)
    way = "-".join(["model", *["shard"] * o.shard, *[o.via] * (o.via != "torch")])
    lab.report(r, *summary(r), way=way)


def main(s: session.Session, file: str, argv: list[str]) -> None:
    """Measure the model of --model."""
    lab = runner.Lab(s, file, __doc__, TIERS, argv, warmup=WARMUP)
    on_fake_tensors = refuse(lab)
    o = lab.o
    s.say(f"{recording.heading(s, o.shape)} in {o.shape.layers} blocks, {o.micro_batch} x {o.seq} tokens per rank")
    s.say(
        "transformers' own model, with random weights"
        if o.theirs
        else "transformers is not installed: these are the book's own blocks, of that shape"
    )
    (fake if on_fake_tensors else train)(lab)
    lab.end()
