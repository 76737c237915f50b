"""The lab exercises of `mesh` under attack: answers that readers would write, on four real ranks.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them; after a blank, what else is in it.
"""

import answers
import pytest
from answers import changed

from scaleout import exercises
from scaleout.exercises.mesh.ranks import ABSENT, CHECK, SAMPLES

SUMS, READ, FOUND = (exercises.exercise("mesh", key) for key in ("finish-gradients", "own-samples", "find-absent"))
SUMMED, DEALT, SEEN = (answers.code_of(one) for one in (SUMS, READ, FOUND))


HEAD = "import torch\nimport torch.distributed as dist\n\n\n"
BY_HAND = (
    HEAD
    + """\
def finish(gradients, sizes):
    pp, dp, tp = sizes
    mine = {}
    for axis, size, stride in (("pp", pp, dp * tp), ("dp", dp, tp), ("tp", tp, 1)):
        for first in range(4):
            if first // stride % size == 0:
                ranks = [first + i * stride for i in range(size)]
                group = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    mine[axis] = group
    for name, axes in (("cut", ["dp"]), ("whole", ["dp", "tp"]), ("tied", ["dp", "pp"])):
        for axis in axes:
            dist.all_reduce(gradients[name], group=mine[axis])
        gradients[name].div_(dp)
"""
)
GATHERED = (
    HEAD
    + """\
def finish(gradients, sizes):
    pp, dp, tp = sizes
    place = lambda r: (r // (dp * tp), r // tp % dp, r % tp)
    here = place(dist.get_rank())
    free = {"cut": (1,), "whole": (1, 2), "tied": (0, 1)}
    for name, one in gradients.items():
        every = [torch.empty_like(one) for _ in range(4)]
        dist.all_gather(every, one)
        some = [every[r] for r in range(4) if all(a == b or i in free[name]
                                                  for i, (a, b) in enumerate(zip(place(r), here)))]
        one.copy_(sum(some) / dp)
"""
)
FREE = 'free = {"cut": (1,), "whole": (1, 2), "tied": (0, 1)}'
COPIED = "one.copy_(sum(some) / dp)"
FINISHED = {
    "-given": SUMMED,
    **answers.restyled(BY_HAND),
    "-by-hand": BY_HAND,
    "wrong-gradient one-mesh": changed(GATHERED, (COPIED, "one.copy_(sum(some) / (dp if pp == 1 else 1))")),
    "own-groups by-name": changed(BY_HAND, ("import torch.distributed as dist\n", "import torch.distributed as dist\n"
                                            "from torch.distributed import new_group\n"),
                                  ("                group = dist.new_group(ranks)\n"
                                   "                if dist.get_rank() in ranks:\n                    mine",
                                   "                if dist.get_rank() in ranks:\n"
                                   "                    group = new_group(ranks)\n                    mine")),
    "-gathered": GATHERED,
    "stub": SUMS.stub,
    "not-in-place": changed(GATHERED, (COPIED, "one = sum(some) / dp")),
    "summed": changed(GATHERED, (" / dp)", ")")),
    "averaged": changed(GATHERED, (COPIED, COPIED.replace("dp", "(dp if name != 'whole' else dp * tp)"))),
    "not-added": changed(GATHERED, ('"whole": (1, 2)', '"whole": (1,)')),
    "not-added tied": changed(GATHERED, ('"tied": (0, 1)', '"tied": (1,)')),
    "not-averaged": changed(GATHERED, (FREE, 'free = {"cut": (), "whole": (2,), "tied": (0,)}'), (" / dp)", ")")),
    "added": changed(GATHERED, ('"cut": (1,)', '"cut": (1, 2)')),
    "added along-pp": changed(GATHERED, ('"whole": (1, 2)', '"whole": (0, 1, 2)')),
    "added everywhere": HEAD + "def finish(gradients, sizes):\n    for one in gradients.values():\n"
                               "        dist.all_reduce(one)\n        one /= 4\n",
    "order-of-axes": changed(GATHERED, ("(r // (dp * tp), r // tp % dp, r % tp)",
                                        "(r % pp, r // pp % dp, r // pp // dp)")),
    "wrong-gradient": changed(GATHERED, (" / dp)", " / (dp + 4))")),
    "exception": changed(GATHERED, ("gradients.items()", "gradients.iter()")),
    "own-groups": changed(BY_HAND, ("                group = dist.new_group(ranks)\n"
                                    "                if dist.get_rank() in ranks:\n                    mine",
                                    "                if dist.get_rank() in ranks:\n"
                                    "                    group = dist.new_group(ranks)\n                    mine")),
}  # fmt: skip

