"""The linear layers of a block, and LoRA's beside frozen ones, as PEFT and bitsandbytes run them.

Each is a `forward` of peft 0.21 (tuners/lora/layer.py, `Linear`; tuners/lora/bnb.py, `Linear4bit`) or of bitsandbytes
0.50 (nn/modules.py, `Linear4bit`; autograd/_functions.py, `MatMul4Bit`), line by line.
"""

from __future__ import annotations

from functools import partial

from scaleout.memory.forward import PATHS
from scaleout.memory.graph import PASSED, Storage, Tensor
from scaleout.memory.operations import Operations


class Linears(Operations):
    """Matrices of a block, trained, or frozen with what is trained beside them."""

    def linear(self, x: Tensor, *names: str) -> Tensor:
        """A matrix product of a block, with one matrix or several beside each other."""
        z, paths = self.z, [PATHS[name] for name in names]
        for path in paths:
            self.tape.pre_forward(path)
            x = self.graph.hook(x, partial(self.tape.post_backward, path))
        rows, columns = z.matrices[names[0]][0], sum(z.matrices[name][1] for name in names)
        bias = z.shape.has_bias(names[0])
        if z.frozen:
            result = self.frozen(x, rows, columns, names, bias)
        else:
            result = self.matrix(x, self.graph.weight(rows * columns, self.width), columns, bias)
        for path in reversed(paths):
            self.tape.post_forward(path)
            result = self.graph.hook(result, partial(self.tape.pre_backward, path))
        return result

    def frozen(self, x: Tensor, rows: int, columns: int, names: tuple[str, ...], bias: bool) -> Tensor:
        """A frozen matrix, and what is trained beside it if it is one of the targets."""
        recipe = self.z.recipe
        quantized = recipe.adapter == "qlora"
        result = self.pretrained(x, rows, columns, bias)
        if not set(names) <= set(recipe.targets):
            return result
        if quantized:
            result = self.graph.apply([result], result.count, result.width, firsts=[PASSED])  # clone
        width = result.width
        if not (quantized and self.graph.half):
            x = self.to(x, recipe.adapter_bytes)
        result = self.add(result, self.scaled(self.low_rank(x, rows, columns)))
        return self.to(result, width)

    @property
    def trained_before_rotation(self) -> bool:
        """Whether queries or keys of the first layer have a gradient: an adapter makes a part of them."""
        targets, names = set(self.z.recipe.targets), {"q", "k", "v"}
        return not self.z.frozen or (names <= targets if self.modules.qkv else bool({"q", "k"} & targets))

    def pretrained(self, x: Tensor, rows: int, columns: int, bias: bool = False) -> Tensor:
        """The frozen matrix alone."""
        if self.z.recipe.adapter == "qlora":
            return self.four_bits(x, rows, columns)
        return self.matrix(x, self.graph.weight(rows * columns, self.width, False), columns, bias)

    def low_rank(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """lora_B(lora_A(dropout(x)))."""
        g, recipe = self.graph, self.z.recipe
        down = g.weight(recipe.adapter_rank * rows, recipe.adapter_bytes)
        up = g.weight(columns * recipe.adapter_rank, recipe.adapter_bytes)
        return self.matrix(self.matrix(self.dropout(x, recipe.adapter_dropout), down, recipe.adapter_rank), up, columns)

    def four_bits(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """Linear4bit: the input in the dtype of the matmuls, the weight dequantized for the time of the matmul, forward
        and backward, and the output in the dtype of the input."""
        z, g, width = self.z, self.graph, x.width
        x = self.to(x, z.e)
        unpacked = rows * columns * z.e
        weight = Storage(self.tape, "temporaries", unpacked)
        kept = [x] if z.recipe.inputs_kept and x.node else []
        result = g.apply([x], x.count // rows * columns, z.e, kept, firsts=[x.bytes], scratch=unpacked)
        del weight, x, kept
        return self.to(result, width)
