"""Three clocks: the cycles of tensor cores, exponentials and shared memory for a tile of attention, with HBM."""

from __future__ import annotations

from scaleout.timing import kernels
from scaleout.timing.kernels import GENERATIONS
from scaleout.views import guess, more, select, slider, toggle
from scaleout.views.base import kept
from scaleout.views.kernels import picture, words
from scaleout.views.kernels.setting import Setting

TITLE = "Three clocks"

CONTROLS = (
    guess("In FP8 the tensor cores of a B200 are **twice as fast**, and Q, K and V have **half the bytes**. How much "
          "of its time in 16 bits does attention with heads of 64 then take?",
          "fp8_percent", "%", lo=20, hi=140, step=1),
    select("chip", "GPU", "b200", [(key, chip.name) for key, chip in GENERATIONS.items()]),
    select("head", "Head size", 64, [(n, str(n)) for n in (64, 128, 256)]),
    select("precision", "Q, K and V", "16", [("16", "16 bits (bf16)"), ("8", "8 bits (FP8)")]),
    select("kernel", "Kernel", "overlap",
           [("naive", "scores through HBM (naive)"), ("turn", "tiles, in turn (FA1, FA2)"),
            ("overlap", "tiles, overlapped (FA3, FA4)")]),
    *more(
        select("seq", "Tokens per sequence", 16384, [(n, f"{n:,}") for n in (512, 1024, 2048, 4096, 8192, 16384)]),
        toggle("causal", "Causal mask", False),
        select("direction", "Pass", "forward", [("forward", "forward"), ("backward", "backward")]),
        slider("emulated", "Exponentials on FMA units", 0, 0, 25, 5, "%",
               help="As polynomials. What this takes of the FMA units is not drawn."),
    ),
)  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """A bar of cycles for each unit, and the tile as the kernel runs it."""
    setting = Setting.of(params)
    return {
        "svg": picture.picture(setting, width),
        "sentence": words.sentence(setting),
        "law": words.law(setting),
        "values": _values(setting),
        "levers": words.notes(setting),
    }


advice = Setting.asked(words.advice)
locked = Setting.asked(picture.locked)
slips = Setting.asked(words.slips)


@kept
def _values(setting: Setting) -> dict:
    """What is the same at both widths. cycles: of a tile, by unit; fp8_percent: the time with FP8 in per cent of the
    time with 16 bits, None where there is no FP8; published_percent: of the peak, measured, where somebody
    published it."""
    a = setting.attention
    return {
        "cycles": setting.clocks.by_unit,
        "tile_cycles": setting.tile,
        "tallest": setting.clocks.tallest,
        "bound": setting.bound,
        "share_percent": 100 * setting.share,
        "tflops": setting.flop_per_s / 1e12,
        "ms": 1e3 * setting.seconds,
        "fp8_percent": setting.fp8_percent,
        "published_percent": setting.published and 100 * setting.published,
        "hbm_mb": kernels.hbm_bytes(a, setting.file, setting.direction) / 1e6,
        "tflop": kernels.made_flops(a, setting.file, setting.direction) / 1e12,
        "kept_mb": kernels.kept_bytes(a, setting.file) / 1e6,
    }
