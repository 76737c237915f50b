"""The exercise of `mesh` on runs that look well: each has one fault, which what was checked gives away."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

# Sixty steps of SGD on a norm and two matrices under dp 2 x tp 2; tests/exercises/test_mesh_truth.py trains them again
# with each fault.
TABLE = """\
                  one     A     B     C     D
loss, step 1    1.088 1.088 1.088 1.088 0.717
loss at the end 0.071 0.073 0.071 0.075 0.201
part of matrix      1   1/2     1   1/2   1/2
apart along tp      -  0.07     0     0  0.07
apart along dp      -     0     0  0.06     0
"""

FOUR = Choice(
    key="four-layouts",
    level=3,
    minutes=6,
    title="Four runs whose loss goes down",
    prompt="A norm's weight (replicated) and two matrices (cut along tp) train on dp 2 × tp 2, and on one process "
    "(*one*) from the same weights on the same samples. Each of four runs has one fault, and none raises an error:\n\n"
    f"```\n{TABLE}```\n\n"
    "*At the end* is the mean of steps 51 to 60. *Apart* is by how much the weights of neighbors then differ: the "
    "norm's along tp, a matrix's along dp.\n\n"
    "The faults are **samples** (tp neighbors read different ones), **no tp** (nothing was cut), **tp sum** (the "
    "norm's gradient is not summed along tp) and **dp sum** (gradients are not summed along dp). Which run has which?",
    hints=(
        "Which fault is there before the first update?",
        "If copies differ along an axis, something was not summed along it, or was not the same from the start.",
    ),
    solution="**A tp sum, B no tp, C dp sum, D samples.**\n\n"
    "- Only **D** is off at step 1, before any gradient, because partial sums of *different* samples were added. A "
    "comparison of the first loss with one process finds this fault, and only this one: A, B and C pass it.\n"
    "- **B** is right in every digit. Four GPUs do the work of two, and what should be cut to fit is not cut. Only "
    "bytes or shapes show it. NeMo's launcher did this: options were not passed on, and *instead of using "
    "tensor/pipeline parallelism it makes copies of the network* (NVIDIA/NeMo-Framework-Launcher, pull request 301).\n"
    "- **A** and **C** have copies that drift apart, along tp and along dp. Both losses look like a healthy "
    "run's, because each copy learns too, from a part of the samples.\n\n"
    "So assert in the run: the bytes of a shard, the first loss, and after some steps that copies are **equal** "
    "along each axis. A falling loss proves nothing. `labs/mesh.py --fault` shows the same four faults with the "
    "book's Transformer, as `norms`, `tensor`, `replicas` and `data`.",
    options=(
        Option(
            "samples-d",
            "A tp sum · B no tp · C dp sum · D samples",
            "Right: the first loss, the bytes of a shard and the copies along each axis tell them apart.",
            True,
        ),
        Option(
            "samples-a",
            "A samples · B no tp · C dp sum · D tp sum",
            "D is off at step 1, before any gradient. A's first loss is right, so its samples are right.",
        ),
        Option(
            "dp-b",
            "A dp sum · B tp sum · C no tp · D samples",
            "In B each rank has the whole matrix. C's is cut, and its replicas have diverged. And along which axis "
            "have A's copies diverged?",
        ),
        Option(
            "axes-swapped",
            "A dp sum · B no tp · C tp sum · D samples",
            "A's copies differ along tp, C's along dp. Each is the axis whose sum was left out.",
        ),
        Option(
            "samples-c",
            "A tp sum · B no tp · C samples · D dp sum",
            "Without the sum along dp the first loss is right, and D's is not. C's replicas differ.",
        ),
        Option(
            "no-tp-d",
            "A dp sum · B samples · C tp sum · D no tp",
            "In D a rank has half of each matrix, so it is cut. In B it has all of it, and the loss is right. And "
            "along which axes do A's and C's copies differ?",
        ),
    ),
)

EXERCISES = (FOUR,)
