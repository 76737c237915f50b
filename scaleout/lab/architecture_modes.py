"""What labs/architecture.py prints of input, saves and placement, and the Record of placement.

Standard library only.
"""

import statistics

from scaleout.lab import mesh_link, nodes
from scaleout.lab.text import megabytes, ms, ratio, table
from scaleout.records import results


def speeds(found, tokens):
    """Loaders as text. found: {workers: (predicted, measured) seconds per step}; tokens: of a step."""
    rows = [
        (
            f"{workers} worker{'s' * (workers != 1)}",
            ms(predicted),
            ms(measured),
            ratio(predicted, measured),
            f"{tokens / measured:,.0f}",
        )
        for workers, (predicted, measured) in found.items()
    ]
    return table(("ms per step", "predicted", "measured", "ratio", "tokens/s"), rows)


def packing(documents, row, padded, packed):
    """Shares of real tokens as text. documents: how many; row: tokens."""
    return (
        f"\n{documents:,} documents in rows of {row} tokens: {padded:.1%} of the tokens are real if each document is "
        f"padded,\n{packed:.1%} if documents are packed\n"
    )


def resumed(found, predicted):
    """Resumed runs as text. found: {way: (seconds until the first batch, wrong batches)}; predicted: {way: seconds}."""
    rows = [(way, wrong, ms(predicted[way]), ms(seconds)) for way, (seconds, wrong) in found.items()]
    return table(("resumed", "other batches", "first batch predicted, ms", "measured, ms"), rows)


def saves(rows):
    """Saves as text. rows: [(way, number of saves, seconds that one blocks, predicted and measured, seconds of
    the next step, and of others)]."""
    cells = [
        (way, count, ms(predicted), ms(measured), ratio(predicted, measured), ms(after), ms(others))
        for way, count, predicted, measured, after, others in rows
    ]
    header = ("saves", "number", "blocks, predicted, ms", "measured, ms", "ratio", "next step, ms", "other steps, ms")
    return table(header, cells)


# --- placement ----------------------------------------------------------------------------------------------


def crossing(plan, placement, local):
    """[(collective, bytes, times)] that leave a host per step, of its `local` ranks together, whose all-reduces over
    pairs of ranks run at the same time."""
    calls = {"activations": plan["calls"], "gradients": 1}
    kind = "gradients" if placement == "well" else "activations"
    return mesh_link.crossing([("all_reduce", plan[kind], calls[kind])], local)


def record(tier, plan, figures, hosts):
    """The Record of a run. plan: what the ranks were asked to do; figures: what rank 0 wrote."""
    middles = {named(case): statistics.median(case["step_seconds"]) for case in figures["cases"]}
    quiet = {case["placement"]: middles[named(case)] for case in figures["cases"] if case["rate"] is None}
    guesses, leaving = {}, {}
    for case in figures["cases"]:
        messages = crossing(plan, case["placement"], figures["local"])
        gap = plan["device"] / plan["calls"] if case["placement"] == "badly" else quiet["well"]
        guesses[named(case)] = mesh_link.predicted(quiet[case["placement"]], messages, gap, case["rate"])
        leaving[case["placement"]] = sum(size * times for _, size, times in messages)
    return nodes.record(
        "architecture", tier, figures["facts"], hosts, "shaped by tbf", None, None,
        figures["cases"][0],
        model={},
        recipe={"link Mbit/s": max(case["rate"] or 0 for case in figures["cases"]) / 1e6}
        | {"ranks per host": figures["local"]}
        | {f"bytes that leave a host, placed {name}": size for name, size in leaving.items()},
        prediction={f"seconds per step, {name}": seconds for name, seconds in guesses.items()},
        measurement={f"seconds per step, {name}": seconds for name, seconds in middles.items()},
        series={f"seconds per step, {named(case)}": case["step_seconds"] for case in figures["cases"]},
    )  # fmt: skip


def named(case):
    """A case: where the groups lie, over which link."""
    rate = case["rate"]
    return f"placed {case['placement']}, " + ("no limit" if rate is None else f"{rate / 1e6:g} Mbit/s")


def placement(r):
    """The Record of a run as text."""
    rows = []
    for name, predicted in r.prediction.items():
        words = name.removeprefix("seconds per step, ")
        leaves = r.recipe[f"bytes that leave a host, {words.partition(', ')[0]}"]
        measured = r.measurement[name]
        rows.append((words, megabytes(leaves), ms(predicted), ms(measured), ratio(predicted, measured)))
    return table(("ms per step", "leaves a host", "predicted", "measured", "ratio"), rows)


def recorded(folder):
    """The recorded runs (list of Record)."""
    return [results.load(path) for path in sorted(folder.glob("*-placement.json"))]
