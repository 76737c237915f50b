"""The closed forms that a search prices with, held to `timing.job` over random layouts of several models."""

import random
from dataclasses import replace
from math import fsum
from statistics import quantiles

import pytest

from scaleout.memory.job import fullest
from scaleout.spec.devices import DEVICES
from scaleout.spec.frameworks import trained, usual
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.replicas import Replicas
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing.job import PARTS, step
from scaleout.timing.quick import TOLERANCE, Pricer
from scaleout.timing.search import even

SEED = 7
RUNS = (("llama-3-405b", 16_384, 2048, 8192), ("llama-3-70b", 512, 1024, 8192), ("llama-3-8b", 64, 128, 8192),
        ("gpt-3-175b", 512, 1024, 2048), ("llama-2-7b", 16, 512, 4096), ("gpt2-xl", 8, 256, 1024))  # fmt: skip


def drawn(model, gpus, sequences, seq, program, count=25):
    """Random layouts of a model that a search would try, each with what is recomputed."""
    draw, shape, out = random.Random(SEED), PRESETS[model], []
    nodes = cluster(max(1, gpus // 8), min(8, gpus))
    ways = ("none", "full") if program == "huggingface" else ("none", "selective", "full")
    base = Job(shape, seq, DEVICES["h100-sxm"], nodes, 1, Layout(dp=gpus), program=PROGRAMS[program])
    while len(out) < count:
        tp, cp, pp = draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2, 4)), draw.choice((1, 1, 2, 4, 8))
        chunks, zero = draw.choice((1, 2, 4, 5)) if pp > 1 else 1, draw.choice((0, 1, 3) if pp == 1 else (0, 1))
        batch, dp = draw.choice((1, 2, 4)), gpus // (tp * cp * pp)
        if not dp or sequences % (dp * batch) or sequences < dp * batch * pp or not even(shape.layers, pp * chunks):
            continue
        try:
            layout = Layout(
                dp=dp,
                tp=tp,
                cp=cp,
                pp=pp,
                zero=zero,
                chunks=chunks,
                schedule="interleaved" if chunks > 1 else "1f1b",
                micro_batches=sequences // dp // batch,
                **usual(base.program, tp),
            )
            job = base.other(layout=layout, batch=batch, checkpointing=draw.choice(ways))
            out.append(job.other(recipe=trained(job.program, layout, job.recipe)))
        except ValueError:
            continue
    return base, out


@pytest.mark.parametrize("program", ["megatron", "compiled", "huggingface"])
def test_within_the_tolerance_of_the_whole_model(program):
    """All within TOLERANCE but where replicas' small buckets take most of a step, which no search recommends; nine of
    ten within 1%."""
    found = []
    for run in RUNS:
        base, jobs = drawn(*run, program)
        price = Pricer(base)
        for job in jobs:
            exact = step(job)
            parts = price.parts(price.way(job.layout, job.batch), job.recipe.checkpointing)
            off = fsum(parts.values()) / exact.seconds - 1
            assert tuple(parts) == PARTS and min(parts.values()) > -1e-9 * exact.seconds, (str(job), parts)
            assert abs(off) < TOLERANCE or exact.parts["exposed data"] > 0.6 * exact.seconds, (off, str(job))
            for part in (
                "compute",
                "recompute",
                "launches",
                "exposed tensor",
                "exposed context",
                "imbalance",
                "update",
                "host",
            ):
                assert parts[part] == pytest.approx(exact.parts[part], abs=1e-6 * exact.seconds), (part, str(job))
            found.append(abs(off))
    assert quantiles(found, n=10)[-1] < 0.01, f"seed {SEED}"


def test_other_replicas_are_priced_by_their_timeline():
    """Hybrid sharding over a slow network, without a closed form of its own."""
    base = Job(
        PRESETS["llama-2-7b"],
        4096,
        DEVICES["h100-sxm"],
        cluster(4, 8, across="ethernet-100g", nics=1),
        1,
        Layout(dp=32, zero=3, micro_batches=2),
        replicas=Replicas(shards=8),
    )
    for job in (base, replace(base, replicas=Replicas(bucket_bytes=10**9), layout=Layout(dp=32, micro_batches=2))):
        parts = Pricer(job).parts(Pricer(job).way(job.layout, 1), "none")
        assert fsum(parts.values()) == pytest.approx(step(job).seconds, rel=1e-9)


def test_a_tied_embedding_adds_its_gradients_up_at_both_ends():
    tied = Job(
        PRESETS["gpt-3-175b"],
        2048,
        DEVICES["h100-sxm"],
        cluster(8, 8),
        1,
        Layout(dp=2, tp=4, pp=8, zero=1, sequence_parallel=True, micro_batches=32),
    )
    loose = replace(tied, shape=replace(tied.shape, tied_head=False))
    quick = [Pricer(job).parts(Pricer(job).way(job.layout, 1), "none")["hops"] for job in (tied, loose)]
    exact = [step(job).parts["hops"] for job in (tied, loose)]
    assert quick[0] - quick[1] == pytest.approx(exact[0] - exact[1], rel=1e-6) and quick[0] - quick[1] > 0.01


@pytest.mark.parametrize(("program", "share"), [("megatron", 0.01), ("huggingface", 0.02)])
def test_bytes_are_those_of_the_account_within_a_share(program, share):
    for run in RUNS[:4]:
        base, jobs = drawn(*run, program, 8)
        price = Pricer(base)
        for job in jobs:
            size = price.peak(price.way(job.layout, job.batch), job.recipe.checkpointing)
            assert size == pytest.approx(fullest(job).peak_bytes, rel=share), str(job)


def test_the_first_and_last_micro_batch_pass_every_chunk():
    """70B with 10 chunks on 8 ranks over one slow adapter a node: 2 (p v - 1) sends that nothing hides."""
    slow = cluster(8, 8, across="ethernet-100g", nics=1)
    job = Job(
        PRESETS["llama-3-70b"],
        8192,
        DEVICES["h100-sxm"],
        slow,
        1,
        Layout(dp=1, tp=8, pp=8, sequence_parallel=True, chunks=10, schedule="interleaved", micro_batches=8),
    )
    assert Pricer(job).parts(Pricer(job).way(job.layout, 1), "none")["hops"] == pytest.approx(
        step(job).parts["hops"], rel=0.02
    )


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_whole_weights_under_autocast_have_bytes_of_their_own(recompute):
    """GPT-2 XL on 8 GPUs by Transformers: the search prices fp32 weights with their casts and DDP's buckets."""
    base = Job(
        PRESETS["gpt2-xl"], 1024, DEVICES["h100-sxm"], cluster(1, 8), 1, Layout(dp=8), program=PROGRAMS["huggingface"]
    )
    layout = Layout(dp=8, micro_batches=4)
    price, own = Pricer(base), base.other(recipe=trained(base.program, layout, base.recipe), layout=layout)
    exact = fullest(own.other(batch=8, checkpointing=recompute)).peak_bytes
    assert price.peak(price.way(layout, 8), recompute) == pytest.approx(exact, rel=0.01)
    assert exact > 1.15 * fullest(base.other(batch=8, checkpointing=recompute, layout=layout)).peak_bytes
    if recompute == "none":
        assert exact == pytest.approx(92.18e9, rel=0.002)  # CUDA's autocast raises GELU's cube in fp32
