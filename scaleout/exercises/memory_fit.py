"""Exercises of rung 01 on what fits: the largest model on a card, adapters, many GPUs, and a whole run."""

from __future__ import annotations

from scaleout.exercises.engine import GIB, Choice, Number, Option, Slip
from scaleout.exercises.memory_sizes import BYTES, per_parameter, states
from scaleout.hardware import DEVICES, GB
from scaleout.transformer import PRESETS, linears, total_parameters

_CARD = DEVICES["h100-sxm"].memory_bytes
_EACH = states("autocast-bf16", "adamw")

LARGEST = Number(
    key="largest-on-80gb", level=2, title="The largest model on one card",
    prompt=f"A card has {_CARD / GB:.0f} GB. You train with AdamW under bf16 autocast: weights, gradients "
    "and both moments are in fp32. Leave out activations. How many parameters fit at most?",
    hints=("Bytes for each parameter: weight 4, gradient 4, two moments of 4.",
           "Memory / bytes for each parameter."),
    solution=f"80 × 10^9 / {_EACH:.0f} = **{_CARD / _EACH / 1e9:.0f} billion**, with nothing left for a "
    "single token.\n\n"
    "Real runs stop before it: autocast's bf16 copies, the activations and the optimizer's "
    "temporaries come on top. With AdamW's moments in 8 bits (10 bytes for each parameter) a 7B "
    "model takes 70 GB, and that is about where training all weights on one card ends.",
    value=_CARD / _EACH, unit="billion", units=("million", "billion"), dimension="parameters", tolerance=0.02,
    slips=(
        Slip("weights-only", _CARD / 2,
             "That fills the card with 16-bit weights: enough to run the model, not to train it."),
        Slip("fp32-weights-only", _CARD / 4,
             "That is 4 bytes for each parameter. Training also holds a gradient and two moments for each."),
        Slip("forgot-optimizer", _CARD / 8,
             "That is 8 bytes for each parameter. There are four numbers of 4 bytes: weight, gradient and "
             "two moments."),
        Slip("three-numbers", _CARD / 12,
             "That is 12 bytes for each parameter: one of the four fp32 numbers (weight, gradient, two "
             "moments) is missing."),
        Slip("extra-copy", _CARD / 18,
             "That is 18 bytes for each parameter. Autocast's bf16 copies are temporary: they live until "
             "backward has used them, so this exercise leaves them out."),
        Slip(GIB, 80 * 2**30 / _EACH, "You took 80 GiB. The card is sold as 80 GB: 80 × 10^9 bytes."),
        Slip("bytes-as-parameters", _CARD, "That is one byte for each parameter."),
    ),
    right="Above that you must split, move or train less: the rest of this book.",
    look="Divide 80 × 10^9 bytes by the bytes of one parameter (weight, gradient, two moments).",
)  # fmt: skip

_LLAMA = PRESETS["llama-2-7b"]
_PARAMS = total_parameters(_LLAMA)
_RANK = 16
# An adapter is two matrices beside each linear layer (a, b): a x r and r x b.
_ADAPTER = _LLAMA.layers * sum(_RANK * (a + b) for a, b in linears(_LLAMA).values())
_FROZEN = _PARAMS * BYTES["bf16"]
_TRAINED = states("fp32", "adamw")
_LORA = _FROZEN + _ADAPTER * _TRAINED

LORA = Number(
    key="lora", level=2, title="What LoRA holds",
    prompt=f"You fine-tune Llama 2 7B ({_PARAMS / 1e9:.2f} billion parameters) with LoRA: its weights are "
    f"frozen in bf16, and adapters of rank {_RANK} beside every linear layer, {_ADAPTER / 1e6:.0f} "
    "million parameters, train in fp32 with AdamW. How large are weights, gradients and optimizer "
    "states, all together?",
    hints=("A frozen weight has no gradient and no optimizer state.",
           f"Frozen: {_PARAMS / 1e9:.2f} billion × 2 bytes. Adapters: {_ADAPTER / 1e6:.0f} million × 16 "
           "bytes."),
    solution=f"{_PARAMS / 1e9:.2f} × 10^9 × 2 + {_ADAPTER / 1e6:.0f} × 10^6 × {_TRAINED:.0f} bytes = "
    f"{_FROZEN / GB:.2f} + {_ADAPTER * _TRAINED / GB:.2f} = **{_LORA / GB:.1f} GB**, against "
    f"{_PARAMS * 16 / GB:.0f} GB for training all weights at 16 bytes each. What is left is "
    "almost all frozen weights. LoRA does not make activations smaller: gradients still flow "
    "through every layer.\n\n"
    "Source: Hu et al., LoRA, arXiv 2106.09685.",
    value=_LORA, unit="GB", units=("MB", "GB", "TB", "GiB"),
    slips=(
        Slip("forgot-frozen", _ADAPTER * _TRAINED,
             "Those are the adapters alone. The frozen weights are not trained, but they are still held: "
             "forward needs them."),
        Slip("full-training", _PARAMS * 16,
             "That trains all weights at 16 bytes each. A frozen weight has no gradient and no optimizer "
             "state: 2 bytes in bf16."),
        Slip("frozen-gradients", _PARAMS * 4 + _ADAPTER * 16,
             "That holds 4 bytes for each frozen weight: either a gradient, which it does not have, or "
             "fp32, and it is in bf16."),
        Slip("forgot-adapters", _FROZEN,
             "Those are the frozen weights alone. The adapters have weights, gradients and moments: 16 "
             "bytes each."),
    ),
    right="Nearly all of it is frozen weights, so that is where QLoRA cuts next.",
    look="Two sums: frozen parameters × 2 bytes, adapter parameters × 16 bytes.", tolerance=0.01,
)  # fmt: skip

