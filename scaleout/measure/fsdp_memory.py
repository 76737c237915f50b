"""The memory that torch allocates in a step under `fully_shard`, for any world size on one machine.

A fake process group answers for ranks that are not there, and fake tensors have sizes without contents, so a 70B
model on 512 ranks is measured on a laptop. Two witnesses look at the same step: the book's FsdpLedger and torch's
FSDPMemTracker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode

from scaleout.lab.session import Session
from scaleout.measure.fsdp_ledger import UPDATE, watch
from scaleout.measure.memory import fake_tensors, total
from scaleout.parallel import private
from scaleout.parallel.recipe import default_dtype, make_optimizer
from scaleout.parallel.shard import shard
from scaleout.parallel.transformer import Transformer
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape, check_run

OPERATIONS = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "all_reduce"}


@dataclass(frozen=True)
class MeasuredFsdp:
    """Bytes that torch allocated in one step on one rank.

    moments: at the fullest instant of "forward", "loss", "backward" and "update", by kind. by_unit: most bytes of
    each stretch (phase, unit, what). collectives: counts and bytes of whole messages. counted: the same counts by
    CommDebugMode, where asked for. tracker: the peak of FSDPMemTracker, or None.
    """

    moments: dict[str, dict[str, int]]
    by_unit: dict[tuple[str, str, str], int]
    collectives: dict[str, dict[str, int]]
    counted: dict[str, int] = field(default_factory=dict)
    tracker: int | None = None

    @property
    def peak(self) -> dict[str, int]:
        return max(self.moments.values(), key=lambda kinds: sum(kinds.values()))

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak.values())


@contextlib.contextmanager
def fake_world(world: int):
    """A Session of rank 0 among `world` processes of which the others are not there: collectives return at once."""
    dist.init_process_group("fake", store=private.FakeStore(), rank=0, world_size=world)
    try:
        yield Session(torch.device("cpu"), "fake", 0, world, 0, 1, world)
    finally:
        dist.destroy_process_group()


class FsdpStep:
    """One training step of the book's Transformer, or of what `make` gives, under `fully_shard`, ready to run; the
    optimizer's state exists."""

    def __init__(
        self,
        s,
        shape: Shape,
        batch: int,
        seq: int,
        recipe: Recipe,
        sharding: Sharding,
        fake: bool = False,
        make: Callable[[], torch.nn.Module] | None = None,
    ) -> None:
        check_run(batch, seq)
        self.s, self.hand, self.buckets = s, None, {}  # what the ledger looks for in a way: no unit is by hand
        self.recipe, dtype = recipe, torch.float32 if recipe.precision == "fp32" else torch.bfloat16
        self.mode = fake_tensors(fake)
        with self.mode, s.device, default_dtype(dtype):
            make = make or (lambda: Transformer(shape, recipe.attention, recipe.dropout, recipe.checkpointing))
            model = make()
        self.model = shard(s, model, sharding)  # outside the mode: a mesh reads the ranks it is made of
        with self.mode:
            self._prepare(s, shape, batch, seq)

    def _prepare(self, s, shape: Shape, batch: int, seq: int) -> None:
        recipe = self.recipe
        self.optimizer = make_optimizer(list(self.model.parameters()), recipe, 1e-3)
        self.tokens, self.targets = (torch.randint(shape.vocab, (batch, seq), device=s.device) for _ in range(2))
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)
        for _ in range(2):  # momentum begins with the second; DTensor tries each operation once, on whole fake tensors
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if recipe.keeps_gradients:
            self.run()

    def run(self, at_update=lambda: None) -> torch.Tensor:
        """Forward, backward, update. `at_update` is called before the last."""
        loss = self.model(self.tokens, self.targets)
        loss.backward()
        at_update()
        self.optimizer.step()
        return loss.detach()

    def measure(self, witness: str = "ledger") -> MeasuredFsdp:
        """One step, seen by the book's ledger, and by another witness beside it (see `measure_fsdp`)."""
        with watch(self, self.tokens, self.targets, prepend=True) as ledger, self._witness(witness) as tracker:
            self.run(lambda: ledger.enter(UPDATE))
        seen = MeasuredFsdp(ledger.phases, ledger.by_unit, ledger.collectives)
        if witness == "tracker":
            return replace(seen, tracker=total(tracker, "cpu"))
        if witness == "counts":
            counts = {str(op).rpartition(".")[2]: count for op, count in tracker.get_comm_counts().items()}
            return replace(seen, counted={name: counts.pop(op, 0) for op, name in OPERATIONS.items()} | counts)
        return seen

    def _witness(self, witness: str):
        """The other witness. Made inside the ledger: a tracker passes resizing on to who watched it then."""
        if witness == "tracker":
            tracker = private.FSDPMemTracker(self.model, self.optimizer)
            tracker.track_inputs((self.tokens, self.targets))
            return tracker
        return CommDebugMode() if witness == "counts" else contextlib.nullcontext()


def measure_fsdp(
    shape: Shape,
    batch: int,
    seq: int,
    recipe: Recipe,
    sharding: Sharding,
    device_kind: str = "cpu",
    witness: str = "ledger",
    fake: bool = True,
    make: Callable[[], torch.nn.Module] | None = None,
) -> MeasuredFsdp:
    """Rank 0's step in a world that is not there, with fake tensors, or with real ones (for device_kind "cpu" only).

    device_kind: "cpu", or "cuda": the same operations in the order in which they are asked for on a GPU, where an
    all-gather is awaited on its own stream and its buffer lives until the next one is copied out. (What offload
    does there needs a GPU: the shards would lie beside the rest here.) witness: "ledger", "tracker" (FSDPMemTracker
    beside it) or "counts" (CommDebugMode beside it). make: gives another model of that shape, with `blocks` and `head`
    as the book's has them. Raises ValueError for real tensors as on a GPU.
    """
    if not fake and device_kind != "cpu":
        raise ValueError(f"real tensors lie on the CPU here: give device_kind cpu, not {device_kind}, or fake=True")
    with fake_world(sharding.world) as s:
        step = FsdpStep(s, shape, batch, seq, recipe, sharding, fake, make)
        private.gather_beside_compute(step.model, device_kind == "cpu")
        with step.mode:
            return step.measure(witness)
