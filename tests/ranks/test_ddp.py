"""labs/ddp.py and what it stands on, on real processes: values, parity, counts of collectives, faults, refusals."""

import json
from dataclasses import replace

import pool
import pytest
import specimen_ddp
from lab_runs import ROOT, accelerate, recorded, torchrun, without

from scaleout.lab import ddp as lab_ddp
from scaleout.lab import ddp_scaling, report
from scaleout.measure import inject
from scaleout.records import results, trace

FAST = ["--layers", "2", "--hidden", "96", "--heads", "4", "--seq", "64", "--steps", "5"]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def cases():
    """On three ranks; the lab compares its ways with one process on two."""
    return pool.ranks(specimen_ddp.main, 3)[0]


EXACT = [
    "hand",
    "hand no_sync",
    "hand every pass",
    "buckets",
    "buckets no_sync",
    "buckets every pass",
    "torch",
    "torch no_sync",
    "torch every pass",
    "buckets unused",
    "buckets static",
    "torch unused",
    "torch static",
    "torch view",
    "torch view no_sync",
]


def test_every_way_computes_what_one_process_computes(cases):
    for name in EXACT:
        assert cases[name]["loss"] < TOLERANCE, name
        assert cases[name]["gradients"] < TOLERANCE, name
        assert cases[name]["spread"] == 0.0, name
    built = {"hand": "Transformer", "buckets": "Reducer", "torch": "DistributedDataParallel"}
    for via, kind in built.items():
        assert cases[via]["built"].startswith(f"{kind} on ")


def test_compression_drifts_by_as_much_as_it_must(cases):
    for via in ("buckets", "torch"):
        assert 1e-4 < cases[f"{via} bf16"]["gradients"] < 2**-6, "bf16 keeps 8 bits, and rounds twice"
        assert 0.05 < cases[f"{via} powersgd"]["gradients"] < 3, "one column of a matrix is not the matrix"
        for hook in ("bf16", "powersgd"):
            assert cases[f"{via} {hook}"]["loss"] < TOLERANCE, "the loss is taken before the gradient"
            assert cases[f"{via} {hook}"]["spread"] == 0.0, "all ranks drift alike"


def test_collectives_are_counted_with_and_without_no_sync(cases):
    assert cases["hand"]["calls"] == cases["hand"]["tensors"]
    for via in ("hand", "buckets", "torch"):
        assert cases[f"{via} no_sync"]["calls"] == cases[via]["calls"]
        assert cases[f"{via} every pass"]["calls"] == 3 * cases[via]["calls"]
    assert 3 <= cases["torch"]["calls"] == cases["buckets"]["calls"] < cases["hand"]["calls"]


def test_buckets_are_those_of_the_schedule(cases):
    for via in ("buckets", "torch"):
        assert cases[via]["buckets"] == cases[via]["planned"], via
        assert len(cases[via]["buckets"]) == cases[via]["calls"]
    assert sum(cases["torch"]["buckets"]) == sum(cases["buckets"]["buckets"])


def test_unused_parameters(cases):
    unused = cases["buckets unused"]
    assert unused["calls"] == len(unused["buckets"]) + 1, "one more asks who used what"
    assert cases["buckets unused"]["spare"] == cases["torch unused"]["spare"] == 0
    assert cases["missing"] == "no gradient came for spare.weight, spare.bias: use find_unused, or take them out"
    first, nobody = cases["partly"]
    assert len(set(first)) == 1
    assert 0 < first[0] < 1, "one rank's gradient of 1, a mean over all"
    assert nobody is None


# --- the lab ----------------------------------------------------------------------------------------------------


def assert_sound(record, names):
    """What every run of several processes must hold."""
    assert all(check["passed"] for check in record.checks.values())
    for name in names:
        assert f"{name}: gradients equal one process" in record.checks
        assert f"{name}: weights are equal on all ranks" in record.checks
        assert record.measurement[f"bytes per step, {name}"] == record.prediction[f"bytes per step, {name}"]
        assert len(record.series[f"seconds per step, {name}"]) == len(record.step_seconds)
        assert 0 < record.prediction[f"seconds per step, {name}"] < 60
        assert record.measurement[f"exposed seconds per step, {name}"] >= 0
    assert record.losses[-1] < record.losses[0]


