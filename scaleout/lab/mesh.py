"""What the lab of three axes reads and prints: a layout by its degrees, an order of axes, what each axis sends and each
rank stores, layouts by their predicted step times. Standard library only."""

from dataclasses import replace

from scaleout.lab.text import fixed, megabytes, ms, ratio, table
from scaleout.spec import checks, layout_words
from scaleout.spec.slices import divides

NAMES = {"one": "one process", "hand": "by hand", "torch": "torch", "accelerate": "Accelerate's mesh, torch's parts"}
SHORT = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "send": "sends"}
SURE = 2.0  # times as long: what is predicted to be nearer is not told apart where others use the machine
FACTOR = 3.0  # how many times as long the next of the chosen layouts should take, at most

# --- what is asked for ----------------------------------------------------------------------------------------------


def usual(world):
    """The layout that nobody asked for: of eight ranks two along each axis."""
    return f"tp={2 if world % 2 == 0 else 1},pp={2 if world % 4 == 0 else 1}"


def order(text):
    """--order as the axes of a grid, outermost first: "tp,dp,pp". Context parallelism, of which there is none, goes
    with dp. ValueError where it is not these three."""
    axes = text.split(",")
    if sorted(axes) != ["dp", "pp", "tp"]:
        raise ValueError(f"--order {text}: name dp, tp and pp once each, the outermost first: pp,dp,tp")
    return tuple(axis for name in axes for axis in ((name, "cp") if name == "dp" else (name,)))