# 4 bits and 0.127 for the scales: Dettmers et al., QLoRA, arXiv 2305.14314, section 3.
_NF4_BITS = 4 + 0.127


def _nf4(params: float) -> str:
    return f"{params * _NF4_BITS / 8 / GB:.1f} GB"


QLORA = Choice(
    key="qlora", level=2, title="65 billion parameters on one card",
    prompt="QLoRA fine-tunes a 65B model on one card of 48 GB, and a 33B model on one of 24 GB. What "
    "makes the difference from LoRA, for which the weights alone are 130 GB and 66 GB?",
    hints=("What is most of LoRA's memory?", "65 × 10^9 × 4 bits, divided by 8 bits in a byte."),
    solution=f"**The frozen weights are in 4 bits.** With the scales, {_NF4_BITS} bits for each: "
    f"{_nf4(65e9)} for 65B and {_nf4(33e9)} for 33B. What is left of the card holds adapters, "
    "activations (with checkpointing) and the one layer that is turned back into bf16 while it "
    "is used.\n\n"
    "Source: Dettmers et al., QLoRA, arXiv 2305.14314: section 3 for the bits, the abstract and "
    "section 5 for the cards.",
    options=(
        Option("frozen-4-bit", "The frozen weights are stored in 4 bits",
               f"Right: {_nf4(65e9)} instead of 130 GB, scales included. They are never updated, so that "
               "they are coarse does less harm.", True),
        Option("optimizer-4-bit", "The optimizer's states are stored in 4 bits",
               "Only the adapters have optimizer states, well under 1% of the parameters. Halving them, "
               "or an eighth, saves almost nothing. Look at what is held for every weight."),
        Option("activations-4-bit", "The activations are stored in 4 bits",
               "Activations stay in 16 bits: the 4-bit weights are turned back into bf16 for each "
               "product. QLoRA shrinks the largest item, which is another one."),
        Option("offload", "The weights live in the memory of the host",
               "QLoRA's paged optimizer can move adapter states to the host when memory spikes, but the "
               "weights stay on the card: forward and backward read them all in every step."),
        Option("compute-4-bit", "It computes in 4 bits, so everything shrinks",
               "It stores in 4 bits and computes in bf16. Only what is stored for the whole step saves "
               "memory."),
    ),
)  # fmt: skip

_ZERO, _GPUS = 7.5e9, 64
_PARTS = per_parameter("bf16-master", "adamw")
_SPLIT = _PARTS["master"] + _PARTS["optimizer"]
_WHOLE = _PARTS["weights"] + _PARTS["gradients"]
_STAGE_1 = _ZERO * (_WHOLE + _SPLIT / _GPUS)

ZERO_1 = Number(
    key="zero-1", level=3, title="Split the optimizer over 64 GPUs",
    prompt="The 7.5B model again: AdamW, bf16 weights and gradients, fp32 master copy and moments. Now 64 "
    "GPUs train it with data parallelism and **ZeRO stage 1**, which splits what the optimizer "
    "keeps (master copy and moments) over the GPUs. How much do the states take on **each** GPU?",
    hints=("Stage 1 leaves weights and gradients whole on every GPU: 2 + 2 bytes.",
           "The other 12 bytes of each parameter are divided by 64."),
    solution=f"7.5 × 10^9 × ({_WHOLE:.0f} + {_SPLIT:.0f} / {_GPUS}) bytes = **{_STAGE_1 / GB:.1f} GB**, "
    "from 120 GB. What is not split is the floor: with any number of GPUs it stays above 30 "
    "GB.\n\n"
    "Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, figure 1 and table 1, which say 31.4 GB.",
    value=_STAGE_1, unit="GB", units=("MB", "GB", "TB", "GiB"), tolerance=0.005,
    slips=(
        Slip("divided-all", _ZERO * 16 / _GPUS,
             "You divided all 16 bytes by 64: that is stage 3. Stage 1 leaves weights and gradients whole "
             "on each GPU."),
        Slip("divided-nothing", _ZERO * 16,
             "That is one GPU's share without ZeRO: plain data parallelism copies everything."),
        Slip("total", _STAGE_1 * _GPUS,
             "That is the total of all 64 GPUs. This asks for each one: its own memory is what runs out."),
        Slip("optimizer-part", _ZERO * _SPLIT / _GPUS,
             "That is the split part alone. Weights and gradients are still whole on each GPU: 4 more "
             "bytes for each parameter."),
        Slip("zero-2", _ZERO * (2 + 14 / _GPUS), "You split the gradients too: that is stage 2."),
        Slip("forgot-gradients", _ZERO * (2 + 12 / _GPUS),
             "The gradients are missing. Stage 1 keeps them whole: 2 more bytes for each parameter."),
        Slip("master-whole", _ZERO * (8 + 8 / _GPUS),
             "You split the moments but not the master copy. Stage 1 splits both: they are what the "
             "optimizer keeps."),
        Slip("forgot-split-part", _ZERO * _WHOLE,
             "Those are weights and gradients. Each GPU also keeps its 64th of the other 12 bytes."),
        Slip("moments-only", _ZERO * (4 + 8 / _GPUS),
             "The master copy is missing. Stage 1 splits 12 bytes for each parameter: master copy and two "
             "moments."),
    ),
    right="The floor of 30 GB is what stages 2 and 3 go after.",
    look="Which of the 16 bytes are divided by 64 at stage 1, and which stay whole?",
)  # fmt: skip

EXERCISES = (LARGEST, LORA, QLORA, ZERO_1)
