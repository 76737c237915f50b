"""The training job's trainer under layouts of eight ranks and of four, each of which goes on from the checkpoint of
another."""

import logging
from dataclasses import replace
from functools import partial

import specimen_capstone
import torch

from scaleout.measure import layout_bytes
from scaleout.memory import mesh_torch
from scaleout.parallel import shard
from scaleout.spec.layout import Layout
from scaleout.spec.pipeline import SCHEDULES
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape
from scaleout.train.checkpoint import Checkpoints
from scaleout.train.mesh_trainer import MeshTrainer
from scaleout.train.trainer import Setup, Trainer, sample

# fourteen rows of an MLP do not fall into equal shards of 2 x 4 ranks, nor 36 of eight
LLAMA = Shape(
    4, 24, 4, 64, ff=28, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", tied_head=False, max_seq=16
)
GPT = Shape(4, 24, 4, 64, ff=36, max_seq=16)
SHAPES = {"llama": LLAMA, "gpt": GPT}
BATCH, RATE, CLIP = 16, 1e-3, {"llama": 0.475, "gpt": 0.73}
TRIPLE = Layout(dp=2, tp=2, pp=2, zero=3, micro_batches=2)
CHAIN = {
    "2x2x2": TRIPLE,
    "1x2x4": Layout(tp=2, pp=4, zero=2, micro_batches=4),
    "shards": None,
    "replicas": Layout(dp=2, pp=2, micro_batches=2, chunks=2, schedule="interleaved"),
}
CHAINS = {"llama": ("2x2x2", "shards", "1x2x4"), "gpt": ("replicas", "shards")}
WORLDS = {"llama": 8, "gpt": 4}
batch = partial(specimen_capstone.batch, sequences=BATCH)


def make(s, form, layout, seed):
    """(trainer, batch(step) of the replica that this rank is of)."""
    shape, more = SHAPES[form], {"clip": CLIP[form], "seed": seed}
    if layout is None:
        return Trainer(s, Setup(shape, sharding=Sharding(s.world), **more)), lambda step: batch(step, s.rank, s.world)
    made = MeshTrainer(s, Setup(shape, "mesh", layout=layout, sequences=BATCH // layout.dp, **more))
    return made, lambda step: batch(step, made.way.at["dp"], layout.dp, layout.m)


def whole(made):
    """{name: numbers} of this rank's parameters, gathered."""
    found = made.way.whole() if isinstance(made, MeshTrainer) else shard.whole(made.model)
    return {name: tensor.flatten().tolist() for name, tensor in found.items()}


def chain(s, form, folder):
    """By layout: losses and norms of two steps, and whether its weights at their begin are those that were saved."""
    found, saved, step = {}, None, 0
    for seed, name in enumerate(CHAINS[form]):
        made, own = make(s, form, CHAIN[name], seed=seed)
        kept = Checkpoints(s, folder, keep=99)
        if saved is not None:
            assert kept.load(made.model, made.optimizer) == {"step": step}
        begun = whole(made)
        rows = [made.step(own(step + i), RATE) for i in (0, 1)]
        step += 2
        every = {key: value for each in s.gathered(whole(made)) for key, value in each.items()}
        found[name] = {
            "loaded": saved is None or all(s.gathered(all(saved[key] == value for key, value in begun.items()))),
            "losses": [s.mean(loss.item()) for loss, _ in rows],
            "norms": [norm.item() for _, norm in rows],
            "validation": made.evaluate(own(99)),
            "built": made.built,
            "sample": list(sample(made, b"\x05", 3, 0.0)),
        }
        kept.save(step, made.model, made.optimizer, {"step": step})
        kept.finish()
        saved = every
    return found


def alone(s, form):
    """(losses, norms) of torch's own AdamW and clipping on one process, without a stop, validation after each two."""
    apart = replace(s, rank=0, world=1)
    made = Trainer(apart, Setup(SHAPES[form], "one", clip=CLIP[form]))
    rows, validations, texts = [], [], []
    for step in range(2 * len(CHAINS[form])):
        rows.append(made.step(batch(step), RATE))
        if step % 2:
            validations.append(made.evaluate(batch(99)))
            texts.append(list(sample(made, b"\x05", 3, 0.0)))
    return {
        "losses": [loss.item() for loss, _ in rows],
        "norms": [norm.item() for _, norm in rows],
        "validations": validations,
        "samples": texts,
    }


BIG = Shape(
    8,
    128,
    8,
    4096,
    ff=352,
    gated_mlp=True,
    bias=False,
    norm="rmsnorm",
    positions="rotary",
    tied_head=False,
    max_seq=128,
)
HELD = {
    8: (replace(TRIPLE, micro_batches=4), Layout(dp=2, pp=4, zero=2, micro_batches=4)),
    4: (
        Layout(dp=2, tp=2, zero=3),
        Layout(tp=2, pp=2, micro_batches=4, schedule="gpipe"),
        Layout(dp=2, pp=2, chunks=2, micro_batches=4, schedule="interleaved"),
    ),
}


def held(s, layout):
    """By rank: (measured, predicted) peak bytes of a step, with two blocks per stage."""
    shape = replace(BIG, layers=2 * layout.stages)
    made = MeshTrainer(s, Setup(shape, "mesh", layout=layout))
    some = [(torch.zeros(2, 128, dtype=torch.long),) * 2 for _ in range(layout.m)]
    made.step(some, RATE)  # from here on AdamW has its states
    priced = replace(layout, sequence_parallel=layout.tp > 1, gather_again=layout.tp == 1)
    return s.gathered(
        (
            sum(layout_bytes.peak(made, some).values()),
            mesh_torch.peak(shape, 2, 128, Recipe("fp32", foreach=False), priced, made.way.at["pp"]),
        )
    )


def half(s):
    """Losses of steps whose products are in bf16, and how the weights are kept, by rank."""
    layout = replace(TRIPLE, dp=1)
    made = MeshTrainer(s, Setup(LLAMA, "mesh", layout=layout, sequences=BATCH, precision="bf16", clip=CLIP["llama"]))
    losses = [s.mean(made.step(batch(step, passes=layout.m), RATE)[0].item()) for step in range(3)]
    return losses, s.gathered({str(p.dtype) for p in made.way.parameters()})


def looks(s):
    """{schedule: losses of validations before and after each of two steps}, and under "alone" those of one process."""
    apart, found = replace(s, rank=0, world=1), {}
    cases = {
        name: Layout(dp=2, pp=2, micro_batches=4, chunks=kind.chunks[1] or 2, schedule=name)
        for name, kind in SCHEDULES.items()
    }
    for name, layout in [*cases.items(), ("alone", None)]:
        if layout is None:
            made, own = Trainer(apart, Setup(GPT, "one")), batch
        else:
            made = MeshTrainer(s, Setup(GPT, "mesh", layout=layout, sequences=BATCH // layout.dp))
            own = partial(batch, rank=made.way.at["dp"], world=layout.dp, passes=layout.m)
        found[name] = [made.evaluate(own(99))]
        for step in range(2):
            made.step(own(step), RATE)
            found[name].append(made.evaluate(own(99)))
    return found


def main(s, folder):
    """What is asked of as many ranks as there are: layouts one after the other, bytes, half precision."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # whole tensors, for a look
    forms = [form for form, world in WORLDS.items() if world == s.world]
    found = {form: (chain(s, form, folder / form), alone(s, form)) for form in forms}
    found[f"bytes on {s.world}"] = [held(s, layout) for layout in HELD[s.world]]
    return found | ({"half": half(s), "looks": looks(s)} if s.world == 4 else {})
