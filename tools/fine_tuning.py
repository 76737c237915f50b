"""Published fine-tuning runs as jobs: the seconds and bytes that were measured, and the job to predict them of.

Rows are in tests/published/fine_tuning_runs.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import measured

from scaleout.memory.job import fullest
from scaleout.spec.devices import DEVICES
from scaleout.spec.frameworks import trained
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS, Program
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import Shape

FILE = measured.PUBLISHED / "fine_tuning_runs.json"
MEMORY = measured.PUBLISHED / "fine_tuning_memory.json"
GIB = 2**30
# Hugging Face's models with Triton's norms and rotary positions: as many kernels as a block of fused ones has.
FUSED = replace(PROGRAMS["huggingface"], fused=True, kernels=PROGRAMS["compiled"].kernels)


@dataclass(frozen=True)
class Run:
    """A measured run. values: its row, by column; memory_bytes: the measured peak of one GPU, or None."""

    values: dict
    shape: Shape
    job: Job

    @property
    def seconds(self) -> float:
        return self.values["seconds"]

    @property
    def memory_bytes(self) -> float | None:
        return None if self.values["gib"] is None else self.values["gib"] * GIB


def peak(run: Run) -> int:
    """What torch allocates at the fullest moment, as the account has it."""
    return fullest(run.job).peak_bytes


def of_2024(run: Run) -> dict[str, int]:
    """Bytes by moment that transformers 4.45 and FSDP 1 keep and what the account stands for does not.

    loss: transformers made fp32 logits and a copy of those that have a label (LlamaForCausalLM), whatever kernel read
    them; the account has 16-bit logits and their gradient. block: where no weight is trained, a re-entrant checkpoint
    under FSDP 1 leaves each block its input's gradient until the backward ends (tests/memory/test_fsdp1_truth.py).
    """
    values, shape = run.values, run.shape
    tokens = values["batch"] * values["seq"]
    widened = tokens * shape.vocab * 4 if values["loss"] == "fused" else 0
    left = shape.layers * tokens * shape.hidden * 2 if values["zero"] == 3 and values["method"] != "full" else 0
    return {"loss": widened, "block": left}


def peak_of_2024(run: Run) -> int:
    """The peak with these, of a run with transformers' modules."""
    more = of_2024(run)
    return max(sum(kinds.values()) + more.get(moment, 0) for moment, kinds in fullest(run.job).moments.items())


def runs() -> list[Run]:
    """All of them, in the order of the file."""
    found = json.loads(FILE.read_text())
    shapes = {
        name: shape(dict(zip(found["shape_columns"], sizes, strict=True))) for name, sizes in found["shapes"].items()
    }
    out = []
    for row in found["rows"]:
        width = len(found["columns"])
        values = dict(zip(found["columns"], row[:width], strict=True)) | (row[width] if len(row) > width else {})
        values["adapters"] = found["series"][values["series"]]["adapters"] | values.get("adapters", {})
        out.append(Run(values, shapes[values["model"]], job(values, shapes[values["model"]])))
    return out


def memory_alone() -> list[Run]:
    """The runs of lit-gpt, whose seconds are not those of a step: tests/published/fine_tuning_memory.json."""
    found = json.loads(MEMORY.read_text())
    out = []
    for row in found["rows"]:
        if row["source"] != "lit-gpt tables":
            continue
        model, how = Shape.from_config(found["models"][row["model"]]), Recipe(**row["recipe"])
        device, alone = DEVICES["a100-40gb"], cluster(1, 1)
        values = {
            "series": "lit-gpt", "model": row["model"].lower(), "device": "a100-40gb", "gpus": 1, "seq": row["seq"],
            "batch": row["batch"], "method": how.adapter, "kernels": "plain", "loss": how.loss,
            "checkpointing": how.checkpointing, "precision": how.precision, "program": "eager", "zero": 0,
            "optimizer": how.optimizer, "seconds": None, "gib": round(row["bytes"] / GIB, 3), "memory": "allocated",
        }  # fmt: skip
        job = Job(model, row["seq"], device, alone, row["batch"], Layout(), how, PROGRAMS["eager"])
        out.append(Run(values, model, job))
    return out


