"""The trainer's ways to spread a model, on the ranks of one group."""

from dataclasses import replace

import torch

from scaleout.parallel import shard
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape
from scaleout.train.trainer import BETAS, Setup, Trainer, sample

SHAPE = Shape(2, 32, 4, 64, max_seq=16, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", tied_head=False)
STEPS, BATCH, RATE, CLIP = 4, 8, 0.01, 0.7
CASES = {
    "block": {"sharding": Sharding(2)},
    "kept": {"sharding": Sharding(2, reshard=False)},
    "whole": {"sharding": Sharding(2, wrap="model")},
    "layer": {"sharding": Sharding(2, wrap="layer")},
    "copies": {"sharding": Sharding(1, 2)},
    "recomputed": {"sharding": Sharding(2), "checkpointing": "full"},
    "accumulated": {"sharding": Sharding(2), "passes": 2},
    "every pass": {"sharding": Sharding(2), "passes": 2, "sync_every_pass": True},
    "ddp": {"strategy": "ddp"},
    "ddp accumulated": {"strategy": "ddp", "passes": 4},
    "ddp every pass": {"strategy": "ddp", "passes": 2, "sync_every_pass": True},
}


def batch(step, rank=0, world=1, passes=1, sequences=BATCH):
    """A rank's share of the same sequences, a pair a pass."""
    chance = torch.Generator().manual_seed(step)
    tokens = torch.randint(64, (sequences, 17), generator=chance)
    own = tokens[rank * sequences // world : (rank + 1) * sequences // world]
    return [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in own.chunk(passes)]


def reference(alone):
    """(losses, norms, weights) of torch's own clip_grad_norm_ and AdamW on one process."""
    model = Trainer(alone, Setup(SHAPE, "one")).model
    groups = [
        {"params": [p for p in model.parameters() if (p.ndim > 1) == big], "weight_decay": decay}
        for big, decay in ((True, 0.1), (False, 0.0))
    ]
    optimizer, losses, norms = torch.optim.AdamW(groups, lr=RATE, betas=BETAS), [], []
    for step in range(STEPS):
        loss = model(*batch(step)[0])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms, {name: p.detach().clone() for name, p in model.named_parameters()}


def case(s, wanted, passes=1, **setup):
    """Largest relative errors against the reference, and what was built."""
    losses, norms, weights = wanted
    trainer = Trainer(s, Setup(SHAPE, clip=CLIP, **setup))
    pairs = [trainer.step(batch(step, s.rank, s.world, passes), RATE) for step in range(STEPS)]
    found = shard.whole(trainer.model)
    far = max((found[name] - w).abs().max().item() / w.abs().max().item() for name, w in weights.items())
    worst = lambda a, b: max(abs(x / y - 1) for x, y in zip(a, b, strict=True))  # noqa: E731
    return {
        "loss": worst([s.mean(loss.item()) for loss, _ in pairs], losses),
        "weights": s.largest(far),
        "norm": worst([norm.item() for _, norm in pairs], norms),
        "built": trainer.built,
        "validation": trainer.evaluate(batch(9, s.rank, s.world)),
        "sample": list(sample(trainer, b"\x05", 6, 0.0)),
        "drawn": list(sample(trainer, b"\x05", 6, 1.0, seed=4)),
    }


def main(s):
    """All cases."""
    wanted = reference(replace(s, rank=0, world=1))
    out = {name: case(s, wanted, **words) for name, words in CASES.items()}
    out["norms"] = wanted[1]
    return out
