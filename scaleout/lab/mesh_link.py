"""The prediction, the Record and the table of labs/mesh.py --link: one layout whose axes cross a slow link in turn.
Standard library only."""

import statistics

from scaleout.lab import nodes
from scaleout.lab.hosts import GOODPUT, burst
from scaleout.lab.text import megabytes, ms, ratio, table
from scaleout.records import results

SHARE = {"all_reduce": 1.0, "send": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5}  # of its size, in a ring of two


def predicted(quiet, messages, gap, rate):
    """Step time when communication crosses a link of `rate` bit/s, from the step time at full speed (`quiet`).

    messages: [(collective, bytes, times)] that leave a host, of all its ranks together, which send at the same time.
    What the link lets through at once (`burst`) fills up again in the `gap` seconds between two messages. A pipeline's
    send is overlapped while there is another micro-batch to work on: with two stages only the first activations and
    the last gradients are exposed, unless a send takes longer than a stage's work between two of them.
    """
    if rate is None:
        return quiet
    free, speed, extra = min(burst(rate), gap * rate / 8), rate * GOODPUT / 8, 0.0
    for kind, size, times in messages:
        wire = max(0.0, size - free) / speed
        hidden = kind == "send" and times > 2 and wire < quiet / times
        extra += wire * (2 if hidden else times)
    return quiet + extra


def crossing(messages, ranks):
    """[(collective, bytes, times)] that leave a host along the axis that lies across the two: of `messages`, the same
    of a rank of a group of two, and `ranks` groups."""
    return [(kind, ranks * SHARE[kind] * size, times) for kind, size, times in messages]


def record(tier, plan, result):
    """The Record of a run. plan: what the ranks were asked to do; result: what rank 0 wrote."""
    middles = {case["name"]: statistics.median(case["step_seconds"]) for case in result["cases"]}
    first, cases = result["cases"][0], result["cases"]
    quiet = statistics.median(middles[case["name"]] for case in cases if case["rate"] is None)
    guesses = {case["name"]: predicted(quiet, case["messages"], quiet / case["asked"], case["rate"]) for case in cases}
    slow = [case for case in cases if case["rate"]]
    names = [case["name"] for case in sorted(slow, key=lambda case: guesses[case["name"]])]
    best, worst = names[0], names[-1]
    pairs = {f"seconds per step, {name}": seconds for name, seconds in guesses.items()}
    label = f"{worst}, beside {best}"
    return nodes.record(
        "mesh",
        tier,
        result["facts"],
        2,
        "shaped by tbf",
        plan["sequences"],
        plan["seq"],
        first,
        model=plan["model"],
        recipe={"layout": result["layout"], "link Mbit/s": slow[0]["rate"] / 1e6}
        | {
            f"bytes that leave a host, {case['name']}": sum(size * times for _, size, times in case["messages"])
            for case in slow
        },
        prediction=pairs | {label: guesses[worst] / guesses[best]},
        measurement={f"seconds per step, {name}": middles[name] for name in guesses}
        | {label: middles[worst] / middles[best]},
        series={f"seconds per step, {case['name']}": case["step_seconds"] for case in cases},
    )


def named(axis, rate):
    """A case: which axis lies across the hosts, over which link."""
    return f"{axis} across, " + ("no limit" if rate is None else f"{rate / 1e6:g} Mbit/s")


def show(r):
    """The Record of a run as text."""
    head = "seconds per step, "
    rows = []
    for name in r.prediction:
        if name.startswith(head):
            sent = r.recipe.get(f"bytes that leave a host, {name.removeprefix(head)}")
            rows.append(
                (
                    name.removeprefix(head),
                    megabytes(sent),
                    ms(r.prediction[name]),
                    ms(r.measurement[name]),
                    ratio(r.prediction[name], r.measurement[name]),
                )
            )
    label = next(name for name in r.prediction if not name.startswith(head))
    return table(("ms per step", "leaves a host", "predicted", "measured", "ratio"), rows) + (
        f"\n{label}: {r.prediction[label]:.1f} times as long predicted, {r.measurement[label]:.1f} measured"
    )


def recorded(folder):
    """The recorded runs (list of Record)."""
    return [results.load(path) for path in sorted(folder.glob("*-link.json"))]
