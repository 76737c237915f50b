"""One rank of labs/architecture.py --placement: steps of tensor and data parallelism whose groups lie well or badly on
two hosts. The links are shaped from outside, as for labs/slow_link.py.
"""

import time

import torch
import torch.distributed as dist

from scaleout.lab import recording
from scaleout.measure.peak import timed
from scaleout.measure.slow_link import Linked, start

WARMUP = 2  # steps of each placement at full speed: connections
PLACEMENTS = {"well": "tensor parallel groups inside a host", "badly": "tensor parallel groups across the hosts"}


class Worker(Linked):
    """Both placements on one rank."""

    def __init__(self, s, plan, folder):
        """plan: a dict with rates (bit/s or None), steps, threads, device (seconds of compute), activations and
        gradients (bytes), calls (all-reduces of activations per step)."""
        super().__init__(s, folder)
        self.plan = plan
        hosts = [list(range(first, first + s.local_world)) for first in range(0, s.world, s.local_world)]
        across = [list(ranks) for ranks in zip(*hosts, strict=True)]
        inside, between = ([dist.new_group(ranks) for ranks in groups] for groups in (hosts, across))
        host, place = divmod(s.rank, s.local_world)
        self.groups = {"well": (inside[host], between[place]), "badly": (between[place], inside[host])}
        self.activations, self.gradients = (torch.ones(plan[name] // 4) for name in ("activations", "gradients"))
        self.cases = [
            {"rate": rate, "placement": name, "step_seconds": [], "losses": []}
            for rate in plan["rates"]
            for name in PLACEMENTS
        ]

    def step(self, placement):
        """Step time in seconds, of the slowest rank: compute, an all-reduce of activations per part of it, then one of
        the gradients."""
        tensor_group, data_group = self.groups[placement]

        def work():
            for _ in range(self.plan["calls"]):
                time.sleep(self.plan["device"] / self.plan["calls"])
                dist.all_reduce(self.activations, group=tensor_group)
            dist.all_reduce(self.gradients, group=data_group)

        return timed(self.s, work)[0]

    def run(self):
        """All cases; what was seen (dict, JSON)."""
        self.link(None)
        for _ in range(WARMUP):
            for placement in PLACEMENTS:
                self.step(placement)
        for case in self.cases:
            self.link(case["rate"])
            for number in range(self.plan["steps"] + 1):  # the first finds the link's burst full
                seconds = self.step(case["placement"])
                if number:
                    case["step_seconds"].append(seconds)
        self.link(None)
        return {"facts": recording.facts(self.s), "cases": self.cases, "local": self.s.local_world}


if __name__ == "__main__":
    start(Worker)
