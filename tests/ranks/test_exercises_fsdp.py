"""The lab exercises of `fsdp` under attack: answers that readers would write, on two real ranks.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them, with a number where several end in one; after a blank, what else is in it.
"""

import answers
import pytest

from scaleout import exercises
from scaleout.exercises.fsdp.ranks import AHEAD, CHECK

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
        gradient = backward(unit, gather(shard, sizes[unit]))
        padded = pad(gradient, (0, world * len(shard) - sizes[unit]))
        parts = [one.clone() for one in padded.chunk(world)]
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
    "wrong-gradient one-unit": FORWARD + BACKWARD.replace("scatter(", "(1 if unit else world) * scatter("),
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

PREFETCH = """
import torch
import torch.distributed as dist

def prefetched(shards, sizes, forward):
    world, rank, count = dist.get_world_size(), dist.get_rank(), len(shards)
    def start(unit, sync=False):
        if unit >= count:
            return None, None
        whole = torch.empty(world * shards[unit].numel())
        return whole, dist.all_gather_into_tensor(whole, shards[unit], async_op=not sync)
"""
LOOP = """
    ahead = start(0)
    for unit in range(count):
        whole, work = ahead
        work.wait()
        ahead = start(unit + 1)
        forward(unit, whole[:sizes[unit]])
"""
AHEADS = {
    "-parts": """
    def begin(unit):
        parts = [torch.empty_like(shards[unit]) for _ in range(world)]
        return parts, dist.all_gather(parts, shards[unit], async_op=True)
    parts, work = begin(0)
    for unit in range(count):
        work.wait()
        whole = torch.cat(parts)
        if unit + 1 < count:
            parts, work = begin(unit + 1)
        else:
            parts = work = None
        forward(unit, whole[:sizes[unit]])
""",
    "-two-buffers": """
    rooms = [torch.empty(max(sizes) + 1) for _ in range(2)]
    rooms = [one.untyped_storage() for one in rooms]
    views = [None, None]
    def begin(unit):
        if unit == count:
            return None
        rooms[unit % 2].resize_(4 * world * shards[unit].numel())
        views[unit % 2] = torch.empty(0).set_(rooms[unit % 2])
        return dist.all_gather_into_tensor(views[unit % 2], shards[unit], async_op=True)
    work = begin(0)
    for unit in range(count):
        work.wait()
        work = begin(unit + 1)
        forward(unit, views[unit % 2][:sizes[unit]])
""",
    "not-ahead": """
    for unit in range(count):
        forward(unit, start(unit, sync=True)[0][:sizes[unit]])
""",
    "not-ahead too-late": LOOP.replace("        ahead = start(unit + 1)\n", "").replace(
        "whole[:sizes[unit]])", "whole[:sizes[unit]])\n        ahead = start(unit + 1)"),
    "waited": LOOP.replace("        ahead = start(unit + 1)\n", "        ahead = start(unit + 1)\n"
                           "        ahead[1] and ahead[1].wait()\n"),
    "too-far-ahead all": """
    every = [start(unit) for unit in range(count)]
    for unit in range(count):
        whole, work = every[unit]
        every[unit] = None
        work.wait()
        forward(unit, whole[:sizes[unit]])
""",
    "too-far-ahead objects": """
    every = [None] * world
    dist.all_gather_object(every, shards)
    for unit in range(count):
        forward(unit, torch.cat([one[unit] for one in every])[:sizes[unit]])
""",
    "too-far-ahead two": LOOP.replace("ahead = start(0)", "ahead, later = start(0), start(1)").replace(
        "ahead = start(unit + 1)", "ahead, later = later, start(unit + 2)"),
    "too-much-held": LOOP.replace("    ahead = start(0)", "    kept = []\n    ahead = start(0)").replace(
        "        work.wait()", "        work.wait()\n        kept.append(whole)"),
    "too-much-held parts": """
    def begin(unit):
        parts = [torch.empty_like(shards[unit]) for _ in range(world)]
        return parts, dist.all_gather(parts, shards[unit], async_op=True)
    ahead = begin(0)
    for unit in range(count):
        parts, work = ahead
        work.wait()
        whole = torch.cat(parts)
        ahead = begin(unit + 1) if unit + 1 < count else None
        forward(unit, whole[:sizes[unit]])
""",
    "not-whole": LOOP.replace("whole[:sizes[unit]]", "shards[unit]"),
    "padding": LOOP.replace("whole[:sizes[unit]]", "whole"),
    "wrong-weights": LOOP.replace("whole[:sizes[unit]]", "whole[:sizes[unit]].flip(0)"),
    "order": LOOP.replace("range(count)", "reversed(range(count))").replace("start(0)", "start(count - 1)").replace(
        "start(unit + 1)", "start(unit - 1) if unit else None"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "check", "start", "written"),
    [("sharded-step", CHECK, SHARDED, STEPPED), ("prefetch-by-hand", AHEAD, PREFETCH, AHEADS)],
)
def test_what_readers_write_is_told_what_it_is(tmp_path, key, check, start, written):
    given = answers.code_of(exercises.exercise("fsdp", key))
    written = {"-given": given, **answers.restyled(given)} | {slip: start + body for slip, body in written.items()}
    said = answers.told(check, "right: 2 ranks", written, tmp_path)
    if check is CHECK:
        assert "order of the ranks" in said["wrong-weights"] and "off by up to 0.0" in said["wrong-weights2"]