def test_four_ways_on_two_processes_and_a_trace_of_both(tmp_path):
    path = tmp_path / "trace.json"
    words = ["labs/ddp.py", *FAST, "--bucket-mb", "0.1", "--trace", str(path)]
    record, said = recorded(torchrun, words, 2, tmp_path)
    assert_sound(record, ("naive", "buckets by hand", "torch DDP"))
    count = {
        name: record.measurement[f"collectives per step, {name}"] for name in ("naive", "buckets by hand", "torch DDP")
    }
    assert count["naive"] > 30 > count["torch DDP"] == count["buckets by hand"] > 3
    assert record.series["seconds per step, torch DDP"] == record.step_seconds
    assert len(record.series["seconds per step, one process, all threads"]) == 5
    assert "skipped Accelerate: not asked for (--via accelerate)" in said
    assert "than one process on the same batch and cores" in said or "the machine is busy" in said
    t = trace.load(path)
    assert t.ranks == [0, 1]
    assert len(t.steps(0)) == 3
    assert trace.summary(t)["collectives"] == count["torch DDP"]
    names = [e["args"]["name"] for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "process_name"]
    assert sorted(names) == ["rank 0", "rank 1"]
    assert str(tmp_path) not in said + json.dumps(record.command)


def test_the_fifth_way_is_accelerate_on_two_ranks(tmp_path):
    record, _ = recorded(
        accelerate,
        ["labs/ddp.py", *FAST, "--via", "accelerate", "--accumulation", "2", "--bucket-mb", "0.1"],
        2,
        tmp_path,
    )
    assert_sound(record, ("naive", "buckets by hand", "torch DDP", "Accelerate"))
    assert "Accelerate: DistributedDataParallel on 2 rank(s), by accelerate" in record.notes
    assert (
        record.measurement["collectives per step, Accelerate"] == record.measurement["collectives per step, torch DDP"]
    )
    assert record.effective_batch == 4 * 2 * 2


def test_half_the_bytes_with_bf16_and_a_drift_that_is_shown(tmp_path):
    record, _ = recorded(pool.lab, ["labs/ddp.py", *FAST, "--hook", "bf16"], 2, tmp_path)
    assert_sound(record, ("naive", "buckets by hand", "torch DDP"))
    assert record.measurement["bytes per step, torch DDP"] * 2 == record.measurement["bytes per step, naive"]
    drift = [note for note in record.notes if "torch DDP with powersgd: gradients differ from one process by" in note]
    assert len(drift) == 1


def test_an_injected_straggler_makes_the_other_rank_wait(tmp_path):
    """A rank that a busy machine holds up is late at one collective, a straggler at most of them."""
    path = tmp_path / "slow.json"
    words = [*without(FAST, "--steps"), "--inject", "straggler:1:2", "--trace", str(path), "--thin"]
    output = pool.output(["labs/ddp.py", *words], 2)
    assert "waited, rank 0, ms" in output
    calls = trace.load(path).arrivals()
    late = sum(other.start > one.start for one, other in calls)
    assert late > len(calls) / 2 > 1, f"rank 1 is the last at {late} of {len(calls)} collectives"
    assert path.stat().st_size < 80_000


def test_scaling_starts_torchrun_itself(tmp_path):
    output = pool.output(["labs/ddp.py", *FAST, "--scaling", "1,2", "--save", str(tmp_path)])
    kept = sorted(p.name for p in tmp_path.iterdir())
    assert kept == [f"smoke-scaling-cpu-{name}.json" for name in ("strong-1", "strong-2", "weak-1")]
    one, two = (results.load(tmp_path / f"smoke-scaling-cpu-strong-{n}.json") for n in (1, 2))
    assert (one.device_count, two.device_count) == (1, 2)
    assert one.effective_batch == two.effective_batch == 8
    assert one.backend == "none"
    assert "strong, 2 processes: " in output
    assert "an all-reduce of " in output
    lines = [line.split() for line in output.splitlines() if line.startswith(("strong  ", "weak  "))]
    assert [(line[0], line[1], line[2]) for line in lines] == [
        ("strong", "1", "8"),
        ("strong", "2", "4"),
        ("weak", "1", "4"),
        ("weak", "2", "4"),
    ]


