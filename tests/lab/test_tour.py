"""The plan of a tour of the labs on four kinds of machine, what time it gives to a stop, and the page it ends with."""

import importlib
import json
import re
import sys
import tarfile
from dataclasses import replace

import pytest
import repo
import samples

from scaleout.lab import tour, tour_page, tour_visit
from scaleout.lab.tour import Machine, Stop
from scaleout.lab.tour_visit import ENDED, PASSED, Visit
from scaleout.records import results

sys.path.insert(0, str(repo.ROOT / "labs"))

LAPTOP, SERVER = Machine(2), Machine(16, no_hosts="needs root")
H100, T4 = Machine(16, 1, 85.5e9, "needs ip"), Machine(4, 1, 15.8e9)
NODE, SIX = Machine(128, 8, 85.5e9), Machine(64, 6, 85.5e9)


def labs(stops):
    return [stop.lab for stop in stops]


# --- which ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [LAPTOP, SERVER, H100, T4, NODE, SIX])
def test_a_tour_has_every_lab_and_begins_with_what_the_others_predict_from(machine):
    stops = tour.plan(machine, 8)
    assert labs(stops)[:3] == ["preflight", "calibrate", "memory"]
    every = {path.stem for path in (repo.ROOT / "labs").glob("*.py")} - {"tour", "hang_job"}
    assert set(labs(stops)) == every - ({"slow_link"} if machine.no_hosts else set())
    assert len({stop.name for stop in stops}) == len(stops), "each has a folder of its own"


def test_a_cpu_has_the_small_sizes_unless_there_is_time_for_the_larger():
    small, large = tour.plan(LAPTOP, 8), tour.plan(LAPTOP, 60)
    assert {(stop.on, stop.tier) for stop in small} == {("cpu", "smoke")}
    assert {(stop.on, stop.tier) for stop in large} == {("cpu", "cpu")}
    needed = sum(stop.seconds for stop in large) / 60
    assert {stop.tier for stop in tour.plan(LAPTOP, needed)} == {"cpu"}
    assert {stop.tier for stop in tour.plan(LAPTOP, needed - 0.1)} == {"smoke"}
    assert {stop.lab: stop.world for stop in small if stop.lab in ("memory", "ddp", "pipeline", "mesh", "hang")} == {
        "memory": 2,
        "ddp": 2,
        "pipeline": 4,
        "mesh": 4,
        "hang": 1,
    }
    assert {stop.world for stop in tour.plan(SERVER, 8)} == {1, 4}


def test_one_gpu_has_one_rank_and_what_it_cannot_show_runs_on_the_cpu():
    stops = tour.plan(H100, 8)
    on = {device: [stop for stop in stops if stop.on == device] for device in ("cuda", "cpu")}
    assert {stop.world for stop in on["cuda"]} == {1}, "NCCL refuses two ranks on one GPU"
    assert {stop.tier for stop in on["cuda"]} == {"gpu"}
    assert {stop.tier for stop in on["cpu"]} == {"smoke"}
    assert stops == on["cuda"] + on["cpu"], "the GPU first: it is what is had for minutes"
    assert labs(on["cpu"])[:2] == ["calibrate", "collectives"]
    assert "collectives" not in labs(on["cuda"]), "one process sends nothing"
    assert {stop.world for stop in on["cpu"] if stop.lab not in tour.BY_ITSELF} == {4}
    assert {stop.tier for stop in tour.plan(T4, 8) if stop.on == "cuda"} == {"cpu"}, "a billion parameters do not fit"


def test_a_node_has_the_largest_power_of_two_of_its_gpus():
    assert {stop.world for stop in tour.plan(NODE, 8) if stop.on == "cuda"} == {1, 8}
    assert {stop.world for stop in tour.plan(SIX, 8) if stop.on == "cuda"} == {1, 4}
    assert "--gpus 6" in " ".join(tour.plan(SIX, 8)[0].command)
    assert {stop.lab for stop in tour.plan(NODE, 8) if stop.on == "cpu"} == {"hang", "scaling", "slow_link"}
    assert {stop.world for stop in tour.plan(replace(NODE, gpus=16), 8) if stop.on == "cuda"} == {1, 8}


@pytest.mark.parametrize("machine", [LAPTOP, SERVER, H100, T4, NODE])
@pytest.mark.parametrize("minutes", [8, 60])
def test_each_lab_knows_the_words_that_it_is_told(machine, minutes):
    for stop in tour.plan(machine, minutes):
        made = importlib.import_module(stop.lab)
        if hasattr(made, "TIERS"):
            tier, _ = importlib.import_module("scaleout.lab.options").parse(made.TIERS, "", stop.command, anywhere=True)
            assert tier == (stop.tier if "--tier" in stop.command else "smoke")
        else:
            made.options(stop.command)


def test_some_labs_only():
    assert labs(tour.plan(H100, 8, ("memory", "collectives"))) == ["memory", "collectives"]


