"""torch.profiler on every rank, and the ranks' traces in one file that Perfetto opens."""

import json
import os
import tempfile
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from scaleout.records import chrome, trace
from scaleout.records.files import written_whole

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it says on stderr that it starts and stops
phase = record_function  # `with phase("forward"): ...`; the names are chrome.PHASES


def traced(s, step, count, extra=lambda: (), detailed=True):
    """The Trace of `count` calls step(0), step(1), ... on all ranks together; the same on every rank.

    s: a lab.session.Session. extra: events that the profiler does not see, as `chrome.event` makes them, on the wall
    clock in seconds; this rank's. detailed: with every operation, for a file; else as `trace.thin` has it, which ranks
    send each other in a hundredth of the bytes. Ranks on several hosts are as far apart as their clocks.
    """
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (s.device.type == "cuda")
    s.barrier()
    with profile(activities=activities, record_shapes=True) as seen:
        for i in range(count):
            with phase("step"):
                step(i)
        s.synchronize()
    with trace.uncollected():
        mine = [*chrome.one_rank(_exported(seen), s.rank), *extra()]
        if not detailed:
            mine = trace.thin(trace.Trace(mine)).events
        return trace.merge(s.gathered(mine))


def _exported(seen):
    """What a profile writes, parsed."""
    handle, name = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        seen.export_chrome_trace(name)
        return json.loads(Path(name).read_text(encoding="utf-8"))
    finally:
        Path(name).unlink(missing_ok=True)


def write(traced, path):
    """Write a Trace to `path` (.json), all or nothing. Returns the Path."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(trace.to_json(traced), separators=(",", ":")) + "\n", encoding="utf-8")
    return Path(path)
