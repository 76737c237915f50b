"""A layout as command-line options of the book's job, torchtitan 0.3.0 and Megatron-LM (core 0.19.2).

Each function gives the lines of a job's command: torchrun, the program that it starts, and an option each. They say
how the ranks divide the work and how much of it there is; the model, its data and its precision are yours to add
(torchtitan wants `--module` and `--config`, Megatron `--num-layers` and what follows). Of several nodes each runs the
same command, with the first one's name in $HEAD. What a framework cannot do is a ValueError in one line.

Options are those of the released packages, read from their own parsers, which the tests hold in
tests/published/launchers.json: torchtitan 0.3.0 (September 2026, https://pypi.org/project/torchtitan/0.3.0/, in
torchtitan/config/configs.py and torchtitan/trainer.py) and megatron-core 0.19.2 (September 2026,
https://pypi.org/project/megatron-core/0.19.2/, in megatron/training/arguments.py). Both change names between releases:
torchtitan's `--activation_checkpoint.mode` of 0.2 is a word of its own in 0.3, and its sources after 0.3 count tokens
where 0.3 counts sequences.

A program's own options come last: what it overlaps, compiles, and attends with, and how it makes the loss, so that
what is printed runs what was priced. No option says whether tensor parallelism gathers per second time in the backward
(`Layout.gather_again`): Megatron always does, and torchtitan's matrix multiplications keep what they read.
"""

from __future__ import annotations

from collections.abc import Mapping

from scaleout.spec import checks, mesh
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout, keeps_keys
from scaleout.spec.pipeline import SCHEDULES
from scaleout.spec.slices import loss_chunk

# Why a program does not make its loss so (`Recipe.loss`). Transformer Engine's fused loss, whose memory is the priced
# one, fails an assertion of megatron/training/arguments.py ("disabled due to stability issues"); that of
# megatron/core/fusions/fused_cross_entropy.py saves probabilities in fp32.
BOOK_LOSSES = dict.fromkeys(
    ("fused", "chunked", "chunked-logits"), "the book's job has torch's own cross-entropy alone"
)
MEGATRON_LOSSES = {
    "fused": "Megatron-LM refuses Transformer Engine's fused loss, and its own keeps fp32 probabilities",
    "chunked": "Megatron-LM has no loss in chunks",
    "chunked-logits": "Megatron-LM has no loss in chunks",
}


def book(job: Job) -> tuple[str, ...]:
    """The lines for labs/capstone.py.

    Its tensor parallelism comes with sequence parallelism. Its `fully_shard` accumulates unsharded gradients over
    a step's micro-batches, so that zero=2 there needs the memory of ZeRO 1. ValueError for what the job cannot do.
    """
    check(job, BOOK_LOSSES)
    layout = job.layout
    if job.grid.names != mesh.ORDER:
        raise ValueError(f"the book's job orders ranks as {', '.join(mesh.ORDER)}, and no other way: use that order")
    if layout.cp > 1:
        raise ValueError(f"the book's job has no context parallelism: use cp 1, not {layout.cp}")
    if layout.tp > 1 and not layout.sequence_parallel:
        raise ValueError("the book's job has no tensor parallelism without sequence parallelism: use sequence_parallel")
    facts = SCHEDULES[layout.schedule]
    if facts.splits and (layout.tp > 1 or layout.zero == 3):
        raise ValueError(f"the book's job has {facts.label} with tp 1 and zero 0 or 2 only: use schedule 1f1b")
    words: dict[str, int | str] = {"pp": layout.pp, "tp": layout.tp, "zero": 2 if layout.zero == 1 else layout.zero}
    if layout.pp > 1:
        words |= {"v": layout.chunks, "schedule": layout.schedule}
    lines = _start(job, "labs/capstone.py")
    lines += [f"--layout {','.join(f'{name}={value}' for name, value in words.items())}"]
    lines += [f"--batch {job.sequences}", f"--micro-batch {job.batch}", f"--seq {job.seq}"]
    return (*lines, f"--checkpointing {job.recipe.checkpointing}")


