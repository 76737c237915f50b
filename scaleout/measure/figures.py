"""One look for every plotted measurement in the book (matplotlib)."""

from __future__ import annotations

from scaleout.lab.picture import STYLE, name_colours
from scaleout.timing.intervals import common, subtract


def style() -> None:
    """Use the book's style and its names of colours, and store figures as SVG that is the same bytes on every run.

    Fixed bytes let nbval compare figures: the style file fixes the hash salt of element ids, and the date is left
    out. Safe to call twice; does nothing to figures outside a notebook beyond the style.
    """
    import matplotlib.pyplot as plt
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    name_colours()
    plt.style.use(STYLE)
    set_matplotlib_formats("svg", metadata={"Date": None}, bbox_inches=None)  # as wide as `figsize` says


def sweep(axes):
    """Axes for bus bandwidth against the size of a message: both logarithmic, with kB, MB and GB, and plain numbers."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator

    axes.set(xscale="log", yscale="log", xlabel="size of the message", ylabel="bus bandwidth, GB/s")
    axes.xaxis.set_major_locator(LogLocator(base=100, subs=(10,)))  # every other decade: their names are long
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def stack(axes, xs, layers, **options):
    """Areas on each other over `xs`, from the bottom up: layers is {label: (colour, opacity, values)}, and what is zero
    all along is left out. Outlines tell them apart where colours do not. `options` go to `stackplot`."""
    layers = {label: layer for label, layer in layers.items() if any(layer[2])}
    axes.stackplot(
        xs,
        [values for *_, values in layers.values()],
        labels=layers,
        edgecolor="ink",
        linewidth=0.5,
        colors=[(colour, opacity) for colour, opacity, _ in layers.values()],
        **options,
    )


def stack_legend(axes, **options):
    """Beside the axes, in the order in which a `stack` is seen: the uppermost first."""
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), **options)


# What a lane shows: how it is drawn. What waits is hatched, here as everywhere in the book.
_EDGE = {"edgecolor": "muted", "linewidth": 0.6}
LOOKS = {
    "waits for data": {"facecolor": "none", "edgecolor": "accent", "hatch": "/////", "linewidth": 0.8},
    "forward": {"facecolor": ("compute", 0.4), **_EDGE},
    "backward": {"facecolor": "compute", **_EDGE},
    "update": {"facecolor": "c2", **_EDGE},
    "computes nothing": {"facecolor": "paper", "hatch": "///", **_EDGE},
    "all-reduce": {"facecolor": "c4", "edgecolor": "paper", "linewidth": 0.4},
}
_LANE = 0.36  # height of one lane, in ranks


def lanes(axes, trace, step=0, title=""):
    """Draw one step of a `scaleout.records.trace.Trace`: each rank with its phases above and its collectives beneath.

    The horizontal axis is in milliseconds from the start of the step.
    """
    zero = min(trace.steps(rank)[step][0] for rank in trace.ranks)
    length = max(trace.steps(rank)[step][1] for rank in trace.ranks) - zero
    for rank in trace.ranks:
        window = trace.steps(rank)[step]

        def draw(kind, spans, drop=_LANE, rank=rank):
            moved = [((a - zero) * 1e3, (b - a) * 1e3) for a, b in spans]  # broken_barh takes (start, length)
            axes.broken_barh(moved, (rank - drop, _LANE), **LOOKS[kind])

        for phase in ("data", "forward", "backward", "update"):
            spans = common([(s.start, s.end) for s in trace.spans(rank, phase)], [window])
            if phase == "data":
                draw("waits for data", spans)
            else:
                draw("computes nothing", subtract(spans, trace.compute(rank)))
                draw(phase, common(spans, trace.compute(rank)))
        draw("all-reduce", [(a, b) for a, b in trace.collectives(rank) if window[0] <= a < window[1]], drop=0)
    axes.set(ylim=(max(trace.ranks) + 0.5, -0.5), xlim=(0, length * 1e3), yticks=trace.ranks)
    axes.set_yticklabels([f"rank {rank}" for rank in trace.ranks])
    axes.set_title(title)
    axes.grid(axis="y", visible=False)


def lanes_legend(figure):
    """What `lanes` draws, once for a figure."""
    import matplotlib.pyplot as plt

    marks = [plt.Rectangle((0, 0), 1, 1, **look) for look in LOOKS.values()]
    figure.legend(marks, LOOKS, loc="outside lower left", ncols=3)
