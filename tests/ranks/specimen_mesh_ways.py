"""Layouts of eight ranks and of four by torch's own means: values, what was built, and what each axis sends."""

import logging
from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from scaleout.parallel import mesh_ways, parity, private
from scaleout.parallel.recipe import local_bytes
from scaleout.parallel.transformer import Transformer
from scaleout.spec import mesh
from scaleout.spec.layout import Layout
from scaleout.spec.transformer import Shape

GPT = Shape(4, 24, 4, 64, max_seq=12)
LLAMA = Shape(
    4,
    24,
    4,
    64,
    kv_heads=2,
    ff=56,
    gated_mlp=True,
    bias=False,
    norm="rmsnorm",
    positions="rotary",
    tied_head=False,
    max_seq=12,
)
SHAPES = {"gpt": GPT, "llama": LLAMA}
BATCH, SEQ = 16, 12
LAYOUTS = {
    8: {
        "2x2x2": Layout(dp=2, tp=2, pp=2, zero=3),
        "replicas": Layout(dp=2, tp=2, pp=2, micro_batches=4),
        "interleaved": Layout(dp=2, tp=2, pp=2, zero=3, micro_batches=4, chunks=2, schedule="interleaved"),
    },
    4: {
        "4x1x1": Layout(dp=4, zero=3),
        "2x2x1": Layout(dp=2, tp=2, zero=3, micro_batches=2),
        "1x2x2": Layout(tp=2, pp=2, micro_batches=4, schedule="gpipe"),
        "zero bubble": Layout(dp=2, pp=2, zero=2, micro_batches=4, chunks=2, schedule="zbv"),
    },
}
TIED = ("2x2x2", "interleaved", "zero bubble")  # of the tied model: two ends on two ranks, chunks, one rank
LOOKED = ("4x1x1", "2x2x1", "2x2x2", "replicas")  # whose messages are counted
ACCELERATE = {"accelerate": Layout(dp=4, zero=3)}  # with tp it asks for transformers
KINDS = {"_allgather_base_": "all_gather", "all_gather_into_tensor": "all_gather", "send": "send", "recv_": "recv",
         "reduce_scatter_tensor": "reduce_scatter", "_reduce_scatter_base_": "reduce_scatter", "all_reduce":
         "all_reduce", "allreduce_": "all_reduce"}  # fmt: skip


class ByAxis(private.TorchDispatchMode):
    """Counts messages by the axis of a mesh that they go along: `found` is {axis: {operation: calls}}. CommDebugMode
    names no groups, and loses count of modules in a second micro-batch."""

    def __init__(self, on):
        super().__init__()
        # by its ranks: DTensors share what they work out, and with it the groups of an earlier mesh that is equal
        self.axes = {
            tuple(dist.get_process_group_ranks(on.get_group(name))): name
            for name in on.mesh_dim_names
            if on[name].size() > 1
        }
        self.found = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # let it turn into operations on this rank's part
        kind = KINDS.get(func._overloadpacket.__name__)
        if func.namespace in ("c10d", "_c10d_functional") and kind:
            groups = [found for arg in args for found in [self.group(arg)] if found in self.axes]
            self.found.setdefault(self.axes[groups[0]] if groups else "others", Counter())[kind] += 1
        return func(*args, **(kwargs or {}))

    @staticmethod
    def group(arg):
        """The ranks of the process group that an argument is, or names; None for another argument."""
        try:
            found = private.process_group(arg) if isinstance(arg, str) else dist.ProcessGroup.unbox(arg)
            return tuple(dist.get_process_group_ranks(found))
        except (RuntimeError, TypeError, AttributeError):
            return None


def batches(way):
    """This replica's micro-batches, and all sequences as one batch."""
    text = torch.randint(64, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(1))
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    each = BATCH // way.layout.dp
    mine = slice(way.at["dp"] * each, (way.at["dp"] + 1) * each)
    return list(zip(tokens[mine].chunk(way.layout.m), targets[mine].chunk(way.layout.m), strict=True))