SAMPLED = (
    HEAD
    + """\
def my_samples(count, epoch, sizes):
    from torch.utils.data import DistributedSampler
    pp, dp, tp = sizes
    sampler = DistributedSampler(range(count), num_replicas=dp, rank=dist.get_rank() // tp % dp, seed=7)
    sampler.set_epoch(epoch)
    return list(sampler)
"""
)
SENT = (
    HEAD
    + """\
def my_samples(count, epoch, sizes):
    order = torch.randperm(count)
    dist.broadcast(order, 0)
    mine = count // sizes[1]
    at = dist.get_rank() // sizes[2] % sizes[1]
    return order[at * mine:(at + 1) * mine]
"""
)
REPLICA = "    replica = dist.get_rank() // tp % dp                  # not the rank\n"
READS = {
    "-given": DEALT,
    "-of-torch": SAMPLED,
    "-sent": changed(SENT, ("    order", "    torch.manual_seed(10 * epoch + dist.get_rank())\n    order", )),
    "-of-random": changed(DEALT, ("    seed = torch.Generator().manual_seed(epoch)           # the same on all ranks\n",
                                  "    import random\n"),
                          ("torch.randperm(count, generator=seed).tolist()",
                           "random.Random(epoch).sample(range(count), count)")),
    **answers.restyled(DEALT),
    "reseeded": changed(DEALT, ("    seed = torch.Generator().manual_seed(epoch)           # the same on all ranks\n",
                                "    torch.manual_seed(epoch)\n"), (", generator=seed", "")),
    "reseeded random": changed(DEALT, ("    seed = torch.Generator().manual_seed(epoch)           # the same on all "
                                       "ranks\n", "    import random\n    random.seed(epoch)\n"),
                               ("torch.randperm(count, generator=seed).tolist()",
                                "random.sample(range(count), count)")),
    "-state-put-back": changed(DEALT, ("    seed = torch.Generator().manual_seed(epoch)           # the same on all "
                                       "ranks\n", "    before = torch.get_rng_state()\n    torch.manual_seed(epoch)\n"),
                               (", generator=seed).tolist()", ").tolist()\n    torch.set_rng_state(before)")),
    "stub": READ.stub,
    "every-rank": changed(DEALT, (REPLICA, "    replica, dp = dist.get_rank(), 4\n")),
    "every-rank of-torch": changed(SAMPLED, ("num_replicas=dp, rank=dist.get_rank() // tp % dp, ", "")),
    "own-seed": changed(DEALT, ("torch.randperm(count, generator=seed)", "torch.randperm(count)")),
    "own-seed by-rank": changed(DEALT, ("manual_seed(epoch)", "manual_seed(epoch + 100 * dist.get_rank())")),
    "own-seed by-replica": changed(DEALT, ("manual_seed(epoch)", "manual_seed(100 * epoch + dist.get_rank() % 2)")),
    "all-the-same": changed(DEALT, ("order[replica::dp]", "order")),
    "wrong-axis": changed(DEALT, (REPLICA, "    replica = dist.get_rank() % dp\n")),
    "overlap": changed(DEALT, ("manual_seed(epoch)", "manual_seed(100 * epoch + replica)")),
    "other-samples one-epoch": changed(DEALT, ("manual_seed(epoch)",
                                               "manual_seed(epoch + 9 * replica * (epoch == 1 and dp == 4))")),
    "not-shuffled": changed(DEALT, ("torch.randperm(count, generator=seed).tolist()", "list(range(count))")),
    "same-epochs": changed(DEALT, ("manual_seed(epoch)", "manual_seed(1)")),
    "lost": changed(DEALT, ("order[replica::dp]", "order[replica::dp][:-1]")),
    "uneven": changed(DEALT, ("order[replica::dp]",
                              "order[replica * 5:(replica + 1) * 5 if replica < dp - 1 else None]")),
    "no-list": changed(DEALT, ("return order[replica::dp]", "return iter(order[replica::dp])")),
    "no-sample": changed(DEALT, ("return order[replica::dp]", "return [one + 1 for one in order[replica::dp]]")),
    "order-apart": changed(DEALT, ("    return order[replica::dp]",
                                   "    mine = order[replica::dp]\n"
                                   "    return [mine[i] for i in torch.randperm(len(mine))]")),
}  # fmt: skip

