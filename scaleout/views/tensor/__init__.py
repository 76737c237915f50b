"""One block split over GPUs: what each GPU has of every tensor, where collectives are needed, and what they cost."""

from __future__ import annotations

from math import fsum

from scaleout.collectives.tensor import MEGATRON
from scaleout.spec.program import OVERLAPS
from scaleout.views import guess, more, play, select, slider, toggle
from scaleout.views.base import kept
from scaleout.views.choices import NAMES
from scaleout.views.tensor import beneath, levers, picture, record, words
from scaleout.views.tensor.scene import LAST
from scaleout.views.tensor.setting import LINKS, Setting

TITLE = "Split one block"

MODELS = ("gpt-3-175b", "llama-2-7b", "llama-3-8b", "llama-3-70b", "llama-3-405b")
CUTS = [("columns", "columns"), ("rows", "rows"), ("copies", "nothing: copies")]
CONTROLS = (
    guess("Four matrices of a GPT-3 block are split over four GPUs. How many **all-reduces of x** does the block "
          "need, forward and backward together?", "all_reduces", lo=0, hi=beneath.AXIS_ALL_REDUCES, step=1),
    play("step", "Forward and backward through the block", LAST, 0, LAST),
    select("tp", "GPUs that split the block (tp)", 4, [(n, str(n)) for n in (2, 4, 8)]),
    toggle("sequence", "Sequence parallel", False, help="Outside the matrices, each GPU has only its own tokens."),
    select("link", "Connected by", "nvlink", list(LINKS.items())),
    select("up", "MLP, first matrix (or press it): split by", MEGATRON["up"], CUTS),
    *more(
        select("model", "Model", "gpt-3-175b", [(key, NAMES[key]) for key in MODELS]),
        select("seq", "Tokens per sequence", "2048", [(str(2**k), f"{2**k:,}") for k in range(10, 16)]),
        select("kv", "Key-value heads", "own",
               [("own", "as many as the model has"), *((str(n), str(n)) for n in (1, 2, 4, 8))]),
        select("qkv", "Q, K and V: split by", MEGATRON["qkv"], CUTS),
        select("out", "Attention, output projection: split by", MEGATRON["out"], CUTS),
        select("down", "MLP, second matrix: split by", MEGATRON["down"], CUTS),
        select("overlap", "Overlap of communication", "none", [
            ("none", "none"), ("backward", "in the backward pass: Megatron-LM of 2021"),
            ("chunked", "in chunks: Transformer Engine"),
        ], help="Chunks need sequence parallelism and one node; without them, only the backward pass overlaps."),
        slider("lit", "GPU whose part is solid", 0, 0, 7),
    ),
)  # fmt: skip


def draw(params: dict, width: int, run: dict | None = None) -> dict:
    """The block at one moment, the bytes sent so far, and the memory and time of the whole block."""
    setting = Setting.of(params)
    step, lit = params["step"], min(params["lit"], setting.tp - 1)
    values = {**_values(setting), "step": step, "lit": lit, **setting.progress(step), "lit_heads": setting.heads(lit)}
    return {
        "svg": picture.picture(setting, step, lit, values, width, run),
        "sentence": words.sentence(setting, values),
        "law": words.law(setting, values),
        "values": values,
        "levers": _levers(setting),
    }


advice = Setting.asked(levers.sentence)


def _levers(setting: Setting) -> dict:
    """Where ranges end now, and what changes nothing."""
    levers: dict = {"lit": {"hi": setting.tp - 1}}
    if setting.sent == 0:
        levers["link"] = {"off": "nothing is communicated"}
    if not _overlaps(setting):
        levers["overlap"] = {"off": "no communication here has a matmul to overlap with"}
    return levers


def _overlaps(setting: Setting) -> bool:
    """Whether communication can be hidden here at all."""
    return len({setting.work(setting.link, overlap).exposed for overlap in OVERLAPS}) > 1


measured = record.measured
locked = Setting.asked(picture.locked)


def slips(params: dict) -> list[tuple[float, str]]:
    """All-reduces that likely mistakes count, of the opening setting."""
    return words.slips()


@kept
def _values(setting: Setting) -> dict:
    """What is the same at every moment and width."""
    block, (weights, kept_bytes) = setting.block, setting.held_bytes
    times = {link: setting.seconds(link) for link in LINKS}
    link_seconds = times[setting.link]
    return {
        "all_reduces": setting.worth,
        "sent_mb": setting.sent / 1e6,
        "one_mb": setting.all_reduce_bytes / 1e6,
        "forward": block.counts("forward"),
        "backward": block.counts("backward"),
        "legal": block.legal,
        "troubles": words.troubles(setting),
        "weights_mb": weights / 1e6,
        "kept_mb": kept_bytes / 1e6,
        "held_mb": (weights + kept_bytes) / 1e6,
        "alone_mb": sum(setting.alone) / 1e6,
        "flops_share": block.flops / setting.uncut.flops,
        "overlap": setting.overlapped if _overlaps(setting) else "none",
        "seconds": fsum(link_seconds),
        "exposed_seconds": link_seconds[1],
        "exposed_percent": 100 * link_seconds[1] / fsum(link_seconds),
        "seconds_by_link": {link: fsum(item) for link, item in times.items()},
        "exposed_by_link": {link: item[1] for link, item in times.items()},
        "weights": {item.name: list(item.local) for item in block.weights},
        "tensors": {item.name: [item.placed.value, *item.local] for item in block.tensors},
    }
