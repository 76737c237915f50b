"""The write-up: what it says of a run, what it never mixes, and the two forms it takes."""

import re
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import repo
from samples import sample, untrained

from scaleout.records import results
from scaleout.records.results import tokens_per_second
from scaleout.writeup import blocks as writeup_blocks
from scaleout.writeup import document, facts
from scaleout.writeup.blocks import Figure, Table
from scaleout.writeup.document import Page, page


def run(seconds, count=2, batch=8, **more):
    """A Record of steps of these seconds, none of them warm-up, on `count` processes."""
    return replace(
        sample(),
        step_seconds=seconds,
        warmup_steps=0,
        device_count=count,
        effective_batch=batch,
        backend="none" if count == 1 else "gloo",
        losses=[5.0] * len(seconds),
        tokens_per_second=tokens_per_second(seconds, 0, batch, 128),
        **more,
    )


def on_gpus(record):
    """The same run on H100s."""
    return replace(record, device="NVIDIA H100 80GB HBM3", device_kind="cuda", backend="nccl", interconnect="NVLink 4")


def rows_of(text, heading):
    """The rows of the table under a heading of a Markdown page, as lists of cells."""
    part = text.split(f"# {heading}\n")[1].split("\n#")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ") and not line.startswith("| :--")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_rates_are_medians_and_quartiles_after_the_warm_up():
    record = replace(
        run([9.0, 0.5, 0.4, 0.5, 1.0, 0.8]),
        warmup_steps=1,
        tokens_per_second=tokens_per_second([9.0, 0.5, 0.4, 0.5, 1.0, 0.8], 1, 8, 128),
    )
    row = dict(zip(*rows_of(page([record]), "Speed"), strict=True))
    assert row["timed (warm-up)"] == "5 (1)"
    assert row["step time"] == r"500 ms \[500 ms, 800 ms\]"
    assert row["steps/s"] == r"2.00 \[1.25, 2.00\]"
    assert row["tokens/s"] == r"2,050 \[1,280, 2,050\]"  # 1,024 tokens over 0.5, 0.8 and 0.5 s
    assert row["tokens/s, mean"] == "1,600"  # 5,120 tokens in 3.2 s: the slow steps count


def test_mfu_stands_beside_its_peak():
    with_peak = replace(run([0.5, 0.5]), mfu=0.4123, mfu_peak={"flops_per_second": 989e12 * 2, "source": "datasheet"})
    text = page([with_peak])
    assert rows_of(text, "Speed")[1][-1] == "0.412"
    assert "- 1,980 TFLOP/s of all devices together, datasheet" in text
    assert "nothing: no MFU is given, because the peak is unknown" in page([run([0.5, 0.5])])


def test_everything_a_reader_needs_is_there():
    record = replace(
        run([0.5, 0.5]),
        stalls=["step 2 waited"],
        failures=["rank 1 was killed"],
        skipped=["not asked for"],
        checkpoint_cadence="every 50 steps",
        notes=["busy"],
        command="torchrun labs/x.py --save",
        checks={"same loss": {"value": 3.0, "tolerance": 1.0, "passed": False}},
        series={"data wait seconds": [0.1, 0.3], "checkpoint blocked seconds": [0.25]},
    )
    text = page([record])
    what = dict(rows_of(text, "What ran"))
    assert (what["device"], what["processes"], what["nodes"]) == ("2-core x86-64 CPU (cpu)", "2", "1")
    assert (what["interconnect"], what["backend"], what["precision"]) == ("TCP on one host", "gloo", "fp32")
    assert (what["effective batch"], what["sequence length"]) == ("8 sequences (1,024 tokens)", "128 tokens")
    assert (what["checkpoint cadence"], what["versions"]) == ("every 50 steps", "torch 2.13.0")
    for line in (
        "- step 2 waited",
        "- rank 1 was killed",
        "- not asked for",
        "```sh\ntorchrun labs/x.py --save    # run 1\n```",
    ):
        assert line in text
    waits = rows_of(text, "Waits, stalls and failures")
    assert waits[1] == ["run 1", "data wait", "2", "200 ms", "300 ms", "400 ms", "40.00%"]
    assert waits[2] == ["run 1", "checkpoint, training blocked", "1", "250 ms", "250 ms", "250 ms", "25.00%"]
    assert "0 passed, 1 failed, 1 skipped." in text
    assert rows_of(text, "Checks")[1] == ["same loss", "FAILED: run 1", "1", "3", "1"]
    assert rows_of(text, "Memory")[1] == ["run 1", "100 B", "100 B"]


