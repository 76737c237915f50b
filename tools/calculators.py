"""What public calculators say of the memory of a training run: their formulas, as they stand in their sources.

Each takes the run and returns the bytes of one GPU, or None where it has no answer: for adapters, for several GPUs, or
for blocks that are recomputed. Where it has a choice, it is asked with the one that is nearest to the run. A formula is
followed where a person's eye would not: what it leaves out or counts twice is part of what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaleout.spec.transformer import Shape, total_parameters

MIB = 2**20
GB = 10**9


@dataclass(frozen=True)
class Asked:
    """What a calculator can be told. batch: sequences of seq tokens of a micro-batch of one GPU. method: "full", "lora"
    or "qlora". mixed: fp32 weights beside 16-bit ones. sharded: the states are divided by gpus (ZeRO's stage 3).
    eight_bit: the moments. rank: of the adapter."""

    shape: Shape
    seq: int
    batch: int
    gpus: int
    method: str
    checkpointing: bool
    mixed: bool
    sharded: bool
    eight_bit: bool = False

    @property
    def states_over(self) -> int:
        """GPUs that share one copy of the states."""
        return self.gpus if self.sharded else 1


def accelerate(asked: Asked) -> float | None:
    """`accelerate estimate-memory`, its column "Training using Adam": for 16 bits the largest of fp32 weights, their
    gradients in 32 and 16 bits, and two fp32 moments; for 32 bits the sum of weights, gradients and moments.
    huggingface/accelerate, src/accelerate/commands/estimate.py, estimate_training_usage, commit 00e4d264. It says "for
    a batch size of 1" and knows one GPU: divided here where the states are."""
    if asked.method != "full":
        return None
    return (16 if asked.mixed else 8) * total_parameters(asked.shape) / asked.states_over


def deepspeed(asked: Asked) -> float | None:
    """DeepSpeed's estimate_zero3_model_states_mem_needs: 18 bytes for each parameter, divided, and 4 for each of the
    largest layer, which is the embedding (deepspeed/runtime/zero/stage3.py). Model states alone, by its own name; of
    runs whose states are divided."""
    if asked.method != "full" or asked.states_over == 1:
        return None
    return 18 * total_parameters(asked.shape) / asked.states_over + 4 * asked.shape.vocab * asked.shape.hidden


def transformer_math(asked: Asked) -> float | None:
    """EleutherAI's Transformer Math 101 (https://blog.eleuther.ai/transformer-math/): 2 bytes of weights, 2 of
    gradients and 12 of Adam (6 in 8 bits) for each parameter, divided by ZeRO's stage 3; activations of Korthikanti et
    al., arXiv 2205.05198: 34 s b h for each block without the scores of attention ("selective recomputation", which
    stands for a fused kernel here), 2 s b h where it is recomputed."""
    if asked.method != "full":
        return None
    states = (16 if not asked.eight_bit else 10) * total_parameters(asked.shape) / asked.states_over
    width = 2.0 if asked.checkpointing else 34.0
    return states + width * asked.seq * asked.batch * asked.shape.hidden * asked.shape.layers


def cookbook(asked: Asked) -> float | None:
    """EleutherAI's cookbook, calc/calc_transformer_mem.py, commit 069ae2ef, with the model's sizes, three matrices of a
    gated MLP, its share of key-value heads, and ZeRO's stage 3 or none: 2 bytes of weights, 2 or 4 of gradients, 12 of
    the optimizer; its own count of parameters; DeepSpeed's buffers; activations by table 2 of arXiv 1910.02054, without
    scores (--checkpoint-activations)."""
    if asked.method != "full":
        return None
    shape, over = asked.shape, asked.states_over
    hidden, layers = shape.hidden, shape.layers
    parameters = 2 * shape.vocab * hidden + hidden * asked.seq + 8 * hidden * layers + 2 * hidden
    parameters += int(2 * (1 + shape.kv / shape.heads) * layers * hidden**2)
    parameters += (3 if shape.gated_mlp else 2) * layers * hidden * shape.h_ff
    buffers = (5e8 + 1e9) * 2 if asked.sharded and asked.gpus > 1 else 0
    states = (18 if asked.mixed else 16) * parameters / over
    return states + buffers + 34 * asked.seq * asked.batch * hidden * layers


def vram_calculator(asked: Asked) -> float | None:
    """https://vram.asmirnov.xyz (furiousteabag/vram-calculator, app/_lib/index.ts, commit b3675695), Adam, mixed
    precision, FSDP where the states are divided: 6 + 4 + 8 bytes for each parameter, activations of dropout and naive
    attention, two fp32 copies of the logits of all sequences on the first GPU, 1,000 MiB of CUDA's kernels. It divides
    activations by FSDP's GPUs: its batch is that of all of them. It knows no recomputation."""
    if asked.method != "full" or asked.checkpointing:
        return None
    shape = asked.shape
    head = shape.hidden / shape.heads
    block = 2 * shape.hidden + 2 * head * (2 * shape.heads + 2 * shape.kv) + 5 * shape.heads * asked.seq + shape.hidden
    block += 2 * shape.hidden + 4 * shape.h_ff + shape.hidden + 4 * shape.hidden
    tokens = asked.batch * asked.seq
    logits = 2 * 4 * tokens * asked.states_over * shape.vocab
    return 18 * total_parameters(shape) / asked.states_over + block * tokens * shape.layers + logits + 1000 * MIB


def gpu_poor(asked: Asked) -> float | None:
    """https://rahulschand.github.io/gpu_poor (RahulSChand/gpu_poor, src/App.js, commit 05d18ab8): one GPU, Adam, full,
    LoRA or QLoRA. Its count of parameters has no key-value heads; 15% of the activations where blocks are recomputed;
    650 MB of overhead."""
    if asked.gpus > 1:
        return None
    shape, seq, hidden, layers, inner = asked.shape, asked.seq, asked.shape.hidden, asked.shape.layers, asked.shape.h_ff
    parameters = shape.vocab * hidden * 2 + layers * (4 * hidden**2 + 3 * inner * hidden)
    attention = seq * hidden * 8 * 2 + seq**2 * shape.heads * (2 + 4 + 2)
    mlp = 2 * hidden * seq * 2 + 6 * inner * seq * 2
    activations = (attention + mlp + seq * 8 + seq * hidden * 12) * layers * asked.batch
    activations *= 0.15 if asked.checkpointing else 1.0
    if asked.method == "full":
        weights, training = 2.0 * parameters, 6.0 * parameters
    elif asked.method == "lora":
        weights, training = 2.0 * parameters, layers * 8 * hidden * 2 * 4 * 3 * 2.0
    else:
        weights = parameters * (2 / 4 - 2 / 64 + 0.06 * 2)
        extra = 0.75 * (15 * hidden + 6 * inner) * layers * 50 * max(1.0, seq / 50) ** 0.5
        training = layers * 8 * hidden * 0.5 * 4 * 3 + extra * asked.batch
    return weights + training + activations + 650 * MIB


# LLaMA-Factory's README, "Hardware Requirement": GB by billions of parameters, for full (16 bits beside 32, 16 bits
# alone), LoRA and QLoRA in 4 bits; and of x billions.
LLAMA_FACTORY = {
    7: (120, 60, 16, 6),
    14: (240, 120, 32, 12),
    30: (600, 300, 64, 24),
    70: (1200, 600, 160, 48),
}
LLAMA_FACTORY_X = (18.0, 8.0, 2.0, 0.5)


def llama_factory(asked: Asked) -> float | None:
    """The table of LLaMA-Factory's README: the column of 7, 14, 30 or 70 billion where the model is within a fifth of
    it, else that of x billion. It has no batch and no length; divided where the states are."""
    line = {"full": 0 if asked.mixed else 1, "lora": 2, "qlora": 3}[asked.method]
    billions = total_parameters(asked.shape) / 1e9
    near = min(LLAMA_FACTORY, key=lambda column: abs(billions / column - 1))
    listed = abs(billions / near - 1) <= 0.2
    answer = LLAMA_FACTORY[near][line] if listed else LLAMA_FACTORY_X[line] * billions
    return answer * GB / asked.states_over


# By the name in a table.
CALCULATORS: dict[str, Callable[[Asked], float | None]] = {
    "accelerate estimate-memory": accelerate,
    "DeepSpeed's ZeRO-3 estimator": deepspeed,
    "Transformer Math 101": transformer_math,
    "EleutherAI's cookbook": cookbook,
    "vram.asmirnov.xyz": vram_calculator,
    "gpu_poor": gpu_poor,
    "LLaMA-Factory's table": llama_factory,
}
