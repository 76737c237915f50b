"""The exercise of `mesh` on gradients: along which axes they are summed."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

AXES = Choice(
    key="which-axes",
    level=2,
    minutes=5,
    title="Which gradients are summed along which axes",
    prompt="A mesh of 2 × 2 × 2 uses sequence parallelism along tp. After the last backward, three weights have "
    "gradients on each rank:\n\n"
    "- **Q**: a block's query matrix, cut by columns along tp\n"
    "- **norm**: the block's RMSNorm weight; each tp rank has all of it, and applies it to its half of the tokens\n"
    "- **table**: the token embedding, cut by vocabulary along tp; as it is tied to the head, it is on the first and "
    "the last stage\n\n"
    "Along which axes must each gradient be **reduced**?",
    hints=(
        "Which ranks have a copy of the same weights, and computed with *different* tokens, or at another place?",
        "The tp ranks' norm gradients each come from half of the tokens. Tied embeddings are used twice.",
    ),
    solution="**Q along dp; norm along dp and tp; table along dp and pp.** The rule: reduce over the ranks that have "
    "copies of the *same* parameter and whose gradients are *parts* of its whole gradient.\n\n"
    "- Q: tp ranks have different columns, and pp ranks different blocks. Only replicas have copies.\n"
    "- norm: with sequence parallelism the copies of the tp ranks saw different tokens, so each has a part of the "
    "sum. (Without it every tp rank saw all tokens, and their gradients are equal. A sum would double them.)\n"
    "- table: the first stage looks tokens up in it, and the last stage multiplies by it. It is one parameter with two "
    "gradients on two ranks, which takes an all-reduce of those two.\n\nWith context parallelism each copy saw a part "
    "of the tokens: reduce along dp **and** cp.\n\n"
    "A forgotten sum raises no error. Without the norms' sum, the copies drift apart. GPT-NeoX's first version of "
    "sequence parallelism lacked it, and *loss falls slower, and ends up flatlining around ~8* (EleutherAI/"
    "gpt-neox, pull request 1257), though not only for that reason: with the sum it ended at 7.5 (pull request 1259). "
    "Megatron-LM forgot the last norm: its gradients *are different on different TP ranks before "
    "optimizer.step()* (issue 1446).",
    options=(
        Option(
            "table-pp",
            "Q: dp · norm: dp, tp · table: dp, pp",
            "Right: reduce over the copies whose gradients are parts of one.",
            True,
        ),
        Option(
            "dp-alone",
            "Q: dp · norm: dp · table: dp",
            "Then a norm's copies along tp drift apart, each with "
            "the gradient of its own tokens, and so do the two tables.",
        ),
        Option(
            "no-tied",
            "Q: dp · norm: dp, tp · table: dp",
            "Tied means one parameter. After one step the tables of the first and the last stage would differ.",
        ),
        Option(
            "q-tp",
            "Q: dp, tp · norm: dp · table: dp, pp",
            "Along tp each rank has other columns of Q, so their gradients belong to different weights. And which "
            "tokens has a rank's norm seen?",
        ),
        Option(
            "no-norm",
            "Q: dp · norm: dp · table: dp, pp",
            "Without sequence parallelism that is right. With it, a rank's norm has seen only half of the tokens.",
        ),
        Option(
            "table-tp",
            "Q: dp · norm: dp · table: dp, tp",
            "The table is cut along tp, with other rows on each rank. The copies are on the two stages. And which "
            "tokens has a rank's norm seen?",
        ),
    ),
)

EXERCISES = (AXES,)
