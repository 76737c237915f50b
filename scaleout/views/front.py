"""The title of the book in one picture: eight GPUs, two decisions of the reader, and the communication that follows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleout.draw import tanks
from scaleout.memory import allocator
from scaleout.memory.accounts import Account, account
from scaleout.spec.devices import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import PRESETS, flops
from scaleout.timing.fsdp import volume
from scaleout.views import base, select
from scaleout.words.amounts import quantity

TITLE = "Llama 2 7B on eight H100s, 4 sequences of 4,096 tokens per GPU, in bf16. Two decisions make it fit."

CONTROLS = (
    select("states", "Weights, gradients, Adam's averages", "copy", [("copy", "Copy"), ("split", "Split")]),
    select(
        "activations",
        "Activations for the backward",
        "keep",
        [("keep", "Keep"), ("recompute", "Recompute")],
    ),
)

MODEL, DEVICE, GPUS, BATCH, TOKENS = PRESETS["llama-2-7b"], DEVICES["h100-sxm"], 8, 4, 4096
ROOM = allocator.usable(DEVICE.memory_bytes)  # bytes that tensors can fill
CHECKPOINTING = {"keep": "none", "recompute": "full"}
SHARDING = Sharding(GPUS, parameter="bf16", reduce="bf16")  # weights and gradients travel in 16 bits

# From the bottom up: (key, name, colour, kinds of the account). The fp32 master copy is weights too.
LAYERS = (
    ("adam", "Adam", "c2", ("optimizer",)),
    ("weights", "weights", "c1", ("weights", "master")),
    ("gradients", "gradients", "c6", ("gradients",)),
    ("activations", "activations", "c3", ("activations",)),
    ("rest", "", "c8", ("logits", "temporaries")),
)


@dataclass(frozen=True)
class Setting(base.Setting):
    """The two decisions, and their effect on each GPU."""

    states: str
    activations: str

    @cached_property
    def account(self) -> Account:
        """Memory of a step by moment."""
        recipe = Recipe("bf16-master", checkpointing=CHECKPOINTING[self.activations], buckets="beside")
        layout = Layout(dp=GPUS, zero=3 if self.states == "split" else 0)
        return account(MODEL, BATCH, TOKENS, recipe, layout)

    @cached_property
    def moved(self) -> float:
        """Bytes that a GPU sends per step."""
        return volume(MODEL, SHARDING)["total" if self.states == "split" else "ddp"]

    @cached_property
    def arithmetic(self) -> float:
        """The operations of a step, relative to a step without recomputation."""
        work = flops(MODEL, BATCH, TOKENS, CHECKPOINTING[self.activations])
        return 1 + work["recompute"] / (work["forward"] + work["backward"])

    @property
    def fits(self) -> bool:
        return allocator.fits(self.account.peak_bytes, DEVICE.memory_bytes)


def draw(params: dict, width: int) -> dict:
    """The eight tanks, the wire and the gauges after the two decisions."""
    case = Setting.of(params)
    return {
        "svg": tanks.draw(_row(case), width, _label(case)),
        "sentence": SENTENCES[case.states, case.activations](case),
        "law": _law(case),
        "values": {
            "held_gb": case.account.peak_bytes / 1e9,
            "moved_gb": case.moved / 1e9,
            "arithmetic": case.arithmetic,
            "fits": case.fits,
            "moment": case.account.peak_moment,
            **{f"{layer.key}_gb": layer.size / 1e9 for layer in _layers(case)},
        },
    }


def _layers(case: Setting) -> tuple[tanks.Layer, ...]:
    peak = case.account.peak
    scratch_name = "logits" if peak["logits"] > peak["temporaries"] else "scratch"
    return tuple(
        tanks.Layer(key, name or scratch_name, fill, sum(peak[kind] for kind in kinds))
        for key, name, fill, kinds in LAYERS
    )


def _row(case: Setting) -> tanks.Row:
    """Bars and wire are scaled to the largest of the four states."""
    first, dearest = case.other(states="copy", activations="keep"), case.other(states="split", activations="recompute")
    most_held, moved = first.account.peak_bytes, dearest.moved
    gauges = (
        tanks.Gauge(
            "held",
            f"{_gb(case.account.peak_bytes)} GB",
            case.account.peak_bytes / most_held,
            "ink",
            ("peak memory", "per GPU"),
            not case.fits,
        ),
        tanks.Gauge("moved", f"{_gb(case.moved)} GB", case.moved / moved, "c4", ("sent per GPU", "and step")),
        tanks.Gauge(
            "work",
            "1 ×" if case.arithmetic == 1 else f"{case.arithmetic:.2f} ×",
            case.arithmetic / dearest.arithmetic,
            "compute",
            ("arithmetic", "per step"),
        ),
    )
    return tanks.Row(
        _layers(case),
        GPUS,
        DEVICE.memory_bytes,
        ROOM,
        1.04 * most_held,
        most_held,
        case.states == "split",
        case.moved / moved,
        gauges,
    )


# --- words -----------------------------------------------------------------------------------------------------------


def _gb(size: float) -> str:
    return quantity(size / 1e9)


def _label(case: Setting) -> str:
    layers = ", ".join(f"{layer.name} {_gb(layer.size)}" for layer in _layers(case) if layer.size > 0.5e9)
    return (
        f"Eight GPUs as tanks of {_gb(DEVICE.memory_bytes)} GB, of which {_gb(ROOM)} GB are usable. The peak memory of "
        f"each is {_gb(case.account.peak_bytes)} GB: {layers}. Each sends {_gb(case.moved)} GB per step, with "
        f"{case.arithmetic:.2f} times the arithmetic."
    )


def _neither(case: Setting) -> str:
    peak = case.account.peak_bytes
    return (
        f"**{_gb(peak)} GB on each GPU** is {peak / DEVICE.memory_bytes:.1f} times its memory. "
        "All eight GPUs store the same weights, gradients and averages, so seven of the eight copies are redundant. "
        "**Split** them."
    )


def _split(case: Setting) -> str:
    return (
        f"**{_gb(case.account.peak_bytes)} GB is still too much.** {_gb(case.account.peak['activations'])} GB of it "
        "are the activations of each GPU's own tokens. Splitting does not make them smaller. **Recompute** them."
    )


def _recompute(case: Setting) -> str:
    return (
        f"**{_gb(case.account.peak_bytes)} GB: only a little less.** The activations are gone, and the peak is "
        "now at the update, with all averages and their temporaries in memory. **Split** the states."
    )


def _split_and_recompute(case: Setting) -> str:
    plain = case.other(states="copy", activations="keep")
    return (
        f"**It fits: {_gb(case.account.peak_bytes)} of the usable {_gb(ROOM)} GB.** The price is "
        f"{case.moved / plain.moved - 1:.0%} more communication and {case.arithmetic - 1:.0%} more arithmetic. "
        "This book is about when that is worth paying, and how to see it in a run."
    )


SENTENCES = {("copy", "keep"): _neither, ("split", "keep"): _split, ("copy", "recompute"): _recompute,
             ("split", "recompute"): _split_and_recompute}  # fmt: skip


def _law(case: Setting) -> list[str]:
    """The bytes that are sent, from the sizes of the tensors."""
    sent, share = volume(MODEL, SHARDING), (GPUS - 1) / GPUS
    travels = ("gather", "gather again", "reduce-scatter")
    weights, gathered_again, gradients = (quantity(sent[name] / share / 1e9, 4) for name in travels)
    if case.states == "copy":
        return [
            "What moves: gradients in 16 bits, in an all-reduce.",
            f"2 × {GPUS - 1}/{GPUS} × {gradients} GB = {_gb(case.moved)} GB",
            "In each half of the all-reduce a GPU sends all parts but one.",
        ]
    return [
        "What moves: weights in two all-gathers (for the forward, for the backward), gradients in a reduce-scatter.",
        f"{GPUS - 1}/{GPUS} × ({weights} + {gathered_again} + {gradients}) GB = {_gb(case.moved)} GB",
        "Of each tensor a GPU sends all parts but one.",
    ]
