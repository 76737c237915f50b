"""Check the lab exercise `find-absent`: layouts of four ranks, with and without a fault, on all ranks or on one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong

WEIGHT_SIZE, SAMPLES_READ = 12, 3  # elements of the weight, samples of a replica


PARTS = ("whole", "twin", "repeat")  # faults along tp


@dataclass(frozen=True)
class Case:
    """sizes: (dp, tp). faults: what is wrong on which replicas: "whole", "twin" (the first part on every rank),
    "repeat" (the first part on the third tp rank), "samples" (those of replica 0), "turned" (the same in another
    order), "one" (its last sample is the middle one of replica 0), "gradient" (not reduced), "last" (differs there)."""

    name: str
    sizes: tuple[int, int]
    faults: tuple[str, ...] = ()
    replicas: tuple[int, ...] = (0, 1, 2, 3)

    @property
    def right(self) -> list[str]:
        """The axes that are not in effect."""
        return sorted({"tp" if fault in PARTS else "dp" for fault in self.faults})


CASES = (
    Case("a sound layout", (2, 2)),
    Case("a sound layout of replicas alone", (4, 1)),
    Case("a sound layout of one replica", (1, 4)),
    Case("the whole weight on every rank", (2, 2), ("whole",)),
    Case("the same half on both tp ranks", (2, 2), ("twin",)),
    Case("the same half on both tp ranks of replica 1", (2, 2), ("twin",), (1,)),
    Case("gradients that were not reduced", (2, 2), ("gradient",)),
    Case("a replica that reads what another reads", (4, 1), ("samples",), (2,)),
    Case("replicas that all read the same", (2, 2), ("samples",)),
    Case("nothing but copies", (2, 2), ("whole", "samples", "gradient")),
    Case("the same quarter twice", (1, 4), ("twin",)),
    Case("one replica whose gradient was left out", (4, 1), ("gradient",), (3,)),
    Case("the same samples in another order", (2, 2), ("turned",), (1,)),
    Case("one sample that two replicas read", (4, 1), ("one",), (2,)),
    Case("gradients that differ in one element", (2, 2), ("last",), (1,)),
    Case("the whole weight in replica 1, and so another gradient", (2, 2), ("whole", "gradient"), (1,)),
    Case("the same quarter on the first and the third rank", (1, 4), ("repeat",)),
)


def arguments(case: Case, rank: int) -> tuple[torch.Tensor, int, torch.Tensor, torch.Tensor, tuple[int, int]]:
    """The arguments of a rank."""
    tp = case.sizes[1]
    replica, tp_rank = divmod(rank, tp)
    faults = case.faults if replica in case.replicas else ()
    weight = torch.randn(WEIGHT_SIZE, generator=torch.Generator().manual_seed(1))
    weight[WEIGHT_SIZE // 2] = weight[0]  # parts that begin alike are no twins
    first_part = "twin" in faults or ("repeat" in faults and tp_rank == 2)
    part = weight if "whole" in faults else weight.chunk(tp)[0 if first_part else tp_rank]
    first = 0 if {"samples", "turned"} & set(faults) else SAMPLES_READ * replica
    samples = torch.arange(first, first + SAMPLES_READ)
    if "turned" in faults:
        samples = samples.roll(1)
    if "one" in faults:
        samples[-1] = 1
    seed = 100 + tp_rank if "gradient" not in faults else 200 + 10 * replica + tp_rank
    gradient = torch.randn(len(part), generator=torch.Generator().manual_seed(seed))
    if "last" in faults:
        gradient[-1] += 1
    return part.clone(), WEIGHT_SIZE, samples, gradient, case.sizes


def rank_report(function, rank: int, world: int) -> Verdict | list[list[str]]:
    """What this rank found in each case, or what is wrong with an answer of its own."""
    answers = []
    for case in CASES:
        axes = function(*arguments(case, rank))
        if axes is ...:
            return wrong("the function still returns ...: put your check there", "stub")
        if isinstance(axes, (set, tuple)):
            axes = sorted(axes) if isinstance(axes, set) else list(axes)
        if not isinstance(axes, list) or any(axis not in ("dp", "tp") for axis in axes):
            return wrong(f"rank {rank}, {case.name}: return a list of 'dp' and 'tp', not {axes!r:.60}", "no-list")
        answers.append(sorted(set(axes)))
    return answers


def judge(reports: list, world: int) -> Verdict:
    """What all ranks have said, case by case."""
    for number, case in enumerate(CASES):
        answers = [report[number] for report in reports]
        if any(axes != answers[0] for axes in answers):
            disagreeing = next(rank for rank, axes in enumerate(answers) if axes != answers[0])
            return wrong(
                f"{case.name}: rank 0 says {_list(answers[0])} and rank {disagreeing} says "
                f"{_list(answers[disagreeing])}: compare over all ranks, so that all decide from the same data",
                "ranks-disagree",
            )
        if answers[0] != case.right:
            return _wrong(case, answers[0])
    return Verdict(True, f"right on {world} processes")


def _wrong(case: Case, answer: list[str]) -> Verdict:
    extra = [axis for axis in answer if axis not in case.right]
    words = (
        f"{case.name} (dp {case.sizes[0]} x tp {case.sizes[1]}): you say {_list(answer)}, it is {_list(case.right)}. "
    )
    if extra and 1 in case.sizes and case.sizes[("dp", "tp").index(extra[0])] == 1:
        return wrong(f"{words}An axis of 1 is in effect", "axis-of-one")
    if extra:
        return wrong(f"{words}Which of your comparisons may also differ, or be equal, in a correct run?", "false-alarm")
    missed = {
        "whole": "The length of a part, times tp, must be the length of the whole",
        "twin": "Parts of the right length may still be the same part: compare ranks along tp",
        "repeat": "Any two ranks along tp may have the same part, not only neighbors",
        "samples": "If replicas read the same samples, their gradients are equal too: compare the samples",
        "turned": "Replicas that read the same samples in another order still read the same samples",
        "one": "A single sample that two replicas share is read twice: compare sample by sample, not whole lists",
        "gradient": "After the reduction the gradients of replicas are equal: compare them along dp",
        "last": "Gradients that differ in any element were not reduced: compare every element",
    }
    axis = next(name for name in case.right if name not in answer)
    fault = next(name for name in case.faults if (name in PARTS) == (axis == "tp"))
    return wrong(words + missed[fault], f"missed-{fault}")


def _list(axes: list[str]) -> str:
    return " and ".join(axes) or "nothing"


CHECK = Check(
    "scaleout.exercises.mesh.ranks",
    "absent",
    (4,),
    rank_report,
    judge,
    wait_seconds=5,
    right=f"right on 4 processes: {len(CASES)} layouts, every rank found each axis that was not in effect",
)
