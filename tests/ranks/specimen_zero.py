"""Many cases of ZeRO on the ranks of one group. No size of this model divides by 2 or 4."""

from types import SimpleNamespace

import torch
import torch.distributed as dist

from scaleout.lab.zero import STATES
from scaleout.measure import zero as measure_zero
from scaleout.measure import zero_faults, zero_muon
from scaleout.parallel import flat, parity
from scaleout.parallel.zero import assert_one_norm
from scaleout.parallel.zero_ways import MUON, WAYS
from scaleout.spec.transformer import Shape

SHAPE = Shape(2, 30, 3, 61, max_seq=15, ff=101)
OPTIONS = {
    "shape": SHAPE,
    "micro_batch": 2,
    "seq": 15,
    "lr": 1e-3,
    "seed": 0,
    "clip": None,
    "optimizer": "adamw",
    "via": "stage-2",
    "accumulation": 1,
}
STEPS = 2
LARGE = 2**20  # elements of a message beside which gloo's own words are nothing


def batches(s, step, rank=None, passes=1):
    """[(tokens, targets)] of a step: this rank's, or those of all ranks together."""
    chance = torch.Generator().manual_seed(step)
    tokens = torch.randint(SHAPE.vocab, (passes, s.world * 2, 16), generator=chance)
    share = tokens if rank is None else tokens[:, 2 * rank : 2 * rank + 2]
    return [(one[:, :-1].contiguous(), one[:, 1:].contiguous()) for one in share]


def trained(s, o, via, rank):
    """{"losses", "gradients" of the last step, "weights", states of AdamW after it}, and the way."""
    way, losses = measure_zero.make(s, o, via), []
    measure_zero.calm(way.optimizer)
    for step in range(STEPS):
        losses.append(way.gradients(batches(s, step, rank, o.accumulation)))
        gradients = way.whole(gradients=True)
        if o.clip:
            way.clipped()
        way.update()
    return {"losses": losses, "gradients": gradients, "weights": way.whole()} | way.states(), way


def case(s, o, via, wanted):
    """Errors against one process; what is sent, held and at the peak, each beside its prediction."""
    found, way = trained(s, o, via, s.rank)
    out = {"losses": max(abs(s.mean(f) / w - 1) for f, w in zip(found.pop("losses"), wanted["losses"], strict=True))}
    out |= {what: parity.worst(s, tensors, wanted[what]) for what, tensors in found.items()}
    seen = measure_zero.looked(way, batches(s, 9, s.rank, o.accumulation))
    messages = measure_zero.predicted_messages(SHAPE, s.world, via, o.accumulation)
    out["sent"] = measure_zero.sent(seen["messages"], s.world), measure_zero.sent(messages, s.world)
    out["calls"] = {name: one.count for name, one in seen["messages"].items()}
    out["counts"] = {name: one.count for name, one in messages.items()}
    held = measure_zero.predicted_held(SHAPE, s.world, via)
    out["held"] = {state: (seen["held"][state], held[state]) for state in STATES}
    out["built"] = way.built
    if o.accumulation == 1:
        peaks = measure_zero.peak(way, batches(s, 9, s.rank)[0]), measure_zero.predicted_peak(o, s.world, via)
        out["peak"] = peaks
    return out


def by_gloo(s):
    """{collective: bytes that TCP brought a rank, over those of the message} on gloo."""
    whole, part = torch.zeros(LARGE), torch.zeros(LARGE // s.world)
    work = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: flat.all_gather(whole, part),
        "reduce_scatter": lambda: flat.reduce_scatter(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }
    found = {}
    for name, do in work.items():
        s.barrier()
        before = measure_zero.arrived()
        do()
        s.barrier()
        found[name] = s.mean(measure_zero.arrived() - before) / whole.nbytes
    return found


def said(work):
    """What an error says, "" without one."""
    try:
        work()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def clipping(s, o):
    """A step clipped by shards' own norms beside one clipped right: norms by rank, copies apart, the assertions."""
    ways = sick, well = [measure_zero.make(s, o, o.via) for _ in range(2)]
    for way in ways:
        way.gradients(batches(s, 0, s.rank))
    own = torch.nn.utils.clip_grad_norm_(sick.hand.parameters(), 0.1).item()
    whole = well.hand.clip(0.1)
    for way in ways:
        way.update()
    return {
        "norms": s.gathered(own),
        "whole": whole,
        "copies": zero_faults.spread(s, sick),
        "apart": parity.worst(s, sick.whole(), well.whole()),
        "sick": zero_faults.caught(s, own),
        "well": said(lambda: assert_one_norm(whole, s.device)),
    }


def main(s):
    """{way: its case}, and what else is looked at."""
    o = SimpleNamespace(**OPTIONS)
    wanted = trained(s, o, "one", None)[0]
    found = {"ways": {via: case(s, o, via, wanted) for via in WAYS if via != "one"}}
    if s.world == 2:
        o.accumulation, o.clip = 2, 0.3
        wanted = trained(s, o, "one", None)[0]
        found["passes"] = {via: case(s, o, via, wanted) for via in ("ddp", "stage-1", "stage-2", "stage-3", "reshard")}
        o = SimpleNamespace(**OPTIONS)
        found["fault"] = clipping(s, o)
        dealt = measure_zero.make(s, o, "zero-redundancy").optimizer
        found["consolidated"] = said(dealt.state_dict)
        found["gloo"] = by_gloo(s)
    o.optimizer = "muon"
    steps = [[batches(s, step, rank) for step in range(STEPS)] for rank in (s.rank, None)]
    few = ("one", "stage-3", "zero-redundancy", "rows")
    found["muon"] = zero_muon.rows(o, *steps, s, MUON if s.world == 2 else few)
    return found
