"""Memory of a training step under FSDP: the bytes allocated on one rank, unit by unit, over time.

The step is walked on a tape whose modules are gathered and reduced (fsdp_tape.py), with the operations of a plain
step between (forward.py, backward.py, walk.py). Blocks are alike, so a few are walked and the middle one is repeated;
tests hold the result equal to walking them all, and within 2% of what torch allocates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from scaleout.memory.activations import Sizes
from scaleout.memory.backward import Backward
from scaleout.memory.forward import forward, passing_forward
from scaleout.memory.fsdp_blocks import BlockTape
from scaleout.memory.fsdp_stretch import fullest_moment, stretch
from scaleout.memory.fsdp_tape import Group, Moment, Widths
from scaleout.memory.loss import head, logits, loss
from scaleout.memory.optimizers import one_by_one, optimizer_width
from scaleout.memory.recompute import Policy
from scaleout.memory.recompute_walk import Blocks
from scaleout.memory.tape import Tape
from scaleout.memory.traces import Steps, layer_kinds, play
from scaleout.memory.walk import embedding, update
from scaleout.spec import checks
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, Unit, stand_in_units, tensors, units
from scaleout.spec.transformer import Shape


@dataclass(frozen=True)
class FsdpAccount:
    """Bytes of rank 0, whose shards are the largest. states: shards that stay on the device through the step,
    "weights", "gradients" (at its end) and "optimizer"; host: those in the host's memory, with offload on a GPU.

    walked: moments of the layers that were walked; block `middle` of them stands for `extra` more.
    """

    walked: tuple[Moment, ...]
    middle: int
    extra: int
    states: dict[str, int]
    host: dict[str, int]

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """Every moment of the step, in the order of time."""
        return self.sampled(1)

    def sampled(self, stride: int, fullest: bool = False) -> tuple[Moment, ...]:
        """Moments; of the blocks that are alike, those of each `stride`-th and of the last (with 0 of the first and the
        last, between which none is fuller), or only the fullest of each."""
        return tuple(stretch(self.walked, self.middle, self.extra, stride, fullest))

    @cached_property
    def ends(self) -> tuple[Moment, ...]:
        """The moments among which the fullest of each phase is."""
        return self.sampled(0)

    def most_bytes(self, kind: str) -> int:
        """The largest number of bytes of this kind at any moment."""
        return fullest_moment(self.walked, self.middle, self.extra, kind).held[kind]

    @cached_property
    def peak_moment(self) -> Moment:
        """The moment with the most bytes; it does not name the units that are gathered."""
        return fullest_moment(self.walked, self.middle, self.extra)

    @property
    def peak(self) -> dict[str, int]:
        """Bytes by kind at the peak."""
        return self.peak_moment.held

    @property
    def peak_bytes(self) -> int:
        return self.peak_moment.bytes


def fsdp_account(
    shape: Shape,
    batch: int,
    seq: int,
    recipe: Recipe,
    sharding: Sharding,
    device_kind: str = "cuda",
    policy: Policy | None = None,
) -> FsdpAccount:
    """The memory of rank 0 through a step on `batch` sequences of `seq` tokens (of one rank and pass).

    It is not the first step: the optimizer's state exists. device_kind: "cuda", or "cpu", where offloaded shards
    lie beside everything else and a gather's buffer is freed as soon as it is copied out. policy: what the blocks drop
    and recompute, beside checkpointing "none"; then every block is walked. Raises ValueError, in one line, for sizes
    that do not fit and for recipes that FSDP does not run: precision must be "fp32" or "bf16".
    """
    _check(recipe, sharding, device_kind)
    alike = policy is None and (recipe.operations in ("book", "megatron") or len(set(layer_kinds(shape, seq))) == 1)
    walked, margin, extra = _walked_shape(shape, sharding) if alike else (shape, 0, 0)
    return _walk(walked, batch, seq, recipe, sharding, device_kind == "cuda", margin, extra, policy)[0]


def _walked_shape(shape: Shape, sharding: Sharding) -> tuple[Shape, int, int]:
    """A shape of the layers that are walked, the number of the one that is repeated, and how often it is repeated."""
    block_units = sum(unit.name.startswith("blocks.") for unit in units(replace(shape, layers=1), sharding))
    margin = max(2, 1 + ceil(sharding.prefetch / block_units)) if block_units else 2
    layers = min(shape.layers, 2 * margin + 1)
    return replace(shape, layers=layers), margin, shape.layers - layers


def _check(recipe: Recipe, sharding: Sharding, device_kind: str) -> None:
    checks.instance("recipe", recipe, Recipe)
    checks.instance("sharding", sharding, Sharding)
    if device_kind not in ("cuda", "cpu"):
        raise ValueError(f"device_kind must be cuda or cpu, not {device_kind!r}")
    if recipe.precision not in ("fp32", "bf16"):
        raise ValueError(
            f"precision must be fp32 or bf16 beside a Sharding, not {recipe.precision}: "
            "FSDP casts by Sharding(parameter=...)"
        )
    if recipe.buckets != "none":
        raise ValueError(f"buckets are DDP's, FSDP has none: use buckets none, not {recipe.buckets}")
    if recipe.adapter != "none":
        raise ValueError(f"adapters are not priced under FSDP: use adapter none, not {recipe.adapter}")
    if recipe.optimizer in ("adafactor", "muon"):
        raise ValueError(f"{recipe.optimizer} is not priced under FSDP: use adamw or another that steps each number")
    if recipe.gradients == "released" or recipe.activation_offload:
        raise ValueError("released gradients and offloaded activations are not priced under FSDP")


def _walk(
    walked: Shape,
    batch: int,
    seq: int,
    recipe: Recipe,
    sharding: Sharding,
    on_cuda: bool,
    margin: int,
    extra: int,
    policy: Policy | None = None,
) -> tuple[FsdpAccount, dict[str, Group]]:
    """Walk the layers of `walked`, with the states of `extra` more."""
    parts, _ = stand_in_units(replace(walked, layers=walked.layers + extra), sharding, walked.layers, margin)
    widths = Widths.from_sharding(recipe.width("weight"), sharding)
    groups = _groups(parts, widths, sharding)
    for name, group in groups.items():
        if f"{name}.".startswith(f"blocks.{margin}."):
            group.times += extra
    state_sizes = _states(groups, recipe)
    z = Sizes(walked, batch, seq, replace(recipe, precision="bf16" if widths.parameter == 2 else "fp32"), Layout())
    host = dict.fromkeys(state_sizes, 0)
    if sharding.offload and on_cuda:
        state_sizes, host = host, state_sizes
    tape = BlockTape(groups, sharding, on_cuda, recipe.keeps_gradients)
    updates = update(z, state_sizes) if recipe.foreach else _one_by_one(walked, recipe, sharding, state_sizes)
    _step(z, tape, state_sizes, updates, None if policy is None else Blocks(z, policy))
    return FsdpAccount(tuple(tape.moments), margin, extra, state_sizes, host), groups


def _states(groups: dict[str, Group], recipe: Recipe) -> dict[str, int]:
    """Shards of rank 0: weights and gradients lie padded, in pieces that messages can be cut from; the optimizer's
    state has no padding."""
    padded = recipe.width("weight") * sum(group.times * group.shard for group in groups.values())
    elements = sum(group.times * group.unit.own(group.sharding.ranks) for group in groups.values())
    return {"weights": padded, "master": 0, "gradients": padded, "optimizer": ceil(elements * optimizer_width(recipe))}


def _one_by_one(walked: Shape, recipe: Recipe, sharding: Sharding, state_sizes: dict[str, int]) -> tuple[int, ...]:
    """Temporaries of AdamW without foreach, on the shards of rank 0, in bytes."""
    if recipe.optimizer != "adamw" or not state_sizes["optimizer"]:
        return (0,)
    sizes = [Unit("", (tensor,)).own(sharding.ranks) for tensor in tensors(walked).items()]
    return (min(recipe.width("weight") * one_by_one(sizes), state_sizes["optimizer"]),)


def _groups(parts: tuple[Unit, ...], widths: Widths, sharding: Sharding) -> dict[str, Group]:
    """Each unit, with those that it prefetches: the next ones in the forward, the ones before in the backward.
    The root stays gathered, and nobody prefetches it in the backward."""
    names = [unit.name for unit in parts]
    blocks, prefetch = [name for name in names if name], sharding.prefetch
    groups = {}
    for i, unit in enumerate(parts):
        earlier = blocks if unit.name == "" else blocks[: blocks.index(unit.name)]
        following = names[i + 1 : i + 1 + prefetch]
        groups[unit.name] = Group(unit, widths, sharding, 1, tuple(following), tuple(earlier[::-1][:prefetch]))
    return groups


class WholeGradients(Backward):
    """A backward whose finished gradients are whole until their unit is reduced."""

    def keep(self, n: int) -> None:
        self.tape.hold("whole gradients", n)


def _step(
    z: Sizes, tape: BlockTape, state_sizes: dict[str, int], updates: tuple[int, ...], blocks: Blocks | None
) -> None:
    backward = WholeGradients(z, tape)
    tape.hold("weights", state_sizes["weights"])
    tape.hold("optimizer", state_sizes["optimizer"])
    tape.hold("gradients", state_sizes["gradients"] if tape.accumulates else 0)
    tape.hold("activations", z.batch_bytes)
    steps = Steps(z) if z.transformers else None
    units_forward(z, tape, blocks, steps)
    if steps:
        _steps_backward(z, tape, steps, backward.keep)
    else:
        _backward(z, tape, backward, blocks)
    tape.finish()
    tape.drop("activations", z.batch_bytes)
    tape.enter("optimizer")
    tape.passing("temporaries", *updates)
    tape.close()


def _backward(z: Sizes, tape: BlockTape, backward: WholeGradients, blocks: Blocks | None) -> None:
    """The backward of the book's modules."""
    tape.enter("loss")
    tape.pre_backward("")  # the loss is what the root returns, so its hook runs first and gathers the last unit
    loss(z, tape)
    tape.enter("head")
    head(z, backward)
    block = None if blocks else tape.recorded(lambda recorder: WholeGradients(z, recorder).block())
    for i in reversed(range(z.shape.layers)):
        tape.inside = f"blocks.{i}"
        tape.begin("backward", tape.inside, "compute")
        tape.pre_backward("")
        if blocks:
            blocks.rebuild(tape, i, "blocks.{}")
        tape.replay(block) if block else backward.block()
        tape.post_backward("")
    tape.inside = ""
    embedding(z, backward)


