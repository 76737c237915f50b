"""The exercise of `zero` on an optimizer that lives in the host's memory."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip
from scaleout.exercises.zero.sizes import ADAMW, NAME, PARAMETERS
from scaleout.spec.devices import DEVICES, GB
from scaleout.timing.job import update_bytes

_RANKS, _MEMORY, _PCIE = 8, 300 * GB, 25 * GB
_TOUCHED = round(update_bytes(ADAMW))  # gradient and three fp32 numbers read; those three and a bf16 weight written
_GPU_UPDATE = PARAMETERS * _TOUCHED / _RANKS / DEVICES["a100-80gb"].memory_bytes_per_s
_UPDATE, _UPLOAD = PARAMETERS * _TOUCHED / _MEMORY, PARAMETERS * 2 / _RANKS / _PCIE


def _wait(touched: float = _TOUCHED, copies: float = 1, memories: int = 1) -> float:
    """Seconds of the update and of `copies` of a shard, with as many hosts' memories as said."""
    return PARAMETERS * touched / memories / _MEMORY + copies * _UPLOAD


WAIT = Number(
    key="offload-wait",
    level=2,
    minutes=4,
    title="After the backward",
    prompt=f"{NAME} ({PARAMETERS / 1e9:.2f} billion parameters) trains at stage 2 on the **{_RANKS}** A100 of one "
    "node, its master copy and AdamW's moments in the host's memory. A GPU's shard of the bf16 gradients goes down "
    "during the backward, and hides. Then:\n\n"
    "- The CPUs update. For each parameter they read a bf16 gradient and three fp32 numbers, and write those three and "
    f"a bf16 weight. The host's memory gives **{_MEMORY / GB:.0f} GB/s**, for all {_RANKS} ranks together, and is what "
    "the CPUs wait for.\n"
    f"- Each GPU fetches its shard of the new weights over its own PCIe, at **{_PCIE / GB:.0f} GB/s**.\n\n"
    "One after the other. How long does a GPU wait from the end of the backward until it has its shard?",
    hints=(
        "How many bytes does the update read and write for one parameter?",
        f"All {_RANKS} ranks' shards together are the whole model, and they share one memory.",
        f"A shard of the weights: 2 bytes × {PARAMETERS / 1e9:.2f} × 10^9 / {_RANKS}.",
    ),
    solution=f"Reading 2 + 12 and writing 12 + 2 bytes makes {_TOUCHED} for each parameter: {_TOUCHED} × "
    f"{PARAMETERS / 1e9:.2f} GB / {_MEMORY / GB:.0f} GB/s = {_UPDATE:.2f} s. The shard has "
    f"{PARAMETERS * 2 / _RANKS / GB:.2f} GB: {_UPLOAD * 1e3:.0f} ms. Together **{_UPDATE + _UPLOAD:.2f} s**.\n\n"
    "**The host's memory is the wait, not PCIe,** and nothing hides it: the next forward needs the new weights. With "
    "the states on the GPUs each would update its shard at its own memory's full rate, "
    f"in {_GPU_UPDATE * 1e3:.0f} ms. The wait falls "
    "with the number of *nodes*, each of which updates its own part; not with the GPUs in a node. It comes once in a "
    "step, so more passes, or a larger batch, make it a smaller part. ZeRO-Offload can let the update run beside the "
    "next forward, which then computes with weights that are one step old (arXiv 2101.06840, section 5.2).",
    value=_wait(),
    unit="s",
    units=("ms", "s"),
    dimension="seconds",
    slips=(
        Slip(
            "pcie-alone",
            _UPLOAD,
            "That is PCIe alone. The update reads and writes the host's memory first, and takes longer.",
        ),
        Slip("update-alone", _UPDATE, "That is the update alone. The new weights have to come back to the GPU."),
        Slip(
            "own-memory",
            _wait(memories=_RANKS),
            f"You gave each rank a memory of {_MEMORY / GB:.0f} GB/s. The node has one, and {_RANKS} ranks share it.",
        ),
        Slip("gradients-too", _wait(copies=2), "You counted the gradients' way down. It is over when the backward is."),
        Slip(
            "whole-weights",
            _wait(copies=_RANKS),
            f"You sent all weights over one PCIe. Each of {_RANKS} GPUs has its own, and fetches its shard.",
        ),
        Slip("read-only", _wait(_TOUCHED / 2), "You counted what is read, or what is written. It is both."),
        Slip(
            "states-once",
            _wait(12),
            "You counted 12 bytes for each parameter: the three fp32 numbers once. They are "
            "read and written, and gradients and weights are touched too.",
        ),
        Slip("states-alone", _wait(24), "You left the bf16 gradient and the bf16 weight out: 2 bytes each."),
        Slip("two-numbers", _wait(2 + 8 + 8 + 2), "You counted two fp32 numbers. With the master copy it is three."),
    ),
    right="The host's memory is large, slower than a GPU's, and shared by all GPUs of the node.",
)

EXERCISES = (WAIT,)
