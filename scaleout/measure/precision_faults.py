"""Four faults of low precision that look alike, a loss that is NaN or flat: an overflow, an underflow, updates that
vanish, one bad rank. Each next to a sound run in fp32 and a run with the fix, on the same batch again and again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from scaleout.lab import precision as lab_precision
from scaleout.measure.precision import Watch, largest
from scaleout.parallel.precision import PrecisionWay

STEPS = 12
GROWN = 2.0**20  # times an MLP's first matrix
DIVIDED = 2.0**14  # the loss, before the backward
SINCE = 4  # steps before a rank goes bad


@dataclass(frozen=True)
class Fault:
    """way: the one that has it; fix: the one that fixes it; rate: AdamW's."""

    words: str
    way: str
    fix: str
    rate: float = 1e-3


FAULTS = {
    "overflow": Fault("activations of one MLP have grown beyond fp16's largest number", "fp16-scaled", "bf16"),
    "underflow": Fault(
        f"the loss is divided by {DIVIDED:,.0f}, as gradient accumulation does, and nothing scales it",
        "fp16",
        "fp16-scaled",
    ),
    "stagnation": Fault(
        "a small learning rate, and bf16 weights without fp32 copies", "bf16-weights", "bf16-master", 1e-5
    ),
    "bad-rank": Fault(f"one rank's gradients have a NaN after {SINCE} steps", "fp16-scaled", "fp16-scaled"),
}


def refuse(s, fault: str) -> None:
    """ValueError, in one line, where a fault would change nothing."""
    if fault == "bad-rank" and s.world == 1:
        raise ValueError("--fault bad-rank is about several ranks: use torchrun --nproc-per-node 2 labs/precision.py")


class Follow:
    """A run of a few steps with a log of each: see lab.precision.diagnosis. role: "sound", "sick" or "fixed"."""

    def __init__(self, s, o, fault: str, name: str, role: str) -> None:
        self.s, self.fault, self.role = s, fault, role
        self.bad = fault == "bad-rank" and s.rank == s.world - 1
        self.way = PrecisionWay(s, o.shape, name, FAULTS[fault].rate, o.seed, {"growth_interval": 2000})
        self.watch, self.log = Watch(self.way), []
        if fault == "overflow":
            with torch.no_grad():
                self.way.model.blocks[-1].mlp.up.weight *= GROWN

    def run(self, batch) -> list[dict]:
        """The log: of each step "loss" (mean over ranks), "scale", "skipped", "forward" and "backward" ({layer: largest
        value}), "zero" (share of activations' gradients), "stayed" (share of weights), "ranks" (largest gradient of
        each before averaging)."""
        for step in range(STEPS):
            self.log.append(self._step(step, batch))
        return self.log

    def _step(self, step: int, batch) -> dict:
        way, row = self.way, {"scale": self.way.scale}
        with self.watch.looking():
            loss = way.loss(*batch)
            way.backward(loss / DIVIDED if self.fault == "underflow" else loss)
        if self.bad and self.role != "sound" and step >= SINCE:
            way.model.blocks[0].attention.v.weight.grad[0, 0] = math.nan
        row["ranks"] = self.s.gathered(max(largest(p.grad) for p in way.training.trained) / row["scale"])
        if self.fault == "bad-rank" and self.role == "fixed" and step >= SINCE:
            self._leave_out()
        way.average()
        way.unscale()
        olds = [p.detach().clone() for p in way.training.trained]
        way.update()
        row["skipped"] = way.skipped
        unchanged = sum((p == old).sum().item() for p, old in zip(way.training.trained, olds, strict=True))
        return row | {
            "loss": self.s.mean(loss.item()),
            "forward": self.watch.forward,
            "backward": self.watch.backward,
            "zero": self.watch.zeros[0] / max(self.watch.zeros[1], 1),
            "stayed": unchanged / sum(p.numel() for p in olds),
        }

    def _leave_out(self) -> None:
        """The fix for a bad rank: the mean is taken over the others."""
        for p in self.way.training.trained:
            p.grad = torch.zeros_like(p) if self.bad else p.grad * (self.s.world / (self.s.world - 1))


def show(s, o, fault: str, batch) -> None:
    """Run the fault, fp32 and the fix; print their logs and what the log says it is."""
    chosen = FAULTS[fault]
    sound, sick, fixed = (
        Follow(s, o, fault, name, role).run(batch)
        for role, name in (("sound", "fp32"), ("sick", chosen.way), ("fixed", chosen.fix))
    )
    s.say(f"\n{fault}: {chosen.words}\n\n{lab_precision.fault(sick, sound, fixed, chosen.fix)}")
