"""An exercise of `architecture` on utilization: three logs, three mistakes."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

TRUE = 0.38
THREE_LOGS = Choice(
    key="three-logs",
    level=2,
    minutes=4,
    title="One run, three logs",
    prompt=f"A run on two nodes has a model FLOPs utilization of **{TRUE:.0%}**, computed with care. Three versions of "
    "its logging code each make one mistake, and print:\n\n"
    f"```\nA   {2 * TRUE:.0%}\nB   {TRUE / 4:.1%}\nC   {TRUE * 1.18:.0%}\n```\n\n"
    "The mistakes are: the FLOPs of **one** of four micro-batches over the time of the step; the tokens of both "
    "**nodes** over the peak of one; attention counted as if each token attended to all others, without the **causal** "
    "mask. Which log makes which mistake?",
    hints=("By which factor is each log off?", "Which mistakes make the figure too large, and which too small?"),
    solution="**A takes the peak of one node, B one micro-batch, C no causal mask.** A is twice the true value, B a "
    "quarter. C is a little too large: attention is a small part of the FLOPs at this sequence length, and without the "
    "mask that part is twice as large. A factor that is a whole number or its inverse comes from counting devices or "
    "micro-batches. A factor near 1 comes from the formula for FLOPs, and is the dangerous one, because it looks "
    "plausible.",
    options=(
        Option(
            "ncm",
            "A nodes, B one micro-batch, C causal",
            "Right. Factors of 2 and of 1/4, and a few percent from the formula.",
            True,
        ),
        Option(
            "cmn",
            "A causal, B one micro-batch, C nodes",
            "B is right. Can the mask alone double all FLOPs of a step?",
        ),
        Option(
            "cnm",
            "A causal, B nodes, C one micro-batch",
            "The FLOPs of one micro-batch of four make the figure a quarter of what it is.",
        ),
        Option(
            "mcn",
            "A one micro-batch, B causal, C nodes",
            "Too few FLOPs make the figure too small, and A is too large.",
        ),
    ),
)

EXERCISES = (THREE_LOGS,)
