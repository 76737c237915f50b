"""Does a fine-tuning fit on one GPU or one node, with which sequence length and micro-batch, and how long does it take?

`setting` has what the reader chose, the job and what else fits; `levers` the changes worth trying, `words` the texts,
`picture` the grid of what fits and the memory of each method, and `tables` what stands below.
"""

from __future__ import annotations

from scaleout.spec.models import MODELS
from scaleout.timing.price import EXAMPLE
from scaleout.views import more, number, select
from scaleout.views.base import kept
from scaleout.views.choices import LOSSES, NAMES, OF_LOSSES, cards, own_model
from scaleout.views.finetune import picture, tables, words
from scaleout.views.finetune.setting import (
    ANYWHERE,
    BATCHES,
    GPUS,
    LAYOUTS,
    METHODS,
    PASSES,
    PRECISIONS,
    RANKS,
    RUNS,
    SEQS,
    TARGETS,
    UNQUANTIZED,
    Setting,
)

SECTIONS = (("changes", "layouts", "run"), ("figures", "cards"))
# Controls that change the grid.
QUESTION = ("model", "config", "device", "gpus", "method", "program", "layout")
TITLE = "Does this fine-tuning fit on my GPUs?"
PRESETS = ("gpt2", "gpt2-xl", "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "llama-3-70b")

CONTROLS = (
    select("model", "Which model", "llama-3.1-8b", [(key, NAMES[key]) for key in (*MODELS, *PRESETS)]),
    own_model(),
    select("device", "Which GPU", "rtx-4090", cards()),
    select("gpus", "How many GPUs", 1, [(n, str(n)) for n in GPUS]),
    select("method", "What is trained", "qlora", list(METHODS.items())),
    *more(
        select("seq", "Tokens per sequence", 2048, [(n, f"{n:,}") for n in SEQS],
               help="A model with learned positions has a maximum."),
        select("batch", "Micro-batch: sequences on a GPU", 1, [(n, str(n)) for n in BATCHES]),
        select("checkpointing", "Activation checkpointing", "full", [("full", "every block"), ("none", "none")]),
        select("loss", "Loss", "eager", LOSSES, help=OF_LOSSES),
        select("optimizer", "Optimizer", "adamw", list(ANYWHERE.items())),
        select("rank", "Rank of LoRA and QLoRA", 16, [(n, str(n)) for n in RANKS]),
        select("targets", "Layers with adapters", "all", list(TARGETS.items())),
        select("unquantized", "What QLoRA does not quantize", "compute", list(UNQUANTIZED.items()),
               help="Embeddings, norms and head: prepare_model_for_kbit_training makes them fp32."),
        select("passes", "Micro-batches per step", 4, [(n, str(n)) for n in PASSES],
               help="Gradient accumulation."),
        select("layout", "Copies, shards or offload", "fsdp", list(LAYOUTS.items())),
        select("precision", "Weights of full fine-tuning", "bf16", list(PRECISIONS.items())),
        select("program", "Program", "huggingface", list(RUNS.items())),
        number("tokens", "Tokens to train on, all epochs", 10.0, 0.1, 100_000.0, 1.0, unit="M"),
        number("price", "Price per GPU-hour", EXAMPLE.gpu_hour, 0.0, 1000.0, 0.1, unit=EXAMPLE.currency,
               help="An example, not a provider's price: look up yours."),
    ),
)  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """The grid of what fits, the memory of each method, and the sentence."""
    setting = Setting.of(params)
    if setting.refusal:
        raise ValueError(setting.refusal)
    return {
        "svg": picture.picture(setting, width),
        "sentence": words.sentence(setting, 1e6 * params["tokens"]),
        "values": _values(setting) | {"run": _run(setting, params)},
        "levers": words.notes(setting, bool(params["config"])),
    }


def advice(params: dict) -> str:
    """The end of the sentence."""
    return words.advice(Setting.of(params))


def beneath(params: dict, name: str) -> dict:
    """One of SECTIONS."""
    setting = Setting.of(params)
    if name == "run":
        return tables.whole_run(setting, 1e6 * params["tokens"], params["price"])
    tell = {"changes": tables.changes, "layouts": tables.layouts, "figures": tables.figures, "cards": tables.cards}
    return tell[name](setting)


def _run(setting: Setting, params: dict) -> dict:
    cost = words.cost(setting, 1e6 * params["tokens"], params["price"])
    return {"hours": cost.hours, "gpu_hours": cost.gpu_hours, "price": cost.price}


@kept
def _values(setting: Setting) -> dict:
    """What is the same at both widths. longest: by micro-batch, the longest sequence of the grid that fits."""
    fitting = [cell for cell in setting.cells if cell.verdict == "fits"]
    return {
        "model": setting.name,
        "fits": setting.fits,
        "verdict": setting.verdict,
        "peak_gb": setting.peak / 1e9,
        "usable_gb": setting.usable / 1e9,
        "host_gb": sum(setting.account.host.values()) / 1e9,
        "host_fits": setting.host_fits,
        "moment": setting.account.peak_moment,
        "by_kind_gb": {kind: size / 1e9 for kind, size in setting.account.peak.items()},
        "by_method_gb": {method: one.peak / 1e9 for method, one in setting.methods.items()},
        "host_by_method_gb": {
            method: sum(one.account.host.values()) / 1e9 for method, one in setting.methods.items()
        },
        "seq": setting.tokens,
        "largest_batch": setting.largest,
        "longest": {str(batch): max((cell.seq for cell in fitting if cell.batch == batch), default=0)
                    for batch in BATCHES},
        "seconds": setting.step.seconds,
        "parts": setting.step.parts,
        "tokens_per_second": setting.rate,
        "mfu": setting.step.mfu,
        "band": setting.band.share,
    }  # fmt: skip
