"""The plan of a tour of the labs within some minutes: which stops, at what size, on how many ranks, in which order, and
what is skipped if time runs out. Standard library only; nothing is started here.

A stop is a lab at a size. The first two say whether the machine is ready and what rates it reaches, from which the
others predict. Then come the labs whose Records are worth most on this kind of machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

LARGE = 75e9  # bytes of a GPU from which the sizes of tier gpu fit
MOST_RANKS = 8  # what the labs' sizes divide by
SEVERAL = 4  # ranks of a lab on a CPU with as many cores; on fewer two, but for those in PIPES
PIPES = ("pipeline", "mesh")  # of two ranks they would show little
BY_ITSELF = ("preflight", "hang", "scaling", "slow_link")  # it starts its own processes
HOLDS = ("hang", "scaling", "slow_link")  # on CPUs whatever the machine has: hosts, hangs and jobs in a row

PATIENCE, START = 2.0, 20.0  # a stop may take so many times what is expected, and so many seconds more
SLOWEST, FASTEST = 10.0, 0.5  # bounds of `pace`

# Seconds that a stop takes, its start included: at tier smoke and at tier cpu on two cores with nothing else to do, at
# tier gpu on one H100, and on a node of eight. The first column is the processor time that was measured, dealt to two
# cores; the second scales it by steps. No GPU has run a lab: there it is the FLOPs of a stop at 0.4 of the peak (fp32:
# 0.8), and ten seconds for each start.
SECONDS = {
    "preflight": (7, 7, 15, 30), "calibrate": (11, 34, 25, 65), "memory": (9, 120, 30, 40),
    "collectives": (11, 90, 15, 60), "ddp": (28, 120, 25, 60), "tensor": (10, 60, 40, 60),
    "pipeline": (22, 180, 40, 90), "zero": (14, 90, 40, 60), "fsdp": (17, 90, 35, 60), "mesh": (15, 120, 40, 90),
    "architecture": (25, 70, 60, 70), "bottlenecks": (12, 45, 30, 40), "kernels": (40, 150, 120, 120),
    "budget": (25, 240, 120, 60),
    "recompute": (14, 60, 50, 60), "precision": (20, 150, 100, 100), "capstone": (40, 900, 100, 120),
    "hang": (14, 14, 14, 14), "scaling": (70, 200, 70, 70), "slow_link": (35, 150, 35, 35),
}  # fmt: skip
FIRST = ("preflight", "calibrate")
ALONE = (
    "memory",
    "precision",
    "recompute",
    "capstone",
    "fsdp",
    "zero",
    "pipeline",
    "ddp",
    "tensor",
    "mesh",
    "bottlenecks",
    "architecture",
    "kernels",
    "budget",
)
TOGETHER = (
    "memory",
    "collectives",
    "ddp",
    "fsdp",
    "tensor",
    "pipeline",
    "zero",
    "mesh",
    "capstone",
    "recompute",
    "precision",
    "bottlenecks",
    "architecture",
    "kernels",
    "budget",
)
# What one GPU cannot show is shown by ranks on its host's cores: messages, bubbles, layouts.
MESSAGES = ("collectives", "ddp", "pipeline", "mesh", "tensor", "fsdp", "zero")
# Shorter than the tier has them: enough steps for a median, and no minutes of compiling but in the job itself.
SHORT = {
    "memory": ("--steps", "20"), "fsdp": ("--steps", "10"), "zero": ("--steps", "10"), "pipeline": ("--steps", "8"),
    "tensor": ("--steps", "10"), "mesh": ("--steps", "8"), "recompute": ("--steps", "10"), "ddp": ("--steps", "20"),
    "precision": ("--steps", "12", "--no-compile"),
    "capstone": ("--steps", "20", "--batch", "16", "--validation-batches", "2", "--sample", "100"),
}  # fmt: skip
OWN = {"hang": ("--out", "dumps"), "scaling": ("--worlds", "1,2", "--mode", "strong", "--save", "records"),
       "slow_link": ("--save", "records")}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """What a tour is planned from. facts: {what: in words}, for the page."""

    cores: int
    gpus: int = 0
    gpu_bytes: float = 0.0  # of the smallest
    no_hosts: str = ""  # why several hosts cannot be made of this one; "" where they can
    facts: dict = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """ "cpu", "gpu" (one), or "node" (several)."""
        return ("cpu", "gpu", "node")[min(self.gpus, 2)]


@dataclass(frozen=True)
class Stop:
    """A lab at a size. on: "cpu" or "cuda". seconds: expected, from its start to its end. words: beside tier and
    Record."""

    lab: str
    on: str
    tier: str
    world: int
    seconds: float
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its folder, and of what the archive has of it."""
        return f"{self.lab}-{self.tier}-{self.on}-{self.world}"

    @property
    def command(self) -> list[str]:
        """What the lab is told."""
        tier = [] if self.lab in ("preflight", "hang") else ["--tier", self.tier]
        saves = self.lab not in (*FIRST, *BY_ITSELF)
        return [*tier, *self.words, *(["--save", "record.json"] if saves else [])]

    @property
    def keeps(self) -> bool:
        """Whether it writes a Record."""
        return self.lab not in (*FIRST, "hang")


