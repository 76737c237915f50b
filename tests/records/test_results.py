"""Records: what is refused, with which words; and that no half of one can ever be seen."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime

import pytest
from cases import refused
from repo import ROOT
from samples import sample, untrained

from scaleout.records import provenance, results
from scaleout.records.results import Record, load, save, tokens_per_second


def assert_refused(broken, words, folder):
    """Saving says what is wrong in one line, and leaves nothing."""
    refused(lambda: save(broken, folder / "run.json"), words)
    assert list(folder.iterdir()) == []


def test_a_record_comes_back_as_it_was_saved(tmp_path):
    path = save(sample(), tmp_path / "new" / "folder" / "run.json")
    assert load(path) == sample()
    assert json.loads(path.read_text())["step_seconds"] == [9.0, 0.5, 0.5]
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_who_may_read_a_file_is_the_umasks_to_say(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        for _ in range(2):  # made, and written over
            assert save(sample(), tmp_path / "run.json").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_a_run_that_trains_nothing_has_no_tokens(tmp_path):
    path = save(untrained(), tmp_path / "run.json")
    assert load(path) == untrained()
    assert all(json.loads(path.read_text())[name] is None for name in results.TOKENS)
    assert results.TOKENS == ("effective_batch", "sequence_length", "tokens_per_second")


ALL_OR_NONE = (
    "a run that trains has all of effective_batch, sequence_length, tokens_per_second; "
    "one that does not has none, no losses and no mfu"
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"effective_batch": 8}, "sequence_length is null and effective_batch is not: " + ALL_OR_NONE),
        ({"sequence_length": 128}, "effective_batch is null and sequence_length is not: " + ALL_OR_NONE),
        ({"tokens_per_second": 2048.0}, "effective_batch is null and tokens_per_second is not: " + ALL_OR_NONE),
        ({"effective_batch": 8, "sequence_length": 128}, "tokens_per_second is null and effective_batch is not: "),
        ({"losses": [5.5]}, "effective_batch is null and losses is not: " + ALL_OR_NONE),
        (
            {"mfu": 0.4, "mfu_peak": {"flops_per_second": 1e12, "source": "x"}},
            "effective_batch is null and mfu is not: " + ALL_OR_NONE,
        ),
        ({"effective_batch": 0}, "effective_batch is 0: it must be a whole number from 1 to 10^9, or null"),
        ({"sequence_length": 1.5}, "sequence_length is 1.5: it must be a whole number from 1 to 10^9, or null"),
        ({"tokens_per_second": 0}, "tokens_per_second is 0: it must be a number above 0, or null"),
    ],
)
def test_tokens_are_there_together_or_not_at_all(change, words, tmp_path):
    assert_refused(replace(untrained(), **change), words, tmp_path)


def test_tokens_per_second_leaves_the_warm_up_out():
    assert tokens_per_second([9.0, 0.5, 0.5], 1, 8, 128) == 8 * 128 * 2 / 1.0
    assert tokens_per_second([2.0, 2.0], 0, 1, 10) == 5.0


def test_median_and_rate_are_of_the_steps_after_the_warm_up():
    record = replace(sample(), step_seconds=[9.0, 0.5, 0.4, 0.9])
    assert (record.timed, record.median, record.tokens, record.rate) == ([0.5, 0.4, 0.9], 0.5, 1024, 2048.0)
    assert (untrained().median, untrained().tokens) == (0.5, None)


def test_a_record_holds_what_a_write_up_needs():
    names = {f.name for f in fields(Record)}
    assert names >= {"commit", "command", "mfu", "mfu_peak", "stalls", "failures", "skipped", "checks"}
    assert set(results.RULES) | {"schema"} == names, "every field has a rule"


BROKEN = [
    ({"started": "2026-01-02T03:04:05"}, "it must be a time that has come, as 2026-01-02T03:04:05+00:00"),
    ({"started": "yesterday"}, "started is 'yesterday': it must be a time that has come"),
    ({"device_count": 10**30}, "it must be a whole number from 1 to 1,000,000"),
    ({"device_count": 10**400}, "it must be a whole number from 1 to 1,000,000"),
    ({"effective_batch": 10**30}, "it must be a whole number from 1 to 10^9, or null"),
    ({"step_seconds": [1e300, 0.5, 0.5]}, "it must be a list of seconds above 0, and at most 10^7"),
    ({"losses": [10**400]}, "it must be a list of finite numbers"),
    ({"mfu": 11.0, "mfu_peak": {"flops_per_second": 1e12, "source": "x"}}, "it must be a fraction above 0, at most 10"),
    ({"peak_memory": {"weights": 2**61}}, "names with whole numbers of bytes"),
    ({"commit": ""}, "commit is '': it must be one line of text"),
    ({"device": 3}, "device is 3: it must be one line of text"),
    ({"device_kind": "tpu"}, "device_kind is 'tpu': it must be one of cpu, cuda"),
    ({"backend": "mpi"}, "backend is 'mpi': it must be one of none, gloo, nccl"),
    ({"backend": "nccl"}, "NCCL runs on GPUs only"),
    ({"backend": "none"}, "'none' is for one device"),
    ({"device_count": 0}, "device_count is 0: it must be a whole number from 1"),
    ({"device_count": True}, "device_count is True: it must be a whole number from 1"),
    ({"nodes": 3}, "nodes is 3: it must be at most device_count, 2"),
    ({"step_seconds": []}, "step_seconds is []: it must be a list of seconds above 0"),
    ({"step_seconds": [0.5, -1.0, 1.0]}, "it must be a list of seconds above 0"),
    ({"step_seconds": [0.5, float("nan"), 1.0]}, "it must be a list of seconds above 0"),
    ({"step_seconds": 0.5}, "step_seconds is 0.5: it must be a list"),
    ({"warmup_steps": 3}, "warmup_steps must leave at least one timed step"),
    ({"tokens_per_second": 3000.0}, "tokens_per_second is 3000, step_seconds give 2048"),
    ({"tokens_per_second": None}, "tokens_per_second is null and effective_batch is not"),
    ({"mfu": 0.4}, "mfu and mfu_peak go together"),
    ({"mfu_peak": {"flops_per_second": 1e12, "source": "x"}}, "mfu and mfu_peak go together"),
    ({"mfu": 0.4, "mfu_peak": {"flops_per_second": 1e12}}, "null or {flops_per_second, source}"),
    ({"measurement": {}}, "'peak bytes' is in only one of prediction and measurement"),
    ({"prediction": {"peak bytes": float("inf")}}, "names with finite numbers"),
    ({"peak_memory": {"weights": 1.5}}, "names with whole numbers of bytes"),
    ({"peak_memory": {"weights": -1}}, "names with whole numbers of bytes"),
    ({"command": "python /home/me/labs/x.py"}, "without absolute paths"),
    ({"command": "python labs/x.py --out=/tmp/y"}, "without absolute paths"),
    ({"skipped": "a text"}, "a list of one-line texts"),
    ({"checks": {"loss": {"value": 1.0}}}, "{value, tolerance, passed}"),
    ({"schema": 2}, "this version of the book reads schema 1"),
]


@pytest.mark.parametrize(("change", "words"), BROKEN)
def test_a_broken_field_is_named(change, words, tmp_path):
    assert_refused(replace(sample(), **change), words, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON (line 1"),
        ("[1]", "must hold one JSON object"),
        ('{"a": NaN}', "holds NaN"),
        ('{"a": 1}', "unknown field 'a'"),
        ("{}", "field 'backend' is missing"),
        ('{"stem": "x"', "not JSON"),
        ("\xff\xfe", "not JSON"),
    ],
)
def test_a_file_that_is_no_record_is_refused_in_one_line(text, words, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_field_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.json: no such file"):
        load(tmp_path / "gone.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a text file"):
        load(tmp_path / "bytes.json")
    data = asdict(sample())
    del data["losses"]
    with pytest.raises(ValueError, match="field 'losses' is missing"):
        results.from_dict(data)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="cannot be written"):
        save(sample(), tmp_path / "file" / "run.json")


def test_an_interrupted_write_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = save(sample(), tmp_path / "run.json")
    before = path.read_bytes()

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        save(replace(sample(), commit="later"), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


WRITER = """
import sys
sys.path.insert(0, {root!r})
from scaleout.records.results import write_json
data = {{"values": list(range(200_000))}}
while True:
    write_json(data, {path!r})
