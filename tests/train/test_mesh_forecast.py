"""Seconds that are told of a job by a layout, from a profile and the pace of a plain copy: against sums by hand."""

from math import ceil
from types import SimpleNamespace

import pytest
import torch

from scaleout.spec.layout import Layout
from scaleout.spec.transformer import Shape, total_parameters
from scaleout.timing.machine import groups
from scaleout.train import mesh_forecast

SHAPE = Shape(8, 64, 4, 256, max_seq=32, tied_head=False)
BATCH, SEQ, ALONE = 16, 32, 0.4  # seconds that a plain copy of the model takes for a replica's share
COPIES = 1e10
SLOPE, ALPHA = 2e-9, 1e-4  # of every collective between two processes; among more it is steeper


def profile(world):
    line = {"alpha_seconds": ALPHA, "seconds_per_byte": SLOPE * world / 2}
    return {
        "world": world,
        "copy_bytes_per_second": COPIES,
        "matmul_flops_per_second": {"fp32": 1e11},
        "collectives": dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "broadcast"), line),
    }


@pytest.fixture
def told(monkeypatch):
    """The step of a layout, as it is told on the machine of that profile."""
    monkeypatch.setattr(mesh_forecast.forecast, "alone_seconds", lambda *_: ALONE)
    monkeypatch.setattr(mesh_forecast, "windows", lambda *_: None)

    def found(**degrees):
        layout = Layout(**degrees)
        s = SimpleNamespace(rank=0, world=layout.ranks, device=torch.device("cpu"))
        o = SimpleNamespace(
            shape=SHAPE,
            batch=BATCH,
            seq=SEQ,
            precision="fp32",
            checkpointing="none",
            attention="sdpa",
            share=lambda rank, world: (0, layout.dp),
        )
        job = SimpleNamespace(
            text=SimpleNamespace(train=None),
            order=SimpleNamespace(starts=lambda *_: None),
            done=0,
            trainer=SimpleNamespace(setup=None),
        )
        time = mesh_forecast.predicted(s, o, job, layout, {n: profile(n) for n in groups(layout)})
        assert sum(time.parts.values()) == pytest.approx(time.seconds)
        assert time.tokens_per_second * time.seconds == pytest.approx(BATCH * SEQ)
        return time

    return found


UPDATE = total_parameters(SHAPE) * 28 / COPIES  # AdamW reads four numbers of 4 bytes and writes three


def test_a_layout_of_one_rank_takes_what_the_plain_copy_takes(told):
    assert told().parts["compute"] + told().parts["update"] == pytest.approx(ALONE, rel=0.12)
    assert told().parts["update"] == pytest.approx(UPDATE)


def test_replicas_wait_for_their_gradients_on_a_cpu(told):
    one, two = told(), told(dp=2, zero=0)
    size = 4 * total_parameters(SHAPE)
    assert two.parts["compute"] == pytest.approx(one.parts["compute"], rel=0.01), "the copy had half already"
    count = ceil(max(0, size - 2**20) / (25 * 2**20)) + 1  # torch's first bucket is of 1 MiB, the others of 25
    assert two.parts["exposed data"] == pytest.approx(count * ALPHA + SLOPE * size, rel=0.01), "hidden behind nothing"
    assert two.parts["stragglers"] == two.parts["host"] == 0, "what a GPU's run loses is no CPU's"


def test_stages_share_the_work_and_wait_in_the_bubble(told):
    one, four = told(), told(pp=4, micro_batches=8)
    assert four.parts["compute"] == pytest.approx(one.parts["compute"] / 4, rel=0.05)
    assert four.parts["bubble"] == pytest.approx(3 / 8 * four.parts["compute"], rel=0.05)
    assert four.parts["imbalance"] > 0, "the last stage has the head"
    hop = ALPHA + SLOPE * 4 * BATCH / 8 * SEQ * 64
    assert four.parts["hops"] >= 2 * 3 * hop * 0.99


def test_messages_along_tp_are_all_waited_for(told):
    one, two = told(), told(tp=2)
    assert two.parts["compute"] == pytest.approx(one.parts["compute"] / 2, rel=0.1)
    each = ALPHA + SLOPE * 4 * BATCH * SEQ * 64
    assert two.parts["exposed tensor"] == pytest.approx(8 * 4 * each, rel=0.2), "four in a block, and the ends'"


def test_each_group_has_the_profile_of_as_many_processes(told):
    """Of four ranks, two along each axis: messages take what two processes take, not what four do."""
    both, tensor = told(dp=2, tp=2, zero=0), told(tp=2)
    assert both.parts["exposed data"] == pytest.approx(ALPHA + SLOPE * 4 * total_parameters(SHAPE) / 2, rel=0.02)
    each = ALPHA + SLOPE * 4 * BATCH * SEQ * 64
    assert tensor.parts["exposed tensor"] == pytest.approx(8 * 4 * each, rel=0.2)
    less = both.parts["exposed tensor"] / tensor.parts["exposed tensor"]
    assert less == pytest.approx((ALPHA + SLOPE * 4 * BATCH / 2 * SEQ * 64) / each, rel=0.1), "half of the sequences"
