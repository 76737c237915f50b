"""Exercises of `mesh` on gradients: along which axes they are added up, and how one norm is made of all of them."""

from __future__ import annotations

from math import sqrt
from random import Random

from scaleout.exercises.engine import Choice, Function, Mistake, Option

AXES = Choice(
    key="which-axes",
    level=2,
    minutes=5,
    title="Three weights, and who adds up what",
    prompt="A mesh of 2 × 2 × 2, with sequence parallelism along tp. After the last backward each rank has gradients "
    "of what it computed. Three weights:\n\n"
    "- **Q**: a block's query matrix, cut by columns along tp\n"
    "- **norm**: the block's RMSNorm weight, which each tp rank has whole, and applies to its half of the tokens\n"
    "- **table**: the token table, cut by vocabulary along tp, tied to the head: on the first stage and the last\n\n"
    "Along which axes is each one's gradient **added up**?",
    hints=(
        "Which ranks hold a copy of the same numbers, and have computed with *different* tokens, or in another place?",
        "The tp ranks' gradients of a norm each come from half of the tokens. A tied table is used twice.",
    ),
    solution="**Q along dp; norm along dp and tp; table along dp and pp.** The rule: add up over the ranks that hold "
    "copies of the *same* parameter and whose gradients are *parts* of its sum.\n\n"
    "- Q: tp ranks have different columns, and pp ranks different blocks. Only replicas have copies.\n"
    "- norm: under sequence parallelism the tp ranks' copies saw other tokens, so that each has a part. (Without it "
    "all of them saw all tokens, and their gradients agree: adding up would double it.)\n"
    "- table: the first stage looks tokens up, the last multiplies with it. One parameter, two gradients, on two "
    "ranks: an all-reduce of those two.\n\nWith context parallelism each copy has seen a part of the tokens: add up "
    "along dp **and** cp.\n\n"
    "Forgetting one leaves no error. With the norms' sum missing, copies drift apart. In gpt-neox' first version of "
    "sequence parallelism it was missing, and *loss falls slower, and ends up flatlining around ~8* (EleutherAI/"
    "gpt-neox, pull request 1257); not for that alone: with the sum it ended at 7.5 (pull request 1259). In "
    "Megatron-LM the last norm was the one forgotten: its gradients *are different on different TP ranks before "
    "optimizer.step()* (issue 1446).",
    options=(
        Option(
            "table-pp",
            "Q: dp · norm: dp, tp · table: dp, pp",
            "Right: copies, and what each of them has not seen.",
            True,
        ),
        Option(
            "dp-alone",
            "Q: dp · norm: dp · table: dp",
            "Then a norm's copies along tp go different ways, each with "
            "its tokens' gradient, and so do the two tables.",
        ),
        Option(
            "no-tied",
            "Q: dp · norm: dp, tp · table: dp",
            "Tied means one parameter. After one step the first stage's table and the last one's would differ.",
        ),
        Option(
            "q-tp",
            "Q: dp, tp · norm: dp · table: dp, pp",
            "Along tp each rank has other columns of Q: their gradients belong to different weights. And what has a "
            "rank's norm seen of the tokens?",
        ),
        Option(
            "no-norm",
            "Q: dp · norm: dp · table: dp, pp",
            "Without sequence parallelism that is right. With it a rank's norm has seen half of the tokens.",
        ),
        Option(
            "table-tp",
            "Q: dp · norm: dp · table: dp, tp",
            "The table is cut along tp, other rows on each: it is the stages that have copies. And what has a "
            "rank's norm seen of the tokens?",
        ),
    ),
)

_STUB = '''\
def norm(ranks):
    """The norm of all gradients of the model, each counted once.

    ranks: of each, in any order, [pp, dp, tp, cut, whole]: its
        coordinates, and sums of squares of its gradients
        cut: of weights that are cut along tp
        whole: of weights that every tp rank has a copy of
    """
    return ...
'''

_SOLUTION = """\
from math import sqrt

def norm(ranks):
    total = 0
    for pp, dp, tp, cut, whole in ranks:
        if dp == 0:                    # replicas have the same gradients
            total += cut
            if tp == 0:                # so have the copies along tp
                total += whole
    return sqrt(total)
"""


def _norm(ranks, replicas=False, copies=False, stages=True, cut=True, replicated=True):
    return sqrt(
        sum(
            a * cut + b * replicated * (copies or tp == 0)
            for pp, dp, tp, a, b in ranks
            if (replicas or dp == 0) and (stages or pp == 0)
        )
    )


def _one_rank_of_tp(ranks):
    return sqrt(sum(a + b for pp, dp, tp, a, b in ranks if dp == tp == 0))


