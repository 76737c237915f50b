"""What the view `zero` says: its sentence, the law beside the picture, and what wrong guesses are made of."""

from __future__ import annotations

from scaleout.views.choices import NAMES
from scaleout.views.zero.amounts import gigabytes, times
from scaleout.words.amounts import quantity, took

SPLITS = {0: "copies all to", 1: "splits the optimizer over", 2: "splits gradients too, over", 3: "splits all over"}


def sentence(setting, values: dict) -> str:
    """What is held, what is sent, and what a step loses to communication and to the host."""
    resting = gigabytes(setting.held_bytes()) if setting.held_bytes() else "nothing at rest"
    fits = "" if setting.states_fit else " (too much)"
    extra = _outside(setting)
    if setting.keeps:
        extra = f", {gigabytes(setting.fullest_bytes)} for a moment{fits}"
        fits = ""
    return (
        f"{NAMES[setting.model]}: stage {setting.stage} {SPLITS[setting.stage]} {setting.ranks} GPUs. Each holds "
        f"**{resting}**{fits}{extra}, sends all weights **{times(values['pieces'])}**, loses "
        f"{took(values['exposed_seconds'])} of {took(values['seconds'])}."
    )


def _outside(setting) -> str:
    """What each GPU asks of its host or of NVMe."""
    if setting.held_bytes("nvme"):
        return f", with {gigabytes(setting.held_bytes('nvme'))} on NVMe"
    if not setting.held_bytes("host"):
        return ""
    excess = "" if setting.host_fits else f" (too much: {gigabytes(setting.node_host)} a node, a DGX H100 has 2 TB)"
    return f", with {gigabytes(setting.held_bytes('host'))} of host memory{excess}"


def law(setting, values: dict) -> list[str]:
    """Bytes of a parameter that a GPU keeps, and what a piece is."""
    n, billions, resting = setting.ranks, quantity(setting.parameters / 1e9), setting.resting_bytes["device"]
    terms = [
        f"{size:.3g}/{n}" if values["split"][kind] else f"{size:.3g}"
        for kind, size in values["each"].items()
        if resting[kind]
    ]
    formula = f"({' + '.join(terms)}) B × {billions} billion = {gigabytes(setting.held_bytes())}"
    if not terms:
        formula = f"nothing: all {gigabytes(values['outside_gb'] * 1e9)} of its part are offloaded"
    piece = f"A piece: (W − 1)/W of {billions} billion × {setting.widths['weights']} B = {gigabytes(setting.piece)}."
    program = setting.job.program.label
    return [
        f"Run by {program}. At rest, with W = {n}, a GPU keeps of each parameter, by row:",
        formula,
        f"{piece}{_fullest(setting)}{_elsewhere(values)}",
    ]


def _fullest(setting) -> str:
    """What is there for a moment where a block is gathered at a time, and not a W-th of the model as drawn."""
    if setting.stage < 3 or setting.keeps:
        return ""
    return f" Gathered block by block, {gigabytes(setting.fullest_bytes)} at the fullest: less than these parts show."


def _elsewhere(values: dict) -> str:
    """Where a program sends more than the paper says."""
    exceeding = {way: pieces for way, pieces in values["pieces_by_way"].items() if pieces > values["pieces"]}
    if not exceeding:
        return ""
    return f" Installed, {' and '.join(f'{way} sends {pieces:.3g}' for way, pieces in exceeding.items())}."


def slips(setting) -> list[tuple[float, str]]:
    """Counts that likely mistakes give."""
    n = setting.ranks
    bare = 2 * (n - 1) / n
    return [
        (1, "the gradients' way to their owners alone: the new weights have to come back"),
        (bare, f"with the (W − 1)/W that a piece has already; so counted DDP sends {bare:g} too"),
        (3, "stage 3's, which gathers the weights for the forward and again for the backward"),
        (4, "an all-reduce of the gradients, and as much again for the weights"),
    ]
