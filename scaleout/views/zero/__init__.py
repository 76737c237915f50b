"""ZeRO's ownership: which GPU stores which shard of weights, gradients and optimizer states during a step, and what is
communicated."""

from __future__ import annotations

from scaleout.memory.zero import splits
from scaleout.views import guess, more, play, select, slider, toggle
from scaleout.views.base import kept
from scaleout.views.choices import LARGE, NAMES, cards
from scaleout.views.zero import levers, picture, record, words
from scaleout.views.zero.setting import LINKS, MOMENTS, Setting, integral

TITLE = "Who stores what in ZeRO"

MODELS = ("gpt2-xl", "llama-2-7b", "llama-3-8b", "llama-2-13b", "llama-3-70b", "gpt-3-175b")
CONTROLS = (
    guess("DDP (stage 0) has a communication volume of **2N**. **Stage 2** shards gradients and optimizer "
          "states: how many times N is its volume?", "pieces", "times", lo=0, hi=4, step=0.25),
    play("moment", "Through a step", MOMENTS, 0, MOMENTS),
    select("stage", "ZeRO stage: shards", 2, [(0, "0 none"), (1, "1 optim"), (2, "2 + grads"),
                                                     (3, "3 + weights")]),
    select("ranks", "GPUs", 4, [(n, str(n)) for n in (2, 4, 8)]),
    select("offload", "Offloaded to CPU", "none",
           [("none", "nothing"), ("optimizer", "optimizer"), ("parameters", "and weights")]),
    toggle("keep", "Keep gathered weights", False),
    *more(
        select("model", "Model", "llama-2-7b", [(key, NAMES[key]) for key in MODELS]),
        select("precision", "Precision", "bf16-master",
               [("bf16-master", "bf16 weights, fp32 master"), ("autocast-bf16", "bf16 autocast, fp32 weights"),
                ("bf16", "bf16 only"), ("fp32", "fp32")]),
        select("optimizer", "Optimizer", "adamw", [("adamw", "AdamW"), ("adamw-8bit", "AdamW, 8-bit"),
                                                   ("momentum", "SGD with momentum"), ("sgd", "SGD"),
                                                   ("muon", "Muon, AdamW for the rest")]),
        select("passes", "Micro-batches per step", 1, [(n, str(n)) for n in (1, 2, 4, 8)]),
        slider("batch", "Sequences per GPU and micro-batch", 2, 1, 64, log=True),
        select("device", "GPU", "h100-sxm", cards(LARGE)),
        select("link", "Connected by", "own", list(LINKS.items())),
        select("to", "Offload to", "host", [("host", "CPU memory"), ("nvme", "NVMe")]),
    ),
)  # fmt: skip


def draw(params: dict, width: int, run: dict | None = None) -> dict:
    """The grid at a moment of the step, and below it a GPU's memory, the communication volume and the step time."""
    setting, moment = Setting.of(params), params["moment"]
    values = {**_values(setting), **_at_moment(setting, moment)}
    return {
        "svg": picture.picture(setting, moment, width, run),
        "sentence": words.sentence(setting, values),
        "law": words.law(setting, values),
        "values": values,
        "levers": _levers(setting),
    }


measured = record.measured
advice = Setting.asked(levers.sentence)


def locked(params: dict, width: int) -> str:
    """The same in stage 0."""
    return picture.locked(Setting.of(params).other(stage=0), width)


slips = Setting.asked(words.slips)


def _levers(setting: Setting) -> dict:
    """Controls that change nothing now, or less than they say, and why."""
    reasons = {}
    if setting.stage < 3:
        reasons["keep"] = "only stage 3 gathers weights"
    if not setting.stage:
        reasons["offload"] = "needs a stage from 1 to 3, where each GPU owns a shard"
    elif setting.muon:
        reasons["offload"] = "Muon's matmuls need the GPU"
    if setting.offloaded == "none":
        reasons["to"] = "nothing is offloaded"
    elif setting.stage < 3:
        reasons["to"] = "only stage 3 can use NVMe"
    levers = {name: {"off": reason} for name, reason in reasons.items()}
    if setting.offload == "parameters" and setting.offloaded == "optimizer":
        levers["offload"] = {"note": "below stage 3 the weights stay on the GPU: only the optimizer is offloaded"}
    return levers


@kept
def _values(setting: Setting) -> dict:
    """What is the same at every moment and width."""
    time = setting.time
    return {
        "pieces": setting.pieces,
        "piece_gb": setting.piece / 1e9,
        "sent_gb": setting.sent / 1e9,
        "held_gb": setting.held_bytes() / 1e9,
        "host_gb": setting.held_bytes("host") / 1e9,
        "nvme_gb": setting.held_bytes("nvme") / 1e9,
        "outside_gb": setting.held_bytes(setting.tier) / 1e9,
        "pieces_by_way": setting.by_way,
        "fullest_gb": setting.fullest_bytes / 1e9,
        "usable_gb": setting.usable / 1e9,
        "states_fit": setting.states_fit,
        "peak_gb": setting.peak / 1e9,
        "beside_gb": setting.pass_bytes / 1e9,
        "fits": setting.step_fits,
        "bytes_each": setting.held_bytes() / setting.parameters,
        "each": setting.widths,
        "split": {kind: setting.stage >= splits(kind) for kind in setting.widths},
        "by_stage_gb": [size / 1e9 for size in setting.by_stage],
        "seconds": time.seconds,
        "parts": time.parts,
        "spent": setting.spent,
        "mfu": time.mfu,
        "exposed_seconds": setting.exposed,
        "exposed_percent": 100 * setting.exposed / time.seconds,
        "wire_seconds": time.communication,
        "away": setting.offloaded,
        "node_host_gb": setting.node_host / 1e9,
        "host_fits": setting.host_fits,
    }


def _at_moment(setting: Setting, moment: int) -> dict:
    """What is stored and communicated at a moment."""
    number, part = setting.frame_at(moment)
    frame = picture.resting(setting) if moment == MOMENTS else setting.frames[number]
    held_bytes = setting.bytes_at(frame)
    sent = sum(cell.sent for cell in picture.cells(setting, number, part))
    return {
        "moment": frame.phase,
        "moment_gb": sum(held_bytes.values()) / 1e9,
        "moment_held_gb": {kind: size / 1e9 for kind, size in held_bytes.items()},
        "sent_so_far": integral(sent),
        "crossed_so_far": integral(setting.frames[number].crossed),
    }
