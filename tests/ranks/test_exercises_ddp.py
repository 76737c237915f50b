"""The lab exercise of `ddp` under attack: answers that readers would write, on two real ranks.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them, with a number where several end in one; after a blank, what else is in it.
"""

import answers
import pytest

from scaleout import exercises
from scaleout.exercises.ddp.ranks import CHECK

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


@pytest.mark.slow
def test_what_readers_write_is_told_what_it_is(tmp_path):
    given = answers.code_of(exercises.exercise("ddp", "train-step"))
    written = {"-given": given, **answers.restyled(given)} | {slip: TRAIN + body for slip, body in TRAINED.items()}
    answers.told(CHECK, "right: 2 ranks", written, tmp_path)
