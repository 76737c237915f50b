"""What to change in the view `finetune`: what makes a job fit, and what makes one that fits faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scaleout.views import lever
from scaleout.views.base import kept
from scaleout.views.finetune.setting import BATCHES, GPUS, SEQS, Setting
from scaleout.views.lever import Lever
from scaleout.words.amounts import amount, listed

GAIN = 0.02  # of tokens per second: what gains less is no lever

Changes = Mapping[str, dict]


def savers(setting: Setting) -> dict[str, dict]:
    """Changes that need less memory, the mildest first."""
    more = [gpus for gpus in GPUS if gpus > setting.gpus and setting.layout != "offload"]
    every: dict[str, dict] = {
        "micro-batch 1": {"batch": 1},
        "activation checkpointing": {"checkpointing": "full"},
        "the loss in chunks": {"loss": "chunked"} if setting.runs != "liger" else {},
        "AdamW in 8 bits": {"optimizer": "adamw-8bit"} if setting.optimizer == "adamw" else {},
        "LoRA": {"method": "lora"} if setting.method == "full" else {},
        "QLoRA": {"method": "qlora"},
        "half the sequence length": {"seq": setting.tokens // 2} if setting.tokens // 2 in SEQS else {},
        "FSDP": {"layout": "fsdp"} if setting.gpus > 1 and setting.layout == "ddp" else {},
        **{f"FSDP over {gpus} GPUs": {"gpus": gpus, "layout": "fsdp"} for gpus in more},
        "CPU offload": {"layout": "offload"},
    }
    return {words: change for words, change in every.items() if _is_one(setting, change)}


def speeders(setting: Setting) -> dict[str, dict]:
    """Changes that may need less time."""
    batches = {f"micro-batch {batch}": {"batch": batch} for batch in BATCHES if batch > setting.batch}
    return {words: change for words, change in {
        **batches,
        "no checkpointing": {"checkpointing": "none"},
        "LoRA": {"method": "lora"} if setting.method == "qlora" else {},
        "DDP": {"layout": "ddp"} if setting.gpus > 1 or setting.layout == "offload" else {},
        "FSDP": {"layout": "fsdp"} if setting.gpus > 1 and setting.layout == "offload" else {},
        "Liger's kernels": {"program": "liger"} if _takes_liger(setting) else {},
        "torch.compile": {"program": "compiled"} if setting.runs == "eager" else {},
    }.items() if _is_one(setting, change)}  # fmt: skip


def _takes_liger(setting: Setting) -> bool:
    return setting.runs == "huggingface" and setting.other(program="liger").runs == "liger"


def every(setting: Setting) -> dict[str, dict]:
    """Both, without micro-batches that do not fit: the first of them says where the limit is."""
    found = savers(setting) | speeders(setting)
    over = [words for words, change in found.items() if change.get("batch", 0) > max(setting.largest, 1)]
    return {words: change for words, change in found.items() if words not in over[1:]}


def _is_one(setting: Setting, change: dict) -> bool:
    """Whether it changes anything, and leads to what is priced."""
    changes = any(getattr(setting, name) != value for name, value in change.items())
    return changes and not setting.other(**change).refusal


@kept
def best(setting: Setting) -> Lever | None:
    """The change worth trying: of a job that fits the one that gains most, of another the mildest that makes it fit."""
    return _fastest(setting) if setting.fits else _fitting(setting)


def _fastest(setting: Setting) -> Lever | None:
    fitting = [one for one in _tried(setting, speeders(setting)) if one.after.fits]
    one = max(fitting, key=lambda trial: trial.after.rate, default=None)
    gain = one.after.rate / setting.rate - 1 if one else 0.0
    return one.giving(f"{gain:+.0%} tokens/s") if one and gain > GAIN else None


def _tried(setting: Setting, changes: Changes) -> Iterator[Lever]:
    return lever.tried(setting, changes.items())


def _fitting(setting: Setting) -> Lever | None:
    """One change if one is enough, else as few of them, in their order, as make it fit together."""
    changes = savers(setting)
    alone = lever.first(_tried(setting, changes), lambda after: after.fits, _size)
    if alone:
        return alone
    needed: list[str] = []
    for words in changes:
        needed.append(words)
        if _together(setting, changes, needed).fits:
            break
    else:
        return None
    for words in [*needed]:
        fewer = [one for one in needed if one != words]
        if _together(setting, changes, fewer).fits:
            needed = fewer
    after = _together(setting, changes, needed)
    return Lever(listed(needed), _merged(changes, needed), after, _size(after))


def _merged(changes: Changes, names: list[str]) -> dict[str, Any]:
    """Later changes win: sharding over a node, then its offload."""
    return {name: value for words in names for name, value in changes[words].items()}


def _together(setting: Setting, changes: Changes, names: list[str]) -> Setting:
    return setting.other(**_merged(changes, names))


def _size(after: Setting) -> str:
    return f"it fits, in {amount(after.peak)}"
