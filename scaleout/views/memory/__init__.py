"""The memory in use on one rank at each moment of a training step, as layers of a tank with the size of the GPU."""

from __future__ import annotations

from scaleout.draw import guess as ghost
from scaleout.draw import svg
from scaleout.draw.kinds import COLOURS, ORDER, PALE
from scaleout.draw.scale import Scale
from scaleout.draw.tank import Frame, Layer, Ruler, Tank
from scaleout.draw.tank_picture import Drawing
from scaleout.memory import allocator
from scaleout.memory.tape import KINDS, MOMENTS
from scaleout.spec.transformer import PRESETS
from scaleout.views import guess, more, play, select, slider, toggle
from scaleout.views.base import kept
from scaleout.views.choices import LOSSES, NAMES, OF_LOSSES, cards
from scaleout.views.controls import stops
from scaleout.views.lever import Lever
from scaleout.views.memory import levers, record, words
from scaleout.views.memory.setting import FULLEST, Look, Setting
from scaleout.words.amounts import amount

TITLE = "The memory of one GPU during a step"

_POWERS = [(str(2**i), f"{2**i:,}") for i in range(18)]

CONTROLS = (
    guess("One H100, sold as 80 GB, trains **Llama 2 7B** with AdamW, bf16 autocast and one sequence of 2,048 tokens. "
          "How much memory is in use at the **fullest moment**?", "peak_gb", "GB", lo=0, hi=160, step=1),
    play("moment", "Moment of the step (at the end: the fullest)", FULLEST, 0, FULLEST),
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


_BY_NAME = {control.name: control for control in CONTROLS}
PLACES = {
    name: [int(stop) for stop in stops(_BY_NAME[name])] for name in ("batch", "gpus")
}  # values of numbers that levers move
PLACES["seq"] = [int(value) for value, _ in _BY_NAME["seq"].options]


def draw(params: dict, width: int, reader_run: dict | None = None) -> dict:
    """The tank at the moment that is shown, the strip of all moments, and what to do about the largest kind."""
    setting, look = Setting.of(params), Look.of(params)
    return {
        "svg": _picture(setting, look, width, reader_run),
        "sentence": words.sentence(setting, _stack(setting), look.giga),
        "law": words.law(setting, look.giga),
        "levers": _levers(setting),
        "values": _values(setting, look),
    }


measured = record.measured


def advice(params: dict) -> str:
    """The lever worth trying now, with what it gives."""
    return words.advice(lever(Setting.of(params)), Look.of(params).giga)


@kept  # one search for both widths and all moments
def lever(setting: Setting) -> Lever | None:
    """The lever worth trying now; None where none lowers the peak by 5%."""
    return levers.advice(setting, PLACES)


def _values(setting: Setting, look: Look) -> dict:
    account, memory, number = setting.account, setting.card.memory_bytes, setting.number(look)
    moment, layer_bytes = [*setting.moments.items()][number]
    return {
        "peak_gb": account.peak_bytes / 10**9,
        "peak_gib": account.peak_bytes / 2**30,
        "peak_moment": account.peak_moment,
        "states_gb": sum(account.states.values()) / 10**9,
        "of_device": account.peak_bytes / memory,
        "fits": setting.fits,
        "verdict": allocator.verdict(account.peak_bytes, memory),
        "usable_gib": setting.usable / 2**30,
        **{f"{kind}_gb": account.peak[kind] / 10**9 for kind in KINDS},
        "copies_gb": account.copies(account.peak_moment) / 10**9,
        "moment": moment,
        "moment_gb": sum(layer_bytes.values()) / 10**9,
        "moments_gb": {
            name: {key: size / 10**9 for key, size in layers.items()} for name, layers in setting.moments.items()
        },
        "bytes_each": _ruler(setting, look).whole,
        "parameters": setting.parameters,
        "unit": "GiB" if look.gib else "GB",
    }


def _levers(setting: Setting) -> dict:
    """What controls do in this setting."""
    heads, reasons = setting.shape.heads, {}
    if setting.gpus == 1:
        reasons["zero"] = "it takes more than one GPU to split"
    if heads % 2:
        reasons["tp"] = f"{heads} heads cannot be split in 2"
    if setting.checkpointing != "none":
        attention = "naive" if setting.attention == "sdpa" else "sdpa"
        if setting.other(attention=attention).account.moments == setting.account.moments:
            reasons["attention"] = "recomputed scores are not in the peak"
    return {"moment": {"hi": FULLEST}} | {name: {"off": reason} for name, reason in reasons.items()}


# --- the picture -----------------------------------------------------------------------------------------------------


def _layers(setting: Setting) -> tuple[Layer, ...]:
    """From the bottom up: what stays from step to step, then what comes and goes."""
    averages = {"adamw": ("Adam's averages", "Adam"), "adamw-8bit": ("Adam in 8 bits", "Adam")}
    called = {
        "optimizer": averages.get(setting.optimizer, (words.AVERAGES[setting.optimizer],)),
        "master": ("fp32 master weights", "fp32 master"),
        "copies": ("gathered weights", "gathered") if setting.gathers else ("bf16 copies", "copies"),
        "temporaries": ("scratch",),
    }
    return tuple(Layer(key, COLOURS[key], called.get(key, (key,)), PALE.get(key, 1.0)) for key in ORDER)


def _stack(setting: Setting) -> dict[str, int]:
    """Bytes of the fullest moment by layer, as the picture names it."""
    layer_bytes = setting.moments[setting.account.peak_moment]
    return {layer.words[0]: layer_bytes[layer.key] for layer in _layers(setting)}


def _ruler(setting: Setting, look: Look) -> Ruler:
    """Bytes of one parameter at the update, and which of them are in use now. Activations belong to tokens."""
    count, frames = setting.parameters, [*setting.moments.values()]
    keys = [key for key in ORDER if key not in ("copies", "activations", "logits")]
    update = {key: frames[-1][key] / count for key in keys}
    current = {key: frames[setting.number(look)][key] / count for key in keys}
    if setting.number(look) < len(MOMENTS):
        current["temporaries"] = 0.0  # another scratch than the update's
    return Ruler(update, current, count)


def _tank(setting: Setting, look: Look, reader_run: dict | None, scale: Scale | None = None) -> Tank:
    """All that is drawn; on a `scale` that is given, an empty tank."""
    device, giga = setting.card, look.giga
    frames = tuple(Frame(*words.MOMENTS[moment][:2], layers) for moment, layers in setting.moments.items())
    limits = device.memory_bytes, setting.usable
    limit_text, fits = (amount(limit, giga) for limit in limits)
    fits = f"{limit_text}; it fits below {fits.split()[0]}"
    frame, ruler = frames[setting.number(look)], _ruler(setting, look)
    axis_bytes = max(setting.peak_bytes, device.memory_bytes)
    run = record.own_run(reader_run, ruler, axis_bytes) if reader_run else None
    return Tank(
        layers=_layers(setting),
        frames=frames,
        now=setting.number(look),
        peak=setting.peak_number,
        limits=limits,
        limit=(f"this GPU: {fits}", fits),
        title="How much is in use?" if scale else f"{frame.name}: {amount(frame.total, giga)}",
        device=device.name,
        ruler=ruler,
        giga=giga,
        empty=scale is not None,
        own=run,
        scale=scale or Scale.above(max(axis_bytes, run.each * ruler.each if run and run.drawn else 0), giga),
    )


def _picture(setting: Setting, look: Look, width: int, reader_run: dict | None) -> str:
    tank = _tank(setting, look, reader_run)
    drawing = Drawing(tank, width)
    label = (
        f"{tank.title}, in layers by kind, with the bytes of one parameter and {len(tank.frames)} moments of a step; "
        f"the fullest is {tank.frames[tank.peak].short}."
    )
    return svg.figure(width, drawing.height, drawing.parts() + _mark(drawing, tank.scale.top / 10**9), label)


def _mark(drawing: Drawing, top: float) -> str:
    return ghost.mark([(0, drawing.y(0)), (top, drawing.at.top)], (drawing.left, drawing.end))


def locked(params: dict, width: int) -> str:
    """The tank before anything is in it, on the scale of the guess."""
    question = _BY_NAME["guess"]
    tank = _tank(Setting.of(params), Look.of(params), None, Scale(question.hi * 10**9, 10**9, "GB"))
    drawing = Drawing(tank, width)
    label = "An empty tank with a rim, next to the moments of a step."
    return svg.figure(width, drawing.height, drawing.parts() + _mark(drawing, question.hi), label)


def slips(params: dict) -> list[tuple[float, str]]:
    """Wrong answers, in GB: some of the bytes of each parameter, or everything at once."""
    setting = Setting.of(params)
    account, billions = setting.account, setting.parameters / 10**9
    update = account.moments["optimizer"]
    weights, adam, gradients = (update[kind] / 10**9 for kind in ("weights", "optimizer", "gradients"))
    full = weights + adam + gradients
    return [
        (2 * billions, "the weights alone, in bf16"),
        (weights, "the weights alone"),
        (weights + gradients, "weights and gradients, without Adam's averages"),
        (weights + adam, "weights and Adam's averages: what stays between two steps"),
        (full, f"{full / billions:.0f} bytes per parameter, without the scratch of the update"),
        (
            full + account.moments["loss"]["activations"] / 10**9,
            f"{full / billions:.0f} bytes per parameter and the activations, which have been freed at the update",
        ),
        (account.peak_bytes / 2**30, "the answer in GiB"),
    ]
