"""Exercises of `mesh` on the choice: five layouts with their bytes and seconds, and a search of one's own."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Option
from scaleout.spec import checks

# Of `timing.job`: Llama 2 13B, 32 sequences of 4,096 tokens, 2 nodes of 4 A100 joined by NVLink 3 and InfiniBand NDR,
# ZeRO 1 along dp, nothing recomputed, Megatron-LM. tests/exercises/test_mesh_truth.py prices them again.
TABLE = """\
                   A    B    C    D    E
pp                 1    1    1    2    8
dp                 1    2    4    2    1
tp                 8    4    2    2    1
micro-batches      8    8    8   16   32
GB, fullest     46.7 56.5 76.0 60.1 65.1
seconds         8.38 6.59 6.45 6.66 7.95
 compute        6.17 6.00 5.98 5.98 5.88
 exposed tp     1.88 0.22 0.08 0.08    0
 uneven stages     0    0    0 0.08 0.53
 bubble            0    0    0 0.19 1.30
"""
USABLE = 73.7  # GB of an A100 (memory/allocator.py)
BAND = "8%"  # nine of ten published steps of the program are within (tests/published/steps_judged.json)

FIVE = Choice(
    key="five-layouts",
    level=3,
    minutes=6,
    title="Five layouts of eight GPUs",
    prompt="Llama 2 13B trains on 2 nodes of 4 A100 with Megatron-LM, tp the last axis, ZeRO 1 along dp; D has two "
    f"chunks on each rank. Of an A100, **{USABLE} GB** are usable. The book's model gives for five layouts:\n\n"
    f"```\n{TABLE}```\n\n"
    "The rest of each step is kernel launches, dp's communication, the update and stragglers. Of published steps of "
    f"this program nine in ten lie within **{BAND}** of the model. You have the cluster for one afternoon: which do "
    "you run?",
    hints=(
        "Strike out what does not fit, whatever its seconds.",
        f"Which of those that are left can {BAND} of error not tell apart?",
    ),
    solution="**B and D, for a hundred steps each.** They differ by 1.1%, and the model can be off by "
    f"{BAND}: which of "
    "them is faster on your cluster it does not know. A hundred steps do. Why the others lose:\n\n"
    "- **A**: 8 tp ranks on nodes of 4. Their collectives go through the adapters, where Transformer Engine cannot cut "
    f"them into chunks: 1.88 s of 8.38 are exposed. A is 27% slower than B, which no error of {BAND} on both sides "
    "makes up for.\n"
    "- **C**: the fastest number in the table, and 2.3 GB too large. It is a candidate as soon as something small is "
    "recomputed, or with ZeRO 3.\n"
    "- **E**: eight stages of five blocks, and seven wait for the one that has the head as well; with one chunk on "
    "each rank the bubble is 1.30 s. 21% slower than B, with nothing gained.\n\n"
    "Least memory is no aim once it fits, and neither is the use of all three axes: each axis is a cost that is paid "
    "where memory, or the batch, leaves no other choice.",
    options=(
        Option(
            "b-and-d",
            "B and D, and keep the faster one",
            "Right: both fit, and they are closer than the model is good.",
            True,
        ),
        Option(
            "c",
            "C alone, as it has the fewest seconds",
            "C does not fit: 76.0 GB of 73.7. It would end in its first backward.",
        ),
        Option(
            "a",
            "A alone, as it has the most room left",
            "Room that nobody needs. In each step of A, 1.88 s of communication between the nodes are exposed.",
        ),
        Option(
            "b",
            "B alone, as it wins by one per cent",
            f"It wins in the model, by 1.1%. The model is within {BAND} of nine steps in ten.",
        ),
        Option(
            "d",
            "D alone, as it uses all three axes",
            "Three axes are no aim. D may well be the fastest, but not for that reason.",
        ),
        Option(
            "all-that-fit",
            "A, B, D and E, as the model errs",
            f"It errs by {BAND}, seldom by more. A and E are 27% and 21% slower: your afternoon is short.",
        ),
    ),
)

_STUB = '''\
def sketch(gpus, node, batch, states, kept, room, toll):
    """The fastest layout that fits, [pp, dp, tp]; [] if none does.

    gpus: in all; node: GPUs of a node
    batch: sequences of a step, one in each micro-batch
    states: GB of the whole model's weights, gradients, optimizer
    kept: GB that all blocks keep of one micro-batch
    room: GB of a GPU
    toll: what each tp rank beyond the first adds to the time
    """
    return ...
'''

_SOLUTION = """\
def sketch(gpus, node, batch, states, kept, room, toll):
    best, least = [], float("inf")
    for tp in range(1, gpus + 1):
        if node % tp:                                  # in a node
            continue
        for pp in range(1, gpus // tp + 1):
            dp = gpus // (tp * pp)
            if tp * pp * dp != gpus or batch % dp:
                continue
            m = batch // dp
            if m < pp or states / (tp * pp) + kept / tp > room:
                continue
            seconds = (m + pp - 1) / m * (1 + toll * (tp - 1))
            if seconds < least:
                best, least = [pp, dp, tp], seconds
    return best
"""


def layouts(gpus, node):
    """[pp, dp, tp] of so many GPUs whose tp groups lie in nodes."""
    return [
        [pp, gpus // (tp * pp), tp]
        for tp in checks.divisors(node)
        if gpus % tp == 0
        for pp in checks.divisors(gpus // tp)
    ]


def _sketch(
    gpus,
    node,
    batch,
    states,
    activations,
    room,
    toll,
    *,
    in_node=True,
    fill=True,
    even=True,
    tp_first=1,
    fits="pipeline",
    price="step",
):
    """The reference, or with something wrong in it."""
    candidates = []
    for pp, dp, tp in layouts(gpus, node if in_node else gpus):
        m = batch // dp
        needs = {
            "pipeline": states / (tp * pp) + activations / tp,
            "one": states / (tp * pp) + activations / (tp * pp),
            "zero-3": states / (tp * pp * dp) + activations / tp,
            "states": states / (tp * pp),
            "any": 0,
            "whole": states / (tp * pp) + activations,
        }[fits]
        if m < 1 or (even and batch % dp) or (fill and m < pp) or needs > room:
            continue
        costs = {
            "step": (m + pp - 1) / m * (1 + toll * (tp - 1)),
            "no-bubble": 1 + toll * (tp - 1),
            "whole-batch": (batch + pp - 1) / batch * (1 + toll * (tp - 1)),
            "memory": needs,
            "no-toll": (m + pp - 1) / m,
            "product": (1 + (pp - 1) / m) * (1 + toll * tp),
        }[price]
        candidates.append((costs, tp_first * tp, pp, [pp, dp, tp]))
    return min(candidates)[-1] if candidates else []


def _mistaken(**wrong):
    return lambda *case: _sketch(*case, **wrong)


CASES = (
    (8, 4, 32, 208, 33, 73, 0.03),
    (8, 8, 16, 128, 20, 70, 0.05),
    (8, 4, 32, 208, 60, 73, 0.30),
    (8, 2, 8, 100, 30, 40, 0.20),
    (8, 8, 64, 16, 20, 40, 0.10),
    (48, 8, 48, 520, 85, 80, 0.10),
    (24, 6, 96, 80, 45, 40, 0.03),
    (48, 6, 24, 700, 70, 80, 0.20),
    (16, 8, 16, 500, 90, 60, 0.10),
    (8, 4, 32, 900, 40, 80, 0.05),
    (6, 3, 12, 120, 10, 60, 0.25),
    (32, 8, 64, 640, 80, 80, 0.07),
    (8, 8, 12, 90, 24, 50, 0.04),
    (1, 1, 5, 10, 20, 40, 0.10),
    (8, 4, 8, 200, 70, 60, 0.6),
    # where a pipeline would be too long for its micro-batches, replicas would not share evenly, two are as fast
    (24, 4, 8, 820, 15, 73, 0.5),
    (32, 4, 12, 410, 85, 60, 0.5),
    (24, 4, 8, 70, 55, 40, 0.2),
    (24, 8, 8, 120, 70, 73, 0.03),
    (32, 8, 36, 230, 30, 80, 0.2),
    (16, 4, 36, 80, 20, 80, 0.03),
    (8, 4, 36, 140, 15, 80, 0),
    (12, 6, 36, 80, 60, 60, 0),
    (32, 8, 8, 80, 80, 60, 0),
    (24, 8, 6, 50, 70, 73, 0),
)

SKETCH = Function(
    key="sketch-a-layout",
    level=3,
    minutes=20,
    title="Sketch a layout for eight GPUs",
    lists=True,
    index=True,
    prompt="Write `sketch(gpus, node, batch, states, kept, room, toll)`: of all layouts pp × dp × tp of so many GPUs "
    "the one with the shortest step among those that can be and that fit, as `[pp, dp, tp]`; `[]` if there is none. "
    "The rules, simpler than those of the book's model:\n\n"
    "- tp stays in a node: it divides `node`.\n"
    "- Replicas share the batch evenly, in micro-batches of one sequence: m = batch / dp, whole, and at least pp.\n"
    "- A GPU holds `states` / (tp · pp), and of activations `kept` / tp: pp cuts the blocks, and keeps pp "
    "micro-batches of them. Both together at most `room`.\n"
    "- A step takes as long as (m + pp − 1) / m × (1 + toll · (tp − 1)) says.\n\n"
    "Of two as fast, the one with the smaller tp. `sketch(8, 4, 32, 208, 33, 73, 0.03)`, the chapter's 13B "
    "model in nodes of four, is `[1, 2, 4]`.",
    hints=(
        "Two loops, over tp and pp; dp is what is left, if it is whole.",
        "Skip what cannot be, then what does not fit, then compare. Keep the best so far.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "By hand, for eight GPUs, it is the same three questions in the same order. **What has to be cut for it to fit?** "
    "tp · pp is at least states / room. **Who cuts it?** tp while it stays in a node and costs little, pp for the "
    "rest. **Who gets what is left?** dp, as long as each replica's m fills the pipeline. The planner prices the same "
    "loop with the book's models of memory and time, and with cp, ZeRO 3, chunks and recomputation as further loops.",
    function="sketch",
    stub=_STUB,
    reference=_sketch,
    cases=CASES,
    mistakes=(
        Mistake("memory-ignored", _mistaken(fits="any"), "Yours does not ask whether it fits."),
        Mistake(
            "states-alone", _mistaken(fits="states"), "Yours asks whether the states fit. Activations lie beside them."
        ),
        Mistake(
            "one-in-flight",
            _mistaken(fits="one"),
            "You divided the activations by pp. How many micro-batches has a stage in flight?",
        ),
        Mistake("activations-whole", _mistaken(fits="whole"), "You did not divide the activations by tp."),
        Mistake("split-by-dp", _mistaken(fits="zero-3"), "You divided the states by dp as well. Replicas hold copies."),
        Mistake(
            "across-nodes", _mistaken(in_node=False), "Your tp leaves the node: it has to divide the GPUs of a node."
        ),
        Mistake(
            "too-few-micro-batches",
            _mistaken(fill=False),
            "Yours does not ask whether a replica has as many micro-batches as stages.",
        ),
        Mistake("uneven-batch", _mistaken(even=False), "Yours does not ask whether dp divides the batch."),
        Mistake("larger-tp", _mistaken(tp_first=-1), "Of two layouts as fast you took the one with the larger tp."),
        Mistake("no-bubble", _mistaken(price="no-bubble"), "You left the pipeline's bubble out of the time."),
        Mistake("whole-batch", _mistaken(price="whole-batch"), "You took all sequences for m. Replicas share them."),
        Mistake("no-toll", _mistaken(price="no-toll"), "You left out what tp costs."),
        Mistake(
            "least-memory",
            _mistaken(price="memory"),
            "You took the layout with the least memory. It is the shortest step that is asked for.",
        ),
        Mistake("turned-round", lambda *case: _sketch(*case)[::-1], "Your list is the other way round: [pp, dp, tp]."),
    ),
    right="What has to be cut, who cuts it, and who gets what is left.",
)

EXERCISES = (FIVE, SKETCH)
