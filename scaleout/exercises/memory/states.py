"""Exercises of `memory` on what a parameter costs: weights, gradients, master copy and optimizer states."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.exercises.memory.sizes import BYTES, OPTIMIZERS, PRECISIONS, per_parameter, states
from scaleout.spec.devices import GB

_SEVENTY = 70e9
_WEIGHTS = _SEVENTY * BYTES["fp16"]
_ADAMW = states("bf16-master", "adamw")  # bytes per parameter

# The model of ZeRO's figure 1.
_ZERO = 7.5e9

_BITS = Slip(
    "bits",
    16 * _SEVENTY,
    "You multiplied by 16. A 16-bit float has 16 bits, not 16 bytes. (Training does need about 16 bytes for "
    "each parameter, but this one asks for the weights alone.)",
)

WEIGHTS_GB = Number(
    key="weights-70b",
    level=1,
    title="The weights of a 70B model",
    prompt="A model has **70 billion** parameters, stored in fp16. How much memory do the weights alone need?",
    hints=("How many bytes is one fp16 number?", "Bytes = parameters × bytes for each. 1 GB is 10^9 bytes."),
    solution=f"An fp16 number has 16 bits, so 2 bytes. 70 × 10^9 × 2 bytes = **{_WEIGHTS / GB:.0f} "
    "GB**.\n\n"
    "Billions of parameters times bytes for each gives GB at once: 70 × 2 = 140. You will use "
    "this all the time.",
    value=_WEIGHTS,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    slips=(
        _BITS,
        Slip(
            "fp32",
            _SEVENTY * BYTES["fp32"],
            "That is 4 bytes for each parameter: fp32, or a gradient beside each weight. This asks for weights alone, "
            "in fp16.",
        ),
        Slip("one-byte", _SEVENTY, "That counts one byte for each parameter. An fp16 number has 16 bits."),
        Slip(
            "half-a-byte",
            _SEVENTY / 2,
            "That counts half a byte for each parameter: weights in 4 bits, or a division by 2 that should be a "
            "product.",
        ),
    ),
    right="No card that is sold as 80 GB holds it, and training has not begun.",
)

WEIGHTS_GIB = Number(
    key="weights-70b-gib",
    level=1,
    title="The same in GiB",
    prompt="The tools of your driver and of PyTorch often print **GiB**, 2^30 bytes. What are the same "
    f"weights, {_WEIGHTS / GB:.0f} GB, in GiB?",
    hints=("Go back to bytes first, then divide by one GiB.", "2^30 = 1,073,741,824, about 7% more than 10^9."),
    solution=f"140 × 10^9 / 2^30 = **{_WEIGHTS / 2**30:.1f} GiB**.\n\n"
    "The unit is larger, so the count is smaller: by 7% for giga. That is enough to decide "
    "whether a run fits: 80 GB are 74.5 GiB, and a card that is sold as 80 GB reports 79.6 GiB.",
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
            "You divided by 1024 once and by 1000 twice. A GiB has 1024 in each of its steps.",
        ),
        Slip(
            "1024-twice",
            _WEIGHTS / 1024**2 / 1000 * 2**30,
            "You divided by 1024 twice and by 1000 once. A GiB has 1024 in each of its steps.",
        ),
        Slip("fp32", _WEIGHTS * 2, "That is fp32, 4 bytes for each parameter. These weights are in fp16."),
    ),
    right="From here on, always write which of the two you mean.",
)

# DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.3.3.
_LOW = {"weight": BYTES["bf16"], "gradient": BYTES["fp32"], "master": BYTES["fp32"], "moments": 2 * BYTES["bf16"]}
_LOW_EACH = sum(_LOW.values())

BYTES_EACH = Number(
    key="adamw-bytes",
    level=1,
    minutes=2,
    title="Moments in 16 bits",
    prompt="DeepSeek-V3 was trained with AdamW, but both of its moments were kept in bf16. The gradients, and a master "
    "copy of the weights, were in fp32. Take the weights that the layers compute with to be in bf16. How many bytes "
    "does **one parameter** cost?",
    hints=(
        "There are five numbers for each parameter. Write them down with their formats.",
        "bf16 has 2 bytes and fp32 has 4: weight 2, gradient 4, then three that AdamW keeps.",
    ),
    solution=f"Weight 2 + gradient 4 + master copy 4 + two moments of 2 = **{_LOW_EACH} bytes**. Moments in bf16 take "
    "4 bytes off the textbook's 16, and a gradient in fp32 puts 2 back.\n\n"
    "Source: DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.3.3. (Its layers compute in FP8, "
    "from copies that this leaves out.)",
    value=_LOW_EACH,
    unit="bytes/parameter",
    units=("bytes/parameter", "bits/parameter"),
    dimension="bytes/parameter",
    slips=(
        Slip(
            "textbook",
            16,
            "16 bytes have one number in fp32 too many, or are the textbook's recipe: a gradient in 16 bits, and "
            "moments in fp32. Here it is the other way round.",
        ),
        Slip("fp32-moments", 18, "18 bytes have both moments in fp32. Here they are in bf16."),
        Slip(
            "one-too-few",
            12,
            "12 bytes have the gradient in bf16, or leave out one of the numbers in bf16: the weight, or a moment.",
        ),
        Slip(
            "no-fp32-number",
            10,
            "10 bytes are five numbers in bf16, or leave out one of the two in fp32: the gradient, or the master copy.",
        ),
        Slip(
            "optimizer-only",
            8,
            "8 bytes are what AdamW keeps alone, master copy and moments, or the two numbers in fp32 alone. There are "
            "five numbers.",
        ),
        Slip(
            "forgot-optimizer",
            6,
            "6 bytes are the weight and its gradient. What AdamW keeps is missing: a master copy and two moments.",
        ),
        Slip("moments-only", 4, "4 bytes are one number in fp32, or the two moments alone. There are five numbers."),
        Slip(
            "weight-only",
            2,
            "2 bytes, which are 16 bits, are the weight alone. Training holds four more numbers for each parameter.",
        ),
        Slip("all-fp32", 20, "20 bytes are five numbers in fp32. Three of them are in bf16."),
        Slip("bits", 112, "That is right in bits. This asks for bytes."),
    ),
    right="Ask of each number which format it is in, and add up.",
)

EIGHTEEN = Choice(
    key="sixteen-eighteen-twenty",
    level=2,
    title="16, 18 or 20 bytes",
    prompt="For the same model and the same AdamW, one framework's documents say 16 bytes for each "
    "parameter, another's 18, a third's 20. All of them are right. What do they do differently?",
    hints=(
        "Weight, master copy and two moments are the same in all three: 2 + 4 + 4 + 4 = 14.",
        "What is left is 2, 4 or 6 bytes.",
    ),
    solution="The **gradient** differs. 16: one gradient in 16 bits (2). 18: one gradient in fp32 (4), so "
    "that many small gradients add up without rounding. 20: both, a 16-bit one that backward "
    "writes and an fp32 one that it is added to (2 + 4).\n\n"
    "Sources: 16 is ZeRO, arXiv 1910.02054, section 3.1; 18 is Megatron-LM, "
    "`theoretical_memory_usage.py`; 20 is the Ultra-Scale Playbook (Hugging Face, 2025), mixed "
    "precision with fp32 gradients.",
    options=(
        Option(
            "gradient-copies",
            "They keep the gradient in other formats",
            "Right: in 16 bits, in fp32, or in both, 2, 4 or 2 + 4 bytes on top of the same 14. Ask which one a "
            "calculator assumes.",
            True,
        ),
        Option(
            "weight-decay",
            "They keep a state for AdamW's weight decay",
            "Weight decay keeps no state: each step shrinks the weight by a fixed factor. Look for a "
            "number that can be held in 16 bits, in 32, or in both.",
        ),
        Option(
            "moments",
            "They keep one, two or three of the moments",
            "AdamW always has two moments. A third in fp32 would add 4 bytes, not 2: look for a copy "
            "that can be in 16 bits.",
        ),
        Option(
            "scratch",
            "They count the scratch of the update or not",
            "Scratch is there for one moment and then gone. In this chapter's picture it is 4 bytes, or 8: it would "
            "not give 18. Look for a number that can be held in 16 bits, in 32, or in both.",
        ),
        Option(
            "activations",
            "They count a share of the activations",
            "Activations grow with batch and sequence, so they cannot be a fixed number of bytes for each parameter.",
        ),
        Option(
            "gb-gib",
            "They count the bytes in GB or in GiB",
            "A unit cannot do that: GiB against GB is 7%, and 18 against 16 is 12.5%. A count of bytes "
            "for one parameter has no such prefix at all.",
        ),
    ),
)

BASELINE = Number(
    key="states-7b5",
    level=1,
    minutes=2,
    title="The states of a 7.5B model",
    prompt="A model of **7.5 billion** parameters trains with AdamW: bf16 weights and gradients, fp32 master copy and "
    "moments. How much memory do its states need, before any activation?",
    hints=("States are weights, gradients, master copy and optimizer.", "7.5 billion × the bytes of one parameter."),
    solution=f"7.5 × 10^9 × {_ADAMW:.0f} bytes = **{_ZERO * _ADAMW / GB:.0f} GB**, more than the 73.4 "
    "GB that are usable of an H100.\n\n"
    "Source: this is the baseline of figure 1 in Rajbhandari et al., ZeRO, arXiv 1910.02054.",
    value=_ZERO * _ADAMW,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    slips=(
        Slip(
            "forgot-optimizer",
            _ZERO * 4,
            "That is 4 bytes for each parameter: weights and gradients in bf16, or weights alone in fp32. What "
            "AdamW keeps is missing.",
        ),
        Slip(
            "forgot-master",
            _ZERO * 12,
            "That is 12 bytes for each parameter. Either one of the three fp32 numbers is missing, or the bf16 "
            "weights and gradients are.",
        ),
        Slip(
            "forgot-gradients",
            _ZERO * 14,
            "That is 14 bytes for each parameter. One copy in bf16 is missing: the weights and their gradients are "
            "both held.",
        ),
        Slip("weights-only", _ZERO * 2, "That is the weights alone. It is enough to run the model, not to train it."),
        Slip(
            "moments-only",
            _ZERO * 8,
            "That is 8 bytes for each parameter: AdamW's two moments alone, for example. This recipe holds five "
            "numbers, three of them in fp32.",
        ),
        Slip(
            "all-bf16",
            _ZERO * 10,
            "That is 10 bytes for each parameter: all five numbers in bf16, or the weight and two numbers in fp32. "
            "What the optimizer keeps is in fp32, and it is three numbers.",
        ),
        Slip(
            "fp32-gradient", _ZERO * 18, "That is 18 bytes for each parameter, with one of the two bf16 copies in fp32."
        ),
        Slip(
            "twenty",
            _ZERO * 20,
            "That is 20 bytes for each parameter, with a second gradient in fp32, or all five numbers in fp32.",
        ),
    ),
    right="The weights you came for are 15 of them.",
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


def _adamw_always(params: int, optimizer: str, precision: str) -> float:
    return params * states(precision, "adamw")


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


def _fp32_always(params: int, optimizer: str, precision: str) -> float:
    return params * states("fp32", optimizer)


STATES_FUNCTION = Function(
    key="states-function",
    level=2,
    minutes=5,
    title="Write the accounting",
    prompt="Write `states_bytes(params, optimizer, precision)`: the bytes of the weights, gradients, "
    "master copy and optimizer states.\n\n"
    "- `sgd` keeps no state, `momentum` one number for each parameter, `adamw` two.\n"
    "- `fp32`: everything is in fp32 and there is no master copy.\n"
    "- `bf16`: everything is in bf16 and there is no master copy.\n"
    "- `bf16-master`: weights and gradients in bf16; a master copy and the optimizer's numbers in "
    "fp32.",
    hints=(
        "First the bytes of one parameter, kind by kind. Multiply by `params` at the end.",
        "Three questions: bytes of a weight (and its gradient)? Is there a master copy? How many "
        "moments, of what size?",
    ),
    solution="```python\n"
    f"{_STATES_SOLUTION}```\n\n"
    "With `adamw` it gives 16 bytes for each parameter in `fp32` and in `bf16-master`: mixed "
    "precision saves nothing on the states. It saves activations and time.",
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
            "The optimizer's own numbers are missing: one for momentum, two for AdamW.",
        ),
        Mistake("forgot-gradients", _forgetting("gradients"), "The gradients are missing: as large as the weights."),
        Mistake("forgot-master", _forgetting("master"), "With bf16-master there is also an fp32 copy of the weights."),
        Mistake(
            "moments-16-bit",
            _moments_like_weights,
            "With bf16-master the optimizer's numbers are in fp32: 4 bytes, not 2.",
        ),
        Mistake("master-always", _master_always, "You count a master copy everywhere. Only bf16-master has one."),
        Mistake(
            "moments-fp32", _moments_in_fp32, "Your moments are in fp32 under bf16 too. There everything is in bf16."
        ),
        Mistake("one-moment", _one_moment, "You count one moment for AdamW. It has two, momentum has one."),
        Mistake(
            "ignored-precision", _fp32_always, "Your function does not look at precision: it counts everything in fp32."
        ),
        Mistake(
            "ignored-optimizer",
            _adamw_always,
            "Your function does not look at the optimizer: it always counts two moments.",
        ),
        Mistake(
            "all-like-weights",
            _like_weights,
            "Under bf16-master you count everything in 16 bits. The master copy is missing, and what the optimizer "
            "keeps is in fp32.",
        ),
        Mistake(
            "always-sixteen",
            lambda params, optimizer, precision: 16 * params,
            "Your function gives 16 bytes per parameter for every recipe. That is AdamW in fp32, or with an fp32 "
            "master: the others hold less.",
        ),
        Mistake("weights-only", _forgetting("gradients", "master", "optimizer"), "Those are the weights alone."),
    ),
    right="This is all of memory that does not depend on the batch.",
)

EXERCISES = (WEIGHTS_GB, WEIGHTS_GIB, BYTES_EACH, BASELINE, EIGHTEEN, STATES_FUNCTION)
