"""How replicas exchange gradients: what compression leaves of them, and what is refused."""

import pytest
from cases import refused

from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.replicas import Replicas, powersgd_ratio
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape


def test_powersgd_by_hand():
    """Vocabulary 16, width 8: one block's matrices are 4 of 8 x 8 and 2 of 8 x 32; the tables are 16 x 8 and 4 x 8."""
    shape = Shape(1, 8, 2, 16, max_seq=4, bias=False)
    sent = 4 * 16 + 2 * 40 + 24 + 12 + 3 * 8
    assert powersgd_ratio(shape, 1) == pytest.approx((4 * 64 + 2 * 256 + 128 + 32 + 24) / sent)
    assert powersgd_ratio(shape, 1000) == 1, "what would grow goes as it is"
    assert 100 < powersgd_ratio(PRESETS["gpt2"]) < powersgd_ratio(PRESETS["llama-3-8b"])


def test_weights_are_gathered_from_stage_3_on_or_where_stage_2_frees_nothing():
    for free, stages in ((True, {3}), (False, {2, 3})):
        assert {zero for zero in range(4) if Replicas(reshard=free).gathers(Layout(dp=8, zero=zero))} == stages


def test_overlap_is_the_program_s_unless_it_is_given():
    job = Job(PRESETS["gpt2"], 1024, DEVICES["h100-sxm"], cluster(1, 8), 1, Layout(dp=8))
    assert [job.other(overlap=how).overlap for how in (None, True, False)] == [True, True, False]
    assert not job.other(program="eager", overlap=False).overlap and PROGRAMS["eager"].data_overlap


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: powersgd_ratio(PRESETS["gpt2"], 0), "rank must be a whole number of at least 1"),
        (lambda: Replicas(compression=0.5), "compression must be a finite number from 1 up"),
        (lambda: Replicas(overlap=1.5), "overlap must be one of None, True, False"),
        (
            lambda: Job(
                PRESETS["gpt2"],
                1024,
                DEVICES["h100-sxm"],
                cluster(1, 8),
                1,
                Layout(dp=8, zero=1),
                replicas=Replicas(compression=2),
            ),
            "use compression 1, or zero 0 and pp 1",
        ),
    ],
)
def test_bad_input_is_one_line(call, words):
    refused(call, words)
