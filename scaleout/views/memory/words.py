"""What the view `memory` says: its sentence, and its law with the numbers of the setting."""

from __future__ import annotations

from math import fsum

from scaleout.memory import allocator
from scaleout.views import lever
from scaleout.views.choices import NAMES
from scaleout.views.lever import Lever
from scaleout.words.amounts import adding_up, amount, listed, quantity, unit

MOMENTS = {  # name above the tank, under the strip, in a sentence
    "rest": ("Between two steps", "rest", "between two steps"),
    "forward": ("Forward done", "forward", "after the forward"),
    "loss": ("Loss, backward", "loss", "at the loss"),
    "head": ("Head, backward", "head", "in the head's backward"),
    "block": ("Blocks, backward", "blocks", "in the backward pass"),
    "embedding": ("Embedding, backward", "embed", "in the embedding's backward"),
    "optimizer": ("Update", "update", "at the update"),
}
AVERAGES = {"sgd": "optimizer", "momentum": "momentum", "adamw": "Adam", "adamw-8bit": "Adam"}
TEXTBOOK = 16  # bytes of each parameter: ZeRO's 2 + 2 + 12 (arXiv 1910.02054, section 3.1), or 4 + 4 + 8 in fp32


def sentence(setting, stack: dict[str, int], giga: int) -> str:
    """The peak, whether it fits, and what most of it is. stack: bytes of the picture's layers at the peak, by what they
    are called."""
    account, largest = setting.account, max(stack, key=lambda name: stack[name])
    share = stack[largest] / account.peak_bytes
    each = " per GPU" if setting.gpus * setting.degree > 1 else ""
    return (
        f"{NAMES[setting.model]}{_cut(setting)} needs **{amount(account.peak_bytes, giga)}**{each} "
        f"{MOMENTS[account.peak_moment][2]}. {_verdict(setting, giga)} "
        f"{'Most of it' if share > 0.5 else 'The largest part'} is {largest} ({share:.0%})."
    )


def _cut(setting) -> str:
    """Parts of the setting that this model cannot have."""
    heads, degree = setting.shape.heads, setting.degree
    cuts = [f"{setting.tokens:,} positions"] if setting.tokens != setting.seq else []
    if degree != setting.tp:
        cuts.append(f"{heads} heads {f'in {degree} parts' if degree > 1 else 'unsplit'}")
    return f" ({', '.join(cuts)})" if cuts else ""


def _verdict(setting, giga: int) -> str:
    name, usable, peak = setting.card.name, setting.usable, setting.peak_bytes
    verdict, usable_text = allocator.verdict(peak, setting.card.memory_bytes), f"the usable {amount(usable, giga)}"
    if verdict == "fits":
        return f"It fits on one {name}: {amount(usable - peak, giga)} of {usable_text} are left."
    if verdict == "may fit":
        return f"It may fit on one {name}: {amount(peak - usable, giga)} more than {usable_text}."
    return f"It does not fit on one {name}: {quantity(peak / usable)} times {usable_text}."


def advice(best: Lever | None, giga: int) -> str:
    """The one lever worth trying, with the peak that it leads to."""
    if best:
        fits = "which fits" if best.after.fits else "not enough yet"
        best = best.giving(f"{amount(best.after.peak_bytes, giga)}, {fits}")
    return lever.sentence(best, "No single change here lowers it by 5%.")


def law(setting, giga: int) -> list[str]:
    """[words, formula, words]: the bytes of each parameter where the update is the fullest, else the sum of the
    kinds."""
    at_update = setting.account.peak_moment == "optimizer" and setting.adapter == "none"
    return _update(setting, giga) if at_update else _sum(setting, giga)


def _update(setting, giga: int) -> list[str]:
    kinds, parameters = setting.account.peak, setting.parameters
    names = {
        "weights": "weights",
        "master": "fp32 master",
        "optimizer": AVERAGES[setting.optimizer],
        "gradients": "gradients",
        "temporaries": "scratch of the update",
    }
    bytes_by_kind = {kind: kinds[kind] / parameters for kind in names}
    parts = ", ".join(f"{names[kind]} {_short(size)}" for kind, size in bytes_by_kind.items() if size >= 0.0005)
    place = "on each GPU, " if setting.gpus > 1 else ""
    lasting = fsum(bytes_by_kind.values()) - bytes_by_kind["temporaries"]
    if not bytes_by_kind["temporaries"]:
        remark = "this update allocates no scratch"
    elif round(lasting, 1) == TEXTBOOK:
        remark = f"the textbook's {TEXTBOOK} bytes leave out the scratch, which only the update needs"
    else:
        remark = f"{_short(lasting)} bytes without the scratch, which only the update needs"
    return [f"{place}{parts}:", _product(sum(kinds.values()), parameters, giga), remark]


def _short(value: float) -> str:
    """At most three digits, none of them a zero at the end."""
    text = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _product(size: int, parameters: int, giga: int) -> str:
    """As "20 bytes × 6.74 billion = 134.8 GB", with as many digits as the product needs to be right as printed."""
    powers = ((10**12, "trillion"), (10**9, "billion"), (1, "million"))
    power, word = next((max(power, 10**6), word) for power, word in powers if parameters >= power)
    unit_bytes, name = unit(size, giga)
    total = _digits(size / unit_bytes)
    for digits in range(3, 8):
        size_text, count_text = (f"{value:.{digits}g}" for value in (size / parameters, parameters / power))
        if _digits(float(size_text) * float(count_text) * power / unit_bytes) == total:
            break
    return f"{size_text} bytes × {count_text} {word} = {total} {name}"


def _places(value: float) -> int:
    return 1 if value >= 10 else 2


def _digits(value: float) -> str:
    return f"{value:,.{_places(value)}f}"


def _sum(setting, giga: int) -> list[str]:
    """What stays from step to step, and the largest of what comes and goes."""
    account, peak = setting.account, setting.account.peak
    passing = {
        "gathered weights" if setting.gathers else "bf16 copies": account.copies(account.peak_moment),
        "gradients": peak["gradients"] - account.rest["gradients"],
        "activations": peak["activations"],
        "logits": peak["logits"],
        "scratch": peak["temporaries"],
    }
    stays, least = sum(account.rest.values()), 0.01 * account.peak_bytes
    largest = sorted(passing, key=lambda name: -passing[name])[:2]
    terms: dict[str, float] = {"what stays": stays, **{name: passing[name] for name in largest}}
    terms = {name: size for name, size in terms.items() if size > least}
    unit_bytes, name = unit(account.peak_bytes, giga)
    places = _places(account.peak_bytes / unit_bytes)
    terms["the rest"] = account.peak_bytes - fsum(terms.values())
    rounded = zip(terms, adding_up(list(terms.values()), unit_bytes, places), strict=True)
    shown = {term: f"{part:,.{places}f}" for term, part in rounded if part or len(terms) == 2}
    numbers = " + ".join(shown.values())
    return [
        f"{MOMENTS[account.peak_moment][2]}, {' + '.join(shown)}:",
        f"{numbers} = {_digits(account.peak_bytes / unit_bytes)} {name}",
        f"what stays from step to step: {listed(_staying(setting))}, {amount(stays, giga)}",
    ]


def _staying(setting) -> list[str]:
    names = {
        "weights": "weights",
        "master": "their fp32 master",
        "optimizer": AVERAGES[setting.optimizer],
        "gradients": "DDP's buckets",
    }
    return [name for kind, name in names.items() if setting.account.rest[kind]]
