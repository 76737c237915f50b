"""The output of a lab: prediction and measurement side by side, and the Record in words. Standard library only."""

import statistics

from scaleout.lab.text import compared, megabytes, ratio, table
from scaleout.memory.accounts import KINDS


def compare(wanted, seen):
    """Two Accounts side by side, as text: every kind at the peak of each, then the total at every moment."""
    rows = [
        (kind, *compared(wanted.peak[kind], seen.peak[kind])) for kind in KINDS if wanted.peak[kind] or seen.peak[kind]
    ]
    rows.append(("peak, all kinds", *compared(wanted.peak_bytes, seen.peak_bytes)))
    moments = [
        (name, *compared(sum(kinds.values()), sum(seen.moments[name].values())))
        for name, kinds in wanted.moments.items()
        if name in seen.moments
    ]
    return "\n".join(
        [
            table(("at the peak, one rank", "predicted", "measured", "ratio"), rows),
            "",
            f"Fullest moment: {seen.peak_moment} (measured), {wanted.peak_moment} (predicted).",
            "",
            table(("moment of the step", "predicted", "measured", "ratio"), moments),
        ]
    )


def numbers(account):
    """An Account's figures by name, for a Record: every kind at the peak, the total of every moment."""
    return {
        "peak bytes": account.peak_bytes,
        **{f"{kind} bytes at the peak": account.peak[kind] for kind in KINDS},
        **{f"bytes at {name}": sum(kinds.values()) for name, kinds in account.moments.items()},
    }


def summary(record):
    """Training and speed in a Record, one line each (list of str)."""
    r = record
    lines = [
        "",
        f"loss {r.losses[0]:.3f} to {r.losses[-1]:.3f} in {len(r.losses)} steps, {r.tokens_per_second:,.0f} tokens/s",
    ]
    if r.mfu is not None:
        lines.append(f"MFU {r.mfu:.2f} of {r.mfu_peak['flops_per_second'] / 1e9:,.0f} GFLOP/s: {r.mfu_peak['source']}")
    for name in (name for name in r.prediction if "seconds" in name):
        p, m = r.prediction[name], r.measurement[name]
        lines.append(
            f"{name}: predicted {p:.4f} (matmuls and all-reduce only), measured {m:.4f} (median), ratio {ratio(p, m)}"
        )
    band = [
        f"{megabytes(v)} {k.removeprefix('allocator: ')}"
        for k, v in r.peak_memory.items()
        if k.startswith("allocator: ")
    ]
    if band:
        lines.append("GPU allocator, not part of the ratio: " + ", ".join(band))
    return lines


def verdicts(checks, skipped=(), stalls=(), failures=()):
    """Those fields of a Record, one line each (list of str)."""
    return [
        *(
            f"{'ok    ' if check['passed'] else 'FAILED'} {name}: {check['value']:.2g} (at most {check['tolerance']:g})"
            for name, check in checks.items()
        ),
        *(f"skipped {x}" for x in skipped),
        *(f"stall: {x}" for x in stalls),
        *(f"event: {x}" for x in failures),
    ]


def pairs(rows, names, figures):
    """(prediction, measurement) of a Record: every figure with both, by name.

    rows: {way: {"predicted": {figure: number}, "measured": {figure: number}}}. names: {way: its name}. figures:
    {figure: its words}.
    """
    prediction, measurement = {}, {}
    for way, row in rows.items():
        for figure, words in figures.items():
            if row["predicted"].get(figure) is not None and row["measured"].get(figure) is not None:
                prediction[f"{words}, {names[way]}"] = row["predicted"][figure]
                measurement[f"{words}, {names[way]}"] = row["measured"][figure]
    return prediction, measurement


def median_error(rows, excluded=()):
    """Median of |predicted / measured - 1| of the step times of the ways; None if nothing was predicted."""
    errors = [
        abs(row["predicted"]["seconds"] / row["measured"]["seconds"] - 1)
        for way, row in rows.items()
        if way not in excluded and row["predicted"].get("seconds")
    ]
    return statistics.median(errors) if errors else None


def closing(rows, excluded=()):
    """One line on the error of the predicted step times, "" if there were none."""
    error = median_error(rows, excluded)
    return "" if error is None else f"predicted step times: off by {error:.0%}, median of the rows"
