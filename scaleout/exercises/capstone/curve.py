"""Exercises of `capstone` on a scaling curve: efficiency, beyond the knee, a fit, what strong and weak scaling say."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.fsdp.sizes import NAME, OTHER_NAME, OTHER_PARAMETERS, PARAMETERS, SHAPE, fsdp_sent
from scaleout.spec.devices import GB, device
from scaleout.spec.hardware import COMPUTE_SHARE, link
from scaleout.spec.transformer import flops
from scaleout.timing.scaling import strong_efficiency

_SHARE, _TIME = ("%", "share"), ("s", "ms", "µs")
_DEVICE, _WIRE = device("h100-sxm"), link("ib-ndr").one_way_bytes_per_s
_BATCH, _SEQ = 128, 8192
_TOKENS = _BATCH * _SEQ
_ONCE = flops(SHAPE, _BATCH, _SEQ)
_FLOPS = _ONCE["forward"] + _ONCE["backward"]
_EXPOSED_SECONDS = 0.05  # seconds of a step that nothing hides


def compute(ranks: int) -> float:
    """Seconds that the same batch in total takes each of `ranks` GPUs, by the rule of thumb: half of the peak."""
    return _FLOPS / ranks / (_DEVICE.bf16_flop_per_s * COMPUTE_SHARE)


def communication(ranks: int) -> float:
    """Seconds of the gathers and reduce-scatters, each GPU with one adapter."""
    return fsdp_sent(PARAMETERS, ranks, "bf16", "fp32") / _WIRE


# Seconds per step by GPUs, as a log would print them: the longer of compute and communication, and the rest.
CURVE = {p: round(max(compute(p), communication(p)) + _EXPOSED_SECONDS, 2) for p in (8, 16, 32, 64, 128, 256)}
FIRST, BASE, NEXT = min(CURVE), 64, 128
EFFICIENCY = strong_efficiency(CURVE)
_FASTER = CURVE[BASE] / CURVE[NEXT]
KNEE = max(p for p in CURVE if compute(p) > communication(p))
_SENT_GB = fsdp_sent(PARAMETERS, KNEE, "bf16", "fp32") / GB


def _table() -> str:
    return "\n".join(f"- {p} GPUs: {seconds:.2f} s per step" for p, seconds in CURVE.items())


_JOB = (
    f"{NAME} trains with FSDP on H100 GPUs with one adapter of 400 Gbit/s each. The batch is the same at every size, "
    f"{_BATCH} sequences of {_SEQ:,} tokens in total:\n\n{_table()}\n\n"
)

READ = Number(
    key="curve-efficiency",
    level=1,
    minutes=3,
    title="Read the curve",
    prompt=f"{_JOB}What is the efficiency on **{NEXT}** GPUs, relative to **{BASE}**?",
    hints=(
        "How many times as fast is it, and how many times as fast would be ideal?",
        f"The speed-up is the time on {BASE} GPUs over the time on {NEXT}.",
    ),
    solution=f"Speed-up: {CURVE[BASE]:.2f} / {CURVE[NEXT]:.2f} = {_FASTER:.2f}. Ideal: {NEXT} / {BASE} = "
    f"{NEXT // BASE}. Efficiency: **{_FASTER / 2:.1%}**. Relative to {FIRST} it is {EFFICIENCY[NEXT]:.1%}, and "
    f"relative to a single GPU nobody knows: the curve begins at {FIRST}, where communication is there already. So say "
    f"what it is relative to.\n\nEach GPU sends {_SENT_GB:.0f} GB per step, on {FIRST} a little less: "
    f"{communication(KNEE):.2f} s at 50 GB/s. Its compute takes {compute(KNEE):.2f} s on {KNEE} GPUs and "
    f"{compute(2 * KNEE):.2f} s on {2 * KNEE}: there the curve bends. On {2 * FIRST} the efficiency is "
    f"{EFFICIENCY[2 * FIRST]:.1%} already, for the update and the input, which nothing hides; that is no knee.",
    value=_FASTER * BASE / NEXT,
    unit="%",
    units=_SHARE,
    dimension="share",
    slips=(
        Slip(
            "other-base",
            EFFICIENCY[NEXT],
            f"That is relative to the beginning of the curve. The question is what it is relative to {BASE}.",
        ),
        Slip("speed-up", _FASTER, "That is the speed-up. Compare it with the ideal one."),
        Slip("by-all-gpus", _FASTER / NEXT, f"You divided the speed-up by {NEXT}, as if it were over one GPU."),
        Slip(
            "time-ratio",
            1 / _FASTER,
            f"That is the time on {NEXT} over the time on {BASE}. Ideal would be a half of it: compare with that.",
        ),
        Slip("upside-down", 2 / _FASTER, "That is above 100%: you divided the wrong way round."),
        Slip("lost", 1 - _FASTER / 2, "That is the part that is lost. The efficiency is the rest."),
        Slip("percent", _FASTER / 100, "That is the speed-up with a percent sign. Compare it with the ideal one."),
    ),
    right="Now ask where it was lost.",
)

# A shared batch beyond its knee, in a job that the chapter does not have.
_N, _SHARED, _SUSTAINED, _PER_GPU, _GPUS = OTHER_PARAMETERS, 256 * 4096, 400e12, 25e9, 64
_WORK = 6 * _N * _SHARED / _GPUS / _SUSTAINED
_SENT = 8 * _N / _PER_GPU
_WAITS = 1 - _WORK / _SENT
_BEND = 6 * _SHARED / _SUSTAINED / 8 * _PER_GPU

BEYOND = Number(
    key="beyond-the-knee",
    level=2,
    minutes=4,
    title="Beyond the knee",
    prompt=f"{OTHER_NAME} ({_N / 1e9:.2f} billion parameters) trains with FSDP, gathered in bf16 and reduced in fp32. "
    f"**{_GPUS}** GPUs share a batch of {_SHARED:,} tokens. Each sustains {_SUSTAINED / 1e12:.0f} TFLOP/s on 6 FLOP a "
    f"parameter and token, and sends {_PER_GPU / GB:.0f} GB/s. Messages run beside compute, and their starts are "
    "short; take (W−1)/W for 1. What part of a step does a GPU **wait**?",
    hints=(
        "Seconds of compute: 6N for each of a GPU's tokens. Seconds on the wire: 8N bytes.",
        "The longer of the two is the step. The shorter one runs beside it.",
    ),
    solution=f"Compute: 6 × {_N / 1e9:.2f} × 10^9 × {_SHARED // _GPUS:,} FLOP at {_SUSTAINED / 1e12:.0f} TFLOP/s, "
    f"{_WORK:.2f} s. Wire: 8 × {_N / 1e9:.2f} GB at {_PER_GPU / GB:.0f} GB/s, {_SENT:.2f} s, which is the step. "
    f"It waits for {_SENT - _WORK:.2f} of {_SENT:.2f} s: **{_WAITS:.1%}**. What a GPU computes halves with every "
    "doubling; what it sends does not, as (W−1)/W is nearly 1 all the way. Where the falling line meets the flat one "
    f"is the *knee*, here at {_BEND:.0f} GPUs, and more of them make the step no shorter. N cancels: batch and link "
    "set the knee, so it is a property of the job. No serial part of the program does this, for that would bend the "
    "curve gently from the start; and no shard is too small for a memory.",
    value=_WAITS,
    unit="%",
    units=_SHARE,
    dimension="share",
    slips=(
        Slip("of-the-compute", _SENT / _WORK - 1, "That is of the compute. The step is as long as the wire takes."),
        Slip("computes", 1 - _WAITS, "That is the part in which it computes. The question is the rest."),
        Slip(
            "nothing-hides",
            _SENT / (_SENT + _WORK),
            "You added compute and messages, as if one began when the other ends. They run beside each other.",
        ),
        Slip(
            "all-fp32",
            1 - _WORK / _SENT * 8 / 12,
            "You sent 12 bytes for each parameter, all in fp32. What is gathered is in bf16.",
        ),
        Slip("forward-alone", 1 - _WORK / _SENT / 3, "You counted 2 FLOP: the forward. The backward takes 4 more."),
    ),
    right=f"Beyond {_BEND:.0f} GPUs each one more only adds waiting.",
)

STRONG_OR_WEAK = Choice(
    key="strong-or-weak",
    level=1,
    minutes=2,
    title="98% of what?",
    prompt='A vendor shows **98%** efficiency on 1,024 GPUs: "each GPU with the same batch at every size". You want '
    "to finish **your** training, with your batch, in an eighth of the time. What does the figure tell you?",
    hints=("Which of strong and weak scaling is it?", "What happens to the batch of one GPU in your case?"),
    solution="**Little.** It is *weak* scaling: the work grows with the GPUs, and the compute of each stays long "
    "enough to hide the communication. Your question is *strong* scaling: the same work on more GPUs, an eighth of the "
    'compute on each, the same bytes. Weak scaling answers "how large a batch can I afford", strong scaling "how '
    'soon can I have it".',
    options=(
        Option(
            "weak",
            "Little: it is weak scaling, and your batch stays as it is",
            "Right: ask for the curve with the total batch held fixed.",
            True,
        ),
        Option(
            "eight",
            "Eight times the GPUs will take about an eighth of the time",
            "That would follow from 98% in strong scaling. Here each GPU kept its batch; in your case it keeps an "
            "eighth.",
        ),
        Option(
            "law",
            "It holds for any batch: efficiency is a property of the network",
            "It is a ratio of compute to communication, and the batch of a GPU decides the compute.",
        ),
        Option(
            "lower-bound",
            "It is a lower bound: with less work for each GPU it gets better",
            "Less work for each means less compute to hide the communication behind: it gets worse.",
        ),
    ),
)

TRAP = Choice(
    key="batch-trap",
    level=2,
    title="Twice as fast, no sooner",
    prompt="Weak scaling from 8 to 64 GPUs: 94% efficiency, 7.5 times the tokens per second. The batch grew from 256 "
    "to "
    "2,048 sequences; learning rate and schedule are as before. After the same number of **tokens** the validation "
    "loss is clearly worse than on 8 GPUs. All checks of gradients pass. What is the likely reason?",
    hints=("How many optimizer steps did each run make?", "What did the schedule count?"),
    solution="**An eighth of the steps, each as long as before.** The same tokens in batches 8 times as large are an "
    "eighth of the updates. Averaging more sequences makes the gradient less noisy, not longer, so a step goes about "
    "as far as before. A higher learning rate makes up for it up to a *critical batch size*; beyond it larger batches "
    "buy little. A schedule that counts steps also ends its warm-up 8 times later in tokens. So say the loss beside "
    "the tokens per second: the curve of interest is loss over time.\n\nSources: McCandlish et al., *An Empirical "
    "Model "
    "of Large-Batch Training*, arXiv 1812.06162; Goyal et al., arXiv 1706.02677, for the linear rule and its warm-up.",
    options=(
        Option(
            "fewer-steps",
            "It made an eighth of the updates, at the same learning rate",
            "Right: throughput was bought with fewer steps.",
            True,
        ),
        Option(
            "sum",
            "The gradients are added, not averaged, over the 64 ranks",
            "The checks of gradients pass. And with 8 times too long a gradient the loss would be wild, or, with "
            "AdamW, hardly different.",
        ),
        Option(
            "noise",
            "Larger batches make the gradient noisier, and a step worse",
            "They make it less noisy: it is a mean over more sequences.",
        ),
        Option(
            "efficiency",
            "The 6% of lost efficiency are tokens that it never saw",
            "Lost efficiency is time. Both runs saw the same tokens.",
        ),
        Option(
            "sharding",
            "FSDP over 64 ranks rounds more in its sums than over 8",
            "Reductions over more ranks differ in the last digits of fp32. Nobody sees that in a validation loss.",
        ),
    ),
)

_T4, _T8 = 10.4, 5.6
_A = (_T4 - _T8) / (1 / 4 - 1 / 8)
_B = _T8 - _A / 8
_T32 = _A / 32 + _B

FIT = Number(
    key="amdahl-fit",
    level=2,
    minutes=4,
    title="Two points, one line",
    prompt=f"The same work takes **{_T4} s** a step on 4 ranks and **{_T8} s** on 8. Take t(W) = a/W + b: a part that "
    "is divided, and a part that is not. What does the fit say for **32** ranks?",
    hints=("Two equations: a/4 + b and a/8 + b. Subtract them.", f"a/4 − a/8 = a/8 = {_T4} − {_T8}."),
    solution=f"a/8 = {_T4} − {_T8} = {_T4 - _T8:.1f}, so a = {_A:.1f} s and b = {_T8} − {_A / 8:.1f} = {_B:.1f} s. On "
    f"32 ranks: {_A / 32:.1f} + {_B:.1f} = **{_T32:.1f} s**. No number of ranks goes below b. Two points always fit. A "
    "third one tells you whether the model is right: an exposed communication begins at a knee and is no constant.\n\n"
    "Source: Amdahl, AFIPS 1967, for the part that is not divided.",
    value=_T32,
    unit="s",
    units=_TIME,
    dimension="seconds",
    slips=(
        Slip("linear", _T8 / 4, "That is linear scaling from 8 ranks. The part b is not divided."),
        Slip("linear-from-4", _T4 / 8, "That is linear scaling from 4 ranks. The part b is not divided."),
        Slip(
            "same-ratio",
            _T8 * (_T8 / _T4) ** 2,
            "You applied the last doubling's ratio twice more. Each doubling divides only a; b stays, so the ratio "
            "gets worse.",
        ),
        Slip("b-alone", _B, "That is b, the limit for very many ranks. 32 are not that many."),
        Slip("a-alone", _A / 32, "That is the part that is divided. Every size pays the other one too."),
        Slip("one-doubling", _A / 16 + _B, "That is 16 ranks. The question is 32."),
        Slip("straight", _T8 / 8, "You divided by 8. From 8 to 32 ranks is 4 times, and b is not divided at all."),
    ),
    right="Check such a prediction against a run before you rent 32.",
)

_MFU_AT = 64
_FLOPS_PER_TOKEN = _FLOPS / _TOKENS
_RATE = _TOKENS / CURVE[_MFU_AT]
_MFU = _FLOPS / CURVE[_MFU_AT] / (_MFU_AT * _DEVICE.bf16_flop_per_s)

MFU = Number(
    key="run-mfu",
    level=2,
    minutes=4,
    title="MFU of this run",
    prompt=f"{NAME} on {_MFU_AT} H100s takes {CURVE[_MFU_AT]:.2f} s for {_TOKENS:,} tokens. Forward and backward of "
    f"one token take **{_FLOPS_PER_TOKEN / 1e9:.1f} GFLOP**; every block is computed a second time in the backward, "
    f"which is not in that figure. The H100's dense peak in bf16 is {_DEVICE.bf16_flop_per_s / 1e12:.1f} TFLOP/s; its "
    "datasheet leads with twice that, with sparsity. What is the MFU?",
    hints=(
        f"Tokens per second: {_TOKENS:,} / {CURVE[_MFU_AT]:.2f}.",
        "FLOPs of the *model* a second, over the dense peak of all GPUs together.",
    ),
    solution=f"{_TOKENS:,} / {CURVE[_MFU_AT]:.2f} s = {_RATE:,.0f} tokens/s, times {_FLOPS_PER_TOKEN / 1e9:.1f} GFLOP "
    f"= {_RATE * _FLOPS_PER_TOKEN / 1e15:.1f} PFLOP/s. The peak of {_MFU_AT} GPUs is "
    f"{_MFU_AT * _DEVICE.bf16_flop_per_s / 1e15:.1f}: **{_MFU:.1%}**. Recomputation is no work of the model: counted "
    "in, it gives HFU. A figure without its peak says nothing: with the one of the headline it would be "
    "half.\n\nSource: Chowdhery et al., *PaLM*, arXiv 2204.02311, appendix B.",
    value=_MFU,
    unit="%",
    units=_SHARE,
    dimension="share",
    slips=(
        Slip("sparse-peak", _MFU / 2, "You took the peak with sparsity, and nothing here is sparse."),
        Slip("hfu", _MFU * 4 / 3, "That counts the recomputed forward: HFU. MFU counts what the model needs, once."),
        Slip("forward-only", _MFU / 3, "You counted the forward alone. The backward takes twice as much."),
        Slip("one-gpu", _MFU * _MFU_AT, f"You divided by the peak of one GPU. There are {_MFU_AT}."),
        Slip("forward-backward-twice", _MFU * 3, "You tripled the figure: it has forward and backward in it already."),
        Slip(
            "a-step",
            _MFU * CURVE[_MFU_AT],
            f"You took the tokens of a step for those of a second: a step takes {CURVE[_MFU_AT]:.2f} s.",
        ),
        Slip(
            "each-rate",
            _MFU / _MFU_AT,
            f"You divided by {_MFU_AT} once too often: tokens and peak are both of all GPUs.",
        ),
    ),
    right="State the peak beside it.",
)

EXERCISES = (READ, BEYOND, STRONG_OR_WEAK, TRAP, FIT, MFU)
