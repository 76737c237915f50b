"""Exercises of `capstone` on failures: how often to save, what a resume restores, and what a test of it has to kill."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.timing.reliability import cluster_mtbf, overhead, young

_TIME, _SHARE = ("s", "min", "h"), ("%", "share")
_HOUR = 3600
_SAVE, _MTBF = 20, 4 * _HOUR
_TAU = young(_SAVE, _MTBF)

YOUNG = Number(
    key="young-interval",
    level=1,
    minutes=3,
    title="How often to save",
    prompt=f"A checkpoint blocks the training for **{_SAVE} s**. The job is interrupted every **{_MTBF // _HOUR} "
    "hours** on average. After how many seconds of training should it save, by Young's formula?",
    hints=(
        "τ = √(2 δ M), with δ the cost of a checkpoint and M the mean time between failures.",
        "All in seconds: 4 hours are 14,400 s.",
    ),
    solution=f"√(2 × {_SAVE} × {_MTBF:,}) = **{_TAU:.0f} s**, about {_TAU / 60:.0f} minutes. A checkpoint that blocks "
    f"for a quarter of the time, since the rest is written in the background, is worth saving every "
    f"{young(_SAVE / 4, _MTBF):.0f} s. On four times the GPUs failures come four times as often, every "
    f"{cluster_mtbf(4, _MTBF) / _HOUR:.0f} hour, and the interval halves too.\n\nSource: Young, *A first order "
    "approximation to the optimum checkpoint interval*, CACM 17(9), 1974.",
    value=_TAU,
    unit="s",
    unit_given=True,
    units=_TIME,
    dimension="seconds",
    slips=(
        Slip("forgot-two", (_SAVE * _MTBF) ** 0.5, "A factor of 2 is missing under the root."),
        Slip(
            "hours",
            (2 * _SAVE * _MTBF / _HOUR) ** 0.5,
            "Two ways lead to that figure: M in hours beside δ in seconds, or a result in minutes with an s.",
        ),
        Slip(
            "minutes",
            (2 * _SAVE * _MTBF / 60) ** 0.5,
            "You took M in minutes and δ in seconds. Under the root both need one unit.",
        ),
        Slip("less-the-save", _TAU - _SAVE, "You took the time of a save off. Young's formula has no such term."),
        Slip("no-root", 2 * _SAVE * _MTBF, "The root is missing."),
        Slip(
            "every-failure",
            _MTBF,
            "That is the time between failures: two tries of three would fail before they reach a checkpoint.",
        ),
        Slip(
            "half-mtbf",
            _MTBF / 2,
            "That is half the time between failures. The formula has the cost of a checkpoint in it too.",
        ),
    ),
    right="Measure δ as the time that training is blocked, not as the time until the file is there.",
)

_INTERVAL = 1800
_SAVING, _REDONE = _SAVE / _INTERVAL, _INTERVAL / 2 / _MTBF
_LOST, _EXACT = _SAVING + _REDONE, overhead(_INTERVAL, _SAVE, _MTBF)

LOST = Number(
    key="time-lost",
    level=2,
    minutes=5,
    title="What failures cost",
    prompt=f"The same job, where a checkpoint blocks for {_SAVE} s and a failure comes every {_MTBF // _HOUR} hours, "
    f"saves after every **{_INTERVAL // 60} minutes** of training. A restart takes no time. What do saving and work "
    "that is done again cost together, in percent of the time that the training takes without them? Reckon as Young "
    "does: no failure falls into a save, or into work that is being done again.",
    hints=(
        "What does it lose for each interval, and what for each failure?",
        "A failure loses half an interval on average.",
        f"One part is {_SAVE} s in {_INTERVAL:,} s, the other half of {_INTERVAL:,} s in {_MTBF:,} s.",
    ),
    solution=f"Saving: {_SAVE} / {_INTERVAL:,} = {_SAVING:.2%}. Work done again: {_INTERVAL // 2} / {_MTBF:,} = "
    f"{_REDONE:.2%}. Together **{_LOST:.1%}**; without the approximation it is {_EXACT:.1%}. It loses more to failures "
    f"than to saving, so it should save more often. At Young's interval of {_TAU:.0f} s the two are equal, which is a "
    f"quick check, and cost {2 * _SAVE / _TAU:.1%} together. Far from it, both sides punish: an interval of an hour "
    f"would cost {_SAVE / _HOUR + _HOUR / 2 / _MTBF:.0%}.",
    value=_LOST,
    unit="%",
    unit_given=True,
    units=_SHARE,
    dimension="share",
    slips=(
        Slip("saving-alone", _SAVING, "That is what saving costs. Work that is done again costs too."),
        Slip("again-alone", _REDONE, "That is the work that is done again. Saving costs too."),
        Slip(
            "one-save",
            _REDONE + _SAVE / _MTBF,
            "That is the work that is done again, and one save for each failure. There is one in every interval.",
        ),
        Slip(
            "whole-interval",
            _SAVING + _INTERVAL / _MTBF,
            "You lost a whole interval with each failure. It comes anywhere in it.",
        ),
        Slip(
            "of-all-time",
            _LOST / (1 + _LOST),
            "That is the part of the whole time that is lost. The question is how much comes on top of the time "
            "without it.",
        ),
        Slip(
            "exact",
            _EXACT,
            "That is the figure without the approximation: failures fall into saves and into work done again, too. "
            "Young leaves those out.",
        ),
        Slip("goodput", 1 - _LOST, "That is what is left. The question is what is lost."),
    ),
    right="The smaller of the two parts is the saving: it should save more often.",
)

MOMENTS = Choice(
    key="resume-jump",
    level=2,
    title="A bump after every restart",
    prompt="After each resume the training loss **rises from 2.1 to 2.5** within a few steps, and comes back after "
    "some hundred. The first loss after the resume is still 2.1. The learning rate in the log continues where it was, "
    "and so do the numbers of the sequences. What was not restored?",
    hints=("The first loss is right. What does that say of the weights?", "What decides how far the first steps go?"),
    solution="**AdamW's moments.** The first loss is computed before any step, so the weights are there. Then AdamW "
    "starts with empty moments, and its first steps all have about the full learning rate in every coordinate, "
    "whatever the gradient's size: the sign of one batch's gradient. The bias correction was made for a fresh model "
    "with a warm-up, not for the middle of a run. Save the optimizer: it is twice the weights, and it is why a "
    "checkpoint is large.",
    options=(
        Option(
            "moments",
            "The moments: AdamW begins with empty ones",
            "Right: the weights were there, and the first steps went astray.",
            True,
        ),
        Option(
            "weights",
            "The weights: they are from an older checkpoint",
            "Then the first loss would be that of the older checkpoint, and there would be no rise after it.",
        ),
        Option(
            "schedule",
            "The schedule: it begins with its warm-up again",
            "The log says otherwise. And a warm-up would make the first steps shorter.",
        ),
        Option(
            "data",
            "The data: the model sees the same sequences again",
            "The numbers of the sequences continue. And sequences seen before would have a lower loss.",
        ),
        Option(
            "random",
            "The random state: dropout draws other masks",
            "Other masks give other losses in the third digit, from the first step on. They do not lead the model "
            "away.",
        ),
    ),
)

RESTORE = Choice(
    key="resume-state",
    level=1,
    minutes=2,
    title="What a resume needs",
    prompt="A resumed run has to end at the **same loss, bit for bit**, as one that was never stopped, on the same "
    "ranks. What does a checkpoint have to hold?",
    hints=(
        "Go through one step: what does it read that the step before has written?",
        "Dropout draws random numbers. Who remembers how far?",
    ),
    solution="**Everything that a step reads and a step before it has written**: weights, the optimizer's moments and "
    "step counts, the step of the schedule, the position in the data, and the state of every rank's random generators. "
    "With accumulation save between steps, never between passes, or the half-made gradients belong to it as well. What "
    "follows from the command, such as the batch, is worth saving too, so that a resume with another one is refused.",
    options=(
        Option(
            "all",
            "Weights, optimizer, schedule, data position, random state: by rank",
            "Right: what a step reads and an earlier one wrote.",
            True,
        ),
        Option(
            "weights",
            "Weights alone, by rank: all the rest is made anew in the next step",
            "That is enough to use the model. Training goes on with empty moments, at the schedule's start, on data "
            "that it has seen.",
        ),
        Option(
            "weights-optimizer",
            "Weights and optimizer, by rank: the command says all the rest",
            "The schedule would begin with its warm-up and the data at the first sequence: the loss comes back, but "
            "not the same one.",
        ),
        Option(
            "rank-0",
            "Weights, optimizer, schedule, data position, random state: of rank 0",
            "With FSDP they hold other shards, and with any layout their own random state. Every rank has to save.",
        ),
        Option(
            "gradients",
            "The memory of every rank: weights, optimizer, gradients, activations",
            "Between two steps there are no gradients and no activations, so save there. And the schedule, the data "
            "and the random state are missing.",
        ),
    ),
)

KILL = Choice(
    key="kill-proof",
    level=2,
    minutes=2,
    title="A test of the resume",
    prompt="A test of the resume: train 40 steps with a checkpoint after step 20, kill the job **as soon as that "
    "checkpoint is there**, resume, and see that the loss goes on falling. It passes. What has it shown?",
    hints=("How much work was lost by that kill?", "What would the loss do if the optimizer had been forgotten?"),
    solution="**Next to nothing.** Killed right after the save, nothing was lost: whether the job goes back by the "
    "right amount, and repeats the same data, was never asked. And a falling loss is no measure: it also falls with "
    "the optimizer forgotten or data skipped. Kill one step *later*, and kill **while saving**, at many moments; then "
    "compare with a run that was never stopped, and ask for the same loss, on a CPU to the last bit.",
    options=(
        Option(
            "nothing",
            "Next to nothing: no work was lost, and the loss falls anyway",
            "Right. Kill later, kill while saving, and compare with an uninterrupted run.",
            True,
        ),
        Option(
            "resume",
            "That the resume works: the loss goes on falling from there",
            "It would with fresh moments, and with repeated data as well. Only the same loss as without a kill says "
            "that nothing is missing.",
        ),
        Option(
            "atomic",
            "That a checkpoint is complete or not there at any moment",
            "The kill came when it was complete. Whether half of one is mistaken for a whole one shows only when "
            "the kill comes while it is written.",
        ),
        Option(
            "step",
            "That no step is lost, and none done twice, by the resume",
            "There was none to lose: step 20 was saved, step 21 had not begun.",
        ),
        Option(
            "timing",
            "Nothing yet: the loss of 40 steps is too noisy to say more",
            "Four steps are enough, if the right moment is killed and the right run is compared with.",
        ),
    ),
)

# In the only order that is safe: each is done when the next begins.
SAFE = {
    "write": "every rank writes its files into a temporary folder",
    "sync files": "every rank waits until its files are on the disk",
    "barrier": "the ranks wait for each other",
    "manifest": "rank 0 writes the manifest, with sizes and checksums of all files",
    "sync manifest": "rank 0 waits until the manifest is on the disk",
    "rename": "rank 0 gives the temporary folder its final name, under which a resume looks",
    "sync folder": "rank 0 waits until the folder above, with the new name, is on the disk",
    "remove oldest": "rank 0 removes the oldest checkpoint; two are kept",
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
    prompt="A checkpoint has to be complete or not there, whenever the power goes. Write `save_order(operations)`: the "
    "indices of the given operations in the order in which they have to be done. Not every save has all of them.\n\n"
    + "\n".join(f"- `{short}`: {SAFE[short]}" for short in sorted(SAFE)),
    hints=(
        "A list of the safe order, and `sorted` by the place in it.",
        "Whoever finds the final name must find everything: so what has to be before the rename?",
        "When may the old checkpoint go? When the new one cannot be lost any more.",
    ),
    solution="```python\n"
    f"{_ORDER_SOLUTION}```\n\n"
    "A rename within a file system happens wholly or not at all (an object store promises none), so it is the "
    "moment at which the checkpoint begins to exist. Everything "
    "that it promises is on the disk before it: files, synced, of *all* ranks, and the manifest that says so. A sync "
    "of the folder above makes the new name itself last. Only then may an old checkpoint go.",
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
            "You rename before the manifest is written: a kill in between leaves a final name without one.",
        ),
        Mistake(
            "rename-before-sync",
            _swapped("rename", "sync manifest"),
            "You rename before the manifest is on the disk. The name can survive a power cut that the contents do not.",
        ),
        Mistake(
            "remove-first",
            _swapped("remove oldest", "write"),
            "You remove the oldest checkpoint first. A kill after that, with two kept, may leave none that is good.",
        ),
        Mistake(
            "remove-before-rename",
            _swapped("remove oldest", "rename"),
            "You remove the oldest before the new one exists under its name.",
        ),
        Mistake(
            "remove-before-folder-sync",
            _swapped("remove oldest", "sync folder"),
            "You remove the oldest before the new name is on the disk: after a power cut both can be gone.",
        ),
        Mistake(
            "no-barrier-before-manifest",
            _swapped("manifest", "sync manifest", "barrier"),
            "You write the manifest before the barrier: it vouches for files that other ranks may still be writing.",
        ),
        Mistake(
            "manifest-before-barrier",
            _swapped("manifest", "barrier"),
            "You write the manifest before the ranks have met: it vouches for files that other ranks may still be "
            "writing.",
        ),
        Mistake(
            "barrier-before-sync",
            _swapped("barrier", "sync files"),
            "You let all ranks meet before they have synced: rank 0 then vouches for files that are in memory.",
        ),
        Mistake(
            "barrier-before-write",
            _swapped("barrier", "write"),
            "Your ranks meet before they have written anything: rank 0 then does not know when the others are done.",
        ),
        Mistake(
            "folder-before-rename",
            _swapped("sync folder", "rename"),
            "You sync the folder above before the new name is in it, so the name is not on the disk yet.",
        ),
        Mistake(
            "places",
            _places,
            "You gave the place of each operation in the safe order. The question is the other way round: which "
            "operation comes first, and which next.",
        ),
        Mistake(
            "as-given",
            lambda operations: list(range(len(operations))),
            "You returned the operations as they were given.",
        ),
        Mistake(
            "reversed", lambda operations: _sorted_by(*SAFE)(operations)[::-1], "That is the safe order from its end."
        ),
    ),
    right="The rename is the one moment at which it begins to exist.",
)

EXERCISES = (YOUNG, LOST, MOMENTS, RESTORE, KILL, SAVE_ORDER)
