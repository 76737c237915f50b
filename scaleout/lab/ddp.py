"""What the lab of data parallelism prints: the five ways side by side, a faulty run next to a healthy one, and why DDP
may be slower than one process. Standard library only."""

import statistics

from scaleout.lab.text import count, megabytes, ms, ratio, table

NAMES = {
    "one": "one process, all threads",
    "hand": "naive",
    "buckets": "buckets by hand",
    "torch": "torch DDP",
    "accelerate": "Accelerate",
    "alone": "nothing sent",
}
NOT_WAYS = ("one", "alone")  # baselines without communication
FIGURES = {
    "seconds": "seconds per step",
    "exposed": "exposed seconds per step",
    "collectives": "collectives per step",
    "bytes": "bytes per step",
}


def ways(rows):
    """The ways side by side, as text: step time, exposed communication, collectives and bytes; median of the steps."""
    lines = []
    for way, row in rows.items():
        p, m = row["predicted"], row["measured"]
        lines.append(
            (
                NAMES[way],
                ms(m["seconds"]),
                ms(p.get("seconds")),
                ratio(p.get("seconds"), m["seconds"]),
                ms(m.get("exposed")),
                ms(p.get("exposed")),
                count(m.get("collectives")),
                megabytes(m.get("bytes")),
                f"{row['loss']:.4f}" if "loss" in row else "-",
            )
        )
    return table(
        ("one step", "ms", "predicted", "ratio", "exposed, ms", "predicted", "collectives", "reduced", "last loss"),
        lines,
    )


def fault(healthy, faulty, name):
    """Two summaries of traces side by side, as text; one figure per rank where ranks differ."""

    def rows(summary):
        figures = {"step, ms (median)": ms(statistics.median(summary["step_seconds"]))}
        for figure in ("compute", "communication", "exposed", "waited", "data"):
            for rank, seconds in summary[f"{figure}_seconds"].items():
                figures[f"{figure}, rank {rank}, ms"] = ms(seconds)
        rate = summary["bytes_per_second"]
        return figures | {
            "collectives": count(summary["collectives"]),
            "size of a collective": megabytes(summary["bytes_each"]),
            "rate, MB/s": "-" if rate is None else f"{rate / 1e6:,.0f}",
        }

    healthy_rows, faulty_rows = rows(healthy), rows(faulty)
    return table(("per step", "healthy", name), [(key, healthy_rows[key], faulty_rows[key]) for key in healthy_rows])


BUSY = 2.0  # times its prediction: one process on an idle machine stays well below


def why(rows, world, one_threads, threads):
    """Why DDP may be slower than one process, as text, in this run's own numbers."""
    if not {"one", "torch", "alone"} <= set(rows) or world == 1:
        return ""
    single, ddp, alone = (rows[way]["measured"]["seconds"] for way in ("one", "torch", "alone"))
    times = single / rows["one"]["predicted"]["seconds"]
    if times > BUSY:  # threads that wait for a core spin, and lose it
        return (
            f"one process took {times:.1f} times its predicted step time: the machine is busy, so DDP is not compared "
            "with it"
        )
    comparison = "slower" if ddp > single else "faster"
    size = megabytes(rows["torch"]["measured"].get("bytes"))
    lines = [
        (
            f"one process x {one_threads} thread(s), the whole batch",
            single,
            "one copy of the weights, no communication",
        ),
        (f"{world} processes x {threads} thread(s), nothing sent", alone, "the same work on the same cores"),
        (f"{world} processes, DDP", ddp, f"{ms(ddp - alone)} ms per step to average {size} of gradients"),
    ]
    return "\n".join(
        [
            f"DDP is {max(ddp, single) / min(ddp, single):.2f} times {comparison} than one process on the same batch "
            "and cores:",
            *(f"  {label:<42} {ms(seconds):>8} ms   {words}" for label, seconds, words in lines),
        ]
    )
