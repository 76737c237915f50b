"""What Accelerate builds when it is asked for DeepSpeed's stage 2 on CPUs: one line a rank.

torchrun --nproc-per-node 2 tests/ranks/specimen_plugin.py

It asks whether there is a package of that name, and looks no further: an empty one will do.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def build():
    """Train a step as the chapter warns, and say what it was done with."""
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import DistributedType

    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))
    model = nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.backward(model(torch.randn(8, 64)).sum())
    optimizer.step()
    momentum = sum(state["exp_avg"].nbytes for state in optimizer.optimizer.state.values())
    print(
        "BUILT "
        + json.dumps(
            {
                "as asked": accelerator.distributed_type == DistributedType.DEEPSPEED,
                "wrapper": type(model).__name__,
                "processes": accelerator.num_processes,
                "momentum": momentum,
            }
        ),
        flush=True,
    )


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (
            ("deepspeed/__init__.py", ""),
            ("deepspeed-0.19.8.dist-info/METADATA", "Name: deepspeed\nVersion: 0.19.8\n"),
        ):
            path = Path(folder) / name
            path.parent.mkdir()
            path.write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        build()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
