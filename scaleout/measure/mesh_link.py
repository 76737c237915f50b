"""One rank of labs/mesh.py --link: steps of one layout with each of its axes across two hosts in turn, over links of
several rates. The links are shaped from outside, as for labs/slow_link.py."""

from scaleout.lab import mesh as lab_mesh
from scaleout.lab import mesh_link, recording, session
from scaleout.measure.mesh import MeshWay, batches, planned_calls
from scaleout.measure.peak import timed
from scaleout.measure.slow_link import Linked, Plan, start

AXES = {"pp": "pp,dp,tp", "dp": "dp,pp,tp", "tp": "tp,pp,dp"}  # the order that puts an axis across the hosts


class Worker(Linked):
    """The layout in every order on one rank, and what is timed with it."""

    def __init__(self, s, plan, folder):
        """plan: a dict with the lab's options, `model` (of a Shape), `rates` (bit/s or None), warmup, threads."""
        super().__init__(s, folder)
        self.o, self.drawn = Plan(plan), 0
        self.text, o = session.dataset(plan["dataset"]), self.o
        words = o.layout or lab_mesh.usual(s.world)
        self.laid = lab_mesh.layout(o.shape, words, s.world, o.sequences, o.sequence_parallel)
        self.axes = [axis for axis in AXES if getattr(self.laid[0], axis) == s.nodes]
        self.ways = {axis: MeshWay(s, o, *self.laid, "hand", lab_mesh.order(AXES[axis])) for axis in self.axes}
        self.cases = [
            {"rate": rate, "axis": axis, "name": mesh_link.named(axis, rate), "step_seconds": [], "losses": []}
            for rate in o.rates
            for axis in self.axes
        ]

    def step(self, axis):
        """(step time in seconds of the slowest rank, mean loss)."""
        batch = batches(self.s, self.o, self.text, *self.laid, self.drawn)
        self.drawn += 1
        return timed(self.s, lambda: self.ways[axis].step(batch))

    def run(self):
        """All rounds; what was seen (dict, JSON)."""
        self.link(None)
        for _ in range(self.o.warmup):
            for axis in self.axes:
                self.step(axis)
        for _ in range(self.o.steps):
            for case in self.cases:
                self.link(case["rate"])
                self.step(case["axis"])  # the first finds the link's burst full
                seconds, loss = self.step(case["axis"])
                case["step_seconds"].append(seconds)
                case["losses"].append(loss)
        self.link(None)
        return self.found()

    def found(self):
        """Measurements, and what the predictions rest on: of each axis the rank that sends most."""
        layout, batch = self.laid
        calls = [planned_calls(self.o.shape, batch, self.o.seq, layout, pp) for pp in range(layout.pp)]
        for case in self.cases:
            messages = [
                [(kind, size, times) for axis, kind, _, size, times in rank_calls if axis == case["axis"]]
                for rank_calls in calls
            ]
            longest = max(messages, key=lambda rank_calls: sum(size * times for _, size, times in rank_calls))
            case["messages"] = mesh_link.crossing(longest, self.s.local_world)
            case["asked"] = sum(times for rank_calls in calls for *_, times in rank_calls) / len(calls)
        return {"facts": recording.facts(self.s, self.o.dataset), "cases": self.cases, "layout": lab_mesh.title(layout)}


if __name__ == "__main__":
    start(Worker)
