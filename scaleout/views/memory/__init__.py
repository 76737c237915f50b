"""What one rank holds at each moment of a training step, as layers of a tank, against the memory of the device."""

from __future__ import annotations

import math
from functools import lru_cache

from scaleout.draw import guess as ghost
from scaleout.draw import svg
from scaleout.draw.amounts import Scale, amount
from scaleout.draw.kinds import COLOURS, ORDER, PALE, apart
from scaleout.draw.tank import Frame, Layer, Ruler, Tank
from scaleout.draw.tank_picture import Drawing
from scaleout.memory import allocator
from scaleout.memory.accounts import Account, account
from scaleout.memory.states import rank_parameters
from scaleout.memory.tape import KINDS, MOMENTS
from scaleout.spec.devices import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS
from scaleout.views import guess, more, play, select, slider, toggle
from scaleout.views.choices import LOSSES, NAMES, OF_LOSSES, cards
from scaleout.views.controls import stops
from scaleout.views.memory import levers, words
from scaleout.views.memory.levers import Advice, Question
from scaleout.views.memory.record import measured, own_run

__all__ = ["CONTROLS", "TITLE", "draw", "locked", "measured", "slips"]

TITLE = "What one GPU holds"

FULLEST = len(MOMENTS) + 1  # place on the control, after the moments themselves: the one that the sentence is of
_POWERS = [(str(2**i), f"{2**i:,}") for i in range(18)]

CONTROLS = (
    guess("One H100, of 80 GB, is to train **Llama 2 7B**: AdamW, bf16 autocast, one sequence of 2,048 tokens. What "
          "does it hold at its **fullest moment**?", "peak_gb", "GB", lo=0, hi=160, step=1),
    play("moment", "Moment of the step, at last the fullest", FULLEST, 0, FULLEST),
    select("model", "Model", "llama-2-7b", [(key, NAMES.get(key, key)) for key in PRESETS]),
    select("optimizer", "Optimizer", "adamw", [("sgd", "SGD"), ("momentum", "SGD with momentum"),
                                               ("adamw", "AdamW"), ("adamw-8bit", "AdamW, 8-bit")]),
    select("checkpointing", "Checkpointing", "none",
           [("none", "none"), ("selective", "selective"), ("full", "full")]),
    slider("batch", "Sequences per GPU", 1, 1, 64, log=True),
    *more(
        select("device", "GPU", "h100-sxm", cards()),
        select("seq", "Tokens per sequence", "2048", _POWERS[7:18]),
        slider("gpus", "GPUs (data parallel)", 1, 1, 1024, log=True),
        select("zero", "ZeRO stage", "0", [("0", "0: copy all"), ("1", "1: split optimizer"),
                                           ("2", "2: and gradients"), ("3", "3: and weights")]),
        select("tp", "Tensor parallel", "1", _POWERS[:4]),
        select("precision", "Precision", "autocast-bf16",
               [("fp32", "fp32"), ("autocast-bf16", "bf16 autocast, fp32 weights"),
                ("bf16-master", "bf16 weights, fp32 master"), ("bf16", "bf16 only")]),
        select("attention", "Attention kernel", "sdpa", [("sdpa", "fused (sdpa)"), ("naive", "naive")]),
        select("loss", "Loss", "eager", LOSSES, help=OF_LOSSES),
        select("adapter", "Train", "none", [("none", "all weights"), ("lora", "LoRA, rank 16"),
                                            ("qlora", "QLoRA, rank 16")]),
        toggle("gib", "Show GiB (2^30) instead of GB (10^9)", False),
    ),
)  # fmt: skip


def draw(params: dict, width: int, reader_run: dict | None = None) -> dict:
    """The tank at the present moment, the strip of all moments, and what to do about the largest kind."""
    device, account, giga = DEVICES[params["device"]], _account_of(params), _giga(params)
    return {
        "svg": _picture(params, width, reader_run),
        "sentence": words.sentence(
            NAMES[params["model"]] + _cut(params), account, _stack(params), device, giga, lever(params)
        ),
        "law": words.law(account, _parameters(params), params, giga),
        "levers": _levers(params),
        "values": _values(params, account),
    }


def _values(params: dict, account: Account) -> dict:
    memory, frames = DEVICES[params["device"]].memory_bytes, _frames(params)
    return {
        "peak_gb": account.peak_bytes / 10**9,
        "peak_gib": account.peak_bytes / 2**30,
        "peak_moment": account.peak_moment,
        "states_gb": sum(account.states.values()) / 10**9,
        "of_device": account.peak_bytes / memory,
        "fits": allocator.fits(account.peak_bytes, memory),
        "verdict": allocator.verdict(account.peak_bytes, memory),
        "usable_gib": allocator.usable(memory) / 2**30,
        **{f"{kind}_gb": account.peak[kind] / 10**9 for kind in KINDS},
        "copies_gb": account.copies(account.peak_moment) / 10**9,
        "moment": ("rest", *account.moments)[_frame_number(params)],
        "moment_gb": frames[_frame_number(params)].total / 10**9,
        "moments_gb": {
            name: {key: size / 10**9 for key, size in frame.held.items()}
            for name, frame in zip(("rest", *account.moments), frames, strict=True)
        },
        "bytes_each": _ruler(params).whole,
        "parameters": _parameters(params),
        "unit": "GiB" if params["gib"] else "GB",
    }


