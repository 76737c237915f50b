"""Exercises of `precision` on runs: four that look ill, told apart by their logs, and the formats that four take."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

# No line of a table is longer than 39 characters: so much a phone shows.
LOGS = """\
                    A     B     C     D
loss              NaN  flat  flat  flat
scale, first     2^16  none  none  2^16
scale, last      2^-9  none  none   2^2
left out          all     0     0    14
largest output    inf    31    28    40
  first in block    9     -     -     -
gradients zero      -   71%  0.1%  0.2%
weights stayed   100%    6%   93%  100%
gradients up to
  rank 0          NaN  2e-6   0.4   0.8
  rank 1          NaN  2e-6   0.4   NaN
"""

FOUR = Choice(
    key="four-runs",
    level=3,
    minutes=6,
    title="Four runs that do not learn",
    prompt="Four runs on two ranks, each with one thing wrong. A and D are in fp16 with a loss scaler; B is in fp16 "
    "and has none; C has bf16 weights. Of the last steps:\n\n"
    f"```\n{LOGS}```\n\n*Scale* is the loss scale, and the *14* steps that D left out are its last. *Largest output* "
    "is of all layers, in the forward. *Gradients zero*: of those that come back to linear layers. *Weights stayed*: "
    "those that a step left as they were. *Gradients up to*: the largest of each rank, before averaging. What mends "
    "A, B, C and D?",
    hints=(
        "Two runs leave out steps. Is it the forward that is not finite, or the backward, and on which rank?",
        "The other two leave out none. Are gradients missing, or do they arrive and change nothing?",
    ),
    solution="Four questions, in this order.\n\n"
    "- **Is the forward finite?** Not in A: an output of block 9 passes 65,504. The scale multiplies the *loss*, and "
    "what overflows comes before it: halving it 25 times has changed nothing. bf16 holds the number.\n"
    "- **Are the gradients of all ranks finite?** Not in D, and only on rank 1. A gradient that is too large would be "
    "so on rank 0 as well, more or less, and would be gone after a halving. NaN stays NaN at any scale: look at that "
    "machine, and at what it was given to read.\n"
    "- **Are they zero?** In B, 71% of them: nothing lifts them into fp16's range. A scale does, or bf16.\n"
    "- **Do they change anything?** Not in C: updates are less than half a step of the weights. An fp32 copy, or "
    "rounding by chance.\n\n"
    "A loss that is NaN says least of all. A was found in huggingface/transformers' T5 by looking at one layer's "
    "output in fp32: the infinity was *caused due to a value of 66246.3906, which is over the maximum value of 65504 "
    "in fp16* (issue 5651).",
    options=(
        Option(
            "d-rank-1",
            "A bf16, B a loss scale, C fp32 copies, D without rank 1",
            "Right: forward, ranks, zeros, updates, in this order.",
            True,
        ),
        Option(
            "lower-scale",
            "A a lower scale, B a loss scale, C fp32 copies, D without rank 1",
            "A's scale has come down to 2^-9, and its forward overflows as before. The scale comes after it.",
        ),
        Option(
            "swapped",
            "A bf16, B fp32 copies, C a loss scale, D without rank 1",
            "B's gradients are zero, and no copy of the weights brings them back. C's are there, and in bf16 a "
            "scale changes nothing.",
        ),
        Option(
            "lower-d",
            "A a lower scale, B a loss scale, C fp32 copies, D a lower scale",
            "D's scaler has halved its scale 14 times, and A's 25 times. What is too large in a gradient would have "
            "come down; NaN does not.",
        ),
        Option(
            "higher-rate",
            "A a lower scale, B a loss scale, C a larger rate, D without rank 1",
            "A larger rate moves some of C's weights, in whole steps of bf16, and is not the rate that was wanted: "
            "keep what is cut off. And A's scale was lowered in every step.",
        ),
        Option(
            "bf16-d",
            "A without rank 1, B a loss scale, C fp32 copies, D bf16",
            "A overflows on both ranks, in the forward. D has NaN on one, which is NaN in bf16 as well.",
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
    title="Four runs, and a 16-bit format for each",
    prompt="Products of four runs are to be made in 16 bits, with fp32 weights and sums. Nobody wants to tune anything "
    "that need not be tuned. A T4 multiplies in fp16 and has no bf16; an A100 has both:\n\n"
    f"```\n{RUNS}```\n\nD is inference. *Largest output* is of all layers, in the forward; the *smallest* gradients "
    "are those that should not become zero. *Errors allowed* are relative, for a number that is rounded. Which format "
    "does each take?",
    hints=(
        "fp16 has 11 significant bits and goes from 2^-24 to 65,504; bf16 has 8, and fp32's range.",
        "What can a loss scale move, and what not?",
        "Half a step, relative: 2^-11 in fp16 and 2^-8 in bf16 at most.",
    ),
    solution="**A** could train in fp16 with a loss scale: times 2^18 its largest gradient is 52,429, and 2^-34 "
    "becomes 2^-16. But that is a window to be searched for and kept, for a gain of three bits that a training does "
    "not need. bf16 has no window. **B** cannot train in fp16 at any scale: its forward passes 65,504, and the scale "
    "comes after the forward. **C** has no bf16, and everything fits with a scale of 2^18 or so: fp16 with a scaler, "
    "as it was done before there was bf16. **D** has no gradients and lies well inside fp16's range; its error of 1e-3 "
    "is more than 2^-11 = 0.0005 and less than 2^-8 = 0.004: fp16, without a scale.\n\n"
    "**Why bf16 is preferred over fp16 for training:** not because it is finer (it is coarser) or smaller (both have "
    "16 bits), but because its range is fp32's. No activation and no gradient of a sound training lies outside of it, "
    "so there is no scale to find, no step left out, no overflow that appears after weeks. What it gives up, three "
    "bits of each number, is covered by sums and weights in fp32. *bf16 has an almost the same dynamic range as fp32, "
    "so no scaling is needed* (huggingface/accelerate, pull request 1036). And those who come from a model trained in "
    "bf16, as T5 was (google-research/text-to-text-transfer-transformer, issue 539), are in B's place without knowing "
    "it.",
    options=(
        Option(
            "scaled-c-fp16-d",
            "A bf16, B bf16, C fp16 with a scale, D fp16",
            "Right: range where numbers spread, digits where they do not, a scale where there is no bf16.",
            True,
        ),
        Option(
            "all-scaled",
            "A fp16 with a scale, B fp16 with a scale, C the same, D fp16",
            "B's forward passes 65,504, before any scale is applied. And A would search for one without need.",
        ),
        Option(
            "bf16-everywhere",
            "A bf16, B bf16, C bf16, D bf16, and no scale",
            "A T4 has no bf16. And D's errors would be up to 2^-8, four times what is allowed.",
        ),
        Option(
            "c-without",
            "A bf16, B bf16, C fp16 without a scale, D bf16",
            "C's gradients reach down to 2^-33, and fp16 without a scale is zero below 2^-25. And by how much does "
            "bf16 round D's numbers?",
        ),
        Option(
            "d-bf16",
            "A bf16, B bf16, C fp16 with a scale, D bf16",
            "bf16 rounds by up to 2^-8 = 0.4%. D allows 0.1%, and has no use for the range.",
        ),
        Option(
            "a-fp16",
            "A fp16 with a scale, B bf16, C fp16 with a scale, D bf16",
            "A fits into fp16 with the right scale. It fits into bf16 with none, and nothing can overflow later. "
            "And by how much does bf16 round D's numbers?",
        ),
    ),
)

EXERCISES = (FOUR, WHICH_FORMAT)
