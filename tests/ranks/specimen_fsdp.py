"""Many cases of FSDP on the ranks of one group of four.

No row count of this model divides by 4, so that every unit has padding.
"""

import functools

import torch

from scaleout.measure.fsdp_ledger import measured
from scaleout.memory.fsdp import collectives, fsdp_account
from scaleout.parallel import fsdp, fsdp_ways, parity, shard
from scaleout.parallel.fsdp_ways import FSDPWay
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape

SHAPE = Shape(2, 30, 3, 61, max_seq=16)
STEPS, RATE = 2, 0.1


def batches(s, passes, step, rank=None):
    chance = torch.Generator().manual_seed(step)
    tokens = torch.randint(SHAPE.vocab, (passes, s.world * 2, 17), generator=chance)
    share = tokens if rank is None else tokens[:, 2 * rank : 2 * rank + 2]
    return [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in share]


def trained(s, via, cut, passes, every, rank, **more):
    """(way, losses, gradients, weights) after a few steps of momentum SGD."""
    way, losses = FSDPWay(s, SHAPE, via, cut, rate=RATE, optimizer="momentum", **more), []
    for step in range(STEPS):
        losses.append(way.gradients(batches(s, passes, step, rank), every))
        found = way.whole(gradients=True)
        way.update()
    return way, losses, found, way.whole()


@functools.cache
def alone(s, passes, clip):
    """[losses, gradients, weights] of one process in fp32, whatever is cut, and how often gradients are averaged."""
    return trained(s, "one", Sharding(s.world), passes, True, None, clip=clip)[1:]


def case(s, via, passes=1, every=True, clip=None, checkpointing="none", **options):
    """Errors against one process, what was built, collectives and peak of a step beside their prediction."""
    cut = Sharding(**{"ranks": s.world, "least_parameters": 3000} | options)
    more = {"clip": clip, "checkpointing": checkpointing}
    wanted = alone(s, passes, clip)
    way, *found = trained(s, via, cut, passes, every, s.rank, **more)
    out = {"loss": max(abs(s.mean(f) / w - 1) for f, w in zip(found[0], wanted[0], strict=True))}
    for name, f, w in zip(("gradients", "weights"), found[1:], wanted[1:], strict=True):
        out[name] = s.largest(parity.relative_error(f, w))
    out |= {"built": way.built, "stored": way.stored()} | way.counted(batches(s, passes, 9, s.rank), every)
    way.update()
    out["expected"] = {name: one["count"] for name, one in collectives(SHAPE, cut).items()}
    if via in ("torch", "naive", "prefetching") and passes == 1 and clip is None:
        peak, events = measured(way, batches(s, 1, 9, s.rank)[0])
        recipe = Recipe(precision="fp32", optimizer="momentum", checkpointing=checkpointing, foreach=not cut.offload)
        out["peak"] = sum(peak.values()), fsdp_account(SHAPE, 2, 16, recipe, cut, "cpu").peak_bytes
        out["events"] = [event[1:3] for event in events]
        out["kept"] = way.hand.gathered_bytes if way.hand else 0
    return out


def diary(s, via):
    """What a rank did in one step by hand, in order."""
    way = FSDPWay(s, SHAPE, via, Sharding(s.world))
    way.hand.diary.clear()
    way.gradients(batches(s, 1, 0, s.rank))
    return [f"{what} {unit}".strip() for what, unit in way.hand.diary]


def freed(s):
    """Bytes behind a parameter of a block: after it was built, inside its forward, after its forward."""
    way, sizes = FSDPWay(s, SHAPE, "naive", Sharding(s.world)), []
    weight = way.model.blocks[0].mlp.up.weight
    look = lambda *_: sizes.append(weight.untyped_storage().nbytes())  # noqa: E731
    look()
    way.model.blocks[0].mlp.register_forward_hook(look)
    way.model.blocks[1].mlp.register_forward_hook(look)
    way.call(*batches(s, 1, 0, s.rank)[0])
    return sizes


def refused(work):
    """The message that `work()` ends with."""
    try:
        work()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refusals(s):
    """What cannot be, and what is not what it is said to be."""
    way = FSDPWay(s, SHAPE, "torch", Sharding(s.world))
    one = FSDPWay(s, SHAPE, "one", Sharding(s.world))
    check = lambda model, **cut: refused(  # noqa: E731
        lambda: shard.assert_built(s, model, SHAPE, Sharding(**{"ranks": s.world} | cut))
    )
    return {
        "world": refused(lambda: shard.mesh(s, Sharding(3))),
        "wrap": check(way.model, wrap="layer"),
        "reshard": check(way.model, reshard=False),
        "offload": check(way.model, offload=True),
        "dtype": check(way.model, parameter="bf16"),
        "replicas": check(way.model, ranks=2, replicas=2),
        "right": check(way.model),
        "plain": check(one.model),
        **{
            name: refused(lambda cut=cut: fsdp.HandFSDP(s, one.model, Sharding(**cut)))
            for name, cut in (
                ("hand offload", {"ranks": 4, "offload": True}),
                ("hand replicas", {"ranks": 2, "replicas": 2}),
                ("hand bf16", {"ranks": 4, "reduce": "bf16"}),
                ("hand int", {"ranks": 4, "reshard": 2}),
            )
        },
        "accelerate": refused(lambda: fsdp_ways.refuse(s, "accelerate", Sharding(s.world))),
    }


def main(s):
    """{case: what it found}."""
    found = {}
    wrapped = {"naive": ("block",), "prefetching": ("model", "layer", "size"), "torch": ("block", "size")}
    for via, wraps in wrapped.items():
        for wrap in wraps:
            found[f"{via} {wrap}"] = case(s, via, wrap=wrap)
        found[f"{via} passes"] = case(s, via, passes=2, clip=0.3)
    for via in ("prefetching", "torch"):
        found[f"{via} kept"] = case(s, via, reshard=False)
        found[f"{via} again"] = case(s, via, checkpointing="full", prefetch=2)
    found |= {
        "torch no prefetch": case(s, "torch", prefetch=0),
        "torch half": case(s, "torch", reshard=2),
        "torch host": case(s, "torch", offload=True),
        "torch grid": case(s, "torch", ranks=2, replicas=2),
        "torch whole passes": case(s, "torch", passes=3, every=False),
        "torch bf16": case(s, "torch", parameter="bf16"),
        "torch reduce": case(s, "torch", reduce="bf16"),
        "accelerate-forced": case(s, "accelerate-forced"),
        "accelerate-naive": case(s, "accelerate-naive"),
    }
    found["diaries"] = {via: diary(s, via) for via in ("naive", "prefetching")}
    found["freed"], found["refused"] = freed(s), refusals(s)
    return found