# --- which, and in which order --------------------------------------------------------------------------------------


def plan(machine: Machine, minutes: float, labs: Iterable[str] = ()) -> list[Stop]:
    """The stops of a tour, the most valuable first, whether or not all fit the minutes. labs: labs to keep."""
    stops = {"cpu": _cpu, "gpu": _one_gpu, "node": _node}[machine.kind](machine, minutes)
    return [stop for stop in stops if not labs or stop.lab in labs]


def _cpu(machine: Machine, minutes: float) -> list[Stop]:
    """At tier cpu where all of it fits, else at tier smoke."""
    names = (*FIRST, *TOGETHER, *holds(machine))
    large = [_on_cpu(machine, name, "cpu") for name in names]
    if sum(stop.seconds for stop in large) <= minutes * 60:
        return large
    return [_on_cpu(machine, name, "smoke") for name in names]


def _one_gpu(machine: Machine, minutes: float) -> list[Stop]:
    """What one GPU has to say, then what only several ranks have, on the host's cores."""
    return [
        *(_on_gpus(machine, name, 1) for name in (*FIRST, *ALONE)),
        *(_on_cpu(machine, name, "smoke") for name in ("calibrate", *MESSAGES, *holds(machine))),
    ]


def _node(machine: Machine, minutes: float) -> list[Stop]:
    """Everything on the largest power of two of its GPUs."""
    world = min(MOST_RANKS, 1 << machine.gpus.bit_length() - 1)
    return [
        *(_on_gpus(machine, name, world) for name in (*FIRST, *TOGETHER)),
        *(_on_cpu(machine, name, "smoke") for name in holds(machine)),
    ]


def holds(machine: Machine) -> tuple[str, ...]:
    """The labs that are about this machine's processes and not about its devices."""
    return tuple(name for name in HOLDS if name != "slow_link" or not machine.no_hosts)


def _on_cpu(machine: Machine, lab: str, tier: str) -> Stop:
    world = SEVERAL if lab in PIPES or machine.cores >= SEVERAL else 2
    seconds = SECONDS[lab][tier == "cpu"]
    return Stop(lab, "cpu", tier, 1 if lab in BY_ITSELF else world, seconds, OWN.get(lab, ()))


def _on_gpus(machine: Machine, lab: str, world: int) -> Stop:
    tier = "gpu" if machine.gpu_bytes >= LARGE else "cpu"  # the laptop's size, where there is little room
    words = ("--gpus", str(machine.gpus)) if lab == "preflight" else SHORT.get(lab, ()) if tier == "gpu" else ()
    return Stop(lab, "cuda", tier, 1 if lab in BY_ITSELF else world, SECONDS[lab][2 + (world > 1)], words)


# --- how long -------------------------------------------------------------------------------------------------------


def pace(ended: Iterable[tuple[float, float]]) -> float:
    """How many times as long as expected the stops took that ended by themselves: [(expected, taken)] seconds. A busy
    machine, a slow disk, another GPU than the one that was thought of: all of it is in there."""
    pairs = [*ended]
    expected = sum(seconds for seconds, _ in pairs)
    return min(SLOWEST, max(FASTEST, sum(actual for _, actual in pairs) / expected)) if expected else 1.0


def limit(stop: Stop, remaining: float, slower: float = 1.0) -> float | None:
    """Seconds after which a stop is ended, with `remaining` seconds to go and at a pace of `slower`; None: it is
    dropped, since what it should take is more than what is left."""
    if stop.seconds * slower > remaining:
        return None
    return min(remaining, PATIENCE * stop.seconds * max(1.0, slower) + START)
