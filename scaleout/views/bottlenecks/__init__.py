"""The moving wall: step time by resource, memory with its limit, and the levers that move both."""

from __future__ import annotations

from scaleout.views import guess, more, select
from scaleout.views.base import kept
from scaleout.views.bottlenecks import levers, picture, words
from scaleout.views.bottlenecks.setting import RUNS, Setting

TITLE = "The moving wall"

CONTROLS = (
    guess("The network takes 79% of this step. Give every GPU an InfiniBand adapter of its own in place of one "
          "Ethernet port per node: **32 times the bandwidth**. How many times as fast is the run?",
          "faster_link_gain", "times", lo=1, hi=32, step=0.1),
    select("run", "Run, all on H100", "ethernet", [(key, run.words) for key, run in RUNS.items()]),
    select("link", "Network between nodes", "same", [("same", "as it is"), ("faster", "InfiniBand per GPU")]),
    select("batch", "Sequences per GPU", 2, [(n, str(n)) for n in (1, 2, 4, 8)]),
    select("recompute", "Activations", "none",
           [("none", "stored"), ("selective", "attention recomputed"), ("full", "every block recomputed")]),
    *more(
        select("states", "Weights, gradients, Adam", "split",
               [("copy", "copied to every GPU"), ("split", "split (FSDP)")]),
        select("tp", "Tensor-parallel GPUs", 1, [(n, str(n)) for n in (1, 2, 4, 8)]),
        select("workers", "Data loader per GPU", 1,
               [(1, "one worker process"), *((n, f"{n} worker processes") for n in (2, 4, 8))]),
    ),
)  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """A bar of seconds for each resource, the whole step beneath them, and memory with its limit."""
    setting = Setting.of(params)
    return {
        "svg": picture.picture(setting, width),
        "sentence": words.sentence(setting),
        "law": words.law(setting),
        "values": _values(setting),
        "levers": levers.notes(setting),
    }


advice = Setting.asked(levers.sentence)
locked = Setting.asked(picture.locked)
slips = Setting.asked(words.slips)


@kept
def _values(setting: Setting) -> dict:
    """What is the same at both widths. faster_link_gain: how many times as fast the run is with a faster network."""
    return {
        "seconds": setting.seconds,
        "by_resource": setting.seconds_by,
        "recompute_seconds": setting.step.parts["recompute"],
        "tallest": setting.tallest,
        "tallest_percent": 100 * setting.seconds_by[setting.tallest] / setting.seconds,
        "tokens_per_second": setting.tokens_per_second,
        "mfu_percent": 100 * setting.mfu,
        "faster_link_gain": setting.gain_of(link="faster"),
        "memory_gb": setting.account.peak_bytes / 1e9,
        "usable_gb": setting.usable / 1e9,
        "fits": setting.fits,
    }
