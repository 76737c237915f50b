"""What the view `fsdp` says: its sentence, the law beside the picture, and the mistakes behind wrong guesses."""

from __future__ import annotations

from scaleout.spec.transformer import total_parameters
from scaleout.views.choices import NAMES
from scaleout.views.fsdp.levers import lever, roomier
from scaleout.words.amounts import adding_up, quantity, took

GIB = 2**30
PHASE_WORDS = {"forward": "in forward", "loss": "at the loss", "backward": "in backward", "update": "in the update"}
# Layers of the picture by what FSDP does with them
SPLIT = ("optimizer", "weights", "gradients")
GATHERED = ("unsharded weights", "unsharded gradients", "buffers")


def sentence(setting, values: dict) -> str:
    """The memory of one GPU, and whether the job fits and is fast. setting: of the view."""
    gpus = f"{setting.ranks:,} {setting.card.name}"
    peak, usable = (quantity(values[name]) for name in ("peak_gib", "usable_gib"))
    peak = f"{peak} of {usable} GiB" if values["fits"] else f"{peak} GiB ({usable} usable)"
    first = f"{NAMES[setting.model]} on {gpus} peaks at {peak}, {PHASE_WORDS[values['peak_phase']]}. "
    if not values["fits"]:
        return f"{first}{_too_much(values)}"
    waits = f"a GPU waits for {values['waiting_percent']:.1f}% of the {took(values['step_seconds'])} step"
    spare = f"with {values['spare_percent']:.0f}% to spare"
    if values["verdict"] == "merely fits":
        return f"{first}It merely fits, {spare}: {waits}."
    alone = " One GPU has nothing to all-gather." if setting.ranks == 1 else ""
    return f"{first}It fits, {spare}, at healthy throughput: {waits}.{alone}"


def advice(setting, values: dict) -> str:
    """What to try where it does not fit or is not fast; or what frees memory, where activations take most of it."""
    if values["verdict"] != "healthy":
        return lever(setting)
    token_share = parts(values)[2] / values["peak_gib"]
    room = roomier(setting) if token_share > 0.5 else None
    if room is None:
        return ""
    gib, longer = room
    return f"{token_share:.0%} of it is not sharded: try **full checkpointing**, {gib} GiB, {longer:.0%} slower."


def _too_much(values: dict) -> str:
    """Why it does not fit, or may not."""
    if not values["host_fits"]:
        return f"It does not fit. Offload needs {quantity(values['host_gib'])} GiB per GPU; a node has 2 TB."
    if values["verdict"] == "does not fit":
        return "It does not fit."
    return f"It may fit, in what the driver and the allocator leave of the GPU's {values['device_gib']:.1f} GiB."


def parts(values: dict) -> tuple[float, float, float]:
    """GiB at the peak: sharded states, unsharded units, and activations with logits."""
    split, gathered = (sum(values[f"{name}_gib"] for name in names) for names in (SPLIT, GATHERED))
    return split, gathered, values["peak_gib"] - split - gathered


def law(setting, values: dict) -> list[str]:
    """Sharded states, unsharded units and activations at the peak; then the job, and what it sends."""
    ways, (split, gathered, never) = setting.sharding.ranks, parts(values)
    places = 1 if values["peak_gib"] >= 10 else 2
    amounts = " + ".join(f"{part:,.{places}f}" for part in adding_up((split, gathered, never), 1, places))
    states = f"States sharded {ways:,} ways" if ways > 1 else "States, not sharded on one GPU,"
    host = ""
    if setting.offload:
        states = "States, in CPU memory,"
        update = values["update_seconds"] / values["step_seconds"]
        host_gib = quantity(values["host_gib"])
        host = f" CPU memory holds {host_gib} GiB per GPU, and the update there takes {update:.0%} of the step."
    sent = ""
    if values["sent_gb"]:
        extra_share = values["beside_seconds"] / values["step_seconds"]
        sent_gb = quantity(values["sent_gb"])
        sent = f" {sent_gb} GB sent per step; copies and contention take {extra_share:.0%} of its time."
    return [
        f"{states} + unsharded units + activations of its own tokens:",
        f"{amounts} = {values['peak_gib']:,.{places}f} GiB",
        f"{setting.batch} × {setting.tokens:,} tokens per GPU, {setting.job.program.label}: MFU {values['mfu']:.0%}."
        f"{sent}{host}",
    ]


def slips(setting, values: dict) -> list[tuple[float, str]]:
    """Peaks in GiB that likely mistakes give, and which."""
    split, gathered, never = parts(values)
    states = 16 * total_parameters(setting.shape) / GIB
    return [
        (split + gathered, "sharded states and unsharded units, without activations"),
        (split, "the sharded states alone"),
        ((states + never) / setting.ranks, "as if activations were sharded too"),
        (split + gathered + values["activations_gib"], "without the logits and the loss"),
        (states + never, "as if nothing were sharded"),
        (values["peak_gb"], "in GB, not in GiB"),
    ]
