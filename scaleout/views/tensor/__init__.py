"""One block cut among GPUs: what each holds of every tensor, where the sums are made, and what they cost."""

from __future__ import annotations

from functools import lru_cache
from math import fsum

from scaleout.collectives.tensor import MEGATRON
from scaleout.spec.program import OVERLAPS
from scaleout.views import guess, more, play, select, slider, toggle
from scaleout.views.choices import NAMES
from scaleout.views.tensor import beneath, levers, picture, record, words
from scaleout.views.tensor.scene import LAST
from scaleout.views.tensor.setting import LINKS, Setting

TITLE = "Cut one block"

MODELS = ("gpt-3-175b", "llama-2-7b", "llama-3-8b", "llama-3-70b", "llama-3-405b")
CUTS = [("columns", "columns"), ("rows", "rows"), ("copies", "not at all: copies")]
CONTROLS = (
    guess("Four matrices of a GPT-3 block, each cut among four GPUs. How many **all-reduces of x** does the block "
          "need, forward and backward together?", "all_reduces", lo=0, hi=beneath.MOST, step=1),
    play("step", "Through the block, and back", LAST, 0, LAST),
    select("tp", "GPUs that share the block (tp)", 4, [(n, str(n)) for n in (2, 4, 8)]),
    toggle("sequence", "Sequence parallel", False, help="Outside the matrices, each GPU has its own tokens."),
    select("link", "Joined by", "nvlink", list(LINKS.items())),
    select("up", "MLP, first matrix (or press it): cut in", MEGATRON["up"], CUTS),
    *more(
        select("model", "Model", "gpt-3-175b", [(key, NAMES[key]) for key in MODELS]),
        select("seq", "Tokens per sequence", "2048", [(str(2**k), f"{2**k:,}") for k in range(10, 16)]),
        select("kv", "Key-value heads", "own",
               [("own", "as many as the model has"), *((str(n), str(n)) for n in (1, 2, 4, 8))]),
        select("qkv", "Q, K and V: cut in", MEGATRON["qkv"], CUTS),
        select("out", "Attention, last matrix: cut in", MEGATRON["out"], CUTS),
        select("down", "MLP, last matrix: cut in", MEGATRON["down"], CUTS),
        select("overlap", "Overlap of communication", "none", [
            ("none", "none: one after the other"), ("backward", "in the backward: Megatron-LM of 2021"),
            ("chunked", "in chunks: Transformer Engine"),
        ], help="Chunks need sequence parallelism and one node: else it is the backward's overlap."),
        slider("lit", "Whose part is solid: GPU", 0, 0, 7),
    ),
)  # fmt: skip


def draw(params: dict, width: int, own: dict | None = None) -> dict:
    """The ribbon after some of its moments, the wire filled as far, and what the whole block holds and takes."""
    setting = _setting(params)
    step, lit = params["step"], min(params["lit"], setting.tp - 1)
    values = {**_values(setting), "step": step, "lit": lit, **setting.at(step), "lit_heads": setting.heads(lit)}
    return {
        "svg": picture.picture(setting, step, lit, values, width, own),
        "sentence": words.sentence(setting, values),
        "law": words.law(setting, values),
        "values": values,
        "levers": _levers(setting),
    }


def advice(params: dict) -> str:
    """The lever worth trying now."""
    return words.advice(levers.advice(_setting(params)))


def _levers(setting: Setting) -> dict:
    """Where ranges end now, and what changes nothing."""
    found: dict = {"lit": {"hi": setting.tp - 1}}
    if setting.sent == 0:
        found["link"] = {"off": "nothing is sent"}
    if not _overlaps(setting):
        found["overlap"] = {"off": "no communication here has a matmul beside it"}
    return found


def _overlaps(setting: Setting) -> bool:
    """Whether communication can be hidden here at all."""
    return len({setting.work(setting.link, overlap).exposed for overlap in OVERLAPS}) > 1


measured = record.measured


def locked(params: dict, width: int) -> str:
    """The block and its cut, without a collective, a byte sent or a second."""
    return picture.asked(_setting(params), width)


def slips(params: dict) -> list[tuple[float, str]]:
    """All-reduces that likely mistakes count, of the opening setting."""
    return words.slips()


def _setting(params: dict) -> Setting:
    return _known(Setting(**{name: value for name, value in params.items() if name not in ("step", "lit")}))


@lru_cache(maxsize=16)
def _known(setting: Setting) -> Setting:
    """The setting that equals this one, with all that has been found of it: for both widths, and each moment."""
    return setting


@lru_cache(maxsize=16)
def _values(setting: Setting) -> dict:
    """What is the same at every moment and width."""
    block, (weights, kept) = setting.block, setting.held
    times = {link: setting.seconds(link) for link in LINKS}
    now = times[setting.link]
    return {
        "all_reduces": setting.worth,
        "sent_mb": setting.sent / 1e6,
        "one_mb": setting.one / 1e6,
        "forward": block.counts("forward"),
        "backward": block.counts("backward"),
        "legal": block.legal,
        "troubles": words.troubles(setting),
        "weights_mb": weights / 1e6,
        "kept_mb": kept / 1e6,
        "held_mb": (weights + kept) / 1e6,
        "alone_mb": sum(setting.alone) / 1e6,
        "flops_share": block.flops / setting.uncut.flops,
        "overlap": setting.overlapped if _overlaps(setting) else "none",
        "seconds": fsum(now),
        "exposed_seconds": now[1],
        "exposed_percent": 100 * now[1] / fsum(now),
        "seconds_by_link": {link: fsum(one) for link, one in times.items()},
        "exposed_by_link": {link: one[1] for link, one in times.items()},
        "weights": {one.name: list(one.local) for one in block.weights},
        "tensors": {one.name: [one.placed.value, *one.local] for one in block.tensors},
    }
