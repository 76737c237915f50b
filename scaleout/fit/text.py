"""What `answer` found, as a table and a few lines."""

from __future__ import annotations

from typing import Any

from scaleout.memory.tape import KINDS
from scaleout.timing.price import EXAMPLE
from scaleout.views.finetune.words import WAYS
from scaleout.words import tables
from scaleout.words.amounts import amount, quantity, short, took

# Moments of a step as a table names them.
CALLED = {"forward": "end of the forward", "loss": "the loss", "head": "backward: head", "block": "backward: blocks",
          "embedding": "backward: embedding", "optimizer": "optimizer step"}  # fmt: skip


def text(found: dict[str, Any]) -> str:
    """All of it."""
    return "\n".join([*_head(found), *(_counted(found) if "not_priced" in found else _priced(found))])


def _head(found: dict[str, Any]) -> list[str]:
    model, gpus = found["model"], f"{found['cluster']}, {found['program']}"
    active = f", {model['active']:,} of them active" if model["active"] < model["parameters"] else ""
    step = f"{found['sequences']:,} sequences of {found['seq']:,} tokens per step"
    if "method" in found:
        active += (
            f", {found['trained']:,} of them trained"
            if found["method"] == "full"
            else (f" and {found['trained']:,} of adapters")
        )
        gpus += f", {WAYS[found['method']]}"
    lines = [
        f"{model['name']} ({model['parameters']:,} parameters{active}) on {gpus}",
        f"{step}; {_gb(found['usable_bytes'])} GB of each GPU are usable",
    ]
    if model["not_priced"]:
        lines.append(f"Counted, but not priced yet: {'; '.join(model['not_priced'])}.")
    if found["unread"]:
        lines.append(f"Fields of the config.json that are not read: {', '.join(found['unread'])}.")
    return lines


def _counted(found: dict[str, Any]) -> list[str]:
    """Of a model that is counted only."""
    states = _gb(sum(found["states"].values()))
    return [
        f"No step is predicted: {found['not_priced']}.",
        f"Its weights, gradients and optimizer alone take {states} GB per GPU if all GPUs share them (ZeRO-3).",
    ]


def _priced(found: dict[str, Any]) -> list[str]:
    best, run = found["best"], found["run"]
    fits = "fits" if best["fits"] else f"does not fit by {_gb(best['bytes'] - found['usable_bytes'])} GB"
    if best.get("verdict") == "may fit":
        fits = "may fit, if the allocator wastes little"
    batch = f"micro-batch {best['micro_batch']}, the largest that fits is {found['largest_micro_batch']}"
    rate = f"{quantity(best['tokens_per_second'])} tokens/s, {100 * best['mfu']:.0f}% MFU"
    price = f"{quantity(run['price'])} {run['currency']} at {run['gpu_hour']:g} per GPU-hour"
    price += " (an example: give yours by --price)" * (run["gpu_hour"] == EXAMPLE.gpu_hour)
    host = f"offloaded: {_gb(best.get('host_bytes', 0))} GB of CPU memory per GPU"
    return [
        "",
        f"{best['layout']}: {fits}, {_gb(best['bytes'])} GB at the peak; {batch}",
        *[host] * bool(best.get("host_bytes")),
        "",
        _memory(best["memory"]),
        "",
        f"{took(best['seconds'])} per step ± {100 * found['band']:.0f}%, {rate}",
        f"{short(run['tokens'])} tokens: {took(3600 * run['hours'])}, {quantity(run['gpu_hours'])} GPU-hours, {price}",
        *[found["lever"]] * bool(found["lever"]),
        "",
        _layouts(found),
        "",
        *([_changes(found), ""] if "changes" in found else []),
        found["band_of"],
    ]


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f}"


def _memory(moments: dict[str, dict[str, int]]) -> str:
    """GB by moment and kind."""
    kinds = [kind for kind in KINDS if any(sizes[kind] for sizes in moments.values())]
    rows = [
        [CALLED[moment], *(_gb(sizes[kind]) for kind in kinds), _gb(sum(sizes.values()))]
        for moment, sizes in moments.items()
    ]
    return tables.aligned(["GB", *kinds, "all"], rows, [False, *[True] * (len(kinds) + 1)])


def _changes(found: dict[str, Any]) -> str:
    """What one change makes of the best."""
    rows = [
        [one["change"], amount(one["bytes"], 10**9), "–" if one["verdict"] == "does not fit" else f"{one['gain']:+.0%}",
         one["verdict"]]
        for one in found["changes"]
    ]  # fmt: skip
    return tables.aligned(["one change away", "peak", "tokens/s", ""], rows, [False, True, True, False])


def _layouts(found: dict[str, Any]) -> str:
    rows = [
        [
            one["layout"],
            str(one["micro_batch"]),
            amount(one["bytes"], 10**9),
            took(one["seconds"]),
            f"{100 * one['mfu']:.0f}%",
            one["why"],
        ]
        for one in found["layouts"]
    ]
    head = [f"layouts ({found['fitting']} fit)", "micro-batch", "peak", "step", "MFU", ""]
    return tables.aligned(head, rows, [False, True, True, True, True, False])
