"""The account beside Hugging Face's models: what a step of theirs allocates, and what the book predicts for its shape.

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
from pathlib import Path

import torch

from scaleout.measure.ledger import Ledger
from scaleout.measure.memory import fake_tensors
from scaleout.memory.accounts import Recipe, account
from scaleout.spec.transformer import Shape

# GPT-2 small, and a small Llama with fewer key-value heads than heads.
LLAMA = Shape(
    8,
    1024,
    16,
    32_000,
    kv_heads=4,
    ff=2816,
    gated_mlp=True,
    bias=False,
    norm="rmsnorm",
    positions="rotary",
    max_seq=2048,
    tied_head=False,
)
GPT2 = Shape(12, 768, 12, 50_257)
MODELS = {"LlamaForCausalLM": LLAMA, "GPT2LMHeadModel": GPT2}
BATCH, SEQ = 4, 1024
PRECISIONS, ATTENTION, CHECKPOINTING = ("fp32", "autocast-bf16", "bf16"), ("sdpa", "naive"), ("none", "full")
THEIRS = {"sdpa": "sdpa", "naive": "eager"}  # what they call the kernels


def model(shape: Shape, recipe: Recipe):
    """Hugging Face's model of that shape, without dropout."""
    import transformers as hf

    if shape is GPT2:
        config = hf.GPT2Config(
            vocab_size=shape.vocab,
            n_positions=shape.max_seq,
            n_embd=shape.hidden,
            n_layer=shape.layers,
            n_head=shape.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
    else:
        config = hf.LlamaConfig(
            vocab_size=shape.vocab,
            hidden_size=shape.hidden,
            intermediate_size=shape.h_ff,
            use_cache=False,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv,
            max_position_embeddings=shape.max_seq,
            tie_word_embeddings=False,
        )
    stored = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
    kind = hf.GPT2LMHeadModel if shape is GPT2 else hf.LlamaForCausalLM
    return kind._from_config(config, attn_implementation=THEIRS[recipe.attention], dtype=stored)


def measured(shape: Shape, recipe: Recipe) -> int:
    """Peak bytes of a training step of theirs, not the first, by the book's ledger."""
    with fake_tensors():
        net = model(shape, recipe).train()
        if recipe.checkpointing == "full":
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.zero_grad()
        tokens = torch.randint(shape.vocab, (BATCH, SEQ))
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
    """A row a case: what is predicted and measured, in bytes."""
    out = []
    for (name, shape), precision, attention, how in itertools.product(
        MODELS.items(), PRECISIONS, ATTENTION, CHECKPOINTING
    ):
        recipe = Recipe(precision, attention=attention, checkpointing=how)
        predicted, seen = account(shape, BATCH, SEQ, recipe).peak_bytes, measured(shape, recipe)
        print(
            f"{name:17}{precision:14}{attention:6}{how:5}{predicted / 1e9:7.2f}{seen / 1e9:7.2f} GB"
            f"{predicted / seen - 1:+7.1%}"
        )
        out.append(
            {
                "model": name,
                "precision": precision,
                "attention": attention,
                "checkpointing": how,
                "predicted": predicted,
                "measured": seen,
            }
        )
    return out


def main() -> int:
    try:
        import transformers
    except ModuleNotFoundError:
        print("transformers is not installed: pip install transformers, in an environment of its own", file=sys.stderr)
        return 2
    sizes = {
        name: {
            "layers": one.layers,
            "hidden": one.hidden,
            "heads": one.heads,
            "kv_heads": one.kv,
            "ff": one.h_ff,
            "vocab": one.vocab,
        }
        for name, one in MODELS.items()
    }
    found = {
        "source": "measured by tools/hugging_face_memory.py: random weights, fake tensors, AdamW (foreach), no dropout",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "batch": BATCH,
        "seq": SEQ,
        "shapes": sizes,
        "rows": rows(),
    }
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
