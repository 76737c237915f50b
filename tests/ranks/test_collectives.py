"""labs/collectives.py on real processes: equal sums, nccl-tests' columns, predictions beside, Records, refusals."""

import json

import pool
import pytest
import torch
from lab_runs import accelerate, lab_module, recorded, torchrun

from scaleout.collectives.alpha_beta import cost
from scaleout.lab import collectives as lab_collectives
from scaleout.lab import session
from scaleout.lab.collectives import Row
from scaleout.measure import collectives as measure_collectives
from scaleout.spec.topology import Wire

FAST = ["--smallest", "1000", "--largest", "70000", "--factor", "4", "--rounds", "3"]
HAND = ("naive", "ring", "tree")
BACKEND = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
NAMES = ["gloo all_reduce", *(f"{by} all_reduce" for by in HAND), *(f"gloo {name}" for name in BACKEND[1:])]


def sweep_lines(said):
    """The rows of the first table, split: (name, size, count, type, time, algbw, busbw, error)."""
    lines = said.split("\n\n")[1].splitlines()
    assert lines[0].split("  ")[0] == "collective"
    assert " ".join(lines[0].split()) == ("collective size (B) count type time (us) algbw (GB/s) busbw (GB/s) error")
    return [(" ".join(words[:2]), *words[2:]) for words in (line.split() for line in lines[2:])]


