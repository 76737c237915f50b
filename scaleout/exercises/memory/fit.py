"""Exercises of `memory` on what fits: the largest model on one GPU, adapters, many GPUs, and a whole run."""

from __future__ import annotations

from scaleout.exercises.engine.kinds import GIB, Number, Slip
from scaleout.exercises.memory.sizes import BYTES, per_parameter, states
from scaleout.memory.accounts import account
from scaleout.memory.allocator import usable
from scaleout.spec.devices import DEVICES, GB, MIB
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, total_parameters

_CARD = DEVICES["h200"].memory_bytes
_STATES = states("autocast-bf16", "adamw")

LARGEST = Number(
    key="largest-on-141gb",
    level=2,
    title="The largest model on one GPU",
    prompt=f"A GPU is sold as 141 GB, and `nvidia-smi` reports **{_CARD // MIB:,} MiB**. You train with AdamW under "
    "bf16 "
    "autocast: weights, gradients and both moments are in fp32. Ignore activations, and what the driver and the "
    "allocator need. How many parameters fit at most?",
    hints=(
        "Bytes per parameter: weight 4, gradient 4, two moments of 4.",
        "Divide the memory in bytes by the bytes per parameter. A MiB is 2^20 bytes.",
    ),
    solution=f"{_CARD // MIB:,} × 2^20 = {_CARD / GB:.1f} × 10^9 bytes; / {_STATES:.0f} = "
    f"**{_CARD / _STATES / 1e9:.2f} billion**, with nothing left for even one token.\n\n"
    f"Real runs stop earlier. {usable(_CARD) / GB:.1f} GB of this GPU are usable, which is enough for the states of "
    f"{usable(_CARD) / _STATES / 1e9:.1f} billion parameters, and the bf16 copies, the activations and the scratch of "
    "the update need memory too. With AdamW's moments in 8 bits (10 bytes per parameter), a 13B model takes 130 GB. "
    "That is about the limit for training all weights on this GPU.",
    value=_CARD / _STATES,
    unit="billion",
    units=("million", "billion"),
    dimension="parameters",
    tolerance=0.01,
    slips=(
        Slip(
            "weights-only",
            _CARD / 2,
            "That fills the GPU with 16-bit weights, which is enough to run the model and not to train it.",
        ),
        Slip(
            "fp32-weights-only",
            _CARD / 4,
            "That is 4 bytes per parameter: the fp32 weight alone, or weight and gradient in 16 bits. Training needs "
            "more.",
        ),
        Slip(
            "forgot-optimizer",
            _CARD / 8,
            "That is 8 bytes per parameter: two of the four fp32 numbers, or all of them in 16 bits.",
        ),
        Slip(
            "three-numbers",
            _CARD / 12,
            "That is 12 bytes per parameter: one of the four fp32 numbers (weight, gradient, two moments) is missing, "
            "or two of them are in 16 bits.",
        ),
        Slip(
            "extra-copy",
            _CARD / 18,
            "That is 18 bytes per parameter, 2 too many. If you counted autocast's bf16 copies: they are temporary, "
            "and "
            "are freed when the backward pass has used them.",
        ),
        Slip(
            "sales-name",
            141e9 / _STATES,
            "You divided 141 × 10^9 bytes, the size under which the GPU is sold. Its driver reports "
            f"{_CARD / GB:.1f} × 10^9.",
        ),
        Slip(GIB, _CARD / MIB * 1e6 / _STATES, "You took a MiB for 10^6 bytes. It is 2^20, 4.9% more."),
        Slip("bytes-as-parameters", _CARD, "That is one byte per parameter. Each parameter needs several numbers."),
    ),
    right="Above that you have to split, move or train fewer weights, which the rest of this book is about.",
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
    title="The memory of LoRA",
    prompt=f"You fine-tune Llama 2 7B ({_PARAMS / 1e9:.2f} billion parameters) with LoRA. Its weights are frozen, in "
    "bf16. "
    f"Adapters of rank {_RANK} next to every linear layer, {_ADAPTER / 1e6:.0f} million parameters in all, train in "
    "fp32 with AdamW. How much memory do weights, gradients and optimizer state need together?",
    hints=(
        "A frozen weight has no gradient and no optimizer state.",
        f"Frozen: {_PARAMS / 1e9:.2f} billion × 2 bytes. Adapters: {_ADAPTER / 1e6:.0f} million × 16 bytes.",
    ),
    solution=f"{_PARAMS / 1e9:.2f} × 10^9 × 2 + {_ADAPTER / 1e6:.0f} × 10^6 × {_TRAINED:.0f} bytes = "
    f"{_FROZEN / GB:.2f} + {_ADAPTER * _TRAINED / GB:.2f} = **{_LORA / GB:.1f} GB**, against "
    f"{_PARAMS * 16 / GB:.0f} GB for training all weights at 16 bytes per parameter. LoRA does not make the "
    "activations much smaller, because gradients still flow through every layer.\n\n"
    "Five sixths of what is left are frozen weights. QLoRA stores those in 4 bits, and so fine-tunes a 65B model on "
    "one GPU of 48 GB.\n\n"
    "Sources: Hu et al., LoRA, arXiv 2106.09685; Dettmers et al., QLoRA, arXiv 2305.14314.",
    value=_LORA,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    slips=(
        Slip(
            "forgot-frozen",
            _ADAPTER * _TRAINED,
            "Those are the adapters alone. The frozen weights are not trained, but they are still in memory, because "
            "the forward pass needs them.",
        ),
        Slip(
            "full-training",
            _PARAMS * 16,
            "That is for training all weights, at 16 bytes each. A frozen weight has no gradient and no optimizer "
            "state.",
        ),
        Slip(
            "all-trained",
            (_PARAMS + _ADAPTER) * 16,
            "That is for training both the weights and the adapters, at 16 bytes each. The weights are frozen: they "
            "have "
            "no gradient and no optimizer state.",
        ),
        Slip(
            "frozen-gradients",
            _PARAMS * 4 + _ADAPTER * 16,
            "That is 4 bytes per frozen weight. Either you counted a gradient, which it does not have, or you counted "
            "the weight in fp32, and it is in bf16.",
        ),
        Slip(
            "forgot-adapters",
            _FROZEN,
            "Those are the frozen weights alone. The adapters train, so they need more than their weights.",
        ),
        Slip(
            "adapter-weights-only",
            _FROZEN + _ADAPTER * 4,
            "That is 4 bytes per adapter parameter, its weight in fp32. It trains, so it has a gradient and two "
            "moments "
            "as well.",
        ),
        Slip(
            "adapters-16-bit",
            _FROZEN + _ADAPTER * 2,
            "That is 2 bytes per adapter parameter. The adapters are in fp32, and they train.",
        ),
        Slip(
            "adapters-three-numbers",
            _FROZEN + _ADAPTER * 12,
            "That is 12 bytes per adapter parameter: one of its four fp32 numbers is missing, or two are in 16 bits.",
        ),
    ),
    right="Five sixths of it are frozen weights, which QLoRA makes smaller next.",
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
    prompt="A model of **7.5 billion** parameters trains with AdamW: bf16 weights and gradients, fp32 master copy and "
    "moments. 64 GPUs train it with data parallelism and **ZeRO stage 1**, which splits the optimizer state (master "
    "copy and moments) over the GPUs. How much memory do all states need on **each** GPU?",
    hints=(
        "In stage 1 every GPU still has all weights and all gradients: 2 + 2 bytes per parameter.",
        "The other 12 bytes per parameter are divided by 64.",
    ),
    solution=f"7.5 × 10^9 × ({_REPLICATED:.0f} + {_SPLIT:.0f} / {_GPUS}) bytes = **{_STAGE_1 / GB:.1f} GB**, "
    "compared with 120 GB without ZeRO. What is not split sets a lower limit: with any number of GPUs it stays above "
    "30 GB.\n\n"
    "Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, figure 1 and table 1, which say 31.4 GB.",
    value=_STAGE_1,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    tolerance=0.014,
    slips=(
        Slip(
            "divided-all",
            _ZERO * 16 / _GPUS,
            "You divided all 16 bytes by 64, which is stage 3. Stage 1 splits only the optimizer state.",
        ),
        Slip(
            "divided-nothing",
            _ZERO * 16,
            "That is one GPU without ZeRO. Plain data parallelism copies everything.",
        ),
        Slip(
            "total",
            _STAGE_1 * _GPUS,
            "That is the total of all 64 GPUs. The question is about each GPU, because its own memory is what runs "
            "out.",
        ),
        Slip(
            "optimizer-part",
            _ZERO * _SPLIT / _GPUS,
            "That is the split part alone. Each GPU still has all weights and gradients.",
        ),
        Slip(
            "zero-2",
            _ZERO * (2 + 14 / _GPUS),
            "About half is missing. Either you split the gradients too, which is stage 2, or you left them out.",
        ),
        Slip(
            "other-half",
            _ZERO * (12 + 4 / _GPUS),
            "You split the weights and the gradients. Stage 1 splits the other part, the optimizer state.",
        ),
        Slip(
            "master-whole",
            _ZERO * (8 + 8 / _GPUS),
            "You split the moments and not the master copy. Stage 1 splits both, because both are optimizer state.",
        ),
        Slip(
            "forgot-split-part",
            _ZERO * _REPLICATED,
            "Those are weights and gradients. Each GPU also has a 64th of the other 12 bytes.",
        ),
    ),
    right="The 30 GB that remain are what stages 2 and 3 split.",
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
    prompt=f"GPT-2 XL ({_N / 1e9:.3f} billion parameters, {_XL.layers} layers, hidden size {_XL.hidden:,}, vocabulary "
    f"{_XL.vocab:,}) trains on one GPU: AdamW (the default, foreach), bf16 autocast, fused attention, full "
    f"checkpointing, {_BATCH} sequences of {_SEQ:,} tokens per step. Gradients are set to None before each step. What "
    "is the **peak** memory?\n\n"
    "Two moments of the step can be the peak:\n\n"
    "- the backward of the cross-entropy, which needs three fp32 tensors of the logits' size;\n"
    "- the update, for which foreach AdamW allocates one more fp32 number per parameter.\n\n"
    "Under autocast the weights, the gradients, AdamW's two averages and the input of each layer are in fp32. You may "
    "leave out small things (under 2% together) and round to whole GB.",
    hints=(
        "Which states are in memory at the loss? The backward pass of the layers has not begun.",
        "At the loss: 12 bytes per parameter, the input of each layer, and three times the logits.",
        "At the update: 16 + 4 bytes per parameter, and no activations.",
    ),
    solution="**At the loss** there are weights and averages, but no gradients yet:\n\n"
    f"- states: 12 bytes × {_N / 1e9:.3f} × 10^9 = {12 * _N / GB:.1f} GB\n"
    f"- checkpoints: {_XL.layers} × {_BATCH} × {_SEQ:,} × {_XL.hidden:,} × 4 bytes = "
    f"{_CHECKPOINTS / GB:.1f} GB\n"
    f"- logits: 3 × {_BATCH} × {_SEQ:,} × {_XL.vocab:,} × 4 bytes = {3 * _LOGITS / GB:.1f} GB\n\n"
    f"Together that is {_BY_HAND / GB:.1f} GB. The book's account, which counts the small things too, gives "
    f"**{_RUN.peak_bytes / GB:.1f} GB**.\n\n"
    f"**At the update**: 20 bytes × {_N / 1e9:.3f} × 10^9 = {20 * _N / GB:.1f} GB. So the loss is the peak, and its "
    "largest item is the logits. To fit a larger batch, compute the loss in chunks.",
    value=_RUN.peak_bytes,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    tolerance=0.025,  # what the prompt lets a reader leave out, and round
    slips=(
        Slip(
            "summed-moments",
            _BY_HAND + 20 * _N,
            "You added the two moments. The logits have been freed when the optimizer steps: a peak is the largest "
            "moment, not the sum.",
        ),
        Slip(
            "optimizer-moment",
            20 * _N,
            "That is the update. Compute the memory at the loss too, and take the larger one.",
        ),
        Slip(
            "gradients-at-the-loss",
            _BY_HAND + 4 * _N,
            "That is 4 bytes per parameter too much. If you counted gradients: they were set to None, and the backward "
            "pass has not reached a layer yet.",
        ),
        Slip("forgot-optimizer", _BY_HAND - 8 * _N, "AdamW's averages are missing. They are in memory all the time."),
        Slip(
            "forgot-checkpoints",
            _BY_HAND - _CHECKPOINTS,
            "About 10 GB are missing. Either you left out the inputs of the layers, which full checkpointing saves, or "
            "you took 2 bytes for the logits, which are in fp32.",
        ),
        Slip(
            "checkpoints-16-bit",
            _BY_HAND - _CHECKPOINTS / 2,
            "You took 2 bytes for the inputs of the layers. Under autocast the residual stream stays in fp32.",
        ),
        Slip(
            "logits-once",
            _BY_HAND - 2 * _LOGITS,
            "You counted one tensor of the logits' size. The backward of cross-entropy needs three in "
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
            "That is without checkpointing. With full checkpointing, each layer saves only its input.",
        ),
    ),
    right="You did what most calculators get wrong: you took a maximum over moments, and you counted the logits.",
)

EXERCISES = (LARGEST, LORA, ZERO_1, WHOLE_RUN)
