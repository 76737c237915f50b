"""A policy of recomputation put on the book's transformer: by hand, by torch.utils.checkpoint, or by a budget that
torch.compile is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from scaleout.memory.recompute import Policy
from scaleout.parallel import private, recompute
from scaleout.parallel.recompute import Names
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import Shape

VIAS = ("hand", "torch")


class Rebuilt(nn.Module):
    """Blocks that are made again together in their backward. keep: tiles of which the operation's output is kept, for
    a block by itself. random: draw the random numbers of the first run again."""

    def __init__(
        self, blocks: list[nn.Module], via: str, keep: frozenset[str], names: Callable[[], Names], random: bool = True
    ) -> None:
        super().__init__()
        self.blocks, self.via, self.keep, self.names, self.random = nn.ModuleList(blocks), via, keep, names, random

    def run(self, x: Tensor) -> Tensor:  # (b, s, h) -> (b, s, h)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        if self.via == "hand":
            if self.keep:
                return recompute.selective(self.run, x, self.names, self.keep)
            return recompute.checkpoint(self.run, x, self.random)
        options = {"context_fn": partial(contexts, self.names, self.keep)} if self.keep else {}
        return torch_checkpoint(self.run, x, use_reentrant=False, preserve_rng_state=self.random, **options)


def contexts(names: Callable[[], Names], keep: frozenset[str]):
    """torch's pair of contexts for a run and its repetition: the operations of the tiles in `keep` run once."""
    named = {False: names(), True: names()}

    def policy(ctx, func, *args, **kwargs):
        wanted = named[ctx.is_recompute](func, args) in keep
        return CheckpointPolicy.MUST_SAVE if wanted else CheckpointPolicy.MUST_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def looking(shape: Shape, attention: str, via: str):
    """A context that looks at every operation as a selective run does, and keeps none."""
    names = partial(Names, shape, attention)
    return recompute.Remember(names(), ()) if via == "hand" else contexts(names, frozenset())[0]


def apply(model: Transformer, policy: Policy, keepable: frozenset[str], via: str, random: bool = True) -> None:
    """Put a policy on the model's blocks, in place. keepable: all tiles whose operation can be told apart
    (memory.recompute.outputs). ValueError for a policy of other blocks, and a way that there is not."""
    if via not in VIAS:
        raise ValueError(f"via must be one of {', '.join(VIAS)}, not {via!r}")
    blocks = list(model.blocks)
    if len(policy.drops) != len(blocks):
        raise ValueError(f"the policy is of {len(policy.drops)} blocks, and the model has {len(blocks)}")
    names, wrapped = partial(Names, model.shape, _attention(model)), []
    for first in range(0, len(blocks), policy.segment):
        part, drops = blocks[first : first + policy.segment], policy.drops[first]
        wrapped += [Rebuilt(part, via, keepable - drops, names, random)] if drops else part
    model.blocks = nn.ModuleList(wrapped)


def _attention(model: Transformer) -> str:
    return "naive" if model.blocks[0].attention.core.__name__ == "naive_attention" else "sdpa"


def shard(model: Transformer) -> None:
    """`fully_shard` of each block and of the root, behind checkpointing or without: FSDP2 knows a second forward inside
    a backward, and leaves the weights whole until the backward is done with them."""
    for part in model.blocks:
        for block in part.blocks if isinstance(part, Rebuilt) else [part]:
            fully_shard(block)
    fully_shard(model)


# --- torch.compile --------------------------------------------------------------------------------------------------


def compiled(run: Callable, budget: float) -> Callable:
    """`run` compiled so that its graph keeps a share of what it would keep at most: `activation_memory_budget`, from 0
    (its inputs) to 1 (what torch's partitioner keeps by itself). Backend aot_eager_decomp_partition: the partitioner
    works, the kernels are eager's, and no C++ compiler is asked for. The budget is read at the first call."""
    torch.compiler.reset()
    compiled_run = torch.compile(lambda *args: run(*args), backend="aot_eager_decomp_partition", dynamic=False)

    def call(*args):
        with private.functorch_config.patch(activation_memory_budget=budget):
            return compiled_run(*args)

    return call