"""


def test_a_killed_writer_never_leaves_half_a_file(tmp_path):
    """SIGKILL at different moments of a write that is always going on: the file is there, and whole."""
    path = tmp_path / "run.json"
    for delay in (0.002, 0.03, 0.07, 0.11):
        path.unlink(missing_ok=True)
        code = WRITER.format(root=str(ROOT), path=str(path))
        child = subprocess.Popen([sys.executable, "-c", code])
        waited = time.monotonic() + 60
        while not path.exists() and time.monotonic() < waited:
            time.sleep(0.001)
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert len(json.loads(path.read_text())["values"]) == 200_000


def test_what_never_ends_is_not_read():
    with pytest.raises(ValueError, match="/dev/zero: is no file"):
        results.load("/dev/zero")


def test_the_command_keeps_no_path_of_this_machine():
    line = provenance.command_line(
        ["/home/me/book/labs/memory.py", "--save", "/tmp/a.json", "--dataset=/data/t.txt", "--tier", "smoke"],
        "torchrun --nproc-per-node 2",
    )
    assert line == ("torchrun --nproc-per-node 2 labs/memory.py --save .../a.json --dataset=.../t.txt --tier smoke")
    assert provenance.command_line([r"C:\labs\memory.py", r"C:\x\y.json"]) == "python labs/memory.py .../y.json"
    said = provenance.command_line(["x/y.py", "a /b/c=/d\n\udcff", "/e=f/g"])
    assert said == "python x/y.py 'a .../c=.../d??' .../g"
    assert [provenance.is_absolute(word) for word in ("~/x", r"C:\x", "/x", "labs/x.py")] == [True] * 3 + [False]


@pytest.mark.parametrize(
    "words",
    [
        ["--prompt", "class Foo"],
        ["--prompt", "it's $HOME; `x` \\ \" * ?"],
        ["--prompt=def f(", "--save", "a b.json"],
        ["--prompt", ""],
        ["--inject", "kill:0:3,nan:7"],
        ["--layout", "tp=2,pp=2"],
    ],
)
def test_a_shell_reads_the_command_as_the_words_that_were_typed(words):
    line = provenance.command_line(["my labs/x.py", *words])
    done = subprocess.run(["sh", "-c", line.replace("python", "printf '%s\\n'", 1)], capture_output=True, text=True)
    assert done.stdout.split("\n")[:-1] == ["my labs/x.py", *words]


def test_a_clock_that_was_set_back_loses_no_record(tmp_path):
    record = results.load(results.save(replace(sample(), started="2999-01-01T00:00:00+00:00"), tmp_path / "r.json"))
    assert record.started < datetime.now(UTC).isoformat()
    assert record.notes == [
        "the clock was set back during the run, which began at 2999-01-01T00:00:00+00:00 by the clock of then"
    ]
    assert results.load(results.save(sample(), tmp_path / "s.json")) == sample()
    with pytest.raises(ValueError, match="it must be a time that has come"):  # of a file, nobody knows why
        results.from_dict(asdict(sample()) | {"started": "2999-01-01T00:00:00+00:00"})


def test_the_commit_is_a_hash_or_unknown():
    found = provenance.commit()
    assert found == "unknown" or len(found.removesuffix("+changes")) == 40


COMMITTED = sorted((ROOT / "labs" / "results").rglob("*.json"))
RECORDS = [path for path in COMMITTED if path.name.startswith(("smoke-", "cpu-", "gpu-"))]  # by tier


@pytest.mark.parametrize("path", [path for path in COMMITTED if path not in RECORDS], ids=lambda p: p.name)
def test_a_record_goes_by_the_name_of_its_tier(path):
    """Traces and dumps lie beside the Records; no Record may hide among them."""
    assert "step_seconds" not in json.loads(path.read_text())


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_every_committed_record_is_sound(path):
    record = load(path)
    assert record.stem == {"scaling": "capstone"}.get(path.parent.name, path.parent.name)  # scaling runs the job
    assert all(check["passed"] for check in record.checks.values())
    assert record.commit != "unknown"