def _steps_backward(z: Sizes, tape: BlockTape, steps: Steps, keep: Callable[[int], None]) -> None:
    """The backward of transformers' modules."""
    tape.enter("loss")
    tape.pre_backward("")
    play(steps["loss"], tape, keep)
    for i in reversed(range(z.shape.layers)):
        tape.inside = f"blocks.{i}"
        tape.begin("backward", tape.inside, "compute")
        tape.pre_backward("")
        play(steps.layer("backward", i), tape, keep)
        if shared := steps.after(i):
            play(shared, tape)
        tape.post_backward("")
    tape.inside = ""
    tape.enter("embedding")
    play(steps["finish"], tape, keep)


def units_forward(z: Sizes, tape: BlockTape, blocks: Blocks | None = None, steps: Steps | None = None) -> None:
    """The forward up to the logits. `z.x` bytes of residual stream are passed from part to part."""
    tape.pre_forward("")
    if steps:
        play(steps["begin"], tape)
    else:
        tape.pre_forward("tokens")
        tape.hold("activations", z.x, z.mask)
        tape.post_forward("tokens")
        if z.shape.positions == "learned":
            tape.passing("activations", z.x)
    alike = not (blocks or steps) and isinstance(tape, BlockTape)
    block = tape.recorded(lambda recorder: _block_forward(z, recorder)) if alike else None
    for i in range(z.shape.layers):
        tape.inside = f"blocks.{i}"
        tape.begin("forward", tape.inside, "compute")
        tape.pre_forward("")
        if steps:
            play(steps.layer("forward", i), tape)
        elif block:
            tape.replay(block)
        else:
            _block_forward(z, tape, blocks, i)
        tape.post_forward("")
    tape.inside = ""
    tape.begin("forward", "", "compute")
    if steps:
        play(steps["end"], tape)
    else:
        tape.drop("activations", z.x)
        logits(z, tape)
    tape.post_forward("")


