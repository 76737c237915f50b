"""Exercises of `budget` on the cluster: who writes, and who holds the model."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import LINKS

H100 = DEVICES["h100-sxm"]
PEAK = H100.matmul_flop_per_s("bf16")
PARAMETERS, BATCH, TOKENS, GPUS = 8e9, 32, 40e6, 8
STEP = 2 * PARAMETERS / H100.memory_bytes_per_s  # seconds to read all weights in bf16 once
WRITING = TOKENS / GPUS / BATCH * STEP
LARGE = 140e9  # bytes of 70 billion parameters in bf16
NVLINK = LINKS["nvlink4"].one_way_bytes_per_s
READ_SHARE = LARGE / 8 / H100.memory_bytes_per_s  # seconds to read the share of one of 8 GPUs
GATHER = LARGE * 15 / 16 / NVLINK  # seconds to receive all shards of the other 15 GPUs
WRITE_SECONDS = Number(
    key="time-to-write",
    level=2,
    minutes=4,
    title="Forty million tokens of its own",
    prompt=f"A model of 8 billion parameters in bf16 writes **40 million tokens** on {GPUS} H100s. Every GPU has the "
    f"whole model and writes {BATCH} sequences at a time: one token for each of them per decoding step. In every step "
    "it reads all weights once, at 3.35 TB/s, and that takes longer than anything else. How many seconds does "
    "the writing take at least?",
    hints=(
        "How many bytes are all weights, and how long does it take to read them?",
        "How many tokens do all GPUs write in one decoding step?",
    ),
    solution=f"16 GB / 3.35 TB/s = {1e3 * STEP:.2f} ms per decoding step, in which {GPUS} × {BATCH} = {GPUS * BATCH} "
    f"tokens are written. 40 × 10^6 / {GPUS * BATCH} × {1e3 * STEP:.2f} ms = **{WRITING:.0f} s**. By its FLOPs alone "
    f"it would take {2 * PARAMETERS * TOKENS / GPUS / PEAK:.0f} s: at {BATCH} sequences the arithmetic "
    "units wait for memory. Larger batches help until the keys and values of all sequences fill the memory. For "
    "comparison: to train on these tokens takes 6 FLOPs per parameter and token, "
    f"{6 * PARAMETERS * TOKENS / GPUS / 0.4 / PEAK:.0f} s at 40% utilization. So the writing "
    "takes longer than the training.",
    value=WRITING,
    unit="s",
    units=("s", "min"),
    dimension="seconds",
    unit_given=True,
    slips=(
        Slip(
            "flops",
            2 * PARAMETERS * TOKENS / GPUS / PEAK,
            "That is the time of the arithmetic at the GPU's peak. Reading the weights takes longer.",
        ),
        Slip("one-gpu", WRITING * GPUS, "That is how long a single GPU takes."),
        Slip(
            "one-sequence",
            WRITING * BATCH,
            "You let a GPU write one sequence at a time. The weights are read once for all.",
        ),
        Slip("byte", WRITING / 2, "You took a byte per parameter. How many does bf16 have?"),
    ),
    right="Writing is bound by memory bandwidth, so more sequences at a time make it cheaper per token.",
)

FSDP_WRITES = Choice(
    key="shards-that-write",
    level=2,
    minutes=4,
    title="Sharded weights, one token at a time",
    prompt="A model of 70 billion parameters (140 GB in bf16) is trained with FSDP on 16 H100s of 80 GB in two nodes. "
    "Between training steps it has to write answers. In FSDP every forward pass gathers all weights, block by block. "
    "One token of every sequence needs one forward pass. What do you do?",
    hints=(
        "How many bytes would each GPU receive for one token of each of its sequences?",
        "Which layout has the weights in place, so that only activations are communicated?",
    ),
    solution="**Copy the weights once into a layout for writing**: tensor parallelism over the 8 GPUs of a node needs "
    f"17.5 GB of weights per GPU, which are read in {1e3 * READ_SHARE:.0f} ms. Its all-reduces carry a few megabytes "
    "of activations per token. With FSDP each GPU would receive 131 GB for every token: even at NVLink's "
    f"{NVLINK / 1e9:.0f} GB/s this takes {GATHER:.1f} s, and half of it comes from the other node. The copy costs as "
    "much as one such gather, once per training step. One GPU alone cannot hold the model, and a smaller model would "
    "write other text.",
    options=(
        Option(
            "copy-to-tp",
            "Copy weights to a tensor-parallel layout, and write there",
            "Right. The weights move once, and then only activations do.",
            True,
        ),
        Option(
            "fsdp",
            "Write with FSDP as it is, since the weights are there",
            "They are there in shards. Every token of the text would gather all 140 GB again.",
        ),
        Option(
            "each-gpu",
            "Give every GPU the whole model, and a share of the text",
            "This needs no communication, but the weights are larger than a GPU's memory.",
        ),
        Option(
            "smaller",
            "Let a smaller model write that fits on every GPU's memory",
            "Then it is not its own text. Distillation from another model is another method.",
        ),
    ),
)

EXERCISES = (WRITE_SECONDS, FSDP_WRITES)
