"""Exercises of `memory` on what fits: the largest model on a card, adapters, many GPUs, and a whole run."""

from __future__ import annotations

from scaleout.exercises.engine.kinds import GIB, Choice, Number, Option, Slip
from scaleout.exercises.memory.sizes import BYTES, per_parameter, states
from scaleout.memory.accounts import Recipe, account
from scaleout.memory.allocator import usable
from scaleout.spec.devices import DEVICES, GB, MIB
from scaleout.spec.transformer import PRESETS, linears, total_parameters

_CARD = DEVICES["h200"].memory_bytes
_STATES = states("autocast-bf16", "adamw")

LARGEST = Number(
    key="largest-on-141gb",
    level=2,
    title="The largest model on one card",
    prompt=f"`nvidia-smi` says **{_CARD // MIB:,} MiB** of a card that is sold as 141 GB. You train with AdamW under "
    "bf16 autocast: weights, gradients and both moments are in fp32. Leave out activations, and all that the driver "
    "and the allocator take. How many parameters fit at most?",
    hints=(
        "Bytes for each parameter: weight 4, gradient 4, two moments of 4.",
        "Memory in bytes / bytes for each parameter. A MiB is 2^20 bytes.",
    ),
    solution=f"{_CARD // MIB:,} × 2^20 = {_CARD / GB:.1f} × 10^9 bytes; / {_STATES:.0f} = "
    f"**{_CARD / _STATES / 1e9:.2f} billion**, with nothing left for a single token.\n\n"
    f"Real runs stop before it: {usable(_CARD) / GB:.1f} GB of this card are usable, "
    f"{usable(_CARD) / _STATES / 1e9:.1f} billion. Autocast's bf16 copies, the activations and the optimizer's "
    "temporaries come on top. With AdamW's moments in 8 bits (10 bytes for each parameter) a 13B "
    "model takes 130 GB, and that is about where training all weights on this card ends.",
    value=_CARD / _STATES,
    unit="billion",
    units=("million", "billion"),
    dimension="parameters",
    tolerance=0.01,
    slips=(
        Slip(
            "weights-only",
            _CARD / 2,
            "That fills the card with 16-bit weights: enough to run the model, not to train it.",
        ),
        Slip(
            "fp32-weights-only",
            _CARD / 4,
            "That is 4 bytes for each parameter: the fp32 weight alone, or weight and gradient in 16 bits. Training "
            "holds more.",
        ),
        Slip(
            "forgot-optimizer",
            _CARD / 8,
            "That is 8 bytes for each parameter: two of the four fp32 numbers, or all of them in 16 bits.",
        ),
        Slip(
            "three-numbers",
            _CARD / 12,
            "That is 12 bytes for each parameter: one of the four fp32 numbers (weight, gradient, two "
            "moments) is missing, or two of them are in 16 bits.",
        ),
        Slip(
            "extra-copy",
            _CARD / 18,
            "That is 18 bytes for each parameter, 2 more than are held. If they are autocast's bf16 copies: those are "
            "temporary, and live only until backward has used them.",
        ),
        Slip(
            "sales-name",
            141e9 / _STATES,
            "141 × 10^9 bytes, the name of the card, would hold 8.81 billion. Its driver reports "
            f"{_CARD / GB:.1f} × 10^9.",
        ),
        Slip(GIB, _CARD / MIB * 1e6 / _STATES, "You took a MiB for 10^6 bytes. It is 2^20, 4.9% more."),
        Slip("bytes-as-parameters", _CARD, "That is one byte for each parameter: each costs several numbers."),
    ),
    right="Above that you must split, move or train less: the rest of this book.",
)

_LLAMA = PRESETS["llama-2-7b"]
_PARAMS = total_parameters(_LLAMA)
_RANK = 64  # large enough that the adapters are more than a rounding of the frozen weights
_LORA_STATES = account(_LLAMA, 1, 1, Recipe(adapter="lora", adapter_rank=_RANK)).states
_LORA = sum(_LORA_STATES.values())
_ADAPTER = _LORA_STATES["gradients"] / BYTES["fp32"]  # only the adapters have a gradient
_TRAINED = states("fp32", "adamw")
_FROZEN = _PARAMS * BYTES["bf16"]

