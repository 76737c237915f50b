"""Models with experts beside the account: what `hugging_face_memory` needs to measure their steps.

    python tools/hugging_face_memory.py --experts tests/published/hugging_face_experts.json [part of a family's name]

No expert parallelism; the experts run as transformers runs them unless it is told otherwise, by grouped_mm, whose
tensors have the same sizes for every routing, so that fake tensors do.
"""

from __future__ import annotations

import torch
from hugging_face_memory import SMALL, Seen

ROUTED = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 352}
LOCAL = {"num_local_experts": 16, "num_experts_per_tok": 4}
CONFIGS = {
    "Mixtral": {"model_type": "mixtral", **SMALL, "num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen 2 MoE": {"model_type": "qwen2_moe", **SMALL, **ROUTED, "shared_expert_intermediate_size": 1408},
    "Qwen 3 MoE": {"model_type": "qwen3_moe", **SMALL, **ROUTED, "head_dim": 64, "norm_topk_prob": True},
    "Qwen 3 MoE, two dense layers": {"model_type": "qwen3_moe", **SMALL, **ROUTED, "head_dim": 64,
                                     "norm_topk_prob": True, "mlp_only_layers": [0, 2], "num_hidden_layers": 5},
    "gpt-oss": {"model_type": "gpt_oss", **SMALL, **LOCAL, "head_dim": 64, "sliding_window": 256},
}  # fmt: skip


class SeenExperts(Seen):
    """While a mode looks on, the derivatives of an index and of topk put gradients into a copy of the zeros that they
    have made; else they put them there (torch/csrc/autograd/FunctionsManual.cpp, `index_backward` and
    `value_selecting_reduction_backward_symint`). The copy is looked at when the zeros are gone."""

    def _mark(self, operation: str) -> None:
        copied = operation in ("aten.index_put.default", "aten.scatter.src")
        if not copied or self.moment in ("forward", "optimizer") or torch.is_grad_enabled():
            super()._mark(operation)


def allow_fp32() -> None:
    """torch's shapes of a grouped product know bf16 only, its kernels other dtypes too (torch/_meta_registrations.py,
    `_meta_grouped_mm_common`; aten/src/ATen/native/GroupedMMUtils.h)."""
    from torch import _meta_registrations

    def shapes(mat_a, mat_b, scale_a, scale_b, offs=None, **options):
        both = mat_a.dim() == mat_b.dim() == 2
        size = (len(offs), len(mat_a), mat_b.shape[-1]) if both else (len(mat_a), mat_b.shape[-1])
        return mat_a.new_empty(size, dtype=options.get("out_dtype"))

    _meta_registrations._meta_grouped_mm_common = shapes
