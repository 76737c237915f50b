"""The program that runs a job: its kernels, the communication it overlaps, and its costs besides arithmetic.

The same model on the same GPUs takes a third longer in one program than in another. What differs is of three kinds:
which kernels compute (fused or one operation at a time, which attention), which communication runs beside compute, and
how long the GPU stands idle because the host has not launched the next kernel. A program has one value of each for all
models and all GPUs; no row of a published table has a constant of its own. The values marked *fitted* are those of
`tools/fit_seconds.py`, which makes all of them at once and judges each series by a fit that left it out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scaleout.spec import checks

# How the communication of tensor parallelism runs: one operation after the other; in the backward beside the matmuls
# that do not need it (Megatron-LM, arXiv 2205.05198, section 4.2.2); cut into chunks that travel beside the chunks of
# the product (Transformer Engine's tp_comm_overlap, torch's asynchronous tensor parallelism).
OVERLAPS = ("none", "backward", "chunked")

# Kernels of fused attention that `timing.rates` has shares for.
ATTENTIONS = ("triton", "flash-2", "cudnn")


# The fields that say what a program costs.
COSTS = ("moves", "kernels", "kernel_seconds", "contention", "action_seconds", "update_passes", "step_seconds",
         "jitter")  # fmt: skip


@dataclass(frozen=True)
class Program:
    """What runs a job.

    label: its name in a sentence. attention: the kernel of fused attention, one of ATTENTIONS. fused: norms, rotary
        positions and activations are one kernel each; else one for each operation. projections: q, k and v are one
        matrix multiplication, and so are gate and up.
    windows: its fused attention leaves out what lies outside a window, and has heads whose values are narrower than
        their keys; else a mask says which scores count, and a slower kernel computes all of them.
    flat: ZeRO's stage 3 is by hand, in flat units, and no `fully_shard`: a machine may have measured either.
    tensor_overlap: one of OVERLAPS. data_overlap: gradient reduction overlaps with the backward. weight_overlap: with
        ZeRO 1 and 2 gathering the new weights overlaps with the next forward.
    moves: bytes that kernels without a matrix multiplication move, relative to reading each input and writing each
        output once. kernels: launches of a block's forward beside its matrix multiplications and attention; a backward
        has twice as many. kernel_seconds: of each kernel beside its arithmetic and bytes: launch, start and end.
    contention: seconds that a second of hidden communication takes from compute, for it uses multiprocessors and memory
        of its own. action_seconds: what a forward or backward of a pipeline's chunk takes beside compute: the host
        posts its sends and receives.
    update_passes: bytes that the optimizer moves, relative to one fused kernel. step_seconds: of a step whatever its
        size: the loader, clipping, logging. jitter: by what share a step is longer each time the nodes double.
    """

    name: str
    label: str
    attention: str = "flash-2"
    fused: bool = True
    projections: bool = False
    flat: bool = False
    tensor_overlap: str = "none"
    data_overlap: bool = True
    weight_overlap: bool = False
    moves: float = 1.0
    windows: bool = True
    kernels: int = 14
    kernel_seconds: float = 13.4e-6
    contention: float = 0.284
    action_seconds: float = 28.7e-6
    update_passes: float = 1.0
    step_seconds: float = 0.0
    jitter: float = 0.005

    def __post_init__(self) -> None:
        for name in ("name", "label"):
            checks.instance(name, getattr(self, name), str)
        checks.one_of("attention", self.attention, ATTENTIONS)
        checks.one_of("tensor_overlap", self.tensor_overlap, OVERLAPS)
        for name in ("fused", "projections", "flat", "data_overlap", "weight_overlap", "windows"):
            checks.flag(name, getattr(self, name))
        for name in COSTS:
            checks.number(name, getattr(self, name), 0)


# `moves`, `update_passes` and `step_seconds` are fitted, and so are the defaults that all programs share: what a
# kernel, an action of a pipeline and hidden communication cost. `kernels` are counted in the programs' sources.
# `jitter` is what NVIDIA's weak-scaling series lose each time their nodes double, beside the communication that is
# priced, the least of 0.48, 0.55 and 0.63% (175B, 15B and 340B: tests/published/step_times_dense.json), rounded.
# Hugging Face has eager torch's constants, and compiled the compiled program's: 61 fine-tuning steps of its plain
# modules on A100, which made none of them, are off by 6% in the median (tests/published/fine_tuning_runs.json). A layer
# of Llama has 30 kernels beside matmuls and attention (transformers 5.24, models/llama/modeling_llama.py): each of two
# RMS norms 8 (cast, square, mean, sum with epsilon, root, product, cast, gain), rotary positions 10 (of queries and of
# keys two products, a negation, a concatenation and a sum), SwiGLU 2, residual sums 2. sdpa takes windows as a mask.
EAGER = Program(
    "eager", "torch, eager", fused=False, windows=False, kernels=32, moves=1.61, update_passes=2.32, step_seconds=0.0117
)
COMPILED = Program("compiled", "torch.compile", moves=1.46, update_passes=3.0, step_seconds=0.02)
PROGRAMS = {
    program.name: program
    for program in (
        EAGER,
        COMPILED,
        Program(
            "composer",
            "Composer of 2023",
            "triton",
            fused=False,
            projections=True,
            kernels=20,
            moves=1.78,
            update_passes=1.57,
            step_seconds=0.0101,
        ),
        replace(EAGER, name="huggingface", label="Hugging Face Transformers, eager", kernels=30),
        replace(COMPILED, name="huggingface-compiled", label="Hugging Face Transformers, compiled", windows=False),
        Program(
            "megatron-2021",
            "Megatron-LM of 2021",
            projections=True,
            tensor_overlap="backward",
            moves=1.16,
            update_passes=2.12,
            step_seconds=0.0102,
        ),
        Program(
            "megatron",
            "Megatron-LM with Transformer Engine",
            "cudnn",
            projections=True,
            tensor_overlap="chunked",
            weight_overlap=True,
            moves=1.0,
            update_passes=1.57,
            step_seconds=0.0106,
        ),
    )
}


# Eager torch on a machine of one's own, whose kernels labs/calibrate.py timed; gloo's threads share the cores with
# compute, so that nothing is hidden. What the host takes for a block's other kernels is measured as one.
MEASURED = replace(
    EAGER,
    name="measured",
    label="torch, on this machine",
    data_overlap=False,
    kernels=0,
    kernel_seconds=0.0,
    contention=0.0,
    action_seconds=0.0,
    step_seconds=0.0,
    jitter=0.0,
)


def program(name: str) -> Program:
    """The program of that name. Raises ValueError that lists the names when there is none."""
    return checks.known("program", name, PROGRAMS)
