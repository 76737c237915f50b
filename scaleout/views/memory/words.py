"""What the view `memory` says: its sentence, and its law with the numbers of the setting."""

from __future__ import annotations

from math import fsum

from scaleout.draw import svg
from scaleout.draw.amounts import adding_up, amount, unit
from scaleout.memory import allocator
from scaleout.memory.accounts import Account
from scaleout.spec.devices import Device
from scaleout.views.memory.levers import Advice

MOMENTS = {  # name above the tank, under the strip, in a sentence
    "rest": ("Between two steps", "rest", "between two steps"),
    "forward": ("Forward done", "forward", "at the end of the forward"),
    "loss": ("Loss, backward", "loss", "in the loss's backward"),
    "head": ("Head, backward", "head", "in the head's backward"),
    "block": ("Blocks, backward", "blocks", "in the blocks' backward"),
    "embedding": ("Token table, backward", "table", "in the token table's backward"),
    "optimizer": ("Update", "update", "at the update"),
}
AVERAGES = {"sgd": "optimizer", "momentum": "momentum", "adamw": "Adam", "adamw-8bit": "Adam"}
TEXTBOOK = 16  # bytes of each parameter: ZeRO's 2 + 2 + 12 (arXiv 1910.02054, section 3.1), or 4 + 4 + 8 in fp32


def sentence(
    name: str, held: Account, stack: dict[str, int], device: Device, giga: int, found: Advice | None
) -> str:
    """The peak, whether it fits, what most of it is, and the lever worth trying. stack: bytes of the picture's layers
    at the peak, by what they are called."""
    largest = max(stack, key=stack.get)
    share = stack[largest] / held.peak_bytes
    then = _try(found, giga) if found else "No lever here takes a twentieth off."
    return (
        f"{name}: **{amount(held.peak_bytes, giga)}** {MOMENTS[held.peak_moment][2]}. "
        f"{_verdict(held.peak_bytes, device, giga)} {'Most of it' if share > 0.5 else 'The largest part'} is "
        f"{largest} ({share:.0%}). {then}"
    )


def _verdict(peak: int, device: Device, giga: int) -> str:
    usable = allocator.usable(device.memory_bytes)
    said, has = allocator.verdict(peak, device.memory_bytes), f"its usable {amount(usable, giga)}"
    if said == "fits":
        return f"It fits on one {device.name}: {amount(usable - peak, giga)} of {has} are left."
    if said == "may fit":
        return f"It may fit on one {device.name}: {amount(peak - usable, giga)} above {has}."
    return f"It does not fit on one {device.name}: {svg.quantity(peak / usable)} times {has}."


def _try(found: Advice, giga: int) -> str:
    fits = "which fits" if found.fits else "not enough yet"
    return f"Try **{found.words}**: {amount(found.peak_bytes, giga)}, {fits}."


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
    without = fsum(each.values()) - each["temporaries"]
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
    """As "20 bytes × 6.74 billion = 134.8 GB", with as many digits as the product needs to be right as printed."""
    powers = ((10**12, "trillion"), (10**9, "billion"), (1, "million"))
    power, word = next((max(power, 10**6), word) for power, word in powers if parameters >= power)
    one, name = unit(size, giga)
    total = _digits(size / one)
    for digits in range(3, 8):
        each, many = (f"{value:.{digits}g}" for value in (size / parameters, parameters / power))
        if _digits(float(each) * float(many) * power / one) == total:
            break
    return f"{each} bytes × {many} {word} = {total} {name}"


def _places(value: float) -> int:
    return 1 if value >= 10 else 2


def _digits(value: float) -> str:
    return f"{value:,.{_places(value)}f}"


def _sum(held: Account, params: dict, giga: int) -> list[str]:
    """What stays from step to step, and the largest of what comes and goes."""
    peak, gathers = held.peak, params["zero"] == "3" and params["gpus"] > 1
    passing = {
        "gathered weights" if gathers else "bf16 copies": held.copies(held.peak_moment),
        "gradients": peak["gradients"] - held.rest["gradients"], "activations": peak["activations"],
        "logits": peak["logits"], "scratch": peak["temporaries"],
    }  # fmt: skip
    stays, least = sum(held.rest.values()), 0.01 * held.peak_bytes
    largest = sorted(passing, key=lambda name: -passing[name])[:2]
    terms = {"what stays": stays} | {name: passing[name] for name in largest}
    terms = {name: size for name, size in terms.items() if size > least}
    one, name = unit(held.peak_bytes, giga)
    places = _places(held.peak_bytes / one)
    terms["the rest"] = held.peak_bytes - fsum(terms.values())
    rounded = zip(terms, adding_up(list(terms.values()), one, places), strict=True)
    shown = {term: f"{part:,.{places}f}" for term, part in rounded if part or len(terms) == 2}
    numbers = " + ".join(shown.values())
    return [f"{MOMENTS[held.peak_moment][2]}, {_listed(list(shown))}:",
            f"{numbers} = {_digits(held.peak_bytes / one)} {name}",
            f"what stays from step to step: {_listed(_staying(held, params))}, {amount(stays, giga)}"]  # fmt: skip


def _staying(held: Account, params: dict) -> list[str]:
    names = {"weights": "weights", "master": "their fp32 master", "optimizer": AVERAGES[params["optimizer"]],
             "gradients": "DDP's buckets"}  # fmt: skip
    return [name for kind, name in names.items() if held.rest[kind]]


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"

