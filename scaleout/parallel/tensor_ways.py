"""The implementations of tensor parallelism that the lab compares, behind one interface.
Each says what it built, and refuses to go on if that is not what was asked for.
"""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import nullcontext

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.profiler import record_function as phase

from scaleout.parallel import shard, tensor_model
from scaleout.parallel.recipe import local_bytes, make_optimizer
from scaleout.parallel.step import Way
from scaleout.parallel.tensor import Group
from scaleout.parallel.transformer import Transformer
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.slices import check_sequence, slice_linears
from scaleout.spec.transformer import Shape, norm_parameters

WAYS = ("one", "hand", "torch")
KINDS = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
}


def refuse(s, shape: Shape, seq: int, sequence: bool, via: str) -> None:
    """ValueError, in one line with the nearest that works, for what the ranks of a session cannot share this way."""
    tp = s.world
    tensor_model.refuse(shape, tp)
    if sequence:
        check_sequence(seq, tp)
    if via == "torch" and shape.kv % tp:
        raise ValueError(
            f"ColwiseParallel would cut {shape.kv} key-value heads into {tp} parts: use {shape.kv} "
            "processes or fewer, or --via hand, which copies heads"
        )
    if via == "accelerate":
        answer = accelerate_says(s)
        raise ValueError(
            "Accelerate cuts no matrix itself: it takes a model that transformers has cut (tp_plan), and "
            f"the book's is none; its ParallelismConfig(tp_size={tp}) says here: "
            f"{answer or 'nothing, and would train it whole on every rank'}. Use --via torch"
        )


class TensorWay(Way):
    """A model whose matrices are cut. Every rank is given the same batch, (tokens, targets).

    via: one of WAYS; "one" is a plain model, which every rank trains whole. sequence: sequence parallelism.
    """

    def __init__(
        self,
        s,
        shape: Shape,
        via: str,
        sequence: bool = False,
        rate: float = 1e-3,
        seed: int = 0,
        optimizer: str = "adamw",
        precision: str = "fp32",
    ) -> None:
        if via not in WAYS:
            raise ValueError(f"way {via!r} is unknown: use one of {', '.join(WAYS)}")
        self.s, self.shape, self.via, self.sequence, self.precision = s, shape, via, sequence, precision
        torch.manual_seed(seed)
        with s.device:
            model = Transformer(shape)
        if via == "hand":
            model = tensor_model.TensorTransformer(model, Group(), sequence)
        elif via == "torch":
            parallelize(model, shard.mesh(s, Sharding(s.world)), sequence)
        self.model = model
        recipe = Recipe(precision="fp32", optimizer=optimizer, foreach=False)  # which takes no mixture of DTensors
        self.optimizer = make_optimizer(list(model.parameters()), recipe, rate)
        self.assert_built()

    # --- a step -----------------------------------------------------------------------------------------------

    def context(self):
        """What forward and backward run in: with torch's way, the loss of logits that no rank has whole."""
        return loss_parallel() if self.via == "torch" else nullcontext()

    def forward(self, tokens, targets):
        """The mean loss of a batch, a tensor, the same on every rank."""
        with (
            phase("forward"),
            torch.autocast(self.s.device.type, torch.bfloat16, enabled=self.precision == "autocast-bf16"),
        ):
            return self.model(tokens, targets)

    def backward(self, loss) -> None:
        """The gradients of this rank's parts."""
        with phase("backward"):
            loss.backward()

    def sum_copies(self) -> None:
        """Add up the gradients of what several ranks have copies of, where each found a part only."""
        if self.via == "hand":
            self.model.sum_copies()
        elif self.via == "torch":  # torch leaves them as sums to be made, which an optimizer would make
            for p in self.model.parameters():
                if isinstance(p.grad, DTensor) and p.grad.placements != p.placements:
                    p.grad = p.grad.redistribute(placements=p.placements)

    def gradients(self, batch) -> float:
        """Forward and backward of (tokens, targets); the mean loss."""
        with self.context():
            loss = self.forward(*batch)
            self.backward(loss)
        self.sum_copies()
        return number(loss)

    # --- what is there ----------------------------------------------------------------------------------------

    def whole(self, gradients: bool = False) -> dict:
        """{name: full tensor}, copies, of the parameters or their gradients; of what several ranks have, this rank's
        own. Collective."""
        return self.model.whole(gradients) if self.via == "hand" else shard.whole(self.model, gradients)

    def counted(self, batch) -> dict[str, Counter]:
        """{"forward", "backward", "copies": {collective: calls}} of a step, as CommDebugMode sees them."""
        modes = {}
        with self.context(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")  # of its own hooks
            with CommDebugMode() as modes["forward"]:
                loss = self.forward(*batch)
            with CommDebugMode() as modes["backward"]:
                self.backward(loss)
            with CommDebugMode() as modes["copies"]:
                self.sum_copies()
        self.optimizer.zero_grad(set_to_none=True)
        return {name: _counts(seen.get_comm_counts()) for name, seen in modes.items()}

    def stored(self) -> int:
        """Bytes of this rank's parameters."""
        return local_bytes(self.model.parameters())

    @property
    def built(self) -> str:
        """What was built, in words."""
        q = self.model.blocks[0].attention.q
        rows = (q.weight.to_local() if isinstance(q.weight, DTensor) else q.weight).shape[0]
        kind = "DTensor" if isinstance(q.weight, DTensor) else type(q).__name__
        return (
            f"{type(self.model).__name__}, {rows} of {self.shape.heads * self.shape.d} query columns per rank "
            f"({kind}): {self.stored():,} of {4 * parameters(self.shape, 1):,} bytes of parameters here"
        )

    def assert_built(self) -> None:
        """RuntimeError where a rank does not hold its share. Equal losses would not show it."""
        tp = 1 if self.via == "one" else self.s.world
        wanted, stored = 4 * parameters(self.shape, tp), self.stored()
        if stored != wanted:
            raise RuntimeError(f"asked for {wanted:,} bytes of parameters a rank, and {self.via} built {stored:,}")
        if self.shape.tied_head and self.model.head.weight is not self.model.tokens.weight:
            raise RuntimeError("asked for a tied head, and the head got a weight of its own")


def parameters(shape: Shape, tp: int) -> int:
    """Parameters of one of tp ranks, with every vocabulary in equal parts."""
    matrices = slice_linears(shape, tp)
    block = sum(a * b + (b if shape.bias else 0) for a, b in matrices.values())
    table = shape.vocab * shape.hidden // tp
    positions = shape.max_seq * shape.hidden if shape.positions == "learned" else 0
    return (
        shape.layers * block
        + (2 * shape.layers + 1) * norm_parameters(shape)
        + positions
        + table * (1 if shape.tied_head else 2)
    )


def number(loss) -> float:
    """A loss as a float, whatever it is kept in."""
    return (loss.full_tensor() if isinstance(loss, DTensor) else loss).item()


def _counts(operations) -> Counter:
    calls = Counter()
    for kind, count in operations.items():
        calls[KINDS.get(str(kind).split(".")[-1], "others")] += count
    return calls


# --- parallelize_module ---------------------------------------------------------------------------------------------


def plan(shape: Shape, sequence: bool) -> dict[str, ParallelStyle]:
    """The plan of the book's Transformer for `parallelize_module`. With sequence parallelism the stream between the
    matrices is a DTensor: a plain tensor would be taken for this rank's tokens, without an error."""
    stream = Shard(1) if sequence else Replicate()
    rows = {"output_layouts": stream, "use_local_output": not sequence}
    styles = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), **rows),
        "head": ColwiseParallel(input_layouts=stream, use_local_output=False),
    }
    halves = {"attention": (("q", "k", "v"), "out"), "mlp": (("up", "gate") if shape.gated_mlp else ("up",), "down")}
    for half, (columns, last) in halves.items():
        styles[f"blocks.*.{half}"] = PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate())
        styles |= {f"blocks.*.{half}.{name}": ColwiseParallel() for name in columns}
        styles[f"blocks.*.{half}.{last}"] = RowwiseParallel(**rows)
    if sequence:
        styles |= {name: SequenceParallel() for name in ("blocks.*.norm1", "blocks.*.norm2", "norm")}
    return styles


