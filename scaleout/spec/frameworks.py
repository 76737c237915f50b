"""Which framework runs a program's jobs, how it splits a block, and in one line why it cannot run a layout.

`launchers` has the lines of Megatron-LM, torchtitan and the book's job; here are those of Hugging Face's Accelerate
(1.15.0, options as its own parser has them in tests/published/launchers.json).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from scaleout.spec import checks, launchers, mesh
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout, keeps_keys
from scaleout.spec.program import PROGRAMS, Program
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

# Why Transformers' command does not make its loss so: its own widens the logits to fp32 (loss/loss_utils.py), and
# `--liger_kernel_config`, which would take the loss alone from Liger, cannot be given there (transformers 5.24).
LOSSES = {
    "fused": "Transformers has no fused loss",
    "chunked": "Transformers has the loss in chunks only with Liger's other kernels, which are not priced",
    "chunked-logits": "Transformers has no head in chunks",
}

# torch's names of the ways of `Job.context`: "alltoall" passes keys and values around a ring, "allgather", the default,
# gathers all of them (torch.distributed.tensor.experimental, `set_rotate_method`).
_CONTEXTS = {"ring": "alltoall", "gather": "allgather"}

# What makes the Trainer reduce gradients after each micro-batch: else it enters `no_sync`, which under `fully_shard` is
# `set_requires_gradient_sync(False)` (transformers 5.24, trainer.py; accelerate 1.15, accelerator.py).
_EACH_BATCH = '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'


def _check_accelerate(job: Job) -> None:
    """ValueError, in one line, for what Accelerate and Transformers do not do."""
    launchers.check(job, LOSSES)
    layout, recipe, order = job.layout, job.recipe, ", ".join(mesh.ORDER)
    tp, zero, inner = layout.tp, layout.zero, max(layout.tp, layout.cp)
    exact = recipe.precision == "fp32"
    reduces_half = recipe.precision == "bf16-master" and recipe.gradient_bytes == 2
    for wrong, reason in (
        (job.grid.names != mesh.ORDER, f"Accelerate orders ranks as {order}, and no other way: use that order"),
        (layout.pp > 1, f"Accelerate trains no pipeline: use pp 1, not {layout.pp}"),
        (zero in (1, 2), f"Accelerate's FSDP shards weights too, so it has no ZeRO {zero}: use zero 0 or 3"),
        (
            tp > 1 and layout.sequence_parallel,
            "Transformers has tensor parallelism without sequence parallelism: use sequence_parallel False",
        ),
        (tp > 1 and not job.shape.llama, "Transformers has no tensor parallelism for GPT-2's blocks: use tp 1"),
        (
            inner > 1 and layout.replicas > 1 and not zero,
            "Accelerate has no replicas beside tensor or context parallelism: use zero 3",
        ),
        (
            keeps_keys(layout, job.context),
            "torch's attention gathers keys and values again in the backward: use gather_again True",
        ),
        (job.shape.features.experts and layout.tp > 1, "transformers' experts are priced without tensor parallelism"),
        (recipe.checkpointing == "selective", "Transformers recomputes whole blocks: use none or full, not selective"),
        (
            not zero and not exact and not recipe.autocast,
            "Accelerate keeps weights in fp32 and trains under autocast: use precision autocast-bf16",
        ),
        (
            zero == 3 and not exact and not reduces_half,
            "Accelerate's FSDP reduces gradients in bf16: use precision bf16-master without main_gradients",
        ),
    ):
        if wrong:
            raise ValueError(reason)


def accelerate(job: Job) -> tuple[str, ...]:
    """The lines for a Transformers Trainer under Accelerate.

    Sharding is `fully_shard`'s (ZeRO 3), which tensor and context parallelism need beside replicas
    (accelerate/parallelism_config.py). The Trainer reduces gradients after a step's last micro-batch, so that
    `fully_shard` would keep whole ones until then; where each micro-batch is reduced, that has an option.
    ValueError for pipelines, sequence parallelism and ZeRO 1 and 2.
    """
    _check_accelerate(job)
    layout, recompute = job.layout, job.recipe.checkpointing
    nodes = job.cluster.nodes
    lines = [f"accelerate launch --num-machines {nodes} --num-processes {layout.ranks}"]
    lines += ["--machine-rank $RANK --main-process-ip $HEAD --main-process-port 29500"] * (nodes > 1)
    lines += [f"--mixed-precision {'no' if job.recipe.precision == 'fp32' else 'bf16'}"]
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
        lines += [f"--parallelism-config-cp-comm-strategy {_CONTEXTS[job.context]}"] * (layout.cp > 1)
    trainer = ["train.py", f"--per_device_train_batch_size {job.batch}", f"--gradient_accumulation_steps {layout.m}"]
    every_pass = layout.zero == 3 if job.replicas.every_pass is None else job.replicas.every_pass
    trainer += [f"--accelerator_config '{_EACH_BATCH}'"] * (every_pass and layout.m > 1 and layout.replicas > 1)
    trainer += ["--gradient_checkpointing true"] * (recompute == "full" and layout.zero != 3)
    trainer += ["--torch_compile true"] * (job.program.name == "huggingface-compiled")
    return (*lines, *trainer)


class Framework(NamedTuple):
    """name: in a sentence. lines: of a job's command. program: what it runs where a job is another program's.
    sequence_parallel, gather_again: of its layouts with tensor parallelism. context: how its keys and values reach the
    ranks of a sequence, where nobody asks. models: why it has no such model, or ""; it is priced all the same, for a
    program like it may have it."""

    name: str
    lines: Callable[[Job], tuple[str, ...]]
    program: Program
    sequence_parallel: bool = True
    gather_again: bool = True
    context: str = "ring"
    models: Callable[[Shape], str] = lambda shape: ""


def _titan_models(shape: Shape) -> str:
    """torchtitan 0.3.0 has llama3, qwen3 and others of their kind (torchtitan/models)."""
    if not shape.llama:
        return "torchtitan has Llama's blocks, and none like GPT's: its options would start another"
    features = shape.features
    if features.norms != "before" or features.qk_norm == "whole" or features.caps:
        return "torchtitan has the blocks of Llama and Qwen, and none like these: its options would start another"
    return ""


MEGATRON = Framework("Megatron-LM", launchers.megatron, PROGRAMS["megatron"])
TORCHTITAN = Framework(
    "torchtitan",
    launchers.torchtitan,
    PROGRAMS["compiled"],
    gather_again=False,
    context="gather",
    models=_titan_models,
)
ACCELERATE = Framework("Accelerate", accelerate, PROGRAMS["huggingface"], sequence_parallel=False, gather_again=False)

# By program; those that are not here are run by nothing that is sold under a layout's options.
RUNS = {"megatron": MEGATRON, "eager": TORCHTITAN, "compiled": TORCHTITAN, "huggingface": ACCELERATE,
        "huggingface-compiled": ACCELERATE}  # fmt: skip


def lines(job: Job, framework: Framework | None = None) -> tuple[str, ...]:
    """The command of a job, in its program's framework or another. ValueError, in one line, for what that cannot do and
    for a model that it has not."""
    runner = framework or RUNS.get(job.program.name)
    if runner is None:
        raise ValueError(f"no framework's options are known for {job.program.label}: use one of {', '.join(RUNS)}")
    if reason := runner.models(job.shape):
        raise ValueError(reason)
    return runner.lines(job if RUNS.get(job.program.name) is runner else replace(job, program=runner.program))


def operations(program: Program) -> str:
    """Whose modules a program has, as `Recipe.operations` names them."""
    return "transformers" if RUNS.get(program.name) is ACCELERATE else "book"


def refusal(job: Job) -> str:
    """Why its program's framework cannot run a job of any model, in one line; "" where it can, or none is known."""
    checks.instance("job", job, Job)
    if job.program.name not in RUNS:
        return ""
    try:
        RUNS[job.program.name].lines(job)
    except ValueError as error:
        return str(error)
    return ""


