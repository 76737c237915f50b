"""How the replicas of a model's weights exchange gradients and weights: buckets, units, shards, offload."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.spec import checks
from scaleout.spec.sharding import WRAPS

OFFLOADS = ("none", "optimizer", "parameters")
PLACES = ("host", "nvme")


@dataclass(frozen=True)
class Replicas:
    """How the replicas of the weights exchange gradients and weights.

    bucket_bytes: of gradients that are reduced at once, None for the program's own size. every_pass: gradients are
        reduced after every micro-batch, not after the last (None: as the ZeRO stage needs it).
    Of ZeRO stage 3, and of stage 2 by `fully_shard` that keeps what it gathered: wrap, least_parameters, prefetch, and
        reshard, a number of ranks for a smaller group that keeps shards between forward and backward (`spec.sharding`).
    backward_prefetch: units gathered ahead in the backward, None for as many as `prefetch`.
    shards: ranks that share one copy of the states, None for all of them; with fewer it is hybrid sharding.
    offload: what is kept off the GPU, where the host steps it: "none", the "optimizer" and its states, or the
        "parameters" too. offload_to: the "host"'s memory, or "nvme" behind it.
    """

    bucket_bytes: int | None = None
    every_pass: bool | None = None
    wrap: str = "block"
    least_parameters: int = 1_000_000
    reshard: bool | int = True
    prefetch: int = 1
    backward_prefetch: int | None = None
    shards: int | None = None
    offload: str = "none"
    offload_to: str = "host"

    def __post_init__(self) -> None:
        checks.one_of("wrap", self.wrap, WRAPS)
        checks.one_of("offload", self.offload, OFFLOADS)
        checks.one_of("offload_to", self.offload_to, PLACES)
        checks.one_of("every_pass", self.every_pass, (None, True, False))
        checks.whole("prefetch", self.prefetch, 0)
        for name, least in (("bucket_bytes", 1), ("shards", 1), ("backward_prefetch", 0)):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), least)
