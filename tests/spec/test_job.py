"""The job: what follows from its fields, in words and in files, and what it refuses."""

import pytest
from cases import refused
from jobs import jobs

from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.replicas import Replicas
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS

JOBS = jobs(20, 31)
SEVEN = Job(PRESETS["llama-2-7b"], 4096, DEVICES["h100-sxm"], cluster(1, 8), 1, Layout(dp=8, zero=1))


def test_sequences_of_a_step():
    """Micro-batches of 2 sequences, 4 of them, on 2 replicas of 2 x 2 ranks."""
    job = SEVEN.other(tp=2, pp=2, micro_batches=4, batch=2)
    assert (job.layout.dp, job.sequences, job.tokens_per_step) == (2, 16, 16 * 4096)
    assert SEVEN.other(cp=2).tokens == 2048 and SEVEN.other(cp=2).layout.dp == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 3}, "tp 3 does not divide 32 heads: the nearest that works is 4"),
        (
            {"dp": 3},
            "dp 3 x cp 1 x tp 1 x pp 1 is 3 ranks, there are 8: the nearest that works is dp 8, cp 1, tp 1, pp 1",
        ),
        ({"shards": 3}, "shards must divide 8 replicas, not 3: use 2"),
        ({"pp": 2, "shards": 2}, "are priced without a pipeline: use shards None, or pp 1"),
        (
            {"zero": 3, "reshard": False},
            "ZeRO stage 3 frees what it gathered: use zero 2 with reshard False, or reshard True",
        ),
        ({"pp": 64}, "64"),
        ({"shape": "gpt2-xl"}, "seq 4,096 is longer than the position table: use at most 1,024"),
        ({"program": "jax"}, "program 'jax' is unknown"),
        ({"colour": 1}, "a job has no colour"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, message):
    refused(lambda: SEVEN.other(**changes), message)


def test_blocks_of_stages_are_as_equal_as_can_be_or_as_given():
    """Llama 3 405B on 16 stages: 126 blocks, one less at both ends (arXiv 2407.21783, section 3.3.2)."""
    wide = SEVEN.other(shape="llama-3-405b", cluster=cluster(16, 8), tp=8, pp=16, micro_batches=16)
    assert wide.stages == (7, *[8] * 14, 7)
    assert SEVEN.other(pp=4, micro_batches=8, blocks=(7, 8, 9, 8)).stages == (7, 8, 9, 8)


def test_states_are_shared_by_all_replicas_or_by_those_of_a_shard():
    assert (SEVEN.shards, SEVEN.other(zero=3, shards=4).shards, SEVEN.other(tp=4).shards) == (8, 4, 2)


def test_a_job_in_words():
    assert str(SEVEN.other(tp=4, pp=2, micro_batches=8, checkpointing="full")) == (
        "llama-2-7b on 8 H100 SXM 80 GB; tp 4, pp 2; ZeRO 1; 8 sequences of 4,096 tokens per step; micro-batch 1; "
        "Megatron-LM with Transformer Engine; full recomputation"
    )
    assert "GB; one rank; ZeRO 0" in str(SEVEN.other(cluster=cluster(1, 1), zero=0))
    tuned = SEVEN.other(adapter="qlora", adapter_rank=64, checkpointing="full")
    assert str(tuned).endswith("full recomputation; QLoRA of rank 64")


@pytest.mark.parametrize("job", [*JOBS, SEVEN.other(zero=3, shards=4, wrap="layer")])
def test_a_job_is_written_and_read(job):
    assert Job.from_json(job.to_json()) == job and "\n" not in str(job)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "a job must be a dict"),
        ("{", "a job is a JSON object"),
        ('{"color": 1}', "a job has no color"),
        ('{"cluster": {"nodes": 1}}', "cluster"),
        ('{"shape": "llama-9", "cluster": 3}', "cluster must be a dict"),
    ],
)
def test_text_that_is_no_job_is_refused(text, message):
    refused(lambda: Job.from_json(text), message)


def test_replicas_are_checked():
    with pytest.raises(ValueError, match="wrap must be one of"):
        Replicas(wrap="blocks")
