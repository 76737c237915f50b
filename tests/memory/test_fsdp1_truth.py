"""FSDP 1 with frozen weights and re-entrant checkpoints: what each block leaves until the backward ends, in torch."""

import functools
import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import _or_policy, lambda_auto_wrap_policy, transformer_auto_wrap_policy
from torch.utils.checkpoint import checkpoint

BLOCKS, SHAPE = 6, (32, 64)


class Block(nn.Module):
    """A frozen matrix with an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(64, 64).requires_grad_(False), nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return x + torch.tanh(self.base(x) + self.adapter(x))


class Model(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks, self.reentrant = nn.ModuleList(Block() for _ in range(BLOCKS)), reentrant

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gradients_of_inputs() -> int:
    """Inputs of recomputed blocks that are there with their gradients."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.is_leaf]
    return sum(one.shape == SHAPE and one.grad is not None for one in tensors)


def left(wrap, reentrant: bool) -> int:
    """How many, when the backward is at its end."""
    seen, model = [], wrap(Model(reentrant))
    x = torch.randn(SHAPE, requires_grad=True) * 1
    x.register_hook(lambda gradient: seen.append(gradients_of_inputs()))
    model(x).sum().backward()
    return seen[0]


def trained(module) -> bool:
    return isinstance(module, nn.Linear) and module.weight.requires_grad


def fsdp1(model):
    """As PEFT wraps it (peft/utils/other.py, fsdp_auto_wrap_policy): adapters by themselves."""
    blocks = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    adapters = functools.partial(lambda_auto_wrap_policy, lambda_fn=trained)
    policy = functools.partial(_or_policy, policies=[adapters, blocks])
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))


def fsdp2(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


@pytest.mark.filterwarnings("ignore")
def test_every_block_leaves_the_gradient_of_its_input(alone):
    assert left(fsdp1, reentrant=True) == BLOCKS


@pytest.mark.filterwarnings("ignore")
def test_and_nothing_else_does(alone):
    for wrap, reentrant in ((fsdp1, False), (fsdp2, True), (fsdp2, False), (lambda model: model, True)):
        assert left(wrap, reentrant) <= 1, (wrap, reentrant)
