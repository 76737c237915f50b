"""What the view `memory` says: its sentence, and its law with the numbers of the setting."""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.draw.tank import UNITS
from scaleout.memory import allocator
from scaleout.memory.accounts import KINDS, Account
from scaleout.memory.states import STATES
from scaleout.spec.hardware import Device
from scaleout.views.memory_levers import Advice

MOMENTS = {  # name above the tank, under the strip, in a sentence
    "rest": ("Between two steps", "rest", "between two steps"),
    "forward": ("Forward done", "forward", "at the end of the forward"),
    "loss": ("Loss, backward", "loss", "in the loss's backward"),
    "head": ("Head, backward", "head", "in the head's backward"),
    "block": ("Blocks, backward", "blocks", "in the blocks' backward"),
    "embedding": ("Token table, backward", "table", "in the token table's backward"),
    "optimizer": ("Optimizer step", "update", "at the update"),
}
AVERAGES = {"sgd": "optimizer", "momentum": "momentum", "adamw": "Adam", "adamw-8bit": "Adam"}
TEXTBOOK = 16  # bytes of each parameter: ZeRO's 2 + 2 + 12 (arXiv 1910.02054, section 3.1), or 4 + 4 + 8 in fp32


def sentence(name: str, held: Account, device: Device, giga: int, found: Advice | None) -> str:
    """The peak, whether it fits, what most of it is, and the lever worth trying."""
    unit = UNITS[giga][1]
    largest = max(KINDS, key=lambda kind: held.peak[kind])
    share = held.peak[largest] / held.peak_bytes
    return (
        f"{name}: **{svg.quantity(held.peak_bytes / giga)} {unit}** {MOMENTS[held.peak_moment][2]}. "
        f"{_verdict(held.peak_bytes, device, giga, unit)} {'Most of it' if share > 0.5 else 'The largest part'} is "
        f"{largest} ({share:.0%}). {_try(found, giga, unit) if found else 'No lever here takes a twentieth off.'}"
    )


def _verdict(peak: int, device: Device, giga: int, unit: str) -> str:
    ratio, room = peak / device.memory_bytes, allocator.room(device.memory_bytes)
    spare, left = (svg.quantity((limit - peak) / giga) for limit in (room, device.memory_bytes))
    least = svg.quantity((device.memory_bytes - room) / giga)
    return {
        "fits": f"It fits on one {device.name}, with {spare} {unit} to spare.",
        "may fit": f"It may fit on one {device.name}: {left} {unit} left, driver and allocator take up to {least}.",
        "does not fit": f"It does not fit: {svg.quantity(ratio)} times what one {device.name} has."
        if ratio > 1 else f"It does not fit: {left} {unit} left on one {device.name}, the driver takes more.",
    }[allocator.verdict(peak, device.memory_bytes)]  # fmt: skip


def _try(found: Advice, giga: int, unit: str) -> str:
    fits = "which fits" if found.fits else "not enough yet"
    return f"Try **{found.words}**: {svg.quantity(found.peak_bytes / giga)} {unit}, {fits}."


def law(held: Account, parameters: int, params: dict, giga: int) -> list[str]:
    """[words, formula, words]: the bytes of each parameter where the update is the fullest, else the sum of the kinds.

    parameters: of the model, on one GPU before ZeRO.
    """
    if held.peak_moment == "optimizer" and params["adapter"] == "none":
        return _update(held.peak, parameters, params, giga)
    return _sum(held, params, giga)


def _update(kinds: dict[str, int], parameters: int, params: dict, giga: int) -> list[str]:
    names = {"weights": "weights", "master": "fp32 master", "optimizer": AVERAGES[params["optimizer"]],
             "gradients": "gradients", "temporaries": "scratch of the update"}  # fmt: skip
    each = {kind: kinds[kind] / parameters for kind in names}
    parts = ", ".join(f"{names[kind]} {_short(size)}" for kind, size in each.items() if size >= 0.0005)
    where = "on each GPU, " if params["gpus"] > 1 else ""
    without = sum(each.values()) - each["temporaries"]
    if not each["temporaries"]:
        after = "this update makes no scratch beside them"
    elif round(without, 1) == TEXTBOOK:
        after = f"the textbook's {TEXTBOOK} bytes leave out the scratch, which lives for one moment"
    else:
        after = f"{_short(without)} bytes without the scratch, which lives for one moment"
    return [f"{where}{parts}:", _product(sum(kinds.values()), parameters, giga), after]


def _short(value: float) -> str:
    """At most three digits, none of them a zero at the end."""
    text = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _product(size: int, parameters: int, giga: int) -> str:
    """"20 bytes × 6.74 billion = 134.8 GB", with as many digits as the product needs to be right as printed."""
    power, word = next((p, w) for p, w in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")) if parameters >= p)
    total = _total(size, giga)
    for digits in range(3, 8):
        each, many = (f"{value:.{digits}g}" for value in (size / parameters, parameters / power))
        if _total(float(each) * float(many) * power, giga) == total:
            break
    return f"{each} bytes × {many} {word} = {total} {UNITS[giga][1]}"


def _places(size: float) -> int:
    return 0 if size >= 1000 else 1 if size >= 10 else 2


def _total(size: float, giga: int) -> str:
    return f"{size / giga:,.{_places(size / giga)}f}"


def _sum(held: Account, params: dict, giga: int) -> list[str]:
    """What stays from step to step, and the largest of what comes and goes."""
    peak, copies = held.peak, held.copies(held.peak_moment)
    stays = sum(held.rest[kind] for kind in STATES)
    averages = {"sgd": ""}.get(params["optimizer"], f" and {AVERAGES[params['optimizer']]}")
    passing = {
        "gathered weights" if params["zero"] == "3" and params["gpus"] > 1 else "bf16 copies": copies,
        "gradients": peak["gradients"] - held.rest["gradients"], "activations": peak["activations"],
        "logits": peak["logits"], "scratch": peak["temporaries"],
    }  # fmt: skip
    named = sorted((name for name in passing if passing[name] > 0.01 * held.peak_bytes), key=lambda name: -passing[name])[:2]
    terms = {f"weights{averages}": stays} | {name: passing[name] for name in named}
    rest = held.peak_bytes - sum(terms.values())
    if rest > 0.005 * held.peak_bytes:
        terms["the rest"] = rest
    places = _places(held.peak_bytes / giga)
    numbers = " + ".join(f"{part:,.{places}f}" for part in adding_up(list(terms.values()), giga, places))
    words = list(terms)
    before = f"{MOMENTS[held.peak_moment][2]}, {', '.join(words[:-1])} and {words[-1]}:"
    return [before, f"{numbers} = {_total(held.peak_bytes, giga)} {UNITS[giga][1]}",
            "only the first stays from step to step"]  # fmt: skip


def adding_up(sizes: list[int], giga: int, places: int) -> list[float]:
    """The sizes in units, rounded so that they add up to their rounded sum: the largest remainders are rounded up."""
    steps = [size / giga * 10**places for size in sizes]
    down = [int(step) for step in steps]
    order = sorted(range(len(steps)), key=lambda i: down[i] - steps[i])
    for i in order[: round(sum(steps)) - sum(down)]:
        down[i] += 1
    return [part / 10**places for part in down]