# --- the setting -----------------------------------------------------------------------------------------------------


def _giga(params: dict) -> int:
    return 2**30 if params["gib"] else 10**9


def _tokens(params: dict) -> int:
    """Tokens a sequence: no more than the model has positions."""
    return PRESETS[params["model"]].tokens(int(params["seq"]))


def _degree(params: dict) -> int:
    """Tensor parallelism: the largest degree up to the one asked for that divides the heads."""
    return math.gcd(int(params["tp"]), PRESETS[params["model"]].heads)


def _cut(params: dict) -> str:
    """What of the setting this model cannot have, in words."""
    shape, tokens, degree = PRESETS[params["model"]], _tokens(params), _degree(params)
    cuts = [f"{tokens:,} positions"] if tokens != int(params["seq"]) else []
    if degree != int(params["tp"]):
        cuts.append(f"{shape.heads} heads {f'in {degree} parts' if degree > 1 else 'unsplit'}")
    return f" ({', '.join(cuts)})" if cuts else ""


def _levers(params: dict) -> dict:
    """What controls do in this setting."""
    heads, reasons = PRESETS[params["model"]].heads, {}
    if params["gpus"] == 1:
        reasons["zero"] = "one GPU has nobody to share with"
    if heads % 2:
        reasons["tp"] = f"{heads} heads do not split in 2"
    if params["checkpointing"] != "none":
        attention = "naive" if params["attention"] == "sdpa" else "sdpa"
        if _account_of({**params, "attention": attention}).moments == _account_of(params).moments:
            reasons["attention"] = "computed again, its scores are at no peak"
    return {"moment": {"hi": FULLEST}} | {name: {"off": reason} for name, reason in reasons.items()}


def _layout(params: dict) -> Layout:
    return Layout(dp=params["gpus"], tp=_degree(params), zero=int(params["zero"]))


def _parameters(params: dict) -> int:
    """Parameters on one GPU, before ZeRO."""
    return rank_parameters(PRESETS[params["model"]], Layout(tp=_degree(params)))


def _account_of(params: dict) -> Account:
    layout = _layout(params)
    recipe = Recipe(
        precision=params["precision"],
        optimizer=params["optimizer"],
        attention=params["attention"],
        checkpointing=params["checkpointing"],
        adapter=params["adapter"],
        loss=params["loss"],
        buckets="beside" if layout.dp > 1 else "none",
    )
    return _account(params["model"], params["batch"], _tokens(params), recipe, layout)


@lru_cache(maxsize=64)  # the setting that is shown is asked for by the picture and by its levers
def _account(model: str, batch: int, tokens: int, recipe: Recipe, layout: Layout) -> Account:
    return account(PRESETS[model], batch, tokens, recipe, layout)


def lever(params: dict) -> Advice | None:
    """The lever worth trying now; None where none takes a twentieth off the peak."""
    return _lever(tuple((name, value) for name, value in params.items() if name not in ("moment", "gib")))


@lru_cache(maxsize=16)  # one search for both widths and all moments
def _lever(setting: tuple) -> Advice | None:
    params = dict(setting)
    memory, by_name = DEVICES[params["device"]].memory_bytes, {control.name: control for control in CONTROLS}
    places = {name: [int(stop) for stop in stops(by_name[name])] for name in ("batch", "gpus")}
    places["seq"] = [int(value) for value, _ in by_name["seq"].options]
    question = Question(params, lambda changed: _account_of(changed).peak_bytes, allocator.usable(memory), places)
    return levers.advice(question, _account_of(params).peak)


# --- the picture -----------------------------------------------------------------------------------------------------


def _layers(params: dict) -> tuple[Layer, ...]:
    """From the bottom up: what stays, what comes and goes."""
    averages = {"adamw": ("Adam's averages", "Adam"), "adamw-8bit": ("Adam in 8 bits", "Adam")}
    gathers = params["zero"] == "3" and params["gpus"] > 1
    called = {
        "optimizer": averages.get(params["optimizer"], (words.AVERAGES[params["optimizer"]],)),
        "master": ("fp32 master weights", "fp32 master"),
        "copies": ("gathered weights", "gathered") if gathers else ("bf16 copies", "copies"),
        "temporaries": ("scratch",),
    }
    return tuple(Layer(key, COLOURS[key], called.get(key, (key,)), PALE.get(key, 1.0)) for key in ORDER)


