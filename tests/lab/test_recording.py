"""How a lab begins: lines that a page can show; and what a Record says of how its ranks took turns."""

import os
from types import SimpleNamespace

import pytest
import torch

from scaleout.lab import recording
from scaleout.spec import preset


def test_a_lab_begins_with_two_lines_of_which_the_second_goes_on(monkeypatch):
    monkeypatch.setattr(recording.limits, "cores", lambda: 128)
    s = SimpleNamespace(device=torch.device("cpu"), world=1024, backend="gloo")
    machine, parameters = recording.heading(s, preset("gpt2")).split("\n")
    assert machine.startswith("128-core ") and machine.endswith(", 1024 process(es), backend gloo")
    assert parameters == "124.44 M parameters" and len(machine) <= 74


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_a_record_says_that_its_ranks_took_turns_as_a_batch():
    before, found = os.sched_getscheduler(0), {}
    for policy in (os.SCHED_BATCH, os.SCHED_OTHER):
        os.sched_setscheduler(0, policy, os.sched_param(0))
        found[policy] = recording.turns()
    os.sched_setscheduler(0, before, os.sched_param(0))
    assert found == {os.SCHED_BATCH: ["scheduled as a batch (chrt --batch 0)"], os.SCHED_OTHER: []}
