"""Exercises of `capstone` on a scaling curve: efficiency, beyond the knee, what strong and weak scaling say."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.fsdp.sizes import NAME, OTHER_NAME, OTHER_PARAMETERS, PARAMETERS, SHAPE, fsdp_sent
from scaleout.spec.devices import GB, device
from scaleout.spec.hardware import COMPUTE_SHARE, link
from scaleout.spec.transformer import flops
from scaleout.timing.scaling import strong_efficiency

_SHARE = ("%", "share")
_PEAK, _WIRE = device("h100-sxm").matmul_flop_per_s("bf16"), link("ib-ndr").one_way_bytes_per_s
_BATCH, _SEQ = 128, 8192
_TOKENS = _BATCH * _SEQ
_ONCE = flops(SHAPE, _BATCH, _SEQ)
_FLOPS = _ONCE["forward"] + _ONCE["backward"]
_EXPOSED_SECONDS = 0.05  # per step: the update and the input, which nothing hides


def compute(ranks: int) -> float:
    """Seconds that each of `ranks` GPUs computes for its part of the batch, at half of the peak."""
    return _FLOPS / ranks / (_PEAK * COMPUTE_SHARE)


def communication(ranks: int) -> float:
    """Seconds of the all-gathers and reduce-scatters, each GPU with one NIC."""
    return fsdp_sent(PARAMETERS, ranks, "bf16", "fp32") / _WIRE


# Seconds per step by GPUs, as a log would print them: the longer of compute and communication, and the rest.
CURVE = {p: round(max(compute(p), communication(p)) + _EXPOSED_SECONDS, 2) for p in (8, 16, 32, 64, 128, 256)}
FIRST, BASE, NEXT = min(CURVE), 64, 128
EFFICIENCY = strong_efficiency(CURVE)
_FASTER = CURVE[BASE] / CURVE[NEXT]
KNEE = max(p for p in CURVE if compute(p) > communication(p))
_SENT_GB = fsdp_sent(PARAMETERS, KNEE, "bf16", "fp32") / GB


_TABLE = "\n".join(f"- {p} GPUs: {seconds:.2f} s per step" for p, seconds in CURVE.items())
_JOB = (
    f"{NAME} trains with FSDP on H100s, one GPU per node, with one NIC of 400 Gbit/s. Every step has the same "
    f"batch, {_BATCH} sequences of {_SEQ:,} tokens:\n\n{_TABLE}\n\n"
)

READ = Number(
    key="curve-efficiency",
    level=1,
    minutes=3,
    short=True,
    title="Read the curve",
    prompt=f"{_JOB}What is the efficiency on **{NEXT}** GPUs, relative to **{BASE}**?",
    hints=(
        "How many times as fast is it, and how many times as fast would be ideal?",
        f"The speed-up is the time on {BASE} GPUs divided by the time on {NEXT}.",
    ),
    solution=f"Speed-up: {CURVE[BASE]:.2f} / {CURVE[NEXT]:.2f} = {_FASTER:.2f}. Ideal: {NEXT} / {BASE} = "
    f"{NEXT // BASE}. Efficiency: **{_FASTER / 2:.1%}**. Relative to {FIRST} GPUs it is {EFFICIENCY[NEXT]:.1%}. "
    f"Relative to a single GPU nobody knows, because the curve begins at {FIRST}, where there is communication "
    f"already. So always say which size an efficiency is relative to.\n\nThe curve bends after {KNEE} GPUs. Each GPU "
    f"sends {_SENT_GB:.0f} GB per step at any size (a little less on {FIRST}), which takes {communication(KNEE):.2f} s "
    f"at 50 GB/s, the rate of one NIC, as in nodes of one GPU. (In nodes of eight, a ring uses eight NICs.) A GPU "
    f"computes for {compute(KNEE):.2f} s on {KNEE} GPUs, but for only {compute(2 * KNEE):.2f} s on "
    f"{2 * KNEE}. The efficiency of {EFFICIENCY[2 * FIRST]:.1%} on {2 * FIRST} is no knee: it is the update and the "
    "input, which nothing hides.",
    value=_FASTER * BASE / NEXT,
    unit="%",
    units=_SHARE,
    dimension="share",
    slips=(
        Slip(
            "other-base",
            EFFICIENCY[NEXT],
            f"That is relative to the first size of the curve. The question is relative to {BASE} GPUs.",
        ),
        Slip("speed-up", _FASTER, "That is the speed-up. Compare it with the ideal speed-up."),
        Slip("by-all-gpus", _FASTER / NEXT, f"You divided the speed-up by {NEXT}, as if it were over one GPU."),
        Slip(
            "time-ratio",
            1 / _FASTER,
            f"That is the time on {NEXT} divided by the time on {BASE}. Ideal would be a half: compare with that.",
        ),
        Slip("upside-down", 2 / _FASTER, "That is above 100%: you divided the wrong way round."),
        Slip("lost", 1 - _FASTER / 2, "That is the part that is lost. The efficiency is the rest."),
        Slip("percent", _FASTER / 100, "That is the speed-up with a percent sign. Compare it with the ideal speed-up."),
    ),
    right="Now ask where the rest was lost.",
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
    prompt=f"{OTHER_NAME} ({_N / 1e9:.2f} billion parameters) trains with FSDP: all-gathers in bf16, reduce-scatters "
    f"in fp32. **{_GPUS}** GPUs share a batch of {_SHARED:,} tokens. Each computes 6 FLOP per parameter and token at "
    f"{_SUSTAINED / 1e12:.0f} TFLOP/s, and sends {_PER_GPU / GB:.0f} GB/s. Communication overlaps with computation, "
    "latency is negligible, and (W−1)/W is 1. What part of a step does a GPU **wait**?",
    hints=(
        "Seconds of computation: 6N FLOP for each of a GPU's tokens. Seconds of communication: 8N bytes.",
        "The longer of the two is the step time. The shorter one overlaps with it.",
    ),
    solution=f"Computation: 6 × {_N / 1e9:.2f} × 10^9 × {_SHARED // _GPUS:,} FLOP at {_SUSTAINED / 1e12:.0f} TFLOP/s, "
    f"{_WORK:.2f} s. Communication: 8 × {_N / 1e9:.2f} GB at {_PER_GPU / GB:.0f} GB/s, {_SENT:.2f} s, which is the "
    f"step time. The GPU waits for {_SENT - _WORK:.2f} of {_SENT:.2f} s: **{_WAITS:.1%}**. With every doubling of the "
    "GPUs, the computation of a GPU halves, and its communication stays. The falling line meets the flat one at the "
    f"*knee*, here at {_BEND:.0f} GPUs, and more GPUs do not make the step shorter. N cancels: the batch, the link and "
    "the compute rate decide where the knee is. (A serial part of the program would bend the curve gently from the "
    "start instead.)",
    value=_WAITS,
    unit="%",
    units=_SHARE,
    dimension="share",
    slips=(
        Slip(
            "of-the-compute",
            _SENT / _WORK - 1,
            "That is a share of the compute time. The step is as long as the communication.",
        ),
        Slip("computes", 1 - _WAITS, "That is the part in which it computes. The question is the rest."),
        Slip(
            "nothing-hides",
            _SENT / (_SENT + _WORK),
            "You added computation and communication, as if one began when the other ends. They overlap: one runs "
            "beside the other.",
        ),
        Slip(
            "all-fp32",
            1 - _WORK / _SENT * 8 / 12,
            "You sent 12 bytes per parameter, all in fp32. The all-gathers are in bf16.",
        ),
        Slip("forward-alone", 1 - _WORK / _SENT / 3, "You counted 2 FLOP: the forward. The backward takes 4 more."),
    ),
    right=f"Beyond {_BEND:.0f} GPUs every additional GPU only adds waiting.",
)

STRONG_OR_WEAK = Choice(
    key="strong-or-weak",
    level=1,
    minutes=2,
    short=True,
    title="98% of what?",
    prompt='A vendor shows **98%** efficiency on 1,024 GPUs, "each GPU with the same batch at every size". You want '
    "to finish **your** training, with your batch, in an eighth of the time. What does the figure tell you?",
    hints=("Is it strong or weak scaling?", "What happens to the batch of one GPU in your case?"),
    solution="**Little.** It is *weak* scaling: the work grows with the number of GPUs, and each GPU computes long "
    "enough to hide its communication. You want *strong* scaling: the same work on more GPUs, so each computes an "
    'eighth and sends as many bytes. Weak scaling answers "how large a batch can I afford", strong scaling "how '
    'soon can I have the result".',
    options=(
        Option(
            "weak",
            "Little: it is weak scaling, and your batch stays as it is",
            "Right: ask for the curve with a fixed total batch.",
            True,
        ),
        Option(
            "eight",
            "Eight times the GPUs will take about an eighth of the time",
            "That would follow from 98% in strong scaling. Here each GPU kept its batch. In your case each gets an "
            "eighth of it.",
        ),
        Option(
            "law",
            "It holds for any batch: efficiency is a property of the network",
            "Efficiency depends on the ratio of computation to communication, and the batch per GPU decides how much "
            "a GPU computes.",
        ),
        Option(
            "lower-bound",
            "It is a lower bound: with less work per GPU it gets better",
            "With less work per GPU there is less computation to hide the communication, so it gets worse.",
        ),
    ),
)

TRAP = Choice(
    key="batch-trap",
    level=2,
    title="Twice as fast, no sooner",
    prompt="In weak scaling from 8 to 64 GPUs you measure 94% efficiency. The batch grew from 256 to 2,048 sequences, "
    "at the same learning rate and schedule. After the same number of **tokens** the validation loss is clearly worse, "
    "and all checks of gradients pass. What is the likely reason?",
    hints=("How many optimizer steps did each run make?", "What does the schedule count?"),
    solution="**The run made an eighth of the updates, each as large as before.** Averaging over more sequences makes "
    "the gradient less noisy, not longer, so an update goes about as far as before. A higher learning rate makes up "
    "for this up to a *critical batch size*; beyond it a larger batch gains little. A schedule that counts steps also "
    "ends its warm-up 8 times later in tokens. So report the loss next to the tokens per second: what counts is the "
    "loss over time.\n\nSources: McCandlish et al., *An Empirical Model of Large-Batch Training*, arXiv 1812.06162; "
    "Goyal et al., arXiv 1706.02677, for the linear rule and its warm-up.",
    options=(
        Option(
            "fewer-steps",
            "It made an eighth of the updates, at the same learning rate",
            "Right: the higher throughput was paid for with fewer updates.",
            True,
        ),
        Option(
            "sum",
            "The gradients are added, not averaged, over the 64 ranks",
            "The checks of gradients pass. And a gradient that is 8 times too long would make the loss diverge or, "
            "with AdamW, change hardly anything.",
        ),
        Option(
            "noise",
            "Larger batches make the gradient noisier, and a step worse",
            "They make it less noisy: it is a mean over more sequences.",
        ),
        Option(
            "efficiency",
            "The 6% of lost efficiency are tokens that it never saw",
            "Lost efficiency is lost time. Both runs saw the same number of tokens.",
        ),
        Option(
            "sharding",
            "FSDP over 64 ranks rounds more in its sums than over 8",
            "Reductions over more ranks differ in the last digits of fp32. That does not show in a validation loss.",
        ),
    ),
)

EXERCISES = (READ, BEYOND, STRONG_OR_WEAK, TRAP)
