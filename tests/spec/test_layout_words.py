"""Layouts as they are typed, and which of them torch's own parts can be composed to."""

from dataclasses import replace
from itertools import product

import pytest
from cases import refused

from scaleout.spec import layout_words as words
from scaleout.spec.layout import Layout
from scaleout.spec.pipeline import SCHEDULES
from scaleout.spec.transformer import Shape

LLAMA = Shape(
    4,
    24,
    4,
    64,
    kv_heads=2,
    ff=56,
    gated_mlp=True,
    bias=False,
    norm="rmsnorm",
    positions="rotary",
    tied_head=False,
    max_seq=12,
)
TRIPLE = Layout(dp=2, tp=2, pp=2, zero=3, sequence_parallel=True, gather_again=False)


def test_dp_is_what_is_left_and_order_and_blanks_say_nothing():
    assert words.parse("tp=2,pp=2", 8, LLAMA) == words.parse(" pp=2, tp=2,dp=2 ", 8, LLAMA) == TRIPLE
    assert words.parse("", 8, LLAMA, zero=0) == Layout(dp=8)
    assert words.parse("pp=2,v=2,m=4", 8, LLAMA) == Layout(
        dp=4, pp=2, zero=3, chunks=2, micro_batches=4, schedule="interleaved"
    )


def test_what_is_written_is_read_again():
    for dp, tp, pp, zero, m in product((1, 2), (1, 2), (1, 2, 4), (0, 2, 3), (4, 8)):
        for schedule in ("1f1b", "gpipe") if pp > 1 else ("1f1b",):
            layout = Layout(dp, tp, pp, zero, tp > 1, tp == 1, micro_batches=m, schedule=schedule)
            assert words.parse(words.written(layout), layout.ranks, LLAMA) == layout
    assert words.written(replace(TRIPLE, micro_batches=4)) == "pp=2,dp=2,tp=2,zero=3,m=4,schedule=1f1b"
    assert words.written(Layout(dp=8)) == "pp=1,dp=8,tp=1,zero=0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "tq=2",
            "'tq=2' is no part of a layout: give pp, dp, cp, tp, zero, m, v, schedule, each once, as in tp=2,pp=2",
        ),
        ("tp=2,tp=2", "'tp=2' is no part of a layout"),
        ("tp", "'tp' is no part of a layout"),
        ("tp=two", "tp=two: give a whole number, as in tp=2"),
        ("tp=²", "give a whole number"),
        ("tp=0", "tp"),
        ("tp=3", "is 6 ranks, there are 8: the nearest that works is dp 4, cp 1, tp 2, pp 1"),
        ("dp=2,tp=2", "dp 2 x cp 1 x tp 2 x pp 1 is 4 ranks, there are 8: the nearest that works is dp 4"),
        ("pp=2,m=1", "1f1b needs a micro-batch for each of 2 ranks, not 1: use m = 2"),
        ("pp=2,schedule=2f2b", "schedule"),
        ("v=2", "chunks 2 needs a pipeline"),
        ("zero=4", "zero must be 0, 1, 2 or 3"),
    ],
)
def test_words_that_are_none_are_one_line(text, said):
    refused(lambda: words.parse(text, 8, LLAMA), said)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(dp=3, tp=2), "dp 3 x cp 1 x tp 2 x pp 1 is 6 ranks, there are 8: the nearest that works is dp 4"),
        (Layout(cp=2, tp=4), "use cp 1"),
        (Layout(dp=8, zero=1), "use zero 2, or 0"),
        (Layout(tp=8), "tp 8 does not divide 4 heads: the nearest that works is 4"),
        (Layout(dp=2, tp=4), "ColwiseParallel would cut 2 key-value heads into 4 parts: use tp 2 or less"),
        (Layout(pp=8), "4 layers are fewer than 8 stages: use at most 4 stages"),
        (Layout(dp=2, tp=2, pp=2, chunks=2, schedule="zbv"), "zbv splits the backward, which torch can neither"),
        (Layout(dp=4, tp=2), "tp 2 does not divide 13 tokens, which sequence parallelism cuts: use 12"),
    ],
)
def test_what_torch_cannot_do_is_one_line(layout, said):
    refused(lambda: words.refuse(LLAMA, layout, 8, 13), said)


def test_a_vocabulary_that_does_not_divide_is_padded():
    with pytest.raises(ValueError, match="tp 2 does not divide a vocabulary of 63: use 1, or pad it to 64"):
        words.refuse(Shape(4, 24, 4, 63), Layout(dp=4, tp=2), 8, 12)


def test_micro_batches_are_the_fewest_that_fill_and_fit():
    found = lambda batch, most=None, **more: words.micro_batches(replace(TRIPLE, **more), batch, most).m  # noqa: E731
    assert [found(8), found(8, 1), found(24, 5), found(8, micro_batches=4)] == [2, 4, 3, 4]
    assert words.micro_batches(Layout(dp=8), 8).m == 1
    assert words.micro_batches(Layout(dp=2), 16, 2).m == 4


@pytest.mark.parametrize(
    ("layout", "batch", "said"),
    [
        (TRIPLE, 9, "dp 2 does not divide a batch of 9 sequences: the nearest batch is 8"),
        (Layout(dp=3), 4, "dp 3 does not divide a batch of 4 sequences: the nearest batch is 3"),
        (TRIPLE, 10**30, "batch must be a whole number from 1 to 1,000,000,000"),
        (replace(TRIPLE, micro_batches=3), 8, "m 3 does not fit 4 sequences a replica: use m 2"),
        (replace(TRIPLE, pp=4, dp=1), 2, "a pipeline of 4 does not fit 2 sequences a replica: use a batch of 4"),
    ],
)
def test_a_batch_that_does_not_fall_into_micro_batches_is_one_line(layout, batch, said):
    with pytest.raises(ValueError, match=said):
        words.micro_batches(layout, batch)


def test_every_schedule_of_torchs_is_taken_somewhere():
    for name, facts in SCHEDULES.items():
        layout = Layout(dp=4, pp=2, zero=2, chunks=facts.chunks[0], micro_batches=4, schedule=name)
        words.refuse(LLAMA, layout, 8, 12)