def layout(shape, text, world, sequences, sequence_parallel=False):
    """(Layout of so many ranks, sequences of a micro-batch) of what --layout says, as `spec.layout_words` reads it.

    sequences: of a step, of all replicas. Where m is not given, micro-batches are two for each stage of a pipeline, as
    far as the sequences allow it, else one. ValueError, in one line with what works.
    """
    parsed = layout_words.parse(text, world, shape, zero=0)
    cut = {"sequence_parallel": sequence_parallel and parsed.tp > 1, "gather_again": False}
    parsed = replace(parsed, **cut, zero=parsed.zero if parsed.dp > 1 else 0)
    limit = max(1, sequences // parsed.dp // (2 * parsed.pp)) if parsed.pp > 1 else None
    parsed = layout_words.micro_batches(parsed, sequences, None if parsed.micro_batches else limit)
    return parsed, sequences // parsed.dp // parsed.m


def layouts(shape, world, sequences, **options):
    """[(Layout, sequences of a micro-batch)]: all that this many ranks, this shape and these sequences can have."""
    cuts = [(tp, pp) for tp in checks.divisors(world) for pp in checks.divisors(world // tp)]
    return [
        layout(shape, f"tp={tp},pp={pp}", world, sequences, **options)
        for tp, pp in cuts
        if divides(shape, tp) and pp <= shape.layers and sequences % (world // (tp * pp)) == 0
    ]


def title(layout):
    """A layout in words: "dp 2 x tp 2 x pp 2"."""
    return f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp}" + (f", v = {layout.chunks}" if layout.chunks > 1 else "")


# --- what one layout sends and holds --------------------------------------------------------------------------------


def sent(rows):
    """What each axis sends in a step, of one rank of each stage, as text. rows: [(rank of the pipeline, found,
    wanted)], both {axis: {collective: (bytes, calls)}}."""
    lines = []
    for rank, counted, wanted in rows:
        for axis in dict.fromkeys((*wanted, *counted)):
            mine, predicted = (side.get(axis, {}) for side in (counted, wanted))
            size = [sum(entry[0] for entry in side.values()) for side in (predicted, mine)]
            kilobytes = [fixed(sent, 1e3) for sent in size]
            lines.append(
                (
                    f"stage {rank}, along {axis}",
                    calls(mine),
                    calls(predicted),
                    *kilobytes,
                    ratio(*size),
                )
            )
    return table(("a rank sends", "calls", "predicted", "kB predicted", "kB", "ratio"), lines) if lines else ""


def calls(messages):
    """{"all_reduce": (bytes, 8)} as "8 AR"."""
    return " + ".join(f"{entry[1]} {SHORT.get(name, name)}" for name, entry in sorted(messages.items())) or "-"


def state_table(rows):
    """Memory of a rank of each stage, as text. rows: [(rank of the pipeline, {state: bytes}, the same predicted)]."""
    lines = [
        (
            f"stage {rank}, {name}",
            megabytes(predicted[name]),
            megabytes(measured[name]),
            ratio(predicted[name], measured[name]),
        )
        for rank, measured, predicted in rows
        for name in measured
    ]
    return table(("memory of a rank", "predicted", "measured", "ratio"), lines)


def steps(rows):
    """Step times by way, as text. rows: {way: (measured, predicted or None)}."""
    lines = [(NAMES[via], ms(seconds), ms(guess), ratio(guess, seconds)) for via, (seconds, guess) in rows.items()]
    return table(("", "ms per step", "predicted", "ratio"), lines)


# --- all layouts ----------------------------------------------------------------------------------------------------


def chosen(guesses, limit=4):
    """Of {layout: seconds} those to run: up to `limit`, each at least so many times as long as the one before that no
    greater factor leaves as many. (names from the fastest on, that factor)."""
    ranked = sorted(guesses, key=guesses.get)
    for tenths in range(round(10 * FACTOR), 10, -1):
        picked = ranked[:1]
        for name in ranked[1:]:
            if guesses[name] >= tenths / 10 * guesses[picked[-1]]:
                picked.append(name)
        if len(picked) >= limit:
            return [*picked[: limit - 1], picked[-1]], tenths / 10
    return ranked[:limit], 1.0


def ranking(rows):
    """All layouts from the fastest on, as text. rows: [{"name", "seconds", "parts", "measured" or None}]."""
    lines = []
    for i, row in enumerate(sorted(rows, key=lambda row: row["seconds"])):
        parts = row["parts"]
        lines.append(
            (
                f"{i + 1:2} {row['name']}",
                ms(row["seconds"]),
                *(ms(parts[name]) for name in parts),
                ms(row["measured"]),
                ratio(row["seconds"], row["measured"]),
            )
        )
    return table(("predicted, ms per step", "in all", *rows[0]["parts"], "measured", "ratio"), lines)


def inversions(wanted, measured):
    """(how many pairs of seconds are in another order in the second list, how many were judged): those that the first
    has at least SURE times apart."""
    pairs = [
        (i, j)
        for i in range(len(wanted))
        for j in range(i)
        if max(wanted[i], wanted[j]) >= SURE * min(wanted[i], wanted[j])
    ]
    return sum((wanted[i] - wanted[j]) * (measured[i] - measured[j]) < 0 for i, j in pairs), len(pairs)


def decides(rows):
    """One line on what the slowest has more of than the fastest."""
    fast, slow = (pick(rows, key=lambda row: row["seconds"]) for pick in (min, max))
    name = max(slow["parts"], key=lambda part: slow["parts"][part] - fast["parts"][part])
    difference = slow["seconds"] - fast["seconds"]
    share = (slow["parts"][name] - fast["parts"][name]) / difference if difference else 0.0
    times = slow["seconds"] / fast["seconds"]
    return f"{slow['name']} takes {times:.1f} times as long as {fast['name']}: {share:.0%} of the difference is {name}"


def made_of(parts):
    """The predicted step by what it is made of, in a line."""
    return "predicted from its parts: " + " + ".join(
        f"{ms(seconds)} ms {name}" for name, seconds in parts.items() if seconds
    )


def profile_lines(profiled, seconds, world, cores=None):
    """Lines on what the machine's profile predicts beside what was measured; none where there is no profile. cores:
    that ranks share, None where each has a device of its own."""
    if not profiled:
        return []
    line = f"predicted from the machine's profile: {ms(profiled)} ms, {ratio(profiled, seconds)} of what was measured"
    if cores and cores < world and profiled < seconds:
        line += (
            f" ({world} ranks share {cores} core{'s' * (cores > 1)}: in a step they also wait for ranks that "
            "compute, which collectives that are measured one after another do not)"
        )
    return [line]


# --- faults ---------------------------------------------------------------------------------------------------------

FAULTS = {
    "tensor": "the plan that cuts matrices matches none: every rank along tp has the whole matrices",
    "replicas": "the group that averages gradients along dp has one rank",
    "data": "ranks along tp read different sequences",
    "norms": "gradients of norms are not summed along tp (with --sequence-parallel)",
    "tie": "gradients of tied embeddings are not summed along pp",
}
WRONG = 1e-3  # relative error that is no rounding


def fault(losses, error, findings):
    """What a run with a fault shows, as text: losses next to those of one process, the worst gradient of step 1, and
    what each check says.

    losses: [(faulty, one process)] by step. error: largest relative error of a gradient at step 1. findings: {check:
    what it says, "" for nothing}.
    """
    rows = [
        (i + 1, f"{seen:.6f}", f"{wanted:.6f}", f"{seen / wanted - 1:+.1e}") for i, (seen, wanted) in enumerate(losses)
    ]
    steps = table(("step", "loss", "one process", "difference"), rows)
    gradients = f"gradients of step 1: off by at most {error:.1e}" + (" (WRONG)" if error > WRONG else "")
    width = max(map(len, findings))
    lines = [f"{name.ljust(width)}  {words or 'finds nothing'}" for name, words in findings.items()]
    return "\n".join([steps, "", gradients, "", *lines])
