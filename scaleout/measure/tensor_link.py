"""One rank of labs/tensor.py --link: steps of tensor parallelism and of DDP, on the same batches, over links of several
rates. The links are shaped from outside, as for labs/slow_link.py.
"""

from scaleout.lab import recording, session
from scaleout.measure.peak import timed
from scaleout.measure.slow_link import Linked, Plan, start
from scaleout.measure.tensor import Calibration, moves
from scaleout.parallel import ddp_ways, tensor_ways
from scaleout.parallel.replicas import Settings

WARMUP = 3  # steps of each at full speed
WAYS = ("tensor", "ddp")


class Worker(Linked):
    """Both ways on one rank, and what is timed with them."""

    def __init__(self, s, plan, folder):
        """plan: a dict with the lab's options, `model` (of a Shape), `rates` (bit/s or None), rounds, threads."""
        super().__init__(s, folder)
        self.o, self.drawn = Plan(plan), 0
        self.text = session.dataset(plan["dataset"])
        shared = {"rate": self.o.lr, "seed": self.o.seed}
        self.ways = {
            "tensor": tensor_ways.TensorWay(s, self.o.shape, "hand", **shared),
            "ddp": ddp_ways.DDPWay(s, self.o.shape, "torch", Settings(), **shared),
        }
        self.calibration = Calibration(s, self.o, {False: tensor_ways.TensorWay(s, self.o.shape, "hand", **shared)})
        self.cases = [
            {"rate": rate, "way": way, "step_seconds": [], "losses": []} for rate in self.o.rates for way in WAYS
        ]

    def batch(self, way):
        """The next batch: whole on every rank, or this rank's share of it."""
        self.drawn += 1
        world = self.s.world if way == "ddp" else 1
        return session.batch(
            self.text,
            self.drawn,
            self.o.micro_batch // world,
            self.o.seq,
            self.s.rank % world,
            world,
            self.o.seed,
            self.s.device,
        )

    def step(self, way):
        """(step time of the slowest rank in seconds, mean loss)."""
        batch = self.batch(way)
        seconds, loss = timed(self.s, lambda: self.ways[way].step([batch] if way == "ddp" else batch))
        return seconds, self.s.mean(loss)

    def run(self):
        """All rounds; what was seen (dict, JSON)."""
        self.link(None)
        for _ in range(WARMUP):
            for way in WAYS:
                self.step(way)
        for _ in range(self.o.rounds):
            self.link(None)
            for _ in range(self.o.steps):
                self.calibration.sample(self.batch("tensor"))
            for case in self.cases:
                self.link(case["rate"])
                for number in range(self.o.steps + 1):  # the first finds the link's burst full
                    seconds, loss = self.step(case["way"])
                    if number:
                        case["step_seconds"].append(seconds)
                        case["losses"].append(loss)
        self.link(None)
        return self.found()

    def found(self):
        """Measurements, and what the predictions rest on."""
        seconds, exposed = self.calibration.predict(False, 0)
        gradients = sum(p.numel() * p.element_size() for p in self.ways["ddp"].model.parameters())
        size = self.o.shape, self.o.micro_batch, self.o.seq, self.s.world, False
        messages = [move for phase in moves(*size).values() for move in phase]
        return {
            "facts": recording.facts(self.s, self.o.dataset),
            "cases": self.cases,
            "quiet_seconds": seconds - exposed,
            "messages": [[move.sent, self.calibration.middle(move.collective, move.size)] for move in messages],
            "sent_bytes": {
                "tensor": sum(move.sent for move in messages),
                "ddp": 2 * (self.s.world - 1) / self.s.world * gradients,
            },
        }


if __name__ == "__main__":
    start(Worker)
