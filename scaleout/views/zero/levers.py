"""Which lever to move in the view `zero`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaleout.draw.labels import took
from scaleout.views.zero.amounts import gigabytes, times

WORTH = 0.03  # of the time, or of the bytes held, that a lever must save to be named
SLOW = 0.1  # share of a step that is no computing, from which on time is what is scarce
MOST = {"ranks": 8, "batch": 64, "passes": 8}  # ends of the view's controls

Change = tuple[str, dict]  # words, and the parameters that they change


@dataclass(frozen=True)
class Advice:
    """A lever: the parameters that it changes, words for it, what it gives, and what each GPU then has on its host."""

    change: dict
    words: str
    gives: str
    host: str = ""


def advice(setting) -> Advice | None:
    """What makes the states fit, the mildest first; where they do, what saves time if that is scarce, then what saves
    memory and costs no time. None where nothing does."""
    if not setting.fits:
        return _fitting(setting)
    slow = 1 - setting.spent["compute"] / setting.time.seconds > SLOW
    return (_faster(setting) if slow else None) or _smaller(setting)


def pace(setting) -> float:
    """Seconds that a GPU takes for a sequence."""
    return setting.time.seconds / (setting.batch * setting.passes)


# --- memory ------------------------------------------------------------------------------------------------------


def _fitting(setting) -> Advice | None:
    """The first that fits; else the one that holds least, if that is less than now."""
    tried = [(words, change, setting.other(**change)) for words, change in _for_memory(setting)]
    fits = next((one for one in tried if one[2].fits), None)
    words, change, then = fits or min(tried, key=lambda one: one[2].most, default=("", {}, setting))
    if not fits and then.most > (1 - WORTH) * setting.most:
        return None
    found = f"fits, {_sends(setting, then)}" if fits else "not enough yet"
    host = f" ({gigabytes(then.held('host'))})" if then.held("host") else ""
    return Advice(change, words, f"{_holds(then)}, {found}", host)


def _for_memory(setting) -> Iterator[Change]:
    """The mildest first: stages, more GPUs, the host's memory, then two at a time."""
    above = range(setting.stage + 1, 4)
    yield from ((f"stage {stage}", {"stage": stage}) for stage in above)
    if setting.stage and setting.ranks < MOST["ranks"]:
        yield f"{MOST['ranks']} GPUs", {"ranks": MOST["ranks"]}
    if setting.keeps:
        yield "freeing gathered weights", {"keep": False}
    for stage in range(max(1, setting.stage), 4):
        there = {"keep": False} if setting.keeps else {} if stage == setting.stage else {"stage": stage}
        beside = "weights freed, " if setting.keeps else f"stage {stage}, " if there else ""
        if setting.ranks < MOST["ranks"] and there:
            yield f"{beside}{MOST['ranks']} GPUs", {**there, "ranks": MOST["ranks"]}
        if setting.away == "none" or (there and setting.offload == "none"):
            yield f"{beside}optimizer offloaded", {**there, "offload": "optimizer", "to": "host"}
        if stage == 3 and setting.away != "parameters":
            every = {**there, "offload": "parameters", "to": "host"}
            yield f"{beside}all states offloaded", every
    if setting.held("host") and not setting.host_fits and setting.stage == 3:
        yield "NVMe", {"to": "nvme"}


def _smaller(setting) -> Advice | None:
    """What holds less and takes no longer."""
    for words, change in _for_memory(setting):
        if len(change) > 1 or "offload" in change:
            continue
        then = setting.other(**change)
        if then.held() < (1 - WORTH) * setting.held() and pace(then) < (1 + WORTH) * pace(setting):
            return Advice(change, words, f"{_holds(then)}, {_sends(setting, then)}")
    return None


# --- time --------------------------------------------------------------------------------------------------------


def _faster(setting) -> Advice | None:
    """The mildest lever that saves time for a sequence, and does not make a step too large."""
    tried = [(words, change, setting.other(**change)) for words, change in _for_time(setting)]
    some = [one for one in tried if one[2].step_fits or (one[2].fits and one[2].peak <= setting.peak)]
    found = [one for one in some if pace(one[2]) < (1 - WORTH) * pace(setting)]
    if not found:
        return None
    words, change, then = found[0]
    return Advice(change, words, f"{took(pace(then))} each, not {took(pace(setting))}")


def _for_time(setting) -> Iterator[Change]:
    """The mildest first."""
    if setting.away != "none":
        if setting.tier == "nvme":
            yield "the host's memory", {"to": "host"}
        if setting.away == "parameters":
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
    if 2 * setting.batch <= MOST["batch"]:
        yield f"{_many(2 * setting.batch)} a pass", {"batch": 2 * setting.batch}
    if 2 * setting.passes <= MOST["passes"]:
        yield f"{2 * setting.passes} passes a step", {"passes": 2 * setting.passes}


def _many(count: int) -> str:
    return f"{count} sequence{'s' if count > 1 else ''}"


# --- words -------------------------------------------------------------------------------------------------------


def _holds(then) -> str:
    return f"{gigabytes(then.held())} a GPU" if then.held() else "nothing on the GPU"


def _sends(setting, then) -> str:
    """What it costs on the wire."""
    if then.pieces == setting.pieces:
        return "no byte more sent" if then.ranks == setting.ranks else f"sent {times(then.pieces)} as now"
    return f"sent {times(then.pieces)}"
