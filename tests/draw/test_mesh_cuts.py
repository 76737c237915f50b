"""The still pictures of rung 07 show shares, reaches and messages as they are."""

import re
from collections import Counter
from math import log2

import pytest

from scaleout.draw import mesh_cuts as cuts
from scaleout.spec.transformer import PRESETS

WIDTHS = (680, 354)
RECT = re.compile(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="var\(--([\w-]+)')


def rects(picture, fill):
    return [tuple(map(float, found[:4])) for found in RECT.findall(picture) if found[4] == fill]


@pytest.mark.parametrize("width", WIDTHS)
def test_gpus_have_the_share_of_model_and_batch_that_is_said(width):
    """Of eight GPUs together: copies have eight models, tensor and pipeline one, the mesh two; of batches the rest."""
    picture = cuts.opening(width)
    for fill, wide, copies in (("c1", cuts.MODEL, (8, 1, 1, 2)), ("c3", cuts.BATCH, (1, 8, 8, 4))):
        whole = wide * cuts.HIGH
        found = rects(picture, fill)[1:]  # the first is the legend's
        assert len(found) == 32
        for i, many in enumerate(copies):
            area = sum(across * down for *_, across, down in found[8 * i : 8 * i + 8])
            assert area / whole == pytest.approx(many, rel=0.005)


def test_each_part_of_the_model_is_there_as_often_as_there_are_copies():
    found = rects(cuts.opening(680), "c1")[25:33]  # of 2 x 2 x 2
    assert {one[2:] for one in found} == {(cuts.MODEL / 2, cuts.HIGH / 2)}
    frames = [one for one in rects(cuts.opening(680), "grid") if one[2] == cuts.MODEL][24:]
    parts = Counter(
        (round(x - left, 1), round(y - top, 1)) for (x, y, *_), (left, top, *_) in zip(found, frames, strict=True)
    )
    assert parts == {(x, y): 2 for x in (0, cuts.MODEL / 2) for y in (0, cuts.HIGH / 2)}


@pytest.mark.parametrize("width", WIDTHS)
def test_lengths_are_doublings_and_the_chosen_degrees_end_at_the_cluster(width):
    picture, scale = cuts.ceilings(width), (width - 6) / log2(cuts.WANTED)
    bars = rects(picture, "key")
    longs = [log2(end) * scale for _, end, _ in cuts.ENDS]
    assert [wide for _, _, wide, _ in bars[:3]] == pytest.approx(longs, abs=0.01)
    *_, (x, _, wide, _) = bars
    assert x + wide + 1 == pytest.approx(width - 6, abs=0.02), "end to end they reach the line"
    assert {axis: end for axis, end, _ in cuts.ENDS}["pipeline"] == PRESETS["llama-3-405b"].layers


@pytest.mark.parametrize("width", WIDTHS)
def test_a_step_sends_in_every_block_at_every_seam_and_once(width):
    row, found = 24.0, rects(cuts.step(width), "c4")
    by_lane = [sum(round((y - 8) / row) == lane for _, y, *_ in found) for lane in (1, 2, 3)]
    assert by_lane == [2 * cuts.PIECES * cuts.BLOCKS, 2 * cuts.PIECES, 2]
