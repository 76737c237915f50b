"""The card of rung 07: its formulas and numbers are the package's."""

import pytest
from tex import value

from scaleout.collectives.job import traffic
from scaleout.memory.states import state_bytes
from scaleout.page import accuracy, cards
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import pipeline
from scaleout.timing.job import step

CARD = cards.load("mesh")
TEX = [one["tex"] for one in CARD["formulas"]]
NUMBERS = [one["value"] for one in CARD["numbers"]]
MIXED, LLAMA, H100 = Recipe("bf16-master", main_gradients="instead"), PRESETS["llama-2-13b"], DEVICES["h100-sxm"]


def cut(d=2, t=2, p=2, m=8):
    return Layout(d, t, p, 1, True, micro_batches=m)


def test_degrees_multiply():
    layout = Layout(dp=3, cp=2, tp=4, pp=2)
    assert value(TEX[0].replace(r"\,", " "), d=3, c=2, t=4, p=2) == layout.ranks


@pytest.mark.parametrize(("d", "t", "p", "v", "m"), [(2, 2, 4, 1, 8), (4, 8, 2, 3, 6), (1, 4, 8, 2, 16)])
def test_bubble_by_sequences_is_the_schedules(d, t, p, v, m):
    schedule = "interleaved" if v > 1 else "1f1b"
    found = pipeline.step(schedule, p, m, v, pipeline.even(p * v))
    wait = found.seconds / max(found.work) - 1
    assert value(TEX[1].replace(r"\,", " "), W=d * t * p, t=t, d=d, v=v, S=d * m) == pytest.approx(wait)


def test_gpus_a_sequence_keep_the_bubble_below_a_tenth():
    most = value(TEX[2].replace(r"\,", " "), t=8, v=1)
    assert most == float(NUMBERS[1]) == 0.8
    assert value(TEX[1].replace(r"\,", " "), W=most * 10**6, t=8, d=0, v=1, S=10**6) == pytest.approx(0.1)


@pytest.mark.parametrize("d", [1, 4, 128])
def test_bytes_of_states(d):
    held = sum(state_bytes(10**9, MIXED, cut(d, p=1)).values())
    assert value(TEX[3].replace(r"\,", " "), N=2 * 10**9, t=2, p=1, d=d) == pytest.approx(held, rel=1e-6)


@pytest.mark.parametrize(("d", "t", "p"), [(2, 2, 2), (4, 2, 4), (2, 4, 2)])
def test_bytes_sent(d, t, p):
    layout = cut(d, t, p)
    job = Job(LLAMA, 4096, H100, cluster(1, layout.ranks), layout=layout)
    found = traffic(job, p - 1)
    x, n = 2 * 4096 * LLAMA.hidden, job.rank_parameters(p - 1) * t * p
    said = [value(one.replace(r"\,", " "), t=t, x=x, L=LLAMA.layers, p=p, m=8, d=d, N=n) for one in TEX[4:]]
    assert said == pytest.approx([found[axis].bytes for axis in ("tp", "dp", "pp")], rel=0.03)


def test_numbers_to_remember():
    degrees = [int(one) for one in NUMBERS[0].split(" × ")]
    assert Layout(tp=degrees[0], pp=degrees[1], dp=degrees[2]).ranks == 16_384
    job = Job(LLAMA, 4096, H100, cluster(2, 4, across="ethernet-100g"), layout=cut())
    found = traffic(job)
    tensor, data, line = (found[axis].bytes / 1e9 for axis in ("tp", "dp", "pp"))
    assert NUMBERS[2] == f"{tensor:.0f}, {data:.1f}, {line:.2f} GB"
    orders = (("pp", "dp", "cp", "tp"), ("dp", "cp", "pp", "tp"), ("tp", "pp", "dp", "cp"))
    took = [step(job.other(order=order)).seconds for order in orders]
    assert NUMBERS[3] == ", ".join(f"{one:.2f}" for one in took) + " s"
    errors = [row["error"] for row in accuracy.rows() if row["program"] == "megatron"]
    assert NUMBERS[4] == f"{accuracy.ninth(errors):.0%}"
