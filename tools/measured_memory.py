"""What the account says of the memory of published steps (tools/measured.py), by what their programs keep.

A row's job is what is timed. What its program keeps of it is in the sources here, and no row has a constant of its own.
"""

from __future__ import annotations

from measured import Row

from scaleout.memory.activations import Sizes
from scaleout.memory.fsdp import fsdp_account
from scaleout.memory.job import fullest
from scaleout.memory.recompute import Policy, every_kth, names
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding

GIB = 2**30
# torchtitan's H100 of 2024 had 96 GB of HBM2e: benchmarks/llama3_h100_202412_torchtitan.md.
LARGER = {"torchtitan 2024-12": int(96e9)}
# What a program keeps where a series says it. dgxc: NeMo fuses the loss (cross_entropy_loss_fusion), and its 340B has
# gradients and AdamW's states in bf16 and no master copy (optim.dtype and grad_sync_dtype of dgxc-benchmarking,
# nemotron/nemotron4-340b-synth.yaml at 8f5cbb3). KempnerForge casts the model to bf16 before it makes the optimizer
# (distributed/parallel.py at 01b461a, build_parallel_model), reduces after the last micro-batch (training/grad.py), and
# updates in one kernel.
KEPT = {
    ("dgxc", ""): {"loss": "fused"},
    ("dgxc", "nvidia 340B"): {"precision": "bf16", "main_gradients": "none"},
    ("kempner", ""): {"precision": "bf16", "main_gradients": "none", "every_pass": False, "fused_update": True},
}
# torchtitan's selective recomputation by operation keeps attention's output and every second matmul's, from the first
# (torchtitan/parallelisms/parallelize_llama.py at 9dec370, _apply_ac_to_transformer_block): Q, V, the gate and down.
# What down makes is no tile of a block: it is the next block's input, which is kept.
BY_OPERATION = frozenset({"q", "v", "attention", "gate"})


def peak(row: Row) -> int:
    """Bytes at the peak of the rank that has the highest."""
    if row.again is not None:
        return _selective(row)
    changes = {}
    for (series, model), kept in KEPT.items():
        if row.series.startswith(series) and row.name.startswith(model):
            changes |= kept
    if row.job.program.name == "megatron":
        changes |= {"operations": "megatron", "fused_update": True}
    return fullest(row.job.other(**changes)).peak_bytes


def _selective(row: Row) -> int:
    """Of fp32 shards that are gathered in bf16. IBM recomputes every second block (fms-fsdp,
    policies/ac_handler.py), torchtitan by operation."""
    job = row.job
    z = Sizes(job.shape, job.batch, job.seq, Recipe("bf16"), Layout())
    by_operation = Policy((names(z) - BY_OPERATION,) * job.shape.layers, outputs=True)
    policy = every_kth(z, 2) if row.series.startswith("ibm") else by_operation
    sharding = Sharding(job.shards, parameter="bf16", reduce="fp32")
    return fsdp_account(job.shape, job.batch, job.seq, Recipe("fp32"), sharding, policy=policy).peak_bytes


def device_bytes(row: Row) -> int:
    """What the driver of its GPU reports."""
    larger = next((size for series, size in LARGER.items() if row.series.startswith(series)), None)
    return larger or row.job.device.memory_bytes
