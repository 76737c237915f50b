"""The account beside Hugging Face's models: what a step of theirs allocates, and what the account predicts for it.

    python tools/hugging_face_memory.py tests/published/hugging_face_memory.json

writes the table that the chapter `memory` shows. The weights are made from a configuration, nothing is downloaded, and
tensors are fake: sizes without contents. transformers is not among the book's packages: install it with
`pip install transformers`, in an environment of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from scaleout.measure.ledger import Ledger
from scaleout.measure.memory import fake_tensors
from scaleout.memory.accounts import Recipe, account
from scaleout.spec.transformer import Shape

# Small models with fewer key-value heads than heads, and GPT-2 small, all without dropout.
SMALL = {"num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16,
         "num_key_value_heads": 4, "vocab_size": 32_000, "max_position_embeddings": 2048}  # fmt: skip
CONFIGS = {
    "LlamaForCausalLM": {"model_type": "llama", **SMALL},
    "Qwen3ForCausalLM": {"model_type": "qwen3", "head_dim": 64, **SMALL},
    "GPT2LMHeadModel": {"model_type": "gpt2", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "n_layer": 12,
                        "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50_257},
}  # fmt: skip
BATCH, SEQ = 4, 1024
PRECISIONS, ATTENTION, CHECKPOINTING = ("fp32", "autocast-bf16", "bf16"), ("sdpa", "naive"), ("none", "full")
THEIRS = {"sdpa": "sdpa", "naive": "eager"}  # what they call the kernels


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


def measured(config: dict, recipe: Recipe) -> int:
    """Peak bytes of a training step of theirs, not the first, by the book's ledger."""
    with fake_tensors():
        net = model(config, recipe).train()
        if recipe.checkpointing == "full":
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.zero_grad()
        tokens = torch.randint(net.config.vocab_size, (BATCH, SEQ))
        half = torch.autocast("cpu", torch.bfloat16) if recipe.autocast else contextlib.nullcontext()
        ledger = Ledger()
        for held in (tokens, *net.parameters(), *net.buffers()):
            ledger.claim(held, "weights")
        for state in optimizer.state.values():
            for value in state.values():
                ledger.claim(value, "optimizer")
        with ledger:
            with half:
                loss = net(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
    return max(sum(kinds.values()) for kinds in ledger.moments.values())


def rows() -> list[dict]:
    """A row a case: what is predicted of the book's operations, of theirs (null with eager attention, which is not
    priced so), and what is measured, in bytes."""
    out = []
    for (name, config), precision, attention, how in itertools.product(
        CONFIGS.items(), PRECISIONS, ATTENTION, CHECKPOINTING
    ):
        recipe, shape = Recipe(precision, attention=attention, checkpointing=how), Shape.from_config(config)
        seen, predicted = measured(config, recipe), account(shape, BATCH, SEQ, recipe).peak_bytes
        theirs = None
        if attention == "sdpa":
            theirs = account(shape, BATCH, SEQ, replace(recipe, operations="transformers")).peak_bytes
        print(
            f"{name:17}{precision:14}{attention:6}{how:5}{seen / 1e9:7.2f} GB{predicted / seen - 1:+8.2%}"
            + (f"{theirs / seen - 1:+9.3%}" if theirs else ""),
            flush=True,
        )
        row = {"model": name, "precision": precision, "attention": attention, "checkpointing": how}
        out.append(row | {"predicted": predicted, "transformers": theirs, "measured": seen})
    return out


def main() -> int:
    try:
        import transformers
    except ModuleNotFoundError:
        print("transformers is not installed: pip install transformers, in an environment of its own", file=sys.stderr)
        return 2
    found = {
        "source": "measured by tools/hugging_face_memory.py: random weights, fake tensors, AdamW (foreach), no dropout",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "batch": BATCH,
        "seq": SEQ,
        "configs": CONFIGS,
        "rows": rows(),
    }
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
