"""The exercise of `memory` on the first two steps of a job, the first of which has no averages before its update."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option
from scaleout.memory.accounts import account
from scaleout.spec.devices import GB
from scaleout.spec.transformer import PRESETS
from scaleout.words.tables import columns

USABLE = 73  # GB of an H100 (memory/allocator.py)
JOBS = {"A": ("gpt2-xl", 15, 1024), "B": ("llama-2-7b", 1, 2048), "C": ("gpt2-large", 32, 1024),
        "D": ("gpt2-large", 22, 1024)}  # fmt: skip
_LOSS = ("weights and copies", "activations", "logits")
_UPDATE = ("weights", "gradients", "scratch")


def kinds(model: str, batch: int, seq: int) -> dict[str, int]:
    """Whole GB of each kind at the two moments that can be a step's fullest; `averages` belong to both."""
    moments = account(PRESETS[model], batch, seq).moments
    loss, update = moments["loss"], moments["optimizer"]
    sizes = dict(zip(_LOSS, (loss[kind] for kind in ("weights", "activations", "logits")), strict=True))
    sizes |= dict(zip(_UPDATE, (update[kind] for kind in ("weights", "gradients", "temporaries")), strict=True))
    return {kind: round(size / GB) for kind, size in (sizes | {"averages": update["optimizer"]}).items()}


def totals(job: dict[str, int]) -> dict[str, int]:
    """GB at each moment of the first two steps, in their order. An update makes the averages that it does not find."""
    loss, update = (sum(job[kind] for kind in kinds) for kinds in (_LOSS, _UPDATE))
    return {
        "step 1, loss": loss,
        "step 1, update": update + job["averages"],
        "step 2, loss": loss + job["averages"],
        "step 2, update": update + job["averages"],
    }


def ends(job: dict[str, int], usable: int = USABLE) -> str:
    """The first moment that does not fit, or "no moment"."""
    return next((moment for moment, size in totals(job).items() if size > usable), "no moment")


_JOBS = {name: kinds(*job) for name, job in JOBS.items()}
_TOTALS = {name: totals(job) for name, job in _JOBS.items()}


def _table(rows: dict[str, dict[str, int]], head: str) -> str:
    """Jobs as columns."""
    names = list(next(iter(rows.values())))
    return columns([(head, *rows), *((name, *(row[name] for row in rows.values())) for name in names)], 19, 5)


def _label(*answers: str) -> str:
    return " · ".join(f"{name} {answer}" for name, answer in zip(JOBS, answers, strict=True))


_NEEDS, _SUMS = _table(_JOBS, "GB"), _table(_TOTALS, "GB")
_ENDS = _label(*map(ends, _JOBS.values()))

FIRST_OUT = Choice(
    key="first-out",
    level=2,
    minutes=6,
    short=True,
    title="Four jobs, two steps",
    prompt=f"Four jobs train with AdamW under bf16 autocast, each on its own H100, of which **{USABLE} GB** are "
    "usable. "
    f"This is what they need in GB, by kind:\n\n```\n{_NEEDS}\n```\n\n"
    "*Weights and copies* includes the bf16 copies that autocast has made by the end of the forward pass. *Scratch* is "
    "what the update allocates for its own arithmetic. The backward pass never needs more than the loss before it. At "
    "which moment does each job **first** run out of memory? *No moment* means that it completes both steps.",
    hints=(
        "For each job, write down two sums: the memory at the loss and the memory at the update.",
        "When does AdamW allocate its averages? Which of the two sums comes before that, in the first step?",
    ),
    solution="AdamW allocates its averages in its **first update**, and from then on they stay in memory:\n\n"
    f"```\n{_SUMS}\n```\n\n**{_ENDS}.**\n\n"
    "**A** prints a loss and runs out of memory in the next step, although the batch is as large as before: now there "
    f"are {_JOBS['A']['averages']} GB of averages as well. **B** has few activations, but its states alone are too "
    "large, so a smaller batch does not help. **C** runs out before it has any optimizer state. So look at where the "
    "job fails: in a first update the states are too large, at a first loss the batch is, and at a second loss it is "
    "both together. And one completed step does not show that a job fits. Run two.",
    options=(
        Option(
            "averages-late",
            _label("step 2, loss", "step 1, update", "step 1, loss", "no moment"),
            "Right: the averages are allocated in the first update, and stay in memory from then on.",
            True,
        ),
        Option(
            "too-early",
            _label("step 1, loss", "step 1, update", "step 1, loss", "no moment"),
            "Which of the rows are in memory in A's first forward pass? One of them is made later.",
        ),
        Option(
            "from-the-start",
            _label("step 1, loss", "step 1, loss", "step 1, loss", "no moment"),
            "In that answer AdamW's averages exist in the first forward pass. When are they made?",
        ),
        Option(
            "states-alone",
            _label("no moment", "step 1, update", "no moment", "no moment"),
            "That answer looks at the updates alone. Add up the memory at the loss too.",
        ),
        Option(
            "never-first",
            _label("step 2, loss", "step 2, loss", "step 1, loss", "no moment"),
            "B does not reach a second forward pass. What does its first update need besides the weights?",
        ),
        Option(
            "all-at-once",
            _label("step 1, loss", "step 2, loss", "step 1, loss", "step 2, loss"),
            "D needs less than that at its fullest moment: activations and scratch are never in memory together. And "
            "which rows are in memory in A's first forward pass, and in B's first update?",
        ),
    ),
)

EXERCISES = (FIRST_OUT,)
