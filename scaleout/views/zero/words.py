"""What the view `zero` says: its sentence, the lines below the picture, and what wrong guesses are made of."""

from __future__ import annotations

from scaleout.views.choices import NAMES
from scaleout.views.zero.amounts import gigabytes, volume
from scaleout.words.amounts import quantity, took


def sentence(setting, values: dict) -> str:
    """What is stored, what is communicated, and what communication and the host cost."""
    stored_bytes = setting.held_bytes()
    resting = f"**{gigabytes(stored_bytes)}** per GPU" if stored_bytes else "**no states** on the GPU"
    fits = "" if setting.states_fit else " (too much)"
    extra = _offloaded(setting)
    if setting.keeps:
        extra = f", {gigabytes(setting.fullest_bytes)} at the peak{fits}"
        fits = ""
    causes = "communication and offload cost" if setting.offloaded != "none" else "communication costs"
    return (
        f"{NAMES[setting.model]} at stage {setting.stage} on {setting.ranks} GPUs: {resting}{fits}{extra}; "
        f"volume **{volume(values['pieces'])}**; {causes} "
        f"{took(values['exposed_seconds'])} of the {took(values['seconds'])} step."
    )


def _offloaded(setting) -> str:
    """What each GPU needs of its host's memory or of NVMe."""
    if setting.held_bytes("nvme"):
        return f", {gigabytes(setting.held_bytes('nvme'))} on NVMe"
    if not setting.held_bytes("host"):
        return ""
    excess = "" if setting.host_fits else f" (too much: {gigabytes(setting.node_host)} per node, a DGX H100 has 2 TB)"
    return f", {gigabytes(setting.held_bytes('host'))} in CPU memory{excess}"


def law(setting, values: dict) -> list[str]:
    """Bytes per parameter on a GPU, and what N is."""
    n, billions, resting = setting.ranks, quantity(setting.parameters / 1e9), setting.resting_bytes["device"]
    terms = [
        f"{size:.3g}/{n}" if values["split"][kind] else f"{size:.3g}"
        for kind, size in values["each"].items()
        if resting[kind]
    ]
    formula = f"({' + '.join(terms)}) B × {billions} billion = {gigabytes(setting.held_bytes())}"
    if not terms:
        formula = f"nothing: all {gigabytes(values['outside_gb'] * 1e9)} of its shard are offloaded"
    unit = f"Per N: (W − 1)/W of {billions} billion × {setting.widths['weights']} B = "
    program = setting.job.program.label
    return [
        f"Run by {program}. With W = {n}, a GPU stores at the update, by row:",
        formula,
        f"{unit}{gigabytes(setting.piece)}.{_fullest(setting)}{_elsewhere(values)}",
    ]


def _fullest(setting) -> str:
    """The peak if one block is gathered at a time, and not a W-th of the model as drawn."""
    if setting.stage < 3 or setting.keeps:
        return ""
    return f" Gathered block by block, the peak is {gigabytes(setting.fullest_bytes)}, less than drawn here."


def _elsewhere(values: dict) -> str:
    """Programs that communicate more than the paper's algorithm."""
    exceeding = {way: pieces for way, pieces in values["pieces_by_way"].items() if pieces > values["pieces"]}
    if not exceeding:
        return ""
    return f" By default {' and '.join(f'{way} has {volume(pieces)}' for way, pieces in exceeding.items())}."


def slips(setting) -> list[tuple[float, str]]:
    """Volumes that likely mistakes give."""
    n = setting.ranks
    bare = 2 * (n - 1) / n
    return [
        (1, "the reduce-scatter of the gradients alone: the new weights have to be gathered too"),
        (bare, f"with the factor (W − 1)/W, which is part of N here; with it DDP has {bare:g} too"),
        (3, "stage 3's, which gathers the weights for the forward and again for the backward"),
        (4, "an all-reduce of the gradients, and as much again for the weights"),
    ]
