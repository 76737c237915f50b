"""Exercises of `memory` on the bytes of a parameter: weights, gradients, master copy and optimizer states."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.exercises.memory.sizes import BYTES, OPTIMIZERS, PRECISIONS, per_parameter, states
from scaleout.spec.devices import GB

_SEVENTY = 70e9
_WEIGHTS = _SEVENTY * BYTES["fp16"]

_BITS = Slip(
    "bits",
    16 * _SEVENTY,
    "You multiplied by 16. A 16-bit float has 16 bits, not 16 bytes. (Training does need about 16 bytes per "
    "parameter, but this question is about the weights alone.)",
)

WEIGHTS_GB = Number(
    key="weights-70b",
    level=1,
    title="The weights of a 70B model",
    prompt="A model has **70 billion** parameters, stored in fp16. How much memory do the weights alone need?",
    hints=("How many bytes is one fp16 number?", "Bytes = parameters × bytes per parameter. 1 GB is 10^9 bytes."),
    solution=f"An fp16 number has 16 bits, so 2 bytes. 70 × 10^9 × 2 bytes = **{_WEIGHTS / GB:.0f} "
    "GB**.\n\n"
    "Billions of parameters times bytes per parameter gives GB directly: 70 × 2 = 140. You will use "
    "this all the time.",
    value=_WEIGHTS,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    slips=(
        _BITS,
        Slip(
            "fp32",
            _SEVENTY * BYTES["fp32"],
            "That is 4 bytes per parameter: weights in fp32, or a weight and its gradient in 16 bits. The question is "
            "about weights alone, in fp16.",
        ),
        Slip("one-byte", _SEVENTY, "That is one byte per parameter. An fp16 number has 16 bits."),
        Slip(
            "half-a-byte",
            _SEVENTY / 2,
            "That is half a byte per parameter: weights in 4 bits, or a division by 2 where you should multiply.",
        ),
    ),
    right="That does not fit on any GPU that is sold with 80 GB, and training has not started.",
)

WEIGHTS_GIB = Number(
    key="weights-70b-gib",
    level=1,
    title="The same in GiB",
    prompt=f"PyTorch prints memory in **GiB**, 2^30 bytes. The same weights take {_WEIGHTS / GB:.0f} GB. How many GiB "
    "are "
    "they?",
    hints=(
        "First convert to bytes, then divide by the bytes of one GiB.",
        "2^30 = 1,073,741,824, about 7% more than 10^9.",
    ),
    solution=f"140 × 10^9 / 2^30 = **{_WEIGHTS / 2**30:.1f} GiB**.\n\n"
    "The unit is larger, so the number is smaller, by 7%. That is enough to decide whether a run fits: 80 GB are "
    "74.5 GiB, and an H100, which is sold as 80 GB, reports 79.6 GiB.",
    value=_WEIGHTS,
    unit="GiB",
    unit_given=True,
    units=("GB", "GiB"),
    accepted_units=("GiB",),
    tolerance=0.005,
    slips=(
        Slip(
            "wrong-way",
            _WEIGHTS * 2**30 / GB * 2**30 / GB,
            "You multiplied where you should divide. A GiB is larger than a GB, so fewer of them are needed.",
        ),
        Slip(
            "1024-once",
            _WEIGHTS / 1024 * 1000**-2 * 2**30,
            "You divided by 1024 once and by 1000 twice. Each of the three steps to a GiB is a factor of 1024.",
        ),
        Slip(
            "1024-twice",
            _WEIGHTS / 1024**2 / 1000 * 2**30,
            "You divided by 1024 twice and by 1000 once. Each of the three steps to a GiB is a factor of 1024.",
        ),
        Slip("fp32", _WEIGHTS * 2, "That is fp32, 4 bytes per parameter. These weights are in fp16."),
    ),
    right="From here on, always say which of the two units you mean.",
)

# DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.3.3.
_LOW = {"weight": BYTES["bf16"], "gradient": BYTES["fp32"], "master": BYTES["fp32"], "moments": 2 * BYTES["bf16"]}
_LOW_EACH = sum(_LOW.values())

BYTES_EACH = Number(
    key="adamw-bytes",
    level=1,
    minutes=2,
    short=True,
    title="Moments in 16 bits",
    prompt="DeepSeek-V3 was trained with AdamW, but with both of AdamW's moments (its two running averages) in bf16. "
    "The gradients and a master copy of the weights were in fp32. Assume that the layers compute with weights in bf16. "
    "How many bytes does **one parameter** need?",
    hints=(
        "There are five numbers per parameter. Write them down with their formats.",
        "bf16 has 2 bytes and fp32 has 4: weight 2, gradient 4, and then three numbers that the optimizer needs.",
    ),
    solution=f"Weight 2 + gradient 4 + master copy 4 + two moments of 2 = **{_LOW_EACH} bytes**. Compared "
    "with the textbook's 16, moments in bf16 save 4 bytes and a gradient in fp32 adds 2.\n\n"
    "Source: DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.3.3. (Its layers compute in FP8; "
    "the FP8 copies are not counted here.)",
    value=_LOW_EACH,
    unit="bytes/parameter",
    units=("bytes/parameter", "bits/parameter"),
    dimension="bytes/parameter",
    slips=(
        Slip(
            "textbook",
            16,
            "16 bytes is what you get if another number is in fp32, or with the textbook's recipe, which has the "
            "gradient in 16 bits and the moments in fp32. Here it is the other way round.",
        ),
        Slip("fp32-moments", 18, "18 bytes is what you get with both moments in fp32. Here they are in bf16."),
        Slip(
            "one-too-few",
            12,
            "12 bytes is what you get with the gradient in bf16, or when one of the bf16 numbers is left out: the "
            "weight "
            "or a moment.",
        ),
        Slip(
            "no-fp32-number",
            10,
            "10 bytes is what you get with all five numbers in bf16, or when one of the two fp32 numbers is left out: "
            "the "
            "gradient or the master copy.",
        ),
        Slip(
            "optimizer-only",
            8,
            "8 bytes is the master copy and the two moments, or the two fp32 numbers alone. There are five numbers.",
        ),
        Slip(
            "forgot-optimizer",
            6,
            "6 bytes is the weight and its gradient. What AdamW needs is missing: a master copy and two moments.",
        ),
        Slip("moments-only", 4, "4 bytes is one number in fp32, or the two moments alone. There are five numbers."),
        Slip(
            "weight-only",
            2,
            "2 bytes, or 16 bits, is the weight alone. Training needs four more numbers per parameter.",
        ),
        Slip("all-fp32", 20, "20 bytes is what you get with all five numbers in fp32. Three of them are in bf16."),
        Slip("bits", 112, "That is right in bits. The question asks for bytes."),
    ),
    right="Find out the format of each number, then add the bytes.",
)

EIGHTEEN = Choice(
    key="sixteen-eighteen-twenty",
    level=2,
    title="16, 18 or 20 bytes",
    prompt="For the same model and AdamW with an fp32 master copy, the documentation of one framework says 16 bytes "
    "per parameter, that of another 18, and that of a third 20. All three are right. What do the frameworks do "
    "differently?",
    hints=(
        "The weight, the master copy and the two moments are the same in all three: 2 + 4 + 4 + 4 = 14.",
        "That leaves 2, 4 or 6 bytes for something else.",
    ),
    solution="The **gradient** differs.\n\n"
    "- 16 bytes: one gradient in 16 bits (2 bytes).\n"
    "- 18 bytes: one gradient in fp32 (4 bytes), so that small gradients can be accumulated without rounding.\n"
    "- 20 bytes: both, a 16-bit gradient that the backward pass writes, and an fp32 one to which it is added (2 + "
    "4).\n\n"
    "Sources: 16 is ZeRO, arXiv 1910.02054, section 3.1; 18 is Megatron-LM, "
    "`theoretical_memory_usage.py`; 20 is the Ultra-Scale Playbook (Hugging Face, 2025), mixed "
    "precision with fp32 gradients.",
    options=(
        Option(
            "gradient-copies",
            "They store the gradient in different formats",
            "Right: in 16 bits, in fp32, or in both. That is 2, 4 or 2 + 4 bytes on top of the same 14. When you use a "
            "calculator, find out which of them it assumes.",
            True,
        ),
        Option(
            "weight-decay",
            "They store a state for AdamW's weight decay",
            "Weight decay needs no state: each step shrinks the weight by a fixed factor. Look for a number that can "
            "be stored in 16 bits, in 32 bits, or in both.",
        ),
        Option(
            "moments",
            "They store one, two or three of the moments",
            "AdamW always has two moments. A third one in fp32 would add 4 bytes, not 2. Look for a number that can be "
            "in 16 bits.",
        ),
        Option(
            "scratch",
            "They count the scratch of the update or not",
            "Scratch is freed again after the update. In this chapter's picture it is 4 bytes, or 8, which would not "
            "give 18. Look for a number that can be stored in 16 bits, in 32 bits, or in both.",
        ),
        Option(
            "activations",
            "They count a share of the activations",
            "Activations grow with the batch and the sequence, so they cannot be a fixed number of bytes per "
            "parameter.",
        ),
        Option(
            "gb-gib",
            "They count the bytes in GB or in GiB",
            "A unit cannot explain it: a GiB is 7% more than a GB, and 18 is 12.5% more than 16. And a number of bytes "
            "per parameter has no such prefix.",
        ),
    ),
)

_STATES_STUB = '''\
def states_bytes(params, optimizer, precision):
    """Bytes of weights, gradients, master copy, optimizer states.

    optimizer: "sgd", "momentum" or "adamw"
    precision: "fp32", "bf16" or "bf16-master"
    """
    return ...
'''

_STATES_SOLUTION = """\
def states_bytes(params, optimizer, precision):
    number = 4 if precision == "fp32" else 2
    master = 4 if precision == "bf16-master" else 0
    moment = 2 if precision == "bf16" else 4
    moments = {"sgd": 0, "momentum": 1, "adamw": 2}[optimizer]
    return params * (2 * number + master + moments * moment)