def assert_sound(record, said, world, sizes, names=NAMES):
    """What every run must show: equal sums, no wrong element, every collective at every size, both predictions."""
    assert record.device_count == world
    assert record.backend == "gloo"
    assert all(check["passed"] for check in record.checks.values())
    dtypes = ("int64", "fp32", "fp64", "bf16", "fp16")
    assert {f"{by} equals gloo's, {dtype}" for by in HAND for dtype in dtypes} <= set(record.checks)
    assert record.checks["ring equals gloo's, int64"]["tolerance"] == 0
    assert record.checks["wrong elements, all collectives and sizes"]["value"] == 0
    rows = sweep_lines(said)
    assert [(row[0], int(row[1])) for row in rows] == [(name, size) for name in names for size in sizes]
    for name, size, count, kind, *_, wrong in rows:
        share = world if name.split()[1] in lab_collectives.PARTS else 1
        assert (int(count), kind, wrong) == (int(size) // 4 // share, "float", "0")
    for name in names:
        assert sum(key.startswith(name) and key.endswith("its line") for key in record.prediction) == len(sizes)
    assert (record.effective_batch, record.sequence_length, record.tokens_per_second) == (None, None, None)
    assert record.losses == []
    assert f"step_seconds: gloo all_reduce of {sizes[-1]} bytes" in record.notes
    for label in ("one pair", "all at once"):
        link = Wire(record.model[f"{label}: alpha_seconds"], record.model[f"{label}: bytes_per_s"])
        for by in HAND:
            key = f"{by} all_reduce, {sizes[1]} B: seconds, {label}"
            assert record.prediction[key] == pytest.approx(cost("all_reduce", by, sizes[1], world, link).seconds)
    assert 1e-6 < record.measurement[f"ring all_reduce, {sizes[0]} B: seconds, its line"] < 5


def test_two_processes_predict_and_draw(tmp_path):
    picture, sizes = tmp_path / "sweep.svg", [1000, 4000, 16_000, 64_000]
    record, said = recorded(
        torchrun,
        ["labs/collectives.py", *FAST, "--own", "25,12.5", "--pieces", "3", "--plot", str(picture)],
        2,
        tmp_path,
    )
    assert_sound(record, said, 2, sizes)
    assert len(record.step_seconds) == 3
    assert record.command.startswith("torchrun --nproc-per-node 2 labs/collectives.py --smallest 1000")
    held = {key for key in record.prediction if key.endswith("held out")}
    assert held == {f"{name}, 4000 B: seconds, held out" for name in NAMES}
    # 64,000 bytes in a ring of two: 2 messages of 32,000 bytes, 25 us + 2.56 us each
    assert record.prediction["ring all_reduce, 64000 B: seconds, own link"] == pytest.approx(2 * 27.56e-6)
    assert "worst" not in said
    assert "+" in said.split("\n\n")[2], "residuals have a sign"
    alpha, rate = (record.model[f"one pair: {name}"] for name in ("alpha_seconds", "bytes_per_s"))
    pair = Wire(alpha, rate)  # without a rate where 64,000 bytes took no longer than 1,000 on a busy machine
    assert lab_collectives.view_text("one pair", pair) in said.split("for the view, link = own")[1]
    assert lab_collectives.own(lab_collectives.own_text(pair)).bytes_per_s == pytest.approx(rate, rel=0.1)
    drawing = picture.read_text()
    assert all(f">{by} all_reduce<" in drawing for by in ("gloo", *HAND))
    assert "skipped Accelerate: not asked for" in said
    assert str(tmp_path) not in said + json.dumps(record.command)


@pytest.mark.parametrize(("world", "sizes"), [(3, [996, 15_996]), (4, [992, 16_000])])
def test_more_processes_take_sizes_that_split(world, sizes, tmp_path):
    words = ["--smallest", "1000", "--largest", "16000", "--factor", "16", "--rounds", "3"]
    record, said = recorded(pool.lab, ["labs/collectives.py", *words], world, tmp_path)
    assert_sound(record, said, world, sizes)


def test_accelerate_reduces_and_gathers_too(tmp_path):
    record, said = recorded(accelerate, ["labs/collectives.py", *FAST, "--via", "accelerate"], 2, tmp_path)
    assert_sound(
        record, said, 2, [1000, 4000, 16_000, 64_000], [*NAMES, "accelerate all_reduce", "accelerate all_gather"]
    )
    assert record.checks["accelerate equals gloo's, int64"] == {"value": 0.0, "tolerance": 0.0, "passed": True}
    assert "accelerate" in record.versions
    assert not any("Accelerate" in line for line in record.skipped)


def test_one_process_checks_and_says_what_it_skips():
    output = pool.output(["labs/collectives.py"])
    lines = output.splitlines()
    assert sum(line.startswith("ok     ") for line in lines) == 15
    skipped = [line for line in lines if line.startswith("skipped ")]
    assert skipped == [
        "skipped sweep, alpha and beta, predictions: one process sends nothing "
        "(torchrun --nproc-per-node 2 labs/collectives.py)"
    ]


def test_exit_code_2_and_one_line():
    done = pool.lab(["labs/collectives.py", "--own", "fast"], 2)
    said = [line for line in done.stderr.splitlines() if line.startswith("labs/collectives.py: ")]
    assert said == [
        "labs/collectives.py: --own is 'fast': give alpha in microseconds and rate in GB/s, as in --own \"25,12.5\""
    ]
    assert done.returncode != 0
    alone = pool.lab(["labs/collectives.py", "--rounds", "1"])
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr == "labs/collectives.py: --rounds is 1: it must be from 3 to 10000\n"


# --- checks that can fail -----------------------------------------------------------------------------------


def test_a_wrong_sum_fails_the_check_and_the_run(monkeypatch, capsys):
    collectives = lab_module("collectives")
    monkeypatch.setitem(collectives.ring.BY_HAND, "naive", lambda t: t.mul_(2))
    with pytest.raises(SystemExit) as caught, session.session("cpu") as s:
        collectives.main(s, [])
    assert caught.value.code == 1
    said = capsys.readouterr().out
    assert said.count("FAILED naive equals its input") == 5
    assert said.count("ok     ") == 10


def test_wrong_elements_are_counted():
    with session.session("cpu") as s:

        def spoil(t):
            t[[0, 5, 99]] += 1

        assert measure_collectives.wrong(s, "all_reduce", 400, reduce=spoil) == 3
        assert measure_collectives.wrong(s, "all_reduce", 400, reduce=lambda t: None) == 0
        assert measure_collectives.wrong(s, "all_reduce", 400, reduce=lambda t: t * torch.nan) == 100
        assert measure_collectives.wrong(s, "all_gather", 400, gather=lambda part: part.flip(0)) > 90
        assert measure_collectives.wrong(s, "all_gather", 400, gather=lambda part: part.clone()) == 0


# --- text and picture ---------------------------------------------------------------------------------------


def rows_of(by, seconds, collective="all_reduce", ranks=4):
    return [Row(by, collective, size, ranks, [t, t, 9 * t], 0) for size, t in seconds.items()]


def test_columns_as_nccl_tests_prints_them():
    rows = [
        Row("gloo", "all_reduce", 16_000_000, 4, [0.01, 0.02, 0.01], 0),
        Row("gloo", "all_gather", 16_000_000, 4, [0.01], 7),
    ]
    lines = lab_collectives.columns(rows).splitlines()
    assert lines[2].split() == ["gloo", "all_reduce", "16000000", "4000000", "float", "10,000.0", "1.60", "2.40", "0"]
    assert lines[3].split() == ["gloo", "all_gather", "16000000", "1000000", "float", "10,000.0", "1.60", "1.20", "7"]


def test_a_line_predicts_the_sizes_it_has_not_seen():
    exact = {size: 1e-4 + size * 1e-9 for size in (1000, 4000, 16_000, 64_000, 256_000)}
    rows = rows_of("ring", exact)
    found = lab_collectives.held_out(rows)
    assert [r.size for r, _ in found] == [4000, 64_000]
    assert [p for _, p in found] == [pytest.approx(exact[4000]), pytest.approx(exact[64_000])]
    assert "1.000" in lab_collectives.held_out_text(found)
    bent = rows_of("ring", exact | {4000: 5e-4})
    unseen = {r.size: p for r, p in lab_collectives.held_out(bent)}
    assert unseen[4000] == pytest.approx(exact[4000]), "what is held out is not in the fit"
    assert lab_collectives.held_out(rows_of("ring", {1000: 1e-4, 4000: 2e-4})) == []
    link = lab_collectives.wire(lab_collectives.lines(rows)["ring all_reduce"])
    assert (link.alpha_seconds, link.bytes_per_s) == (pytest.approx(1e-4), pytest.approx(1e9))
    text = lab_collectives.line_text(lab_collectives.lines(bent)).splitlines()
    assert text[0].split()[-5:] == ["1000", "3.91K", "15.6K", "62.5K", "250K"]
    assert text[2].split()[-4] == "-77%", "the residual of the bent point shows"


def test_an_own_link_comes_back_as_it_was_printed():
    link = lab_collectives.own("62.4,3.165")
    assert (link.alpha_seconds, link.bytes_per_s) == (pytest.approx(62.4e-6), pytest.approx(3.165e9))
    assert lab_collectives.own_text(link) == "62.4,3.165"
    assert lab_collectives.view_text("one pair", link) == '"62.4,3.165" one pair'
    assert lab_collectives.own(" 0 , 1e2").bytes_per_s == 1e11


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_line_without_slope_is_told_and_not_given_as_a_rate(ranks):
    fit = {"alpha_seconds": 5e-4, "seconds_per_byte": 0.0}
    for link in (lab_collectives.wire(fit), lab_collectives.as_ring(fit, ranks)):
        assert lab_collectives.view_text("all at once", link) == "no rate for all at once: use larger messages"


def test_a_line_of_all_reduces_becomes_the_link_of_a_ring():
    rows = rows_of("gloo", {size: 6e-4 + size * 3e-9 for size in (1000, 4000, 64_000)})
    fit = lab_collectives.lines(rows)["gloo all_reduce"]
    link = lab_collectives.as_ring(fit, 4)
    assert (link.alpha_seconds, link.bytes_per_s) == (pytest.approx(1e-4), pytest.approx(0.5e9))
    row = Row("gloo", "all_reduce", 4000, 4, [1.0], 0)
    assert lab_collectives.from_wire(row, link) == pytest.approx(6e-4 + 4000 * 3e-9)
    assert lab_collectives.as_ring(fit | {"seconds_per_byte": 0.0}, 4).bytes_per_s > 1e15


def test_ring_against_backend_sample_by_sample():
    rows = [
        Row("gloo", "all_reduce", 2**24, 2, [1.0, 2.0, 4.0], 0),
        Row("gloo", "all_reduce", 2**20, 2, [1.0], 0),
        Row("ring", "all_reduce", 2**24, 2, [2.0, 2.0, 5.0], 0),
        Row("ring", "all_reduce", 2**20, 2, [9.0], 0),
    ]
    assert lab_collectives.against(rows, "ring all_reduce", "gloo all_reduce") == [(2**24, 0.8)]


def test_the_same_sweep_gives_the_same_svg(tmp_path):
    rows = rows_of("gloo", {1000: 1e-4, 64_000: 2e-4}) + rows_of("ring", {1000: 2e-4, 64_000: 3e-4})
    for name in ("a.svg", "b.svg"):
        lab_collectives.plot(rows, lab_collectives.lines(rows), tmp_path / name, "title")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svg", "b.svg"]


def test_sizes_split_over_the_ranks_and_grow():
    for world in (1, 2, 3, 4, 7, 8):
        found = measure_collectives.sizes(4, 2**20, 4, world)
        assert found == sorted(set(found))
        assert all(size % (4 * world) == 0 for size in found)
        assert found[-1] <= 2**20
    assert measure_collectives.sizes(1024, 2**24, 4, 2) == [4**k for k in range(5, 13)]
