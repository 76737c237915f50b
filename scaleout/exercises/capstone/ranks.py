"""Check the lab exercise `resume-job` on two processes.

    python -m scaleout.exercises.capstone.ranks mine.py

One job trains without a stop and is captured on the way. A second one, started with another seed, is restored and
trains on. What `restore` has put back is compared part by part, and then the losses, to the last bit.
"""

from __future__ import annotations

import copy
import io
import re
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, main, wrong
from scaleout.exercises.ranks.guard import load
from scaleout.exercises.ranks.sure import all_right

STEPS, SAVED = 6, (2, 3)


@dataclass
class Job:
    """What a step reads and writes, on one rank."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    generator: torch.Generator

    @property
    def parts(self) -> tuple:
        """The arguments of `capture` and `restore` after the first."""
        return self.model, self.optimizer, self.schedule, self.generator

    def states(self) -> dict[str, object]:
        """The parts' own states, copies, by the slip that a missing one is."""
        return copy.deepcopy(
            {
                "no-weights": self.model.state_dict(),
                "no-moments": self.optimizer.state_dict()["state"],
                "no-schedule": [self.schedule.last_epoch, [group["lr"] for group in self.optimizer.param_groups]],
                "no-random": self.generator.get_state(),
            }
        )


def job(seed: int, rank: int) -> Job:
    """A job before its first step; the ranks share the weights, and each has a generator of its own."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4) * 0.9**step)
    return Job(model, optimizer, schedule, torch.Generator().manual_seed(1000 * seed + rank))


def train(trained_job: Job, first: int, last: int, rank: int) -> list[float]:
    """Steps first to last - 1 and their losses: data by step and rank, noise from the generator, mean gradients."""
    losses = []
    for step in range(first, last):
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(50 * step + rank))
        noise = torch.randn(4, 6, generator=trained_job.generator)
        loss = ((trained_job.model(inputs + 0.1 * noise) - inputs) ** 2).mean()
        trained_job.optimizer.zero_grad()
        loss.backward()
        for weight in trained_job.model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        trained_job.optimizer.step()
        trained_job.schedule.step()
        losses.append(loss.item())
    return losses


def identical(a: object, b: object) -> bool:
    """Equal to the last bit, whatever they are nested in."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    return a == b


WORDS = {
    "no-weights": "the weights are not those of the captured job",
    "no-moments": "the optimizer's moments are not those of the captured job, so its first steps would go too far",
    "no-schedule": "the schedule, or its learning rate, is not where it was in the captured job",
    "no-random": "the random generator is not in the state of the captured job, so the noise differs",
}


def rank_report(capture, rank: int, world: int) -> Verdict | None:
    """A job that is restored after each number of steps in SAVED: what is wrong with it, or None."""
    if not callable(capture.__globals__.get("restore")):
        return wrong("the file has no function restore", "no-restore")
    for saved in SAVED:
        fault = _resumed(capture, saved, rank)
        if fault:
            return wrong(f"rank {rank}: {fault[1]}", fault[0])
    return None


def _resumed(capture, saved: int, rank: int) -> tuple[str, str] | None:
    """Both jobs on this rank. `restore` comes from a fresh copy of the file, as in a job that was started anew: only
    the dict has come with it."""
    uninterrupted = job(1, rank)
    train(uninterrupted, 0, saved, rank)
    saved_states = uninterrupted.states()
    state = capture(saved, *uninterrupted.parts)
    fault = _captured(state) or (
        ("disturbed", "capture has changed the job") if not identical(saved_states, uninterrupted.states()) else None
    )
    if fault:
        return fault
    text = _saved(state)
    losses = train(uninterrupted, saved, STEPS, rank)
    if isinstance(text, tuple):
        return text
    later = _saved(state)
    if isinstance(later, tuple) or not identical(_loaded(text), _loaded(later)):
        return "aliased", (
            "the dict changed while the job continued to train: state_dict() returns the tensors themselves. Copy them"
        )
    resumed = job(2, rank)
    step = load(capture.__globals__["__file__"], "restore")(_loaded(text), *resumed.parts)
    fault = _restored(step, resumed, saved_states, saved, rank)
    if fault:
        return fault
    if train(resumed, saved, STEPS, rank) != losses or not identical(
        resumed.model.state_dict(), uninterrupted.model.state_dict()
    ):
        return "drift", (
            "everything was put back, and the losses still differ: does restore train, or replace objects of the job?"
        )
    return None


def _captured(state: object) -> tuple[str, str] | None:
    if state is ...:
        return "stub", "capture still returns its ...: return your dict instead"
    if not isinstance(state, dict):
        return "no-dict", (
            f"capture returned {type(state).__name__}: every rank must return a dict, because each has its own "
            "random state, and with FSDP its own shards"
        )
    return None


def _saved(state: dict) -> bytes | tuple[str, str]:
    """The dict as torch.save writes it, or what is wrong with it."""
    file = io.BytesIO()
    try:
        torch.save(state, file)
        _loaded(file.getvalue())
    except Exception as error:  # whatever pickle meets in a reader's dict
        refused = re.search(r"GLOBAL (\S+)", str(error))  # the one word of torch's paragraph that is about the dict
        cause = refused[1] if refused else type(error).__name__
        return "unsafe", (
            f"the dict cannot be loaded with weights_only=True ({cause}): put states into it, tensors "
            "and plain values, and no objects"
        )
    return file.getvalue()


def _loaded(text: bytes) -> dict:
    return torch.load(io.BytesIO(text), weights_only=True)


def _restored(step: object, resumed: Job, captured: dict, saved: int, rank: int) -> tuple[str, str] | None:
    """What `restore` has not put back."""
    if step is ...:
        return "stub", "restore still returns its ..."
    restored = resumed.states()
    for slip, words in WORDS.items():
        if not identical(restored[slip], captured[slip]):
            neighbour = job(1, 1 - rank)
            train_noise(neighbour.generator, saved)
            if slip == "no-random" and identical(restored[slip], neighbour.generator.get_state()):
                return "other-rank", "the random generator is that of the other rank: each rank must save its own"
            return slip, words
    if isinstance(step, bool) or step != saved:
        return (
            "no-step",
            f"restore returned {step!r}: the captured job had made {saved} steps, and must resume from there",
        )
    return None


def train_noise(generator: torch.Generator, steps: int) -> None:
    """Draw what the steps before the capture draw."""
    for _ in range(steps):
        torch.randn(4, 6, generator=generator)


CHECK = Check(
    "scaleout.exercises.capstone.ranks",
    "capture",
    (2,),
    rank_report,
    all_right(
        f"right: {{}} ranks resumed, after steps {SAVED[0]} and {SAVED[1]}, with the losses of the "
        "job that was never stopped, bit for bit",
    ),
    wait_seconds=10,
)

if __name__ == "__main__":
    main(CHECK)
