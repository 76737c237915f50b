"""How a model is trained, as far as memory is concerned: dtypes by role, optimizer, kernels, recomputation."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.spec import checks

CHOICES = {
    "precision": ("fp32", "autocast-bf16", "bf16-master", "bf16"),
    "optimizer": ("sgd", "momentum", "adamw", "adamw-8bit"),
    "attention": ("sdpa", "naive"),
    "checkpointing": ("none", "selective", "full"),
    "gradients": ("fresh", "kept"),
    "adapter": ("none", "lora", "qlora"),
    "main_gradients": ("none", "instead", "beside"),
    "buckets": ("none", "beside", "views"),
    "loss": ("eager", "fused", "chunked"),
    "operations": ("book", "transformers", "megatron"),
}

# Bytes for one number of each role: stored weight, fp32 master copy, stored gradient, what a matrix product reads
# and writes, the residual stream. Autocast leaves the stream in fp32 because the embedding and the norms are fp32.
_WIDTHS = {
    "fp32": {"weight": 4, "master": 0, "gradient": 4, "compute": 4, "stream": 4},
    "autocast-bf16": {"weight": 4, "master": 0, "gradient": 4, "compute": 2, "stream": 4},
    "bf16-master": {"weight": 2, "master": 4, "gradient": 2, "compute": 2, "stream": 2},
    "bf16": {"weight": 2, "master": 0, "gradient": 2, "compute": 2, "stream": 2},
}


@dataclass(frozen=True)
class Recipe:
    """The choices of a training run that change its memory.

    precision: "fp32"; "autocast-bf16" (fp32 weights, 16-bit matmuls); "bf16-master" (16-bit weights and
        gradients, an fp32 copy that the optimizer steps); "bf16" (16 bits throughout).
    optimizer: "sgd", "momentum", "adamw", "adamw-8bit". foreach: step all tensors at once, or one after another.
    attention: "sdpa" (fused) or "naive". dropout: probability. checkpointing: "none", "selective" (recompute the
        attention core), "full" (recompute each block).
    gradients: "fresh" (zero_grad sets them to None) or "kept" (accumulation: there all the time).
    buckets: DDP's, which have a place for every gradient and are there all the time: "beside" the gradients, a second
        set of them (torch's default), or the gradients are "views" of them (gradient_as_bucket_view=True); "none"
        without DDP.
    main_gradients: fp32 gradients that accumulate "instead" of the 16-bit ones or "beside" them, or "none"; for
        bf16-master only. With AdamW: 18, 20 and 16 bytes for each parameter.
    loss: cross-entropy by torch's own operations ("eager": three fp32 tensors as large as the logits at its fullest),
        by one kernel that reads and writes them in the dtype of the matmuls ("fused": the logits and their gradient,
        as flash-attn's CrossEntropyLoss), or with the head in it, a chunk of tokens at a time ("chunked": as
        torch.nn.functional.linear_cross_entropy and Liger's, which make the gradients in the forward).
    operations: whose modules the model has: the "book"'s, whose norms and activations save what one kernel needs, those
        of Hugging Face's "transformers", in which they are several operations (memory/transformers.py), or those of
        "megatron", Megatron-LM with Transformer Engine, whose kernels are fused (memory/megatron.py).
    adapter: "none", "lora" (arXiv 2106.09685) or "qlora" (arXiv 2305.14314) of adapter_rank on every linear layer.

    Raises ValueError, in one line, for a value that is none of these.
    """

    precision: str = "autocast-bf16"
    optimizer: str = "adamw"
    foreach: bool = True
    attention: str = "sdpa"
    dropout: float = 0.0
    checkpointing: str = "none"
    gradients: str = "fresh"
    adapter: str = "none"
    adapter_rank: int = 16
    main_gradients: str = "none"
    buckets: str = "none"
    loss: str = "eager"
    operations: str = "book"

    def __post_init__(self) -> None:
        for name, options in CHOICES.items():
            checks.one_of(name, getattr(self, name), options)
        checks.flag("foreach", self.foreach)
        if not checks.is_number(self.dropout) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a number from 0 up to but not including 1, not {self.dropout!r}")
        checks.whole("adapter_rank", self.adapter_rank)
        if self.main_gradients != "none" and self.precision != "bf16-master":
            raise ValueError(f"main_gradients need precision bf16-master, not {self.precision}")

    def width(self, role: str) -> int:
        """Bytes of one number in the role "weight", "master", "gradient", "compute" or "stream"."""
        return _WIDTHS[self.precision][role]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of stored gradient for one trained parameter."""
        width = self.width("gradient")
        return {"none": width, "instead": 4, "beside": width + 4}[self.main_gradients]

    @property
    def keeps_gradients(self) -> bool:
        """Gradients are there from step to step; main gradients are buffers, and so always, as are buckets."""
        return self.gradients == "kept" or self.main_gradients != "none" or self.buckets == "views"

    @property
    def autocast(self) -> bool:
        """Weights are cast to 16 bits on the fly."""
        return self.precision == "autocast-bf16"
