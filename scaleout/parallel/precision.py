"""One model trained in many precisions, behind one surface: by torch.amp, by a recipe for the weights, with linear
layers of few bits (`low`), by torchao and by Accelerate. Each says what it built."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from scaleout.numerics.blocks import BLOCKS
from scaleout.parallel import ddp, low
from scaleout.parallel.recipe import Training
from scaleout.parallel.step import Way
from scaleout.spec import checks
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape


@dataclass(frozen=True)
class Kind:
    """How a way computes. recipe: dtypes of weights, gradients and optimizer states (spec.recipe); cast: the dtype of
    matmuls under autocast; scaled: with a loss scale; blocks: of operands and of gradients, emulated; chance: updates
    are rounded stochastically, without an fp32 copy of the weights."""

    words: str
    recipe: str = "fp32"
    cast: str | None = None
    scaled: bool = False
    blocks: tuple[str, str] | None = None
    via: str = "torch"
    chance: bool = False


WAYS = {
    "fp32": Kind("fp32"),
    "bf16": Kind("bf16 matmuls", cast="bf16"),
    "fp16": Kind("fp16 matmuls, no loss scale", cast="fp16"),
    "fp16-scaled": Kind("fp16 matmuls, loss scale", cast="fp16", scaled=True),
    "bf16-weights": Kind("bf16 throughout", recipe="bf16"),
    "bf16-master": Kind("bf16, fp32 master copies", recipe="bf16-master"),
    "bf16-chance": Kind("bf16, stochastic rounding", recipe="bf16-master", chance=True),
    "fp8": Kind("FP8, one scale per tensor (emulated)", blocks=("fp8-tensor", "fp8-tensor-e5m2")),
    "mxfp8": Kind("MXFP8 (emulated)", blocks=("mxfp8", "mxfp8")),
    "nvfp4": Kind("NVFP4 (emulated)", blocks=("nvfp4", "nvfp4")),
    "torchao": Kind("FP8 by torchao", cast="bf16", via="torchao"),
    "accelerate-bf16": Kind("Accelerate, bf16", cast="bf16", via="accelerate"),
    "accelerate-fp16": Kind("Accelerate, fp16", cast="fp16", scaled=True, via="accelerate"),
}


def refused(s, name: str) -> str:
    """Why a way cannot run here, in one line; "" where it can. s: a lab.session.Session."""
    kind = checks.known("way", name, WAYS)
    if kind.via == "accelerate" and kind.cast == "fp16" and s.device.type == "cpu":
        return (
            "Accelerate accepts mixed_precision fp16 on a CPU and silently trains in fp32 without a scaler: use "
            "fp16-scaled, which is torch.amp's"
        )
    if kind.via == "torchao":
        try:
            import torchao.float8  # noqa: F401  (optional: pip install torchao)
        except ImportError:
            return "torchao is not installed: pip install torchao, or use fp8, which is emulated"
    return ""


def misfit(name: str, hidden: int, tokens: int) -> str:
    """Why a way's blocks do not fit, in one line; "" where they do. They lie along the dimension that matmuls sum "
    "over: the model's
    widths, and in a gradient of weights the tokens of a step."""
    size = max([BLOCKS[block].size or 1 for block in WAYS[name].blocks or ()], default=1)
    if hidden % size or tokens % size:
        return f"{name} has blocks of {size}: make --hidden, and --micro-batch times --seq, multiples of it"
    return ""


class PrecisionWay(Way):
    """A model in some precision. On several ranks each has its share of the batch, (tokens, targets), and gradients are
    averaged after the backward pass.

    scaler: keyword arguments of torch.amp.GradScaler. Raises ValueError for a way that cannot run here.
    """

    def __init__(
        self, s, shape: Shape, name: str, rate: float = 1e-3, seed: int = 0, scaler: dict | None = None
    ) -> None:
        lack = refused(s, name)
        if lack:
            raise ValueError(lack)
        self.s, self.name, self.kind, self.skipped = s, name, WAYS[name], False
        torch.manual_seed(seed)
        self.training = Training(shape, Recipe(precision=self.kind.recipe), s.device, rate)
        if self.kind.blocks:
            low.convert(self.model, *self.kind.blocks)
        self.accelerator, self.wrapped, self.optimizer = None, self.model, self.training.optimizer
        if self.kind.via == "accelerate":
            self._with_accelerate(scaler or {})
        elif self.kind.via == "torchao":
            self._with_torchao()
        self.scaler = (
            self.accelerator.scaler
            if self.accelerator
            else torch.amp.GradScaler(s.device.type, enabled=self.kind.scaled, **scaler or {})
        )
        self.assert_built()

    @property
    def model(self):
        """The model itself, without wrappers."""
        return self.training.model

    def compile(self) -> None:
        """Each block by torch.compile: without it torchao's casts are kernels of their own, and no faster."""
        for block in self.model.blocks:
            block.compile()

    def _with_accelerate(self, scaler: dict) -> None:
        from accelerate import Accelerator, GradScalerKwargs
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)  # one object for the whole process, of one dtype
        self.accelerator = Accelerator(
            cpu=self.s.device.type == "cpu",
            mixed_precision=self.kind.cast,
            kwargs_handlers=[GradScalerKwargs(**scaler)] if scaler else [],
        )
        self.wrapped, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    def _with_torchao(self) -> None:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(
            self.model,
            config=Float8LinearConfig(emulate=self.s.device.type == "cpu"),
            module_filter_fn=lambda layer, path: path.startswith("blocks.") and layer.in_features % 16 == 0,
        )

    # --- a step -----------------------------------------------------------------------------------------------

    def casting(self):
        """A context in which matmuls have this way's dtype. Accelerate has its own."""
        on = self.kind.cast and self.accelerator is None
        return torch.autocast(self.s.device.type, low.DTYPES[self.kind.cast]) if on else nullcontext()

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of a batch, () fp32."""
        with self.casting():
            return self.wrapped(tokens, targets)

    def backward(self, loss: Tensor) -> None:
        """Gradients of the scaled loss, of this rank; Accelerate averages them over ranks meanwhile."""
        if self.accelerator:
            self.accelerator.backward(loss)
        else:
            (self.scaler.scale(loss) if self.kind.scaled else loss).backward()

    def average(self) -> None:
        """The mean of the gradients over ranks."""
        if self.s.world > 1 and not self.accelerator:
            ddp.naive(self.model)

    def unscale(self) -> None:
        """Divide the gradients by the loss scale."""
        if self.accelerator:
            self.accelerator.unscale_gradients(self.optimizer)
        elif self.kind.scaled:
            self.scaler.unscale_(self.optimizer)

    def gradients(self, batch: tuple[Tensor, Tensor]) -> float:
        """Forward and backward of (tokens, targets); the gradients are unscaled. The mean loss of this rank."""
        loss = self.loss(*batch)
        self.backward(loss)
        self.average()
        self.unscale()
        return loss.item()

    def make_update(self) -> None:
        """Step the optimizer and clear the gradients; `skipped` where the scaler skipped the step."""
        before, self.skipped = self.scale, False
        if self.kind.chance:
            self._by_chance()
        elif self.kind.recipe == "bf16-master":
            self.training.step()
        elif self.kind.scaled and not self.accelerator:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.kind.scaled:
            self.skipped = self.scale < before
        self.training.clear()

    @torch.no_grad()
    def _by_chance(self) -> None:
        """The update in fp32, from the weights as they are in bf16; what is cut off is not saved."""
        for master, p in zip(self.training.masters, self.training.trained, strict=True):
            master.copy_(p)
            master.grad = p.grad.float()
        self.optimizer.step()
        for master, p in zip(self.training.masters, self.training.trained, strict=True):
            master.grad = None
            p.copy_(low.by_chance(master))

    @property
    def scale(self) -> float:
        """The loss scale of the next step; 1 without one."""
        return self.scaler.get_scale() if self.kind.scaled else 1.0

    # --- what is there ----------------------------------------------------------------------------------------

    @property
    def built(self) -> str:
        """What was built, in words."""
        kinds = sorted({str(p.dtype).removeprefix("torch.") for p in self.model.parameters()})
        linear = type(self.model.blocks[0].mlp.up).__name__
        scaler = f"loss scale {self.scale:,g}" if self.kind.scaled else "no loss scale"
        cast = f"matmuls in {self.kind.cast}" if self.kind.cast else "no autocast"
        return (
            f"{type(self.wrapped).__name__} by {self.kind.via}: weights {', '.join(kinds)}, {linear}, {cast}, {scaler}"
        )

    def assert_built(self) -> None:
        """RuntimeError where this is not the precision that was asked for: a loss would hardly show it."""
        wanted = torch.bfloat16 if self.kind.recipe.startswith("bf16") else torch.float32
        if {p.dtype for p in self.model.parameters()} != {wanted}:
            raise RuntimeError(f"asked for weights in {wanted}, and got {self.built}")
        by = self.accelerator
        if by and (
            not by.native_amp
            or by.mixed_precision != self.kind.cast
            or by.num_processes != self.s.world
            or bool(self.scaler) != self.kind.scaled
        ):
            raise RuntimeError(
                f"asked Accelerate for {self.kind.cast} on {self.s.world} rank(s), and got autocast "
                f"{by.native_amp}, {by.mixed_precision} on {by.num_processes}"
            )
        if self.kind.via == "torchao" and type(self.model.blocks[0].mlp.up).__name__ != "Float8Linear":
            raise RuntimeError(
                f"asked torchao for Float8Linear, and the blocks have {type(self.model.blocks[0].mlp.up).__name__}"
            )