def alone(shape):
    """(loss, gradients) of one process."""
    text = torch.randint(64, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    return parity.loss_and_gradients(Transformer(shape), text[:, :-1].contiguous(), text[:, 1:].contiguous())


def case(s, shape, layout, wanted, on=None, look=False, **more):
    """Errors against one process, what was built, and where it is asked for what a step sends."""
    way = mesh_ways.TorchMesh(s, shape, layout, SEQ, ready_mesh=on, **more)
    loss = s.total(way.gradients(batches(way)).item()) / (layout.dp * layout.tp)
    found = way.whole(gradients=True)
    names = s.gathered(sorted(found))
    assert {name for each in names for name in each} == set(wanted[1]), "every parameter has a gradient on some rank"
    error = parity.worst(s, found, {name: wanted[1][name] for name in found})
    q = next(iter(next(iter(way.stages.values())).blocks.values())).attention.q.weight
    return {
        "loss": abs(loss / wanted[0] - 1),
        "gradients": error,
        "placements": str(q.placements),
        "axes": q.device_mesh.mesh_dim_names,
        "bytes": s.gathered(local_bytes(way.parameters())),
        "stages": s.gathered([*way.stages]),
        "built": way.built,
        "sent": sent(s, way) if look else None,
    }


def sent(s, way):
    """By rank: {axis: {collective: calls}} of a step, not the first."""
    with ByAxis(way.mesh) as seen:
        way.gradients(batches(way))
    return s.gathered({axis: dict(calls) for axis, calls in seen.found.items()})


def grids(s):
    """Where torch's meshes and Accelerate's put the ranks, beside the pure grid: {layout: [(theirs, ours)]}."""
    found = {}
    for name, layout in (LAYOUTS[s.world] | (ACCELERATE if s.world == 4 else {})).items():
        theirs = mesh_ways.accelerate_mesh(s, layout) if name in ACCELERATE else mesh_ways.device_mesh(s, layout)
        axes = {"dp_shard": "dp", "dp_replicate": "dp"}
        found[name] = [
            (
                dist.get_process_group_ranks(theirs.get_group(axis)),
                list(mesh.grid(layout).group(s.rank, axes.get(axis, axis))),
            )
            for axis in theirs.mesh_dim_names
            if axis != "shard"
        ]
    return s.gathered(found)


def refused(s, layout):
    """The message that Accelerate's mesh ends with."""
    try:
        mesh_ways.accelerate_mesh(s, layout)
    except ValueError as error:
        return str(error)
    return ""


def accelerator():
    """What Accelerate's own Accelerator says of a mesh on CPUs, by what it would do among replicas."""
    from accelerate import Accelerator  # a second: after all that is measured
    from accelerate.state import AcceleratorState
    from accelerate.utils import ParallelismConfig

    found = {}
    for degree in ("dp_shard_size", "dp_replicate_size"):
        try:
            Accelerator(cpu=True, parallelism_config=ParallelismConfig(**{degree: dist.get_world_size()}))
            found[degree] = ""
        except ValueError as error:
            found[degree] = str(error)
        AcceleratorState._reset_state(True)
    return found


def main(s):
    """All cases of as many ranks as there are."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # whole tensors, for a look
    wanted = {name: alone(shape) for name, shape in SHAPES.items()}
    layouts, out = LAYOUTS[s.world], {}
    cases = [("gpt" if name in TIED else "llama", name) for name in layouts]
    for form, name in cases + [("llama", "2x2x2")] * (s.world == 8):
        out[form, name] = case(s, SHAPES[form], layouts[name], wanted[form], look=form == "llama" and name in LOOKED)
    found = {"sent": {name: out["llama", name]["sent"] for name in LOOKED if name in layouts}}
    if s.world == 8:
        out["llama", "recomputed"] = case(s, LLAMA, layouts["2x2x2"], wanted["llama"], checkpointing="full")
        found["refused"] = [refused(s, Layout(tp=2, pp=4)), refused(s, Layout(tp=8))]
    else:
        out |= {
            ("llama", name): case(s, LLAMA, layout, wanted["llama"], mesh_ways.accelerate_mesh(s, layout))
            for name, layout in ACCELERATE.items()
        }
    return found | {"cases": out, "grids": grids(s)} | ({"accelerator": accelerator()} if s.world == 4 else {})