def test_prediction_and_measurement_carry_ratios():
    record = replace(
        run([0.5, 0.5]),
        prediction={"seconds per step": 0.25, "peak bytes": 2e9, "zero bytes": 0, "x": -1.0},
        measurement={"seconds per step": 0.5, "peak bytes": 1e9, "zero bytes": 0, "x": 4.0},
    )
    text = page([record])
    assert rows_of(text, "Predicted and measured")[1:] == [
        ["seconds per step", "run 1", "250 ms", "500 ms", "0.500"],
        ["peak bytes", "run 1", "2.000 GB", "1.000 GB", "2.000"],
        ["zero bytes", "run 1", "0 B", "0 B", "-"],
        ["x", "run 1", "-1", "4", "-"],
    ]
    assert "**Times:** 1 predictions. predicted / measured has the median 0.500" in text


def test_of_many_predictions_the_farthest_are_shown():
    guesses = {f"bytes {i}": 1000 + i for i in range(200)}
    text = page([replace(run([0.5]), prediction=guesses, measurement=dict.fromkeys(guesses, 1000))])
    shown = rows_of(text, "Predicted and measured")[1:]
    assert [row[0] for row in shown] == [f"bytes {199 - i}" for i in range(24)]


# --- scaling ---------------------------------------------------------------------------------------------------


def test_strong_and_weak_sets_are_found_by_their_batches():
    one, two, wide = run([1.0], 1, 8), run([0.625], 2, 8), run([1.25], 2, 16)
    sets = {s.kind: s for s in facts.scalings(facts.runs([two, one, wide]))}
    assert set(sets) == {"strong", "weak"}
    assert sets["strong"].efficiency == {1: 1.0, 2: 0.8}
    assert sets["weak"].efficiency == {1: 1.0, 2: 0.8}
    assert [r.name for r in sets["weak"].runs] == ["run 2", "run 3"]


@pytest.mark.parametrize(
    "change",
    [
        {"device": "64-core CPU"},
        {"precision": "autocast-bf16"},
        {"sequence_length": 64},
        {"model": {"layers": 3}},
        {"recipe": {"precision": "bf16"}},
        {"versions": {"torch": "2.12"}},
        {"notes": ["2 CPU thread(s) a process"]},
        {"tier": "cpu"},
        {"stem": "ddp"},
    ],
)
def test_runs_that_differ_in_more_than_devices_make_no_curve(change):
    other = run([0.6], 2, 8)
    assert len(facts.scalings(facts.runs([run([1.0], 1, 8), other]))) == 1
    changed = replace(other, **change)
    if "sequence_length" in change:
        changed = replace(changed, tokens_per_second=tokens_per_second([0.6], 0, 8, 64))
    assert facts.scalings(facts.runs([run([1.0], 1, 8), changed])) == []


def test_one_process_is_the_start_of_every_strategy():
    alone = run([1.0], 1, 8, recipe={"strategy": "one", "clip": 1})
    ddp = run([0.7], 2, 8, recipe={"strategy": "ddp", "clip": 1})
    fsdp = run([0.8], 2, 8, recipe={"strategy": "fsdp", "clip": 1, "wrap": "block", "ranks": 2})
    other = run([0.8], 2, 8, recipe={"strategy": "fsdp", "clip": 2})
    sets = facts.scalings(facts.runs([alone, ddp, fsdp, other]))
    assert {s.title: [r.name for r in s.runs] for s in sets} == {
        "Strong scaling, ddp": ["run 1", "run 2"],
        "Strong scaling, fsdp": ["run 1", "run 3"],
    }