def _stack(params: dict) -> dict[str, int]:
    """Bytes of the fullest moment by layer, as the picture names it."""
    layer_bytes = apart(_account_of(params), _account_of(params).peak_moment)
    return {layer.words[0]: layer_bytes[layer.key] for layer in _layers(params)}


def _frames(params: dict) -> tuple[Frame, ...]:
    """Every moment, with copies of weights apart from the weights."""
    account, frames = _account_of(params), []
    for moment in ("rest", *account.moments):
        name, short, _ = words.MOMENTS[moment]
        frames.append(Frame(name, short, apart(account, moment)))
    return tuple(frames)


def _peak(account: Account) -> int:
    return 1 + list(account.moments).index(account.peak_moment)


def _frame_number(params: dict) -> int:
    """The number of the frame that is shown."""
    return _peak(_account_of(params)) if params["moment"] == FULLEST else params["moment"]


def _ruler(params: dict) -> Ruler:
    """Bytes of one parameter at the update, and which of them are there now. Activations belong to tokens."""
    count, frames = _parameters(params), _frames(params)
    keys = [key for key in ORDER if key not in ("copies", "activations", "logits")]
    update = {key: frames[-1].held[key] / count for key in keys}
    current = {key: frames[_frame_number(params)].held[key] / count for key in keys}
    if _frame_number(params) < len(MOMENTS):
        current["temporaries"] = 0.0  # another scratch than the update's
    return Ruler(update, current, count)


def _tank(params: dict, reader_run: dict | None, scale: Scale | None = None) -> Tank:
    """All that is drawn; on a `scale` that is given, an empty tank."""
    account, device, giga, frames = _account_of(params), DEVICES[params["device"]], _giga(params), _frames(params)
    limits = device.memory_bytes, allocator.usable(device.memory_bytes)
    limit_text, fits = (amount(limit, giga) for limit in limits)
    fits = f"{limit_text}; it fits below {fits.split()[0]}"
    frame, ruler = frames[_frame_number(params)], _ruler(params)
    axis_bytes = max(account.peak_bytes, device.memory_bytes)
    run = own_run(reader_run, ruler, axis_bytes) if reader_run else None
    return Tank(
        layers=_layers(params),
        frames=frames,
        now=_frame_number(params),
        peak=_peak(account),
        limits=limits,
        limit=(f"this GPU: {fits}", fits),
        title="What does this GPU hold?" if scale else f"{frame.name}: {amount(frame.total, giga)}",
        device=device.name,
        ruler=ruler,
        giga=giga,
        empty=scale is not None,
        own=run,
        scale=scale or Scale.above(max(axis_bytes, run.each * ruler.each if run and run.drawn else 0), giga),
    )


def _picture(params: dict, width: int, reader_run: dict | None) -> str:
    tank = _tank(params, reader_run)
    drawing = Drawing(tank, width)
    label = (
        f"{tank.title}, in layers by kind, beside the bytes of one parameter and {len(tank.frames)} moments of a step; "
        f"the fullest is {tank.frames[tank.peak].short}."
    )
    return svg.figure(width, drawing.height, drawing.parts() + _mark(drawing, tank.scale.top / 10**9), label)


def _mark(drawing: Drawing, top: float) -> str:
    return ghost.mark([(0, drawing.y(0)), (top, drawing.at.top)], (drawing.left, drawing.end))


def locked(params: dict, width: int) -> str:
    """The tank before anything is in it, on the scale of the guess."""
    question = next(control for control in CONTROLS if control.kind == "guess")
    drawing = Drawing(_tank(params, None, Scale(question.hi * 10**9, 10**9, "GB")), width)
    label = "An empty tank with a rim, beside the moments of a step."
    return svg.figure(width, drawing.height, drawing.parts() + _mark(drawing, question.hi), label)


def slips(params: dict) -> list[tuple[float, str]]:
    """Wrong answers, in GB: a part of the bytes of each parameter, or everything at once."""
    account, billions = _account_of(params), _parameters(params) / 10**9
    update = account.moments["optimizer"]
    weights, adam, gradients = (update[kind] / 10**9 for kind in ("weights", "optimizer", "gradients"))
    full = weights + adam + gradients
    return [
        (2 * billions, "the weights alone, in bf16"),
        (weights, "the weights alone"),
        (weights + gradients, "weights and gradients, without what Adam keeps"),
        (weights + adam, "weights and Adam's averages: what stays between two steps"),
        (full, f"{full / billions:.0f} bytes a parameter, without the scratch of the update"),
        (
            full + account.moments["loss"]["activations"] / 10**9,
            f"{full / billions:.0f} bytes a parameter and the activations, which are gone at the update",
        ),
        (account.peak_bytes / 2**30, "the answer in GiB"),
    ]
