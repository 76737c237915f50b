"""Options that change when a run is taken up again: an event for each, and what a Record says of each step."""

from dataclasses import replace

import pytest
import samples

from scaleout.train import options
from scaleout.train import spans as train_spans
from scaleout.writeup import facts, sections
from scaleout.writeup.blocks import Table

PLAIN = options.Options()


def spans(*changes):
    """Spans of a run that resumes after steps, [(step, fields of its Options)]."""
    found, lines = [], []
    for after, fields in changes:
        found, more = train_spans.extend(found, after, train_spans.options(replace(PLAIN, **fields), 1))
        lines.append(more)
    return found, lines


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"lr": 3e-4}, "--lr 0.003 -> 0.0003 from step 201 on"),
        ({"clip": 0.5}, "--clip 1.0 -> 0.5 from step 201 on"),
        ({"precision": "bf16"}, "--precision fp32 -> bf16 from step 201 on"),
        ({"weight_decay": 0.0}, "--weight-decay 0.1 -> 0.0 from step 201 on"),
        ({"warmup": 7}, "--warmup 20 -> 7 from step 201 on"),
        ({"compile": True}, "--compile False -> True from step 201 on"),
        ({"strategy": "ddp"}, "--strategy one -> ddp from step 201 on"),
        ({"attention": "naive"}, "--attention sdpa -> naive from step 201 on"),
        ({"checkpointing": "full"}, "--checkpointing none -> full from step 201 on"),
        ({"micro_batch": 4}, "--micro-batch None -> 4 from step 201 on"),
    ],
)
def test_each_change_is_one_line(fields, said):
    found, lines = spans((0, {}), (200, fields), (300, fields))
    assert lines == [[], [said], []]
    assert [span["after"] for span in found] == [0, 200]
    assert len(spans((0, {}), (200, fields | {"lr": 1.0}))[1][1]) == 1 + ("lr" not in fields)


def test_a_value_is_told_by_span():
    found, _ = spans((0, {}), (20, {"precision": "bf16", "lr": 1.0}), (30, {"precision": "bf16"}), (1400, {}))
    assert train_spans.words(found, "--precision") == "fp32 to step 20, bf16 to step 1,400, fp32 after it"
    assert train_spans.notes(found) == [
        "--lr: 0.003 to step 20, 1.0 to step 30, 0.003 after it",
        "--precision: fp32 to step 20, bf16 to step 1,400, fp32 after it",
    ]
    alike, _ = spans((0, {}), (20, {}))
    assert (train_spans.words(alike, "--precision"), train_spans.notes(alike)) == ("fp32", [])


def test_what_an_older_checkpoint_did_not_say_is_not_known():
    found, lines = spans((50, {}))
    assert (train_spans.words(found, "--precision"), lines) == ("not known to step 50, fp32 after it", [[]])


def test_the_write_up_does_not_call_all_steps_by_the_last_precision():
    found, _ = spans((0, {}), (2, {"precision": "bf16"}))
    record = replace(
        samples.sample(), stem="capstone", precision=train_spans.words(found, "--precision"), step_seconds=[1.0] * 4
    )
    tables = [block for block in sections.setup(facts.runs([record])) if isinstance(block, Table)]
    assert ("precision", "fp32 to step 2, bf16 after it") in [row for table in tables for row in table.rows]
