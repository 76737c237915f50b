"""What the lab of activation checkpointing prints: six budgets with their prediction, torch.compile's budgets, two
faults. Standard library only."""

import textwrap
from functools import partial

from scaleout.lab.text import fixed, megabytes, ms, ratio, table

SHARES = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
NAMES = dict(zip(SHARES, ("everything", "80%", "60%", "40%", "20%", "inputs alone"), strict=True))
BUDGETS = (1.0, 0.7, 0.5, 0.3, 0.1, 0.0)  # activation_memory_budget
FIGURES = {
    "kept": "bytes the blocks keep",
    "peak": "bytes at the peak",
    "flops": "FLOPs recomputed",
    "seconds": "seconds per step",
}
VIAS = {"hand": "by hand", "torch": "torch.utils.checkpoint"}
SHORT = {"hand": "by hand", "torch": "torch's"}
FAULTS = {
    "router": "a router that updates its bias in the forward, in the second one too",
    "random": "dropout that draws other numbers in the second run (preserve_rng_state=False)",
}


def budgets(rows, title):
    """Bytes saved, FLOPs recomputed, the peak and the seconds of each budget, as text.

    rows: {share: {"predicted", "measured": {figure: number}, "equal": gradients are those of a run that saves all}}.
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
        "saved",
        "MB",
        "predicted",
        "repeated, GFLOP",
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
    """In how many blocks each tensor is recomputed, by budget, as text. policies: {share: memory.recompute.Policy}."""
    lines = []
    for share, policy in policies.items():
        count = {}
        for drop in policy.drops:
            for name in drop:
                count[name] = count.get(name, 0) + 1
        tiles = ", ".join(f"{name} ({n})" for name, n in sorted(count.items(), key=lambda pair: (-pair[1], pair[0])))
        lines.append(f"{NAMES[share]:13} recomputes {tiles or 'nothing'}")
    return "\n".join(["tensors that are recomputed, and in how many blocks:", *lines])


def compiled(rows):
    """torch.compile's budgets for one block: bytes saved, FLOPs recomputed, and the fewest FLOPs for as many bytes by
    the book's list of saved tensors, as text. rows: [(budget, bytes, flops, fewest flops)]."""
    return "torch.compile, activation_memory_budget, one block\n" + table(
        ("budget", "saved", "of all", "repeated, GFLOP", "fewest possible", "ratio"),
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
        ("saved, under fully_shard", "all-gathers per step", "predicted"),
        [(NAMES[share], n, predicted) for share, n in rows.items()],
    )


# --- faults ---------------------------------------------------------------------------------------------------------


def router(rows, message, checks, fixed_errors):
    """What a router that changes in its second forward shows, as text.

    rows: {via: (whether the loss is the right one, {part: relative error of its gradient})}. message: what torch
    answers where tensors change their sizes. checks: {what: whether a second run gives what the first gave}.
    fixed_errors: {via: errors} where the bias is updated after the step.
    """
    parts = list(next(iter(rows.values()))[1])
    lines = [
        (
            part,
            *(f"{errors_by_part[part]:.1%}" for _, errors_by_part in rows.values()),
            *(f"{errors[part]:.1%}" for errors in fixed_errors.values()),
        )
        for part in parts
    ]
    wrong = table(
        ("error of a gradient", *(SHORT[via] for via in rows), *(f"fixed, {SHORT[via]}" for via in fixed_errors)), lines
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
            "where the number of an expert's rows changes, torch says:",
            *textwrap.wrap(
                message.removeprefix("torch.utils.checkpoint: "), 74, initial_indent="  ", subsequent_indent="  "
            ),
            "where it does not, nothing is reported. A check that runs each layer twice reports it:",
            check_lines,
        ]
    )


def random(wrong):
    """wrong: {whether the random state was restored: relative error of the blocks' gradients}, as text."""
    return "\n".join(
        [
            table(
                ("random numbers of the second run", "error of the gradient"),
                [("those of the first", f"{wrong[True]:.1%}"), ("others", f"{wrong[False]:.1%}")],
            ),
            "",
            "There is no error, and the loss is that of the first run. In Accelerate",
            "1.15, FSDP2's activation_checkpointing=True passes",
            "preserve_rng_state=False (utils/fsdp_utils.py, fsdp2_apply_ac).",
        ]
    )
