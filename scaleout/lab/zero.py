"""What the lab of ZeRO prints: the states that each rank stores, what a step communicates, what Muon adds, and a run
that is clipped by the norm of a shard. Standard library only."""

from scaleout.lab.text import compared, megabytes, ms, ratio, table

NAMES = {
    "one": "one process",
    "ddp": "DDP",
    "stage-1": "stage 1 by hand",
    "stage-2": "stage 2 by hand",
    "stage-3": "stage 3 by hand",
    "zero-redundancy": "ZeroRedundancyOptimizer",
    "keep": "fully_shard, kept",
    "reshard": "fully_shard",
    "rows": "each rank its own rows",
    "accelerate": "Accelerate, ZeroRedundancyOptimizer",
} | {f"deepspeed-{stage}": f"DeepSpeed, stage {stage}" for stage in (1, 2, 3)}
MUON = {
    "one": "one process",
    "stage-1": "stage 1, momentum gathered",
    "stage-2": "stage 2, momentum gathered",
    "stage-3": "stage 3, momentum gathered",
    "zero-redundancy": "whole matrices (ZeroRedundancyOptimizer)",
    "reshard": "torch.optim.Muon on fully_shard's DTensors (bf16)",
    "rows": "each rank its own rows: WRONG",
}
STATES = ("weights", "gradients", "momentum", "variance")
FIGURES = {
    "seconds": "seconds per step",
    "sent": "bytes sent per step",
    "tcp": "bytes sent per step by TCP",
    "peak": "peak bytes",
} | {state: f"bytes of {state}" for state in STATES}
MUON_FIGURES = {
    "seconds": "seconds per step",
    "sent": "bytes sent in an update",
    "momentum": "bytes of momentum",
    "variance": "bytes of variance",
}
BY_PROFILE = (
    "by the profile of labs/calibrate.py: the kernels of forward and backward, then what the implementation adds to a "
    "step, as measured; where the profile has not measured it, the collectives one after another, without its copies"
)
SHORT = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "broadcast": "broadcast"}


def parity(errors):
    """Largest relative errors against one process, {way: {what: error}}, as text."""
    kinds = list(dict.fromkeys(kind for row in errors.values() for kind in row))
    return table(
        ("off from one process by", *kinds),
        [(NAMES[via], *(f"{row[kind]:.1e}" if kind in row else "-" for kind in kinds)) for via, row in errors.items()],
    )


def rank_states(rows):
    """The states that one rank stores at the end of its backward, as text."""
    lines = []
    for via, row in rows.items():
        p, m = row["predicted"], row["measured"]
        lines.append(
            (
                NAMES[via],
                *(megabytes(m.get(state)) for state in STATES),
                *compared(*(sum(figures[state] for state in STATES if state in m) for figures in (p, m))),
            )
        )
    return table(("one rank, after its backward", *STATES, "predicted", "total", "ratio"), lines)


def sent(rows, piece):
    """What one rank sends in a step, counted and predicted, as text. piece: bytes that a rank sends per N."""
    lines = []
    for via, row in rows.items():
        p, m = row["predicted"], row["measured"]
        tcp = compared(p["tcp"], m["tcp"]) if "tcp" in m else ("-", "-", "-")
        lines.append(
            (
                NAMES[via],
                calls(row["messages"]),
                *compared(p["sent"], m["sent"]),
                f"{m['sent'] / piece:.2f}" if piece else "-",
                *tcp,
            )
        )
    text = table(
        ("one rank, one step", "collectives", "predicted", "sent", "ratio", "volume/N", "predicted", "by TCP", "ratio"),
        lines,
    )
    doubled = any(row["measured"].get("tcp", 0) > 1.1 * row["measured"]["sent"] for row in rows.values())
    return text + (
        "\nby TCP: counted by the kernel; gloo runs a reduce-scatter (RS) as an all-reduce, and each rank keeps its "
        "part of it"
        if doubled
        else ""
    )


