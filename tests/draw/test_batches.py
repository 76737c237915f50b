"""The drawings of chapter 11: a batch dealt out, strong and weak; a power cut at each step of a checkpoint."""

import re

import pytest

from scaleout.draw import batches, saves


def count(picture, fill):
    return len(re.findall(rf'<rect [^>]*fill="var\(--{fill},', picture))


@pytest.mark.parametrize("width", [680, 354])
def test_each_sequence_is_a_square_and_a_gpu_without_one_is_hatched(width):
    picture = batches.strong_beside_weak(width)
    strong = batches.BATCH * len(batches.WORLDS)
    weak = batches.PER_GPU * sum(batches.WORLDS)
    assert count(picture, "compute") == strong + weak
    assert count(picture, "muted") == batches.WORLDS[-1] - batches.BATCH, "the ground of each hatch"
    assert max(float(x) for x in re.findall(r'<rect x="([\d.]+)"', picture)) < width


def test_the_wires_bytes_end_and_its_starts_do_not():
    few, many = batches.wire(2), batches.wire(1024)
    assert many[0] < 2 * few[0] and many[1] == pytest.approx(1023 * few[1]) and batches.wire(1) == (0, 0)
    assert sum(batches.wire(16)) > batches.PER_GPU > sum(batches.wire(8)), "past the compute of the last column alone"


@pytest.mark.parametrize("width", [680, 354])
def test_only_writing_over_the_old_one_can_leave_nothing(width):
    assert [cut.resume_step for cut in saves.CUTS] == [None, 10, 10, 10, 20, 20]
    for cut in saves.CUTS[1:]:
        whole = {10: cut.old, 20: cut.name == "step 20" and cut.files == 2 and cut.manifest}
        assert cut.resume_step == max(step for step, there in whole.items() if there), "the newest that is whole"
    picture = saves.power_cuts(width)
    assert picture.count("resumes at") == 5 and picture.count("no checkpoint") == 2
    assert picture.count("stroke-dasharray") == sum(cut.name == "temporary" for cut in saves.CUTS) == 3