SUMMARY = (
    HEAD
    + """\
def absent(part, whole, samples, gradient, sizes):
    dp, tp = sizes
    rank = dist.get_rank()
    padded = torch.zeros(3, whole)
    padded[0, :len(part)], padded[1, :len(gradient)], padded[2, :len(samples)] = part, gradient, samples.float()
    every = [torch.empty_like(padded) for _ in range(dp * tp)]
    dist.all_gather(every, padded)
    bad = torch.tensor([0, int(len(part) != whole // tp)])
    for other in range(dp * tp):
        if other != rank and other // tp == rank // tp and torch.equal(every[other][0], padded[0]):
            bad[1] = 1
        if other != rank and other % tp == rank % tp:
            shared = set(samples.tolist()) & {int(one) for one in every[other][2][:len(samples)]}
            if shared or not torch.allclose(every[other][1], padded[1]):
                bad[0] = 1
    dist.all_reduce(bad, dist.ReduceOp.MAX)
    return [name for name, one in zip(("dp", "tp"), bad.tolist()) if one]
"""
)
LENGTH = "        if len(mine) * tp != whole:\n"
TWIN = "            if rank // tp == other // tp and torch.equal(mine, theirs):\n"
EITHER = "                if set(read) & set(others) or not torch.equal(summed, theirs_summed):\n"
ABSENTS = {
    "-given": SEEN,
    "-padded": SUMMARY,
    "-as-a-set": changed(SEEN, ("return sorted(found)", "return found")),
    **answers.restyled(SEEN),
    "missed-turned": changed(SEEN, ("if set(read) & set(others) or", "if read == others or")),
    "missed-one": changed(SEEN, ("if set(read) & set(others) or", "if set(read) == set(others) or")),
    "missed-turned by-the-first": changed(SEEN, ("if set(read) & set(others) or", "if read[0] == others[0] or")),
    "false-alarm by-the-first": changed(SEEN, ("torch.equal(mine, theirs):", "mine[0] == theirs[0]:")),
    "missed-last": changed(SEEN, ("not torch.equal(summed, theirs_summed)", "summed[0] != theirs_summed[0]")),
    "missed-repeat": changed(SEEN, ("if rank // tp == other // tp and",
                                     "if rank // tp == other // tp and other == rank - 1 and")),
    "stub": FOUND.stub,
    "ranks-disagree": changed(SUMMARY, ("    dist.all_reduce(bad, dist.ReduceOp.MAX)\n", "")),
    "ranks-disagree alone": HEAD + "def absent(part, whole, samples, gradient, sizes):\n"
                                   "    return ['tp'] if len(part) * sizes[1] != whole or float(part[0]) < 0 else []\n",
    "missed-whole": changed(SEEN, (LENGTH, "        if False:\n"), (TWIN, TWIN.replace("torch.equal(mine, theirs)",
                                                                                       "len(mine) * tp == whole and "
                                                                                       "torch.equal(mine, theirs)"))),
    "missed-twin": changed(SEEN, (TWIN, "            if False:\n")),
    "missed-gradient": changed(SEEN, (EITHER, "                if set(read) & set(others):\n")),
    "missed-samples": changed(SEEN, (EITHER, "                if not torch.equal(summed, theirs_summed):\n")),
    "missed-whole nothing": HEAD + "def absent(part, whole, samples, gradient, sizes):\n    return []\n",
    "false-alarm": changed(SEEN, ("            if rank % tp == other % tp:\n", "            if True:\n")),
    "axis-of-one": changed(SEEN, ("len(mine) * tp != whole", "len(mine) * max(tp, 2) != whole")),
    "no-list": changed(SEEN, ("return sorted(found)", "return 'tp' in found")),
    "no-list other-names": changed(SEEN, ("return sorted(found)", "return [one.upper() for one in sorted(found)]")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "right", "written"),
    [
        (CHECK, "right on 4 processes, as 3 meshes: means", FINISHED),
        (SAMPLES, "right on 4 processes, as 4 meshes: the same", READS),
        (ABSENT, "right on 4 processes: 17 layouts", ABSENTS),
    ],
    ids=["finish", "samples", "absent"],
)
def test_what_readers_write_is_told_what_it_is(tmp_path, check, right, written):
    answers.told(check, right, written, tmp_path)
