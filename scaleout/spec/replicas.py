"""How the replicas of a model's weights exchange gradients and weights: buckets, units, shards, offload."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.spec import checks
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import WRAPS, Sharding
from scaleout.spec.transformer import Shape, linears, total_parameters

OFFLOADS = ("none", "optimizer", "parameters")
PLACES = ("host", "nvme")


@dataclass(frozen=True)
class Replicas:
    """How the replicas of the weights exchange gradients and weights.

    bucket_bytes: of gradients that are reduced at once, None for the program's own size. every_pass: gradients are
        reduced after every micro-batch, not after the last (None: as the ZeRO stage needs it). overlap: gradients are
        reduced during the backward, not after it (None: as the program does).
    compression: how many times smaller than the gradients the messages of buckets are, at least 1 (bf16 of fp32: 2);
        what compressing costs is not priced.
    Of ZeRO stage 3, and of stage 2 by `fully_shard` that keeps what it gathered: wrap, least_parameters, prefetch, and
        reshard, a number of ranks for a smaller group that keeps shards between forward and backward (`spec.sharding`).
    backward_prefetch: units gathered ahead in the backward, None for as many as `prefetch`.
    shards: ranks that share one copy of the states, None for all of them; with fewer it is hybrid sharding.
    offload: the states in CPU memory, which the CPU updates: "none", the "optimizer" and its states, or the
        "parameters" too. offload_to: the "host"'s memory, or "nvme" behind it.
    """

    bucket_bytes: int | None = None
    every_pass: bool | None = None
    overlap: bool | None = None
    compression: float = 1.0
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
        for name in ("every_pass", "overlap"):
            checks.one_of(name, getattr(self, name), (None, True, False))
        checks.number("compression", self.compression, 1)
        checks.whole("prefetch", self.prefetch, 0)
        for name, least in (("bucket_bytes", 1), ("shards", 1), ("backward_prefetch", 0)):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), least)

    def gathers(self, layout: Layout) -> bool:
        """Whether units of weights are gathered when they are needed, as `fully_shard` does."""
        return layout.zero == 3 or (layout.zero == 2 and self.reshard is False)

    def sharding(self, layout: Layout, recipe: Recipe) -> Sharding:
        """The same in the words of `fully_shard`."""
        ranks = self.shards or layout.replicas
        wide = {2: "bf16", 4: "fp32"}
        return Sharding(
            ranks,
            layout.replicas // ranks,
            self.wrap,
            self.least_parameters,
            self.reshard,
            self.prefetch,
            self.offload == "parameters",
            wide[recipe.width("compute")],
            "bf16" if recipe.gradient_bytes == 2 else "fp32",
        )


def powersgd_ratio(shape: Shape, rank: int = 4) -> float:
    """How many times fewer numbers PowerSGD sends: a matrix of n x m becomes two, n x r and r x m.

    Vogels et al. 2019 (arXiv 1905.13727). Vectors (norms, biases) go uncompressed. One ratio for the whole model;
    that it sends two messages, one after the other, and the work of compressing are not in it.
    """
    checks.whole("rank", rank)
    tables = [(shape.vocab, shape.hidden)] * (1 if shape.tied_head else 2)
    if shape.positions == "learned":
        tables.append((shape.position_rows, shape.hidden))
    matrices = [(1, *size) for size in tables] + [(shape.layers, *size) for size in linears(shape).values()]
    whole = total_parameters(shape)
    vectors = whole - sum(times * n * m for times, n, m in matrices)
    return whole / (vectors + sum(times * min(n * m, rank * (n + m)) for times, n, m in matrices))
