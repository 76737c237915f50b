"""The account beside fine-tuning with PEFT's adapters: what a step allocates, and what the account predicts for it.

    python tools/adapters_memory.py tests/published/adapters_memory.json

Models of transformers with PEFT's LoRA, on fake tensors, as in tools/hugging_face_memory.py. QLoRA's matrices are
bitsandbytes' Linear4bit: its own modules and autograd function, and for its matmul the path of many tokens, which
dequantizes the weight and calls torch's (bitsandbytes 0.50, backends/cuda/ops.py, `gemm_4bit`). It needs
`pip install transformers peft bitsandbytes accelerate`, in an environment of its own.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import torch
from hugging_face_memory import CONFIGS, THEIRS, Seen, cuda_autocast

from scaleout.measure.memory import fake_tensors
from scaleout.memory.accounts import Recipe, account
from scaleout.spec.transformer import Shape

BATCH, SEQ = 4, 1024
NAMES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj", "gate": "gate_proj", "up": "up_proj",
         "down": "down_proj"}  # fmt: skip
THEIR_OWN = Recipe("autocast-bf16", adapter="lora", operations="transformers")

# Each changes PEFT's usual: a model in 16 bits, adapters in fp32, autocast.
CHANGES = (
    {},
    {"checkpointing": "full"},
    {"adapter_rank": 64},
    {"adapter_targets": "q+v"},
    {"adapter_targets": "attention"},
    {"adapter_targets": "mlp"},
    {"adapter_dropout": 0.1},
    {"precision": "bf16"},
    {"precision": "bf16", "adapter_dtype": "fp32"},
    {"precision": "fp32"},
    {"adapter_targets": "q+v", "checkpointing": "full", "adapter_dropout": 0.1},
    {"attention": "naive"},
    {"attention": "naive", "checkpointing": "full"},
)


def cases() -> list[tuple[str, Recipe]]:
    """(model, recipe) of each row."""
    quantized = replace(THEIR_OWN, adapter="qlora")
    recipes = [replace(base, **change) for base in (THEIR_OWN, quantized) for change in CHANGES]
    recipes += [replace(quantized, unquantized="fp32", checkpointing=how) for how in ("none", "full")]
    recipes += [replace(quantized, double_quantization=False, adapter_rank=8)]
    other = [recipes[i] for i in (0, 1, 3, 6, 13, 14, 19)]
    found = [("Llama, 32,000 words", recipe) for recipe in recipes]
    found += [("Qwen 3, 32,000 words", recipe) for recipe in other]
    some = [recipes[i] for i in (0, 1, 13, 14)]
    found += [(name, recipe) for name in ("Qwen 2.5", "Phi 4") for recipe in some]
    return found + [("Gemma 2", replace(recipe, attention="naive")) for recipe in some]


def dequantized(ctx, a, b, out=None, bias=None, quant_state=None):
    """MatMul4Bit.forward of bitsandbytes 0.50 for more than 1,536 tokens."""
    from bitsandbytes.backends.default.ops import _gemm_4bit_default_impl

    state, ctx.is_empty, b = quant_state, False, b.view(-1, 1)
    scales = [state.absmax, state.blocksize, state.quant_type, bias]
    if state.nested:
        scales = [state.state2.absmax, *scales[1:], state.absmax, state.state2.code, state.offset]
    ctx.state, ctx.tensors = state, (None, b)
    ctx.dtype_A, ctx.dtype_B, ctx.dtype_bias = a.dtype, b.dtype, None if bias is None else bias.dtype
    return _gemm_4bit_default_impl(a, b, state.shape, *scales)


def quantized(weight: torch.Tensor, double: bool):
    """What quantize_4bit says of a weight: a scale for each 64 numbers, and one for each 256 scales."""
    from bitsandbytes.functional import QuantState

    scales, again = -(-weight.numel() // 64), None
    if double:
        again = QuantState(torch.zeros(-(-scales // 256)), code=torch.zeros(256), blocksize=256, dtype=torch.float32)
    return QuantState(
        torch.zeros(scales, dtype=torch.uint8 if double else torch.float32), weight.shape, torch.zeros(16), 64, "nf4",
        weight.dtype, torch.zeros(()) if double else None, again,
    )  # fmt: skip


def quantize(net: torch.nn.Module, recipe: Recipe) -> None:
    """The blocks' linear layers become bitsandbytes', as `load_in_4bit` makes them. Its parameters cannot hold fake
    tensors, so the packed weight is a parameter of torch's; `forward` is Linear4bit's."""
    import bitsandbytes as bnb
    from bitsandbytes.autograd import _functions

    class Four(bnb.nn.Linear4bit):
        def __init__(self, linear: torch.nn.Linear) -> None:
            torch.nn.Module.__init__(self)
            self.in_features, self.out_features = linear.in_features, linear.out_features
            self.bias, self.compute_dtype = linear.bias, linear.weight.dtype
            self.state = quantized(linear.weight, recipe.double_quantization)
            packed = torch.zeros(linear.weight.numel() // 2, 1, dtype=torch.uint8)
            self.weight = torch.nn.Parameter(packed, requires_grad=False)
            self.weight.compress_statistics, self.weight.quant_type = recipe.double_quantization, "nf4"

        def forward(self, x):
            return bnb.matmul_4bit(x.to(self.compute_dtype), self.weight, self.state, bias=self.bias).to(x.dtype)

    _functions.MatMul4Bit.forward = staticmethod(dequantized)
    for part in [part for block in net.model.layers for part in block.modules()]:
        for name, linear in list(part.named_children()):
            if isinstance(linear, torch.nn.Linear):
                setattr(part, name, Four(linear))
    net.is_loaded_in_4bit = True


def model(config: dict, recipe: Recipe):
    """The model with its adapters, as the Trainer has it."""
    import peft
    import transformers as hf
    from transformers import masking_utils

    # on a CPU dropout saves its mask in the dtype of the input, on a GPU as bytes, as this one does
    torch.nn.functional.dropout = lambda x, p=0.5, training=True, inplace=False: (
        torch.native_dropout(x, p, training)[0] if p and training else x
    )
    masking_utils.find_packed_sequence_indices = lambda position_ids: None  # see hugging_face_memory.model
    settings = hf.AutoConfig.for_model(**config, use_cache=False)
    stored = torch.float32 if recipe.precision == "fp32" else torch.bfloat16
    net = hf.AutoModelForCausalLM.from_config(settings, attn_implementation=THEIRS[recipe.attention], dtype=stored)
    if recipe.adapter == "qlora":
        quantize(net, recipe)
    if recipe.unquantized == "fp32":
        peft.prepare_model_for_kbit_training(net, use_gradient_checkpointing=False)
    if recipe.checkpointing == "full":
        net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    lora = peft.LoraConfig(
        r=recipe.adapter_rank,
        lora_dropout=recipe.adapter_dropout,
        target_modules="all-linear" if recipe.adapter_targets == "all" else [NAMES[name] for name in recipe.targets],
        task_type="CAUSAL_LM",
    )
    # PEFT moves adapters to the model's dtype, which fake weights do not take; then those in 16 bits to fp32
    with mock.patch.object(torch.nn.Module, "to", lambda self, *words, **named: self):
        net = peft.get_peft_model(net, lora, autocast_adapter_dtype=False).train()
    if recipe.adapter_bytes == 2:
        for part in net.modules():
            if hasattr(part, "lora_A"):
                for linear in (*part.lora_A.values(), *part.lora_B.values()):
                    linear.weight = torch.nn.Parameter(linear.weight.data.bfloat16())
    return net


def measured(config: dict, recipe: Recipe) -> int:
    """Peak bytes of a training step, not the first, by the book's ledger."""
    with fake_tensors():
        net = model(config, recipe)
        trained = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, foreach=True)
        for p in trained:
            p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.zero_grad()
        tokens, labels = (torch.randint(net.config.vocab_size, (BATCH, SEQ)) for _ in range(2))
        half = torch.autocast("cpu", torch.bfloat16) if recipe.autocast else contextlib.nullcontext()
        ledger = Seen()
        for held in (tokens, labels, *net.parameters(), *net.buffers(), *scales(net)):
            ledger.claim(held, "weights")
        for state in optimizer.state.values():
            for value in state.values():
                ledger.claim(value, "optimizer")
        # PEFT asks without a device, which means CUDA's autocast: on fake tensors of a CPU that is the CPU's
        enabled = torch.is_autocast_enabled
        asked = mock.patch.object(torch, "is_autocast_enabled", lambda device="cpu": enabled(device))
        with ledger, cuda_autocast(), asked:
            with half:
                loss = net(input_ids=tokens, labels=labels).loss
            ledger.enter("loss")
            loss.backward()
            ledger.enter("optimizer")
            optimizer.step()
    return max(sum(kinds.values()) for kinds in ledger.moments.values())


