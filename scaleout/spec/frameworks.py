"""Which framework runs a program's jobs, how it cuts a block, and in one line why it cannot run a layout.

`launchers` has the lines of Megatron-LM, torchtitan and the book's job; here are those of Hugging Face's Accelerate
(1.15.0, options as its own parser has them in tests/published/launchers.json).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from scaleout.spec import checks, launchers, mesh
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS, Program


def accelerate(
    layout: Layout,
    batch: int,
    seq: int,
    layers: int,
    recompute: str = "none",
    gpus_per_node: int = 8,
    order: Iterable[str] = mesh.ORDER,
    program: Program = PROGRAMS["huggingface"],
) -> tuple[str, ...]:
    """The lines for a Transformers Trainer under Accelerate. Arguments as for `launchers.book`.

    Sharding is `fully_shard`'s (ZeRO 3), which tensor and context parallelism need beside replicas
    (accelerate/parallelism_config.py). ValueError for pipelines, sequence parallelism and ZeRO 1 and 2.
    """
    launchers.check(layout, batch, seq, layers, recompute)
    if mesh.grid(Layout(), order).names != mesh.ORDER:
        raise ValueError(f"Accelerate orders ranks as {', '.join(mesh.ORDER)}, and no other way: use that order")
    if layout.pp > 1:
        raise ValueError(f"Accelerate trains no pipeline: use pp 1, not {layout.pp}")
    if layout.zero in (1, 2):
        raise ValueError(f"Accelerate's FSDP shards weights too, so it has no ZeRO {layout.zero}: use zero 0 or 3")
    if layout.tp > 1 and layout.sequence_parallel:
        raise ValueError(
            "Transformers has tensor parallelism without sequence parallelism: use sequence_parallel False"
        )
    if max(layout.tp, layout.cp) > 1 and layout.replicas > 1 and not layout.zero:
        raise ValueError("Accelerate has no replicas beside tensor or context parallelism: use zero 3")
    if recompute == "selective":
        raise ValueError("Transformers recomputes whole blocks: use none or full, not selective")
    nodes = launchers.nodes_of(layout, gpus_per_node)
    lines = [f"accelerate launch --num-machines {nodes} --num-processes {layout.ranks}"]
    lines += ["--machine-rank $RANK --main-process-ip $HEAD --main-process-port 29500"] * (nodes > 1)
    lines += ["--mixed-precision bf16"]
    if layout.zero == 3:
        lines += [
            "--use-fsdp",
            "--fsdp-version 2",
            "--fsdp-reshard-after-forward true",
            "--fsdp-auto-wrap-policy TRANSFORMER_BASED_WRAP",
        ]
        lines += ["--fsdp-activation-checkpointing true"] * (recompute == "full")
    if max(layout.tp, layout.cp) > 1:
        degrees = {"dp-shard": layout.dp, "tp": layout.tp, "cp": layout.cp}
        lines += [
            "--use-parallelism-config",
            *(f"--parallelism-config-{name}-size {size}" for name, size in degrees.items()),
        ]
    trainer = ["train.py", f"--per_device_train_batch_size {batch}", f"--gradient_accumulation_steps {layout.m}"]
    trainer += ["--gradient_checkpointing true"] * (recompute == "full" and layout.zero != 3)
    return (*lines, *trainer)


class Framework(NamedTuple):
    """name: in a sentence. lines: of a command, as `launchers.book` takes them. sequence_parallel, gather_again: of
    its layouts with tensor parallelism."""

    name: str
    lines: Callable[..., tuple[str, ...]]
    sequence_parallel: bool = True
    gather_again: bool = True


MEGATRON = Framework("Megatron-LM", launchers.megatron)
TORCHTITAN = Framework("torchtitan", launchers.torchtitan, gather_again=False)
ACCELERATE = Framework("Accelerate", accelerate, sequence_parallel=False, gather_again=False)

# By program; those that are not here are run by nothing that is sold under a layout's options.
RUNS = {"megatron": MEGATRON, "eager": TORCHTITAN, "compiled": TORCHTITAN, "huggingface": ACCELERATE}


def lines(job: Job, framework: Framework | None = None) -> tuple[str, ...]:
    """The command of a job, in its program's framework or another. ValueError, in one line, for what that cannot do."""
    runner = framework or RUNS.get(job.program.name)
    if runner is None:
        raise ValueError(f"no framework's options are known for {job.program.label}: use one of {', '.join(RUNS)}")
    matching = job.program if RUNS.get(job.program.name) is runner else None
    return runner.lines(
        job.layout,
        job.batch,
        job.seq,
        job.shape.layers,
        job.recipe.checkpointing,
        job.cluster.gpus_per_node,
        job.order,
        **({"program": matching} if matching else {}),
    )


def refusal(job: Job) -> str:
    """Why its program's framework cannot run a job, in one line; "" where it can, or where none is known."""
    checks.instance("job", job, Job)
    if job.program.name not in RUNS:
        return ""
    try:
        lines(job)
    except ValueError as error:
        return str(error)
    return ""


def usual(program: Program, tp: int) -> dict[str, bool]:
    """Options of a Layout with so much tensor parallelism, as the program's framework has them."""
    framework = RUNS.get(program.name, MEGATRON)
    return {"sequence_parallel": tp > 1 and framework.sequence_parallel, "gather_again": framework.gather_again}