def megatron(job: Job) -> tuple[str, ...]:
    """The lines for Megatron-LM's pretraining of GPT and Llama.

    ZeRO 2 and 3 are Megatron-FSDP's, whose guide names tensor, context and expert parallelism, no pipeline
    (https://github.com/NVIDIA/Megatron-LM/issues/1455). ValueError for that, for schedules and orders that it has not.
    """
    check(job, MEGATRON_LOSSES)
    layout = job.layout
    fsdp = layout.zero > 1
    if fsdp and layout.pp > 1:
        raise ValueError(f"Megatron-LM has no ZeRO {layout.zero} with a pipeline: use zero 1, or pp 1")
    if keeps_keys(layout, job.context):
        raise ValueError("Megatron-LM gathers keys and values again in the backward: use gather_again")
    if layout.tp > 1 and layout.sequence_parallel and not layout.gather_again:
        raise ValueError("Megatron-LM gathers again in the backward what sequence parallelism splits: use gather_again")
    lines = _start(job, "pretrain_gpt.py", _connections(layout, fsdp))
    lines += [
        f"--tensor-model-parallel-size {layout.tp}",
        f"--pipeline-model-parallel-size {layout.pp}",
        f"--context-parallel-size {layout.cp}",
    ]
    lines += ["--cp-comm-type all_gather"] * (layout.cp > 1 and job.context == "gather")  # p2p, a ring, is the default
    lines += ["--sequence-parallel"] if layout.tp > 1 and layout.sequence_parallel else []
    lines += _megatron_stages(job) + _megatron_order(job.grid.names, fsdp) + _megatron_replicas(job)
    lines += [f"--micro-batch-size {job.batch}", f"--global-batch-size {job.sequences}", f"--seq-length {job.seq}"]
    return (*lines, *_MEGATRON_RECOMPUTE[job.recipe.checkpointing], *_megatron_kernels(job))


_MEGATRON_RECOMPUTE = {
    "none": (),
    "selective": ("--recompute-granularity selective", "--recompute-modules core_attn"),
    "full": ("--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"),
}


def _connections(layout: Layout, fsdp: bool) -> str:
    """Megatron refuses tensor and context parallelism before Blackwell without this, and its FSDP with it."""
    return "CUDA_DEVICE_MAX_CONNECTIONS=1 " if max(layout.tp, layout.cp) > 1 and not fsdp else ""


def _megatron_stages(job: Job) -> list[str]:
    """How the blocks are shared out over stages, and in which rounds an interleaved pipeline takes micro-batches."""
    layout, sizes = job.layout, job.stages
    if layout.pp == 1:
        return []
    if layout.schedule not in ("1f1b", "interleaved"):
        label = SCHEDULES[layout.schedule].label
        raise ValueError(f"Megatron-LM has 1F1B, interleaved or not, and no {label}: use schedule 1f1b")
    alike = len(set(sizes)) == 1
    if not alike and len(set(_with_ends(sizes))) > 1:
        rows = [f"t*{n}" for n in sizes]
        return [f"--pipeline-model-parallel-layout 'E{'|'.join(rows)}L'", *_rounds(layout)]
    lines = [f"--num-virtual-stages-per-pipeline-rank {layout.chunks}"] if layout.chunks > 1 else []
    if not alike:
        lines += ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
    return lines + _rounds(layout)


def _rounds(layout: Layout) -> list[str]:
    """Of how many micro-batches, where it is not one for each rank of the pipeline (arXiv 2104.04473 has no other)."""
    group = layout.m // (layout.m // layout.pp)
    return [f"--microbatch-group-size-per-virtual-pipeline-stage {group}"] * (layout.chunks > 1 and group != layout.pp)


def _megatron_order(order: tuple[str, ...], fsdp: bool) -> list[str]:
    if order == mesh.ORDER:
        return []
    if order != ("dp", "pp", "cp", "tp") or fsdp:
        use = ", ".join(mesh.ORDER)
        raise ValueError(f"Megatron-LM cannot order ranks as {', '.join(order)}: use {use}, or without FSDP dp first")
    return ["--use-tp-pp-dp-mapping"]


