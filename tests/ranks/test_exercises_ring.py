"""The lab exercise `ring-on-ranks` under attack: answers that readers would write, on two, three and four real ranks.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and
named by the slip that the checker has to see in them; after a blank, what else is in it.
"""

import answers
import pytest

from scaleout import exercises
from scaleout.exercises.collectives.ranks import CHECK

GIVEN = answers.code_of(exercises.exercise("collectives", "ring-on-ranks"))
TALK = """\
        sent = dist.isend(leaving, right)
        received = dist.irecv(arriving, left)
        received.wait()
        sent.wait()
"""
BATCH = """\
        ops = [dist.P2POp(dist.isend, leaving, right), dist.P2POp(dist.irecv, arriving, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
"""
WHOLE = """\
import torch
import torch.distributed as dist
def ring_all_reduce(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    leaving = tensor.clone()
    for _ in range(ranks - 1):
        arriving = torch.empty_like(tensor)
        sent = dist.isend(leaving, (rank + 1) % ranks)
        dist.irecv(arriving, (rank - 1) % ranks).wait()
        sent.wait()
        tensor += arriving
        leaving = arriving
"""
NAIVE = """\
import torch
import torch.distributed as dist
def ring_all_reduce(tensor):
    others = range(1, dist.get_world_size())
    if dist.get_rank():
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    arriving = torch.empty_like(tensor)
    for other in others:
        dist.recv(arriving, other)
        tensor += arriving
    for other in others:
        dist.send(tensor, other)
"""
OBJECTS = """\
        got = [None]
        if rank % 2:
            dist.recv_object_list(got, left)
            dist.send_object_list([leaving.clone()], right)
        else:
            dist.send_object_list([leaving.clone()], right)
            dist.recv_object_list(got, left)
        arriving = got[0]
"""
METHODS = """\
        group = dist.group.WORLD
        works = [group.send([leaving], right, 0), group.recv([arriving], left, 0)]
        for work in works:
            work.wait()
"""
# Ranks by turns, so that nobody waits for a receiver that is sending.
TURNS = """\
        if rank % 2:
            dist.recv(arriving, left)
            dist.send(leaving.clone(), right)
        else:
            work = dist.isend(leaving.clone(), right)
            dist.recv(arriving, left)
            work.wait()
"""
# Chunks of one length, the last ones shorter or empty, and a ring to the left.
CEIL = "tensor.split(max(1, -(-len(tensor) // ranks))) + (tensor[:0],) * ranks"
LEFT = (
    GIVEN.replace("(rank + 1) % ranks, (rank - 1) % ranks", "(rank - 1) % ranks, (rank + 1) % ranks")
    .replace("(rank - step) % ranks", "(rank + step) % ranks")
    .replace("(rank - step - 1) % ranks", "(rank + step + 1) % ranks")
)
CHAIN = """\
import torch
import torch.distributed as dist
def ring_all_reduce(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(tensor)
    if rank:
        dist.irecv(arriving, rank - 1).wait()
        tensor += arriving
    dist.isend(tensor.clone(), (rank + 1) % ranks).wait()
    if rank != ranks - 1:
        dist.irecv(tensor, (rank - 1) % ranks).wait()
        if rank != ranks - 2:
            dist.isend(tensor, rank + 1).wait()
"""
COPY = "    tensor = tensor.clone()\n    rank, ranks"
CUT = "[tensor[i * (len(tensor) // ranks):(i + 1) * (len(tensor) // ranks)] for i in range(ranks)]"
WRITTEN = {
    "-given": GIVEN,
    "-batched": GIVEN.replace(TALK, BATCH),
    "-turns": GIVEN.replace(TALK, TURNS),
    **answers.restyled(GIVEN),
    "-as-objects": GIVEN.replace(TALK, OBJECTS),
    "-methods-of-the-group": GIVEN.replace(TALK, METHODS),
    "-left-by-other-chunks": LEFT.replace("tensor.tensor_split(ranks)", CEIL),
    "stub": exercises.exercise("collectives", "ring-on-ranks").stub,
    "forgot-all-gather": GIVEN.replace("range(2 * (ranks - 1))", "range(ranks - 1)"),
    "one-step-short": GIVEN.replace("range(2 * (ranks - 1))", "range(2 * ranks - 3)"),
    "counted-twice": GIVEN.replace("taking.copy_(arriving)", "taking += arriving"),
    "dropped-rest": GIVEN.replace("tensor.tensor_split(ranks)", CUT),
    "not-in-place": GIVEN.replace("    rank, ranks", COPY) + "    return tensor\n",
    "unchanged": GIVEN.replace("    rank, ranks", COPY),
    "rounded": GIVEN.replace("    chunks =", "    whole, tensor = tensor, tensor.float()\n    chunks =")
    + "    whole.copy_(tensor)\n",
    "used-a-collective": "import torch.distributed as dist\n"
    "def ring_all_reduce(tensor):\n    dist.all_reduce(tensor)\n",
    "not-a-ring": NAIVE,
    "sent-too-much": WHOLE,
    "mean": GIVEN + "    tensor.div_(ranks, rounding_mode=None if tensor.is_floating_point() else 'floor')\n",
    "used-a-collective by-a-method-of-the-group": "import torch.distributed as dist\n"
    "def ring_all_reduce(tensor):\n    dist.group.WORLD.allreduce([tensor]).wait()\n",
    "sent-too-much along a chain": CHAIN,
    "counted-twice by one round more": WHOLE.replace("range(ranks - 1)", "range(ranks)"),
    "mismatch": GIVEN.replace("(rank - step - 1) % ranks", "(rank - step - 2) % ranks"),
    "few-chunks": GIVEN.replace("tensor.tensor_split", "tensor.chunk"),
    "exception": GIVEN.replace("chunks = tensor", "chunks = tenso"),
    # what is not the mistake that it looks like
    "wrong-sum doubled-where-rank-0-ends": GIVEN + "    if rank == 0:\n        tensor += tensor\n",
    "wrong-sum last-chunk-off": GIVEN + "    tensor[-1:] += 1\n",
    "wrong-sum first-alone": GIVEN + "    tensor[1:] = tensor[1:] * 0\n",
    "sent-too-much to-the-left-as-well": WHOLE.replace("leaving = arriving", "leaving = arriving.clone()"),
    "deadlock": GIVEN.replace(TALK, "        dist.send(leaving, right)\n        dist.recv(arriving, left)\n"),
}


@pytest.mark.slow
def test_the_lab_exercise_on_two_three_and_four_ranks(tmp_path):
    """Each file is told what is wrong with it, also after one that stood still or was ended by gloo."""
    written = WRITTEN | {"-last": GIVEN + "# again\n"}
    said = answers.told(CHECK, "right on 2, 3 and 4 processes", written, tmp_path)
    assert "a deadlock" in said["deadlock"] and "for 4 s" in said["deadlock"]
