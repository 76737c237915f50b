"""LoRA's linear layers in the operations of `graph`, as PEFT and bitsandbytes run them.

Each function is a `forward` of peft 0.21 (tuners/lora/layer.py, `Linear`; tuners/lora/bnb.py, `Linear4bit`) or of
bitsandbytes 0.50 (nn/modules.py, `Linear4bit`; autograd/_functions.py, `MatMul4Bit`), line by line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scaleout.memory.graph import Storage, Tensor

if TYPE_CHECKING:
    from scaleout.memory.transformers import Model


def linear(model: Model, x: Tensor, rows: int, columns: int, names: tuple[str, ...], bias: bool) -> Tensor:
    """A frozen matrix of a block, and what is trained beside it if it is one of the targets."""
    recipe = model.z.recipe
    quantized = recipe.adapter == "qlora"
    result = base(model, x, rows, columns, bias)
    if not set(names) <= set(recipe.targets):
        return result
    if quantized:
        result = model.graph.apply([result], result.count, result.width, firsts=[0])  # clone
    width = result.width
    if not (quantized and model.graph.half):
        x = model.to(x, recipe.adapter_bytes)
    result = model.add(result, model.scaled(low_rank(model, x, rows, columns)))
    return model.to(result, width)


def base(model: Model, x: Tensor, rows: int, columns: int, bias: bool = False) -> Tensor:
    """The frozen matrix alone."""
    if model.z.recipe.adapter == "qlora":
        return four_bits(model, x, rows, columns)
    return model.matrix(x, model.graph.weight(rows * columns, model.width, False), columns, bias)


def low_rank(model: Model, x: Tensor, rows: int, columns: int) -> Tensor:
    """lora_B(lora_A(dropout(x)))."""
    g, recipe = model.graph, model.z.recipe
    down = g.weight(recipe.adapter_rank * rows, recipe.adapter_bytes)
    up = g.weight(columns * recipe.adapter_rank, recipe.adapter_bytes)
    return model.matrix(model.matrix(model.dropout(x, recipe.adapter_dropout), down, recipe.adapter_rank), up, columns)


def four_bits(model: Model, x: Tensor, rows: int, columns: int) -> Tensor:
    """Linear4bit: the input in the dtype of the matmuls, the weight dequantized for the time of the matmul, forward and
    backward, and the output in the dtype of the input."""
    z, g, width = model.z, model.graph, x.width
    x = model.to(x, z.e)
    unpacked = rows * columns * z.e
    weight = Storage(model.tape, "temporaries", unpacked)
    kept = [x] if z.recipe.inputs_kept and x.node else []
    result = g.apply([x], x.count // rows * columns, z.e, kept, firsts=[x.bytes], scratch=unpacked)
    del weight, x, kept
    return model.to(result, width)