LORA = Number(
    key="lora",
    level=2,
    title="What LoRA holds",
    prompt=f"You fine-tune Llama 2 7B ({_PARAMS / 1e9:.2f} billion parameters) with LoRA: its weights are "
    f"frozen in bf16, and adapters of rank {_RANK} beside every linear layer, {_ADAPTER / 1e6:.0f} "
    "million parameters, train in fp32 with AdamW. How large are weights, gradients and optimizer "
    "states, all together?",
    hints=(
        "A frozen weight has no gradient and no optimizer state.",
        f"Frozen: {_PARAMS / 1e9:.2f} billion × 2 bytes. Adapters: {_ADAPTER / 1e6:.0f} million × 16 bytes.",
    ),
    solution=f"{_PARAMS / 1e9:.2f} × 10^9 × 2 + {_ADAPTER / 1e6:.0f} × 10^6 × {_TRAINED:.0f} bytes = "
    f"{_FROZEN / GB:.2f} + {_ADAPTER * _TRAINED / GB:.2f} = **{_LORA / GB:.1f} GB**, against "
    f"{_PARAMS * 16 / GB:.0f} GB for training all weights at 16 bytes each. Five sixths of what is left are frozen "
    "weights. LoRA does not make activations smaller: gradients still flow through every layer.\n\n"
    "Source: Hu et al., LoRA, arXiv 2106.09685.",
    value=_LORA,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    slips=(
        Slip(
            "forgot-frozen",
            _ADAPTER * _TRAINED,
            "Those are the adapters alone. The frozen weights are not trained, but they are still held: "
            "forward needs them.",
        ),
        Slip(
            "full-training",
            _PARAMS * 16,
            "That trains all weights at 16 bytes each. A frozen weight has no gradient and no optimizer state.",
        ),
        Slip(
            "all-trained",
            (_PARAMS + _ADAPTER) * 16,
            "That trains the weights and the adapters at 16 bytes each. The weights are frozen: no gradient, and no "
            "optimizer state.",
        ),
        Slip(
            "frozen-gradients",
            _PARAMS * 4 + _ADAPTER * 16,
            "That holds 4 bytes for each frozen weight: either a gradient, which it does not have, or "
            "fp32, and it is in bf16.",
        ),
        Slip(
            "forgot-adapters",
            _FROZEN,
            "Those are the frozen weights alone. The adapters train: they have more than weights.",
        ),
        Slip(
            "adapter-weights-only",
            _FROZEN + _ADAPTER * 4,
            "That gives an adapter's parameter 4 bytes, its weight in fp32. It trains: it has a gradient and two "
            "moments as well.",
        ),
        Slip(
            "adapters-16-bit",
            _FROZEN + _ADAPTER * 2,
            "That gives an adapter's parameter 2 bytes. The adapters are in fp32, and they train.",
        ),
        Slip(
            "adapters-three-numbers",
            _FROZEN + _ADAPTER * 12,
            "That gives an adapter's parameter 12 bytes: one of its four fp32 numbers is missing, or two are in "
            "16 bits.",
        ),
    ),
    right="Five sixths of it are frozen weights, so that is where QLoRA cuts next.",
)


def _nf4_bits() -> float:
    """Bits of one frozen weight under QLoRA: LoRA's 16 less what the matrices of the blocks save."""
    weight_bytes = [account(_LLAMA, 1, 1, Recipe(adapter=adapter)).states["weights"] for adapter in ("lora", "qlora")]
    matrices = _LLAMA.layers * sum(a * b for a, b in linears(_LLAMA).values())
    return 16 - 8 * (weight_bytes[0] - weight_bytes[1]) / matrices


def _nf4(params: float) -> str:
    return f"{params * _nf4_bits() / 8 / GB:.1f} GB"


QLORA = Choice(
    key="qlora",
    level=2,
    title="65 billion parameters on one card",
    prompt="QLoRA fine-tunes a 65B model on one card of 48 GB, and a 33B model on one of 24 GB. What "
    "makes the difference from LoRA, for which the weights alone are 130 GB and 66 GB?",
    hints=("What is most of LoRA's memory?", "65 × 10^9 × 4 bits, divided by 8 bits in a byte."),
    solution=f"**The frozen weights are in 4 bits.** With the scales, {_nf4_bits():.3f} bits for each: "
    f"{_nf4(65e9)} for 65B and {_nf4(33e9)} for 33B. What is left of the card holds adapters, "
    "activations (with checkpointing) and the one layer that is turned back into bf16 while it "
    "is used.\n\n"
    "Source: Dettmers et al., QLoRA, arXiv 2305.14314: section 3 for the bits, the abstract and "
    "section 5 for the cards.",
    options=(
        Option(
            "frozen-4-bit",
            "The frozen weights are stored in 4 bits",
            f"Right: {_nf4(65e9)} instead of 130 GB, scales included. They are never updated, so that "
            "they are coarse does less harm.",
            True,
        ),
        Option(
            "optimizer-4-bit",
            "The optimizer's states are stored in 4 bits",
            "Only the adapters have optimizer states, and they are a percent or two of the parameters. Look at what "
            "is held for every weight.",
        ),
        Option(
            "activations-4-bit",
            "The activations are stored in 4 bits",
            "Activations stay in 16 bits: the 4-bit weights are turned back into bf16 for each "
            "product. QLoRA shrinks the largest item, which is another one.",
        ),
        Option(
            "offload",
            "The weights live in the memory of the host",
            "QLoRA's paged optimizer can move adapter states to the host when memory spikes, but the "
            "weights stay on the card: forward and backward read them all in every step.",
        ),
        Option(
            "compute-4-bit",
            "It computes in 4 bits, so everything shrinks",
            "It stores in 4 bits and computes in bf16. Only what is stored for the whole step saves memory.",
        ),
    ),
)

