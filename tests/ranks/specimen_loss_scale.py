"""Steps in fp16 on two ranks, by every way to spread the model."""

from dataclasses import replace
from itertools import pairwise

import torch
import torch.distributed as dist
from specimen_capstone import CLIP, RATE, SHAPE, batch

from scaleout.parallel import shard
from scaleout.spec.sharding import Sharding
from scaleout.train.trainer import Setup, Trainer, sample

STEPS, SCALE = 5, 1024.0
WAYS = {
    "ddp": {"strategy": "ddp"},
    "ddp accumulated": {"strategy": "ddp", "passes": 2},
    "block": {"sharding": Sharding(2, parameter="fp16")},
    "accumulated": {"sharding": Sharding(2, parameter="fp16"), "passes": 2},
    "every pass": {"sharding": Sharding(2, parameter="fp16"), "passes": 2, "sync_every_pass": True},
    "copies": {"sharding": Sharding(1, 2, parameter="fp16")},
}


def trainer(s, **setup):
    """A Trainer whose scale starts low, and so stays as it is, and doubles after two good steps."""
    made = Trainer(s, Setup(SHAPE, precision="fp16", clip=CLIP, **setup))
    assert made.scale.item() == 2**16  # a scaler is made at its first use
    made.scaler.update(SCALE)
    made.scaler.set_growth_interval(2)
    return made


def course(s, passes=1, **setup):
    """Five steps, the third with a loss on rank 1 alone that its scaled gradient cannot hold."""
    made, rows, weights = trainer(s, **setup), [], []
    usual = made.loss
    too_large = lambda *pair: usual(*pair) * 1e6  # noqa: E731
    for step in range(STEPS):
        made.loss = too_large if (step, s.rank) == (2, 1) else usual
        scale = made.scale.item()
        loss, norm = made.step(batch(step, s.rank, s.world, passes), RATE)
        rows.append([s.mean(loss.item()), norm.item() if norm.isfinite() else None, scale])
        weights.append(torch.cat([w.flatten() for w in shard.whole(made.model).values()]))
    every = [None] * s.world
    dist.all_gather_object(every, [rows, [w.sum().item() for w in weights]])
    steps = {int(state["step"].item()) for state in made.optimizer.state.values()}
    return {
        "rows": rows,
        "alike": every[0] == every[1],
        "steps": sorted(steps),
        "built": made.built,
        "stood still": [torch.equal(a, b) for a, b in pairwise(weights)],
        "sample": len(sample(made, b"\x05", 3)),
    }


def main(s):
    """All ways, and the losses of one process in fp32 on the same batches, without the step left out."""
    alone = Trainer(replace(s, rank=0, world=1), Setup(SHAPE, "one", clip=CLIP))
    wanted = [[x.item() for x in alone.step(batch(step), RATE)] if step != 2 else None for step in range(STEPS)]
    out = {name: course(s, **words) for name, words in WAYS.items()}
    return {"ways": out, "wanted": wanted}
