"""The profile of a machine, as `labs/calibrate.py` measured it, and the seconds predicted from it.

A prediction of seconds is for this machine, not for a datasheet: matrix-product rates, copy bandwidth, and
the time of each collective as alpha + bytes * beta at one world size. The file that holds one: `records.profiles`.
"""

from scaleout.spec import checks


def fit(points):
    """Fit seconds = alpha + bytes * beta to [(bytes, seconds), ...], none of either below zero.

    Least squares of the *relative* error, (fitted - seconds) / seconds, so that the small messages, which
    alone show alpha, weigh as much as the large ones. Returns {"alpha_seconds", "seconds_per_byte",
    "points": [{"bytes", "seconds", "fitted", "relative_error"}], "worst_relative_error"}.
    ValueError with fewer than two sizes.
    """
    if len({size for size, _ in points}) < 2:
        raise ValueError("a line needs at least two sizes of message")
    # With weights w = 1 / seconds the residuals are alpha*w + beta*(bytes*w) - 1: two normal equations.
    w = [1 / seconds for _, seconds in points]
    x = [size / seconds for size, seconds in points]
    ww, wx, xx, w1, x1 = _dot(w, w), _dot(w, x), _dot(x, x), sum(w), sum(x)
    beta = (ww * x1 - wx * w1) / (ww * xx - wx * wx)
    alpha = (w1 - beta * wx) / ww
    if beta < 0:
        alpha, beta = w1 / ww, 0.0
    if alpha < 0:
        alpha, beta = 0.0, x1 / xx
    rows = [
        {
            "bytes": size,
            "seconds": seconds,
            "fitted": alpha + size * beta,
            "relative_error": (alpha + size * beta) / seconds - 1,
        }
        for size, seconds in points
    ]
    return {
        "alpha_seconds": alpha,
        "seconds_per_byte": beta,
        "points": rows,
        "worst_relative_error": max(abs(row["relative_error"]) for row in rows),
    }


def pieces(points):
    """Two lines instead of one: [fit of the short messages, fit of the long], three sizes each at least.

    The split that leaves the smallest sum of squared relative errors. A library changes its protocol with the size,
    so that one alpha and one beta cannot hold for all. [] with fewer than six sizes.
    """
    ordered = sorted(points)
    splits = [(fit(ordered[:split]), fit(ordered[split:])) for split in range(3, len(ordered) - 2)]

    def error(pair):
        return sum(row["relative_error"] ** 2 for fitted in pair for row in fitted["points"])

    return list(min(splits, key=error, default=()))


def _dot(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True))


def collective_seconds(profile, name, size):
    """Seconds of one collective on `size` bytes (the whole message), by the profile's alpha and beta."""
    checks.number("size", size, 0)
    lines = profile.get("collectives") if isinstance(profile, dict) else None
    if not isinstance(lines, dict):
        raise ValueError(f"profile must be one by labs/calibrate.py, with collectives, not {checks.said(profile)}")
    line = lines.get(name) if isinstance(name, str) else None
    if line is None:
        raise ValueError(f"this machine profile holds no {name!s:.80}: calibrate it with more than one process")
    return line_seconds(line, size)


def line_seconds(line, size):
    """Seconds of a message of `size` bytes by a line that `fit` gave: alpha + bytes * beta."""
    return line["alpha_seconds"] + size * line["seconds_per_byte"]


def rate(profile, dtype):
    """FLOP/s of matmuls in `dtype`, per rank. ValueError if the profile has none."""
    rates = profile["matmul_flops_per_second"]
    if dtype not in rates:
        raise ValueError(f"this machine profile has no rate for {dtype}: it has {', '.join(sorted(rates))}")
    return rates[dtype]


def mfu(profile, flops, dtype, seconds):
    """(model FLOPs utilization, its peak for a Record) of a step whose every rank does `flops` in `seconds`.

    Relative to the matmuls that calibrate measured, not to a datasheet, so it says how much of this machine's rate the
    step reached. The peak is of all ranks together.
    """
    peak = profile["matmul_flops_per_second"][dtype] * profile["world"]
    source = f"{dtype} matmuls by labs/calibrate.py on {profile['world']} process(es), {profile['measured']}"
    return flops * profile["world"] / seconds / peak, {"flops_per_second": peak, "source": source}
