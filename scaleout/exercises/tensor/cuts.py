"""Exercises of `tensor` on cuts: which need no message between, and what may be done to a partial sum."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

WHICH_CUT = Choice(
    key="which-cut",
    level=1,
    minutes=3,
    title="Which cut first",
    prompt="Llama's MLP has three matrices. Two read x, their results are multiplied number by number, and the third "
    "reads the product:\n\n"
    "```\ny = (silu(x @ G) * (x @ U)) @ D\n```\n\n"
    "Every rank has all of x. Which cuts need **no message before the end**, and one all-reduce there?",
    hints=(
        "SiLU and the product look at one column at a time, and need finished numbers.",
        "Rank i has column block i of x @ G. Which part of x @ U does it have to multiply that with?",
        "After the product rank i has column block i of the middle. Which part of D meets those columns?",
    ),
    solution="**G and U by columns, D by rows.** Rank i makes column block i of x @ G and the *same* block of x @ U, "
    "so that it can multiply them, and then meets row block i of D with it. What comes out is a partial sum of y: one "
    "all-reduce.\n\nThe blocks of G and U must be the same. A library that keeps the two in one matrix [G|U] must not "
    "cut it in t blocks: of two ranks, one would have all of G and the other all of U.",
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
            "By rows x @ G is a partial sum on each rank. SiLU of a part is no part of SiLU: it must be added up "
            "first.",
        ),
        Option(
            "mixed",
            "G by columns, U and D by rows",
            "Then a rank has finished columns of x @ G and partial sums of all of x @ U. The second must be added "
            "up before the two can be multiplied.",
        ),
        Option(
            "columns",
            "G, U and D all by columns",
            "Up to D nothing is sent. But by columns D reads all of the middle, and a rank has a block of its "
            "columns: an all-gather before D.",
        ),
        Option(
            "rows",
            "G and D by rows, U by copies",
            "x @ G is then a partial sum, and SiLU needs it finished. And every rank does all of U's work.",
        ),
    ),
)

PARTIAL = Choice(
    key="partial-sum",
    level=1,
    minutes=3,
    title="What a partial sum allows",
    prompt="After a matrix that is cut by rows, each of 4 ranks has a partial sum of y, and the all-reduce has not "
    "been yet. Which of these may every rank do to **its part**, so that the sum of the parts is what the same step "
    "would have made of the sum?",
    hints=(
        "Call the step f. It may come first if f(a + b) = f(a) + f(b).",
        "Adding the same vector c on each of 4 ranks adds 4c.",
    ),
    solution="**Multiply by a mask, if it is the same on all ranks.** (a + b) · m = a · m + b · m, number by number: "
    "what multiplies may come before the sum, such as a scale, a mask, or another matrix. What *adds* may not: the "
    "bias and the residual would be in the sum 4 times. And what is *bent* may not: an activation function, a norm.\n\n"
    "So a row-cut layer adds its bias once, after the all-reduce. That costs nothing, and the other way is the bug "
    "that is most often made here. Under sequence parallelism each rank adds it to its own tokens.",
    options=(
        Option(
            "same-mask",
            "Multiply it by a mask that all ranks share",
            "Right: a product goes through a sum. If each rank drew a mask of its own, it would not.",
            True,
        ),
        Option(
            "bias",
            "Add the bias, which all the ranks have whole",
            "Each rank adds it, and the all-reduce adds the four: the sum has 4 times the bias. Add it afterwards, "
            "once.",
        ),
        Option(
            "residual",
            "Add the residual stream x, whole on all ranks",
            "As with a bias: the sum has 4 times the stream. Add it after the all-reduce.",
        ),
        Option(
            "activation",
            "Apply the GeLU, which is for each number alone",
            "Alone, but not linear: GeLU(a + b) is not GeLU(a) + GeLU(b). It looks at one number at a time: so it "
            "may follow a cut by columns.",
        ),
        Option(
            "own-mask",
            "Drop a tenth of its numbers, drawn on its own",
            "Then one rank's part of a number is dropped and another's is not: the sum is neither kept nor zero. "
            "All ranks need the same random state here.",
        ),
        Option(
            "norm",
            "Normalize each token over its full width of h",
            "A norm divides by the deviation of what it sees, and that is a part's. The sum's is another.",
        ),
    ),
)

EXERCISES = (WHICH_CUT, PARTIAL)
