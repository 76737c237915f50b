"""Multi-head latent attention of transformers' modules (DeepseekV2Attention, DeepseekV3Attention)."""

from __future__ import annotations

from scaleout.memory.attention import Attention


class LatentAttention(Attention):
    """Attention whose keys and values are made from a few numbers per token."""