def shape(sizes: dict) -> Shape:
    """The model of a row, by the config.json that its sizes stand for."""
    family = sizes["family"]
    if family == "nanogpt":
        config = {"model_type": "gpt2", "n_layer": sizes["layers"], "n_embd": sizes["hidden"],
                  "n_head": sizes["heads"], "vocab_size": sizes["vocab"]}  # fmt: skip
        return replace(Shape.from_config(config), bias=False)
    return Shape.from_config(
        {
            "model_type": family,
            "num_hidden_layers": sizes["layers"],
            "hidden_size": sizes["hidden"],
            "num_attention_heads": sizes["heads"],
            "num_key_value_heads": sizes["kv_heads"],
            "intermediate_size": sizes["ff"],
            "vocab_size": sizes["vocab"],
            "tie_word_embeddings": sizes["tied_head"],
            "max_position_embeddings": 32_768,
            "sliding_window": None,
        }
    )


def job(values: dict, model: Shape) -> Job:
    """The job of a row."""
    gpus, tp, pp = values["gpus"], values["tp"], values.get("pp", 1)
    sharded = values["zero"] == 3
    layout = Layout(
        dp=gpus // (tp * pp),
        tp=tp,
        pp=pp,
        chunks=values.get("chunks", 1),
        schedule="interleaved" if pp > 1 else "1f1b",
        zero=values["zero"],
        sequence_parallel=tp > 1,
        micro_batches=values["micro_batches"],
        gather_again=values["program"] == "megatron",
    )
    each = min(gpus, 8)
    return Job(
        model,
        values["seq"],
        DEVICES[values["device"]],
        cluster(gpus // each, each, link(values), "ib-ndr"),
        values["batch"],
        layout,
        trained(program(values), layout, recipe(values)),
        program(values),
        Replicas(wrap="block") if sharded else Replicas(),
    )


def program(values: dict) -> Program:
    """What runs a row: Hugging Face's models with fused kernels where it says so, or its program as it is."""
    plain = PROGRAMS[values["program"]]
    return FUSED if plain.name == "huggingface" and values["kernels"].startswith("fused") else plain


def link(values: dict) -> str:
    """Between the GPUs of a node. Two 3090s and 4090s of these runs have none but PCIe."""
    return "pcie4" if values["device"].startswith("rtx") else DEVICES[values["device"]].link


def recipe(values: dict) -> Recipe:
    """How a row trains. `adapters` of its series are among the values."""
    adapter, adapters = {"full": "none"}.get(values["method"], values["method"]), values["adapters"]
    torchtune, offload = values["series"] == "torchtune", values.get("offload")
    theirs = values["program"] in ("huggingface", "eager")  # torchtune's eager modules are several kernels too
    return Recipe(
        values["precision"],
        optimizer=values["optimizer"],
        foreach=not torchtune,
        fused_update=torchtune and values["optimizer"] == "adamw",
        paged=offload == "paged optimizer",
        checkpointing=values["checkpointing"],
        activation_offload=offload == "activations",
        compiled=values["program"] == "compiled",
        gradients="released" if values.get("backward_update") else "fresh",
        adapter=adapter,
        adapter_rank=values["rank"] or 16,
        adapter_targets=(values["targets"] or "all").replace(" o", " out").replace(" ", "+"),
        adapter_dropout=adapters["dropout"],
        adapter_dtype=adapters["dtype"],
        unquantized="fp32" if values["kernels"] == "kbit" else "compute",
        inputs_kept=adapters["inputs_kept"],
        main_gradients="instead" if values["precision"] == "bf16-master" and not theirs else "none",
        loss={"sliced": "chunked-logits"}.get(values["loss"], values["loss"]),
        operations="transformers" if theirs else "book",
    )
