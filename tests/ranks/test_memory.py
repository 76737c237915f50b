"""labs/memory.py on real processes: prediction beside measurement, parity by every route, refusals, files."""

import json
import pickle
from types import SimpleNamespace

import lab_runs
import pool
import pytest
import torch
from lab_runs import accelerate, lab_module, torchrun

from scaleout.measure import memory_trace
from scaleout.memory.accounts import KINDS

FAST = ["--layers", "2", "--hidden", "96", "--heads", "4", "--steps", "8"]


def recorded(start, words, world, folder):
    """(Record, what was said) of a run that went well, on a machine of which no profile is known."""
    return lab_runs.recorded(start, words, world, folder, XDG_CACHE_HOME=str(folder))


def assert_sound(record, world, routes):
    """What every run must show: the peak and its kinds within 2%, equal results, a falling loss."""
    assert record.device_count == world
    assert record.measurement["peak bytes"] > 1_000_000
    for name, seen in record.measurement.items():
        if "peak" in name:
            assert record.prediction[name] == pytest.approx(seen, rel=0.02, abs=2000), name
    assert sum(record.peak_memory.values()) == record.measurement["peak bytes"]
    assert set(record.peak_memory) == set(KINDS)
    wanted = {
        f"{via}: {what} equal{'s' if what == 'loss' else ''} one process"
        for via in routes
        for what in ("loss", "gradients")
    }
    assert wanted <= set(record.checks)
    assert all(check["passed"] for check in record.checks.values())
    assert record.losses[-1] < record.losses[0] - 0.1
    assert len(record.step_seconds) == len(record.losses)


def test_one_process_saves_a_sound_record_picture_and_snapshot(tmp_path):
    picture, snapshot = tmp_path / "memory.svg", tmp_path / "memory.pickle"
    record, said = recorded(
        pool.lab,
        ["labs/memory.py", *FAST, "--checkpointing", "full", "--plot", str(picture), "--snapshot", str(snapshot)],
        1,
        tmp_path,
    )
    assert_sound(record, 1, ())
    assert record.backend == "none"
    assert any("this run is one process" in line for line in record.skipped)
    assert any("no machine profile" in line for line in record.skipped)
    assert record.mfu is None
    assert "skipped equal to one process" in said
    assert str(tmp_path) not in said + json.dumps(record.command)
    drawing = picture.read_text()
    assert all(f">{name}<" in drawing for name in ("weights", "optimizer", "activations", "block"))
    traces = pickle.loads(snapshot.read_bytes())["device_traces"]
    allocated = [event for events in traces for event in events if event["action"] == "alloc"]
    assert len(allocated) > 100
    assert max(event["size"] for event in allocated) >= 4 * 128 * 256 * 4, "the logits are among them"


def test_two_processes_predict_seconds_and_count_the_buckets(tmp_path):
    profile = tmp_path / "machine.json"
    words = ["labs/calibrate.py", "--seconds", "0.02", "--largest-mb", "1", "--largest-matrix", "128"]
    words += ["--tokens", "32", "--hidden", "32", "--seq", "16", "--head", "8"]
    assert pool.lab([*words, "--out", str(profile)], 2).returncode == 0
    record, said = recorded(torchrun, ["labs/memory.py", *FAST, "--machine", str(profile)], 2, tmp_path)
    assert_sound(record, 2, ("hand", "torch"))
    assert record.backend == "gloo"
    assert record.command.startswith("torchrun --nproc-per-node 2 labs/memory.py --layers 2")
    assert record.effective_batch == 8
    assert "DistributedDataParallel on 2 rank(s), by torch" in record.notes
    # DDP's default copies gradients into buckets: at "forward" one full set of gradients is there already
    alone, _ = recorded(pool.lab, ["labs/memory.py", *FAST], 1, tmp_path)
    weights = alone.peak_memory["weights"]
    assert record.measurement["bytes at forward"] - alone.measurement["bytes at forward"] == weights
    assert record.prediction["seconds per step"] > 0
    peak = record.mfu_peak["flops_per_second"]
    assert "labs/calibrate.py on 2 process(es)" in record.mfu_peak["source"]
    assert 0.001 < record.mfu < 3
    assert f"MFU {record.mfu:.2f} of {peak / 1e9:,.0f} GFLOP/s" in said


@pytest.mark.parametrize(
    ("count", "more", "routes"),
    [
        (
            4,
            [
                "--bucket-view",
                "--gradients",
                "kept",
                "--checkpointing",
                "selective",
                "--attention",
                "naive",
                "--dropout",
                "0.1",
                "--no-foreach",
            ],
            ("hand", "torch"),
        ),
        (
            2,
            ["--via", "hand", "--optimizer", "momentum", "--gated-mlp", "--kv-heads", "2", "--lr", "0.05"],
            ("hand", "torch"),
        ),
    ],
)
def test_other_recipes_on_more_processes(count, more, routes, tmp_path):
    record, _ = recorded(pool.lab, ["labs/memory.py", *FAST, *more], count, tmp_path)
    assert_sound(record, count, routes)


