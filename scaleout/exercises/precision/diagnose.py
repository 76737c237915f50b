"""Exercises of `precision` on runs: four broken ones and their logs, and a format for each of four others."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

# No line of a table is longer than 39 characters: so much a phone shows.
LOGS = """\
                    A     B     C     D
loss              NaN  flat  flat  flat
scale, first     2^16  none  none  2^16
scale, last      2^-9  none  none   2^2
skipped           all     0     0    14
largest output    inf    31    28    40
  first in block    9     -     -     -
gradients zero      -   71%  0.1%  0.2%
not changed      100%    6%   93%  100%
largest gradient
  rank 0          NaN  2e-6   0.4   0.8
  rank 1          NaN  2e-6   0.4   NaN
"""

FOUR = Choice(
    key="four-runs",
    level=3,
    minutes=6,
    title="Four runs that do not learn",
    prompt="Each of these four runs on two ranks has one thing wrong. A and D are in fp16 with a loss scaler, B is in "
    "fp16 without one, and C has bf16 weights. Their last steps look like this:\n\n"
    f"```\n{LOGS}```\n\n*Scale* is the loss scale, and the *14* steps that D skipped are its last. *Largest output* is "
    "over all layers, in the forward pass. *Gradients zero* counts gradients that come back to linear layers, and *not "
    "changed* counts weights that a step left unchanged. *Largest gradient* is before averaging. What fixes A, B, C "
    "and D?",
    hints=(
        "Two runs skip steps. Which pass is not finite, the forward or the backward, and on which rank?",
        "The other two skip none. Are their gradients zero, or do gradients arrive and change nothing?",
    ),
    solution="Ask four questions, in this order.\n\n"
    "- **Is the forward pass finite?** Not in A: an output of block 9 exceeds 65,504. The scale multiplies the *loss*, "
    "and the overflow comes before the loss, so halving it 25 times has changed nothing. bf16 can represent the "
    "number.\n"
    "- **Are the gradients of all ranks finite?** Not in D, and only on rank 1. If gradients were too large, those of "
    "rank 0 would be too, more or less, and halving the scale would have helped. NaN stays NaN at any scale. Look at "
    "that machine, and at the data that it was given.\n"
    "- **Are gradients zero?** 71% are in B, because nothing lifts them into the range of fp16. A loss scale does "
    "that, and bf16 does not need it.\n"
    "- **Do updates change the weights?** Not in C: updates are less than half a step of the weights. An fp32 copy or "
    "stochastic rounding helps.\n\n"
    "A loss that is NaN says least of all. In huggingface/transformers' T5, the fault of A was found by looking at the "
    "output of one layer in fp32: the infinity was *caused due to a value of 66246.3906, which is over the maximum "
    "value of 65504 in fp16* (issue 5651).",
    options=(
        Option(
            "d-rank-1",
            "A bf16, B a loss scale, C fp32 copies, D without rank 1",
            "Right: look at the forward pass, then at ranks, zeros and updates.",
            True,
        ),
        Option(
            "lower-scale",
            "A a lower scale, B a loss scale, C fp32 copies, D without rank 1",
            "A's scale has come down to 2^-9, and its forward pass still overflows. The scale acts only after it.",
        ),
        Option(
            "swapped",
            "A bf16, B fp32 copies, C a loss scale, D without rank 1",
            "B's gradients are zero, and no copy of the weights brings them back. C has gradients, and a loss scale "
            "changes nothing in bf16.",
        ),
        Option(
            "lower-d",
            "A a lower scale, B a loss scale, C fp32 copies, D a lower scale",
            "D's scaler has halved its scale 14 times, and A's has done so 25 times. A gradient that is too large "
            "would have come into range by then, and NaN does not.",
        ),
        Option(
            "higher-rate",
            "A a lower scale, B a loss scale, C a larger rate, D without rank 1",
            "A larger rate moves some of C's weights by whole steps of bf16, but it is not the rate that was wanted. "
            "Save what is cut off instead. And A's scale was lowered in every step.",
        ),
        Option(
            "bf16-d",
            "A without rank 1, B a loss scale, C fp32 copies, D bf16",
            "A overflows in the forward pass, on both ranks. D has NaN on one rank, which stays NaN in bf16.",
        ),
    ),
)

RUNS = """\
                   A       B     C    D
