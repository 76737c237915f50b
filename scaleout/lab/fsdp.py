"""What the lab of FSDP prints: the ways side by side, memory and its prediction, a grid of options, and what Accelerate
silently builds. Standard library only."""

from scaleout.lab.options import digits
from scaleout.lab.text import compared, count, megabytes, ms, ratio, table
from scaleout.spec import checks

NAMES = {
    "one": "one process",
    "ddp": "DDP",
    "naive": "by hand, naive",
    "prefetching": "by hand, prefetching",
    "torch": "fully_shard",
    "accelerate": "Accelerate",
    "accelerate-forced": "Accelerate, forced",
    "accelerate-naive": "Accelerate, naive",
}
FIGURES = {
    "seconds": "seconds per step",
    "exposed": "exposed seconds per step",
    "gathers": "all-gathers per step",
    "scatters": "reduce-scatters per step",
}
LEAST = 1e-3  # of the peak: kinds of memory below it are left out of the table


def reshard(text, ranks):
    """--reshard as torch takes it: True, False or a number of ranks. ValueError for anything else."""
    word = str(text).lower()
    if word in ("true", "false"):
        return word == "true"
    if not digits(word) or not 1 < int(word) < ranks or ranks % int(word):
        divisors = checks.divisors(ranks)[1:-1]
        fits = f" or one of {', '.join(map(str, divisors))}" if divisors else ""
        raise ValueError(f"--reshard {text}: with {ranks} rank(s) to a copy of the model use true, false{fits}")
    return int(word)


def ways(rows):
    """The ways side by side, as text: median step time and half the spread, exposed communication, and the collectives
    with their seconds on a rank."""
    lines = []
    for way, row in rows.items():
        p, m = row["predicted"], row["measured"]
        lines.append(
            (
                NAMES[way],
                ms(m["seconds"]),
                ms(p.get("seconds")),
                ratio(p.get("seconds"), m["seconds"]),
                ms(m.get("spread")),
                ms(m.get("exposed")),
                ms(p.get("exposed")),
                count(m.get("gathers")),
                ms(m.get("gather_seconds")),
                count(m.get("scatters")),
                ms(m.get("scatter_seconds")),
                f"{row['loss']:.4f}",
            )
        )
    return table(
        (
            "one step",
            "ms",
            "predicted",
            "ratio",
            "spread",
            "exposed, ms",
            "predicted",
            "gathers",
            "ms",
            "scatters",
            "ms",
            "last loss",
        ),
        lines,
    )


def memory(wanted, seen):
    """Two {kind: bytes} at the peak side by side, as text, with their totals."""
    largest = max(sum(wanted.values()), sum(seen.values()))
    kinds = [
        kind
        for kind in dict.fromkeys([*wanted, *seen])
        if max(wanted.get(kind, 0), seen.get(kind, 0)) >= LEAST * largest
    ]
    return table(
        ("at the peak, one rank", "predicted", "measured", "ratio"),
        [
            *((kind, *compared(wanted.get(kind, 0), seen.get(kind, 0))) for kind in kinds),
            ("peak, all kinds", *compared(sum(wanted.values()), sum(seen.values()))),
        ],
    )


def timeline(moments, wide=40):
    """Memory over time, as text: one line per moment, with a bar as long as its bytes.

    moments: [(label, bytes, names of the units that are unsharded)].
    """
    largest = max((size for _, size, _ in moments), default=1)
    return table(
        ("moment", "memory", "", "unsharded"),
        [
            (
                label,
                megabytes(size),
                ("#" * round(wide * size / largest)).ljust(wide),
                " ".join(name or "root" for name in gathered),
            )
            for label, size, gathered in moments
        ],
    )


def sweep(rows):
    """A grid of options as text.

    rows: [{"name", "peak", "wanted", "gathers", "wanted_gathers", "scatters", "seconds"}]; peaks and counts
    measured and predicted, seconds are the median step time. The last column compares with the first row.
    """
    first = rows[0]["seconds"]
    return table(
        (
            "one rank",
            "peak",
            "predicted",
            "ratio",
            "gathers",
            "predicted",
            "scatters",
            "ms per step",
            "times the first",
        ),
        [
            (
                row["name"],
                megabytes(row["peak"]),
                megabytes(row["wanted"]),
                ratio(row["wanted"], row["peak"]),
                count(row["gathers"]),
                count(row["wanted_gathers"]),
                count(row["scatters"]),
                ms(row["seconds"]),
                f"{row['seconds'] / first:.2f}",
            )
            for row in rows
        ],
    )


def fallback(checks, counts, stored, model_bytes, built):
    """What a script that trusts Accelerate's FSDP plugin on a CPU sees, and what it does not look at, as text.

    checks: of a Record. counts: collectives per step. stored: bytes of this rank's parameters. model_bytes: of all.
    """
    passed = all(check["passed"] for check in checks.values())
    lines = [
        "What a parity check sees:",
        *(f"  {name}: {check['value']:.2g}" for name, check in checks.items()),
        f"  {'all equal to one process: it looks as if FSDP works' if passed else 'not equal to one process'}",
        "What was built:",
        f"  {built}",
        f"  parameters on this rank: {megabytes(stored)} of {megabytes(model_bytes)}",
        f"  collectives per step: {counts['gathers']} all-gathers, {counts['scatters']} reduce-scatters, "
        f"{counts['all_reduces']} all-reduces",
    ]
    if stored == model_bytes and not counts["gathers"]:
        lines.append("  nothing is sharded: these are replicas. Equal losses cannot show that; these three lines do.")
    return "\n".join(lines)