# --- pure parts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("straggler:1", "write it as straggler:RANK:SHARE"),
        ("straggler:1.5:1", "write it as straggler"),
        ("straggler:2:0.5", "there is no rank 2 among 2, which are 0 to 1"),
        ("slow-link:0", "write it as slow-link:MBPS"),
        ("tiny-buckets:3", "write it as tiny-buckets"),
        ("starved:soon", "write it as starved:SECONDS"),
        ("starved:-1", "write it as starved:SECONDS"),
        ("starved:nan", "write it as starved:SECONDS"),
    ],
)
def test_faults_that_cannot_be_are_refused(text, said):
    with pytest.raises(ValueError, match="--inject") as caught:
        inject.parse(text, 2)
    assert said in str(caught.value)


def test_faults_are_read():
    assert inject.parse(None, 1) is None
    assert inject.parse("straggler:1:0.5", 2) == inject.Fault("straggler", 1, 0.5)
    assert inject.parse("slow-link:40", 2) == inject.Fault("slow-link", 0, 40.0)
    assert inject.parse("tiny-buckets", 2) == inject.Fault("tiny-buckets")


def test_the_plan_of_scaling_shares_its_largest_run():
    plan = ddp_scaling.plan([1, 2, 4], 4)
    assert plan == {
        ("strong", 1): 16,
        ("strong", 2): 8,
        ("strong", 4): 4,
        ("weak", 1): 4,
        ("weak", 2): 4,
        ("weak", 4): 4,
    }
    assert ddp_scaling.passed_words(
        ["--scaling", "1,2", "--steps", "9", "--save", "--seed", "3", "--micro-batch=8", "--thin"]
    ) == ["--steps", "9", "--seed", "3", "--thin"]


def test_the_median_error_leaves_out_what_is_no_prediction():
    def row(p, m):
        return {"predicted": {"seconds": p} if p else {}, "measured": {"seconds": m}}

    rows = {
        "one": row(9.0, 1.0),
        "hand": row(1.1, 1.0),
        "torch": row(0.8, 1.0),
        "buckets": row(None, 1.0),
        "alone": row(None, 1.0),
    }
    assert report.median_error(rows, lab_ddp.NOT_WAYS) == pytest.approx(0.15)
    assert report.median_error({"one": row(1.0, 1.0)}, lab_ddp.NOT_WAYS) is None


def test_the_explanation_of_scaling_speaks_of_the_machine_that_was_measured():
    folder = ROOT / "labs" / "results" / "ddp"
    found = {("strong", n): results.load(folder / f"smoke-scaling-cpu-strong-{n}.json") for n in (1, 2)}
    assert "on 2 cores and one memory" in "\n".join(ddp_scaling.why(found))
    found["strong", 2] = replace(found["strong", 2], device="NVIDIA H200", device_kind="cuda")
    assert "compute at once, each on its own NVIDIA H200" in "\n".join(ddp_scaling.why(found))


def test_a_busy_machine_gets_no_comparison():
    def rows(one):
        way = lambda m, p: {"measured": {"seconds": m, "bytes": 5e6}, "predicted": {"seconds": p}}  # noqa: E731
        return {"one": way(one, 0.05), "torch": way(0.06, 0.06), "alone": way(0.05, 0.05)}

    quiet, busy = (lab_ddp.why(rows(one), 2, 2, 1) for one in (0.055, 0.5))
    assert quiet.startswith("DDP is 1.09 times slower than one process on the same batch and cores:")
    assert "10.0 ms per step to average 5.00 MB" in quiet
    assert busy == (
        "one process took 10.0 times its predicted step time: the machine is busy, so DDP is not compared with it"
    )