def _megatron_kernels(job: Job) -> list[str]:
    """Transformer Engine's chunked overlap, which copies from GPU to GPU inside a node and needs sequence parallelism
    (`timing.compute.overlap`), and the kernel of attention: cuDNN's is its "fused" one."""
    layout, program = job.layout, job.program
    in_node = job.grid.stride("tp") * layout.tp <= job.cluster.gpus_per_node
    chunked = program.tensor_overlap == "chunked" and layout.tp > 1 and layout.sequence_parallel and in_node
    backend = {"cudnn": "fused", "flash-2": "flash"}.get(program.attention)
    return ["--tp-comm-overlap"] * chunked + ([f"--attention-backend {backend}"] if backend else [])


def _megatron_replicas(job: Job) -> list[str]:
    """Options that overlap gradient reduction with the backward, and gathering weights with the forward."""
    layout, program = job.layout, job.program
    grads = ["--overlap-grad-reduce"] if layout.replicas > 1 and program.data_overlap else []
    if not layout.zero:
        return grads
    gathers = ["--overlap-param-gather"] * bool(grads and program.weight_overlap)
    lines = ["--use-distributed-optimizer", *grads, *gathers]
    if layout.zero > 1:
        split = {2: "optim_grads", 3: "optim_grads_params"}[layout.zero]
        lines += ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {split}", "--ckpt-format fsdp_dtensor"]
    return lines


def torchtitan(job: Job) -> tuple[str, ...]:
    """The lines for torchtitan's Llama 3, with one of its own configurations (`--config llama3_8b`).

    Data parallelism is `fully_shard`'s. Without a pipeline it splits gradients at every micro-batch: ZeRO 2 and 3. In a
    pipeline torch adds up whole gradients until the last one (`backward_maybe_with_nosync` of torch.distributed.
    pipelining), and torchtitan's default keeps the weights gathered that long: what a rank holds is ZeRO 1's. Context
    parallelism gathers keys and values before FlexAttention, which keeps them (distributed/context_parallel/api.py).
    ValueError for other stages, for the book's selective recomputation (torchtitan's own keeps attention, and computes
    every second product again), other orders, and stages that it would share out otherwise.
    """
    check(job, {"chunked-logits": "torchtitan's loss in chunks has the head in it"})
    layout, recompute = job.layout, job.recipe.checkpointing
    if job.grid.names != mesh.ORDER:
        raise ValueError(f"torchtitan orders ranks as {', '.join(mesh.ORDER)}, and no other way: use that order")
    if recompute == "selective":
        raise ValueError(
            "torchtitan's selective recomputation is another (attention is kept, every second product "
            "is not): use none or full"
        )
    if layout.cp > 1 and not keeps_keys(layout, job.context):
        raise ValueError(
            "torchtitan gathers keys and values, once for forward and backward: use context gather and "
            "gather_again False"
        )
    if layout.tp > 1 and layout.sequence_parallel and layout.gather_again:
        raise ValueError("torchtitan keeps what sequence parallelism has gathered: use gather_again False")
    lines = _start(job, "-m torchtitan.train") + _titan_replicas(layout)
    lines += [f"--parallelism.tensor_parallel_degree {layout.tp}"]
    lines += ["--parallelism.no-enable_sequence_parallel"] * (layout.tp > 1 and not layout.sequence_parallel)
    lines += [f"--parallelism.context_parallel_degree {layout.cp}"]
    lines += ["--parallelism.context_parallel_load_balancer ptrr"] * (layout.cp > 1)  # the one for FlexAttention
    lines += _titan_stages(job)
    local = job.batch * (layout.m if layout.pp > 1 else 1)
    lines += [
        f"--training.local_batch_size {local}",
        f"--training.global_batch_size {job.sequences}",
        f"--training.seq_len {job.seq}",
    ]
    # activation-checkpoint is a subcommand: what stands after it would be its own
    return (*lines, *_titan_compiled(job), f"activation-checkpoint:{recompute}")