def test_better_than_ideal_is_not_believed():
    assert "An efficiency above 1" not in page([run([1.0], 1, 8), run([0.49], 2, 8)])  # 1.02: by chance
    text = page([run([1.0], 1, 8), run([0.4], 2, 8)])
    assert "> **An efficiency above 1.** run 2 did better than ideal compared with run 1." in text


def test_of_two_runs_on_as_many_devices_the_later_counts():
    first = run([0.9], 2, 8, started="2026-01-01T00:00:00+00:00")
    later = run([0.6], 2, 8, started="2026-01-03T00:00:00+00:00")
    (found,) = facts.scalings(facts.runs([run([1.0], 1, 8), later, first]))
    assert found.runs[1].record is later


def test_the_prediction_of_the_step_is_the_one_whose_measurement_was_timed():
    record = replace(
        run([0.5, 0.5]),
        prediction={"seconds per step, naive": 9.0, "seconds per step, DDP": 0.4},
        measurement={"seconds per step, naive": 0.7, "seconds per step, DDP": 0.5},
    )
    assert facts.predicted_step(facts.Run("r", record)) == 0.4
    assert facts.predicted_step(facts.Run("r", run([0.5]))) is None


# --- devices are never mixed -----------------------------------------------------------------------------------


def test_a_run_on_a_cpu_never_looks_like_one_on_a_gpu():
    text = page([run([0.5])])
    assert "On a CPU: 2 processes on a 2-core x86-64 CPU." in text
    assert "> **Measured on a CPU.**" in text
    assert "GPUs" not in text.replace("say nothing about a GPU", "")
    gpu = page([on_gpus(run([0.5]))])
    assert "On GPUs: 2 x NVIDIA H100 80GB HBM3." in gpu
    assert "CPU" not in gpu


def test_runs_of_two_kinds_of_device_share_no_table_and_no_curve():
    records = [run([1.0], 1, 8), on_gpus(run([0.1], 2, 8)), run([0.6], 2, 8), on_gpus(run([0.05], 4, 8))]
    blocks = Page(tuple(records)).blocks()
    for table in (block for block in blocks if isinstance(block, Table)):
        names = {cell for row in table.rows for cell in row if cell.startswith("run ")}
        assert names <= {"run 1", "run 3"} or names <= {"run 2", "run 4"}
    figures = [block.name for block in blocks if isinstance(block, Figure)]
    assert len(set(figures)) == len(figures)
    assert {"cuda-strong-1", "cpu-strong-1"} <= set(figures)
    text = page(records)
    assert text.index("\n## On GPUs") < text.index("\n## On a CPU")


# --- forms -----------------------------------------------------------------------------------------------------

RECORDED = sorted((repo.ROOT / "labs/results").glob("*/[sc][mp]*.json"))


@pytest.mark.parametrize("stem", ["ddp", "memory", "collectives"])
def test_recorded_runs_make_a_page_whose_pictures_are_sound(stem, tmp_path):
    files = [path for path in RECORDED if path.parent.name == stem]
    found = document.read(files)
    written = document.write(found, tmp_path / "page.md")
    text = written[0].read_text()
    assert text.startswith(f"# Systems write-up: {stem}\n")
    links = re.findall(r"\]\((page-[\w-]+\.svg)\)", text)
    assert links == [path.name for path in written[1:]]
    for picture in written[1:]:
        assert ElementTree.parse(picture).getroot().get("aria-label")
        assert "var(" not in picture.read_text()
    for path in files:
        assert path.stem in text
        assert results.load(path).command in text
    for table in (block for block in found.blocks() if isinstance(block, Table)):
        assert {len(row) for row in table.rows} == {len(table.header)}
    assert page(found.records, found.names) == page(found.records, found.names)


def test_the_recorded_ddp_runs_scale_as_the_lab_printed():
    found = document.read([path for path in RECORDED if "ddp" in path.parent.name and "scaling" in path.name])
    sets = {s.kind: s for s in facts.scalings(facts.runs(found.records, found.names))}
    assert sorted(sets["strong"].efficiency) == [1, 2, 4]
    assert sets["strong"].efficiency[4] == pytest.approx(0.296, abs=5e-4)


