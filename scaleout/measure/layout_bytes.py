"""The peak of live tensors on a rank of a layout in a step, measured in `parallel.mesh_ways`."""

from __future__ import annotations

import torch

from scaleout.measure.fsdp_ledger import FsdpLedger
from scaleout.parallel.recipe import optimizer_tensors


class RankLedger(FsdpLedger):
    """An FsdpLedger of a rank's own tensors. One that only waits for a collective's result has no memory of its own."""

    def claim(self, tensor: torch.Tensor, kind: str) -> None:
        """As in FsdpLedger."""
        if not hasattr(tensor, "trigger_wait"):
            super().claim(tensor, kind)


def peak(trainer, batches) -> dict[str, int]:
    """{kind: bytes} at the fullest instant of a step with these micro-batches, which is made. Not the first: shards are
    made, and the optimizer has its state. Kinds are "weights" and "optimizer" (shards), "gathered", and "activations"
    for all that the step makes, gradients among it. What torch's schedule received before is not seen."""
    ledger = RankLedger(trainer.s.device.type)
    for p in trainer.parameters:
        ledger.claim(p.data, "weights")
    for tensor in optimizer_tensors(trainer.optimizer):
        ledger.claim(tensor, "optimizer")
    for pair in batches:
        for tensor in pair:
            ledger.claim(tensor, "activations")
    with ledger:
        trainer.gradients(batches)
        ledger.enter("optimizer")
        trainer.update()
    return {kind: size for kind, size in ledger.peak.items() if size}
