"""What the sentence of the view `capstone` advises: what limits a run, what makes it fit; each advice was tried."""

from __future__ import annotations

from scaleout.spec.program import PROGRAMS
from scaleout.views import lever
from scaleout.views.capstone.speedup import Setting, fits, strong_at
from scaleout.views.lever import Change
from scaleout.words.amounts import count, listed, quantity

MOST_GPUS = 4096  # GPUs
SEQUENCES = 8192  # of a global batch, at most
WORTH = 0.05  # share of a step, and of tokens/s, from which the sentence speaks of it
SHARDINGS = {
    "full": "FSDP over all GPUs", "hybrid": "FSDP in each node, copies across", "ddp": "DDP: a copy on each GPU",
}  # fmt: skip


def limit(setting: Setting, values: dict) -> str:
    """What limits strong scaling, and the change that helps most, of those that fit and can be set."""
    if values["busy"] < setting.world:
        return (
            f"The limit is the batch: {count(setting.batch, 'sequence')} for {setting.world:,} GPUs; "
            f"{setting.world - values['busy']:,} of them have none. "
        )
    room = setting.world * values["sequences_each"]
    if setting.batch < (1 - WORTH) * room:
        return (
            f"The limit is the batch: {setting.batch:,} sequences do not divide among {setting.world:,} GPUs. "
            f"A step is as long as {values['sequences_each']} sequences, and {1 - setting.batch / room:.0%} of the GPU "
            "time is idle. "
        )
    text = (
        f"The limit is communication, {values['strong_exposed']:.0%} of a step at "
        f"{count(values['sequences_each'], 'sequence')} per GPU. "
    )
    if values["strong_exposed"] < WORTH:
        text = (
            f"The limit is the GPU, at {values['strong_mfu']:.0%} of its peak; communication takes "
            f"{values['strong_exposed']:.1%} of a step. "
        )
    times, words = max(_gains(setting, values["strong_tokens_per_second"]), default=(1.0, ""))
    return text + (f"Try **{words}**: {quantity(times)} times the tokens/s. " if times > 1 + WORTH else "")


def _gains(setting: Setting, pace: float) -> list[tuple[float, str]]:
    """By how much each change that fits raises the tokens per second from `pace`."""
    changes: list[Change] = [(SHARDINGS[key], {"sharding": key}) for key in SHARDINGS if key != setting.sharding]
    if setting.program != "compiled":
        changes.append((PROGRAMS["compiled"].label, {"program": "compiled"}))
    changes += [
        (f"{times} times the batch, if the loss allows", {"batch": times * setting.batch})
        for times in (2, 4)
        if times * setting.batch <= SEQUENCES
    ]
    if setting.link != "node-ib":
        changes.append(("nodes of 8 with InfiniBand", {"link": "node-ib"}))
    fitting = [trial for trial in lever.tried(setting, changes) if fits(trial.after, trial.after.sharding)]
    return [(strong_at(trial.after, trial.after.world).tokens_per_second / pace, trial.words) for trial in fitting]


def sparing(setting: Setting, values: dict) -> str:
    """Where it does not fit: by how much, and what makes it fit: one change after the other, the mildest first."""
    if values["fits"]:
        return ""
    text = (
        f"But each GPU would need {quantity(values['peak_gb'])} GB, and {quantity(setting.usable / 1e9)} are usable. "
    )
    changes: list[tuple[dict, str]] = [
        ({"sharding": "full"}, "FSDP over all GPUs"),
        ({"checkpointing": "full"}, "full checkpointing"),
        ({"each": 1}, "1 sequence per micro-batch"),
    ]
    changes += [({"world": 2**k}, f"{2**k:,} GPUs") for k in range(1, 13) if setting.world < 2**k <= MOST_GPUS]
    tried, pulled = setting, {}
    for change, words in changes:
        ((name, value),) = change.items()
        if getattr(tried, name) == value:
            continue
        tried, pulled[name] = tried.other(**change), words
        if fits(tried, tried.sharding):
            return f"{text}It fits with **{listed([*pulled.values()])}**."
    return f"{text}No control here makes it fit."
