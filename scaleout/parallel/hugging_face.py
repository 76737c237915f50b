"""Models of Hugging Face's transformers, made from a config.json with random weights, as the labs train theirs.

transformers, peft and bitsandbytes are optional: they are imported when a model is made. Nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from scaleout.spec.config import opened
from scaleout.spec.families import FAMILIES
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape, check_timed

KERNELS = {"sdpa": "sdpa", "naive": "eager", "flash": "flash_attention_2"}  # what they call the kernels of attention
LAYERS = "num_hidden_layers"
DROPOUT = re.compile(r"\w*(dropout|pdrop|layerdrop)")


def installed(package: str = "transformers") -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def cut(config: Mapping[str, Any], layers: int | None) -> dict[str, Any]:
    """A config.json with its first `layers` layers, None for all. ValueError, in one line, where it has fewer."""
    values = dict(opened(config))
    shape = Shape.from_config(values)
    check_timed(shape)  # a language model is made, whatever head the file names
    there = shape.layers
    if layers is None:
        return values
    names = {shared: own for own, shared in FAMILIES[values["model_type"]].names.items()}
    if layers > there:
        raise ValueError(f"--layers {layers}: the config.json has {there}: use at most as many")
    kinds = values.get("layer_types")
    kinds = {"layer_types": kinds[:layers]} if isinstance(kinds, list) else {}
    key = names.get(LAYERS, LAYERS)
    return values | {key: layers} | kinds


class Model(nn.Module):
    """A causal language model of transformers, called as the book's Transformer is: tokens and targets (b, s) to their
    mean loss, () fp32. `blocks` and `head` are its own, under the names by which `shard` and the ledgers find them."""

    def __init__(self, net: nn.Module, shape: Shape) -> None:
        super().__init__()
        core = net.get_base_model() if hasattr(net, "get_base_model") else net
        lists = [part for part in core.modules() if isinstance(part, nn.ModuleList) and len(part) == shape.layers]
        self.blocks, self.head = lists[0], core.get_output_embeddings()  # before `net`: a module has its first name
        self.net, self.shape = net, shape

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Their loss shifts the labels itself, so that `targets` is not read."""
        return self.net(input_ids=tokens, labels=tokens).loss


def make(config: Mapping[str, Any], recipe: Recipe, device: torch.device | str = "cpu") -> Model:
    """Their model of a config.json in training, without dropout. ValueError, in one line, for what they do not do."""
    import transformers

    if recipe.checkpointing == "selective":
        raise ValueError("transformers recomputes whole blocks: use checkpointing none or full, not selective")
    settings = transformers.AutoConfig.for_model(**config | {"use_cache": False})
    for key in filter(DROPOUT.fullmatch, settings.to_dict()):
        setattr(settings, key, 0.0)
    if (settings.pad_token_id or 0) >= settings.vocab_size:  # the family's, of a larger vocabulary
        settings.pad_token_id = None
    stored = torch.bfloat16 if recipe.width("compute" if recipe.adapter != "none" else "weight") == 2 else torch.float32
    kernel = KERNELS[recipe.attention]
    with torch.device(device):
        net = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation=kernel, dtype=stored)
    if recipe.checkpointing == "full":
        # by its name since transformers 5.24, or before
        enable = getattr(net, "activation_checkpointing_enable", None) or net.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    if recipe.adapter != "none":
        net = adapted(net, recipe)
    return Model(net.train(), Shape.from_config(config))


def adapted(net: nn.Module, recipe: Recipe) -> nn.Module:
    """A model under PEFT's adapters, on every linear layer but the head; for QLoRA these hold NF4 with double
    quantization. ValueError, in one line, without the package that it needs."""
    for package in ("peft", *["bitsandbytes"] * (recipe.adapter == "qlora")):
        if not installed(package):
            raise ValueError(f"{recipe.adapter} needs the package {package}: pip install {package}")
    import peft

    if recipe.adapter == "qlora":
        from transformers import BitsAndBytesConfig
        from transformers.integrations import replace_with_bnb_linear

        quantized = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        weights = net.state_dict()
        net = replace_with_bnb_linear(net, modules_to_not_convert=["lm_head"], quantization_config=quantized)
        net.load_state_dict(weights, assign=True, strict=False)
        net.is_loaded_in_4bit = True
        net = peft.prepare_model_for_kbit_training(net, use_gradient_checkpointing=recipe.checkpointing == "full")
    kind = peft.LoraConfig(r=recipe.adapter_rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(net, kind)


@contextlib.contextmanager
def without_values():
    """For fake tensors, which have no values to look at: transformers looks whether positions ascend, because a batch
    without a mask may have several texts in a row. It would make a mask, and copies of keys and values with it, that no
    real step makes: inside, nothing is in a row, as in a real step."""
    from transformers import masking_utils

    looked = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = looked
