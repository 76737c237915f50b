"""One look for every plotted measurement in the book (matplotlib)."""

from __future__ import annotations

from scaleout.timing.intervals import common


def style() -> None:
    """Use the book's style, and store figures as SVG that is the same bytes on every run.

    Fixed bytes let nbval compare figures: the style file fixes the hash salt of element ids, and the date is left
    out. Safe to call twice; does nothing to figures outside a notebook beyond the style.
    """
    import matplotlib.pyplot as plt
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    plt.style.use("scaleout.draw.style")
    set_matplotlib_formats("svg", metadata={"Date": None})


def sweep(axes):
    """Axes for bus bandwidth against the size of a message: both logarithmic, with kB, MB and GB, and plain numbers."""
    from matplotlib.ticker import EngFormatter, FuncFormatter

    axes.set(xscale="log", yscale="log", xlabel="size of the message", ylabel="bus bandwidth, GB/s")
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


PHASE_COLOURS = {"data": "C4", "forward": "C5", "backward": "C0", "update": "C7"}
_LANE = 0.36  # height of one lane, in ranks


def lanes(axes, trace, step=0, title=""):
    """Draw one step of a `scaleout.records.trace.Trace`: each rank with its phases above and its collectives beneath.

    The horizontal axis is in milliseconds from the start of the step. A phase is pale where the rank computes nothing.
    """
    zero = min(trace.steps(rank)[step][0] for rank in trace.ranks)
    length = max(trace.steps(rank)[step][1] for rank in trace.ranks) - zero
    for rank in trace.ranks:
        own = trace.steps(rank)[step]
        busy = trace.compute(rank)
        for phase, colour in PHASE_COLOURS.items():
            spans = common([(s.start, s.end) for s in trace.spans(rank, phase)], [own])
            pale = 1.0 if phase == "data" else 0.3
            axes.broken_barh(_milliseconds(spans, zero), (rank - _LANE, _LANE), color=colour, alpha=pale, linewidth=0)
            axes.broken_barh(
                _milliseconds(common(spans, busy), zero), (rank - _LANE, _LANE), color=colour, linewidth=0
            )
        sent = [(a, b) for a, b in trace.collectives(rank) if own[0] <= a < own[1]]
        axes.broken_barh(_milliseconds(sent, zero), (rank, _LANE), facecolor="C1", edgecolor="white", linewidth=0.4)
    axes.set(ylim=(max(trace.ranks) + 0.5, -0.5), xlim=(0, length * 1e3), yticks=trace.ranks)
    axes.set_yticklabels([f"rank {rank}" for rank in trace.ranks])
    axes.set_title(title)
    axes.grid(axis="y", visible=False)


def _milliseconds(spans, zero):
    """(start, length) pairs in milliseconds, as broken_barh takes them."""
    return [((a - zero) * 1e3, (b - a) * 1e3) for a, b in spans]


def lanes_legend(figure):
    """The colours of `lanes`, once for a figure."""
    import matplotlib.pyplot as plt

    phases = {"waits for data" if phase == "data" else phase: colour for phase, colour in PHASE_COLOURS.items()}
    names = {**phases, "all-reduce": "C1"}
    marks = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in names.values()]
    figure.legend(marks, names, loc="outside lower center", ncols=len(names))
