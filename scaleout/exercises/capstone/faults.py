"""Exercises of `capstone` on failures: what they cost, what a resume restores, and how to test a resume."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.timing.reliability import overhead, young

_SHARE = ("%", "share")
_HOUR = 3600
_SAVE, _MTBF = 20, 4 * _HOUR
_TAU = young(_SAVE, _MTBF)

_INTERVAL = 1800
_SAVING, _REDONE = _SAVE / _INTERVAL, _INTERVAL / 2 / _MTBF
_LOST, _EXACT = _SAVING + _REDONE, overhead(_INTERVAL, _SAVE, _MTBF)

LOST = Number(
    key="time-lost",
    level=2,
    minutes=5,
    title="What failures cost",
    prompt=f"A checkpoint blocks the training of a job for {_SAVE} s, and a failure comes every {_MTBF // _HOUR} "
    f"hours. The job saves after every **{_INTERVAL // 60} minutes** of training, and a restart takes no time. What do "
    "saving and repeated work cost together, in percent of the time that the training takes without them? Use Young's "
    "approximation: no failure comes during a save, or while work is being repeated.",
    hints=(
        "What does the job lose per interval, and what per failure?",
        "A failure loses half an interval on average.",
        f"One part is {_SAVE} s per {_INTERVAL:,} s. The other is half of {_INTERVAL:,} s per {_MTBF:,} s.",
    ),
    solution=f"Saving: {_SAVE} / {_INTERVAL:,} = {_SAVING:.2%}. Repeated work: {_INTERVAL // 2} / {_MTBF:,} = "
    f"{_REDONE:.2%}. Together **{_LOST:.1%}**; without the approximation it is {_EXACT:.1%}. The job loses more to "
    f"failures than to saving, so it should save more often. At Young's interval, √(2 × {_SAVE} × {_MTBF:,}) = "
    f"{_TAU:.0f} s, the two costs are equal, {2 * _SAVE / _TAU:.1%} together. An interval of an hour would cost "
    f"{_SAVE / _HOUR + _HOUR / 2 / _MTBF:.0%}.",
    value=_LOST,
    unit="%",
    unit_given=True,
    units=_SHARE,
    dimension="share",
    slips=(
        Slip("saving-alone", _SAVING, "That is what saving costs. Repeated work costs too."),
        Slip("again-alone", _REDONE, "That is the repeated work. Saving costs too."),
        Slip(
            "one-save",
            _REDONE + _SAVE / _MTBF,
            "That is the repeated work and one save per failure. There is one save in every interval.",
        ),
        Slip(
            "whole-interval",
            _SAVING + _INTERVAL / _MTBF,
            "You counted a whole interval per failure. A failure can come anywhere in the interval.",
        ),
        Slip(
            "of-all-time",
            _LOST / (1 + _LOST),
            "That is the lost share of the whole time. The question is how much is added to the time without losses.",
        ),
        Slip(
            "exact",
            _EXACT,
            "That is without the approximation: it also counts failures during saves and during repeated work, which "
            "Young leaves out.",
        ),
        Slip("goodput", 1 - _LOST, "That is what is left. The question is what is lost."),
    ),
    right="Saving is the smaller part, so the job should save more often.",
)

MOMENTS = Choice(
    key="resume-jump",
    level=2,
    title="A bump after every restart",
    prompt="The first loss after each resume is 2.1, as before. Within a few steps it **rises to 2.5**, and it takes "
    "some hundred steps to come back. In the log, the learning rate and the numbers of the sequences continue where "
    "they were. What was not restored?",
    hints=(
        "The first loss is right. What does that say about the weights?",
        "What decides how far the first steps go?",
    ),
    solution="**AdamW's moments.** The first loss is computed before any step, so the weights were restored. But AdamW "
    "started with empty moments. Then its first steps move every weight by about the full learning rate, in the "
    "direction of the sign of one batch's gradient, however small the gradient is. A new model has a warm-up for this; "
    "the middle of a run has none. Save the optimizer: its state is twice as large as the weights.",
    options=(
        Option(
            "moments",
            "The moments: AdamW begins with empty ones",
            "Right: the weights were there, and the first steps went too far.",
            True,
        ),
        Option(
            "weights",
            "The weights: they are from an older checkpoint",
            "Then the first loss would be that of the older checkpoint, and it would not rise afterwards.",
        ),
        Option(
            "schedule",
            "The schedule: it begins with its warm-up again",
            "The log shows that it continues. And a warm-up would make the first steps shorter.",
        ),
        Option(
            "data",
            "The data: the model sees the same sequences again",
            "The numbers of the sequences continue. And sequences that the model has seen have a lower loss.",
        ),
        Option(
            "random",
            "The random state: dropout draws other masks",
            "Other masks change the third digit of the loss, from the first step on. They do not make it rise.",
        ),
    ),
)

KILL = Choice(
    key="kill-proof",
    level=2,
    minutes=2,
    short=True,
    title="A test of the resume",
    prompt="You test a resume: train 40 steps with a checkpoint after step 20, kill the job **as soon as that "
    "checkpoint exists**, resume, and check that the loss keeps falling. The test passes. What has it shown?",
    hints=("How much work did that kill destroy?", "What would the loss do if the optimizer state were missing?"),
    solution="**Next to nothing.** A kill right after the save destroys no work, so the test never checks that the job "
    "goes back by the right number of steps and repeats the same data. And the loss also falls without the optimizer "
    "state, or with skipped data. Kill some steps *later*, and **while saving**, at many moments. Then compare with a "
    "run that was never stopped: the losses must be the same, on a CPU to the last bit.",
    options=(
        Option(
            "nothing",
            "Next to nothing: no work was lost, and the loss falls anyway",
            "Right. Kill later, kill while saving, and compare with an uninterrupted run.",
            True,
        ),
        Option(
            "resume",
            "That the resume works: the loss keeps falling from there",
            "It would also fall with empty moments, or with repeated data. Only the same losses as without a kill show "
            "that nothing is missing.",
        ),
        Option(
            "atomic",
            "That a checkpoint is complete or absent at any moment",
            "The kill came when the checkpoint was complete. Only a kill during writing shows whether half of one is "
            "mistaken for a complete one.",
        ),
        Option(
            "step",
            "That no step is lost, and none done twice, by the resume",
            "There was no step to lose: step 20 was saved, and step 21 had not begun.",
        ),
        Option(
            "timing",
            "Nothing yet: the loss of 40 steps is too noisy to say more",
            "Even four steps are enough, with a kill at the right moment and the right run to compare with.",
        ),
    ),
)

# In the only safe order: each operation ends before the next one begins.
SAFE = {
    "write": "every rank writes its files into a temporary folder",
    "sync files": "every rank waits until its files are on the disk",
    "barrier": "the ranks wait for each other",
    "manifest": "rank 0 writes the manifest, with sizes and checksums of all files",
    "sync manifest": "rank 0 waits until the manifest is on the disk",
    "rename": "rank 0 gives the folder its final name, where a resume looks",
    "sync folder": "rank 0 waits until the new name is on the disk, in the folder above",
    "remove oldest": "rank 0 removes the oldest of three checkpoints",
}

_ORDER_STUB = '''\
def save_order(operations):
    """Indices into `operations`, in the order of a safe save.

    operations: names in any order, such as
        ["rename", "write", "sync files"]
    """
    return ...
'''

_ORDER_SOLUTION = """\
SAFE = ["write", "sync files", "barrier", "manifest", "sync manifest", "rename", "sync folder", "remove oldest"]


