"""What labs/hang.py reads, where it is not what it wrote: each odd dump is one line, none costs time. And what may come
between two of its own lines on a busy machine."""

import json
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from repo import ROOT

from scaleout.lab import hang as lab_hang
from scaleout.lab import launch
from scaleout.records import flight

sys.path.insert(0, str(ROOT / "labs"))

import hang

RECORDED = ROOT / "labs" / "results" / "hang"


def odd_dumps(folder, name, change):
    """The recorded dumps in a folder, in one of which something else stands."""
    for path in RECORDED.iterdir():
        (folder / path.name).write_text(path.read_text())
    dump = json.loads((folder / name).read_text())
    change(dump)
    (folder / name).write_text(json.dumps(dump))
    return folder


def call_with(**more):
    return lambda dump: dump["entries"][-1].update(more)


@pytest.mark.parametrize(
    "change",
    [
        lambda dump: dump.update(entries=7),
        lambda dump: dump.update(entries=[7]),
        lambda dump: dump.pop("pg_config"),
        lambda dump: dump.update(pg_config=[]),
        lambda dump: dump["pg_config"]["0"].update(ranks="(" * 9999),
        lambda dump: dump["pg_config"]["0"].update(ranks="7"),
        lambda dump: dump["pg_config"]["0"].update(ranks="'ab'"),
        lambda dump: dump.update(rank=None),
        lambda dump: dump.update(rank=-1),
        lambda dump: dump.update(rank=1e400),
        call_with(process_group=[]),
        call_with(process_group=[[]]),
        call_with(profiling_name=7),
        call_with(frames=[7]),
        call_with(collective_seq_id="9"),
        call_with(collective_seq_id=None),
        call_with(input_sizes=[["a"]]),
        call_with(input_sizes=[7]),
        call_with(input_dtypes=[[]]),
        lambda dump: dump["entries"][-1].pop("is_p2p"),
        lambda dump: dump.update(rank=3),
    ],
    ids=range(21),
)
def test_an_odd_dump_is_one_line(change, tmp_path):
    with pytest.raises(ValueError, match=r"^flight-[23]\.json: is ") as caught:
        flight.load(odd_dumps(tmp_path, "flight-2.json", change))
    assert "\n" not in str(caught.value)


def test_a_call_numbered_in_billions_costs_no_time_and_nothing_steers_the_screen(tmp_path):
    found = flight.load(
        odd_dumps(
            tmp_path, "flight-2.json", call_with(collective_seq_id=10**9, profiling_name="gloo:all\x1b[2J_reduce")
        )
    )
    _, rows = flight.side_by_side(found)
    assert rows[-1][0] == str(10**9)
    assert "all?[2J_reduce" in rows[-1][3]
    assert flight.odd(found).ranks == (2,)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"processes": "four"}, "not supported between"),
        ({"processes": 10**9}, "another number of processes, or another"),
        ({"inject": "cable"}, "another number of processes, or another bug"),
        ({}, "no 'processes'"),
    ],
)
def test_facts_of_a_job_that_never_was_are_one_line(facts, said, tmp_path):
    def change(job):
        job.update(facts)
        if not facts:
            job.clear()

    with pytest.raises(ValueError, match=rf"job\.json: .*{said}"):
        lab_hang.judge("2:81", odd_dumps(tmp_path, "job.json", change))


def test_a_rank_without_a_dump_is_no_answer_to_judge(tmp_path):
    odd_dumps(tmp_path, "job.json", lambda job: None)
    (tmp_path / "flight-2.json").unlink()
    with pytest.raises(ValueError, match=r"holds no flight-2\.json: python labs/hang.py writes such a folder"):
        lab_hang.judge("2:81", tmp_path)


def test_a_signal_between_the_folder_and_the_run_leaves_no_folder(tmp_path, monkeypatch):
    new = hang.new_folder

    def struck(path):
        folder = new(path)
        signal.raise_signal(signal.SIGTERM)
        return folder

    monkeypatch.setattr(hang, "new_folder", struck)
    with launch.ending(), pytest.raises(SystemExit):
        hang.run(hang.options(["--out", str(tmp_path / "dumps")]))
    assert list(tmp_path.iterdir()) == []


def test_a_stack_is_read_once_it_is_whole(tmp_path, monkeypatch):
    """However late the rank comes to write it."""
    main = '  File "labs/hang_job.py", line 7 in <module>\n'
    (tmp_path / ".pid-0").write_text("1")
    (tmp_path / ".stack-0").write_text("")
    monkeypatch.setattr(hang.shutil, "which", lambda *_, **__: None)
    late = threading.Timer(0.5, (tmp_path / ".stack-0").write_text, [main])
    monkeypatch.setattr(hang.os, "kill", lambda *_: late.start())
    hang.stack(0, tmp_path, SimpleNamespace(poll=lambda: None), time.monotonic() + 60)
    assert (tmp_path / "stack-0.txt").read_text().endswith(main)
