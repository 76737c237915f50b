"""The lab exercises of `ddp` and `fsdp` under attack: answers that readers would write, on two real ranks.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them, with a number where several end in one.
"""

import re
from functools import partial

import answers
import pytest

from scaleout import exercises
from scaleout.exercises.ddp import ranks as ddp
from scaleout.exercises.fsdp import ranks as fsdp

TRAIN = """
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

def local(model, optimizer, passes, share=1):
    optimizer.zero_grad()
    for inputs, targets in passes:
        (mse_loss(model(inputs), targets) * share / len(passes)).backward()
    return [p.grad for p in model.parameters() if p.requires_grad]

def train_step(model, optimizer, passes):
    world, rank = dist.get_world_size(), dist.get_rank()
"""
MEANS = """
    for one in local(model, optimizer, passes):
        dist.all_reduce(one)
        one /= world
    optimizer.step()
"""
TRAINED = {
    "-premultiplied": """
    for one in local(model, optimizer, passes, 1 / world):
        dist.all_reduce(one)
    optimizer.step()
""",
    "-one-batch": """
    inputs, targets = (torch.cat(one) for one in zip(*passes))
    weights = [p for p in model.parameters() if p.requires_grad]
    for p, one in zip(weights, torch.autograd.grad(mse_loss(model(inputs), targets), weights)):
        dist.all_reduce(one, op=dist.ReduceOp.AVG)
        p.grad = one
    optimizer.step()
""",
    "-async": """
    gradients = local(model, optimizer, passes)
    for waiting in [dist.all_reduce(one, async_op=True) for one in gradients]:
        waiting.wait()
    for one in gradients:
        one.mul_(1 / world)
    optimizer.step()
    optimizer.zero_grad()
""",
    "-scattered": """
    gradients = local(model, optimizer, passes)
    flat = torch.cat([one.flatten() for one in gradients])
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % world))
    mine = torch.empty(len(flat) // world)
    dist.reduce_scatter_tensor(mine, flat)
    dist.all_gather_into_tensor(flat, mine / world)
    start = 0
    for one in gradients:
        one.copy_(flat[start:start + one.numel()].view_as(one))
        start += one.numel()
    optimizer.step()
""",
    "-gathered": """
    for one in local(model, optimizer, passes):
        every = [torch.empty_like(one) for _ in range(world)]
        dist.all_gather(every, one)
        one.copy_(torch.stack(every).mean(0))
    optimizer.step()
""",
    "-coalesced": """
    gradients = local(model, optimizer, passes)
    dist.all_reduce_coalesced(gradients)
    for one in gradients:
        one /= world
    optimizer.step()
""",
    "-functional": """
    from torch.distributed._functional_collectives import all_reduce
    for one in local(model, optimizer, passes):
        one.copy_(all_reduce(one, "sum", dist.group.WORLD) / world)
    optimizer.step()
""",
    "-by-messages": """
    gradients = local(model, optimizer, passes)
    flat = torch.cat([one.flatten() for one in gradients])
    other = torch.empty_like(flat)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, flat, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)])
    for work in works:
        work.wait()
    both = (flat, other) if rank == 0 else (other, flat)
    for one, mean in zip(gradients, ((both[0] + both[1]) / 2).split([one.numel() for one in gradients])):
        one.copy_(mean.view_as(one))
    optimizer.step()
""",
    "data-gathered": """
    every = [None] * world
    dist.all_gather_object(every, passes)
    local(model, optimizer, [one for some in every for one in some])
    optimizer.step()
""",
    "data-gathered as-tensors": """
    whole = []
    for inputs, targets in passes:
        for mine in (inputs, targets):
            parts = [torch.empty_like(mine) for _ in range(world)]
            dist.all_gather(parts, mine)
            whole.append(torch.cat(parts))
    local(model, optimizer, list(zip(whole[::2], whole[1::2])))
    optimizer.step()
""",
    "every-pass objects": """
    gradients = local(model, optimizer, passes)
    every = [None] * world
    dist.all_gather_object(every, [one.clone() for one in gradients])
    for one, *both in zip(gradients, *every):
        one.copy_(sum(both) / world)
    optimizer.step()
""",
    "every-pass with-the-model": """
    state = [model.state_dict()]
    dist.broadcast_object_list(state, 0)
    model.load_state_dict(state[0])
    for one in local(model, optimizer, passes):
        dist.all_reduce(one)
        one /= world
    optimizer.step()
""",
    "wrong-gradient once-right": """
    gradients = local(model, optimizer, passes)
    for one in gradients:
        dist.all_reduce(one)
        one /= world if not optimizer.state else 1
    optimizer.step()
""",
    "weights-averaged": """
    local(model, optimizer, passes)
    optimizer.step()
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= world
""",
    "weights-averaged2": """
    local(model, optimizer, passes)
    optimizer.step()
    state = [one for held in optimizer.state.values() for one in held.values() if one.dim()]
    for one in [p.data for p in model.parameters() if p.requires_grad] + state:
        dist.all_reduce(one)
        one /= world
""",
    "own-gradient": """
    dist.barrier()
    dist.all_reduce(torch.zeros(1))
    local(model, optimizer, passes)
    optimizer.step()
""",
    "rank-0": """
    for one in local(model, optimizer, passes):
        dist.broadcast(one, 0)
    optimizer.step()
""",
    "not-averaged": MEANS.replace("        one /= world\n", ""),
    "divided-twice": MEANS.replace("passes)", "passes, 1 / world)"),
    "wrong-gradient": """
    for one in passes:
        for mean in local(model, optimizer, [one]):
            dist.all_reduce(mean)
            mean /= world
        optimizer.step()
""",
    "wrong-gradient2": MEANS.replace("passes):", "passes)[:1]:"),
    "wrong-gradient3": MEANS + "    optimizer.step()\n",
    "wrong-gradient4": MEANS.replace("    optimizer.step()", "    with torch.no_grad():\n"
                                     "        for p in model.parameters():\n"
                                     "            p -= 0 if p.grad is None else 0.05 * p.grad"),
    "every-pass": MEANS + """
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= world
""",
    "every-pass2": """
    local(model, optimizer, passes)
    for p in model.parameters():
        one = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(one)
        one /= world
    optimizer.step()
""",
}  # fmt: skip

