"""Three axes at once: what data, tensor and pipeline parallelism send, and which of them crosses between nodes."""

from __future__ import annotations

from math import fsum

from scaleout.draw.parts import BYTES, sizes
from scaleout.views import arrange, guess, more, play, select, slider
from scaleout.views.base import kept
from scaleout.views.choices import LARGE, LOSSES, NAMES, OF_LOSSES, cards, programs
from scaleout.views.mesh import acts, levers, nodes, picture, words
from scaleout.views.mesh.setting import (
    CHUNKS,
    LINKS,
    LOOKS,
    MOST_MICRO_BATCHES,
    WIDEST,
    Look,
    Setting,
    most_micro_batches,
)

TITLE = "Three axes at once"

MODELS = ("llama-2-7b", "llama-3-8b", "llama-2-70b", "llama-3-70b", "gpt-3-175b", "llama-3-405b")
GPUS = tuple(2**k for k in range(3, 15))
SHOWN = 64  # members of a group that values list
SEQS = (2048, 4096, 8192, 16_384, 32_768, 131_072)
DEGREES = tuple(2**k for k in range(7))

OF_PROGRAMS = (
    "In torch all communication of tensor parallelism is exposed. Megatron-LM of 2021 overlaps a part of it in the "
    "backward. Transformer Engine cuts it into chunks, which are sent while the matmuls run."
)

CONTROLS = (
    guess("Two nodes of 4 GPUs, three axes of 2. **Tensor** parallelism crosses the nodes: 506 ms of communication per "
          "step. How many if the **pipeline** crosses instead?", "communication_ms", "ms", lo=0, hi=530, step=5),
    play("moment", "Through a step", acts.MOMENTS, 0, acts.MOMENTS),
    arrange("order", "Order of the axes, outermost first", [["pp", "dp", "tp"]]),
    slider("micro_batches", "Micro-batches per step (m)", 8, 1, MOST_MICRO_BATCHES, log=True),
    select("link", "Between nodes", "ib-ndr", [(key, label) for key, (_, _, label) in LINKS.items()]),
    select("gpus", "GPUs", 8, [(n, f"{n:,}") for n in GPUS]),
    *more(
        select("tp", "Tensor parallel (tp)", 2, [(n, str(n)) for n in DEGREES[:5]]),
        select("pp", "Pipeline stages (pp)", 2, [(n, str(n)) for n in DEGREES]),
        select("cp", "Context parallel (cp)", 1, [(n, str(n)) for n in DEGREES if n <= WIDEST]),
        select("zero", "ZeRO stage over replicas", 1, [(n, str(n)) for n in range(4)]),
        slider("chunks", "Chunks per pipeline rank (v)", 1, 1, CHUNKS),
        select("node", "GPUs per node", 4, [(n, str(n)) for n in (2, 4, 8)]),
        select("model", "Model", "llama-2-7b", [(key, NAMES[key]) for key in MODELS]),
        select("seq", "Tokens per sequence, at most", 4096,
               [(n, f"{n:,}") for n in SEQS]),
        select("batch", "Sequences per micro-batch", 1, [(n, str(n)) for n in (1, 2, 4)]),
        select("recompute", "Recompute in the backward", "none",
               [("none", "nothing"), ("selective", "attention"), ("full", "every block")]),
        select("loss", "Loss", "eager", LOSSES, help=OF_LOSSES),
        select("device", "GPU", "h100-sxm", cards(LARGE)),
        select("program", "Program", "megatron", programs("megatron", "megatron-2021", "compiled", "eager"),
               help=OF_PROGRAMS),
        select("look", "Highlight in the picture", "all", list(LOOKS.items())),
        slider("rank", "Rank", 0, 0, GPUS[-1] - 1),
    ),
)  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """Ranks on their nodes above; what they send, step time and memory below."""
    setting, look = _chosen(params)
    values = {**_values(setting, nodes.stage(setting, look.rank)), **_seen(setting, look)}
    return {
        "svg": picture.picture(setting, look, width),
        "sentence": words.sentence(setting, values),
        "law": words.law(setting, look, values),
        "values": values,
        "levers": _levers(setting),
    }


advice = Setting.asked(levers.sentence)


def locked(params: dict, width: int) -> str:
    """The same with tensor parallelism across the nodes."""
    setting, look = _chosen(params)
    return picture.picture(setting.other(order="tp.pp.dp"), look, width, alive=False)


slips = Setting.asked(words.slips)