def steps(rows):
    """The peak memory and the time of a step on one rank, as text, with the prediction of the machine's profile."""
    lines, profiled = [], any("seconds" in row["predicted"] for row in rows.values())
    for via, row in rows.items():
        p, m = row["predicted"], row["measured"]
        peak = compared(p["peak"], m["peak"]) if "peak" in m else ("-", "-", "-")
        guess, seen = p.get("seconds"), m["seconds"]
        seconds = (ms(guess), ms(seen), ratio(guess, seen)) if profiled else (ms(seen),)
        lines.append((NAMES[via], *peak, *seconds, f"{row['loss']:.4f}"))
    heads = ("predicted", "ms", "ratio") if profiled else ("ms",)
    text = table(("one step, one rank", "predicted", "peak", "ratio", *heads, "last loss"), lines)
    return text + (f"\nms predicted: {BY_PROFILE}" if profiled else "")


def muon(rows):
    """What Muon makes of sharded matrices, and the states of one rank, as text."""
    lines = []
    for via, row in rows.items():
        states = [
            sum(figures[state] for state in STATES if state in figures)
            for figures in (row["predicted"], row["measured"])
        ]
        error = f"{row['errors']['weights']:.1e}" if row["errors"] else "-"
        lines.append((MUON[via], error, f"{row['singular']:.2f}", *compared(*states)))
    return table(("Muon", "weights off by", "largest singular value", "predicted", "states", "ratio"), lines)


def moved(rows):
    """What one rank sends in an update, as text."""
    lines = []
    for via, row in list(rows.items())[1:]:
        p, m = row["predicted"].get("sent"), row["measured"].get("sent")
        lines.append(
            (
                MUON[via],
                calls(row["calls"]),
                megabytes(p),
                megabytes(m),
                ratio(p, m),
                ms(row["measured"].get("seconds")),
            )
        )
    return table(("one update, one rank", "collectives", "predicted", "sends", "ratio", "ms per step"), lines)


def wrong(rows, via):
    """A note on an implementation of Muon that differs from one process in fp32."""
    row, single = rows[via], rows["one"]
    return (
        f"{MUON[via]}: weights off by {row['errors']['weights']:.2g} after a few steps, largest singular value "
        f"{row['singular']:.2f} (one process {single['singular']:.2f}), {megabytes(row['measured']['sent'])} sent in "
        "an update"
    )


def calls(messages):
    """{"all_gather": Calls(bytes, 5)} as "5 AG"."""
    return " + ".join(f"{entry.count} {SHORT.get(name, name)}" for name, entry in sorted(messages.items())) or "-"


# --- the fault ------------------------------------------------------------------------------------------------------


def fault(rows, limit, message):
    """A run whose ranks clip by their own shards' norms, next to the same run clipped correctly, as text.

    rows: by step {"losses": (faulty, right), "norms": of the faulty by rank, "norm": of its whole gradient, "apart":
    distance of the faulty weights from the right ones, relative to the change of the right ones, "copies": largest
    difference between ranks, or None}. limit: the norm to clip to. message: of the assertion, in step 1.
    """
    ranks = len(rows[0]["norms"])
    steps = table(
        (
            "step",
            "loss",
            "correct loss",
            *(f"norm, rank {rank}" for rank in range(ranks)),
            "norm, all",
            "weights differ",
            "ranks differ",
        ),
        [
            (
                i + 1,
                *(f"{loss:.6f}" for loss in row["losses"]),
                *(f"{norm:.4f}" for norm in row["norms"]),
                f"{row['norm']:.4f}",
                f"{row['apart']:.1%}",
                "-" if row["copies"] is None else f"{row['copies']:.1e}",
            )
            for i, row in enumerate(rows)
        ],
    )
    scales = ", ".join(f"{min(1, limit / norm):.3f}" for norm in rows[0]["norms"])
    return "\n".join(
        [
            steps,
            "",
            f"clipped to {limit:.4f}: in step 1 the ranks scaled their shards by {scales}; the correct factor "
            f"is {min(1, limit / rows[0]['norm']):.3f}",
            "nothing failed. The assertion, in step 1:",
            f"RuntimeError: {message}" if message else "none: all ranks had the same norm",
        ]
    )
