"""Exercises of `tensor` on splits: which need no communication between, and what may be done to a partial sum."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

WHICH_CUT = Choice(
    key="which-cut",
    level=1,
    minutes=3,
    short=True,
    title="Splitting Llama's MLP",
    prompt="Llama's MLP has three matrices, and `*` multiplies number by number:\n\n"
    "```\ny = (silu(x @ G) * (x @ U)) @ D\n```\n\n"
    "Every rank has all of x. Which splits need **no communication before the end**, and one all-reduce there?",
    hints=(
        "SiLU and the number-by-number product look at one column at a time, and they need finished numbers.",
        "Rank i has column block i of x @ G. Which part of x @ U does it have to multiply that with?",
        "After the product, rank i has column block i of the middle. Which part of D multiplies those columns?",
    ),
    solution="**G and U by columns, D by rows.** Rank i computes column block i of x @ G and the *same* block of "
    "x @ U. It can multiply the two, and then multiply the result by row block i of D. That gives a partial sum "
    "of y, and one all-reduce completes it.\n\nThe blocks of G and U must be the same. If a library stores both in "
    "one matrix [G|U], that matrix must not be split into t equal blocks: with two ranks, one would have all of G and "
    "the other all of U.",
    options=(
        Option(
            "columns-rows",
            "G and U by columns, D by rows",
            "Right: each rank has the same columns of both, so all numbers that it multiplies are finished.",
            True,
        ),
        Option(
            "rows-columns",
            "G and U by rows, D by columns",
            "With G split by rows, x @ G is a partial sum on each rank. SiLU(a) + SiLU(b) is not "
            "SiLU(a + b), so the parts would have to be added first.",
        ),
        Option(
            "mixed",
            "G by columns, U and D by rows",
            "Then a rank has finished columns of x @ G, but a partial sum of all of x @ U. The partial sums would "
            "have to be added before the two can be multiplied.",
        ),
        Option(
            "columns",
            "G, U and D all by columns",
            "Nothing is communicated up to D. But split by columns, D needs all columns of the middle, and a rank has "
            "one block of them: an all-gather before D.",
        ),
        Option(
            "rows",
            "G and D by rows, U as copies",
            "Then x @ G is a partial sum, and SiLU needs the finished one. Also, every rank does all of U's work.",
        ),
    ),
)

PARTIAL = Choice(
    key="partial-sum",
    level=1,
    minutes=3,
    short=True,
    title="What a partial sum allows",
    prompt="After a row-split matrix, each of 4 ranks has a partial sum of y. Which of these steps can move from "
    "after the all-reduce to before it, applied by every rank to **its partial sum**, without changing the result?",
    hints=(
        "Call the step f. It may come before the sum if f(a + b) = f(a) + f(b).",
        "Adding the same vector c on each of 4 ranks adds 4c.",
    ),
    solution="**Multiply by a mask, if it is the same on all ranks.** (a + b) · m = a · m + b · m, number by number. "
    "Multiplying by a scale, a mask or another matrix may come before the sum. *Adding* may not: the bias or the "
    "residual would be in the sum 4 times. A *nonlinear* function, such as an activation function or a norm, may "
    "not either.\n\n"
    "So a row-split layer adds its bias once, after the all-reduce. Adding it before is a common bug. Under sequence "
    "parallelism each rank adds the bias to its own tokens.",
    options=(
        Option(
            "same-mask",
            "Multiply it by a mask that all ranks share",
            "Right: (a + b) · m = a · m + b · m. If each rank drew a mask of its own, that would not hold.",
            True,
        ),
        Option(
            "bias",
            "Add the bias, of which each rank has a copy",
            "Each of the 4 ranks adds it, so the all-reduce gives 4 times the bias. Add it once, afterwards.",
        ),
        Option(
            "residual",
            "Add the residual stream x, copied to all ranks",
            "As with a bias, the sum would have 4 times the stream. Add it after the all-reduce.",
        ),
        Option(
            "activation",
            "Apply GeLU, which treats each number by itself",
            "GeLU works on each number alone, but it is not linear: GeLU(a + b) is not GeLU(a) + GeLU(b). Working on "
            "one number at a time is why it may follow a split by columns.",
        ),
        Option(
            "own-mask",
            "Drop a tenth of it, at random on each rank",
            "Then one rank drops its part of a number and another rank keeps its part, so the sum is neither kept nor "
            "zero. All ranks need the same random state here.",
        ),
        Option(
            "norm",
            "Normalize each token over its full width of h",
            "A norm divides by the deviation of its input. The deviation of a partial sum is not that of the sum.",
        ),
    ),
)

EXERCISES = (WHICH_CUT, PARTIAL)