def test_parity_runs_one_short_sequence_a_rank(monkeypatch):
    """Every rank runs all sequences in fp32: whole ones of the gpu tier would not fit on 8 ranks."""
    memory, shapes = lab_module("memory"), []

    def run_one(model, tokens, targets, replicas=None):
        shapes.append(tuple(tokens.shape))
        return 1.0, {"weight": torch.ones(1)}

    monkeypatch.setattr(memory.parity, "loss_and_gradients", run_one)
    monkeypatch.setattr(memory, "Replicas", lambda *settings: None)
    s = SimpleNamespace(world=8, rank=7, device=torch.device("cpu"), mean=float, largest=float)
    text = memory.session.as_tensor(bytes(range(256)) * 40)
    for seq, used in ((2048, 256), (128, 128)):
        shapes.clear()
        words = ["--layers", "1", "--hidden", "16", "--heads", "2", "--seq", str(seq), "--micro-batch", "4"]
        lab = memory.runner.Lab(s, "memory.py", "", memory.TIERS, words)
        lab.text = text
        memory.equality(lab)
        assert shapes == [(8, used), (1, used), (1, used)]
        assert [check["passed"] for check in lab.checks.values()] == [True] * 4


def test_accelerate_launch_builds_two_ranks(tmp_path):
    record, _ = recorded(accelerate, ["labs/memory.py", *FAST, "--via", "accelerate"], 2, tmp_path)
    assert_sound(record, 2, ("hand", "torch", "accelerate"))
    assert "DistributedDataParallel on 2 rank(s), by accelerate" in record.notes
    assert "accelerate" in record.versions


def test_accelerate_that_would_train_alone_is_refused():
    done = lab_runs.run(
        [
            "-m",
            "accelerate.commands.accelerate_cli",
            "launch",
            "--cpu",
            "--num_processes",
            "2",
            "labs/memory.py",
            "--via",
            "accelerate",
        ]
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("labs/memory.py: ")]
    assert len(said) == 1
    assert "starts one process whatever --num_processes says" in said[0]
    assert done.returncode == 1


def test_a_step_on_fake_tensors_agrees_to_the_byte():
    output = pool.output(["labs/memory.py", "--fake", "gpt2", "--micro-batch", "1", "--seq", "512"])
    rows = {line.split("  ")[0]: line.split()[-1] for line in output.splitlines() if line}
    assert rows["peak, all kinds"] == "1.000"
    assert "fake tensors, CPU kernels, all 12 layers run" in output
    assert output.startswith("gpt2: 0.12 G parameters, autocast-bf16, adamw, 1 x 512 tokens")


# --- pictures -------------------------------------------------------------------------------------------


def line(moment, n):
    return (moment, "op", {**dict.fromkeys(KINDS, 0), "weights": n})


def test_a_thinned_timeline_keeps_every_moment_and_its_peak():
    timeline = [line("forward", i % 97) for i in range(1000)] + [line("optimizer", 5), line("optimizer", 500)]
    thin = memory_trace.thin(timeline, 50)
    assert len(thin) <= 60
    assert max(kinds["weights"] for _, moment, kinds in thin if moment == "forward") == 96
    assert max(kinds["weights"] for _, moment, kinds in thin if moment == "optimizer") == 500
    assert [i for i, _, _ in thin] == sorted(i for i, _, _ in thin)
    assert memory_trace.thin(timeline[:3], 50) == [(i, m, k) for i, (m, _, k) in enumerate(timeline[:3])]


def test_short_moments_are_widened_and_the_axis_stays_whole():
    edges, spans = memory_trace.spread(["forward"] * 98 + ["optimizer"] * 2, 0.1)
    assert len(edges) == 100
    assert edges == sorted(edges)
    assert spans["forward"] == (0.0, pytest.approx(0.98 / 1.08))
    assert spans["optimizer"] == (pytest.approx(0.98 / 1.08), pytest.approx(1.0))


def test_the_same_timeline_gives_the_same_svg(tmp_path):
    timeline = [line("forward", 10), line("loss", 30), line("optimizer", 20)]
    for name in ("a.svg", "b.svg"):
        memory_trace.plot(timeline, tmp_path / name, "title")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svg", "b.svg"]


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), memory_trace.written_whole(tmp_path / "x.svg") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


ELSEWHERE = """import runpy, sys, sysconfig
_, library, *sys.argv = sys.argv
there = sysconfig.get_paths
sysconfig.get_paths = lambda *given, **more: there(*given, **more) | {"stdlib": library}
runpy.run_path(sys.argv[0], run_name="__main__")"""


def test_what_the_chapter_stores_does_not_depend_on_the_python_that_runs(tmp_path):
    """The lab of the first chapter, in a Python whose library is another text: the losses are those in the notebook."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "ast.py").write_text("another text\n" * 10_000)
    words = ["-c", ELSEWHERE, tmp_path / "lib", "labs/memory.py", "--steps", "10"]
    record, _ = lab_runs.recorded(lambda words, world: pool.lab(words, world), words, 2, tmp_path)
    cells = json.loads((lab_runs.ROOT / "notebooks" / "01_memory.ipynb").read_text())["cells"]
    found = next(cell for cell in cells if cell["id"] == "memory-lab-accelerate-record")["outputs"][0]["data"]
    row = next(line.split() for line in "".join(found["text/plain"]).splitlines() if line.startswith("torch "))
    assert record.losses[:3] == pytest.approx([float(word) for word in row[3:6]], abs=0.001)
    assert record.dataset.startswith("stdlib-3.11: 1,260,152 bytes")