# --- how long -------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_dropped_and_what_hangs_leaves_time_for_others():
    stop = Stop("memory", "cpu", "smoke", 2, 10.0)
    assert tour.limit(stop, 300.0) == tour.PATIENCE * 10 + tour.START
    assert tour.limit(stop, 30.0) == 30.0, "never beyond the end"
    assert tour.limit(stop, 9.0) is None
    assert tour.limit(stop, 30.0, slower=4.0) is None, "on a busy machine it takes longer"
    assert tour.limit(stop, 300.0, slower=4.0) == tour.PATIENCE * 40 + tour.START
    assert tour.limit(stop, 6.0, slower=0.5) == 6.0


def test_the_pace_is_what_the_stops_so_far_took():
    assert tour.pace([]) == 1.0
    assert tour.pace([(10, 30), (20, 30)]) == 2.0
    assert tour.pace([(10, 1)]) == tour.FASTEST
    assert tour.pace([(10, 1e6)]) == tour.SLOWEST


def test_eight_minutes_of_an_h100_reach_most_of_what_one_gpu_can_show():
    left, reached = 8 * 60 - 20.0, []
    for stop in tour.plan(H100, 8):
        if tour.limit(stop, left) is not None:
            reached.append(stop.lab)
            left -= stop.seconds
    assert {"memory", "precision", "recompute", "capstone", "fsdp", "zero", "pipeline", "ddp"} <= set(reached)


# --- what it came to ------------------------------------------------------------------------------------------------

STOP = Stop("memory", "cpu", "smoke", 2, 9.0)


def record(**fields):
    return replace(samples.sample(), **fields)


@pytest.mark.parametrize(
    ("code", "kept", "broken", "why"),
    [
        (0, [record()], "", ""),
        (
            1,
            [
                record(
                    checks={
                        "a": {"value": 1.0, "tolerance": 0.0, "passed": False},
                        "b": {"value": 0.0, "tolerance": 0.0, "passed": True},
                    }
                )
            ],
            "",
            "1 of 2 checks failed",
        ),
        (1, [], "", "it ended with exit code 1: labs/memory.py: out of luck"),
        (-9, [], "", "it was killed by signal 9: labs/memory.py: out of luck"),
        (0, [], "", "it wrote no Record"),
        (0, [], "not JSON (line 1: Expecting value)", "its Record is invalid: not JSON (line 1: Expecting value)"),
        (0, [record(device_kind="cuda", backend="nccl")], "", "it should have run on cpu, but ran on cuda"),
    ],
)
def test_a_visit_is_judged_by_all_that_it_left(code, kept, broken, why):
    assert tour_visit.judged(STOP, code, kept, broken, "hello\nlabs/memory.py: out of luck\n") == why


