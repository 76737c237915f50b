"""The page of errors: its numbers are those of the model as it stands, and its words are true of them."""

import json
import re
import statistics
from math import isclose
from xml.etree import ElementTree

import fit_seconds
import judge
import measured
import pytest
import repo

from scaleout.draw import errors, svg
from scaleout.page import accuracy
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing.band import band
from scaleout.timing.job import step

PAGE = repo.text("book/accuracy.md")


def test_the_stored_predictions_are_the_models():
    """Whoever changes a constant or a formula of seconds runs tools/fit_seconds.py --cross and tools/judge.py again."""
    stored, rows = accuracy.rows(), measured.rows()
    assert len(stored) == len(rows)
    for line, row in zip(stored, rows, strict=True):
        assert (line["series"], line["measured"]) == (row.series.rsplit(" ", 1)[0], row.seconds)
        assert line["layout"] == judge.layout(row.job)
        assert line["predicted"] == pytest.approx(measured.seconds(row), rel=2e-3), row.name


def test_what_did_not_see_a_series_says_nearly_the_same():
    """Constants that a series did not make are no other model: most predictions move by less than a tenth."""
    moved = sorted(abs(row["apart"] / row["predicted"] - 1) for row in accuracy.rows())
    assert moved[len(moved) // 2] < 0.06


def test_the_words_of_the_page():
    assert f"{len(measured.rows())} steps of pre-training" in PAGE
    assert f"has {len(fit_seconds.names())} fitted constants" in PAGE
    kinds = re.findall(r"\{accuracy\} ([\w-]+)", PAGE)
    assert sorted(kinds) == sorted(["picture", *accuracy.TABLES])


def test_the_words_about_the_labs():
    """The table has each step once, its last line all of them, and the text says what is in it."""
    table = json.loads(accuracy.LABS.read_text(encoding="utf-8"))
    steps = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    off = [step["predicted"] / step["measured"] - 1 for step in steps]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in accuracy.TABLES["labs"]().splitlines()[2:]]
    assert sum(int(line[2]) for line in lines[:-1]) == int(lines[-1][2]) == len(steps)
    assert f"for {len(steps)} steps of the smallest size" in PAGE
    assert f"predicted within {statistics.median(map(abs, off)):.0%}," in PAGE
    assert f"and {sum(error < 0 for error in off)} of the predictions are too fast" in PAGE
    mesh = next(i for i, step in enumerate(steps) if (step["lab"], step["processes"]) == ("mesh", 4))
    assert off[mesh] == max(off, key=abs) and 1 / (1 + off[mesh]) < 0.5
    alone = [error for step, error in zip(steps, off, strict=True) if step["processes"] == 1]
    assert "most predictions are 3 to 12% too fast" in PAGE
    assert sum(0.025 < -error < 0.125 for error in alone) > len(alone) / 2


def test_tables_count_every_step_once():
    for kind in ("program", "series", "size", "gpus"):
        lines = [line.split("|")[2].strip() for line in accuracy.TABLES[kind]().splitlines()[2:]]
        assert sum(map(int, lines[:-1])) == int(lines[-1]) == len(measured.rows()), kind
    off = [abs(float(line.split("|")[5].strip().rstrip("%"))) for line in accuracy.worst().splitlines()[2:]]
    assert off == sorted(off, reverse=True) and off[0] == round(100 * max(abs(row["error"]) for row in accuracy.rows()))


@pytest.mark.parametrize("width", [720, 358])
def test_the_picture_has_a_dot_a_step_where_its_error_is(width):
    found = ElementTree.fromstring(accuracy.picture(width))
    dots = found.findall(".//{*}circle")
    assert len(dots) == len(measured.rows())
    assert all(0 < float(dot.get("cx")) < width for dot in dots)
    one = [errors.Lane("a", "b", 0.1, (errors.Dot(0.0, "c1", "x"), errors.Dot(9.0, "c1", "y")))]
    two = ElementTree.fromstring(errors.draw(width, one, 0.4, [("c1", "k")])).findall(".//{*}circle")
    middle, edge = (float(dot.get("cx")) for dot in two)
    left = 190 if width > 500 else 20
    assert isclose(middle, (left + width - 22) / 2, abs_tol=0.01) and isclose(edge, width - 22, abs_tol=0.01)
    words = [
        float(text.get("x")) + svg.measure(text.text, svg.SMALL)
        for text in found.findall(".//{*}text")
        if text.get("text-anchor") in (None, "start")
    ]
    assert max(words) <= width


def test_the_year_of_the_program():
    """GPT-3 175B on 1,024 A100: tp 8, pp 8 with 4 chunks, 1,536 sequences of 2,048 tokens."""
    layout = Layout(
        dp=16, tp=8, pp=8, zero=1, sequence_parallel=True, micro_batches=96, chunks=4, schedule="interleaved"
    )
    nodes = cluster(128, 8, across="ib-hdr")
    today = Job(PRESETS["gpt-3-175b"], 2048, DEVICES["a100-80gb"], nodes, 1, layout).other(checkpointing="selective")
    old = today.other(program="megatron-2021")
    shares = [step(job).mfu for job in (old.other(attention="naive", dropout=0.1), old, today)]
    first, second, third = re.findall(r"MFU of (\d+)% on 1,024 A100.*makes it (\d+)%.*Engine (\d+)%", PAGE)[0]
    assert [f"{100 * share:.0f}" for share in shares] == [first, second, third]
    assert "no published step of Megatron-LM with Transformer Engine on Ampere" in band(today).outside


def test_mfu_of_long_sequences_counts_scores_that_no_kernel_computes():
    """Two multiplications forward and four backward, two operations of each for a score; half is masked."""
    layout = Layout(tp=8, sequence_parallel=True, micro_batches=2)
    job = Job(PRESETS["llama-3-8b"], 131_072, DEVICES["a100-80gb"], cluster(1, 8), 1, layout)
    scores = job.sequences * job.seq**2 * job.shape.heads * job.shape.layers
    masked = 3 * 2 * 2 * job.shape.d * scores / 2
    found = step(job)
    computed = found.mfu - masked / found.seconds / job.peak_flop_per_s / 8
    said = re.findall(r"131,072 tokens is predicted at (\d+)%, and at (\d+)% of the peak", PAGE)[0]
    assert (f"{100 * found.mfu:.0f}", f"{100 * computed:.0f}") == said
