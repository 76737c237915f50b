"""Events of a Chrome trace, as torch.profiler writes them: whose they are, and what each one is.

The format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Its times are microseconds.
Standard library only.
"""

import math
import re

PHASES = ("step", "data", "forward", "backward", "reduce", "update")      # spans that the labs write around their work
WIDTHS = {"float": 4, "double": 8, "c10::half": 2, "c10::bfloat16": 2, "long int": 8, "int": 4, "unsigned char": 1,
          "signed char": 1, "bool": 1, "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
FIELDS = ("name", "cat", "ph", "pid", "tid", "ts", "dur", "args")


def ranks(events):
    """{process id: rank} from the names of the processes, "rank 0" and so on; empty where none is named so."""
    names = {e.get("pid"): e.get("args", {}).get("name", "") for e in events if e.get("name") == "process_name"}
    found = {pid: re.fullmatch(r"rank (\d+)\b.*", str(name)) for pid, name in names.items()}
    return {pid: int(match[1]) for pid, match in found.items() if match}


def one_rank(data, rank):
    """Events of what torch.profiler exported on one rank, with `rank` as process id and times on the wall clock.

    data: the parsed file. Ranks of one host share that clock, so that their events can be put in one file.
    """
    events = data["traceEvents"] if isinstance(data, dict) else data
    base = data.get("baseTimeNanoseconds", 0) / 1e3 if isinstance(data, dict) else 0.0
    kept = [e for e in events if e.get("ph") == "X" and isinstance(e.get("pid"), int) and "dur" in e
            and e.get("cat") != "Trace"]
    moved = [{k: e[k] for k in FIELDS if k in e} | {"pid": rank, "ts": e["ts"] + base} for e in kept]
    names = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    return [*named(rank, {t: n for t, n in names.items() if any(e["tid"] == t for e in kept)}), *moved]


def named(rank, threads):
    """Metadata events: the rank's row, and the threads under it ({thread: name})."""
    def event(what, tid, **args):
        return {"ph": "M", "name": what, "pid": rank, "tid": tid, "args": args}
    return [event("process_name", 0, name=f"rank {rank}"), event("process_sort_index", 0, sort_index=rank),
            *(event("thread_name", tid, name=name) for tid, name in threads.items())]


def lane(event, kernels, main):
    """The lane of an event, or None for what says nothing here."""
    name, cat = event["name"], event.get("cat")
    if name in PHASES or name.startswith("ProfilerStep#"):
        return None if cat != "user_annotation" else name if name in PHASES else "step"
    if (cat == "kernel" and "nccl" in name.lower()) or (not kernels and name.startswith("gloo:")):
        return "communication"
    if kernels:
        return "compute" if cat in ("kernel", "gpu_memcpy", "gpu_memset") else None
    return "compute" if cat == "cpu_op" and event["tid"] == main and not name.startswith("c10d::") else None


def busiest(events):
    """The thread with most operations: the training loop's, where no phase is marked."""
    threads = [e["tid"] for e in events if e.get("cat") == "cpu_op"]
    return max(set(threads), key=threads.count) if threads else None


def size(event):
    """Bytes of a collective's tensor, from what the profiler noted (record_shapes=True); None without."""
    args = event.get("args", {})
    if "bytes" in args:                              # a thinned trace
        return args["bytes"]
    if "In msg nelems" in args:                      # NCCL
        return args["In msg nelems"] * WIDTHS.get(str(args.get("dtype", "")).lower(), 4)
    shapes, kinds = args.get("Input Dims", []), args.get("Input type", [])
    sizes = [math.prod(shape) * WIDTHS.get(kind.lower(), 4) for shape, kind in zip(shapes, kinds, strict=False)
             if shape and all(isinstance(n, int) for n in shape)]
    return sum(sizes) if sizes else None


def event(rank, tid, name, cat, start, end):
    start, end = round(start * 1e6, 1), round(end * 1e6, 1)
    return {"ph": "X", "name": name, "cat": cat, "pid": rank, "tid": tid, "ts": start, "dur": round(end - start, 1)}
