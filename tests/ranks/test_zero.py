"""ZeRO by hand, by ZeroRedundancyOptimizer and by fully_shard on real processes: values, what each rank holds."""

import pool
import pytest
import specimen_zero

TOLERANCE = 1e-5        # fp32, sums in other orders: a few units in the last place of 1.2e-7, see parallel/parity.py
PARAMETERS = 22_402     # of the specimen: no multiple of 4


@pytest.fixture(scope="module")
def cases():
    return {ranks: pool.ranks(specimen_zero.main, ranks)[0] for ranks in (2, 4)}


@pytest.fixture(scope="module")
def runs(cases):
    return {(ranks, via): run for ranks, each in cases.items() for via, run in each.items()}


def test_losses_all_gradients_weights_and_states_are_one_processs(runs):
    assert len(runs) == 14
    for name, run in runs.items():
        for what in ("loss", "gradients", "weights", "exp_avg", "exp_avg_sq"):
            assert run[what] < TOLERANCE, (name, what)
