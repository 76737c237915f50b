"""The exercise of `zero` on an optimizer that is offloaded to the host's memory."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip
from scaleout.exercises.zero.sizes import ADAMW, NAME, PARAMETERS
from scaleout.spec.devices import DEVICES, GB
from scaleout.timing.job import update_bytes

_RANKS, _MEMORY, _PCIE = 8, 300 * GB, 25 * GB
_TOUCHED = round(update_bytes(ADAMW))  # reads a gradient and three fp32 numbers; writes those three and a bf16 weight
_GPU_UPDATE = PARAMETERS * _TOUCHED / _RANKS / DEVICES["a100-80gb"].memory_bytes_per_s
_UPDATE, _UPLOAD = PARAMETERS * _TOUCHED / _MEMORY, PARAMETERS * 2 / _RANKS / _PCIE


def _wait(touched: float = _TOUCHED, copies: float = 1, memories: int = 1) -> float:
    """Seconds of the update and of `copies` of a shard, with so many hosts' memories."""
    return PARAMETERS * touched / memories / _MEMORY + copies * _UPLOAD


WAIT = Number(
    key="offload-wait",
    level=2,
    minutes=4,
    title="After the backward",
    prompt=f"{NAME} ({PARAMETERS / 1e9:.2f} billion parameters) trains at stage 2 on the **{_RANKS}** A100s of one "
    "node, with master weights and AdamW's moments offloaded to the host's memory. The bf16 gradients are copied to "
    "the host during the backward, hidden. Then, one after the other:\n\n"
    "- The CPUs update. Per parameter they read a bf16 gradient and three fp32 numbers, and write those three and "
    f"a bf16 weight. They are limited by the host's memory, **{_MEMORY / GB:.0f} GB/s** for all {_RANKS} ranks "
    "together.\n"
    f"- Each GPU fetches its shard of the new weights over its own PCIe link, at **{_PCIE / GB:.0f} GB/s**.\n\n"
    "How long does a GPU wait from the end of the backward until it has its shard?",
    hints=(
        "How many bytes does the update read and write per parameter?",
        f"The shards of all {_RANKS} ranks together are the whole model, and they share one memory.",
        f"A shard of the weights: 2 bytes × {PARAMETERS / 1e9:.2f} × 10^9 / {_RANKS}.",
    ),
    solution=f"Reading 2 + 12 and writing 12 + 2 bytes makes {_TOUCHED} per parameter: {_TOUCHED} × "
    f"{PARAMETERS / 1e9:.2f} GB / {_MEMORY / GB:.0f} GB/s = {_UPDATE:.2f} s. The shard has "
    f"{PARAMETERS * 2 / _RANKS / GB:.2f} GB: {_UPLOAD * 1e3:.0f} ms. Together **{_UPDATE + _UPLOAD:.2f} s**.\n\n"
    "**The GPU waits for the host's memory, not for PCIe,** and nothing hides this wait, because the next forward "
    "needs the new weights. With the states on the GPUs, each would update its shard at the rate of its own memory, "
    f"in {_GPU_UPDATE * 1e3:.0f} ms. More *nodes* make the wait shorter, because each updates its own part; more GPUs "
    "per node do not. It comes once per step, so more micro-batches or a larger batch make it a smaller share. "
    "ZeRO-Offload can overlap the update with the next forward, which then computes with weights that are one step old "
    "(arXiv 2101.06840, section 5.2).",
    value=_wait(),
    unit="s",
    units=("ms", "s"),
    dimension="seconds",
    slips=(
        Slip(
            "pcie-alone",
            _UPLOAD,
            "That is PCIe alone. The update in the host's memory comes first, and takes longer.",
        ),
        Slip("update-alone", _UPDATE, "That is the update alone. The new weights have to come back to the GPU."),
        Slip(
            "own-memory",
            _wait(memories=_RANKS),
            f"You gave each rank {_MEMORY / GB:.0f} GB/s. The node has one memory, and {_RANKS} ranks share it.",
        ),
        Slip(
            "gradients-too",
            _wait(copies=2),
            "You counted the copy of the gradients to the host. It is over when the backward is.",
        ),
        Slip(
            "whole-weights",
            _wait(copies=_RANKS),
            f"You sent all weights over one PCIe link. Each of {_RANKS} GPUs has its own link, and fetches its shard.",
        ),
        Slip("read-only", _wait(_TOUCHED / 2), "You counted only the reads, or only the writes. The update does both."),
        Slip(
            "states-once",
            _wait(12),
            "You counted 12 bytes per parameter, the three fp32 numbers once. They are read and written, and so are "
            "a gradient and a weight.",
        ),
        Slip("states-alone", _wait(24), "You left out the bf16 gradient and the bf16 weight, 2 bytes each."),
        Slip(
            "two-numbers", _wait(2 + 8 + 8 + 2), "You counted two fp32 numbers. With the master weight there are three."
        ),
    ),
    right="The host's memory is slower than a GPU's, and all GPUs of the node share it.",
)

EXERCISES = (WAIT,)
