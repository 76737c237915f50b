"""Which control to change in the view `zero`: each change is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator

from scaleout.views import lever
from scaleout.views.lever import Change, Lever
from scaleout.views.zero.amounts import gigabytes, volume
from scaleout.words.amounts import count, took

WORTH = 0.03  # of the time, or of the bytes stored, that a change must save to be named
SLOW = 0.1  # share of a step without computation from which on time is scarce
HIGHEST = {"ranks": 8, "batch": 64, "passes": 8}  # ends of the view's controls


def sentence(setting) -> str:
    """The one change worth trying now, with its effect."""
    return lever.sentence(advice(setting), f"No single change here saves {WORTH:.0%} of memory or time for free.")


def advice(setting) -> Lever | None:
    """What makes the states fit, the mildest first; where they do, what saves time if that is scarce, then what saves
    memory and costs no time. None where nothing does."""
    if not setting.fits:
        return _fitting(setting)
    slow = 1 - setting.spent["compute"] / setting.time.seconds > SLOW
    return (_faster(setting) if slow else None) or _smaller(setting)


def pace(setting) -> float:
    """Seconds per sequence on one GPU."""
    return setting.time.seconds / (setting.batch * setting.passes)


# --- memory ------------------------------------------------------------------------------------------------------


def _fitting(setting) -> Lever | None:
    """The first that fits; else the one that holds least, if that is less than now."""
    tried = [*lever.tried(setting, _for_memory(setting))]
    fits = lever.first(tried, lambda trial: trial.fits)
    best = fits or min(tried, key=lambda candidate: candidate.after.fullest_bytes, default=None)
    if not best or (not fits and best.after.fullest_bytes > (1 - WORTH) * setting.fullest_bytes):
        return None
    effect = f"which fits; {_sends(setting, best.after)}" if fits else "which is not enough yet"
    host = best.after.held_bytes("host")
    return best.giving(f"{_holds(best.after)}, {effect}", f" ({gigabytes(host)})" if host else "")


def _for_memory(setting) -> Iterator[Change]:
    """The mildest first: stages, more GPUs, the host's memory, then two at a time."""
    above = range(setting.stage + 1, 4)
    yield from ((f"stage {stage}", {"stage": stage}) for stage in above)
    if setting.stage and setting.ranks < HIGHEST["ranks"]:
        yield f"{HIGHEST['ranks']} GPUs", {"ranks": HIGHEST["ranks"]}
    if setting.keeps:
        yield "freeing gathered weights", {"keep": False}
    for stage in range(max(1, setting.stage), 4):
        stage_change = {"keep": False} if setting.keeps else {} if stage == setting.stage else {"stage": stage}
        prefix = "weights freed, " if setting.keeps else f"stage {stage}, " if stage_change else ""
        if setting.ranks < HIGHEST["ranks"] and stage_change:
            yield f"{prefix}{HIGHEST['ranks']} GPUs", {**stage_change, "ranks": HIGHEST["ranks"]}
        if setting.offloaded == "none" or (stage_change and setting.offload == "none"):
            yield f"{prefix}optimizer offloaded", {**stage_change, "offload": "optimizer", "to": "host"}
        if stage == 3 and setting.offloaded != "parameters":
            all_states = {**stage_change, "offload": "parameters", "to": "host"}
            yield f"{prefix}all states offloaded", all_states
    if setting.held_bytes("host") and not setting.host_fits and setting.stage == 3:
        yield "NVMe", {"to": "nvme"}


def _smaller(setting) -> Lever | None:
    """What holds less and takes no longer."""
    changes = [
        (words, change) for words, change in _for_memory(setting) if len(change) == 1 and "offload" not in change
    ]
    return lever.first(
        lever.tried(setting, changes),
        lambda trial: (
            trial.held_bytes() < (1 - WORTH) * setting.held_bytes() and pace(trial) < (1 + WORTH) * pace(setting)
        ),
        lambda trial: f"{_holds(trial)}, {_sends(setting, trial)}",
    )


# --- time --------------------------------------------------------------------------------------------------------


def _faster(setting) -> Lever | None:
    """The mildest lever that saves time for a sequence, and does not make a step too large."""
    return lever.first(
        lever.tried(setting, _for_time(setting)),
        lambda trial: (
            (trial.step_fits or (trial.fits and trial.peak <= setting.peak))
            and pace(trial) < (1 - WORTH) * pace(setting)
        ),
        lambda trial: f"{took(pace(trial))} per sequence, not {took(pace(setting))}",
    )


def _for_time(setting) -> Iterator[Change]:
    """The mildest first."""
    if setting.offloaded != "none":
        if setting.tier == "nvme":
            yield "CPU memory", {"to": "host"}
        if setting.offloaded == "parameters":
            yield "weights on the GPU", {"offload": "optimizer"}
        yield "all states on the GPU", {"offload": "none"}
    if setting.stage == 3 and not setting.keeps:
        yield "keeping gathered weights", {"keep": True}
    if setting.stage == 3:
        yield "stage 2", {"stage": 2}
    if setting.link == "ethernet":
        yield "InfiniBand", {"link": "nodes"}
    if setting.link != "own":
        yield "one node", {"link": "own"}
    if 2 * setting.batch <= HIGHEST["batch"]:
        yield f"{count(2 * setting.batch, 'sequence')} per micro-batch", {"batch": 2 * setting.batch}
    if 2 * setting.passes <= HIGHEST["passes"]:
        yield f"{2 * setting.passes} micro-batches per step", {"passes": 2 * setting.passes}


# --- words -------------------------------------------------------------------------------------------------------


def _holds(changed) -> str:
    return f"{gigabytes(changed.held_bytes())} per GPU" if changed.held_bytes() else "no states on the GPU"


def _sends(setting, changed) -> str:
    """The communication volume afterwards."""
    words = "the volume stays" if changed.pieces == setting.pieces else "volume"
    return f"{words} {volume(changed.pieces)}"