def test_a_notebook_shows_html_with_tables_and_pictures():
    nasty = replace(run([0.5, 0.4]), notes=["a < b & c | *d*"], command="python labs/x.py --prompt '<b>'")
    html = Page((nasty,))._repr_html_()
    assert ElementTree.fromstring(html).get("class") == "writeup", "every tag is closed, in order"
    assert html.startswith('<div class="writeup">\n<h3>Systems write-up: memory</h3>')
    assert html.count("<table") == 4
    assert html.count("<svg") == 3
    assert "a &lt; b &amp; c | *d*" in html
    assert "--prompt &#x27;&lt;b&gt;&#x27;" in html


def test_markdown_reads_no_mark_in_what_a_record_says():
    table = Table(("a",), (("x|y_z $1$",),))
    assert writeup_blocks.markdown([table]) == "| a |\n| :--- |\n| x\\|y\\_z \\$1\\$ |\n"
    code = writeup_blocks.markdown([writeup_blocks.Code("a ``` b")])
    assert code == "````sh\na ``` b\n````\n"


def test_a_picture_inside_markdown_is_one_html_block():
    text = page([run([0.5, 0.4])])
    for block in re.findall(r"<figure.*?</figure>", text, re.S):
        assert "\n\n" not in block


def test_validations_are_dots_on_the_curve_of_losses():
    record = run([0.5] * 4, series={"validation step": [2, 4], "validation nats a byte": [4.0, 3.0]})
    (figure,) = (block for block in Page((record,)).blocks() if isinstance(block, Figure) and block.name == "loss")
    assert figure.svg.count("run 1: validation") == 2
    assert figure.caption == "Loss by step, the mean over all ranks. Dots: on held-out text."
    short = replace(record, series={"validation step": [2, 4], "validation nats a byte": [4.0]})
    assert "Dots" not in page([short])


# --- the command -----------------------------------------------------------------------------------------------


def test_the_command_writes_what_it_says(tmp_path, capsys):
    results.save(sample(), tmp_path / "a.json")
    assert document.main([str(tmp_path / "a.json"), "--out", str(tmp_path / "new" / "w.md")]) == 0
    written = capsys.readouterr().out.split()
    assert written == [str(tmp_path / "new" / name) for name in ("w.md", "w-steps.svg", "w-loss.svg", "w-memory.svg")]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"w.md", "w-steps.svg", "w-loss.svg", "w-memory.svg"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: RECORD (--help lists the options)"),
        (["missing.json"], "missing.json: no such file"),
        (["a.json", "--out", "page.html"], "page.html: the name must end in .md"),
        (
            ["a.json", "--out", "a.json/page.md"],
            "a.json/page.md: cannot be written (File exists): choose another folder",
        ),
        (["a.json", "a.json"], "a write-up needs one name for each of 2 Records, all different"),
        (["b.json"], "b.json: unknown field 'x': the fields of a Record are in scaleout/records/results.py"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results.save(sample(), "a.json")
    (tmp_path / "b.json").write_text('{"x": 1}')
    assert document.main(words) == 2
    assert capsys.readouterr().err == f"writeup: {said}\n"


def test_it_runs_as_a_module(tmp_path):
    results.save(untrained(), tmp_path / "a.json")
    done = subprocess.run(
        [sys.executable, "-m", "scaleout.writeup", "a.json"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        env={"PYTHONPATH": str(repo.ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "effective batch | none: this lab does not train" in done.stdout


def test_a_folded_page_shows_its_first_section_and_hides_nothing_for_good():
    record = results.load(repo.ROOT / "labs/results/capstone/smoke-cpu-2-fsdp.json")
    whole, folded = (Page((record,), folded=way)._repr_html_() for way in (False, True))
    assert "<details>" not in whole
    first, rest = folded.split("<details><summary>The rest of the page</summary>\n")
    assert first.count("<h4>") == 1 and rest.count("<h4>") == whole.count("<h4>") - 1 >= 3
    assert folded.replace("<details><summary>The rest of the page</summary>\n", "").replace("</details>\n", "") == whole
    assert repr(Page((record,))).startswith("Systems write-up: capstone\n")
