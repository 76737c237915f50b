"""Options that several views share: models and GPUs by name, a reader's own config.json, and links."""

from __future__ import annotations

import json
from functools import lru_cache

from scaleout.spec import config, hugging_face, models
from scaleout.spec.devices import DEVICES, GB
from scaleout.spec.program import PROGRAMS
from scaleout.spec.transformer import Shape, total_parameters
from scaleout.views.controls import Control, paste
from scaleout.words.amounts import quantity

NAMES = {
    "gpt2": "GPT-2 small", "gpt2-medium": "GPT-2 medium", "gpt2-large": "GPT-2 large", "gpt2-xl": "GPT-2 XL",
    "llama-2-7b": "Llama 2 7B", "llama-2-13b": "Llama 2 13B", "llama-2-70b": "Llama 2 70B",
    "llama-3-8b": "Llama 3 8B", "llama-3-70b": "Llama 3 70B", "llama-3-405b": "Llama 3.1 405B",
    "gpt-3-175b": "GPT-3 175B", "zero-1t": "1T (ZeRO paper)",
    **{key: model.name for key, model in models.MODELS.items()},
}  # fmt: skip

NODE = 8  # GPUs of a node

# GB that a GPU has at least where a view is of large models: those of the data centre, from the A100 on.
LARGE = 40

# Ways to make the loss (`spec.recipe`), and what is said of them beneath the control.
LOSSES = [("eager", "cross_entropy"), ("fused", "fused kernel"), ("chunked", "in chunks")]
OF_LOSSES = (
    "torch's cross_entropy holds three fp32 copies of the logits at its fullest; a fused kernel the logits and their "
    "gradient, in 16 bits; in chunks, together with the head, a few tokens' logits at a time."
)

# By name: (GPUs in a node at most, link between nodes, its adapters for each node, RDMA, words). Inside a node it is
# the GPU's own link.
LINKS = {
    "node-ib": (NODE, "ib-ndr", NODE, True, "nodes of 8, InfiniBand per GPU"),
    "node-100g": (NODE, "ethernet-100g", 1, False, "nodes of 8, Ethernet 100 Gbit/s each"),
    "ib": (1, "ib-ndr", 1, True, "single GPUs, InfiniBand 400 Gbit/s"),
    "ethernet-100g": (1, "ethernet-100g", 1, False, "single GPUs, Ethernet 100 Gbit/s"),
    "ethernet-10g": (1, "ethernet-10g", 1, False, "single GPUs, Ethernet 10 Gbit/s"),
}


def cards(least: float = 0) -> list[tuple[str, str]]:
    """GPUs of the datasheets that have `least` GB, as a select's options, under their names on the hardware page."""
    return [(key, device.name) for key, device in DEVICES.items() if device.memory_bytes >= least * GB]


def own_model() -> Control:
    """A box for the config.json of a model that no menu has."""
    help = "From the Hugging Face Hub: Llama, Qwen, Gemma, GPT and others. It stays on your machine."
    return paste("config", "Or paste its config.json", config.KEYS, _link, help=help)


def _link(text: str) -> str:
    """The part of a config.json that a link contains, once it is known to be a model."""
    hugging_face.shape(text)
    return json.dumps(config.read(text), separators=(",", ":"))


@lru_cache(maxsize=64)
def shape_of(model: str) -> Shape:
    """The shape of a model by name, or of a config.json."""
    return Shape.from_config(config.parsed(model)) if model.startswith("{") else models.shape(model)


def name_of(model: str) -> str:
    """The same model in words."""
    if not model.startswith("{"):
        return NAMES[model]
    size = total_parameters(shape_of(model))
    unit, letter = next(pair for pair in ((1e9, "B"), (1e6, "M"), (1e3, "K"), (1, "")) if size >= pair[0])
    return f"{config.read(model)['model_type']} of {quantity(size / unit)}{letter}"


def programs(*keys: str) -> list[tuple[str, str]]:
    """Programs that run a job, as a select's options."""
    return [(key, PROGRAMS[key].label) for key in keys]
