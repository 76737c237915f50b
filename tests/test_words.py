"""Sentences of the book that were not so once, and what torch, the code and the pages say instead."""

import inspect
import json
import re

import pool
import pytest
import repo

from scaleout import views
from scaleout.spec.hardware import COMPUTE_SHARE
from scaleout.timing import fsdp_machine, fsdp_seconds, step

PUBLISHED = json.loads(repo.text("tests/published/training_throughput.json"))["megatron"]["table1"]


def chapters():
    """{path: text} of every chapter's prose and code."""
    return {
        name: "\n".join("".join(cell["source"]) for cell in json.loads(repo.text(name))["cells"])
        for name in repo.with_suffix(".ipynb") if name.startswith("notebooks/")
    }  # fmt: skip


def pages():
    """{path: text} of chapters, pages, modules and labs: wherever the book speaks."""
    written = {name: repo.text(name) for name in repo.with_suffix(".md", ".py") if not name.startswith("tests/")}
    return chapters() | written


# --- one assumed share of the peak ---------------------------------------------------------------------------


def test_the_assumed_share_of_the_peak_is_one_and_among_published_ones():
    reached = [row["of_peak"] for row in PUBLISHED]
    assert (min(reached), max(reached)) == (0.43, 0.52) and min(reached) < COMPUTE_SHARE < max(reached)
    for function in (step.from_device, fsdp_seconds.from_device, fsdp_machine.machine):
        assert inspect.signature(function).parameters["efficiency"].default == COMPUTE_SHARE
    assert views.defaults("capstone")["reached"] == 100 * COMPUTE_SHARE
    for stem in ("ddp", "fsdp"):
        assert f"compute at {COMPUTE_SHARE:.0%} of peak" in " ".join(views.render(stem, {})["law"])


def test_chapters_compute_with_that_share_and_say_it():
    for name, text in chapters().items():
        assert not re.search(r"0\.\d+ \* [\w.\[\]\"-]*bf16_flop_per_s", text), f"{name}: a share of its own"
        taken = re.findall(r"(?:at|sustains|at the assumed) (\d+)% of (?:its|the) (?:datasheet|peak)", text)
        assert all(int(share) == 100 * COMPUTE_SHARE for share in taken), name
        assert taken or "COMPUTE_SHARE" not in text, f"{name}: computes with it and does not say it"


# --- the flight recorder -------------------------------------------------------------------------------------

CALLS = """
import json, torch, torch.distributed as dist
from torch._C import _distributed_c10d as recorder
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(2_100):
    dist.all_reduce(torch.zeros(1))
print(len(json.loads(recorder._dump_fr_trace_json(True, False)).get("entries", [])))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("size", "kept"), [(None, 2000), ("0", 0), ("7", 7)])
def test_the_flight_recorder_is_on_unless_it_is_turned_off(size, kept, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE", raising=False)
    (tmp_path / "calls.py").write_text(CALLS)
    done = pool.lab([tmp_path / "calls.py"], **{"TORCH_FR_BUFFER_SIZE": size} if size else {})
    assert done.stdout.split() == [str(kept)], done.stderr


def test_nobody_says_that_the_variable_turns_it_on():
    for name, text in pages().items():
        assert not re.search(r"TORCH_FR_BUFFER_SIZE`? turns it on|[Ss]witch torch's flight recorder on", text), name
    chapter = chapters()["notebooks/02_ddp.ipynb"]
    assert "on by default" in chapter and "len(entries) == 2_000" in chapter


# --- renames, buckets, and what the reader has done ----------------------------------------------------------


def test_where_a_rename_is_promised_the_object_store_is_named():
    """In the chapter, in the module, in the exercise's solution and in the glossary."""
    places = ("notebooks/11_capstone.ipynb", "scaleout/records/checkpoints.py", "scaleout/exercises/capstone/faults.py",
              "book/glossary.md", "book/instructor/capstone.md")
    for name in places:
        assert re.search(r"object store", pages()[name]), name


def test_the_chapter_says_that_ddp_rebuilds_its_buckets_and_shows_it():
    text = chapters()["notebooks/02_ddp.ipynb"]
    assert re.search(r"rebuil[dt]s? (?:its|the) buckets", text) and "register_comm_hook(sizes" in text


@pytest.mark.parametrize(("name", "cell"),
                         [("06_fsdp", "fsdp-by-hand"), ("10_collectives", "collectives-ring-threads")])
def test_code_that_the_reader_is_said_to_have_read_stands_in_a_cell_and_runs(name, cell):
    cells = {one["id"]: one for one in json.loads(repo.text(f"notebooks/{name}.ipynb"))["cells"]}
    source = "".join(cells[cell]["source"])
    assert cells[cell]["cell_type"] == "code" and not cells[cell]["metadata"].get("tags")
    assert len(re.sub(r"\n\n+", "\n", source).splitlines()) <= 34 and "getsource" not in source
    check = cells.get(f"{cell}-check", {"source": []})["source"]
    exec(compile(source + "\n" + "".join(check), cell, "exec"), {})  # its asserts hold, in a fresh namespace