def save_order(operations):
    return sorted(range(len(operations)), key=lambda index: SAFE.index(operations[index]))
"""


def _sorted_by(*order: str):
    return lambda operations: sorted(range(len(operations)), key=lambda index: order.index(operations[index]))


def _swapped(*names: str):
    """The safe order with these names moved: each goes directly before the one that follows it here."""
    *moved, target = names
    remaining = [name for name in SAFE if name not in moved]
    place = remaining.index(target)
    return _sorted_by(*remaining[:place], *moved, *remaining[place:])


def _places(operations: list[str]) -> list[int]:
    """The inverse of what is asked."""
    order = _sorted_by(*SAFE)(operations)
    return [order.index(place) for place in range(len(order))]


SAVE_ORDER = Function(
    key="save-order",
    level=2,
    minutes=8,
    title="Complete, or not there",
    lists=True,
    prompt="Whenever the power fails, a checkpoint must be complete or not there. Write `save_order(operations)`: the "
    "indices of the given operations, in the order in which they must happen. Not every save has all of them.\n\n"
    + "\n".join(f"- `{short}`: {SAFE[short]}" for short in sorted(SAFE)),
    hints=(
        "Write a list with the safe order, and use `sorted` with the index in this list.",
        "Whoever finds the final name must find everything. So what has to happen before the rename?",
        "When may the old checkpoint be removed? When the new one cannot be lost any more.",
    ),
    solution="```python\n"
    f"{_ORDER_SOLUTION}```\n\n"
    "A rename within a file system is atomic (an object store has none), so it is the moment at which the checkpoint "
    "begins to exist. Before it, everything must be on the disk: the files of *all* ranks, and the manifest that "
    "lists them. A sync of the folder above makes the new name permanent. Only then may an old checkpoint be removed.",
    function="save_order",
    stub=_ORDER_STUB,
    reference=_sorted_by(*SAFE),
    cases=tuple(
        ([list(SAFE)[int(place)] for place in places],)
        for places in (
            "76543210",
            "5014",
            "31670542",
            "7652",
            "2461703",
            "5301",
            "4672",
            "27",
            "1763",
            "0",
            "62741305",
            "",
        )
    ),
    mistakes=(
        Mistake(
            "rename-early",
            _swapped("rename", "manifest"),
            "You rename before the manifest is written. A kill in between leaves a final name without a manifest.",
        ),
        Mistake(
            "rename-before-sync",
            _swapped("rename", "sync manifest"),
            "You rename before the manifest is on the disk. After a power cut the name can be there without the "
            "manifest.",
        ),
        Mistake(
            "remove-first",
            _swapped("remove oldest", "write"),
            "You remove the oldest checkpoint first. After a kill, there may be no good checkpoint left.",
        ),
        Mistake(
            "remove-before-rename",
            _swapped("remove oldest", "rename"),
            "You remove the oldest checkpoint before the new one exists under its final name.",
        ),
        Mistake(
            "remove-before-folder-sync",
            _swapped("remove oldest", "sync folder"),
            "You remove the oldest checkpoint before the new name is on the disk. After a power cut both can be gone.",
        ),
        Mistake(
            "no-barrier-before-manifest",
            _swapped("manifest", "sync manifest", "barrier"),
            "You write the manifest before the barrier: it lists files that other ranks may still be writing.",
        ),
        Mistake(
            "manifest-before-barrier",
            _swapped("manifest", "barrier"),
            "You write the manifest before the ranks have waited for each other: it lists files that other ranks may "
            "still be writing.",
        ),
        Mistake(
            "barrier-before-sync",
            _swapped("barrier", "sync files"),
            "Your barrier comes before sync files: the manifest then lists files that are still in memory.",
        ),
        Mistake(
            "barrier-before-write",
            _swapped("barrier", "write"),
            "Your barrier comes before the ranks have written anything. Rank 0 then does not know when the others are "
            "done.",
        ),
        Mistake(
            "folder-before-rename",
            _swapped("sync folder", "rename"),
            "Your sync folder comes before the new name exists, so the name is not on the disk.",
        ),
        Mistake(
            "places",
            _places,
            "You gave the position of each operation in the safe order. The question is the other way round: the index "
            "of the operation that comes first, then of the next one.",
        ),
        Mistake(
            "as-given",
            lambda operations: list(range(len(operations))),
            "You returned the operations in the order in which they were given.",
        ),
        Mistake(
            "reversed", lambda operations: _sorted_by(*SAFE)(operations)[::-1], "That is the safe order, reversed."
        ),
    ),
    right="The checkpoint begins to exist at one moment: the rename.",
)

EXERCISES = (LOST, MOMENTS, KILL, SAVE_ORDER)
