"""Communication of ZeRO: the messages of a step by stage, and by the program that runs it.

The paper's stages send 2, 2, 2 and 3 pieces (Rajbhandari et al., arXiv 1910.02054, section 7); a piece is every weight
once, of which a rank of W sends (W-1)/W. Programs differ from the paper, each as its source says:

- torch's DistributedDataParallel all-reduces in every pass, unless under `no_sync`; ZeroRedundancyOptimizer leaves
  that as it is and broadcasts what each rank has updated (`_sync_params`), so that stage 1 sends 3.
- DeepSpeed 0.19.8 all-reduces the buckets of stages 1 and 2, and each rank keeps its slice: 3 pieces
  (`use_multi_rank_bucket_allreduce`, true by default; stage_1_and_2.py, average_tensor). Without it each slice is
  reduced to its owner, "DeepSpeed reduce": 2. Stage 1 sends after the last pass only (engine.py, allreduce_gradients).
  Its stage 3 does not free what is used again within `stage3_max_reuse_distance` parameters, 1e9 by default, so that
  the last half of that is gathered once (partitioned_param_coordinator.py, __params_to_release). Not told apart here:
  tensors below `stage3_param_persistence_threshold`, 1e5, which are gathered once a step, and what its prefetch has
  passed, which it keeps too. All but these two as counted on real ranks: tests/published/zero_deepspeed.json.
- torch's `fully_shard` is stage 3; with reshard_after_forward=False ("keep") it gathers once. Its root module is kept
  by default: give its parameters as `stay`. In passes under set_requires_gradient_sync(False) it gathers all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, fsum

from scaleout.collectives import alpha_beta
from scaleout.spec import checks
from scaleout.spec.layout import Layout, alone
from scaleout.spec.muon import NS_BYTES, matrices, matrix_parameters
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape, total_parameters

WAYS = {
    "paper": (0, 1, 2, 3),
    "DistributedDataParallel": (0,),
    "ZeroRedundancyOptimizer": (1,),
    "DeepSpeed": (1, 2, 3),
    "DeepSpeed reduce": (1, 2),
    "fully_shard": (3,),
}
MUON = ("gather", "owner", "whole", "DeepSpeed")
REUSE = 10**9  # DeepSpeed's stage3_max_reuse_distance, in parameters
BUCKET = 5 * 10**8  # its reduce_bucket_size; torch's buckets are in `timing.ddp`

PHASES = ("forward", "backward", "update")
CARRIED = ("weights", "gradients", "momentum", "updates")

# Collectives, each with the one of which `alpha_beta` has the share that a rank sends: all but the all-reduce send each
# byte to n - 1 of n ranks, or from them; it does both.
SHARE_OF = {"all_reduce": "all_reduce"} | dict.fromkeys(
    ("all_gather", "reduce_scatter", "reduce", "broadcast", "all_to_all"), "all_gather"
)

# Ways that reduce gradients in every pass where nothing is said, beside those of stages 2 and 3.
_EVERY_PASS = ("DistributedDataParallel", "ZeroRedundancyOptimizer")


@dataclass(frozen=True)
class Message:
    """A collective of a step. phase: "forward", "backward" or "update". collective: of SHARE_OF. carries:
    "weights", "gradients"; or of Muon's "momentum", "updates".

    bytes: of all its calls in a step together, by `alpha_beta`'s size: what a rank holds after an all-gather or before
    a reduce-scatter, else the message. count: calls. times: passes in which it is sent.
    """

    phase: str
    collective: str
    carries: str
    bytes: int
    count: int
    times: int = 1

    def __post_init__(self) -> None:
        checks.known("collective", self.collective, SHARE_OF)
        checks.one_of("phase", self.phase, PHASES)
        checks.one_of("carries", self.carries, CARRIED)
        checks.whole("bytes", self.bytes, 0)
        checks.whole("count", self.count)
        checks.whole("times", self.times)


def messages(
    parameters: int,
    recipe: Recipe,
    layout: Layout,
    way: str = "paper",
    *,
    keep: bool = False,
    passes: int = 1,
    every_pass: bool | None = None,
    weight_bytes: int | None = None,
    gradient_bytes: int | None = None,
    unit: int | None = None,
    stay: int | None = None,
) -> tuple[Message, ...]:
    """The messages of a step on the dp ranks of a layout, which hold and train `parameters` between them.

    keep: gathered weights stay from forward to backward, of stage 3. passes: forward and backward before the update.
    every_pass: gradients are reduced in each of them, or once, after they were added up; None: as the way does it.
    weight_bytes, gradient_bytes: of a number on the wire; None: as the recipe stores it, main gradients in fp32.
    unit: parameters that travel together; None: all at once. stay: parameters that are gathered once where `keep` is
    not given; None: as the way does it. One rank sends nothing. ValueError, in one line, for what a way does not have.
    """
    _check(parameters, recipe, layout, way, keep, passes, every_pass, unit, stay)
    if layout.dp == 1:
        return ()
    wide, fine = wire_bytes(recipe, weight_bytes, gradient_bytes)
    reduced = passes if _each(way, layout.zero, every_pass) else 1
    # What is used again within the distance lies as far behind the end of the forward as after its begin.
    near = min(parameters, REUSE // 2) if way == "DeepSpeed" else 0
    resident = parameters if keep else near if stay is None else stay
    reduction = Message("backward", _reduction(way, layout.zero), "gradients", *_calls(parameters, unit, fine, reduced))
    if layout.zero == 3:
        gather = [
            Message(phase, "all_gather", "weights", *_calls(gathered, unit, wide, passes))
            for phase, gathered in (("forward", parameters), ("backward", parameters - resident))
            if gathered
        ]
        return (*gather, reduction)
    spread = "broadcast" if way == "ZeroRedundancyOptimizer" else "all_gather"
    if layout.zero == 0:
        return (reduction,)
    size, count, _ = _calls(parameters, unit, wide, 1)
    if spread == "broadcast":  # each owner its own
        count = layout.dp * ceil(count / layout.dp)
    return reduction, Message("update", spread, "weights", size, count)


def _reduction(way: str, stage: int) -> str:
    if way == "DeepSpeed reduce":
        return "reduce"
    complete = stage == 0 or way == "ZeroRedundancyOptimizer" or (way == "DeepSpeed" and stage < 3)
    return "all_reduce" if complete else "reduce_scatter"


def _each(way: str, stage: int, every_pass: bool | None) -> bool:
    """Whether gradients are reduced in every pass."""
    return (stage >= 2 or way in _EVERY_PASS) if every_pass is None else every_pass


def _calls(parameters: int, unit: int | None, width: int, times: int) -> tuple[int, int, int]:
    return parameters * width * times, ceil(parameters / (unit or parameters)) * times, times


def wire_bytes(recipe: Recipe, weight_bytes: int | None = None, gradient_bytes: int | None = None) -> tuple[int, int]:
    """Bytes of a weight and of a gradient on the wire: those given, else as the recipe stores them; main gradients are
    reduced in fp32."""
    checks.instance("recipe", recipe, Recipe)
    for name, value in (("weight_bytes", weight_bytes), ("gradient_bytes", gradient_bytes)):
        if value is not None:
            checks.whole(name, value)
    stored = 4 if recipe.main_gradients != "none" else recipe.width("gradient")
    return weight_bytes or recipe.width("weight"), gradient_bytes or stored


def muon_messages(
    shape: Shape, recipe: Recipe, layout: Layout, how: str = "gather", width: int = NS_BYTES
) -> tuple[Message, ...]:
    """What Muon's update moves beside `messages`, of the blocks' matrices alone; width: bytes of a number on the wire.

    A rank can make a matrix orthogonal only where it has it whole. From stage 1 on its momentum lies in shards, so:
    "gather": every rank gathers what is to be made orthogonal and does all of it again (Liu et al. 2025, arXiv
        2502.16982, section 2.3: the momentum with the gradient in it, in bf16).
    "owner": each matrix goes to one rank and its update comes back, so that each is made orthogonal once.
    "whole": matrices are dealt to ranks uncut, so that nothing more is sent; of stages 1 and 2, whose weights are
        whole (ZeroRedundancyOptimizer deals out whole tensors).
    "DeepSpeed": its stage 3 gathers gradients and momentum, lets each rank make a part of the matrices orthogonal,
        and gathers updates and momentum (0.19.8, stage3.py, _muon_update_sub_group); it also refuses reduce_scatter
        then. Its stages 1 and 2 have all-reduced the gradients, and send no more.
    Stage 0 has every matrix everywhere. ValueError, in one line, for what there is not.
    """
    checks.instance("shape", shape, Shape)
    _check(total_parameters(shape), recipe, layout, "paper", False, 1, None, None, None)
    checks.one_of("how", how, MUON)
    checks.whole("width", width)
    if how == "whole" and layout.zero == 3:
        raise ValueError("how whole needs weights that are whole: use stage 1 or 2, or gather or owner")
    if layout.dp == 1 or not layout.zero or how == "whole" or (how == "DeepSpeed" and layout.zero < 3):
        return ()
    size, count = matrix_parameters(shape) * width, len(matrices(shape))
    if how == "owner":  # a rank sends from the n-th that it holds
        outgoing, returning = (
            Message("update", "all_to_all", tensor, ceil(size / layout.dp), count) for tensor in ("momentum", "updates")
        )
        return outgoing, returning
    carried = ("momentum",) if how == "gather" else ("gradients", "momentum", "updates", "momentum")
    return tuple(Message("update", "all_gather", tensor, size, count) for tensor in carried)


def share(collective: str, ranks: int) -> float:
    """Bytes that a rank sends for each byte of a message, the mean over ranks. ValueError lists the collectives."""
    checks.whole("ranks", ranks)
    return alpha_beta.bus_factor(checks.known("collective", collective, SHARE_OF), ranks)


def sent(moves: Iterable[Message], ranks: int) -> float:
    """Bytes that a rank sends in a step, and receives: of broadcasts and reductions to owners the mean over ranks."""
    checks.whole("ranks", ranks)
    return fsum(message.bytes * share(message.collective, ranks) for message in checked(moves))


def checked(found: Iterable[Message]) -> tuple[Message, ...]:
    """The messages of a step, as `messages` gives them. ValueError for anything else."""
    if not isinstance(found, Iterable) or isinstance(found, (str, dict)):
        raise ValueError(f"found must be what `messages` gives, a tuple of Message, not {checks.said(found)}")
    found = tuple(found)
    for message in found:
        checks.instance("each of found", message, Message)
    return found


def pieces(parameters: int, recipe: Recipe, layout: Layout, way: str = "paper", **options) -> float:
    """`sent` in pieces: how many times each weight, as it travels, leaves. 2, 2, 2 and 3 by the paper's stages."""
    moves = messages(parameters, recipe, layout, way, **options)
    wide = options.get("weight_bytes") or recipe.width("weight")
    return sent(moves, layout.dp) / (parameters * wide * share("all_gather", layout.dp)) if moves else 0.0


