"""Memory over time: as a picture, and as a file that torch's memory visualiser reads."""

import os
import pickle
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch

from scaleout.memory import KINDS


@contextmanager
def written_whole(path):
    """A temporary path beside `path` that takes its name at the end, or goes away after an error."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
        os.close(handle)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}): choose another folder") from None
    try:
        yield Path(name)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def snapshot(s, work, path):
    """Run `work()` and write every allocation in it to `path` (.pickle), for https://pytorch.org/memory_viz.

    On a GPU this is the allocator's own history. A CPU allocator keeps none, and torch's profiler stands in:
    it sees the same allocations and frees. All ranks work, rank 0 writes. Returns, in words, what was used.
    """
    if not s.main:
        work()
        return ""
    if s.device.type == "cuda":
        torch.cuda.memory._record_memory_history()
        try:
            work()
            s.synchronize()
            with written_whole(path) as temporary:
                torch.cuda.memory._dump_snapshot(str(temporary))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        return "the CUDA allocator's history"
    from torch.cuda._memory_viz import _profile_to_snapshot
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True,
                 with_stack=True) as seen:
        work()
    with written_whole(path) as temporary, temporary.open("wb") as stream:
        pickle.dump(_profile_to_snapshot(seen), stream)
    return "torch's profiler, as a CPU allocator keeps no history"


def plot(timeline, path, title):
    """Draw bytes by kind over the operations of a step, with its moments, to `path` (.svg, .png or .pdf).

    timeline: [(moment, operation, {kind: bytes})], in order. The same timeline gives the same SVG.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = [kind for kind in KINDS if any(bytes_by[kind] for _, _, bytes_by in timeline)]
    layers = [[bytes_by[kind] / 1e6 for _, _, bytes_by in timeline] for kind in shown]
    with pyplot.style.context("scaleout.style"):
        figure, axes = pyplot.subplots()
        axes.stackplot(range(len(timeline)), *layers, labels=shown, step="post", linewidth=0,
                       colors=[f"C{KINDS.index(kind)}" for kind in shown])
        _mark_moments(axes, [moment for moment, _, _ in timeline])
        axes.set(xlabel="operations of one step", ylabel="MB (10^6 bytes)", xlim=(0, len(timeline) - 1))
        axes.set_title(title, pad=16)
        axes.legend(*(x[::-1] for x in axes.get_legend_handles_labels()), loc="upper left",
                    bbox_to_anchor=(1.0, 1.0))
        with written_whole(path) as temporary:
            try:
                figure.savefig(temporary, metadata={"Date": None} if Path(path).suffix == ".svg" else None)
            except ValueError as error:
                raise ValueError(f"{path}: {error}".split(" (")[0] + ": use .svg, .png or .pdf") from None
            finally:
                pyplot.close(figure)


def _mark_moments(axes, moments):
    """A line where a moment begins, and its name above where there is room for it."""
    room, last = len(moments) / 18, -len(moments)
    for i, moment in enumerate(moments):
        if i and moment == moments[i - 1]:
            continue
        if i:
            axes.axvline(i, color="#767676", linewidth=0.7, linestyle=":")
        if i - last > room:
            axes.annotate(moment, (i, 1.01), xycoords=("data", "axes fraction"), fontsize=8.5)
            last = i
