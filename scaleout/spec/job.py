"""A job: the model, the recipe, the cluster and the program. Every prediction is about a job.

`memory.job`, `collectives.job` and `timing.job` take a job and nothing else, so that two pages cannot say two
things of the same training run. A job is checked once, when it is made, and changed by `other`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from scaleout.spec import checks, job_checks, mesh
from scaleout.spec.adapters import adapter_parameters, nf4_bytes, quantized
from scaleout.spec.devices import DEVICES, Device
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS, Program, program
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.sharding import Sharding
from scaleout.spec.slices import stage_parameters
from scaleout.spec.topology import Cluster, Wire
from scaleout.spec.transformer import PRESETS, Shape, preset


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
        job_checks.check(self)

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
        """Of a number of the residual stream: autocast leaves it in fp32, `fully_shard`'s mixed precision does not, nor
        do frozen weights in 16 bits."""
        frozen = self.recipe.adapter != "none" and self.recipe.unquantized == "compute"
        return self.recipe.width("compute" if self.sharded or frozen else "stream")

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

    def trained_parameters(self, rank: int = 0) -> int:
        """Those of them with a gradient, which replicas reduce and the optimizer steps: all, or the adapters'."""
        if self.recipe.adapter == "none":
            return self.rank_parameters(rank)
        return round(sum(self.rank_stages(rank)) * adapter_parameters(self.shape, self.recipe, self.layout.tp))

    def weight_bytes(self, parameters: float, blocks: float) -> float:
        """Bytes of so many weights, of which `blocks` layers', as replicas gather them: in the dtype that is computed
        in, or in NF4."""
        width = self.recipe.width("compute")
        in_4_bits = blocks * quantized(self.shape, self.recipe, self.layout.tp)
        return parameters * width - in_4_bits * (width - nf4_bytes(self.recipe))

    @property
    def sharded(self) -> bool:
        """Whether units of weights are gathered when they are needed, as `fully_shard` does."""
        return self.replicas.gathers(self.layout)

    @property
    def overlap(self) -> bool:
        """Whether the gradient reduction overlaps with the backward."""
        return self.program.data_overlap if self.replicas.overlap is None else self.replicas.overlap

    @property
    def shards(self) -> int:
        """Ranks that share one copy of the states."""
        return self.replicas.shards or self.layout.replicas

    @property
    def sharding(self) -> Sharding:
        """The same in the words of `fully_shard`."""
        return self.replicas.sharding(self.layout, self.recipe)

    def other(self, **changes) -> Job:
        """The same job with some fields changed, its own or those of its parts: `job.other(tp=4, seq=8192)`.

        Where ranks would no longer fill the cluster, dp becomes what is left of it, unless it is given. A name stands
        for a preset, a device or a program. ValueError for a field that there is not, and as in Job.
        """
        named = {"shape": preset, "device": lambda key: checks.known("device", key, DEVICES), "program": program}
        own_values = {name: value for name, value in changes.items() if name in self.__dict__}
        own_values = {
            name: named[name](value) if name in named and isinstance(value, str) else value
            for name, value in own_values.items()
        }
        part_values = {name: value for name, value in changes.items() if name not in self.__dict__}
        for part in PARTS:
            current = own_values.get(part, getattr(self, part))
            checks.instance(part, current, KINDS[part])
            changed = {name: part_values.pop(name) for name in [f.name for f in fields(current)] if name in part_values}
            if part == "layout" and "dp" not in changed and "layout" not in own_values:
                changed["dp"] = self._data_ranks(own_values.get("cluster", self.cluster), changed)
            if changed:
                own_values[part] = replace(current, **changed)
        if part_values:
            raise ValueError(f"a job has no {', '.join(part_values)}: it has {', '.join(field_names())}")
        return replace(self, **own_values)

    def _data_ranks(self, cluster: Cluster, degrees: Mapping[str, int]) -> int:
        """The dp that fills a cluster beside the other degrees."""
        model_ranks = 1
        for axis in ("tp", "pp", "cp"):
            degree = degrees.get(axis, getattr(self.layout, axis))
            checks.whole(axis, degree)
            model_ranks *= degree
        return max(1, cluster.ranks // model_ranks)

    # --- in words and in files --------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """One line that a person can read."""
        layout = self.layout
        name = next(
            (key for key, shape in PRESETS.items() if shape == self.shape),
            f"{self.shape.layers} blocks of {self.shape.hidden}",
        )
        phrases = [
            f"{name} on {self.cluster.ranks:,} {self.device.name}",
            ", ".join(layout.degrees) or "one rank",
            f"ZeRO {layout.zero}",
            f"{self.sequences:,} sequences of {self.seq:,} tokens per step",
            f"micro-batch {self.batch}",
            self.program.label,
        ]
        if self.recipe.checkpointing != "none":
            phrases.append(f"{self.recipe.checkpointing} recomputation")
        if self.recipe.adapter != "none":
            name = {"lora": "LoRA", "qlora": "QLoRA"}[self.recipe.adapter]
            phrases.append(f"{name} of rank {self.recipe.adapter_rank}")
        return "; ".join(phrases)

    def to_json(self) -> str:
        """A JSON object of every field that differs from its default."""
        document = {
            "shape": _key(PRESETS, self.shape),
            "device": _key(DEVICES, self.device),
            "program": _key(PROGRAMS, self.program),
            "cluster": asdict(self.cluster),
        }
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name not in document and value != _default(entry):
                document[entry.name] = asdict(value) if entry.name in KINDS else value
        return json.dumps(document)

    @staticmethod
    def from_json(text: str) -> Job:
        """The job that `to_json` wrote. ValueError, in one line, for text that is none."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("a job is a JSON object, as Job.to_json writes it") from None
        checks.instance("a job", document, dict)
        if unknown := document.keys() - {entry.name for entry in fields(Job)}:
            raise ValueError(f"a job has no {', '.join(sorted(unknown))}: it has {', '.join(KINDS)} and more")
        document["cluster"] = _cluster(document.get("cluster"))
        tables: dict[str, dict[str, Any]] = {"shape": PRESETS, "device": DEVICES, "program": PROGRAMS}
        for name, kind in KINDS.items():
            value = document.get(name)
            if name in tables and isinstance(value, str):
                document[name] = checks.known(name, value, tables[name])
            elif isinstance(value, dict):
                document[name] = checks.built(name, kind, value)
        document |= {
            name: tuple(document[name]) for name in ("order", "blocks") if isinstance(document.get(name), list)
        }
        return checks.built("job", Job, document)


KINDS = {"shape": Shape, "device": Device, "cluster": Cluster, "layout": Layout, "recipe": Recipe, "program": Program,
         "replicas": Replicas}  # fmt: skip
PARTS = ("shape", "layout", "recipe", "cluster", "replicas")  # whose fields `other` changes by name


def field_names() -> list[str]:
    """What `Job.other` takes: a job's fields and those of its parts."""
    parts = [entry.name for part in PARTS for entry in fields(KINDS[part])]
    return list(dict.fromkeys([entry.name for entry in fields(Job)] + parts))


def _default(entry):
    return entry.default_factory() if callable(entry.default_factory) else entry.default


def _key(table: dict, value):
    """Its name in a table, or all of its fields."""
    return next((key for key, known in table.items() if known == value), None) or asdict(value)


def _cluster(values) -> Cluster:
    checks.instance("cluster", values, dict)
    own = [name for name in ("inside", "across") if isinstance(values.get(name), dict)]
    wires = {name: checks.built(name, Wire, values[name]) for name in own}
    return checks.built("cluster", Cluster, values | wires)