_ZERO, _GPUS = 7.5e9, 64
_PARTS = per_parameter("bf16-master", "adamw")
_SPLIT = _PARTS["master"] + _PARTS["optimizer"]
_REPLICATED = _PARTS["weights"] + _PARTS["gradients"]
_STAGE_1 = _ZERO * (_REPLICATED + _SPLIT / _GPUS)

ZERO_1 = Number(
    key="zero-1",
    level=3,
    minutes=5,
    title="Split the optimizer over 64 GPUs",
    prompt="The 7.5B model again: AdamW, bf16 weights and gradients, fp32 master copy and moments. Now 64 "
    "GPUs train it with data parallelism and **ZeRO stage 1**, which splits what the optimizer "
    "keeps (master copy and moments) over the GPUs. How much do the states take on **each** GPU?",
    hints=(
        "Stage 1 leaves weights and gradients whole on every GPU: 2 + 2 bytes.",
        "The other 12 bytes of each parameter are divided by 64.",
    ),
    solution=f"7.5 × 10^9 × ({_REPLICATED:.0f} + {_SPLIT:.0f} / {_GPUS}) bytes = **{_STAGE_1 / GB:.1f} GB**, "
    "from 120 GB. What is not split is the floor: with any number of GPUs it stays above 30 "
    "GB.\n\n"
    "Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, figure 1 and table 1, which say 31.4 GB.",
    value=_STAGE_1,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    tolerance=0.014,
    slips=(
        Slip(
            "divided-all",
            _ZERO * 16 / _GPUS,
            "You divided all 16 bytes by 64: that is stage 3. Stage 1 splits only what the optimizer keeps.",
        ),
        Slip(
            "divided-nothing",
            _ZERO * 16,
            "That is one GPU's share without ZeRO: plain data parallelism copies everything.",
        ),
        Slip(
            "total",
            _STAGE_1 * _GPUS,
            "That is the total of all 64 GPUs. This asks for each one: its own memory is what runs out.",
        ),
        Slip(
            "optimizer-part",
            _ZERO * _SPLIT / _GPUS,
            "That is the split part alone. Weights and gradients are still whole on each GPU.",
        ),
        Slip(
            "zero-2",
            _ZERO * (2 + 14 / _GPUS),
            "About half is missing. Either you split the gradients too, which is stage 2, or you left them out.",
        ),
        Slip(
            "other-half",
            _ZERO * (12 + 4 / _GPUS),
            "You split the weights and the gradients. Stage 1 splits the other part, what the optimizer keeps.",
        ),
        Slip(
            "master-whole",
            _ZERO * (8 + 8 / _GPUS),
            "You split the moments but not the master copy. Stage 1 splits both: they are what the optimizer keeps.",
        ),
        Slip(
            "forgot-split-part",
            _ZERO * _REPLICATED,
            "Those are weights and gradients. Each GPU also keeps its 64th of the other 12 bytes.",
        ),
    ),
    right="The floor of 30 GB is what stages 2 and 3 go after.",
)

_XL, _BATCH, _SEQ = PRESETS["gpt2-xl"], 32, 1024
_RUN = account(_XL, _BATCH, _SEQ, Recipe(checkpointing="full"))
_N = total_parameters(_XL)
_CHECKPOINTS = _XL.layers * _BATCH * _SEQ * _XL.hidden * BYTES["fp32"]
_LOGITS = _BATCH * _SEQ * _XL.vocab * BYTES["fp32"]
_BY_HAND = 12 * _N + _CHECKPOINTS + 3 * _LOGITS

