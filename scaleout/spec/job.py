"""A job: what is trained, how, on what, and by which program. Everything that is predicted is predicted of one.

`memory.job`, `collectives.job` and `timing.job` take a job and nothing else, so that two pages cannot say two
things of the same training run. A job is checked once, when it is made, and changed by `other`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property

from scaleout.spec import checks, mesh
from scaleout.spec.devices import DEVICES, Device
from scaleout.spec.layout import CONTEXTS, Layout, within
from scaleout.spec.program import PROGRAMS, Program, program
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.sharding import Sharding
from scaleout.spec.slices import check_sequence, check_tensor, stage_parameters
from scaleout.spec.topology import Cluster, Wire
from scaleout.spec.transformer import PRESETS, Shape, check_run, preset


@dataclass(frozen=True)
class Job:
    """A training job. `batch` sequences of `seq` tokens are a micro-batch of one replica; `layout.m` of them a step.

    order: the axes of the grid of ranks, outermost first. context: how keys and values reach the ranks of a sequence,
    "ring" (arXiv 2310.01889) or "gather" (arXiv 2407.21783, section 3.3.2). blocks: of each stage of a pipeline, None
    for as many on each. tf32: fp32 matrix multiplications on tensor cores.

    Raises ValueError, in one line with the nearest job that works, for what cannot be.
    """

    shape: Shape
    seq: int
    device: Device
    cluster: Cluster
    batch: int = 1
    layout: Layout = field(default_factory=Layout)
    recipe: Recipe = field(default_factory=lambda: Recipe("bf16-master", main_gradients="instead"))
    program: Program = PROGRAMS["megatron"]
    replicas: Replicas = field(default_factory=Replicas)
    order: tuple[str, ...] = mesh.ORDER
    context: str = "ring"
    blocks: tuple[int, ...] | None = None
    tf32: bool = False

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            checks.instance(name, getattr(self, name), kind)
        check_run(self.batch, self.seq)
        checks.one_of("context", self.context, CONTEXTS)
        checks.flag("tf32", self.tf32)
        mesh.grid(self.layout, self.order)
        check_tensor(self.shape, self.layout.tp)
        mesh.refuse(self.shape, self.layout, self.cluster.ranks)
        _, tokens = within(self.layout, self.seq)
        if self.layout.tp > 1 and self.layout.sequence_parallel:
            check_sequence(tokens, self.layout.tp)
        if self.layout.cp > 1 and self.recipe.attention == "naive":
            raise ValueError("across cp ranks no rank has all scores: use attention sdpa, not naive")
        self._check_stages()
        self._check_replicas()

    def _check_stages(self) -> None:
        mesh.filled(self.shape.layers, self.layout.stages)
        if self.blocks is not None:
            mesh.blocks_of(self.shape, self.layout, self.blocks)

    def _check_replicas(self) -> None:
        layout, how = self.layout, self.replicas
        if how.shards is not None and layout.replicas % how.shards:
            near = checks.nearest(how.shards, checks.divisors(layout.replicas))
            raise ValueError(f"shards must divide {layout.replicas} replicas, not {how.shards}: use {near}")
        if how.reshard is False and layout.zero == 3:
            raise ValueError("ZeRO stage 3 frees what it gathered: use zero 2 with reshard False, or reshard True")
        if layout.pp > 1 and (how.shards is not None or not isinstance(how.reshard, bool) or how.offload != "none"):
            raise ValueError("shards, reshard to some ranks and offload are priced without a pipeline: use pp 1")
        if how.offload != "none" and not layout.zero:
            raise ValueError("offload needs an owner for each shard: use zero 1, 2 or 3")
        if layout.zero < 2 or (layout.zero == 2 and how.reshard is not False):
            if how.offload == "parameters":
                raise ValueError(f"offload of parameters needs zero 3, not {layout.zero}: or offload the optimizer")
            if how.offload != "none" and how.offload_to == "nvme":
                raise ValueError(f"offload to NVMe needs zero 3, not {layout.zero}: or offload to the host")
        if how.compression > 1 and (layout.pp > 1 or layout.zero):
            raise ValueError("compressed messages are priced for whole gradients in buckets: use zero 0 and pp 1")
        if self.sharded:
            self.sharding  # noqa: B018 - its own refusals

    # --- what follows -----------------------------------------------------------------------------------------------

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank: context parallelism cuts each sequence."""
        return self.batch * self.seq // self.layout.cp

    @property
    def sequences(self) -> int:
        """Sequences of a step, of all replicas together."""
        return self.batch * self.layout.m * self.layout.dp

    @property
    def tokens_per_step(self) -> int:
        return self.sequences * self.seq

    @property
    def stream_bytes(self) -> int:
        """Of a number of the residual stream: autocast leaves it in fp32, `fully_shard`'s mixed precision does not."""
        return self.recipe.width("compute" if self.sharded else "stream")

    @property
    def dtype(self) -> str:
        """What matrix multiplications read: the device's 16-bit format, or fp32 (on tensor cores "tf32")."""
        if self.recipe.width("compute") == 2:
            return self.device.half
        return "tf32" if self.tf32 else "fp32"

    @property
    def peak_flop_per_s(self) -> float:
        """Of one rank, by the datasheet: what MFU is relative to."""
        return self.device.matmul_flop_per_s(self.dtype)

    @cached_property
    def grid(self) -> mesh.Grid:
        return mesh.grid(self.layout, self.order)

    @property
    def stages(self) -> tuple[int, ...]:
        """Blocks of each stage."""
        return self.blocks or mesh.blocks(self.shape.layers, self.layout.stages)

    def rank_stages(self, rank: int) -> tuple[int, ...]:
        """Blocks of each chunk of a rank of the pipeline. ValueError for a rank that is not there."""
        if not checks.is_whole(rank) or not 0 <= rank < self.layout.pp:
            raise ValueError(f"rank {rank!r} of the pipeline is not there: they go from 0 to {self.layout.pp - 1}")
        return mesh.rank_blocks(self.layout, rank, self.stages)

    def rank_parameters(self, rank: int = 0) -> int:
        """Parameters on one rank of the pipeline, before ZeRO."""
        return stage_parameters(self.shape, self.layout, rank, sum(self.rank_stages(rank)))

    @property
    def sharded(self) -> bool:
        """Whether units of weights are gathered when they are needed, as `fully_shard` does."""
        return self.layout.zero == 3 or (self.layout.zero == 2 and self.replicas.reshard is False)

    @property
    def overlap(self) -> bool:
        """Whether gradients are reduced beside the backward."""
        return self.program.data_overlap if self.replicas.overlap is None else self.replicas.overlap

    @property
    def shards(self) -> int:
        """Ranks that share one copy of the states."""
        return self.replicas.shards or self.layout.replicas

    @property
    def sharding(self) -> Sharding:
        """The same in the words of `fully_shard`."""
        how, ranks = self.replicas, self.shards
        wide = {2: "bf16", 4: "fp32"}
        return Sharding(
            ranks, self.layout.replicas // ranks, how.wrap, how.least_parameters, how.reshard, how.prefetch,
            how.offload == "parameters", wide[self.recipe.width("compute")],
            "bf16" if self.recipe.gradient_bytes == 2 else "fp32",
        )  # fmt: skip

    def other(self, **changes) -> Job:
        """The same job with some fields changed, its own or those of its parts: `job.other(tp=4, seq=8192)`.

        Where ranks would no longer fill the cluster, dp becomes what is left of it, unless it is given. A name stands
        for a preset, a device or a program. ValueError for a field that there is not, and as in Job.
        """
        named = {"shape": preset, "device": lambda key: checks.known("device", key, DEVICES), "program": program}
        own = {name: value for name, value in changes.items() if name in self.__dict__}
        own = {name: named[name](value) if name in named and isinstance(value, str) else value
               for name, value in own.items()}  # fmt: skip
        rest = {name: value for name, value in changes.items() if name not in self.__dict__}
        for part in PARTS:
            whole = own.get(part, getattr(self, part))
            some = {name: rest.pop(name) for name in [f.name for f in fields(whole)] if name in rest}
            if part == "layout" and "dp" not in some and "layout" not in own:
                some["dp"] = self._rest(own.get("cluster", self.cluster), some)
            if some:
                own[part] = replace(whole, **some)
        if rest:
            raise ValueError(f"a job has no {', '.join(rest)}: it has {', '.join(field_names())}")
        return replace(self, **own)

    def _rest(self, cluster: Cluster, some: Mapping[str, int]) -> int:
        """What of a cluster is left for dp."""
        taken = 1
        for axis in ("tp", "pp", "cp"):
            degree = some.get(axis, getattr(self.layout, axis))
            checks.whole(axis, degree)
            taken *= degree
        return max(1, cluster.ranks // taken)

    # --- in words and in files --------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """One line that a person can read."""
        at = self.layout
        name = next((key for key, shape in PRESETS.items() if shape == self.shape),
                    f"{self.shape.layers} blocks of {self.shape.hidden}")  # fmt: skip
        said = [f"{name} on {self.cluster.ranks:,} {self.device.name}", ", ".join(at.degrees) or "one rank",
                f"ZeRO {at.zero}", f"{self.sequences:,} sequences of {self.seq:,} tokens a step",
                f"micro-batch {self.batch}", self.program.label]  # fmt: skip
        if self.recipe.checkpointing != "none":
            said.append(f"{self.recipe.checkpointing} recomputation")
        return "; ".join(said)

    def to_json(self) -> str:
        """All that is not as it is by default."""
        found = {"shape": _key(PRESETS, self.shape), "device": _key(DEVICES, self.device),
                 "program": _key(PROGRAMS, self.program), "cluster": asdict(self.cluster)}  # fmt: skip
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name not in found and value != _default(one):
                found[one.name] = asdict(value) if is_dataclass(value) else value
        return json.dumps(found)

    @staticmethod
    def from_json(text: str) -> Job:
        """The job that `to_json` wrote. ValueError, in one line, for text that is none."""
        try:
            found = json.loads(text)
        except ValueError:
            raise ValueError("a job is a JSON object, as Job.to_json writes it") from None
        checks.instance("a job", found, dict)
        if unknown := found.keys() - {one.name for one in fields(Job)}:
            raise ValueError(f"a job has no {', '.join(sorted(unknown))}: it has {', '.join(KINDS)} and more")
        found["cluster"] = _cluster(found.get("cluster"))
        tables = {"shape": PRESETS, "device": DEVICES, "program": PROGRAMS}
        for name, kind in KINDS.items():
            value = found.get(name)
            if name in tables and isinstance(value, str):
                found[name] = checks.known(name, value, tables[name])
            elif isinstance(value, dict):
                found[name] = _made(name, kind, value)
        found |= {name: tuple(found[name]) for name in ("order", "blocks") if isinstance(found.get(name), list)}
        return _made("job", Job, found)


KINDS = {"shape": Shape, "device": Device, "cluster": Cluster, "layout": Layout, "recipe": Recipe, "program": Program,
         "replicas": Replicas}  # fmt: skip
PARTS = ("shape", "layout", "recipe", "cluster", "replicas")  # whose fields `other` changes by name


def field_names() -> list[str]:
    """What `Job.other` takes: a job's fields and those of its parts."""
    parts = [one.name for part in PARTS for one in fields(KINDS[part])]
    return list(dict.fromkeys([one.name for one in fields(Job)] + parts))


def _default(one):
    return one.default_factory() if callable(one.default_factory) else one.default


def _key(table: dict, value):
    """Its name in a table, or all of its fields."""
    return next((key for key, known in table.items() if known == value), None) or asdict(value)


def _made(name: str, kind: type, found: dict):
    try:
        return kind(**found)
    except TypeError as error:
        raise ValueError(f"{name}: {str(error).partition(') ')[2] or error}") from None


def _cluster(found) -> Cluster:
    checks.instance("cluster", found, dict)
    wires = {name: _made(name, Wire, found[name]) for name in ("inside", "across") if isinstance(found.get(name), dict)}
    return _made("cluster", Cluster, found | wires)
