"""A checkpoint from a stranger runs none of their code: traps in every file that torch would unpickle.

Each trap is shown to be real: torch's own reader, or `weights_only=False`, does run it.
"""

import contextlib
import io
import json
import os
import pickle
import re
import zipfile

import pytest
import torch
from cases import refused
from specimen_checkpoint import model, session, whole
from torch.distributed.checkpoint import FileSystemReader

from scaleout.records import checkpoints
from scaleout.train import dcp
from scaleout.train.checkpoint import Checkpoints
from scaleout.train.state import state

ONE = session(0, 1)


class Evil:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.fixture
def stranger(tmp_path):
    """(folder with a sound checkpoint, its path, where evil leaves its mark, how to make its manifest fit again)."""
    kept = Checkpoints(ONE, tmp_path / "run")
    kept.save(1, *model(), {"step": 1})
    kept.finish()
    path, mark = tmp_path / "run" / "step-00000001", tmp_path / "mark"

    def sign():
        body = json.loads((path / "manifest.json").read_text())["body"]
        body["files"] = {name: checkpoints.checksum(path / name) for name in body["files"]}
        (path / "manifest.json").write_text(json.dumps({"sha256": checkpoints._digest(body), "body": body}))

    return kept, path, mark, sign


def test_metadata_that_would_run_code_is_never_opened(stranger):
    kept, path, mark, sign = stranger
    (path / ".metadata").write_bytes(pickle.dumps(Evil(str(mark))))
    sign()
    assert kept.load(*model(seed=2)) == {"step": 1}
    assert not mark.exists()
    with contextlib.suppress(AttributeError):  # torch's own reader: the trap is real
        FileSystemReader(path).read_metadata()
    assert mark.exists()


def test_a_tensor_that_would_run_code_is_refused(stranger):
    kept, path, mark, sign = stranger
    box = io.BytesIO()
    torch.save(Evil(str(mark)), box)
    data = path / "__0_0.distcp"
    first = data.stat().st_size
    data.write_bytes(data.read_bytes() + box.getvalue())
    table = json.loads((path / dcp.INDEX).read_text())
    chunk = table["model.norm.weight"]["chunks"][0]
    chunk[3:] = [first, len(box.getvalue())]
    (path / dcp.INDEX).write_text(json.dumps(table))
    sign()
    with pytest.raises(ValueError, match=r"step 1 cannot be loaded: tensors.json: .*[Ww]eights.only"):
        kept.load(*model(seed=2))
    assert not mark.exists()
    torch.load(io.BytesIO(box.getvalue()), weights_only=False)
    assert mark.exists(), "the trap is real"


def test_a_file_outside_the_checkpoint_is_refused(stranger, tmp_path):
    kept, path, _, sign = stranger
    (tmp_path / "secret").write_bytes((path / "__0_0.distcp").read_bytes())
    table = json.loads((path / dcp.INDEX).read_text())
    table["model.norm.weight"]["chunks"][0][2] = "../../secret"
    (path / dcp.INDEX).write_text(json.dumps(table))
    sign()
    with pytest.raises(ValueError, match=r"tensors.json: model.norm.weight is in '../../secret', which is not of this"):
        kept.load(*model(seed=2))


def index_changed(path, change):
    table = json.loads((path / dcp.INDEX).read_text())
    change(table)
    (path / dcp.INDEX).write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda table: table["model.tokens.weight"]["chunks"].clear(),
            "tensors.json: model.tokens.weight has chunks of 0 numbers, and is 64 x 32",
        ),
        (
            lambda table: table["model.tokens.weight"]["chunks"][0].__setitem__(0, [8, 0]),
            "tensors.json: model.tokens.weight has a chunk at [8, 0] of 64 x 32, outside its 64 x 32",
        ),
        (lambda table: table.clear(), "tensors.json: has no model."),
    ],
)
def test_tensors_that_are_not_whole_are_named_and_nothing_of_them_is_loaded(stranger, change, said):
    kept, path, _, sign = stranger
    index_changed(path, change)
    sign()
    made, optimizer = model(seed=2)
    before = whole(made)
    refused(lambda: kept.load(made, optimizer), said)
    assert whole(made) == before


@pytest.mark.parametrize("name", ["__0_0.distcp", "tensors.json", "random-00000.json", "manifest.json"])
def test_a_pipe_in_the_place_of_a_file_is_named_and_not_waited_for(stranger, name):
    kept, path, _, _ = stranger
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(
        ValueError,
        match=re.escape(f"step 1: {name} " + ("cannot be read" if name == "manifest.json" else "is no file")),
    ):
        kept.load(*model(seed=2))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"extra": {"step": 7}}, "manifest.json is of step 1, and what the job left in it of step 7"),
        ({"world": "two"}, "manifest.json has no sound world and settings"),
        ({"settings": None}, "manifest.json has no sound world and settings"),
        ({"world": 2}, "manifest.json lists no random-00001.json"),
        ({"settings": {"plain": {}, "groups": []}}, "cannot be loaded: manifest.json: "),
    ],
)
def test_a_manifest_that_does_not_agree_with_itself_is_named(stranger, change, said):
    kept, path, _, _ = stranger
    body = json.loads((path / "manifest.json").read_text())["body"] | change
    (path / "manifest.json").write_text(json.dumps({"sha256": checkpoints._digest(body), "body": body}))
    with pytest.raises(ValueError, match=re.escape(said)):
        kept.load(*model(seed=2))


def test_random_state_that_is_none_names_its_file(stranger):
    kept, path, _, sign = stranger
    (path / "random-00000.json").write_text("{}")
    sign()
    with pytest.raises(ValueError, match=r"checkpoint step 1 cannot be loaded: random-00000\.json: "):
        kept.load(*model(seed=2))


def test_what_is_not_a_tensor_is_never_loaded():
    with pytest.raises(ValueError, match="loot is not a tensor"):

        class Item:
            class dest_index:
                fqn = "loot"

        dcp.Planner().load_bytes(Item, io.BytesIO(b""))


def test_only_tensors_are_saved_by_pickle(stranger):
    """Settings and random state are JSON; each saved piece is a torch archive whose pickle names tensors only."""
    _, path, _, _ = stranger
    tensors, settings = state(*model())
    assert all(torch.is_tensor(value) for value in tensors.values())
    assert json.loads(json.dumps(settings))["groups"][0]["betas"] == [0.9, 0.999]
    table, data = json.loads((path / dcp.INDEX).read_text()), (path / "__0_0.distcp").read_bytes()
    assert sorted(table) == sorted(tensors)
    for entry in table.values():
        ((_, sizes, file, first, length),) = entry["chunks"]
        assert (file, sizes) == ("__0_0.distcp", entry["size"])
        names = zipfile.ZipFile(io.BytesIO(data[first : first + length])).namelist()
        assert any(name.endswith("data.pkl") for name in names)
    assert sum(p.numel() for p in model()[0].parameters()) == sum(
        torch.Size(entry["size"]).numel()
        for name, entry in table.items()
        if name.startswith("model.") and name != "model.head.weight"
    ), "the tied head is counted once"