def usual(program: Program, tp: int) -> dict[str, bool]:
    """Options of a Layout with so much tensor parallelism, as the program's framework has them."""
    framework = RUNS.get(program.name, MEGATRON)
    return {"sequence_parallel": tp > 1 and framework.sequence_parallel, "gather_again": framework.gather_again}


def fp32_shards(program: Program, recipe: Recipe) -> bool:
    """Whether what a rank has of ZeRO 3's weights is fp32 alone. torchtitan's shards are what the optimizer steps, and
    `fully_shard` casts what it gathers (`training.dtype` and `mixed_precision_param`, torchtitan/config/configs.py): 16
    bytes for a parameter, with no shard in 16 bits."""
    return RUNS.get(program.name) is TORCHTITAN and recipe.main_gradients == "instead"


def trained(program: Program, layout: Layout, recipe: Recipe) -> Recipe:
    """The recipe of 16 bits as the program's framework trains a layout with it.

    Megatron-LM's modules are its own (memory/megatron.py has the sources). Accelerate's `--mixed-precision bf16` keeps
    fp32 weights: whole ones are trained under autocast, with DDP's buckets beside the gradients; its FSDP computes and
    reduces in bf16, as bf16-master without main gradients is sharded (utils/dataclasses.py, `set_mixed_precision`:
    param_dtype and reduce_dtype). The modules are those of transformers.
    """
    if RUNS.get(program.name) is MEGATRON and recipe.precision == "bf16-master" and recipe.adapter == "none":
        return replace(recipe, operations="megatron")
    if RUNS.get(program.name) is not ACCELERATE or recipe.precision not in ("bf16-master", "autocast-bf16"):
        return recipe
    sharded = layout.zero == 3
    return replace(
        recipe,
        precision="bf16-master" if sharded else "autocast-bf16",
        main_gradients="none",
        buckets="beside" if not sharded and layout.replicas > 1 else "none",
        gradients="kept" if recipe.keeps_gradients else recipe.gradients,
        operations="transformers",
    )