SHARDED = """
import torch
import torch.distributed as dist
from torch.nn.functional import pad

def gather(shard, size):
    whole = torch.empty(shard.numel() * dist.get_world_size())
    dist.all_gather_into_tensor(whole, shard)
    return whole[:size]

def scatter(gradient, shard):
    world = dist.get_world_size()
    mine = torch.empty_like(shard)
    dist.reduce_scatter_tensor(mine, pad(gradient, (0, world * shard.numel() - gradient.numel())))
    return mine / world

def sharded_step(shards, sizes, forward, backward):
    world, rank, count = dist.get_world_size(), dist.get_rank(), len(shards)
"""
FORWARD = """
    for unit in range(count):
        forward(unit, gather(shards[unit], sizes[unit]))
"""
BACKWARD = """
    return [scatter(backward(unit, gather(shards[unit], sizes[unit])), shards[unit])
            for unit in reversed(range(count))][::-1]
"""
STEPPED = {
    "-short": FORWARD + BACKWARD,
    "-tuple": FORWARD + BACKWARD.replace("return [", "return tuple([").replace("[::-1]", "[::-1])"),
    "-async": """
    out = {}
    for unit, shard in enumerate(shards):
        parts = [torch.empty_like(shard), torch.empty_like(shard)]
        dist.all_gather(parts, shard, async_op=True).wait()
        whole = torch.cat(parts)[:sizes[unit]]
        parts = None
        forward(unit, whole)
        whole = None
    for unit in range(count - 1, -1, -1):
        gradient = backward(unit, gather(shards[unit], sizes[unit])) / world
        padded = gradient.new_zeros(shards[unit].numel() * world)
        padded[:len(gradient)] += gradient
        out[unit] = torch.zeros_like(shards[unit])
        dist.reduce_scatter(out[unit], [one.clone() for one in padded.chunk(world)], async_op=True).wait()
    return [out[unit] for unit in range(count)]
""",
    "-reduced-to-each": FORWARD + """
    out = []
    for unit in reversed(range(count)):
        shard = shards[unit]
        parts = list(pad(backward(unit, gather(shard, sizes[unit])), (0, world * len(shard) - sizes[unit])).chunk(world))
        parts = [one.clone() for one in parts]
        for other in range(world):
            dist.reduce(parts[other], other)
        out.insert(0, parts[rank].clone() / world)
        parts = None
    return out
""",
    "-functional": """
    from torch.distributed import _functional_collectives as fc
    def gather(shard, size):
        return fc.wait_tensor(fc.all_gather_tensor(shard, 0, dist.group.WORLD))[:size]
""" + FORWARD + BACKWARD,
    "-broadcast": """
    def gathered(unit):
        parts = [shards[unit].clone() for _ in range(world)]
        for other in range(world):
            dist.broadcast(parts[other], other)
        return torch.cat(parts).narrow(0, 0, sizes[unit])
""" + (FORWARD + BACKWARD).replace("gather(shards[unit], sizes[unit])", "gathered(unit)"),
    "-one-buffer": """
    room = torch.empty(max(sizes))
    def gathered(unit):
        room[:sizes[unit]] = gather(shards[unit], sizes[unit])
        return room[:sizes[unit]]
""" + (FORWARD + BACKWARD).replace("gather(shards[unit], sizes[unit])", "gathered(unit)"),
    "-resized": """
    held = [torch.empty(world * len(shard)) for shard in shards]
    for one in held:
        one.untyped_storage().resize_(0)
    def use(callback, unit):
        room = held[unit].untyped_storage()
        room.resize_(held[unit].numel() * 4)
        dist.all_gather_into_tensor(held[unit], shards[unit])
        found = callback(unit, held[unit][:sizes[unit]])
        room.resize_(0)
        return found
    for unit in range(count):
        use(forward, unit)
    return [scatter(use(backward, unit), shards[unit]) for unit in range(count - 1, -1, -1)][::-1]
""",
    "not-freed one-after-the-other": """
    whole = [gather(shards[unit], sizes[unit]) for unit in range(count)]
    for unit in range(count):
        one, whole[unit] = whole[unit], None
        forward(unit, one)
        one = None
""" + BACKWARD,
    "not-freed parts": """
    parts = []
    for shard in shards:
        both = [torch.empty_like(shard) for _ in range(world)]
        dist.all_gather(both, shard)
        parts.append(both)
    for unit in range(count):
        forward(unit, torch.cat(parts[unit])[:sizes[unit]])
    parts = None
""" + BACKWARD,
    "more-than-a-unit": """
    def gathered(unit):
        every = [torch.empty(sum(map(len, shards))) for _ in range(world)]
        dist.all_gather(every, torch.cat(list(shards)))
        start = sum(len(one) for one in shards[:unit])
        return torch.cat([one[start:start + len(shards[unit])].clone() for one in every])[:sizes[unit]]
""" + (FORWARD + BACKWARD).replace("gather(shards[unit], sizes[unit])", "gathered(unit)"),
    "more-than-a-unit objects": """
    def gathered(unit):
        every = [None] * world
        dist.all_gather_object(every, list(shards))
        return torch.cat([one[unit] for one in every])[:sizes[unit]]
""" + (FORWARD + BACKWARD).replace("gather(shards[unit], sizes[unit])", "gathered(unit)"),
    "not-freed ahead": """
    ahead = gather(shards[0], sizes[0])
    for unit in range(count):
        one, ahead = ahead, gather(shards[unit + 1], sizes[unit + 1]) if unit + 1 < count else None
        forward(unit, one)
        one = None
""" + BACKWARD,
    "not-freed4": """
    room = torch.empty(world * sum(map(len, shards)))
    dist.all_gather_into_tensor(room, torch.cat(list(shards)))
    both = [torch.cat(one) for one in zip(*(half.split([len(one) for one in shards]) for half in room.chunk(2)))]
    every = torch.cat(both)
    starts = [sum(map(len, both[:unit])) for unit in range(count)]
    def gathered(unit):
        return every[starts[unit]:starts[unit] + sizes[unit]]
    both = None
""" + (FORWARD + BACKWARD).replace("gather(shards[unit], sizes[unit])", "gathered(unit)"),
    "not-freed": """
    whole = [gather(shards[unit], sizes[unit]) for unit in range(count)]
    for unit in range(count):
        forward(unit, whole[unit])
    whole = None
""" + BACKWARD,
    "not-freed2": """
    first = []
    for unit in range(count):
        whole = gather(shards[unit], sizes[unit])
        first.append(whole[:1])
        forward(unit, whole)
""" + BACKWARD,
    "not-freed3": FORWARD + """
    held, out = [], [None] * count
    for unit in reversed(range(count)):
        held.append(gather(shards[unit], sizes[unit]))
        out[unit] = scatter(backward(unit, held[-1]), shards[unit])
    return out
""",
    "wrong-weights": (FORWARD + BACKWARD).replace("gather(shards[unit], sizes[unit])", (
        "torch.cat(gather(shards[unit], 2 * len(shards[unit])).chunk(2)[::-1])[:sizes[unit]]")),
    "wrong-weights2": (FORWARD + BACKWARD).replace("gather(shards[unit], sizes[unit])",
                                                  "gather(shards[unit].bfloat16().float(), sizes[unit])"),
    "units-turned": FORWARD + BACKWARD.replace("[::-1]", ""),
    "wrong-gradient": FORWARD + BACKWARD.replace("(backward", "(0 * backward"),
    "not-averaged": FORWARD + BACKWARD.replace("scatter(", "world * scatter("),
    "other-shard": FORWARD + BACKWARD.replace("scatter(backward(unit, gather(shards[unit], sizes[unit]))", (
        "scatter(pad(backward(unit, gather(shards[unit], sizes[unit])), (0, sizes[unit] % 2)).view(2, -1)"
        ".flip(0).flatten()")),
    "order": FORWARD.replace("range(count)", "reversed(range(count))") + BACKWARD,
    "all-reduce": FORWARD + """
    out = []
    for unit in reversed(range(count)):
        mean = pad(backward(unit, gather(shards[unit], sizes[unit])), (0, sizes[unit] % 2)) / world
        dist.all_reduce(mean)
        out.insert(0, mean.chunk(world)[rank].clone())
    return out
""",
    "order2": FORWARD + BACKWARD.replace("backward(unit, gather", "backward(unit + 0.5, gather"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("key", "check", "start", "written"), [
    (("ddp", "train-step"), ddp.CHECK, TRAIN, TRAINED), (("fsdp", "sharded-step"), fsdp.CHECK, SHARDED, STEPPED)])
def test_lab_answers_are_told_what_they_are(tmp_path, key, check, start, written):
    given = re.search(r"```python\n(.*?)```", exercises.exercise(*key).solution, re.S).group(1)
    written = {"-given": given, **answers.restyled(given)} | {slip: start + body for slip, body in written.items()}
    for slip, words in answers.judged(partial(answers.forked, check), written, tmp_path).items():
        assert words.startswith("right: 2 ranks" if slip[0] == "-" else f"not yet ({slip.split()[0].rstrip('234')}): "), (slip, words)
        assert {"wrong-weights": "order of the ranks", "wrong-weights2": "off by up to 0.0"}.get(slip, "") in words
