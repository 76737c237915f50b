"""Published training steps as jobs: what was measured, beside what the book would predict of it.

Rows are in tests/published/step_times.json and step_times_dense.json. Megatron's AdamW is one kernel, which holds
nothing beside the states. IBM's reduce gradients in bf16 (fms-fsdp's bfSixteen policy); TinyLlama's kernels are fused
by hand, so that it stands under torch.compile. Those in FP8, and those whose card, network or micro-batches the source
does not name, are no jobs of this book and are left out. None has context parallelism or experts: no constant was made
by such a step.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.topology import Cluster, cluster
from scaleout.spec.transformer import Shape
from scaleout.timing.job import step

PUBLISHED = Path(__file__).parent.parent / "tests" / "published"
# nanoGPT prints neither its GPU nor its batch; torchao's B200 were limited to a power that is not told.
UNNAMED = ("nanogpt", "torchao B200")
ACROSS = {"a100-40gb": "ib-hdr", "a100-80gb": "ib-hdr"}  # where a series names a rate and no link
# Adapters of a node, where all of its GPUs share fewer.
ADAPTERS = {("ibm 2024-05", "a100-80gb"): 1, ("ibm 2024-03", "a100-80gb"): 1, ("ibm 2024-02", "a100-80gb"): 1,
            ("ibm 2024-03", "h100-sxm"): 2}  # fmt: skip
# torchtitan's H100 of 2024 had 96 GB of HBM2e, and a limit of 500 W that no datasheet has.
SLOWER = {"torchtitan 2024-12": 2.4e12}


@dataclass(frozen=True)
class Row:
    """A measured step. again: the share of full recomputation that its selective one stands for, by operation or in
    every second block, where the book's "selective" is another; else None. gib: measured memory, or None."""

    series: str
    name: str
    job: Job
    seconds: float
    again: float | None = None
    gib: float | None = None


def rows() -> list[Row]:
    """All of them."""
    return [row for name in ("step_times.json", "step_times_dense.json") for row in _file(name)]


def _file(name: str) -> list[Row]:
    found = json.loads((PUBLISHED / name).read_text())
    out = []
    for values in found["rows"]:
        row = dict(zip(found["columns"], values, strict=True))
        unknown = row["micro_batches"] is None or row["device"] not in DEVICES or row["series"] in UNNAMED
        if row.get("fp8") or unknown:
            continue
        shape = dict(zip(found["shape_columns"], found["shapes"][row["model"]], strict=True))
        out.append(_row(row, shape, found["series"][row["series"]]))
    return out


def _row(row: dict, sizes: dict, series: dict) -> Row:
    old, half = row["program"] == "megatron-2021", row["precision"] == "bf16-pure" or row["series"].startswith("ibm")
    device = DEVICES[row["device"]]
    device = replace(device, memory_bytes_per_s=SLOWER.get(row["series"], device.memory_bytes_per_s))
    layout = Layout(
        dp=row["dp"],
        tp=row["tp"],
        pp=row["pp"],
        zero=row["zero"] or 0,
        sequence_parallel=row["tp"] > 1 and row["series"] != "narayanan",
        micro_batches=row["micro_batches"],
        chunks=row.get("chunks", 1),
        schedule="interleaved" if row.get("chunks", 1) > 1 else "1f1b",
        gather_again=row["program"] not in ("compiled", "eager"),
    )
    again = 0.5 if row["checkpointing"] == "selective" and row["program"] in ("compiled", "eager") else None
    recipe = Recipe(
        "bf16" if row["precision"] == "bf16-pure" else "bf16-master",
        main_gradients="none" if half else "instead",
        foreach=row["program"] != "megatron",
        attention="naive" if old else "sdpa",
        dropout=0.1 if old or row["model"] == "nvidia 175B" else 0.0,
        checkpointing="none" if again else row["checkpointing"],
        loss="fused" if row["series"] in ("llm-foundry", "simumax", "tinyllama") else "eager",
    )
    replicas = (
        Replicas(
            reshard=row["zero"] == 3,
            wrap="block",
            shards=row.get("gpus_per_node") if "HSDP" in (row.get("note") or "") else None,
        )
        if row["reshard"] is not None
        else Replicas()
    )
    job = Job(
        shape_of(row, sizes),
        row["seq"],
        device,
        _cluster(row, series),
        row["batch"],
        layout,
        recipe,
        PROGRAMS["compiled" if row["series"] == "tinyllama" else row["program"]],
        replicas,
    )
    name = f"{row['model']}, {row['gpus']} x {row['device']}, {row['seq']} tokens"
    return Row(f"{row['series']} {row['device']}", name, job, row["seconds"], again, row.get("gib"))


def shape_of(row: dict, sizes: dict) -> Shape:
    """The model of a row. GPT of Megatron and MPT have learned positions and layer norms, Llama and Nemotron not."""
    learned = not sizes["gated_mlp"] and not re.search("15B|340B", row["model"])
    return Shape(
        **{"tied_head": False} | sizes,
        bias=row["program"] == "megatron-2021" or row["model"] == "nvidia 175B",
        norm="rmsnorm" if sizes["gated_mlp"] else "layernorm",
        positions="learned" if learned else "rotary",
        max_seq=row["seq"],
    )


def _cluster(row: dict, series: dict) -> Cluster:
    each = min(row["gpus"], row.get("gpus_per_node", 8))
    link = series["inside"] or DEVICES[row["device"]].link
    across = series["across"] or ACROSS.get(row["device"], "ib-ndr")
    nics = ADAPTERS.get((row["series"], row["device"]), each)
    if (row["series"], row["device"]) in ADAPTERS:
        across = "ib-ndr"
    return cluster(row["gpus"] // each, each, link, across, nics)


def seconds(row: Row, program=None, of=lambda job: step(job).seconds) -> float:
    """What is predicted of a row. of: how a job's seconds are found."""
    job = row.job if program is None else replace(row.job, program=program)
    if row.again is None:
        return of(job)
    return (1 - row.again) * of(job) + row.again * of(job.other(checkpointing="full"))
