"""What Accelerate builds when it is asked for FSDP on CPUs: one line a rank and way of asking.

torchrun --nproc-per-node 2 tests/ranks/specimen_fallback.py
"""

import json
import os

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from torch import nn

ASKED = {
    "cpu": lambda: {"cpu": True, "fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2)},
    "ddp": lambda: {"cpu": True},
}


def size(tensors):
    return sum(one.numel() * one.element_size() for one in tensors)


def built(asked):
    """Train a little and say what it was done with."""
    AcceleratorState._reset_state(reset_partial_state=True)  # else the first one's setting holds for all
    accelerator = Accelerator(**ASKED[asked]())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    model_bytes = size(model.parameters())
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    losses = []
    for step in range(4):
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + accelerator.process_index))
        loss = ((model(inputs) - inputs) ** 2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 4))
    moments = [one for state in optimizer.optimizer.state.values() for one in state.values() if one.dim()]
    print(
        "BUILT "
        + json.dumps(
            {
                "asked": asked,
                "rank": int(os.environ["RANK"]),
                "processes": accelerator.num_processes,
                "kind": accelerator.distributed_type.name,
                "wrapper": type(model).__name__,
                "model_bytes": model_bytes,
                "shard_bytes": size(model.parameters()),
                "moments": size(moments),
                "losses": losses,
            }
        ),
        flush=True,
    )


def main():
    for asked in ASKED:
        built(asked)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
