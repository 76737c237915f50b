"""Memory over time: as a picture, and as a file that torch's memory visualiser reads."""

import pickle

from scaleout.draw.kinds import COLOURS, PALE
from scaleout.lab.picture import picture
from scaleout.measure import figures
from scaleout.memory.accounts import KINDS
from scaleout.parallel import private
from scaleout.records.files import written_whole

POINTS = 250  # a picture shows no more, and its file stays small
LEAST_WIDTH = 0.13  # of the axis, for a moment: as much as its name takes


def snapshot(s, work, path):
    """Run `work()` and write every allocation in it to `path` (.pickle), for https://docs.pytorch.org/memory_viz.

    On a GPU this is the allocator's own history. A CPU allocator keeps none, and torch's profiler stands in:
    it sees the same allocations and frees. All ranks work, rank 0 writes. Returns, in words, what was used.
    """
    if not s.main:
        work()
        return ""
    if s.device.type == "cuda":
        private.record_memory_history()
        try:
            work()
            s.synchronize()
            with written_whole(path) as temporary:
                private.dump_snapshot(str(temporary))
        finally:
            private.record_memory_history(enabled=None)
        return "the CUDA allocator's history"
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as seen:
        work()
    with written_whole(path) as temporary, temporary.open("wb") as stream:
        pickle.dump(private.profile_to_snapshot(seen), stream)
    return "torch's profiler, as a CPU allocator keeps no history"


def thin(timeline, limit=POINTS):
    """At most about `limit` entries [(position, moment, {kind: bytes})]: the fullest of each run of neighbours.

    A run never crosses a moment's border, so that every moment keeps its peak.
    """
    stride, points = max(1, -(-len(timeline) // limit)), []
    for i, (moment, _, kinds) in enumerate(timeline):
        if not points or points[-1][1] != moment or i // stride != points[-1][0] // stride:
            points.append((i, moment, kinds))
        elif sum(kinds.values()) > sum(points[-1][2].values()):
            points[-1] = (i, moment, kinds)
    return points


def spread(moments, least=LEAST_WIDTH):
    """(left edges of the entries, {moment: (left, right)}) on an axis from 0 to 1.

    Entries of a moment are evenly wide, and a moment is drawn as if at least the share `least` of all entries
    were its own: the optimizer's update is a handful of operations, and often the peak.
    """
    names = list(dict.fromkeys(moments))
    counts = [moments.count(name) for name in names]
    wide = [max(n / len(moments), least) for n in counts]
    edges, spans, x = [], {}, 0.0
    for name, n, width in zip(names, counts, wide, strict=True):
        width /= sum(wide)
        spans[name] = (x, x + width)
        edges += [x + width * k / n for k in range(n)]
        x += width
    return edges, spans


def plot(timeline, path, title):
    """Draw bytes by kind through the operations of a step, moment by moment, to `path` (.svg, .png or .pdf).

    timeline: [(moment, operation, {kind: bytes})], in order. The same timeline gives the same SVG.
    """
    points = thin(timeline)
    edges, spans = spread([moment for _, moment, _ in points])
    stacks = [kinds for _, _, kinds in points] + [points[-1][2]]  # the last entry has a right edge too
    large = max(sum(kinds.values()) for kinds in stacks) > 1e10
    with picture(path) as (_, axes):
        unit = 1e9 if large else 1e6
        layers = {kind: (COLOURS[kind], PALE.get(kind, 1), [kinds[kind] / unit for kinds in stacks]) for kind in KINDS}
        figures.stack(axes, [*edges, 1.0], layers, step="post")
        axes.set(
            xlim=(0, 1),
            xticks=[],
            ylabel="GB (10^9 bytes)" if large else "MB (10^6 bytes)",
            xlabel="operations of one step, in order (short moments are widened)",
        )
        _name_moments(axes, spans)
        axes.set_title(title, pad=18)
        figures.stack_legend(axes)


def _name_moments(axes, spans):
    """Each moment's name above its span, and a line between two."""
    for name, (start, right) in spans.items():
        if start:
            axes.axvline(start, color="muted", linewidth=0.7, linestyle=":")
        axes.annotate(
            name, ((start + right) / 2, 1.01), xycoords=("data", "axes fraction"), fontsize="small", ha="center"
        )
