"""The exercise of `mesh` on runs that look well: one thing wrong in each, told by what was asserted."""

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
    prompt="A norm's weight (whole on each rank) and two matrices (cut along tp) train on dp 2 × tp 2, from the same "
    "weights as on one process, with the same samples. Four runs, one thing wrong in each; none ends with an error:\n\n"
    f"```\n{TABLE}```\n\n"
    "*At the end* is the mean of steps 51 to 60, and *part of matrix* what a rank holds of each. *Apart* is by how "
    "much neighbours' weights then differ: the norm's along tp, a matrix's along dp.\n\n"
    "The faults: **samples**: tp neighbours read different ones. **no tp**: nothing was cut. **tp sum**: the norm's "
    "gradient is not added up along tp. **dp sum**: gradients are not added up along dp. Which run has which?",
    hints=(
        "Which fault is there before the first update?",
        "Copies that differ along an axis: something along this axis was not added up, or was not the same from the "
        "start.",
    ),
    solution="**A tp sum, B no tp, C dp sum, D samples.**\n\n"
    "- **D** alone is off at step 1, before any gradient: partial sums of *different* samples were added. That is what "
    "a comparison of the first loss with one process is good for, and all that it is good for: A, B and C pass it.\n"
    "- **B** is right in every digit. Four GPUs do the work of two, and what is to be cut so that it fits is not. Only "
    "bytes or shapes show it. NeMo's launcher did so: options were not passed on, and *instead of using "
    "tensor/pipeline parallelism it makes copies of the network* (NVIDIA/NeMo-Framework-Launcher, pull request 301).\n"
    "- **A** and **C** have copies that go different ways, along tp and along dp. The losses of both look like a sound "
    "run's, for each copy learns as well, from a part of what there is.\n\n"
    "So assert, in the run: the bytes of a shard, the first loss, and after some steps that copies are **equal**, "
    "along each axis. A loss that goes down asserts nothing. `labs/mesh.py --fault` shows the same four with the "
    "book's Transformer, as `norms`, `tensor`, `replicas` and `data`.",
    options=(
        Option(
            "samples-d",
            "A tp sum · B no tp · C dp sum · D samples",
            "Right: first loss, bytes of a shard, and copies along each axis.",
            True,
        ),
        Option(
            "samples-a",
            "A samples · B no tp · C dp sum · D tp sum",
            "D is off at step 1, before any gradient. A's first loss is right: its samples are.",
        ),
        Option(
            "dp-b",
            "A dp sum · B tp sum · C no tp · D samples",
            "In B a rank has the whole matrix. C's is cut, and its replicas have come apart. And along which axis "
            "have A's copies?",
        ),
        Option(
            "axes-swapped",
            "A dp sum · B no tp · C tp sum · D samples",
            "A's copies differ along tp, C's along dp. Each is the axis that was left out.",
        ),
        Option(
            "samples-c",
            "A tp sum · B no tp · C samples · D dp sum",
            "Without the sum along dp the first loss is right, and D's is not. C's replicas differ.",
        ),
        Option(
            "no-tp-d",
            "A dp sum · B samples · C tp sum · D no tp",
            "D has half of each matrix, so it is cut. B has all of it, and the right loss. And along which axes are "
            "A's and C's copies apart?",
        ),
    ),
)

EXERCISES = (FOUR,)