def _titan_compiled(job: Job) -> list[str]:
    """The loss, and what is compiled. torchtitan's models make the loss in chunks of the sequence, with the head in it;
    one chunk has all logits. Compiled, cross-entropy is one kernel that reads them in 16 bits (components/loss.py)."""
    loss, compiled = job.recipe.loss, job.program.name == "compiled"
    parts = ["model"] * compiled + ["loss"] * (loss == "fused" or (compiled and loss == "chunked"))
    lines = [f"--loss.num_chunks {_titan_chunks(job) if loss == 'chunked' else 1}"]
    lines += ["--compile.enable"] * bool(parts)
    lines += [f"--compile.components {part}" for part in parts if len(parts) == 1]
    asynchronous = compiled and job.layout.tp > 1 and job.program.tensor_overlap == "chunked"
    return lines + ["--compile.enable_async_tensor_parallel"] * asynchronous


def _titan_chunks(job: Job) -> int:
    """As many equal chunks of a rank's sequence as have no more tokens than a chunk that was priced."""
    tokens = job.seq // job.layout.cp
    most = loss_chunk(job.tokens, -(-job.shape.vocab // job.layout.tp), job.shape.hidden)
    return min((n for n in checks.divisors(tokens) if job.tokens <= n * most), default=tokens)


def _titan_replicas(layout: Layout) -> list[str]:
    split = layout.zero > 0
    if layout.cp > 1 and not split:
        raise ValueError(f"torchtitan always splits weights over context parallelism: use zero {_zeros(layout)}")
    if split and (layout.zero == 1) != (layout.pp > 1):
        reason = "adds up whole gradients in a pipeline" if layout.pp > 1 else "splits gradients too"
        raise ValueError(f"torchtitan {reason}, so it has no ZeRO {layout.zero} here: use zero {_zeros(layout)}")
    lines = [
        f"--parallelism.data_parallel_replicate_degree {1 if split else layout.dp}",
        f"--parallelism.data_parallel_shard_degree {layout.dp if split else 1}",
    ]
    reshard = "always" if layout.zero == 3 else "never"
    return lines + [f"--parallelism.fsdp_reshard_after_forward {reshard}"] * split


def _zeros(layout: Layout) -> str:
    return "1" if layout.pp > 1 else "2 or 3"


def _titan_stages(job: Job) -> list[str]:
    layout, sizes = job.layout, job.stages
    if layout.pp == 1:
        return []
    schedule = SCHEDULES[layout.schedule]
    looped = schedule.chunks != (1, 1)
    if looped and layout.chunks == 1:
        raise ValueError(f"torchtitan gives each rank at least 2 stages of {schedule.label}: use chunks 2")
    alike = len(set(sizes)) == 1
    if not alike and len(set(_with_ends(sizes))) > 1:
        layers = job.shape.layers
        raise ValueError(
            f"torchtitan shares {layers} layers over {layout.stages} stages otherwise: use as many stages "
            f"as divide {layers} or {layers + 2}"
        )
    ends = 0 if alike else 1
    return [
        f"--parallelism.pipeline_parallel_degree {layout.pp}",
        f"--parallelism.pipeline_parallel_schedule {schedule.torch}",
        f"--parallelism.pipeline_parallel_layers_per_stage {max(sizes)}",
        f"--parallelism.pipeline_parallel_first_stage_less_layers {ends}",
        f"--parallelism.pipeline_parallel_last_stage_less_layers {ends}",
        f"--parallelism.pipeline_parallel_microbatch_size {job.batch}",
        "--training.disable_cuda_graphs",
    ]


# --- of all three ---------------------------------------------------------------------------------------------------


def check(job: Job, no_loss: Mapping[str, str] | None = None) -> None:
    """ValueError, in one line, for what is no job, and for a loss that the framework does not make."""
    checks.instance("job", job, Job)
    if reason := (no_loss or {}).get(job.recipe.loss):
        raise ValueError(f"{reason}: use loss eager")


def _start(job: Job, program: str, environment: str = "") -> list[str]:
    """The lines that start a process for each rank; several nodes meet at the first."""
    nodes, processes = job.cluster.nodes, job.cluster.gpus_per_node
    if nodes == 1:
        return [f"{environment}torchrun --standalone --nproc-per-node {processes}", program]
    meet = "--rdzv-backend c10d --rdzv-endpoint $HEAD:29500"
    return [f"{environment}torchrun --nnodes {nodes} --nproc-per-node {processes}", meet, program]


def _with_ends(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The same with the token table and the head counted as a block each."""
    return (sizes[0] + 1, *sizes[1:-1], sizes[-1] + 1)
