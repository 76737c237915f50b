"""Three axes by hand on real processes: values, what is held and what each axis sends; and labs/mesh.py as a reader
starts it."""

import pool
import pytest
import specimen_mesh

from scaleout.lab.session import session
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import ORDER

TOLERANCE = 1e-5        # fp32, sums in other orders: a few units in the last place of 1.2e-7, see parallel/parity.py
TWO = {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 4}
SPLIT = {"sequence_parallel": True, "gather_again": False}
CASES = {
    1: {"alone": ("gpt", Layout(micro_batches=2), ORDER)},
    2: {"dp": ("gpt", Layout(dp=2), ORDER), "pp": ("gpt", Layout(pp=2), ORDER)},
    4: {"dp x tp": ("gpt", Layout(dp=2, tp=2, micro_batches=2), ORDER),
        "tp x pp": ("llama", Layout(tp=2, pp=2), ORDER),
        "dp x pp": ("gpt", Layout(dp=2, pp=2, micro_batches=3, zero=1), ORDER)},
    8: {"gpt": ("gpt", Layout(**TWO), ORDER), "llama": ("llama", Layout(**TWO, **SPLIT, zero=1), ORDER),
        "gpt, sequence": ("gpt", Layout(**TWO, **SPLIT), ("tp", "pp", "cp", "dp")),
        "heads on two ranks": ("llama", Layout(tp=4, pp=2, **SPLIT), ORDER),
        "interleaved": ("gpt", Layout(**TWO, chunks=2, schedule="interleaved"), ORDER)},
}


@pytest.fixture(scope="module")
def runs():
    with session("cpu") as s:
        found = {1: [specimen_mesh.main(s, CASES[1])]}
    found |= {world: pool.ranks(specimen_mesh.main, world, CASES[world]) for world in (2, 4, 8)}
    return {name: each[0][name] for world, each in found.items() for name in CASES[world]}


def test_losses_all_gradients_and_weights_are_one_processs(runs):
    for name, run in runs.items():
        for what in ("loss", "gradients", "weights"):
            assert run[what] < TOLERANCE, (name, what)


def test_a_rank_holds_its_stages_part_and_no_more(runs):
    for name, run in runs.items():
        for there, wanted in run["stored"]:
            assert there == wanted, name


def test_each_axis_sends_what_the_pure_models_say(runs):
    for name, run in runs.items():
        for rank, (seen, wanted) in enumerate(run["sent"]):
            assert seen == wanted, (name, rank)
