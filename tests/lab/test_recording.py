"""How a lab begins: lines that a page can show."""

from types import SimpleNamespace

import torch

from scaleout.lab import recording
from scaleout.spec import preset


def test_a_lab_begins_with_two_lines_of_which_the_second_goes_on(monkeypatch):
    monkeypatch.setattr(recording.os, "cpu_count", lambda: 128)
    s = SimpleNamespace(device=torch.device("cpu"), world=1024, backend="gloo")
    machine, parameters = recording.heading(s, preset("gpt2")).split("\n")
    assert machine.startswith("128-core ") and machine.endswith(", 1024 process(es), backend gloo")
    assert parameters == "124.44 M parameters" and len(machine) <= 74
