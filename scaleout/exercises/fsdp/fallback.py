"""The exercise of `fsdp` on sharding that did not happen: equal losses, and what was really built."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.exercises.engine import Choice, Option


@dataclass(frozen=True)
class Built:
    """What rank 0 of a job on two processes had after `prepare`. Bytes; losses of its first steps."""

    processes: int
    kind: str
    wrapper: str
    model_bytes: int
    shard_bytes: int
    moments: int
    losses: tuple[float, ...]


# Accelerate 1.15.0 on CPUs, two processes of torchrun, asked for FSDP2 with cpu=True, and for DDP; a test runs them
# again.
BUILT = {
    "cpu": Built(2, "MULTI_CPU", "DistributedDataParallel", 33_280, 33_280, 66_560, (1.0932, 0.9463, 1.0077, 0.9223)),
    "ddp": Built(2, "MULTI_CPU", "DistributedDataParallel", 33_280, 33_280, 66_560, (1.0932, 0.9463, 1.0077, 0.9223)),
}
_CPU = BUILT["cpu"]


def _table(built: Built) -> str:
    rows = (
        ("`num_processes`, `distributed_type`", f"{built.processes}, {built.kind}"),
        ("type of the prepared model", f"`{built.wrapper}`"),
        ("bytes of the model, in fp32", f"{built.model_bytes:,}"),
        ("bytes of the parameters on rank 0", f"{built.shard_bytes:,}"),
        ("bytes of AdamW's moments on rank 0", f"{built.moments:,}"),
        ("losses on rank 0", ", ".join(f"{loss:.4f}" for loss in built.losses)),
    )
    return "\n".join(f"- {name}: {words}" for name, words in rows)


SILENT = Choice(
    key="silent-fallback",
    level=3,
    minutes=4,
    title="The losses agree",
    prompt="On a laptop, two processes ran `Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin("
    "fsdp_version=2))`. There was no warning and no error. Afterwards:\n\n"
    f"{_table(_CPU)}\n\nPlain DDP on the same data gave the same losses. What happened?",
    hints=("What would rank 0 of two store if the model were sharded?", "Which of these lines differs from DDP's?"),
    solution="**Accelerate ignored the plugin and built DDP.** With `cpu=True` the job is `MULTI_CPU`, and Accelerate "
    "uses an FSDP plugin only on GPUs and other accelerators. Rank 0 stores "
    f"{_CPU.shard_bytes:,} of {_CPU.model_bytes:,} bytes, where a shard would have {_CPU.model_bytes // 2:,}. The "
    "losses agree to the last digit because DDP computes the same thing. Equal losses cannot tell you which program "
    "computed them.\n\nSource: the class `AcceleratorState` in `accelerate/state.py`, version 1.15.0.",
    options=(
        Option(
            "ddp",
            "Accelerate ignored the plugin: this is plain DDP",
            f"Right: {_CPU.shard_bytes:,} of {_CPU.model_bytes:,} bytes on one of two ranks is no shard.",
            True,
        ),
        Option(
            "works",
            "Nothing is wrong: FSDP gives the losses of DDP",
            f"It should. But a shard on one of two ranks has {_CPU.model_bytes // 2:,} bytes, and rank 0 stores "
            f"{_CPU.shard_bytes:,}.",
        ),
        Option(
            "gathered",
            "It is sharded; the bytes were read while gathered",
            "Then at least AdamW's moments would be halved, because AdamW only ever sees shards. There are "
            f"{_CPU.moments:,} bytes of moments, two for each of the {_CPU.model_bytes:,} bytes of parameters.",
        ),
        Option(
            "one-process",
            "Each process trained alone, on the same data",
            f"The job has {_CPU.processes} processes that know of each other, and DDP around the model averages "
            "their gradients.",
        ),
        Option(
            "no-shard",
            "It is FSDP with NO_SHARD, as the model is small",
            "FSDP2 has no such strategy, and no size below which it does not shard. The wrapper is "
            "DistributedDataParallel.",
        ),
        Option(
            "root-only",
            "It is sharded as one unit, whose root stays whole",
            "The root stays unsharded only from its forward to its backward. Between steps a rank stores its shard, "
            "and the moments are those of the shard.",
        ),
    ),
)

EXERCISES = (SILENT,)