GPU             A100    A100    T4 A100
training         yes     yes   yes   no
largest output   310 140,000   900   38
gradients
  largest        0.2     0.7  0.05    -
  smallest     2^-34   2^-20 2^-33    -
errors allowed  1e-2    1e-2  1e-2 1e-3
"""

WHICH_FORMAT = Choice(
    key="which-format",
    level=3,
    minutes=6,
    short=True,
    title="Four runs, and a 16-bit format for each",
    prompt="Four runs will do their matrix multiplications in 16 bits, with fp32 weights and sums. Nobody wants to "
    "tune anything that need not be tuned. A T4 multiplies in fp16 and has no bf16; an A100 has both:\n\n"
    f"```\n{RUNS}```\n\nD is inference. *Largest output* is over all layers, in the forward pass. The *smallest* "
    "gradients are the smallest that should not become zero. *Errors allowed* are relative errors of rounding. Which "
    "format should each run use?",
    hints=(
        "fp16 has 11 significant bits and a range from 2^-24 to 65,504. bf16 has 8, and the range of fp32.",
        "What does a loss scale multiply, and what not?",
        "The relative error of rounding is at most 2^-11 in fp16 and 2^-8 in bf16.",
    ),
    solution="**A** could train in fp16 with a loss scale: times 2^18 its largest gradient is 52,429, and 2^-34 "
    "becomes 2^-16. But that scale has to be found, and found again as gradients change, to gain three bits that "
    "training does not need. bf16 needs no scale. **B** cannot train in fp16 at any scale: its forward pass exceeds "
    "65,504, and the scale acts after the forward pass. **C** has no bf16, and everything fits with a scale of 2^18 or "
    "so: fp16 with a scaler, as before bf16 existed. **D** has no gradients, and its numbers lie well inside the range "
    "of fp16. It allows errors of 1e-3, which is more than 2^-11 = 0.0005 and less than 2^-8 = 0.004: fp16, without a "
    "scale.\n\n"
    "**Why bf16 is preferred over fp16 for training:** it is neither more precise (it is less precise) nor smaller "
    "(both have 16 bits), but its range is that of fp32. No activation and no gradient of a sound training run leaves "
    "that range, so there is no scale to find, no step to skip, and no overflow that appears after weeks. In return it "
    "gives up three bits of each number, which training tolerates if sums and weights are in fp32. *bf16 has an almost "
    "the same dynamic range as fp32, so no scaling is needed* (huggingface/accelerate, pull request 1036). And whoever "
    "takes a model that was trained in bf16, as T5 was (google-research/text-to-text-transfer-transformer, issue 539), "
    "and runs it in fp16 is in B's position without knowing it.",
    options=(
        Option(
            "scaled-c-fp16-d",
            "A bf16, B bf16, C fp16 with a scale, D fp16",
            "Right: bf16 where range is needed, fp16 where digits are, and a scale where there is no bf16.",
            True,
        ),
        Option(
            "all-scaled",
            "A fp16 with a scale, B fp16 with a scale, C the same, D fp16",
            "B's forward pass exceeds 65,504 before any scale is applied. And A would search for one without need.",
        ),
        Option(
            "bf16-everywhere",
            "A bf16, B bf16, C bf16, D bf16, and no scale",
            "A T4 has no bf16. And D's errors would be up to 2^-8, four times as large as allowed.",
        ),
        Option(
            "c-without",
            "A bf16, B bf16, C fp16 without a scale, D bf16",
            "C's gradients reach down to 2^-33, and without a scale fp16 makes them zero below 2^-25. And what is the "
            "error of rounding D's numbers to bf16?",
        ),
        Option(
            "d-bf16",
            "A bf16, B bf16, C fp16 with a scale, D bf16",
            "The error of rounding to bf16 is up to 2^-8 = 0.4%. D allows 0.1%, and does not need the range.",
        ),
        Option(
            "a-fp16",
            "A fp16 with a scale, B bf16, C fp16 with a scale, D bf16",
            "A fits into fp16 with the right scale. It fits into bf16 with none, and nothing can overflow later. And "
            "what is the error of rounding D's numbers to bf16?",
        ),
    ),
)

EXERCISES = (FOUR, WHICH_FORMAT)
