"""What exercises of `kernels` say of torch's compiler is what it counts here."""

from types import SimpleNamespace

import torch

from scaleout.exercises.kernels import runs
from scaleout.measure import kernels_faults


def test_graphs_are_those_that_torch_counts():
    session = SimpleNamespace(device=torch.device("cpu"), world=1, rank=0, clock=lambda: 0.0)
    options = SimpleNamespace(head_dims=(32,), precision="fp32", heads=1, batch=1, seed=0)
    found = kernels_faults.recompile(session, options)
    assert len(kernels_faults.lengths()) == runs.STEPS and kernels_faults.LONGER == 8
    for case, counts in runs.GRAPHS.values():
        assert tuple(graphs for _, graphs, _ in found[case][0]) == counts
