"""What the lab of tensor parallelism prints: the ways side by side, their collectives and saved activations, and a
fault. Standard library only."""

from scaleout.lab.text import count, megabytes, ms, ratio, table

SEQUENCE = ", sequence"  # what the name of a way with sequence parallelism ends with
NAMES = {"one": "one process", "hand": "by hand", "torch": "parallelize_module"}
NAMES |= {name + SEQUENCE: words + SEQUENCE for name, words in NAMES.items() if name != "one"}
FIGURES = {
    "seconds": "seconds per step",
    "exposed": "exposed seconds per step",
    "collectives": "collectives per step",
    "kept": "bytes the blocks keep",
}
SHORT = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS"}
WRONG = 1e-3  # relative error of a gradient that is no rounding


def parts(name):
    """(via, sequence) of a way's name."""
    return name.removesuffix(SEQUENCE), name.endswith(SEQUENCE)


def ways(rows):
    """Step times, and the exposed communication in them, as text."""
    lines = []
    for name, row in rows.items():
        p, m = row["predicted"], row["measured"]
        lines.append(
            (
                NAMES[name],
                ms(m["seconds"]),
                ms(p.get("seconds")),
                ratio(p.get("seconds"), m["seconds"]),
                ms(m.get("exposed")),
                ms(p.get("exposed")),
                f"{row['loss']:.4f}",
            )
        )
    return table(("one step", "ms", "predicted", "ratio", "exposed, ms", "predicted", "last loss"), lines)


def sent(rows):
    """The collectives per step by phase, counted and predicted, as text."""
    return table(
        ("collectives per step", "forward", "backward", "copies' gradients", "in all", "predicted"),
        [
            (
                NAMES[name],
                *(calls(row["counts"][phase]) for phase in ("forward", "backward", "copies")),
                count(row["measured"]["collectives"]),
                count(row["predicted"]["collectives"]),
            )
            for name, row in rows.items()
        ],
    )


def calls(counts):
    """{"all_reduce": 8} as "8 AR"."""
    return " + ".join(f"{n} {SHORT.get(name, name)}" for name, n in sorted(counts.items())) or "-"


def saved(rows):
    """Bytes that the blocks of one rank save for the backward pass, measured and predicted, as text; "" in 16 bits."""
    lines = [
        (
            NAMES[name],
            megabytes(row["measured"]["kept"]),
            megabytes(row["predicted"]["kept"]),
            ratio(row["predicted"]["kept"], row["measured"]["kept"]),
        )
        for name, row in rows.items()
        if "kept" in row["measured"]
    ]
    return table(("saved for the backward pass, one rank", "measured", "predicted", "ratio"), lines) if lines else ""


def guessed(rows, guesses):
    """Step times by the machine's profile, {way: seconds}, next to those measured, as text; "" without any."""
    lines = [
        (
            NAMES[name],
            ms(rows[name]["measured"]["seconds"]),
            ms(seconds),
            ratio(seconds, rows[name]["measured"]["seconds"]),
        )
        for name, seconds in guesses.items()
    ]
    return table(("by the profile of labs/calibrate.py", "ms", "predicted", "ratio"), lines) if lines else ""


# --- faults ---------------------------------------------------------------------------------------------------------

FAULTS = {
    "no-backward-reduce": "f does nothing in the backward pass of the blocks",
    "kv-copies": "ranks with copies of a key-value head do not add their gradients of it (more ranks than heads)",
}


def fault(losses, wrong, drift):
    """What a run with a fault shows, as text: losses beside one process's, the gradients of step 1 from the head down,
    how far the ranks' copies of a weight have come apart.

    losses: [(faulty, one process)] by step. wrong: {part of the model: largest relative error of its gradients}.
    drift: after each step, of what ranks have copies of.
    """
    steps = table(
        ("step", "loss", "one process", "difference", "copies differ by"),
        [
            (i + 1, f"{faulty:.6f}", f"{wanted:.6f}", f"{faulty / wanted - 1:+.1e}", f"{drift[i]:.1e}")
            for i, (faulty, wanted) in enumerate(losses)
        ],
    )
    gradients = table(
        ("gradients of step 1, from the loss backward", "largest error", ""),
        [(part, f"{error:.1e}", "WRONG" if error > WRONG else "") for part, error in wrong.items()],
    )
    first = next((part for part, error in wrong.items() if error > WRONG), None)
    return "\n".join([steps, "", gradients, "", f"the first wrong gradient, from the loss backward: {first}"])


def backwards(names):
    """Names of parameters in the order in which a backward comes to them, as {part: [names]}: head and last norm, each
    block's parts, the tables."""
    order = (
        "head",
        "norm",
        "mlp.down",
        "mlp.gate",
        "mlp.up",
        "norm2",
        "attention.out",
        "attention.v",
        "attention.k",
        "attention.q",
        "norm1",
        "positions",
        "tokens",
    )

    def key(name):
        words = name.split(".")
        inside = words[0] == "blocks"
        part = ".".join(words[2:-1]) if inside else words[0]
        ends = {"head": 0, "norm": 1, "positions": 3, "tokens": 4}
        return (2, -int(words[1]), order.index(part)) if inside else (ends[part], 0, 0)

    groups = {}
    for name in sorted(names, key=key):
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return groups