def test_a_run_on_the_cpu_never_passes_for_one_on_a_gpu():
    stop = replace(STOP, on="cuda", world=1)
    assert tour_visit.judged(stop, 0, [record()], "", "") == "it should have run on cuda, but ran on cpu"
    assert "CUDA_VISIBLE_DEVICES" not in {
        name for name, value in tour_visit.environment(stop, repo.ROOT, repo.ROOT).items() if value == ""
    }
    found = tour_visit.environment(STOP, repo.ROOT, repo.ROOT)
    assert (found["LAB_DEVICE"], found["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")


def test_a_long_log_keeps_its_two_ends(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"first\n" + b"x" * 3 * tour_visit.KEPT + b"\xff\nlast")
    said = tour_visit.clipped(path)
    assert said.startswith("first\n")
    assert said.endswith("\ufffd\nlast")
    assert f"{tour_visit.KEPT + 12:,} bytes are left out" in said
    assert path.read_text() == said


def made(tmp_path):
    """A tour of two labs on an H100 and one on its host, written to a folder."""
    gpu = record(
        device="NVIDIA H100 80GB HBM3",
        device_kind="cuda",
        backend="none",
        device_count=1,
        tier="gpu",
        mfu=0.42,
        mfu_peak={"flops_per_second": 8e14, "source": "measured"},
        peak_memory={"allocator: allocated": 28 * 10**9},
        prediction={"peak bytes": 27_900_000_000, "seconds per step": 0.1234, "bytes at loss": 0},
        measurement={"peak bytes": 28_000_000_000, "seconds per step": 0.1507, "bytes at loss": 0},
    )
    swept = {
        f"gloo all_reduce, {size} B: seconds, {label}": 0.001 * size
        for size in (1, 2, 3)
        for label in ("its line", "held out")
    }
    cpu = replace(samples.untrained(), stem="collectives", prediction=swept, measurement=swept)
    found = tour_page.Tour(
        replace(H100, facts={"GPU": "1 x NVIDIA H100 80GB HBM3", "Python": "3.12.3"}),
        8,
        "python labs/tour.py --minutes 8 --out x",
        "2026-01-02T03:04:05+00:00",
    )
    found.visits = [
        Visit(Stop("memory", "cuda", "gpu", 1, 30.0), 25.4, PASSED, "", [gpu], "fine\n"),
        Visit(Stop("precision", "cuda", "gpu", 1, 100.0), 220.1, ENDED, "its time was over", [], "a\nlast | words\n"),
        Visit(Stop("collectives", "cpu", "smoke", 4, 12.0), 14.0, PASSED, "", [cpu], ""),
    ]
    found.dropped = [(Stop("mesh", "cpu", "smoke", 4, 25.0), "takes about 25 s here, and 3 s were left")]
    work = tmp_path / "work"
    (work / "memory-gpu-cuda-1").mkdir(parents=True)
    (work / "memory-gpu-cuda-1" / "log.txt").write_text("fine\n")
    results.save(gpu, work / "memory-gpu-cuda-1" / "record.json")
    (work / "fonts.cache").write_text("no part of it")
    (tmp_path / "out").mkdir()
    tour_page.write(found, tmp_path / "out", work)
    return found, tmp_path / "out"


def test_the_page_says_what_the_records_hold(tmp_path):
    found, out = made(tmp_path)
    text = (out / "tour.md").read_text()
    gpus, cpus = text.split("## On GPUs")[1].split("##")[0], text.split("## On the CPU")[1].split("##")[0]
    assert ("| memory | gpu | passed | seconds per step | 123.4 ms | 150.7 ms | 0.819 | 1 | 25 | 30 |") in gpus
    assert "| precision | gpu | ended | - | - | - | - | 1 | 220 | 100 |" in gpus
    assert "collectives" not in gpus, "no table has both kinds of device"
    assert "| collectives | smoke | passed | gloo all\\_reduce, 3 B: seconds, held out | 3 ms | 3 ms | 1.000 |" in cpus
    assert "2 of 3 stops passed, 1 ended by the tour, 1 skipped for lack of time. 2 of them ran on GPUs." in text
    assert "- mesh, tier smoke, 4 ranks on the CPU: takes about 25 s here, and 3 s were left" in text
    assert "Its time was over.\n\n```sh\na\nlast | words\n```" in text
    assert "| peak bytes | 27.90 GB | 28.00 GB | 0.996 |" in text
    assert "MFU 0.42 of 800 TFLOP/s; peak of the allocator 28.00 GB" in text
    assert "bytes at loss" not in text, "zero on both sides"
    assert not found.passed


def test_a_tour_is_three_files_with_everything_in_them(tmp_path):
    _, out = made(tmp_path)
    assert sorted(path.name for path in out.iterdir()) == ["records.json", "tour.md", "tour.tar.gz"]
    data = json.loads((out / "records.json").read_text())
    assert [results.from_dict(one).device_kind for stop in data["stops"] for one in stop["records"]] == ["cuda", "cpu"]
    assert [(stop["lab"], stop["verdict"]) for stop in data["stops"]] == [
        ("memory", "passed"),
        ("precision", "ended"),
        ("collectives", "passed"),
    ]
    assert data["dropped"][0]["lab"] == "mesh"
    with tarfile.open(out / "tour.tar.gz") as archive:
        assert sorted(archive.getnames()) == [
            "tour/memory-gpu-cuda-1/log.txt",
            "tour/memory-gpu-cuda-1/record.json",
            "tour/tour.md",
        ]


def test_what_calibrate_measured_is_on_the_page(tmp_path):
    found, _ = made(tmp_path)
    found.profiles = [
        {
            "world": 8,
            "device": "NVIDIA H100 80GB HBM3",
            "copy_bytes_per_second": 3e12,
            "matmul_flops_per_second": {"fp32": 5e13, "bf16": 7.9e14},
            "collectives": {"all_reduce": {"alpha_seconds": 2e-5, "seconds_per_byte": 4e-12}},
        }
    ]
    assert "| 8 x NVIDIA H100 80GB HBM3 | 50 | 790 | - | 3,000 | 20 | 250 |" in tour_page.page(found)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "0.5"], "--minutes is 0.5: it must be from 1 to 1440"),
        (["--minutes", "nan"], "--minutes is nan: it must be from 1 to 1440"),
        (["--minutes", ""], "argument --minutes: invalid float value: ''"),
        (["--out", " "], "argument --out: needs a value that is not empty"),
        (["--out", "f.txt"], "--out f.txt: is a file, or cannot be written to: choose another folder"),
        (["--out", "old"], "--out old: has a tour already: choose another folder"),
        (["--only", "memory,nope"], "--only: there is no lab 'nope' on the tour: use some of preflight, calibrate,"),
        (["--only", ""], "argument --only: needs a value that is not empty"),
        (["--tier", "gpu"], "unrecognized arguments: --tier gpu"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(words, said, tmp_path, monkeypatch, capsys):
    made = importlib.import_module("tour")
    monkeypatch.setattr(made, "machine", lambda *_: pytest.fail("the work has begun"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.txt").write_text("a file")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "tour.md").write_text("a page")
    with pytest.raises(ValueError, match=re.escape(said)):
        made.main(words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.txt", "old"]
    assert capsys.readouterr().out == ""
