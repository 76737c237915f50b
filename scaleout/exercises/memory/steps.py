"""The exercise of `memory` on the first two steps of a job: what is not there yet in the first one."""

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
    title="Four jobs, two steps",
    prompt=f"Four jobs with AdamW under bf16 autocast, each on an H100, **{USABLE} GB** of which are usable. What they "
    f"need in GB, by kind:\n\n```\n{_NEEDS}\n```\n\n"
    "*Weights and copies*: with those in bf16 that autocast has made by the end of the forward. *Scratch* is what the "
    "update takes for its own arithmetic. The backward is never fuller than the loss before it. Which is the **first** "
    "moment for which a job has not enough memory? *No moment*: it gets through both steps.",
    hints=(
        "Write down what stands there at the loss, and what at the update: two sums for each job.",
        "When does AdamW make its averages? What is the step's fullest moment before that?",
    ),
    solution="AdamW makes its averages in its **first update**, and from then on they stay:\n\n"
    f"```\n{_SUMS}\n```\n\n**{_ENDS}.**\n\n"
    "**A** prints a loss and ends in the step after it, though nothing of the batch has changed: what came on top are "
    f"{_JOBS['A']['averages']} GB of averages. **B** has hardly any activations, and its states alone are too much: no "
    "smaller batch helps. **C** ends before it has made any state. So the line of the error says more than its words: "
    "in a first update look at the states, at a first loss at the batch, at a second loss at both. And a job that has "
    "done one step has not shown that it fits. Run two.",
    options=(
        Option(
            "averages-late",
            _label("step 2, loss", "step 1, update", "step 1, loss", "no moment"),
            "Right: the averages are made in the first update, and are there from then on.",
            True,
        ),
        Option(
            "too-early",
            _label("step 1, loss", "step 1, update", "step 1, loss", "no moment"),
            "Which of the rows are there in A's first forward? One of them is made later.",
        ),
        Option(
            "from-the-start",
            _label("step 1, loss", "step 1, loss", "step 1, loss", "no moment"),
            "That has AdamW's averages in the first forward. When are they made?",
        ),
        Option(
            "states-alone",
            _label("no moment", "step 1, update", "no moment", "no moment"),
            "That looks at the updates alone. Add up what stands there at the loss.",
        ),
        Option(
            "never-first",
            _label("step 2, loss", "step 2, loss", "step 1, loss", "no moment"),
            "B does not come to a second forward. What does its first update need beside the weights?",
        ),
        Option(
            "all-at-once",
            _label("step 1, loss", "step 2, loss", "step 1, loss", "step 2, loss"),
            "D has less than that at its fullest: activations and scratch are never there together. And which rows "
            "does A have in its first forward, and B in its first update?",
        ),
    ),
)

EXERCISES = (FIRST_OUT,)