def _block_forward(z: Sizes, tape: Tape, blocks: Blocks | None = None, i: int = 0) -> None:
    """The forward of block `i` of the book's modules, up to its sum with the residual stream."""
    if blocks:
        tape.drop("activations", z.x)
        blocks.forward(tape, i)
    elif z.recipe.checkpointing == "full":
        passing_forward(z, tape)
    else:
        tape.drop("activations", z.x)  # which the first norm keeps
        forward(z, tape, z.recipe.checkpointing)
    tape.hold("activations", z.y, z.x)  # the last product's output, and its sum with the stream
    tape.drop("activations", z.y)


def collectives(shape: Shape, sharding: Sharding, recipe: Recipe | None = None) -> dict[str, dict[str, int]]:
    """Collectives of a step on one rank: {"all_gather", "reduce_scatter", "all_reduce": {"count", "bytes"}}.

    bytes: of what all ranks of the group hold together: an all-gather's output, a reduce-scatter's input, an
    all-reduce's buffer. A rank sends (p-1)/p of the first two, and 2 (p-1)/p of the last. One rank gathers nothing.
    recipe: counts where full checkpointing runs units inside a block again, which prefetch once more.
    """
    recipe = recipe or Recipe(precision="fp32")
    _check(recipe, sharding, "cuda")
    walked, margin, extra = _walked_shape(shape, sharding)
    groups = _walk(walked, 1, 1, recipe, sharding, True, margin, extra)[1].values()
    sent = {
        "all_gather": [(group.times * n, group.whole) for group in groups for n in group.gathers.values()],
        "reduce_scatter": [(group.times, group.reduce_in) for group in groups if sharding.ranks > 1],
        "all_reduce": [(group.times, group.reduce_out) for group in groups if sharding.replicas > 1],
    }
    return {
        name: {"count": sum(n for n, _ in messages), "bytes": sum(n * size for n, size in messages)}
        for name, messages in sent.items()
    }