WHOLE_RUN = Number(
    key="whole-run",
    level=3,
    title="A whole run",
    prompt=f"GPT-2 XL ({_N / 1e9:.3f} billion parameters, {_XL.layers} layers, hidden size "
    f"{_XL.hidden:,}, vocabulary {_XL.vocab:,}) trains on one GPU: AdamW (the default, foreach), "
    f"bf16 autocast, fused attention, full checkpointing, {_BATCH} sequences of {_SEQ:,} tokens in "
    "one step. Gradients are set to None before each step. What is the **peak** memory?\n\n"
    "Two moments can be the peak:\n\n"
    "- the backward of the cross-entropy, which holds three tensors of the logits' size in fp32;\n"
    "- the optimizer's step, for which foreach AdamW makes one more fp32 number for each "
    "parameter.\n\n"
    "Under autocast the weights, the gradients, both moments of AdamW and each layer's input are "
    "in fp32. Small things (under 2% together) may be left out, and the result rounded to whole GB.",
    hints=(
        "Which states are there at the loss? Backward of the layers has not begun.",
        "At the loss: 12 bytes for each parameter, one input for each layer, three times the logits.",
        "At the optimizer: 16 + 4 bytes for each parameter, and no activations.",
    ),
    solution="**At the loss** there are weights and moments, but no gradients yet:\n\n"
    f"- states: 12 bytes × {_N / 1e9:.3f} × 10^9 = {12 * _N / GB:.1f} GB\n"
    f"- checkpoints: {_XL.layers} × {_BATCH} × {_SEQ:,} × {_XL.hidden:,} × 4 bytes = "
    f"{_CHECKPOINTS / GB:.1f} GB\n"
    f"- logits: 3 × {_BATCH} × {_SEQ:,} × {_XL.vocab:,} × 4 bytes = {3 * _LOGITS / GB:.1f} GB\n\n"
    f"Together {_BY_HAND / GB:.1f} GB; the book's model, which counts the small things too, says "
    f"**{_RUN.peak_bytes / GB:.1f} GB**.\n\n"
    f"**At the optimizer's step**: 20 bytes × {_N / 1e9:.3f} × 10^9 = {20 * _N / GB:.1f} GB. So "
    "the loss is the peak, and the largest item in it is the logits: to fit a larger batch, "
    "compute the loss in pieces.",
    value=_RUN.peak_bytes,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    tolerance=0.025,  # what the prompt lets a reader leave out, and round
    slips=(
        Slip(
            "summed-moments",
            _BY_HAND + 20 * _N,
            "You added the two moments up. The logits are free again when the optimizer steps: a peak is "
            "the largest moment, not the sum.",
        ),
        Slip("optimizer-moment", 20 * _N, "That is the optimizer's step. Compute the loss too, and take the larger."),
        Slip(
            "gradients-at-the-loss",
            _BY_HAND + 4 * _N,
            "Those are 4 bytes too many for each parameter. If they are gradients: they were set to None, and "
            "backward has not reached a layer yet.",
        ),
        Slip("forgot-optimizer", _BY_HAND - 8 * _N, "AdamW's moments are missing. They are there at every moment."),
        Slip(
            "forgot-checkpoints",
            _BY_HAND - _CHECKPOINTS,
            "About 10 GB are missing. They are the layers' inputs, which full checkpointing keeps; or you "
            "took 2 bytes for the logits, which are in fp32.",
        ),
        Slip(
            "checkpoints-16-bit",
            _BY_HAND - _CHECKPOINTS / 2,
            "You took 2 bytes for the layers' inputs. Under autocast the residual stream stays in fp32.",
        ),
        Slip(
            "logits-once",
            _BY_HAND - 2 * _LOGITS,
            "You counted one tensor of the logits' size. The backward of cross-entropy holds three in "
            "fp32: the log-softmax, its gradient, and the logits' gradient.",
        ),
        Slip(
            "forgot-logits",
            _BY_HAND - 3 * _LOGITS,
            "The logits are missing, and they are the largest item at the loss.",
        ),
        Slip(
            "states-only",
            16 * _N,
            "Those are the states alone. What the batch adds is missing: checkpoints and logits.",
        ),
        Slip(
            "no-checkpointing",
            account(_XL, _BATCH, _SEQ).peak_bytes,
            "That is without checkpointing. With it, each layer keeps only its input.",
        ),
    ),
    right="You have just done what most calculators get wrong: you took a maximum, and priced the logits.",
)

EXERCISES = (LARGEST, LORA, QLORA, ZERO_1, WHOLE_RUN)
