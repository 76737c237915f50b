"""Many cases of data parallelism on the ranks of one group."""

import torch
import torch.distributed as dist

from scaleout.parallel import ddp as parallel_ddp
from scaleout.parallel import parity
from scaleout.parallel.ddp_ways import DDPWay
from scaleout.parallel.replicas import Settings
from scaleout.spec.transformer import Shape
from scaleout.timing import ddp as timing_ddp

SHAPE = Shape(2, 32, 4, 64, max_seq=16)
BUCKETS = 40_000 / 2**20  # MiB: a handful of buckets for a model of this size


def batches(s, passes, rank=None, world=None):
    chance = torch.Generator().manual_seed(3)
    tokens = torch.randint(64, (passes, s.world * 2, 17), generator=chance)
    share = tokens if rank is None else tokens[:, 2 * rank : 2 * rank + 2]
    return [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in share]


class Count:
    """Counts calls of dist.all_reduce, by everybody."""

    def __init__(self):
        self.calls, self.whole = 0, dist.all_reduce
        dist.all_reduce = self

    def __call__(self, *words, **more):
        self.calls += 1
        return self.whole(*words, **more)


def case(s, count, via, passes=1, every=False, unused=False, **settings):
    """Errors against one process, all-reduces of the third step, bytes of the buckets, what was built."""
    alone = DDPWay(s, SHAPE, "hand", unused=unused)
    alone.replicas.look.silent = True
    way = DDPWay(s, SHAPE, via, Settings(bucket_mb=BUCKETS, **settings), unused=unused)
    wanted_loss = alone.gradients(batches(s, passes))
    wanted = parity.gradients(alone.model)
    for _ in range(3):
        way.training.clear()
        way.replicas.look.watching, start = True, count.calls
        way.marks.start()
        loss = way.gradients(batches(s, passes, s.rank), every)
    calls = count.calls - start
    found = parity.gradients(way.model)
    spare = [name for name in found if name.startswith("spare.")]
    found = {name: g for name, g in found.items() if name not in spare}
    sizes = [way.replicas.look.buckets[i].numel() * 4 for i in sorted(way.replicas.look.buckets)]
    for _ in range(2):
        way.step(batches(s, passes, s.rank), every)
    worst = s.largest(parity.relative_error(found, wanted))
    return {
        "loss": abs(s.mean(loss) / wanted_loss - 1),
        "gradients": worst,
        "calls": calls,
        "buckets": sizes,
        "spare": len(spare),
        "spread": way.replicas.spread(),
        "built": way.replicas.built,
        "planned": planned(way, via),
        "tensors": len(found),
    }


def planned(way, via):
    """Bytes of the buckets that timing.ddp.buckets gives: in the order of registration by hand, of arrival in DDP."""
    registered = [(name, p.numel() * 4) for name, p in way.model.named_parameters()]
    arrived = dict.fromkeys(name for name, _, _ in way.marks.stop())
    order = registered if via == "buckets" else [(n, dict(registered)[n]) for n in reversed(arrived)]
    layers = [timing_ddp.Layer(name, 0.0, 0.0, size) for name, size in order]
    return [sum(layers[i].gradient_bytes for i in one) for one in timing_ddp.buckets(layers, 40_000, 40_000)]


def missing(s):
    """What the reducer by hand says of a parameter that nobody told it is unused."""
    way = DDPWay(s, SHAPE, "buckets", unused=True)
    try:
        way.gradients(batches(s, 1, s.rank))
    except RuntimeError as error:
        return str(error)
    return ""


def partly_used(s):
    """[gradient of a parameter that only rank 0 used, gradient of one that nobody used] after the mean."""
    model = torch.nn.ParameterDict({name: torch.ones(3) for name in ("all", "first", "nobody")})
    reducer = parallel_ddp.Reducer(model, find_unused=True)
    (model["all"].sum() + (model["first"].sum() if s.rank == 0 else 0.0)).backward()
    reducer.finish()
    return [None if model[name].grad is None else model[name].grad.tolist() for name in ("first", "nobody")]


def main(s):
    """{case: what it found}."""
    count, found = Count(), {}
    for via in ("hand", "buckets", "torch"):
        found[via] = case(s, count, via)
        found[f"{via} no_sync"] = case(s, count, via, passes=3)
        found[f"{via} every pass"] = case(s, count, via, passes=3, every=True)
    for via in ("buckets", "torch"):
        for hook in ("bf16", "powersgd"):
            found[f"{via} {hook}"] = case(s, count, via, hook=hook)
        found[f"{via} unused"] = case(s, count, via, unused=True, find_unused=True)
        found[f"{via} static"] = case(s, count, via, unused=True, static_graph=True)
    found["torch view"] = case(s, count, "torch", view=True)
    found["torch view no_sync"] = case(s, count, "torch", view=True, passes=3)
    found["missing"], found["partly"] = missing(s), partly_used(s)
    return found