def parallelize(model: Transformer, device_mesh: DeviceMesh, sequence: bool) -> None:
    """Cut the book's Transformer in place by torch's own styles."""
    cut(model, device_mesh, plan(model.shape, sequence))
    if model.shape.tied_head:  # each style made a parameter of its own
        model.head.weight = model.tokens.weight


def cut(module: torch.nn.Module, device_mesh: DeviceMesh, styles: dict[str, ParallelStyle]) -> None:
    """Cut what is there of a Transformer, a stage of a pipeline for one, by the styles of `plan`."""
    children = tuple(name for name, _ in module.named_children())
    parallelize_module(
        module, device_mesh, {name: style for name, style in styles.items() if name.split(".")[0] in children}
    )
    positions = getattr(module, "positions", None)
    if positions is not None and "norm" in styles:  # sequence parallel, and no style fits a table read by slices
        positions.weight = torch.nn.Parameter(distribute_tensor(positions.weight.detach(), device_mesh, [Replicate()]))


# --- Accelerate -----------------------------------------------------------------------------------------------------


def accelerate_says(s) -> str:
    """What Accelerate answers to ParallelismConfig(tp_size=...) here, in one line; "" where it accepts it.

    accelerate/accelerator.py (1.15) cuts no matrix: it looks for DTensors that `transformers` has made
    (from_pretrained with a tp_plan), and skips any other model with a warning.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import ParallelismConfig

    try:
        Accelerator(cpu=s.device.type == "cpu", parallelism_config=ParallelismConfig(tp_size=s.world))
    except (ImportError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)  # it is one object for the whole process
    return ""
