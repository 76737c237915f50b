"""Events of a Chrome trace, as torch.profiler writes them: whose they are, and what each one is.

The format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Its times are microseconds.
Standard library only.
"""

import math
import re

PHASES = ("step", "data", "forward", "backward", "reduce", "update")  # spans that the labs write around their work
ON_DEVICE = "step on the device"  # the lane of the steps as the profiler drew them over a GPU's kernels
# Bytes of an element, by the names of torch's dtypes, of C++ types as the profiler writes them, and of torch's scalar
# types as NCCL's events do (c10/core/ScalarType.h).
WIDTHS = {
    "float64": 8,
    "double": 8,
    "int64": 8,
    "long int": 8,
    "long": 8,
    "uint64": 8,
    "unsigned long": 8,
    "c10::complex<float>": 8,
    "complexfloat": 8,
    "c10::complex<double>": 16,
    "complexdouble": 16,
    "float32": 4,
    "float": 4,
    "int32": 4,
    "int": 4,
    "uint32": 4,
    "unsigned int": 4,
    "float16": 2,
    "c10::half": 2,
    "half": 2,
    "bfloat16": 2,
    "c10::bfloat16": 2,
    "int16": 2,
    "short int": 2,
    "short": 2,
    "uint16": 2,
    "int8": 1,
    "signed char": 1,
    "char": 1,
    "uint8": 1,
    "unsigned char": 1,
    "byte": 1,
    "bool": 1,
    "c10::float8_e4m3fn": 1,
    "float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
    "float8_e5m2": 1,
}
# Categories as torch wrote them up to 1.11; today's are in small letters.
RENAMED = {"operator": "cpu_op", "memcpy": "gpu_memcpy", "memset": "gpu_memset", "runtime": "cuda_runtime"}
FIELDS = ("name", "cat", "ph", "pid", "tid", "ts", "dur", "args")


def ranks(events):
    """{process id: rank} from the names of the processes, "rank 0" and so on; empty where none is named so."""
    names = {e.get("pid"): e.get("args", {}).get("name", "") for e in events if e.get("name") == "process_name"}
    matches = {pid: re.fullmatch(r"rank (\d+)\b.*", str(name)) for pid, name in names.items()}
    return {pid: int(match[1]) for pid, match in matches.items() if match}


def one_rank(data, rank):
    """Events of what torch.profiler exported on one rank, with `rank` as process id and times on the wall clock.

    data: the parsed file. Ranks of one host share that clock, so that their events can be put in one file.
    """
    events = data["traceEvents"] if isinstance(data, dict) else data
    base = data.get("baseTimeNanoseconds", 0) / 1e3 if isinstance(data, dict) else 0.0
    complete = [
        e
        for e in events
        if e.get("ph") == "X" and isinstance(e.get("pid"), int) and "dur" in e and e.get("cat") != "Trace"
    ]
    moved = [{k: e[k] for k in FIELDS if k in e} | {"pid": rank, "ts": e["ts"] + base} for e in complete]
    names = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    return [*named(rank, {t: n for t, n in names.items() if any(e["tid"] == t for e in complete)}), *moved]


def named(rank, threads):
    """Metadata events: the rank's row, and the threads under it ({thread: name})."""

    def event(label, tid, **args):
        return {"ph": "M", "name": label, "pid": rank, "tid": tid, "args": args}

    return [
        event("process_name", 0, name=f"rank {rank}"),
        event("process_sort_index", 0, sort_index=rank),
        *(event("thread_name", tid, name=name) for tid, name in threads.items()),
    ]


def today(event):
    """The event with its category as today's torch names it. Old ones have the steps among the operations."""
    old = str(event.get("cat", ""))
    if old == old.lower():
        return event
    step = old == "Operator" and event["name"].startswith("ProfilerStep#")
    return event | {"cat": "user_annotation" if step else RENAMED.get(old.lower(), old.lower())}


def lane(event, kernels, main):
    """The lane of an event, or None for what says nothing here."""
    name, cat = event["name"], event.get("cat")
    if name in PHASES or name.startswith("ProfilerStep#"):
        name = name if name in PHASES else "step"
        return (
            name if cat == "user_annotation" else ON_DEVICE if (name, cat) == ("step", "gpu_user_annotation") else None
        )
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
    """Bytes of a collective's tensor, from what the profiler noted (record_shapes=True); None without, or where a
    dtype is unknown."""
    args = event.get("args", {})
    if "bytes" in args:  # a thinned trace
        return args["bytes"]
    if "In msg nelems" in args:  # NCCL
        shapes, kinds = [[args["In msg nelems"]]], [str(args.get("dtype", ""))]
    else:
        shapes, kinds = args.get("Input Dims", []), args.get("Input type", [])
    tensors = [
        (math.prod(shape), WIDTHS.get(kind.lower()))
        for shape, kind in zip(shapes, kinds, strict=False)
        if shape and all(isinstance(n, int) for n in shape)
    ]
    if not tensors or any(width is None for _, width in tensors):
        return None
    return sum(count * width for count, width in tensors)


def event(rank, tid, name, cat, start, end):
    start, end = round(start * 1e6, 1), round(end * 1e6, 1)
    return {"ph": "X", "name": name, "cat": cat, "pid": rank, "tid": tid, "ts": start, "dur": round(end - start, 1)}
