"""What the view `kernels` says: which unit needs the most cycles, the sum behind a bar, the lever that is worth trying,
and where wrong guesses come from."""

from __future__ import annotations

from collections.abc import Iterator

from scaleout.timing import kernels
from scaleout.views import lever
from scaleout.views.kernels.setting import Setting
from scaleout.views.lever import Change, Lever

WORTH = 1.05  # times as fast that a lever must make it to be named
CEILING = {"tensor cores": "The tensor cores are", "exponentials": "The exponentials are",
           "shared memory": "Shared memory is", "HBM": "HBM is"}  # fmt: skip


def sentence(setting: Setting) -> str:
    """What decides the time of a tile, and what the tensor cores reach at most."""
    clocks, tile = setting.clocks, f"{setting.tile:,.0f} cycles per tile"
    if setting.bound == "in turn":
        says = f"Tensor cores and exponentials take turns: {tile}."
    else:
        says = f"{CEILING[setting.bound]} the limit: {tile}."
        ties = [unit for unit, cycles in clocks.by_unit.items() if cycles == clocks.longest]
        if len(ties) > 1:
            says = f"{' and '.join(ties).capitalize()} take equally long: {tile}."
    return f"**{says}** At most {setting.flop_per_s / 1e12:,.0f} TFLOP/s, {setting.share:.0%} of the peak."


def law(setting: Setting) -> list[str]:
    """The bar that decides, as an amount over a rate."""
    chip, a, unit = setting.generation, setting.attention, setting.clocks.tallest
    matmuls = kernels.MATMULS[setting.file][setting.direction]
    ways = {
        "tensor cores": (
            f"{2 * matmuls} × 128 × 128 × {a.head} / {chip.flop[a.width]:,}",
            "FLOPs over FLOPs per clock",
        ),
        "exponentials": (f"128² / {chip.exponentials}", "scores over exponentials per clock"),
        "shared memory": (f"{setting.clocks.shared * chip.shared:,.0f} / {chip.shared}", "bytes over bytes per clock"),
        "HBM": (f"{setting.clocks.memory * chip.memory:,.0f} / {chip.memory:.1f}", "bytes over bytes per clock"),
    }
    way, words = ways[unit]
    emulated = setting.clocks.exponentials < 128 * 128 / chip.exponentials and unit == "exponentials"
    if emulated:
        way, words = f"{100 - setting.emulated}% × {way}", f"{words}; the rest is emulated"
    return [f"Longest bar, {unit}:", f"{way} = {setting.clocks.longest:,.0f}", f"{words}."]


def slips(setting: Setting) -> list[tuple[float, str]]:
    """Per cent of the time that likely mistakes give."""
    wide, narrow = setting.wide, setting.other(precision="8").clocks
    return [
        (50.0, "the tensor cores and all bytes take half as long, but exponentials are computed in fp32 as before"),
        (
            100 * (narrow.matmul + narrow.exponentials) / (wide.matmul + wide.exponentials),
            "that is a kernel which uses tensor cores and exponentials in turn; this one overlaps them",
        ),
        (25.0, "half the bytes and twice the rate are not four times as fast: both shorten the same time"),
    ]


def advice(setting: Setting) -> str:
    """The lever worth trying now, or why there is none."""
    return lever.sentence(_best(setting), _none(setting))


def _best(setting: Setting) -> Lever | None:
    found = [(setting.seconds / one.after.seconds, one) for one in lever.tried(setting, _changes(setting))]
    gain, best = max(found, key=lambda pair: pair[0], default=(1.0, None))
    return best.giving(f"{gain:.2g} times as fast at most") if best and gain >= WORTH else None


def _changes(setting: Setting) -> Iterator[Change]:
    if setting.kernel == "naive":
        yield "tiles", {"kernel": "turn"}
        return
    if setting.kernel == "turn":
        yield "overlapping the units", {"kernel": "overlap"}
    if not setting.no_emulation and setting.emulated < 25:
        yield "emulating 25% of the exponentials", {"emulated": 25}
    if setting.width == 2 and not setting.no_fp8:
        yield "FP8", {"precision": "8"}


def _none(setting: Setting) -> str:
    if setting.bound == "exponentials" and setting.width == 2 and not setting.no_fp8:
        return "FP8 shortens every bar but this one."
    return "No lever here gains 5%."


def notes(setting: Setting) -> dict:
    """What is said of controls that change nothing now."""
    found = {}
    if setting.no_fp8:
        found["precision"] = {"off": setting.no_fp8}
    if setting.no_emulation:
        found["emulated"] = {"off": setting.no_emulation}
    return found
