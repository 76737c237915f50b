"""Folders of checkpoints: complete or not there, every kind of damage named, the last few and the best kept."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scaleout.records import checkpoints as c

TEXT = {"__0_0.distcp": "weights " * 400, "random-00000.json": "[1, 2]"}


def make(folder, step, loss=None, **more):
    """A checkpoint with two files, published."""
    place = c.temporary(folder, step)
    place.mkdir(parents=True)
    for name, text in TEXT.items():
        c.write_text(place / name, text + str(step))
    files = {name: c.checksum(place / name) for name in TEXT}
    return c.publish(place, folder, {"step": step, "loss": loss, "files": files} | more)


def steps(folder):
    return [c.step_of(path) for path in c.listing(folder)]


def wrong(path):
    """What is wrong with a checkpoint, None where it is whole: as a job finds it, the manifest first."""
    try:
        return c.problem(path, c.manifest(path)["files"])
    except ValueError as error:
        return str(error)


# --- complete or not there ---------------------------------------------------------------------------------


def test_a_published_checkpoint_is_whole(tmp_path):
    path = make(tmp_path, 40, 2.5, extra={"seed": 3})
    assert path == tmp_path / "step-00000040"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000040"], "nothing temporary stays"
    body = c.manifest(path)
    assert (body["step"], body["loss"], body["extra"], body["number"]) == (40, 2.5, {"seed": 3}, 1)
    assert body["files"]["random-00000.json"]["bytes"] == len(TEXT["random-00000.json"]) + 2
    assert c.problem(path, body["files"]) is None


def test_nothing_is_published_where_a_file_is_not_as_its_rank_wrote_it(tmp_path):
    place = c.temporary(tmp_path, 7)
    place.mkdir()
    (place / "a").write_text("short")
    for files in ({"a": {"bytes": 6, "sha256": ""}}, {"b": {"bytes": 5, "sha256": ""}}):
        with pytest.raises(ValueError, match="all nodes must share the folder"):
            c.publish(place, tmp_path, {"step": 7, "files": files})
    assert steps(tmp_path) == []
    assert c.sweep(tmp_path) == [".writing-00000007-0"]


def test_a_full_disk_publishes_nothing(tmp_path, monkeypatch):
    make(tmp_path, 1)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(c.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        c.publish(c.temporary(tmp_path, 2).mkdir() or c.temporary(tmp_path, 2), tmp_path, {"step": 2, "files": {}})
    assert [wrong(path) for path in c.listing(tmp_path)] == [None]


def test_a_number_that_json_has_not_is_refused_before_anything_is_published(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        make(tmp_path, 3, float("nan"))
    assert steps(tmp_path) == []


def test_publishing_again_replaces_the_checkpoint_of_an_abandoned_future(tmp_path):
    make(tmp_path, 30)
    make(tmp_path, 40, extra="old")
    make(tmp_path, 40, extra="new")
    assert steps(tmp_path) == [40, 30]
    assert c.manifest(tmp_path / "step-00000040")["extra"] == "new"


def kill(folder, path, wait):
    """A process that publishes and prunes as fast as it can, killed when `wait` returns."""
    job = (
        "import sys; from pathlib import Path\n"
        "from test_checkpoints import make, c\nfolder = Path(sys.argv[1])\nprint('on', flush=True)\n"
        "for step in range(100000): make(folder, step); c.prune(folder, 2)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", job, str(folder)], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
    )
    process.stdout.readline()
    wait(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def in_a_write(folder):
    """Return as soon as a folder on its way is seen behind two that were published."""

    def wait(process):
        end = time.monotonic() + 30
        while time.monotonic() < end and process.poll() is None:
            names = [path.name for path in folder.iterdir()] if folder.exists() else []
            if sum(name.startswith(c.DONE) for name in names) > 1 and any(name.startswith(c.WRITING) for name in names):
                return

    return wait


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_only_whole_checkpoints(tmp_path):
    """Whatever stands under its name is good, wherever the kill fell; some fall into a write."""
    path, killed_while_writing = ":".join([*sys.path, str(Path(__file__).parent)]), 0
    for attempt in range(12):
        folder = tmp_path / str(attempt)
        kill(folder, path, in_a_write(folder) if attempt > 1 else lambda _, at=attempt: time.sleep(0.3 + 0.01 * at))
        found = c.listing(folder)
        assert 1 <= len(found) <= 3, "two, or one more before it is pruned"
        assert [c.problem(path, c.manifest(path)["files"]) for path in found] == [None] * len(found)
        killed_while_writing += bool(c.sweep(folder))
        assert all(path.name.startswith(c.DONE) for path in folder.iterdir())
        if attempt > 2 and killed_while_writing:
            return
    pytest.fail("no kill fell into a write: the test says nothing")


# --- damage ------------------------------------------------------------------------------------------------


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def change_loss(path):
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"body": data["body"] | {"loss": 0.1}}))


def signed(change):
    """A harm to a manifest whose checksum is right afterwards: `change` of its body."""

    def harm(path):
        body = json.loads(path.read_text())["body"]
        change(body)
        path.write_text(json.dumps({"sha256": c._digest(body), "body": body}))

    return harm


def given(**fields):
    """A manifest with other fields, and a right checksum."""
    return signed(lambda body: body.update(fields))


def without(field):
    return signed(lambda body: body.pop(field))


def huge(path):
    with path.open("r+b") as stream:
        stream.truncate(c.LARGEST + 1)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def deep(opening, closing):
    """A manifest whose body is nested 100,000 times."""
    return lambda path: path.write_text('{"sha256": "", "body": ' + opening * 100_000 + "1" + closing * 100_000 + "}")


@pytest.mark.parametrize(
    ("file", "harm", "said"),
    [
        ("__0_0.distcp", flip, "__0_0.distcp differs from what was written"),
        ("__0_0.distcp", truncate, "__0_0.distcp has 3,195 bytes of 3,202"),
        ("__0_0.distcp", Path.unlink, "__0_0.distcp is missing"),
        ("random-00000.json", flip, "random-00000.json differs from what was written"),
        ("manifest.json", Path.unlink, "has no manifest.json"),
        ("manifest.json", truncate, "manifest.json cannot be read"),
        ("manifest.json", lambda path: path.write_bytes(b"\xff\xfe"), "manifest.json cannot be read"),
        ("manifest.json", lambda path: path.write_text("[]"), "manifest.json differs from what was written"),
        ("manifest.json", change_loss, "manifest.json differs from what was written"),
        ("manifest.json", given(schema=9), "manifest.json has schema 9: this version of the book reads 1"),
        (
            "manifest.json",
            given(files={"../../secret": {"bytes": 1, "sha256": ""}}),
            "manifest.json lists '../../secret', which is not in the folder",
        ),
        *[
            ("manifest.json", without(field), f"manifest.json has no {field}")
            for field in ("schema", "step", "number", "loss", "files")
        ],
        *[
            ("manifest.json", given(files=files), "manifest.json has no sound files")
            for files in ([], "a", {"a": 1}, {"a": {"bytes": "1", "sha256": ""}}, {"a": {"bytes": 1, "sha256": 7}})
        ],
        *[("manifest.json", given(step=step), "manifest.json has no sound step") for step in ("40", 10**30, True)],
        ("manifest.json", given(step=30), "manifest.json is of step 30"),
        ("manifest.json", given(number=[]), "manifest.json has no sound number"),
        ("manifest.json", given(loss="low"), "manifest.json has no sound loss"),
        (
            "manifest.json",
            lambda path: path.write_text(json.dumps({"sha256": c._digest(7), "body": 7})),
            "manifest.json has no schema",
        ),
        *[
            ("manifest.json", harm, "manifest.json cannot be read")
            for harm in (
                deep("[", "]"),
                deep('{"a":', "}"),
                huge,
                pipe,
                lambda path: path.write_text("9" * 5000),
                lambda path: path.write_text('{"sha256": "", "body": NaN}'),
                lambda path: path.unlink() or path.mkdir(),
            )
        ],
    ],
)
def test_damage_is_named(file, harm, said, tmp_path):
    path = make(tmp_path, 40)
    harm(path / file)
    assert wrong(path) == said
    assert c.damage([(40, said)], 30) == [f"checkpoint step 40 is damaged ({said}): using step 30"]


def test_what_is_damaged_is_one_line_whatever_a_file_is_called():
    assert c.damage([(40, "a\n\ud800b is missing")], 30) == [
        "checkpoint step 40 is damaged (a??b is missing): using step 30"
    ]


def test_what_is_no_step_is_no_checkpoint(tmp_path):
    make(tmp_path, 30)
    for name in ("step-\u00b2", "step-\uff11", "step-", "step-1e3"):
        (tmp_path / name).mkdir()
    assert steps(tmp_path) == [30]


def test_the_newest_is_the_one_made_last(tmp_path):
    for step in (10, 20, 30, 20):  # the job went back to 10 and came to 20 again
        make(tmp_path, step)
    assert steps(tmp_path) == [20, 30, 10]


# --- tidying -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "keep", "left"),
    [
        ([None] * 5, 2, {4, 5}),
        ([3, 1, 2, 5, 4], 2, {2, 4, 5}),
        ([3, None, 2, 5, 1], 1, {5}),
        ([1, 2], 3, {1, 2}),
        ([2, 1, 1, 3, 4], 1, {2, 5}),
    ],
)
def test_the_last_and_the_best_are_kept(losses, keep, left, tmp_path):
    for step, loss in enumerate(losses, 1):
        make(tmp_path, step, loss)
    gone = c.prune(tmp_path, keep)
    assert set(steps(tmp_path)) == left
    assert set(gone) == set(range(1, len(losses) + 1)) - left


def test_a_damaged_one_does_not_count_as_kept(tmp_path):
    for step in (1, 2, 3, 4):
        make(tmp_path, step, loss=step)
    (tmp_path / "step-00000004" / c.MANIFEST).unlink()
    assert c.prune(tmp_path, 2, damaged={1}) == [1, 4]
    assert steps(tmp_path) == [3, 2]


def test_a_sweep_removes_what_is_unfinished_and_nothing_else(tmp_path):
    make(tmp_path, 5)
    (tmp_path / ".writing-00000006-1" / "deep").mkdir(parents=True)
    (tmp_path / ".removing-step-00000004").mkdir()
    (tmp_path / "step-notes.txt").write_text("mine")
    assert c.sweep(tmp_path) == [".removing-step-00000004", ".writing-00000006-1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-notes.txt"]
    assert steps(tmp_path) == [5]
    assert c.sweep(tmp_path / "nowhere") == []


def test_at_least_one_is_kept():
    with pytest.raises(ValueError, match="keep 0: keep at least one checkpoint"):
        c.keepers([], 0)
