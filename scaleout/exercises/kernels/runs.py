"""Exercises of `kernels` on real runs of the lab: saved bytes and seconds of unnamed kernels from its Record, and the
counter of compiled graphs from its fault `recompile`. Tests read both again."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.exercises.engine import Choice, Option

RECORD = "labs/results/kernels/smoke-cpu-1.json"
HEAD, SHORT, LONG = 64, 512, 1024  # head size; tokens of the two rows


@dataclass(frozen=True)
class Seen:
    """A kernel in the Record: MB saved, and ms of forward and backward, at SHORT and at LONG tokens."""

    kernel: str
    saved: tuple[float, float]
    ms: tuple[float, float]


KERNELS = {
    "A": Seen("SDPA, its choice", (2.1, 4.2), (5.0, 15.0)),
    "B": Seen("naive", (6.3, 20.0), (12.0, 50.0)),
    "C": Seen("naive, checkpointed", (1.6, 3.1), (15.0, 60.0)),
}
_TABLE = "\n".join(
    [
        "kernel  saved, MB        forward + backward, ms",
        f"        {SHORT:,} tok. {LONG:,}   {SHORT:,} tok. {LONG:,}",
        *(
            f"{name:6}{one.saved[0]:9.1f}{one.saved[1]:9.1f}{one.ms[0]:9.1f}{one.ms[1]:9.1f}"
            for name, one in KERNELS.items()
        ),
    ]
)


def _option(name: str, kinds: tuple[str, str, str], reason: str, right: bool = False) -> Option:
    return Option(
        name, ", ".join(f"{letter} {kind}" for letter, kind in zip(KERNELS, kinds, strict=True)), reason, right
    )


WHICH = Choice(
    key="which-kernel",
    level=2,
    minutes=4,
    title="Three kernels without names",
    prompt="The lab measured three attention kernels on a CPU, in fp32, with a causal mask. All give the same numbers. "
    f"What they save for the backward pass, and how long forward and backward take:\n\n```\n{_TABLE}\n```\n\nOne is "
    "*naive*, one is the same under activation *checkpointing*, and one is *fused*. Which is which?",
    hints=(
        "For which kernel do the saved bytes grow with the square of the tokens?",
        "Checkpointing saves the inputs alone and computes the forward twice. What does a fused kernel save, too?",
    ),
    solution="**B is naive:** twice the tokens, more than three times the saved bytes, because it saves the "
    "probabilities. **C is checkpointed:** it saves Q, K and V only, the least of the three, and computes everything "
    "twice, so it takes longest. **A is fused:** it also saves its output and a number per query, a third more than "
    "C, and takes the least time. Checkpointing gets the memory of a fused kernel and pays for it with time, because "
    "the recomputed scores go through memory again.",
    options=(
        _option("squares", ("fused", "naive", "checkpointed"), "Right.", True),
        _option("least-is-fused", ("checkpointed", "naive", "fused"),
                "A fused kernel saves its output, too. And which of A and C computes its forward twice?"),
        _option("all-mixed", ("naive", "checkpointed", "fused"),
                "Naive attention saves a probability per pair of tokens. Which column grows like that?"),
        _option("naive-saves-inputs", ("fused", "checkpointed", "naive"),
                "B saves more than three times as much for twice the tokens. Checkpointing saves inputs only."),
        _option("slow-is-naive", ("checkpointed", "fused", "naive"),
                "Look at the bytes before the times: what grows with the square of the tokens?"),
    ),
)  # fmt: skip

STEPS = 12
GRAPHS = {
    "A": ("dynamic=False", (1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8)),
    "B": ("dynamic=None", (1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2)),
    "C": ("padded to 64", (1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2)),
}
_COUNTS = "\n".join(f"{name}  {'  '.join(map(str, counts))}" for name, (_, counts) in GRAPHS.items())
COUNTED = Choice(
    key="graphs-counted",
    level=2,
    minutes=3,
    title="A counter that stops",
    prompt=f"Three runs of the lab's fault compile one attention function. At each of {STEPS} steps the sequence is 8 "
    "tokens longer than before. In one run lengths are compiled as constants, in one as variables if they change, "
    "and in one they are padded to a multiple of 64. After each step torch had compiled so many graphs:\n\n"
    f"```\n{_COUNTS}\n```\n\n"
    "What happens in the last four steps?",
    hints=(
        "In which run does every new length need a new graph?",
        "That run's counter stops at 8, although each length is new. Which code runs then?",
    ),
    solution="In **A** lengths are constants. After eight graphs torch gives up (`recompile_limit`), so the last "
    "steps run as plain torch operations: the counter is quiet, and the fault is still there. Only "
    "`TORCH_LOGS=recompiles` or a warning says so. **B** makes the length a variable at its second value, and one "
    "graph serves all later lengths. **C** has one graph for 64 tokens and one for 128.",
    options=(
        Option("given-up", "A runs without a graph, B and C with their second",
               "Right. A counter at rest can mean that all is compiled, or that nothing is any more.", True),
        Option("all-cached", "A uses its eight graphs, B and C use two each",
               "A's graphs are for the first eight lengths. The later lengths are new. Which graph fits them?"),
        Option("still-compiling", "A compiles each of the steps, B and C no longer",
               "A's counter would go on. It stays at 8."),
        Option("variable-lengths", "A has found a graph for all lengths, as B has",
               "That is what B did at its second step. A's eight graphs are eight constant lengths."),
        Option("padding-wastes", "A and B are ready, C compiles at the next length",
               "C's padded length changes after 128 tokens only. And which length is A ready for?"),
    ),
)  # fmt: skip

EXERCISES = (WHICH, COUNTED)
