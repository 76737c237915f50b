"""The exercise of `zero` on an optimizer that looks at whole matrices."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

ROWS, RANKS = 4096, 4
MUON = Choice(
    key="muon-rows",
    level=2,
    minutes=5,
    title="A quarter of a matrix for Muon",
    prompt=f"Muon turns the momentum of a matrix, {ROWS:,} × {ROWS:,}, into an update whose singular values are all "
    f"about 1. At stage 1 on **{RANKS}** ranks each owns {ROWS // RANKS:,} rows. Somebody changes AdamW to Muon, and "
    "nothing else: each rank orthogonalizes **its own rows** and updates them, and the weights are gathered. Nothing "
    "errors. Compared with Muon on one GPU, what is the update of the whole matrix?",
    hints=(
        "Singular values of 1 in a wide matrix: its rows are at right angles to each other, all of length 1.",
        "Which rows has a rank compared with which?",
    ),
    solution="**Each block's rows are at right angles, but rows of different blocks are not.** Put together, the "
    "update's singular values lie between 0 and 2 in place of 1, so that directions which the blocks share are "
    "stepped in twice as far. And nothing shows it: every row has length 1, and so the norm of the update is the "
    "same as Muon's own.\n\n"
    "**The whole matrix has to be somewhere.** Either each rank gathers the whole momentum, in bf16 one piece more in "
    "a step, 3 in place of 2. Or each matrix has one owner, to which its gradient is reduced: 2 pieces as before, as "
    "long as whole matrices can be dealt out evenly. What Muon saves is one state, 4 bytes of a parameter's 16, and "
    "stage 1 had divided those by the ranks already.\n\nIn "
    "DeepSpeed each rank had the sum of the gradients for its own part of a matrix only, and orthogonalized the whole "
    "with it: *parameters that span partition boundaries receive incorrect gradient updates* (issue 7807). No error "
    "said so, until pull request 8090 refused the setting.",
    options=(
        Option(
            "blocks",
            "Orthogonal within each block of rows, not across them",
            "Right: a rank has compared its rows with each other alone.",
            True,
        ),
        Option(
            "same",
            "The same: rows are orthogonalized one after another",
            "Each row is turned until it stands at right angles to all others. For that all of them have to be there.",
        ),
        Option(
            "twice",
            "The same, but all of it longer by a factor of two",
            "Each block has rows of length 1, as the whole update has. Put together they have the same norm.",
        ),
        Option(
            "diverge",
            "Different weights on different ranks from then on",
            "Every rank gathers the same weights. They agree, on a wrong update.",
        ),
        Option(
            "adamw",
            "That of plain momentum: nothing is orthogonalized",
            "Rows of one block are at right angles to each other. It is half done, which is harder to see than not "
            "done.",
        ),
        Option(
            "columns",
            "Right for the rows; it only fails if columns are cut",
            "A block of columns would be off as well. The singular values belong to the whole matrix.",
        ),
    ),
)

EXERCISES = (MUON,)
