"""A `Recipe` in torch: the model, the optimizer and one training step. Used by the labs and by what measures them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from scaleout.parallel.transformer import Transformer
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape


class LowRank(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices (LoRA, arXiv 2106.09685)."""

    def __init__(self, frozen: nn.Linear, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.frozen = frozen
        make = {"dtype": dtype, "device": frozen.weight.device}
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features, **make) * frozen.in_features**-0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank, **make))  # zero: starts as the frozen model

    def forward(self, x: Tensor) -> Tensor:  # (..., inputs) -> (..., outputs)
        return self.frozen(x) + F.linear(F.linear(x, self.down), self.up)


def add_adapters(model: Transformer, rank: int, dtype: torch.dtype) -> None:
    """Freeze the model and put a LowRank, trained in `dtype`, in place of every linear layer of its blocks."""
    model.requires_grad_(False)
    for block in model.blocks:
        for part in (block.attention, block.mlp):
            for name, layer in list(part.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(part, name, LowRank(layer, rank, dtype))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype):
    """New floating-point tensors have this dtype."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def make_optimizer(parameters: list[nn.Parameter], recipe: Recipe, rate: float) -> torch.optim.Optimizer:
    """The recipe's optimizer. Raises ValueError for those of bitsandbytes, and for others that are not built here."""
    if recipe.optimizer == "adamw":
        kernel = {"fused": True} if recipe.fused_update else {"foreach": recipe.foreach}
        return torch.optim.AdamW(parameters, lr=rate, **kernel)
    if recipe.optimizer in ("sgd", "momentum"):
        momentum = 0.9 if recipe.optimizer == "momentum" else 0.0
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum, foreach=recipe.foreach)
    elsewhere = recipe.optimizer not in ("adafactor", "muon")
    where = "runs in bitsandbytes on a GPU, not here" if elsewhere else "is not built here"
    raise ValueError(f"{recipe.optimizer} {where}: use adamw, momentum or sgd")


def by_parts(
    parameters: Iterable[nn.Parameter], make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    """An optimizer, by `make`, of what this rank has of each DTensor: one that works element by element needs no more.

    Of DTensors on two axes torch searches all layouts for those in which an operation may be, for each shape and each
    operation of a step: 4 s of CPU on each of 8 ranks for momentum SGD on 22 parameters (torch 2.13).
    """
    parts = {p: nn.Parameter(p.to_local().detach()) if isinstance(p, DTensor) else p for p in parameters}
    optimizer = make(list(parts.values()))
    cut = [(p, part) for p, part in parts.items() if part is not p]

    def give(*_):
        for p, part in cut:
            part.grad = None if p.grad is None else p.grad.redistribute(placements=p.placements).to_local()
            p.grad = None

    optimizer.register_step_pre_hook(give)
    return optimizer


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors of the optimizer's state."""
    return [v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v)]


def local_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors; of a DTensor, of the part that this rank has."""
    return sum(t.to_local().nbytes if isinstance(t, DTensor) else t.nbytes for t in tensors)


def check_built(recipe: Recipe) -> None:
    """ValueError, in one line, for recipes that a `Training` cannot run."""
    for wrong, reason in (
        (recipe.adapter == "qlora", "qlora runs in bitsandbytes on a GPU, not here: use lora or none"),
        (recipe.buckets != "none", "buckets are DDP's: use none, and labs/memory.py to measure them"),
        (recipe.main_gradients != "none", "main_gradients run in Megatron, not here: use none"),
        (recipe.paged, "paged states are bitsandbytes' on a GPU: use paged False"),
        (recipe.gradients == "released", "gradients are not released here: use fresh or kept"),
        (recipe.activation_offload, "activations are not offloaded here: use activation_offload False"),
        (recipe.compiled, "blocks are not compiled here: use compiled False"),
        (
            (recipe.adapter_targets, recipe.adapter_dropout, recipe.adapter_dtype) != ("all", 0.0, "weight"),
            "the book's adapters stand beside all matrices, without dropout, in the dtype of the weights",
        ),
    ):
        if wrong:
            raise ValueError(reason)


class Training:
    """A model, its optimizer and how to make one step with them.

    `masters` holds the fp32 copies that the optimizer steps with bf16-master, and is empty otherwise.
    Raises ValueError for what torch alone cannot run, and for what is not built here: `check_built`.
    """

    def __init__(self, shape: Shape, recipe: Recipe, device: str = "cpu", rate: float = 1e-3) -> None:
        check_built(recipe)
        dtype = {2: torch.bfloat16, 4: torch.float32}
        lora = recipe.adapter == "lora"
        with torch.device(device), default_dtype(dtype[recipe.width("compute" if lora else "weight")]):
            model = Transformer(shape, recipe.attention, recipe.dropout, recipe.checkpointing)
        if lora:
            add_adapters(model, recipe.adapter_rank, dtype[recipe.width("weight")])
        self._begin(model, recipe, device, rate)

    @classmethod
    def of(cls, model: nn.Module, recipe: Recipe, device: str = "cpu", rate: float = 1e-3) -> Training:
        """The training of a model that is there: its parameters are already in the recipe's dtypes."""
        training = cls.__new__(cls)
        training._begin(model, recipe, device, rate)
        return training

    def _begin(self, model: nn.Module, recipe: Recipe, device: str, rate: float) -> None:
        self.model, self.recipe, self.device = model, recipe, torch.device(device)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.masters = []
        if recipe.precision == "bf16-master":
            self.masters = [nn.Parameter(p.detach().float()) for p in self.trained]
        self.optimizer = make_optimizer(self.masters or self.trained, recipe, rate)

    def loss(self, tokens: Tensor, targets: Tensor, model: nn.Module | None = None) -> Tensor:
        """Mean loss of a batch, () fp32. tokens, targets: (b, s). `model` may be a wrapper around self.model."""
        with contextlib.ExitStack() as stack:
            if self.recipe.autocast:
                stack.enter_context(torch.autocast(self.device.type, torch.bfloat16))
            return (model or self.model)(tokens, targets)

    def step(self) -> None:
        """Update the weights from their gradients; with master copies, through an fp32 copy of each gradient."""
        if not self.masters:
            self.optimizer.step()
            return
        with torch.no_grad():
            for master, p in zip(self.masters, self.trained, strict=True):
                master.grad = p.grad.float()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            for master, p in zip(self.masters, self.trained, strict=True):
                p.copy_(master)

    def clear(self) -> None:
        """Empty the gradients: gone with "fresh", zero with "kept"."""
        for p in self.trained:
            if p.grad is not None:
                if self.recipe.gradients == "fresh":
                    p.grad = None
                else:
                    p.grad.zero_()

    def warm_up(self) -> None:
        """Make the optimizer's state (and gradients that are kept) exist, by a step along zero gradients."""
        for p in self.trained:
            p.grad = torch.zeros_like(p)
        self.step()
        self.clear()
