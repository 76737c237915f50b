"""How a model is trained, as far as memory is concerned: dtypes by role, optimizer, kernels, recomputation."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.spec import checks

CHOICES = {
    "precision": ("fp32", "autocast-bf16", "bf16-master", "bf16"),
    "optimizer": ("sgd", "momentum", "adamw", "adamw-8bit", "lion", "lion-8bit", "adafactor", "muon"),
    "attention": ("sdpa", "naive", "flash"),
    "checkpointing": ("none", "selective", "full"),
    "gradients": ("fresh", "kept", "released"),
    "adapter": ("none", "lora", "qlora"),
    "adapter_dtype": ("weight", "fp32"),
    "unquantized": ("compute", "fp32"),
    "main_gradients": ("none", "instead", "beside"),
    "buckets": ("none", "beside", "views"),
    "loss": ("eager", "fused", "chunked", "chunked-logits"),
    "operations": ("book", "transformers", "liger", "lit-gpt", "megatron"),
}

# Matrices of a block that adapters stand beside, by what `adapter_targets` calls them. "all" is PEFT's "all-linear",
# which leaves out the head; its default for Llama is "q+v" (peft 0.21, utils/constants.py).
TARGETS = {
    "all": ("q", "k", "v", "out", "gate", "up", "down"),
    "attention": ("q", "k", "v", "out"),
    "mlp": ("gate", "up", "down"),
}
MATRICES = TARGETS["all"]
FLAGS = ("foreach", "fused_update", "paged", "activation_offload", "compiled", "double_quantization", "inputs_kept")

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
    optimizer: "sgd"; "momentum"; "adamw"; "adamw-8bit" and "lion-8bit" (bitsandbytes'); "lion" (bitsandbytes', with an
        fp32 state); "adafactor" (transformers', without momentum); "muon" (torch's, of the blocks' matrices, beside
        AdamW for the rest). foreach: step all tensors at once, or one after another. fused_update: AdamW in one
        kernel, without temporaries (fused=True). paged: bitsandbytes' states in memory that CUDA moves to the host when
        the GPU's runs out: the states of tensors of 100,000 numbers and more are counted there.
    attention: "sdpa" (torch's choice of a fused kernel), "naive", or "flash" (flash-attn, in 16 bits: its kernel knows
        windows, and caps of scores). dropout: probability. checkpointing: "none", "selective" (recompute the
        attention core), "full" (recompute each block). activation_offload: what is saved for the backward waits in the
        host's memory, and comes back when its block needs it (torchtune's enable_activation_offloading).
    compiled: by torch.compile, whose partitioner keeps what matmuls and attention read and make, and makes again what
        is quick to make: of the book's operations a gate's activation, casts and copies, and the loss's log-softmax.
    gradients: "fresh" (zero_grad sets them to None), "kept" (accumulation: there all the time), or "released" (each is
        used for its update as soon as it is there, and freed: torchtune's optimizer_in_bwd).
    buckets: DDP's, which have a place for every gradient and are there all the time: "beside" the gradients, a second
        set of them (torch's default), or the gradients are "views" of them (gradient_as_bucket_view=True); "none"
        without DDP.
    main_gradients: fp32 gradients that accumulate "instead" of the 16-bit ones or "beside" them, or "none"; for
        bf16-master only. With AdamW: 18, 20 and 16 bytes for each parameter.
    loss: cross-entropy by torch's own operations ("eager": three fp32 tensors as large as the logits at its fullest),
        by one kernel that reads and writes them in the dtype of the matmuls ("fused": the logits and their gradient,
        as flash-attn's CrossEntropyLoss), or with the head in it, a chunk of tokens at a time ("chunked": as
        torch.nn.functional.linear_cross_entropy and Liger's, which make the gradients in the forward).
    operations: whose modules the model has: the "book"'s, whose norms and activations save what one kernel needs; those
        of "megatron", Megatron-LM with Transformer Engine, whose kernels are fused (memory/megatron.py); or
        those of Hugging Face's "transformers", in which they are several operations (memory/transformers.py);
        the same with "liger"'s kernels (use_liger_kernel, with loss "chunked"); or "lit-gpt"'s, whose head is in 4 bits
        too under "qlora".
    adapter: "none", "lora" (arXiv 2106.09685) or "qlora" (arXiv 2305.14314), of adapter_rank and with adapter_dropout,
        beside adapter_targets: "all" matrices of the blocks, those of "attention" or of the "mlp", or names joined by
        "+" ("q+v"). adapter_dtype: of the adapters' weights, as `precision` stores weights ("weight") or "fp32" (PEFT's
        autocast_adapter_dtype beside a 16-bit model without autocast). The model's own weights are frozen and stored in
        the dtype of the matmuls. Under "qlora" the blocks' matrices are in NF4, with double_quantization or without,
        and the rest in "compute" or, after PEFT's prepare_model_for_kbit_training, in "fp32" (unquantized).
        inputs_kept: a 4-bit matmul saves its input, as in bitsandbytes before 0.43.2 (its pull request 1270).

    Raises ValueError, in one line, for a value that is none of these.
    """

    precision: str = "autocast-bf16"
    optimizer: str = "adamw"
    foreach: bool = True
    fused_update: bool = False
    paged: bool = False
    attention: str = "sdpa"
    dropout: float = 0.0
    checkpointing: str = "none"
    activation_offload: bool = False
    compiled: bool = False
    gradients: str = "fresh"
    adapter: str = "none"
    adapter_rank: int = 16
    adapter_targets: str = "all"
    adapter_dropout: float = 0.0
    adapter_dtype: str = "weight"
    unquantized: str = "compute"
    double_quantization: bool = True
    inputs_kept: bool = False
    main_gradients: str = "none"
    buckets: str = "none"
    loss: str = "eager"
    operations: str = "book"

    def __post_init__(self) -> None:
        for name, options in CHOICES.items():
            checks.one_of(name, getattr(self, name), options)
        for name in FLAGS:
            checks.flag(name, getattr(self, name))
        for name in ("dropout", "adapter_dropout"):
            share = getattr(self, name)
            if not checks.is_number(share) or not 0 <= share < 1:
                raise ValueError(f"{name} must be a number from 0 up to but not including 1, not {share!r}")
        checks.whole("adapter_rank", self.adapter_rank)
        self._check_parts()
        if self.attention == "flash" and self.precision == "fp32":
            raise ValueError("flash-attn computes in 16 bits: use attention sdpa with precision fp32")
        if self.main_gradients != "none" and self.precision != "bf16-master":
            raise ValueError(f"main_gradients need precision bf16-master, not {self.precision}")

    def _check_parts(self) -> None:
        """ValueError for targets that no block has, and for choices that need another."""
        for name in self.targets if isinstance(self.adapter_targets, str) else (self.adapter_targets,):
            if name not in MATRICES:
                raise ValueError(
                    f"adapter_targets must be {', '.join(TARGETS)} or of {'+'.join(MATRICES)}, not {checks.said(name)}"
                )
        eight_bit = self.optimizer.endswith("-8bit")
        for wrong, reason in (
            (
                self.paged and not (eight_bit or self.optimizer in ("adamw", "lion")),
                f"paged states are bitsandbytes': not with optimizer {self.optimizer}",
            ),
            (
                self.fused_update and self.optimizer != "adamw",
                f"fused_update is AdamW's: not with optimizer {self.optimizer}",
            ),
            (
                self.gradients == "released" and (self.main_gradients != "none" or self.buckets != "none"),
                "released gradients leave nothing to accumulate or to reduce: use main_gradients and buckets none",
            ),
        ):
            if wrong:
                raise ValueError(reason)

    @property
    def targets(self) -> tuple[str, ...]:
        """The matrices that adapters stand beside, of MATRICES; those that a block has not are left out later."""
        return TARGETS.get(self.adapter_targets) or tuple(self.adapter_targets.split("+"))

    @property
    def adapter_bytes(self) -> int:
        """Bytes of a number of the adapters' weights, and of their gradients."""
        return 4 if self.adapter_dtype == "fp32" else self.width("weight")

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
