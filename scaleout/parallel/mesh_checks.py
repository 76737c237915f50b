"""What equal losses do not show of a mesh, asked of the ranks themselves: does each rank store only its part, do the
ranks of one replica read the same tokens, and do all copies of a parameter have the same gradient?

Each check is collective, and raises RuntimeError with one line that says where to look.
"""

from __future__ import annotations

import zlib

import torch
import torch.distributed as dist
from torch import Tensor

from scaleout.memory.mesh import rank_parameters
from scaleout.parallel.mesh import Mesh
from scaleout.parallel.parity import FLOOR, TOLERANCE
from scaleout.parallel.pipeline_stage import tied_weights
from scaleout.parallel.tensor_model import dimension


def assert_parts(mesh: Mesh) -> None:
    """Every rank stores as many bytes of weights as its layout says (fp32). If an axis cuts nothing, it stores more."""
    wanted = 4 * rank_parameters(mesh.shape, mesh.layout, mesh.place["pp"])
    for rank, (stored, right) in enumerate(mesh.s.gathered((mesh.stored, wanted))):
        if stored != right:
            raise RuntimeError(
                f"rank {rank} holds {stored:,} bytes of weights, and its part is {right:,}: an axis "
                "that should cut them does not"
            )


def assert_same_tokens(mesh: Mesh, tokens: list[Tensor]) -> None:
    """The ranks of a replica (along tp and pp) read the same tokens, and other replicas read different ones."""
    mark = zlib.crc32(torch.cat([batch.flatten() for batch in tokens]).cpu().numpy().tobytes())
    read: dict[int, set[int]] = {}
    for dp, seen in mesh.s.gathered((mesh.place["dp"], mark)):
        read.setdefault(dp, set()).add(seen)
    for dp, marks in read.items():
        if len(marks) > 1:
            raise RuntimeError(
                f"the ranks of replica {dp} read {len(marks)} different batches: choose data by the dp "
                "coordinate, not by the rank"
            )
    if len(set.union(*read.values())) < len(read):
        raise RuntimeError("two replicas read the same batch: choose data by the dp coordinate")


def assert_copies_agree(mesh: Mesh) -> None:
    """After `Mesh.gradients`: all copies of a parameter have the same gradient, along each axis. Without ZeRO."""
    named = {name: p for part in mesh.parts.values() for name, p in part.named_parameters()}
    floor = FLOOR * max(p.grad.abs().max().item() for p in named.values())  # below, a gradient is rounding
    whole = {name: p for name, p in named.items() if dimension(name) is None}
    ends = dict(zip(("tokens.weight", "the other end"), tied_weights(mesh.parts), strict=False))
    for axis, group, copies in (
        ("dp", mesh.along["dp"].group, named),
        ("tp", mesh.along["tp"].group, whole),
        ("pp", mesh.pipe.tie.group, ends),
    ):
        off = {name: apart(p.grad, group, floor) for name, p in copies.items() if group is not None}
        worst, name = max(mesh.s.gathered(max(((value, name) for name, value in off.items()), default=(0.0, ""))))
        if worst > TOLERANCE:
            raise RuntimeError(
                f"ranks along {axis} have copies of {name} with different gradients, off by {worst:.0%}: "
                f"they were not reduced along {axis}"
            )


def apart(x: Tensor, group, floor: float) -> float:
    """Largest difference between the ranks' copies of a tensor, over its largest entry, or over `floor` if that is
    larger. Collective for the group."""
    extremes = torch.stack([x, -x])
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
    return (extremes.sum(0).max() / extremes.max().clamp_min(floor)).item()
