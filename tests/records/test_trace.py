"""records/trace.py: intervals known by hand, properties on random traces, the committed traces of real runs."""

import gzip
import itertools
import json
import random
from pathlib import Path

import pytest

from scaleout.records import chrome, trace

COMMITTED = Path(__file__).resolve().parents[2] / "labs" / "results" / "ddp"
FAULTS = ("straggler", "tiny-buckets", "slow-link", "starved")


def span(rank, name, start, end, cat="cpu_op", tid=0, **args):
    """An event from `start` to `end` in milliseconds."""
    return {
        "ph": "X",
        "name": name,
        "cat": cat,
        "pid": rank,
        "tid": tid,
        "ts": start * 1e3,
        "dur": (end - start) * 1e3,
        "args": args,
    }


def phase(rank, name, start, end):
    return span(rank, name, start, end, "user_annotation")


def reduce(rank, start, end, size, tid=1):
    return span(
        rank,
        "gloo:all_reduce",
        start,
        end,
        "user_annotation",
        tid,
        **{"Input Dims": [[size // 4]], "Input type": ["float"]},
    )


def two_ranks():
    """Rank 0 computes 0 to 10 and 14 to 16, rank 1 0 to 12 and 14 to 16; two all-reduces of 400 and 4000 bytes."""
    events = []
    for rank, last in ((0, 10), (1, 12)):
        events += [
            phase(rank, "step", 0, 16),
            phase(rank, "data", 0, 1),
            phase(rank, "forward", 1, 4),
            phase(rank, "backward", 4, 14),
            phase(rank, "update", 14, 16),
            span(rank, "aten::mm", 0, 6),
            span(rank, "aten::mm", 6.05, last),  # 0.05 ms is the framework's
            span(rank, "aten::add_", 14, 16),
            span(rank, "c10d::allreduce_", last, last + 0.5),
        ]
    return [*events, reduce(0, 6, 9, 400), reduce(1, 8, 9, 400), reduce(0, 10, 14, 4000, 2), reduce(1, 12, 14, 4000, 2)]


def named(events, ranks=2):
    names = [
        {"ph": "M", "name": "process_name", "pid": r, "tid": 0, "args": {"name": f"rank {r}"}} for r in range(ranks)
    ]
    return {"traceEvents": [*names, *events]}


def test_intervals_known_by_hand():
    t = trace.from_json(named(two_ranks()))
    assert t.ranks == [0, 1]
    assert t.lanes[0] == ["step", "data", "forward", "backward", "update", "compute", "communication"]
    assert t.compute(0) == [(0.0, pytest.approx(0.010)), (pytest.approx(0.014), pytest.approx(0.016))]
    assert t.collectives(1) == [
        (pytest.approx(0.008), pytest.approx(0.009)),
        (pytest.approx(0.012), pytest.approx(0.014)),
    ]
    assert t.exposed(0) == pytest.approx(0.004)
    assert t.exposed(1) == pytest.approx(0.002)


def test_summary_known_by_hand():
    found = trace.summary(trace.from_json(named(two_ranks())))
    assert found["ranks"] == 2
    assert found["steps"] == 1
    assert found["step_seconds"] == [pytest.approx(0.016)]
    assert found["compute_seconds"] == {0: pytest.approx(0.012), 1: pytest.approx(0.014)}
    assert found["communication_seconds"] == {0: pytest.approx(0.007), 1: pytest.approx(0.003)}
    assert found["waited_seconds"] == {0: pytest.approx(0.004), 1: 0.0}  # for rank 1, twice 2 ms
    assert found["data_seconds"] == {0: pytest.approx(0.001), 1: pytest.approx(0.001)}
    assert (found["collectives"], found["bytes"], found["bytes_each"]) == (2, 4400, 2200)
    assert found["bytes_per_second"] == pytest.approx(4400 / (0.001 + 0.002))  # from the last rank's arrival


@pytest.mark.parametrize(("kind", "width"), [("float", 4), ("c10::BFloat16", 2), ("double", 8), ("c10::Half", 2)])
def test_bytes_follow_the_dtype(kind, width):
    event = reduce(0, 0, 1, 400)
    event["args"]["Input type"] = [kind]
    assert chrome.size(event) == 100 * width
    assert chrome.size(span(0, "ncclDevKernel_AllReduce", 0, 1, **{"In msg nelems": 7, "dtype": "BFloat16"})) == 14
    assert chrome.size(span(0, "gloo:all_reduce", 0, 1)) is None


@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        ("Float", 4),
        ("Half", 2),
        ("BFloat16", 2),
        ("Long", 8),
        ("Int", 4),
        ("Byte", 1),
        ("Bool", 1),
        ("Float8_e4m3fn", 1),
    ],
)
def test_bytes_of_nccls_events_follow_their_dtype(dtype, width):
    event = span(0, "ncclDevKernel_Broadcast_RING_LL", 0, 1, "kernel", **{"In msg nelems": 1000, "dtype": dtype})
    assert chrome.size(event) == 1000 * width


def test_a_dtype_that_nobody_knows_has_no_size():
    event = span(0, "ncclDevKernel_AllReduce", 0, 1, "kernel", **{"In msg nelems": 7, "dtype": "Odd"})
    assert chrome.size(event) is None


def test_collectives_and_compute_outside_the_marked_steps_do_not_count():
    """Five all-reduces of 90 us, one of them in the step of 100 us, which computes for 50."""
    events = [
        phase(0, "ProfilerStep#1", 0, 0.1),
        span(0, "aten::mm", 0, 0.05),
        span(0, "aten::mm", 0.3, 0.4),
        *(reduce(0, start, start + 0.09, 400) for start in (0, 0.2, 0.4, 0.6, 0.8)),
    ]
    found = trace.summary(trace.from_json(named(events, 1)))
    assert (found["steps"], found["collectives"], found["bytes"]) == (1, 1, 400)
    assert found["communication_seconds"] == {0: pytest.approx(90e-6)}
    assert found["exposed_seconds"] == {0: pytest.approx(40e-6)}
    assert found["compute_seconds"] == {0: pytest.approx(50e-6)}


def test_a_kernel_belongs_to_the_step_that_the_device_saw():
    """A GPU runs behind the CPU that feeds it: the step's all-reduce begins after the CPU has left the step."""
    sent = {"In msg nelems": 25, "dtype": "Float"}
    events = [
        phase(0, "step", 0, 2),
        span(0, "step", 1, 9, "gpu_user_annotation", 7),
        span(0, "gemm", 1, 4, "kernel", 7),
        span(0, "ncclDevKernel_AllReduce_Sum_f32", 3, 9, "kernel", 20, **sent),
        span(0, "ncclDevKernel_AllReduce_Sum_f32", 20, 21, "kernel", 20, **sent),
    ]
    whole = trace.from_json(named(events, 1))
    for found in (trace.summary(whole), trace.summary(trace.thin(whole))):
        assert (found["collectives"], found["bytes"]) == (1, 100)
        assert found["exposed_seconds"] == {0: pytest.approx(0.005)}


def test_traces_of_an_older_torch_are_read():
    """Up to 1.11 categories were Kernel, Memcpy, Operator and Runtime, and steps were operations."""
    old = [span(0, "gemm", 0, 5, "Kernel", 7), span(0, "cudaLaunchKernel", 0, 2, "Runtime", 9)]
    found = trace.summary(trace.from_json({"traceEvents": old}))
    assert (found["steps"], found["collectives"]) == (1, 0)
    assert found["compute_seconds"] == {0: pytest.approx(0.005)}
    marked = [
        span(0, "ProfilerStep#3", 0, 4, "Operator"),
        span(0, "aten::mm", 1, 3, "Operator"),
        span(0, "aten::mm", 6, 7, "Operator"),
    ]
    found = trace.summary(trace.from_json({"traceEvents": marked}))
    assert (found["steps"], found["compute_seconds"]) == (1, {0: pytest.approx(0.002)})


def test_a_trace_with_nothing_to_read_is_refused():
    with pytest.raises(ValueError, match="neither operations nor kernels of rank 0"):
        trace.summary(trace.from_json({"traceEvents": [span(0, "x", 0, 1, "something else")]}))


def test_on_a_gpu_kernels_compute_and_nccl_kernels_communicate():
    sent = {"In msg nelems": 10, "dtype": "Float"}
    events = [
        phase(0, "step", 0, 10),
        span(0, "aten::mm", 0, 9),
        span(0, "sm90_gemm", 1, 5, "kernel", 7),
        span(0, "Memcpy HtoD", 5, 5.5, "gpu_memcpy", 7),
        span(0, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3, 8, "kernel", 20, **sent),
    ]
    t = trace.from_json(named(events, 1))
    assert t.compute(0) == [(pytest.approx(0.001), pytest.approx(0.0055))]
    assert t.exposed(0) == pytest.approx(0.0025)
    small = trace.thin(t)
    assert small.exposed(0) == pytest.approx(0.0025)
    assert trace.summary(small)["bytes"] == 40


def test_one_rank_as_torch_writes_it(tmp_path):
    sent = span(4711, "gloo:all_reduce", 6, 7, "user_annotation", 9)
    raw = {
        "traceEvents": [span(4711, "aten::mm", 5, 6, tid=4711), sent],
        "distributedInfo": {"rank": 3},
        "baseTimeNanoseconds": 10**18,
    }
    path = tmp_path / "one.json.gz"
    path.write_bytes(gzip.compress(json.dumps(raw).encode()))
    t = trace.load(path)
    assert t.ranks == [3]
    assert t.compute(3) == [(0.0, pytest.approx(0.001))]
    assert len(t.collectives(3)) == 1
    assert len(t.steps(3)) == 1, "no step is marked: the whole trace"


def test_merge_puts_ranks_on_one_clock():
    one = [
        chrome.one_rank({"traceEvents": [span(77 + r, "aten::mm", 10 + r, 20)], "baseTimeNanoseconds": 5 * 10**9}, r)
        for r in (0, 1)
    ]
    merged = trace.merge(one)
    assert [merged.compute(r)[0][0] for r in (0, 1)] == [0.0, pytest.approx(0.001)]
    again = trace.from_json(json.loads(json.dumps(trace.to_json(merged))))
    assert again.compute(1) == merged.compute(1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "must hold a list"),
        ([], "holds no spans"),
        ({"traceEvents": [1]}, "must hold a list"),
        (named([]), "holds no spans"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(data, said, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=said) as caught:
        trace.load(path)
    assert str(caught.value).startswith("x.json: ")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "bad.json.gz").write_text("not gzip")
    for name, said in (
        ("gone.json", "no such file"),
        ("bad.json", "not a Chrome trace"),
        ("bad.json.gz", "not a Chrome trace"),
    ):
        with pytest.raises(ValueError, match=said):
            trace.load(tmp_path / name)


def test_unknown_ranks_and_unequal_counts_are_said():
    t = trace.from_json(named([*two_ranks(), reduce(0, 15, 16, 4)]))
    with pytest.raises(ValueError, match="rank 5 is not in this trace: it has 0, 1"):
        t.compute(5)
    with pytest.raises(ValueError, match="lane 'gpu' is unknown"):
        t.spans(0, "gpu")
    with pytest.raises(ValueError, match="rank 0: 3, rank 1: 2"):
        trace.summary(t)


# --- properties -------------------------------------------------------------------------------------------


def chance_trace(seed):
    """A random trace of 1 to 4 ranks with overlapping collectives."""
    chance, events, ranks = random.Random(seed), [], random.Random(seed).randint(1, 4)
    calls = chance.randint(1, 12)
    for rank in range(ranks):
        events += [phase(rank, "step", 0, 100), phase(rank, "forward", 5, 40), phase(rank, "backward", 40, 90)]
        for _ in range(chance.randint(1, 40)):
            start = chance.uniform(0, 95)
            events.append(span(rank, "aten::mm", start, start + chance.uniform(0.01, 5)))
        for _ in range(calls):
            start = chance.uniform(0, 90)
            events.append(
                reduce(rank, start, start + chance.uniform(0.1, 10), 4 * chance.randint(1, 999), chance.choice((1, 2)))
            )
    return trace.from_json(named(events, ranks))


@pytest.mark.parametrize("seed", range(25))
def test_exposed_is_within_communication_and_thinning_keeps_every_figure(seed):
    t = chance_trace(seed)
    found, small = trace.summary(t), trace.thin(t)
    for rank in t.ranks:
        assert 0 <= found["exposed_seconds"][rank] <= found["communication_seconds"][rank] + 1e-12
        assert found["communication_seconds"][rank] <= sum(e - s for s, e in t.collectives(rank)) + 1e-12
        assert 0 <= found["waited_seconds"][rank] <= found["communication_seconds"][rank] + 1e-12
        busy = t.compute(rank)
        assert all(a < b for a, b in busy)
        assert all(left[1] + trace.GAP <= right[0] for left, right in itertools.pairwise(busy))
    again = trace.summary(small)
    assert len(small.events) <= len(t.events) + 8 * len(t.ranks) + len(t.ranks) * 40
    for name, value in found.items():
        if isinstance(value, dict):
            assert again[name] == pytest.approx(value, abs=2e-5), name
        elif isinstance(value, list):
            assert again[name] == pytest.approx(value, abs=1e-6), name
        else:
            assert again[name] == pytest.approx(value, rel=1e-3), name


# --- real runs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    return {name: trace.summary(trace.load(COMMITTED / f"trace-{name}.json")) for name in ("healthy", *FAULTS)}


@pytest.mark.parametrize("name", ["healthy", *FAULTS])
def test_committed_traces_are_small_whole_and_of_two_ranks(name, real):
    path = COMMITTED / f"trace-{name}.json"
    assert path.stat().st_size < 80_000
    events = json.loads(path.read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"rank 0", "rank 1"}
    assert all({"name", "ph", "pid", "tid", "ts", "dur"} <= set(e) for e in events if e["ph"] == "X")
    found = real[name]
    assert (found["ranks"], found["steps"]) == (2, 3)
    assert found["bytes"] == real["healthy"]["bytes"] == 5_195_520
    for rank in (0, 1):
        assert found["compute_seconds"][rank] + found["exposed_seconds"][rank] <= sum(found["step_seconds"]) / 3


def test_each_fault_shows_in_the_figure_that_decides_it_and_in_no_other(real):
    def far(name, figure):
        """How many times the healthy figure; of ranks, the larger."""
        pick = lambda found: max(found[figure].values()) if isinstance(found[figure], dict) else found[figure]  # noqa: E731
        return pick(real[name]) / pick(real["healthy"])

    slow = real["straggler"]
    assert slow["waited_seconds"][0] > 0.04
    assert slow["waited_seconds"][1] == 0.0
    assert slow["compute_seconds"][1] > 1.3 * slow["compute_seconds"][0]
    assert real["tiny-buckets"]["collectives"] == 68
    assert [real[name]["collectives"] for name in FAULTS if name != "tiny-buckets"] == [5, 5, 5]
    assert real["slow-link"]["bytes_per_second"] == pytest.approx(40e6, rel=0.02)
    assert all(far(name, "bytes_per_second") > 0.8 for name in ("straggler", "starved"))
    assert all(0.039 < real["starved"]["data_seconds"][rank] < 0.045 for rank in (0, 1))
    assert all(max(real[name]["data_seconds"].values()) < 0.005 for name in FAULTS if name != "starved")
    for name in ("slow-link", "starved", "tiny-buckets"):
        ratio = real[name]["compute_seconds"][1] / real[name]["compute_seconds"][0]
        assert 0.8 < ratio < 1.2, name
