"""Which lever to press in the view `bottlenecks`: each is tried before it is named. And why some change nothing now."""

from __future__ import annotations

from collections.abc import Iterator

from scaleout.views import lever
from scaleout.views.bottlenecks.setting import FIXED, INPUT, Setting
from scaleout.views.lever import Change, Lever
from scaleout.words.amounts import amount

WORTH = 1.05  # times the tokens per second that a lever must give to be named
OFF_LINK, FAST_LINK = "This run stays inside one node.", "This run has it already."


def sentence(setting: Setting) -> str:
    """The one lever worth pressing now, or why there is none."""
    return lever.sentence(advice(setting), _none(setting))


def advice(setting: Setting) -> Lever | None:
    """Where the run does not fit, the lever that makes it fit with the most tokens per second; where it fits, the one
    that gives most tokens per second and still fits."""
    fitting = [candidate for candidate in lever.tried(setting, _changes(setting)) if candidate.after.fits]
    if not fitting:
        return None
    best = max(fitting, key=lambda candidate: candidate.after.tokens_per_second)
    gain = best.after.tokens_per_second / setting.tokens_per_second
    if not setting.fits:
        return best.giving(f"{amount(best.after.account.peak_bytes, 10**9)} per GPU, which fits")
    return best.giving(f"{gain:.2g} times the tokens per second") if gain >= WORTH else None


def _none(setting: Setting) -> str:
    if not setting.fits:
        return "No single lever makes it fit: press two."
    if setting.tallest == FIXED:
        return "No lever here gains 5%, because none shortens a fixed cost. Find out what the run does once per step."
    return "No single lever here gains 5%."


def _changes(setting: Setting) -> Iterator[Change]:
    if setting.can_be_faster:
        yield "a faster network", {"link": "faster"}
    if setting.states == "copy" and not setting.chosen.offload:
        yield "splitting the states", {"states": "split"}
    for kind, name in (
        ("selective", "recomputing attention"),
        ("full", "recomputing every block"),
        ("none", "storing activations"),
    ):
        if kind != setting.recompute:
            yield name, {"recompute": kind}
    if setting.batch < 8:
        yield f"{2 * setting.batch} sequences per GPU", {"batch": 2 * setting.batch}
        if setting.recompute != "full":  # makes the memory for it
            yield "recomputing every block, for 8 sequences per GPU", {"recompute": "full", "batch": 8}
    if setting.batch > 1:
        yield f"{setting.batch // 2} sequence{'s' if setting.batch > 2 else ''} per GPU", {"batch": setting.batch // 2}
    if setting.tensor_ranks < setting.most_tensor_ranks:
        yield f"{2 * setting.tensor_ranks} tensor-parallel GPUs", {"tp": 2 * setting.tensor_ranks}
    if setting.seconds_by[INPUT] and setting.workers < 8:
        yield f"{2 * setting.workers} loader workers", {"workers": 2 * setting.workers}


def notes(setting: Setting) -> dict:
    """What is said of controls that change nothing now, or not what was set."""
    remarks: dict[str, dict] = {}
    if not setting.link_matters:
        remarks["link"] = {"off": OFF_LINK if setting.chosen.nodes == 1 else FAST_LINK}
    if setting.chosen.offload:
        remarks["states"] = {"off": "With Adam on the CPU the states are split already."}
    if not setting.other(workers=1).seconds_by[INPUT]:
        remarks["workers"] = {"off": "One worker is enough here: it prepares data faster than the GPUs use them."}
    if setting.most_tensor_ranks < setting.tp:
        remarks["tp"] = {
            "takes": f"{setting.tensor_ranks}: the most that divide the model's heads and the GPUs of a node"
        }
    return remarks