def _chosen(params: dict) -> tuple[Setting, Look]:
    setting, look = Setting.of(params), Look.of(params)
    return setting, look.other(rank=min(look.rank, setting.gpus - 1))


def _levers(setting: Setting) -> dict:
    """Controls that change nothing now, and why; and how far the others go."""
    layout = setting.layout
    levers: dict[str, dict[str, object]] = {"rank": {"hi": setting.gpus - 1}}
    chunk_counts = setting.all_chunks(layout.pp)
    if not chunk_counts:
        levers["chunks"] = {"off": "no number of chunks gives equal stages" if layout.pp > 1 else "there is one stage"}
    elif layout.chunks != setting.chunks:
        levers["chunks"] = {"takes": layout.chunks}
    highest = most_micro_batches(layout.pp, layout.chunks)
    if highest == layout.pp > 1:
        levers["micro_batches"] = {"off": f"{layout.m} micro-batches fill this pipeline, and more cannot be drawn"}
    else:
        levers["micro_batches"] = {"hi": highest}
        if layout.m != setting.micro_batches:
            levers["micro_batches"]["takes"] = layout.m
    if setting.gpus == layout.tp:
        levers["pp"] = {"off": "tensor parallelism takes all GPUs"}
    if setting.gpus == layout.tp * layout.pp:
        levers["cp"] = {"off": "tp and pp take all GPUs"}
    if setting.shape.tokens(SEQS[-1]) == SEQS[0]:
        levers["seq"] = {"off": f"the model's sequences have at most {SEQS[0]:,} tokens"}
    if layout.replicas == 1:
        levers["zero"] = {"off": "there is one replica"}
    if setting.nodes == 1:
        levers["link"] = {"off": "there is one node"}
    return levers


@kept
def _values(setting: Setting, stage: int) -> dict:
    """What is the same at every moment and width. stage: of the pressed rank."""
    layout, sent, time = setting.layout, setting.traffic(stage), setting.time
    exposed, peak = setting.exposed, setting.account.peak
    return {
        "dp": layout.dp,
        "cp": layout.cp,
        "tp": layout.tp,
        "pp": layout.pp,
        "zero": layout.zero,
        "chunks": layout.chunks,
        "micro_batches": layout.m,
        "tokens": setting.tokens,
        "order": list(setting.axes),
        "crossing": list(setting.crossing),
        "communication_ms": 1e3 * setting.spent(stage),
        "ms": {axis: 1e3 * seconds for axis, seconds in setting.wire_seconds(stage).items()},
        "gb": {axis: value.bytes / 1e9 for axis, value in sent.items()},
        "messages": {axis: value.messages for axis, value in sent.items()},
        "links": {axis: setting.wire(axis) for axis in sent},
        "link_gb_s": {axis: value.bytes_per_s / 1e9 for axis, value in sent.items()},
        "cable_gb": fsum(value.bytes for value in sent.values() if value.crossing) / 1e9,
        "exposed_ms": {axis: 1e3 * value for axis, value in exposed.items()},
        "exposed_seconds": fsum(exposed.values()),
        "seconds": time.seconds,
        "parts": time.parts,
        "mfu": time.mfu,
        "tokens_per_second": time.tokens_per_second,
        "held_gb": setting.account.peak_bytes / 1e9,
        "fullest_stage": setting.fullest_stage,
        "held_gb_by_kind": {kind.name: size / 1e9 for kind, size in sizes(BYTES, peak).items()},
        "fits": setting.fits,
        "usable_gb": setting.usable / 1e9,
    }


def _seen(setting: Setting, look: Look) -> dict:
    """Groups of the pressed rank, and the bytes sent by the moment that is shown."""
    groups, sent = nodes.groups(setting, look.rank), setting.traffic(nodes.stage(setting, look.rank))
    shares = acts.sent_shares(setting.layout, look.moment)
    return {
        "rank": look.rank,
        "coordinates": setting.grid.coordinates(look.rank),
        "node": look.rank // setting.node,
        "groups": {axis: list(members[:SHOWN]) for axis, members in groups.items()},
        "holders": list(nodes.holders(setting, look.rank)[:SHOWN]),
        "holders_count": setting.layout.replicas,
        "workers": list(nodes.workers(setting, look.rank)[:SHOWN]),
        "workers_count": setting.layout.tp * setting.layout.pp,
        "talks_to": sum(len(members) - 1 for members in groups.values()),
        "look": look.look,
        "sent_so_far_gb": {axis: shares[axis] * flow.bytes / 1e9 for axis, flow in sent.items()},
    }
