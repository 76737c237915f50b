"""Exercises of `kernels` on real runs of the lab: saved bytes of unnamed kernels from its Record, and the counter of
compiled graphs from its fault `recompile`. Tests read both again."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

RECORD = "labs/results/kernels/smoke-cpu-1.json"
HEAD, TOKENS = 64, (128, 512, 1024)  # head size, and tokens of each column
# Letter -> (kernel in the Record, MB that it saves for the backward).
KERNELS = {
    "A": ("SDPA, its choice", (0.53, 2.11, 4.21)),
    "B": ("naive", (0.67, 6.03, 20.97)),
    "C": ("naive, checkpointed", (0.39, 1.57, 3.15)),
}
_TABLE = "\n".join(
    [
        "tokens" + "".join(f"{tokens:>10,}" for tokens in TOKENS),
        *(f"{name:6}" + "".join(f"{size:10.2f}" for size in saved) for name, (_, saved) in KERNELS.items()),
    ]
)


def _option(name: str, kinds: tuple[str, str, str], reason: str, right: bool = False) -> Option:
    label = ", ".join(f"{letter} {kind}" for letter, kind in zip(KERNELS, kinds, strict=True))
    return Option(name, label, reason, right)


WHICH = Choice(
    key="which-kernel",
    level=2,
    minutes=4,
    title="Three kernels without names",
    prompt="The lab ran three attention kernels on a CPU, in fp32, with a causal mask and four heads of "
    f"{HEAD}. All give the same numbers. So many MB did each of them save for its backward pass:\n\n"
    f"```\n{_TABLE}\n```\n\nOne is *naive*, one is the same under activation *checkpointing*, one is *fused*. "
    "Which is which?",
    hints=(
        "For which kernel do the saved bytes grow with the square of the tokens?",
        "Checkpointing saves the inputs alone. What does a fused kernel save in addition?",
    ),
    solution="**B is naive:** from 512 to 1,024 tokens its saved bytes grow more than threefold: it saves the "
    "probabilities. **C is checkpointed:** it saves Q, K and V only. **A is fused:** it also saves its output and a "
    "number per query, a third more than C. Checkpointing has the memory of a fused kernel, and pays for it with time: "
    "its backward computes all scores again and sends them through memory.",
    options=(
        _option("squares", ("fused", "naive", "checkpointed"), "Right.", True),
        _option("least-is-fused", ("checkpointed", "naive", "fused"),
                "A fused kernel saves its output, too. Checkpointing saves inputs only."),
        _option("all-mixed", ("naive", "checkpointed", "fused"),
                "Naive attention saves a probability per pair of tokens. Which row grows like that?"),
        _option("naive-saves-inputs", ("fused", "checkpointed", "naive"),
                "B saves more than three times as much for twice the tokens. Checkpointing saves inputs only."),
        _option("first-column", ("checkpointed", "fused", "naive"),
                "With few tokens all three are alike. Look at how the rows grow."),
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
