"""What Megatron-LM with Transformer Engine keeps otherwise than the book's blocks do.

Sources: Megatron-LM at 23e00ed (megatron/core), Transformer Engine 2.11 (transformer_engine/pytorch).

- SwiGLU is one kernel that saves its input, the gate and up projections side by side (fusions/fused_bias_swiglu.py);
  the book's saves SiLU's output beside them.
- Rotary positions are one kernel that saves the angles alone (apply_rope_fusion), and attention gives its output with
  tokens outermost, so that the projection needs no copy of it.
- A norm's backward is one kernel, without fp32 steps in memory.
- The matmul of a weight's gradient adds it to the fp32 main gradient (`gradient_accumulation_fusion`). Autograd still
  wants a tensor in 16 bits: Transformer Engine makes one for each shape of weights, never reads it, and keeps it for
  good (module/base.py, get_dummy_wgrad): `placeholders`. The head's, which is Megatron's own linear layer, is made anew
  in each backward (tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
- AdamW is one kernel over all tensors (optimizer/__init__.py, FusedAdam), without temporaries.
"""

from __future__ import annotations

from scaleout.memory.activations import Sizes


def placeholders(z: Sizes) -> int:
    """Bytes of the tensors that stand for weight gradients, one for each shape of a block's weights. Queries, keys and
    values are one matrix, and so are gate and up."""
    if not z.megatron or z.recipe.main_gradients != "instead":
        return 0
    sizes: dict[str, list[int]] = {}
    parts = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "up"}
    for name, (rows, columns) in z.matrices.items():
        side = sizes.setdefault(parts.get(name, name), [rows, 0])
        side[1] += columns
    return sum(z.e * rows * columns for rows, columns in set(map(tuple, sizes.values())))