def _check(parameters, recipe, layout, way, keep, passes, every_pass, unit, stay) -> None:
    checks.whole("parameters", parameters)
    checks.instance("recipe", recipe, Recipe)
    alone(layout, "dp", "tp", "pp")
    stages = checks.known("way", way, WAYS)
    if layout.zero not in stages:
        raise ValueError(f"{way} has no stage {layout.zero}: use {' or '.join(map(str, stages))}")
    if recipe.adapter != "none":
        raise ValueError(f"adapters are not split here: use adapter none, not {recipe.adapter}")
    checks.flag("keep", keep)
    checks.whole("passes", passes)
    if unit is not None:
        checks.whole("unit", unit)
    if layout.zero < 3 and (keep or stay is not None):
        raise ValueError(f"keep and stay are about gathered weights: use stage 3, not {layout.zero}")
    if stay is not None:
        checks.whole("stay", stay, 0)
        if stay > parameters:
            raise ValueError(f"stay {stay} is more than all {parameters} parameters")
    if every_pass is not None:
        checks.flag("every_pass", every_pass)
        if way.startswith("DeepSpeed") and every_pass != (layout.zero >= 2):
            moment = "in every pass" if layout.zero >= 2 else "after the last pass only"
            raise ValueError(f"{way} reduces gradients of stage {layout.zero} {moment}: leave every_pass None")
