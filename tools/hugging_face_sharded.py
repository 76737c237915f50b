"""The account of `fully_shard` beside Hugging Face's models, block by block.

    python tools/hugging_face_memory.py --sharded tests/published/hugging_face_sharded.json [part of a family's name]

A rank's step in a world of which only rank 0 is there, on fake tensors, seen by the book's ledger and, at the peak, by
torch's FSDPMemTracker.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from scaleout.measure.fsdp_memory import MeasuredFsdp, measure_fsdp
from scaleout.memory.fsdp import FsdpAccount, fsdp_account
from scaleout.parallel import hugging_face
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape

BATCH, SEQ = 2, 512
# What is stored, gathered and reduced: all fp32; fp32 shards gathered in bf16; as Accelerate's --mixed-precision bf16;
# bf16 throughout.
DTYPES = (("fp32", "fp32", "fp32"), ("fp32", "bf16", "fp32"), ("fp32", "bf16", "bf16"), ("bf16", "fp32", "fp32"))
RANKS, CHECKPOINTING, RESHARD = (2, 4), ("none", "full"), (True, False)
# Every value of each beside most values of the others, in as few cases.
GRID = [
    (dtypes, ranks, how, reshard)
    for i, (dtypes, ranks, how, reshard) in enumerate(itertools.product(DTYPES, RANKS, CHECKPOINTING, RESHARD))
    if i % 5 == 0
]  # fmt: skip
EACH = 4  # cases of a configuration
STRETCHES = ("forward", "backward")


@dataclass(frozen=True)
class Case:
    """A step of one rank. config: of a config.json."""

    name: str
    config: Mapping
    recipe: Recipe
    sharding: Sharding
    device_kind: str = "cuda"

    @property
    def shape(self) -> Shape:
        return Shape.from_config(self.config)

    def predicted(self) -> FsdpAccount:
        return fsdp_account(self.shape, BATCH, SEQ, self.recipe, self.sharding, self.device_kind)

    def measured(self) -> MeasuredFsdp:
        with hugging_face.without_values():
            return measure_fsdp(
                self.shape,
                BATCH,
                SEQ,
                self.recipe,
                self.sharding,
                self.device_kind,
                "tracker",
                make=lambda: hugging_face.make(self.config, self.recipe),
            )


def cases(configs: Mapping[str, Mapping]) -> list[Case]:
    """Some of the grid for each configuration, so that all of it is there."""
    found = []
    for i, (name, config) in enumerate(configs.items()):
        for k in range(EACH):
            (stored, parameter, reduce), ranks, how, reshard = GRID[(3 * i + k) % len(GRID)]
            kernel = "naive" if config["model_type"] == "gemma2" else "sdpa"  # which caps scores
            recipe = Recipe(stored, attention=kernel, checkpointing=how, operations="transformers")
            sharding = Sharding(ranks, reshard=reshard, parameter=parameter, reduce=reduce)
            found.append(Case(name, config, recipe, sharding, ("cuda", "cpu")[i % 2]))
    return found


def blocks(bytes_of: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """{"forward blocks.0": most bytes while it is at work} and so on, from bytes by (phase, unit)."""
    return {f"{phase} {unit}": size for (phase, unit), size in bytes_of.items() if unit and phase in STRETCHES}


def of_measured(truth: MeasuredFsdp) -> dict[str, int]:
    most: dict[tuple[str, str], int] = {}
    for (phase, unit, what), size in truth.by_unit.items():
        if what == "compute":
            most[phase, unit] = max(size, most.get((phase, unit), 0))
    return blocks(most)


def of_account(account: FsdpAccount) -> dict[str, int]:
    most: dict[tuple[str, str], int] = {}
    for moment in account.moments:
        if moment.activity == "compute":
            most[moment.phase, moment.unit] = max(moment.bytes, most.get((moment.phase, moment.unit), 0))
    return blocks(most)


def row(case: Case) -> dict:
    """What is measured of a case, in bytes: at the peak, and while each block is at work. Printed beside the account's,
    which tests make again."""
    truth, account = case.measured(), case.predicted()
    seen, wanted = of_measured(truth), of_account(account)
    sharding = {name: value for name, value in asdict(case.sharding).items() if value != getattr(Sharding(), name)}
    worst = max((wanted[name] / size - 1 for name, size in seen.items()), key=abs)
    off, tracked = (size / truth.peak_bytes - 1 for size in (account.peak_bytes, truth.tracker))
    words = f"{case.name:24}{case.recipe.precision:6}{case.recipe.checkpointing:6}{sharding!s:66}"
    print(f"{words}{off:+8.2%} tracker {tracked:+.2%} block {worst:+.2%}", flush=True)
    return {
        "model": case.name,
        "precision": case.recipe.precision,
        "attention": case.recipe.attention,
        "checkpointing": case.recipe.checkpointing,
        "sharding": sharding,
        "device_kind": case.device_kind,
        "measured": truth.peak_bytes,
        "tracker": truth.tracker,
        "blocks": seen,
    }


def write(configs: Mapping[str, Mapping], path: str, part: str = "") -> None:
    """Measure, and write the table; of a part of a name print those rows only."""
    import transformers

    found = {
        "source": "measured by tools/hugging_face_memory.py --sharded: rank 0 of a world that is not there, random "
        "weights, fake tensors, AdamW (foreach), no dropout",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "batch": BATCH,
        "seq": SEQ,
        "configs": configs,
    }
    chosen = {name: config for name, config in configs.items() if part.lower() in name.lower()}
    lines = ",\n  ".join(json.dumps(row(case)) for case in cases(chosen))
    if part:
        return
    head = json.dumps(found, indent=1).removesuffix("\n}")
    Path(path).write_text(f'{head},\n "rows": [\n  {lines}\n ]\n}}\n')