def _ranks(pp, dp, tp, seed):
    """A mesh's ranks whose replicas and copies agree, not in order."""
    cut = {(i, k): (seed + 5 * i + 3 * k) % 11 for i in range(pp) for k in range(tp)}
    replicated = {i: (seed + 7 * i) % 5 + 1 for i in range(pp)}
    rows = [[i, j, k, cut[i, k], replicated[i]] for j in range(dp) for k in range(tp) for i in range(pp)]
    Random(seed).shuffle(rows)
    return rows


def _first_part(ranks):
    """The first ranks of the list, as many as a replica has."""
    return sqrt(sum(a + b * (k == 0) for _, _, k, a, b in ranks[: len(ranks) // len({row[1] for row in ranks})]))


NORM = Function(
    key="mesh-norm",
    level=3,
    minutes=10,
    title="One norm for a mesh",
    prompt="Gradients are clipped by the norm of **all** gradients, as on one process. On a mesh of pp × dp × tp they "
    "have been added up, so that replicas along dp have the same, and so have the copies of what is not cut along tp "
    "(norms, biases). Each rank gives the sums of squares of its own two kinds of gradients. Write `norm(ranks)`, in "
    "which each parameter counts **once**. There is no ZeRO, and nothing is tied.\n\n"
    "`norm([[0, 0, 0, 9, 4], [0, 0, 1, 12, 4], [0, 1, 0, 9, 4], [0, 1, 1, 12, 4]])`, one stage, two replicas, two tp "
    "ranks, is 5: 9 + 12 + 4 = 25.",
    hints=(
        "Of ranks that hold the same gradients, which one do you count?",
        "Replicas: dp 0 alone. What is whole: tp 0 alone. Stages have different weights.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "On real ranks that is an all-reduce of one number along tp and pp, in which copies are given by one rank alone; "
    "along dp nothing is added, except where gradients have been scattered, as ZeRO does from stage 1 on: a rank "
    "then has the sums of its own part alone.\n\n"
    "It is easily wrong, and no loss shows it. Where copies are counted once for each tp rank the norm is too large: "
    "1.52 times in one model with tp 8 (ROCm/TransformerEngine, pull request 715), and every step that is clipped is "
    "then clipped too far. A tied table that is counted on both of its stages is the same mistake along pp "
    "(NVIDIA/Megatron-LM, pull request 7228).",
    function="norm",
    stub=_STUB,
    reference=_norm,
    cases=(
        ([[0, 0, 0, 9, 4], [0, 0, 1, 12, 4], [0, 1, 0, 9, 4], [0, 1, 1, 12, 4]],),
        (_ranks(2, 2, 2, 3),),
        (_ranks(1, 3, 1, 1),),
        (_ranks(3, 1, 1, 4),),
        (_ranks(1, 1, 3, 6),),
        (_ranks(4, 2, 3, 9),),
        (_ranks(2, 1, 7, 2),),
        ([[0, 0, 0, 0, 0]],),
        (_ranks(2, 3, 1, 8),),
        (_ranks(2, 3, 2, 5),),
        (_ranks(3, 2, 2, 7),),
    ),
    mistakes=(
        Mistake(
            "every-rank",
            lambda ranks: _norm(ranks, replicas=True, copies=True),
            "You added up over all ranks. Replicas, and copies along tp, hold the same gradients.",
        ),
        Mistake(
            "copies-counted",
            lambda ranks: _norm(ranks, copies=True),
            "You counted what is whole on each tp rank: it is the same gradient tp times.",
        ),
        Mistake(
            "replicas-counted",
            lambda ranks: _norm(ranks, replicas=True),
            "You counted the replicas. Along dp the gradients have been added up, and are the same.",
        ),
        Mistake(
            "first-stage",
            lambda ranks: _norm(ranks, stages=False),
            "You counted the first stage alone. Stages have different weights, and all of them count.",
        ),
        Mistake(
            "one-tp-rank",
            _one_rank_of_tp,
            "You counted one tp rank's part of what is cut. Each has other columns: all of them count.",
        ),
        Mistake(
            "whole-forgotten",
            lambda ranks: _norm(ranks, replicated=False),
            "You left out what is whole on each tp rank. It counts once.",
        ),
        Mistake(
            "first-part",
            _first_part,
            "You took the first ranks of the list for one replica. They come in any order: look at dp.",
        ),
        Mistake("no-root", lambda ranks: _norm(ranks) ** 2, "That is the square of the norm: take the root."),
    ),
    right="Different gradients are added, copies are counted once.",
)

EXERCISES = (AXES, NORM)