"""


_COUNTS = (1_557_611_201, 1, 124_439_809, 6_738_415_617, 3, 70_553_706_497, 1_000_003)


def _reference(params: int, optimizer: str, precision: str) -> int:
    return round(params * states(precision, optimizer))  # bytes, printed as the reader's own are


def _forgetting(*kinds: str):
    """The function of a reader who forgot these kinds."""
    return lambda params, optimizer, precision: (
        params * sum(size for kind, size in per_parameter(precision, optimizer).items() if kind not in kinds)
    )


def _moments_like_weights(params: int, optimizer: str, precision: str) -> float:
    """Moments in the format of the weights, also where a master copy is kept in fp32."""
    sizes = per_parameter(precision, optimizer)
    return params * (sum(sizes.values()) - sizes["optimizer"] * (0.5 if precision == "bf16-master" else 0))


def _master_always(params: int, optimizer: str, precision: str) -> float:
    return params * (states(precision, optimizer) + (0 if precision == "bf16-master" else 4))


def _moments_in_fp32(params: int, optimizer: str, precision: str) -> float:
    return params * (
        states(precision, optimizer) + (states(precision, optimizer) - states(precision, "sgd")) * (precision == "bf16")
    )


def _like_weights(params: int, optimizer: str, precision: str) -> float:
    """All numbers in the format of the weights, and no master copy."""
    return params * (2 + OPTIMIZERS.index(optimizer)) * BYTES["fp32" if precision == "fp32" else "bf16"]


def _one_moment(params: int, optimizer: str, precision: str) -> float:
    return params * states(precision, "momentum" if optimizer == "adamw" else optimizer)


STATES_FUNCTION = Function(
    key="states-function",
    level=2,
    minutes=5,
    title="Write the accounting",
    prompt="Write `states_bytes(params, optimizer, precision)`. It returns the bytes of the weights, the gradients, "
    "the "
    "master copy and the optimizer state.\n\n"
    "- `sgd` has no state, `momentum` has one number per parameter, and `adamw` has two.\n"
    "- `fp32`: everything is in fp32, and there is no master copy.\n"
    "- `bf16`: everything is in bf16, and there is no master copy.\n"
    "- `bf16-master`: weights and gradients are in bf16; a master copy and the optimizer's numbers are in fp32.",
    hints=(
        "Add the bytes of one parameter first, kind by kind, and multiply by `params` at the end.",
        "Answer three questions: how many bytes has a weight (and its gradient)? Is there a master copy? How many "
        "moments are there, and of what size?",
    ),
    solution="```python\n"
    f"{_STATES_SOLUTION}```\n\n"
    "With `adamw` it gives 16 bytes per parameter both in `fp32` and in `bf16-master`. Mixed precision does not "
    "make the states smaller. It saves time, and memory for activations.",
    function="states_bytes",
    stub=_STATES_STUB,
    reference=_reference,
    # Odd counts, another for each case: what is rounded down or written for one count shows.
    cases=tuple(
        (_COUNTS[place % len(_COUNTS)], optimizer, precision)
        for place, (precision, optimizer) in enumerate(
            [(precision, optimizer) for precision in PRECISIONS for optimizer in OPTIMIZERS] * 2
        )
    ),
    mistakes=(
        Mistake(
            "forgot-optimizer",
            _forgetting("optimizer"),
            "The optimizer's own numbers are missing: one per parameter for momentum, two for AdamW.",
        ),
        Mistake(
            "forgot-gradients", _forgetting("gradients"), "The gradients are missing. They are as large as the weights."
        ),
        Mistake("forgot-master", _forgetting("master"), "With bf16-master there is also an fp32 copy of the weights."),
        Mistake(
            "moments-16-bit",
            _moments_like_weights,
            "With bf16-master the optimizer's numbers are in fp32: 4 bytes, not 2.",
        ),
        Mistake(
            "master-always", _master_always, "You count a master copy for every precision. Only bf16-master has one."
        ),
        Mistake(
            "moments-fp32", _moments_in_fp32, "You count the moments in fp32 for bf16 too. There everything is in bf16."
        ),
        Mistake("one-moment", _one_moment, "You count one moment for AdamW. AdamW has two, and momentum has one."),
        Mistake(
            "ignored-precision",
            lambda params, optimizer, precision: params * states("fp32", optimizer),
            "Your function does not look at precision: it counts everything in fp32.",
        ),
        Mistake(
            "ignored-optimizer",
            lambda params, optimizer, precision: params * states(precision, "adamw"),
            "Your function does not look at the optimizer: it always counts two moments.",
        ),
        Mistake(
            "all-like-weights",
            _like_weights,
            "For bf16-master you count everything in 16 bits. The master copy is missing, and the optimizer's numbers "
            "are in fp32.",
        ),
        Mistake(
            "always-sixteen",
            lambda params, optimizer, precision: 16 * params,
            "Your function gives 16 bytes per parameter for every recipe. That is right for AdamW in fp32 or with an "
            "fp32 master copy. The others need less.",
        ),
        Mistake("weights-only", _forgetting("gradients", "master", "optimizer"), "Those are the weights alone."),
    ),
    right="This is the part of the memory that does not depend on the batch.",
)

EXERCISES = (WEIGHTS_GB, WEIGHTS_GIB, BYTES_EACH, EIGHTEEN, STATES_FUNCTION)
