"""Sentences of the book that were not so once, and what torch, the code and the pages say instead."""

import json
import re

import pool
import pytest
import repo

from scaleout import views
from scaleout.draw import stages, svg
from scaleout.spec.hardware import COMPUTE_SHARE
from scaleout.train import options

PUBLISHED = json.loads(repo.text("tests/published/training_throughput.json"))["megatron"]["table1"]


def chapters():
    """{path: text} of every chapter's prose and code."""
    return {
        name: "\n".join("".join(cell["source"]) for cell in json.loads(repo.text(name))["cells"])
        for name in repo.with_suffix(".ipynb")
        if name.startswith("notebooks/")
    }


def pages():
    """{path: text} of chapters, pages, modules and labs: wherever the book speaks."""
    written = {name: repo.text(name) for name in repo.with_suffix(".md", ".py") if not name.startswith("tests/")}
    return chapters() | written


# --- one assumed share of the peak ---------------------------------------------------------------------------


def test_the_assumed_share_of_the_peak_is_one_and_among_published_ones():
    reached = [row["of_peak"] for row in PUBLISHED]
    assert (min(reached), max(reached)) == (0.43, 0.52) and min(reached) < COMPUTE_SHARE < max(reached)
    assert f"compute at {COMPUTE_SHARE:.0%} of peak" in " ".join(views.render("ddp", {})["law"])


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
    places = (
        "notebooks/11_capstone.ipynb",
        "scaleout/records/checkpoints.py",
        "scaleout/exercises/capstone/faults.py",
        "book/glossary.md",
        "book/instructor/capstone.md",
    )
    for name in places:
        assert re.search(r"object store", pages()[name]), name


def test_the_chapter_says_that_ddp_rebuilds_its_buckets_and_shows_it():
    text = chapters()["notebooks/02_ddp.ipynb"]
    assert re.search(r"rebuil[dt]s? (?:its|the) buckets", text) and "register_comm_hook(sizes" in text


@pytest.mark.parametrize(
    ("name", "cell"), [("06_fsdp", "fsdp-by-hand"), ("10_collectives", "collectives-ring-threads")]
)
def test_code_that_the_reader_is_said_to_have_read_stands_in_a_cell_and_runs(name, cell):
    cells = {one["id"]: one for one in json.loads(repo.text(f"notebooks/{name}.ipynb"))["cells"]}
    source = "".join(cells[cell]["source"])
    assert cells[cell]["cell_type"] == "code" and not cells[cell]["metadata"].get("tags")
    assert len(re.sub(r"\n\n+", "\n", source).splitlines()) <= 34 and "getsource" not in source
    check = cells.get(f"{cell}-check", {"source": []})["source"]
    exec(compile(source + "\n" + "".join(check), cell, "exec"), {})  # its asserts hold, in a fresh namespace


# --- what stands before and after a guess --------------------------------------------------------------------


def test_the_guess_of_1f1b_comes_before_the_bubble_is_counted():
    """The formula of the step and its exercise stand after the widget; before it, and in its question, no count."""
    cells = json.loads(repo.text("notebooks/04_pipeline.ipynb"))["cells"]
    ids = [cell["id"] for cell in cells]
    assert ids.index("pipeline-widget") < ids.index("pipeline-words") < ids.index("pipeline-exercise-bubble-share")
    before = "".join("".join(cell["source"]) for cell in cells[: ids.index("pipeline-widget")])
    asked = views.question("pipeline")
    counts = re.compile(r"p - 1|p − 1|\b33\b|\b27(?:\.3)?%|as long as GPipe")
    assert "m + p - 1" in "".join(cells[ids.index("pipeline-words")]["source"])
    pictures = [*asked["pictures"], stages.opening(svg.WIDE), stages.opening(svg.NARROW)]
    seen = " ".join(words for picture in pictures for words in re.findall(r">([^<]+)<", picture))
    assert not counts.search(before) and "micro-batch" in seen and not counts.search(seen), counts.search(seen)


def test_a_slot_is_a_ranks_forward_of_one_micro_batch_everywhere():
    """Never a piece, which is a forward and its backward: three slots."""
    assert (
        "One **slot** is the time that a rank needs for the forward of one micro-batch through all of its layers."
        in (chapters()["notebooks/04_pipeline.ipynb"])
    )
    assert "A slot is the time of one micro-batch's forward on one rank." in views.render("pipeline", {})["law"][2]
    for name, text in pages().items():
        assert not re.search(r"slots? of a piece|slots?,? \(?F \+ B\)?(?! = )", text), name


def test_the_widget_of_recomputation_opens_where_its_text_begins():
    """ "Nothing is freed yet", before the guess, after it and after Reset."""
    assert views.defaults("recompute")["dropped"] == 0
    assert views.render("recompute", {})["values"]["freed_gb"] == 0
    assert "Nothing is freed yet." in chapters()["notebooks/09_recompute.ipynb"]


def test_the_seed_of_a_class_is_not_in_the_name_of_its_folder():
    for name, text in pages().items():
        for seed, folder in re.findall(r"--seed (\w+) --out ([\w-]+)", text):
            assert len(seed) == 1 or seed not in folder, name
            assert not re.search(rf"(?<![a-z]){re.escape(seed)}$", folder), name


def test_the_readers_job_saves_so_often_that_a_kill_costs_a_few_seconds():
    every = int(re.search(r"labs/capstone\.py --folder run --checkpoint-every (\d+)", repo.text("README.md"))[1])
    assert every <= options.TIERS["smoke"].steps / 10


# --- words that are so on any ground ---------------------------------------------------------------------------


def test_no_mark_is_called_pale_or_dark():
    """They change places in dark mode: a mark is solid, faint or hatched, or has a colour's name."""
    spoken = {name: text for name, text in pages().items() if name.endswith((".ipynb", ".md")) or "/exercises/" in name}
    spoken |= {name: repo.text(name) for name in repo.with_suffix(".yml") if name.startswith("book/")}
    for name, text in spoken.items():
        found = re.findall(r"\b(?:[Pp]ale|[Dd]ark)(?:r|er|st|est)?\b(?! mode)|\b[Ll]ighter\b", text)
        assert not found or name == "CONTRIBUTING.md", f"{name}: {found}"
