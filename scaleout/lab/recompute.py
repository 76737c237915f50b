"""What the lab of recomputation prints: six budgets with their prediction, torch's own budgets, two faults. Standard
library only."""

import textwrap
from functools import partial

from scaleout.lab.text import fixed, megabytes, ms, ratio, table

SHARES = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
NAMES = dict(zip(SHARES, ("everything", "80%", "60%", "40%", "20%", "inputs alone"), strict=True))
BUDGETS = (1.0, 0.7, 0.5, 0.3, 0.1, 0.0)  # activation_memory_budget
FIGURES = {
    "kept": "bytes the blocks keep",
    "peak": "bytes at the peak",
    "flops": "FLOPs made again",
    "seconds": "seconds per step",
}
VIAS = {"hand": "by hand", "torch": "torch.utils.checkpoint"}
SHORT = {"hand": "by hand", "torch": "torch's"}
FAULTS = {
    "router": "a router whose bias moves in its forward, the second one too",
    "random": "dropout that draws other numbers in the second run (preserve_rng_state=False)",
}


def budgets(rows, title):
    """Bytes kept, FLOPs made again, the peak and the seconds of each budget, as text.

    rows: {share: {"predicted", "measured": {figure: number}, "equal": gradients are those of a run that keeps all}}.
    """
    lines = []
    for share, row in rows.items():
        p, m = row["predicted"], row["measured"]
        lines.append(
            (
                NAMES[share],
                *_pair(p, m, "kept", megabytes),
                *_pair(p, m, "flops", partial(fixed, unit=1e9, decimals=3)),
                *_pair(p, m, "peak", megabytes),
                *_pair(p, m, "seconds", ms),
                "yes" if row["equal"] else "NO",
            )
        )
    head = (
        "kept",
        "MB",
        "predicted",
        "again, GFLOP",
        "predicted",
        "peak, MB",
        "predicted",
        "step, ms",
        "predicted",
        "same gradients",
    )
    return f"{title}\n" + table(head, [[str(cell).removesuffix(" MB") for cell in line] for line in lines])


def _pair(predicted, measured, figure, words):
    return [words(figures[figure]) if figures.get(figure) is not None else "-" for figures in (measured, predicted)]


def drops(policies):
    """Of each budget, in how many blocks each tile is dropped, as text. policies: {share: memory.recompute.Policy}."""
    lines = []
    for share, policy in policies.items():
        count = {}
        for drop in policy.drops:
            for name in drop:
                count[name] = count.get(name, 0) + 1
        tiles = ", ".join(f"{name} ({n})" for name, n in sorted(count.items(), key=lambda pair: (-pair[1], pair[0])))
        lines.append(f"{NAMES[share]:13} drops {tiles or 'nothing'}")
    return "\n".join(["tiles dropped, in so many blocks:", *lines])


def compiled(rows):
    """torch.compile's budgets for one block: bytes kept and FLOPs made again, beside the fewest that as many bytes need
    by the book's tiles, as text. rows: [(budget, bytes, flops, fewest flops)]."""
    return "torch.compile, activation_memory_budget, one block\n" + table(
        ("budget", "kept", "of all", "again, GFLOP", "fewest by tiles", "ratio"),
        [
            (
                f"{budget:g}",
                megabytes(size),
                f"{size / rows[0][1]:.0%}",
                fixed(flops, 1e9, 3),
                fixed(least, 1e9, 3),
                ratio(least, flops),
            )
            for budget, size, flops, least in rows
        ],
    )


def gathers(rows, predicted):
    """All-gathers of a step under FSDP2 by budget, as text. rows: {share: count}."""
    return table(
        ("kept, under fully_shard", "all-gathers per step", "predicted"),
        [(NAMES[share], n, predicted) for share, n in rows.items()],
    )


# --- faults ---------------------------------------------------------------------------------------------------------


def router(rows, message, checks, mended):
    """What a router that changes in its second forward shows, as text.

    rows: {via: (whether the loss is the right one, {part: relative error of its gradient})}. message: what torch
    answers where tensors change their sizes. checks: {what: whether a second run gives what the first gave}. mended:
    {via: errors} where the bias moves after the step.
    """
    parts = list(next(iter(rows.values()))[1])
    lines = [
        (
            part,
            *(f"{errors_by_part[part]:.1%}" for _, errors_by_part in rows.values()),
            *(f"{errors[part]:.1%}" for errors in mended.values()),
        )
        for part in parts
    ]
    wrong = table(
        ("error of a gradient", *(SHORT[via] for via in rows), *(f"mended, {SHORT[via]}" for via in mended)), lines
    )
    losses = "; ".join(f"{SHORT[via]}: {'the same' if equal else 'ANOTHER'}" for via, (equal, _) in rows.items())
    check_lines = "\n".join(
        f"{'ok    ' if equal else 'FAILED'} run twice, the same output: {name}" for name, equal in checks.items()
    )
    return "\n".join(
        [
            f"the loss, to the last bit: {losses}",
            "",
            wrong,
            "",
            "where an expert's rows change in number, torch says:",
            *textwrap.wrap(
                message.removeprefix("torch.utils.checkpoint: "), 74, initial_indent="  ", subsequent_indent="  "
            ),
            "where they do not, nobody says anything. A check that runs each layer twice does:",
            check_lines,
        ]
    )


def random(wrong):
    """wrong: {whether the random numbers' state was restored: relative error of the blocks' gradients}, as text."""
    return "\n".join(
        [
            table(
                ("the second run draws", "error of the gradient"),
                [("the numbers of the first", f"{wrong[True]:.1%}"), ("others", f"{wrong[False]:.1%}")],
            ),
            "",
            "Nothing errors, and the loss is that of the first run. Accelerate's FSDP2",
            "asks for others: in version 1.15 its activation_checkpointing=True passes",
            "preserve_rng_state=False (utils/fsdp_utils.py, fsdp2_apply_ac).",
        ]
    )