def scales(net: torch.nn.Module) -> list[torch.Tensor]:
    """What bitsandbytes stores beside the four bits of each matrix; its tables of 16 and 256 values left out."""
    states = [part.state for part in net.modules() if hasattr(part, "state")]
    return [state.absmax for state in states] + [state.state2.absmax for state in states if state.nested]


def rows() -> list[dict]:
    """A row a case: what is predicted of it and what is measured, in bytes."""
    out = []
    for name, recipe in cases():
        config = CONFIGS[name]
        seen = measured(config, recipe)
        predicted = account(Shape.from_config(config), BATCH, SEQ, recipe).peak_bytes
        changed = {k: v for k, v in asdict(recipe).items() if v != getattr(Recipe(), k)}
        print(f"{name:21}{seen / 1e9:6.3f} GB {predicted / seen - 1:+8.3%} {changed}", flush=True)
        out.append({"model": name, "recipe": changed, "predicted": predicted, "measured": seen})
    return out


def main() -> int:
    try:
        import bitsandbytes
        import peft
        import transformers
    except ModuleNotFoundError as error:
        packages = "transformers peft bitsandbytes accelerate"
        print(f"{error.name} is not installed: pip install {packages}, in an environment of its own", file=sys.stderr)
        return 2
    found = {
        "source": "measured by tools/adapters_memory.py: random weights, fake tensors, AdamW (foreach)",
        **{part.__name__: part.__version__ for part in (transformers, peft, bitsandbytes, torch)},
        "batch": BATCH,
        "seq": SEQ,
        "configs": {name: CONFIGS[name] for name in dict.fromkeys(name for name, _ in cases())},
        "rows": rows(),
    }
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
