"""The account beside Hugging Face's models: what a step of theirs allocates, and what the account predicts for it.

    python tools/hugging_face_memory.py tests/published/hugging_face_memory.json [part of a family's name]

writes the table that the chapter `memory` shows; with a part of a name it prints those rows only, with --experts before
the file they are of models with experts (hugging_face_experts.py). The weights are made
from a configuration, nothing is downloaded, and tensors are fake: sizes without contents, on a CPU. Where a GPU does
otherwise, what it does is imitated: autocast makes powers and probabilities in fp32 on CUDA, and autograd adds in place
while no mode looks on. flash-attn does not run on fake tensors. transformers is not among the book's packages: install
it with `pip install transformers`, in an environment of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from scaleout.measure.ledger import Ledger
from scaleout.measure.memory import fake_tensors
from scaleout.memory.accounts import Recipe, account
from scaleout.spec.transformer import Shape

# Small models with fewer key-value heads than heads where the family has that, all without dropout.
SMALL = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8,
         "num_key_value_heads": 2, "vocab_size": 8000, "max_position_embeddings": 2048}  # fmt: skip
LARGER = SMALL | {"num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16,
                  "num_key_value_heads": 4, "vocab_size": 32_000}  # fmt: skip
WIDE = SMALL | {"num_key_value_heads": 8}
GPT = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 8000,
       "max_position_embeddings": 2048, "attention_dropout": 0.0, "hidden_dropout": 0.0}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama": {"model_type": "llama", **SMALL},
    "Llama, 32,000 words": {"model_type": "llama", **LARGER},
    "Qwen 3, 32,000 words": {"model_type": "qwen3", **LARGER, "head_dim": 64},
    "Mistral, a window": {"model_type": "mistral", **SMALL, "sliding_window": 256},
    "SmolLM": {"model_type": "llama", **SMALL, "tie_word_embeddings": True},
    "SmolLM 3": {"model_type": "smollm3", **SMALL, "pad_token_id": 0},
    "Granite": {"model_type": "granite", **SMALL},
    "Qwen 2.5": {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
    "Qwen 3": {"model_type": "qwen3", **SMALL, "head_dim": 64},
    "Gemma": {"model_type": "gemma", **SMALL, "head_dim": 64},
    "Gemma 2": {"model_type": "gemma2", **SMALL, "head_dim": 64, "sliding_window": 256},
    "Gemma 3": {"model_type": "gemma3_text", **SMALL, "head_dim": 64, "sliding_window": 256, "num_hidden_layers": 7},
    "Phi 3": {"model_type": "phi3", **WIDE, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "pad_token_id": 0},
    "Phi 4": {"model_type": "phi3", **SMALL, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "pad_token_id": 0},
    "GPT-2": {"model_type": "gpt2", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "n_layer": 4,
              "n_embd": 512, "n_head": 8, "n_positions": 1024, "vocab_size": 8000},
    "GPT-2, 50,257 words": {"model_type": "gpt2", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
                            "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50_257},
    "GPT-NeoX": {"model_type": "gpt_neox", **GPT, "intermediate_size": 2048},
    "OPT": {"model_type": "opt", "num_hidden_layers": 4, "hidden_size": 512, "ffn_dim": 2048, "num_attention_heads": 8,
            "vocab_size": 8000, "max_position_embeddings": 2048, "word_embed_proj_dim": 512, "dropout": 0.0,
            "attention_dropout": 0.0},
    "Falcon": {"model_type": "falcon", **GPT},
    "Falcon, new": {"model_type": "falcon", **GPT, "new_decoder_architecture": True, "num_kv_heads": 2},
    "OLMo 2": {"model_type": "olmo2", **SMALL},
    "GLM": {"model_type": "glm", **SMALL, "head_dim": 64, "pad_token_id": 0},
    "GLM 4": {"model_type": "glm4", **SMALL, "head_dim": 64, "pad_token_id": 0},
}  # fmt: skip
BATCH, SEQ = 4, 1024
NO_SDPA = ("gemma2", "gpt_oss")  # its kernels know no caps and no sinks
PRECISIONS, ATTENTION, CHECKPOINTING = ("fp32", "autocast-bf16", "bf16"), ("sdpa", "naive"), ("none", "full")
THEIRS = {"sdpa": "sdpa", "naive": "eager"}  # what they call the kernels


@contextlib.contextmanager
def cuda_autocast():
    """Autocast on a CPU, with what CUDA's makes in fp32 and a CPU's in bf16 (aten/src/ATen/autocast_mode.h,
    AT_FORALL_FP32), of what these models call: powers, and a softmax that is not asked for a dtype."""
    functional = torch.nn.functional

    def widened(function):
        def call(x, *args, **kwargs):
            wide = torch.is_autocast_enabled("cpu") and x.dtype is torch.bfloat16 and not kwargs.get("dtype")
            return function(x.float() if wide else x, *args, **kwargs)

        return call

    power = mock.patch.object(torch, "pow", widened(torch.pow))
    with power, mock.patch.object(functional, "softmax", widened(functional.softmax)):
        yield


class Seen(Ledger):
    """A ledger of what is allocated when no mode looks on: then autograd adds a gradient to the first in place, if that
    is no view and nothing else has it (torch/csrc/autograd/input_buffer.cpp). The sum is looked at when that is gone.
    """

    waits = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        summed = func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled() and self.moment != "optimizer"
        self.waits = summed and not args[0]._is_view() and getattr(args[1], "shape", None) == args[0].shape
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _mark(self, operation: str) -> None:
        if not self.waits:
            super()._mark(operation)


def model(config: dict, recipe: Recipe):
    """Hugging Face's model of that configuration.

    They look whether positions ascend, for a batch without a mask may have several texts in a row. Fake tensors have
    no values to look at, so that each step would make a mask, and with it copies of keys and values, that no real step
    makes: here nothing is in a row, as in a real step.
    """
    import transformers as hf
    from transformers import masking_utils

    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    settings = hf.AutoConfig.for_model(**config, use_cache=False)
    stored = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
    kernel = THEIRS[recipe.attention]
    return hf.AutoModelForCausalLM.from_config(settings, attn_implementation=kernel, dtype=stored)


def on_moments(ledger: Ledger, net: torch.nn.Module) -> None:
    """Moments hang on the gradients of the logits, of the last layer's output and of the first's input."""

    def when_gradient(tensor: torch.Tensor, moment: str) -> None:
        if ledger.moment == "forward":
            tensor.register_hook(lambda grad: ledger.enter(moment))

    layers = next(part for part in net.modules() if isinstance(part, torch.nn.ModuleList))
    layers[0].register_forward_pre_hook(lambda module, inputs: when_gradient(inputs[0], "embedding"))
    layers[-1].register_forward_hook(
        lambda module, inputs, output: when_gradient(output[0] if isinstance(output, tuple) else output, "block")
    )
    net.get_output_embeddings().register_forward_hook(lambda module, inputs, output: when_gradient(output, "head"))


def measured(config: dict, recipe: Recipe, batch: int = BATCH, seq: int = SEQ, timeline: bool = False) -> Ledger:
    """A ledger of a training step of theirs, not the first."""
    with fake_tensors():
        net = model(config, recipe).train()
        if recipe.checkpointing == "full":
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.zero_grad()
        tokens, labels = (torch.randint(net.config.vocab_size, (batch, seq)) for _ in range(2))
        half = torch.autocast("cpu", torch.bfloat16) if recipe.autocast else contextlib.nullcontext()
        ledger = Seen(timeline)
        for held in (tokens, labels):
            ledger.claim(held, "activations")
        for held in (*net.parameters(), *net.buffers()):
            ledger.claim(held, "weights")
        for state in optimizer.state.values():
            for value in state.values():
                ledger.claim(value, "optimizer")
        on_moments(ledger, net)
        with ledger, cuda_autocast():
            with half:
                loss = net(tokens, labels=labels).loss
            ledger.enter("loss")
            loss.backward()
            ledger.enter("optimizer")
            optimizer.step()
    return ledger


def totals(moments: dict[str, dict[str, int]]) -> dict[str, int]:
    return {moment: sum(kinds.values()) for moment, kinds in moments.items()}


def cases(part: str = ""):
    """(name, configuration, recipe) of each row."""
    for (name, config), precision, attention, how in itertools.product(
        CONFIGS.items(), PRECISIONS, ATTENTION, CHECKPOINTING
    ):
        if part.lower() in name.lower() and (attention != "sdpa" or config["model_type"] not in NO_SDPA):
            yield name, config, Recipe(precision, attention=attention, checkpointing=how)


def rows(part: str = "") -> list[dict]:
    """A row a case: peak bytes that are predicted of the book's operations and of theirs, and what is measured, by
    moment."""
    from dataclasses import replace

    out = []
    for name, config, recipe in cases(part):
        shape = Shape.from_config(config)
        seen = totals(measured(config, recipe).moments)
        book = {} if shape.features.experts else {"book": account(shape, BATCH, SEQ, recipe).peak_bytes}
        theirs = totals(account(shape, BATCH, SEQ, replace(recipe, operations="transformers")).moments)
        off = " ".join(f"{moment} {theirs[moment] / seen[moment] - 1:+.2%}" for moment in seen)
        most = max(seen.values())
        print(
            f"{name:20}{recipe.precision:14}{recipe.attention:6}{recipe.checkpointing:5}{most / 1e9:6.2f} GB"
            f"{max(theirs.values()) / most - 1:+9.3%}  {off}",
            flush=True,
        )
        row = {"model": name, "precision": recipe.precision, "attention": recipe.attention}
        row |= {"checkpointing": recipe.checkpointing, **book, "predicted": theirs, "measured": seen}
        out.append(row)
    return out


def main() -> int:
    try:
        import transformers
    except ModuleNotFoundError:
        print("transformers is not installed: pip install transformers, in an environment of its own", file=sys.stderr)
        return 2
    if "--sharded" in sys.argv:
        from hugging_face_sharded import write

        write(CONFIGS, *sys.argv[2:])
        return 0
    arguments = sys.argv[1:]
    if "--experts" in arguments:
        import hugging_face_experts as experts

        arguments.remove("--experts")
        experts.allow_fp32()
        globals().update(CONFIGS=experts.CONFIGS, Seen=experts.SeenExperts)
    found = {
        "source": "measured by tools/hugging_face_memory.py: random weights, fake tensors, AdamW (foreach), no dropout",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "batch": BATCH,
        "seq": SEQ,
        "configs": CONFIGS,
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows(*arguments[1:]))
    if len(arguments) == 1:
        text = json.dumps(found, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n'
        Path(arguments[0]).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
