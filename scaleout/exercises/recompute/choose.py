"""The exercise of `recompute` on the goal itself: whether to recompute anything, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.exercises.engine import Choice, Option
from scaleout.exercises.recompute.sizes import BLOCK, CHEAP, NAME, SEQ, SHAPE, X, cost, longer, sizes
from scaleout.memory.recompute import full, selective
from scaleout.spec.devices import GB
from scaleout.words.tables import columns

USABLE = 73 * GB  # of an H100 (memory/allocator.py)
ACTIVATIONS = SHAPE.layers * BLOCK
FREES = {"cheap": SHAPE.layers * cost("sdpa", *CHEAP)[0], "all": ACTIVATIONS - SHAPE.layers * X - (BLOCK - X)}
COSTS = {"cheap": longer(selective(sizes(), CHEAP)), "all": longer(full(sizes()))}


@dataclass(frozen=True)
class Job:
    """Bytes of one GPU at the end of the forward and in the update, when nothing is recomputed."""

    forward: int
    update: int

    def peak(self, way: str) -> float:
        return max(self.forward - FREES.get(way, 0), self.update)

    def takes(self) -> str:
        """The fastest way that fits; "split" where none does."""
        return next((way for way in ("none", "cheap", "all") if self.peak(way) <= USABLE), "split")


JOBS = {"A": Job(70 * GB, 38 * GB), "B": Job(85 * GB, 59 * GB), "C": Job(101 * GB, 67 * GB), "D": Job(77 * GB, 80 * GB)}


_MOMENTS = columns(
    [
        ("GB", *JOBS),
        ("end of the forward", *(job.forward // GB for job in JOBS.values())),
        ("optimizer's update", *(job.update // GB for job in JOBS.values())),
    ],
    21,
    4,
)
_WAYS = (("nothing recomputed", "none"), ("cheap tensors", "cheap"), ("everything", "all"))
_PEAKS = columns(
    [("peak, GB", *JOBS)] + [(words, *(f"{job.peak(way) / GB:.0f}" for job in JOBS.values())) for words, way in _WAYS],
    21,
    4,
)

FOUR_JOBS = Choice(
    key="which-again",
    level=3,
    minutes=6,
    short=True,
    title="Four jobs, and what to recompute",
    prompt=f"Four jobs train {NAME}, with one sequence of {SEQ:,} tokens on each GPU. They shard their states in "
    f"different ways. A GPU has **{USABLE // GB} GB** of usable memory. Two moments of a step, with nothing "
    "recomputed:\n\n"
    f"```\n{_MOMENTS}\n```\n\n"
    f"At the end of the forward pass, **{ACTIVATIONS / GB:.0f} GB** are the blocks' activations; in the update there "
    "are none.\n\n- Recomputing the **cheap** tensors (norms, SiLU, SiLU times up, a copy) frees "
    f"{FREES['cheap'] / GB:.0f} GB of them and makes the step {COSTS['cheap']:.0%} longer.\n"
    f"- Recomputing **everything** frees {FREES['all'] / GB:.0f} GB and makes it {COSTS['all']:.0%} longer.\n\n"
    "What does each job do?",
    hints=(
        "What has to fit: one moment, or both?",
        "Subtract what each way frees from the moment at which it frees it.",
    ),
    solution=f"```\n{_PEAKS}\n```\n\n"
    "(The step times are those of FSDP on 8 H100.) "
    "**A** fits and recomputes nothing: free memory that nobody uses is worth nothing. **B** lacks 12 GB at the end "
    f"of the forward pass; the cheap tensors give {FREES['cheap'] / GB:.0f} GB for almost no time. **C** lacks 28 GB, "
    "more than the cheap tensors have, and needs everything or nearly everything: it could recompute the cheap tensors "
    "in all blocks and everything in some. "
    f"**D** would come down to {JOBS['D'].forward / GB - FREES['cheap'] / GB:.0f} GB at the end of its forward pass, "
    "but its peak is in the update, where there are no activations. It shards its states further, or uses an update "
    "that needs less temporary memory.\n\n"
    "So the questions are, in this order: **At which moment is the peak? Is it activations? How much is missing? What "
    "are the cheapest bytes that give it?** Megatron-LM calls selective recomputation the *recommended default for "
    "LLMs* (issue 1487). transformers had nothing between none and all until `every_n_layers`: *right when memory is "
    "the binding constraint and wasteful when it is not* (pull request 48200). A larger batch can make up for the time "
    "(*it does improve the overall speed because a much bigger BS can be used*, stas00/ml-engineering, pull request "
    "64), but only if the small batch left the GPU half idle. A sequence of 8,192 tokens fills it.",
    options=(
        Option(
            "none-cheap-all-split",
            "A nothing, B cheap, C everything, D shards",
            "Right: each job recomputes as little as makes it fit, and D's peak is elsewhere.",
            True,
        ),
        Option(
            "all-everywhere",
            "All four everything, because then all fit",
            "D does not fit. A makes its step longer for memory that it does not need, and B frees more than it needs.",
        ),
        Option(
            "cheap-for-d",
            "A nothing, B cheap, C everything, D cheap",
            "D's forward pass would fit then. But its peak is in the update, when there are no activations.",
        ),
        Option(
            "cheap-for-c",
            "A nothing, B cheap, C cheap, D shards",
            "C lacks 28 GB. The cheap tensors free less than that.",
        ),
        Option(
            "all-for-b",
            "A nothing, B everything, C everything, D cheap",
            "B lacks 12 GB. The cheap tensors free more than that, in a tenth of the time. And at which moment does D "
            "need the most memory?",
        ),
        Option(
            "cheap-for-a",
            "A cheap, B cheap, C everything, D cheap",
            "A fits as it is, and cheap is not free. And at which moment does D need the most memory?",
        ),
    ),
)

EXERCISES = (FOUR_JOBS,)
