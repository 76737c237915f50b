"""What torch's own programs give to a group of four ranks, rank 0 of which is there: message by message."""

from collections import Counter

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from scaleout.collectives.zero import messages, muon_messages
from scaleout.measure.fsdp_memory import fake_world
from scaleout.memory.zero import dealt
from scaleout.parallel.transformer import Transformer
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, tensors, units
from scaleout.spec.transformer import Shape, total_parameters

SHAPE = Shape(2, 32, 4, 64, kv_heads=2, ff=96, gated_mlp=True, max_seq=16, tied_head=False)
N, RANKS, FP32 = total_parameters(SHAPE), 4, Recipe("fp32")
NAMES = {"broadcast_": "broadcast", "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter"}


class Sent(TorchDispatchMode):
    """Bytes and calls by collective; of each the whole message."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.calls = Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            name = NAMES[func._schema.name.partition("::")[2]]
            whole = args[1] if name == "reduce_scatter" else args[0]
            many = whole if isinstance(whole, (list, tuple)) else [whole]
            self.bytes[name] += sum(one.nbytes for one in many)
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def tokens():
    return torch.randint(0, SHAPE.vocab, (2, 16))


def test_zero_redundancy_optimizer():
    """Gradients are reduced whole in each pass, then every tensor goes out from the rank that it was dealt to."""
    reduced = []

    def hook(state, bucket):
        reduced.append(bucket.buffer().nbytes)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    with fake_world(RANKS):
        model = Transformer(SHAPE)
        wrapped = DistributedDataParallel(model)
        wrapped.register_comm_hook(None, hook)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)
        for _ in range(2):
            wrapped(tokens()).sum().backward()
        with Sent() as sent:
            optimizer.step()
        owners = [optimizer._param_to_rank[one] for one in model.parameters()]
    back, spread = messages(N, FP32, Layout(dp=RANKS, zero=1), "ZeroRedundancyOptimizer", passes=2)
    assert (back.collective, back.bytes) == ("all_reduce", sum(reduced)) and back.times == 2
    assert (spread.collective, spread.bytes) == ("broadcast", sent.bytes["broadcast"]) == ("broadcast", 4 * N)
    assert sent.calls["broadcast"] == len(tensors(SHAPE))
    sizes = [one.numel() for one in model.parameters()]
    assert owners == dealt(sizes, RANKS)
    held = sum(tensor.numel() for one in optimizer.optim.state.values() for tensor in one.values() if tensor.ndim)
    assert held == 2 * sum(size for size, owner in zip(sizes, owners, strict=True) if owner == 0)


@pytest.mark.parametrize("keep", [False, True])
def test_fully_shard(keep):
    """By reshard_after_forward; torch keeps the root by default, whose parameters are the `stay`."""
    with fake_world(RANKS):
        model = Transformer(SHAPE)
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=not keep)
        fully_shard(model, **({"reshard_after_forward": False} if keep else {}))
        with Sent() as sent:
            model(tokens()).sum().backward()
    root = next(unit.parameters for unit in units(SHAPE, Sharding(RANKS)) if not unit.name)
    found = messages(N, FP32, Layout(dp=RANKS, zero=3), "fully_shard", keep=keep, stay=None if keep else root)
    assert sent.bytes == Counter(
        {name: sum(one.bytes for one in found if one.collective == name) for name in ("all_gather", "reduce_scatter")}
    )


def test_dealt_out_whole():
    """Largest first, to whom has least: within the largest tensor of one another, and Muon needs no more messages."""
    sizes = [rows[0] * (rows[1] if len(rows) > 1 else 1) for rows in tensors(SHAPE).values()]
    for ranks in (1, 2, 3, 7):
        held = [
            sum(size for size, owner in zip(sizes, dealt(sizes, ranks), strict=True) if owner == rank)
            for rank in range(ranks)
        ]
        assert sum(held) == N and max(held) - min(held) <= max(sizes)
    assert muon_messages(SHAPE, FP32, Layout(dp=RANKS, zero=1), "whole") == ()
    with pytest.raises(ValueError, match="ranks must be a whole number"):
        dealt(sizes, 0)
