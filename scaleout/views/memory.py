"""What one rank holds at each candidate peak of a training step, against the memory of the device."""

from __future__ import annotations

from functools import lru_cache

from scaleout.draw import svg
from scaleout.memory import allocator
from scaleout.memory.accounts import KINDS, Account, Recipe, account
from scaleout.spec.hardware import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.transformer import PRESETS
from scaleout.views import guess, memory_levers, select, slider, toggle
from scaleout.views.choices import NAMES
from scaleout.views.controls import stops
from scaleout.views.memory_levers import Advice, Question

TITLE = "What one GPU holds"

COLOURS = dict(zip(KINDS, ("c1", "c5", "c6", "c2", "c3", "c7", "c8"), strict=True))

_POWERS = [(str(2**i), f"{2**i:,}") for i in range(18)]

CONTROLS = (
    guess("One H100, of 80 GB, is to train **Llama 2 7B**: AdamW, bf16 autocast, one sequence of 2,048 tokens. What does "
          "it hold at its **fullest moment**?", "peak_gb", "GB", lo=0, hi=160, step=1),
    select("model", "Model", "llama-2-7b", [(key, NAMES.get(key, key)) for key in PRESETS]),
    select("device", "GPU", "h100-sxm", [(key, device.name) for key, device in DEVICES.items()]),
    slider("batch", "Sequences per GPU", 1, 1, 64, log=True),
    select("seq", "Tokens per sequence", "2048", _POWERS[7:18]),
    slider("gpus", "GPUs (data parallel)", 1, 1, 1024, log=True),
    select("zero", "ZeRO stage", "0", [("0", "0: copy all"), ("1", "1: split optimizer"),
                                       ("2", "2: and gradients"), ("3", "3: and weights")]),
    select("tp", "Tensor parallel", "1", _POWERS[:4]),
    select("checkpointing", "Checkpointing", "none",
           [("none", "none"), ("selective", "selective"), ("full", "full")]),
    select("precision", "Precision", "autocast-bf16",
           [("fp32", "fp32"), ("autocast-bf16", "bf16 autocast, fp32 weights"),
            ("bf16-master", "bf16 weights, fp32 master"), ("bf16", "bf16 only")]),
    select("optimizer", "Optimizer", "adamw", [("sgd", "SGD"), ("momentum", "SGD with momentum"),
                                               ("adamw", "AdamW"), ("adamw-8bit", "AdamW, 8-bit")]),
    select("attention", "Attention kernel", "sdpa", [("sdpa", "fused (sdpa)"), ("naive", "naive")]),
    select("adapter", "Train", "none", [("none", "all weights"), ("lora", "LoRA, rank 16"),
                                        ("qlora", "QLoRA, rank 16")]),
    toggle("gib", "Show GiB (2^30) instead of GB (10^9)", False),
)  # fmt: skip

_MOMENTS = {
    "forward": "Forward done",
    "loss": "Loss, backward",
    "head": "Output head, backward",
    "block": "Blocks, backward",
    "embedding": "Token table, backward",
    "optimizer": "Optimizer step",
}

WIDTH, BAR, PITCH = 480, 18, 42


def draw(params: dict, width: int) -> dict:
    """One stacked bar for each candidate peak, the device's memory as a line, and what to do about the largest kind."""
    device, tokens = DEVICES[params["device"]], _tokens(params)
    held, found = _held(params), lever(params)
    cut = "" if tokens == int(params["seq"]) else f" (it has {tokens:,} positions, so that many tokens)"
    unit, size = ("GiB", 2**30) if params["gib"] else ("GB", 10**9)
    return {
        "svg": _picture(held, device, unit, size),
        "sentence": _sentence(NAMES[params["model"]] + cut, held, device, unit, size, found),
        "values": {
            "peak_gb": held.peak_bytes / 10**9,
            "peak_gib": held.peak_bytes / 2**30,
            "peak_moment": held.peak_moment,
            "states_gb": sum(held.states.values()) / 10**9,
            "of_device": held.peak_bytes / device.memory_bytes,
            "fits": allocator.fits(held.peak_bytes, device.memory_bytes),
            "verdict": allocator.verdict(held.peak_bytes, device.memory_bytes),
            "room_gib": allocator.room(device.memory_bytes) / 2**30,
            **{f"{kind}_gb": held.peak[kind] / 10**9 for kind in KINDS},
        },
    }


def _tokens(params: dict) -> int:
    """Tokens a sequence: no more than the model has positions."""
    return PRESETS[params["model"]].tokens(int(params["seq"]))


def _held(params: dict) -> Account:
    layout = Layout(dp=params["gpus"], tp=int(params["tp"]), zero=int(params["zero"]))
    recipe = Recipe(
        precision=params["precision"], optimizer=params["optimizer"], attention=params["attention"],
        checkpointing=params["checkpointing"], adapter=params["adapter"],
        buckets="beside" if layout.dp > 1 else "none",
    )  # fmt: skip
    return _account(params["model"], params["batch"], _tokens(params), recipe, layout)


@lru_cache(maxsize=64)  # the setting that is shown is asked for by the picture and by its levers
def _account(model: str, batch: int, tokens: int, recipe: Recipe, layout: Layout) -> Account:
    return account(PRESETS[model], batch, tokens, recipe, layout)


def lever(params: dict) -> Advice | None:
    """The lever worth trying now; None where none takes a twentieth off the peak."""
    memory, by_name = DEVICES[params["device"]].memory_bytes, {control.name: control for control in CONTROLS}
    places = {name: stops(by_name[name]) for name in ("batch", "gpus")}
    places["seq"] = [int(value) for value, _ in by_name["seq"].options]
    question = Question(
        params, lambda other: _held(other).peak_bytes, lambda peak: allocator.fits(peak, memory), places
    )
    return memory_levers.advice(question, _held(params).peak)


def _sentence(name: str, held, device, unit: str, size: int, found: Advice | None) -> str:
    ratio = held.peak_bytes / device.memory_bytes
    amount = svg.quantity(held.peak_bytes / size)
    largest = max(KINDS, key=lambda kind: held.peak[kind])
    share = held.peak[largest] / held.peak_bytes
    room = allocator.room(device.memory_bytes)
    spare, left = (svg.quantity((limit - held.peak_bytes) / size) for limit in (room, device.memory_bytes))
    least = svg.quantity((device.memory_bytes - room) / size)
    verdict = {
        "fits": f"It fits on one {device.name}, with {spare} {unit} to spare under the reserve.",
        "may fit": f"It may fit on one {device.name}: {left} {unit} are left; driver and allocator can take {least}.",
        "does not fit": f"It does not fit: {svg.quantity(ratio)} times what one {device.name} has."
        if ratio > 1 else f"It does not fit: {left} {unit} are left on one {device.name}, and the driver takes more.",
    }[allocator.verdict(held.peak_bytes, device.memory_bytes)]
    moment = _MOMENTS[held.peak_moment].lower()
    return (
        f"{name}: {amount} {unit} on each GPU at the peak ({moment}). "
        f"{verdict} {'Most of it' if share > 0.5 else 'The largest part'} is {largest} ({share:.0%}). "
        + (_try(found, unit, size) if found else "No lever here takes a twentieth off.")
    )


def _try(found: Advice, unit: str, size: int) -> str:
    fits = "which fits" if found.fits else "which does not fit yet"
    return f"Try {found.words}: {svg.quantity(found.peak_bytes / size)} {unit}, {fits}."


def _picture(held, device, unit: str, size: int) -> str:
    top = max(held.peak_bytes, device.memory_bytes) / size * 1.04
    left, width = 4, WIDTH - 8
    scale = width / top
    keys, keys_height = svg.legend(
        left, 4, width, [(COLOURS[kind], f"{kind} {svg.quantity(held.peak[kind] / size)}") for kind in KINDS]
    )
    first = keys_height + 34
    bottom = first + PITCH * len(held.moments) - 8
    body = [keys, svg.axis_x(left, bottom, width, top, unit, first - 18)]
    at = left + device.memory_bytes / size * scale
    body.append(svg.line(at, first - 18, at, bottom + 20, "accent", 2, "5 4"))
    for i, (moment, kinds) in enumerate(held.moments.items()):
        y = first + PITCH * i
        at_peak = moment == held.peak_moment
        total = sum(kinds.values()) / size
        words = f"{_MOMENTS[moment]}: {svg.quantity(total)} {unit}" + (" (the peak)" if at_peak else "")
        parts = [(COLOURS[k], kinds[k] / size, f"{k}: {svg.quantity(kinds[k] / size)} {unit}") for k in KINDS]
        body.append(svg.text(left, y - 5, words, bold=at_peak, halo=True))
        body.append(svg.stacked_bar(left, y, BAR, scale, parts, opacity=0.94))
    safe = allocator.room(device.memory_bytes) / size
    body.append(svg.line(left + safe * scale, first - 18, left + safe * scale, bottom + 8, "accent", 1, "2 3"))
    limit = f"this GPU: {svg.quantity(device.memory_bytes / size)} {unit}; it fits left of {svg.quantity(safe)}"
    anchor = "end" if at > WIDTH / 2 else "start"
    beside = at + (-6 if anchor == "end" else 6)
    body.append(svg.text(beside, bottom + 34, limit, anchor=anchor, fill="accent", halo=True))
    label = (
        f"Bytes held at {len(held.moments)} moments of a step, by kind, beside the memory of one {device.name} and the "
        "part of it that tensors may fill."
    )
    return svg.figure(WIDTH, bottom + 42, "".join(body), label)
