"""The lab exercise `bytes-held` on real ranks: right in other words, and what is said of what is wrong."""

import answers
import pool
import pytest

from scaleout import exercises
from scaleout.exercises.memory.ranks import CHECK

LAB = exercises.exercise("memory", "bytes-held")
LAB_GIVEN = answers.code_of(LAB)

TWICE = "size(w.grad for w in [*weights, model['head'].weight] if w.grad is not None)"
REDUCED = "    dist.all_reduce(largest, dist.ReduceOp.MAX)\n"
GATHERED = """\
    everyone = [None, None]
    dist.all_gather_object(everyone, largest.item())
    largest = torch.tensor(max(everyone))
"""
TRAINED = "size(w for w in weights if w.requires_grad)"

# What a reader writes in the lab, and the slip it is answered with; after a blank, what else is in it. A name that
# starts with a hyphen is of the same in other words.
WRITTEN = {
    "-given": LAB_GIVEN,
    "stub": LAB.stub,
    "counted-numbers": LAB_GIVEN.replace(" * t.element_size()", ""),
    "four-bytes": LAB_GIVEN.replace("t.element_size()", "4"),
    "tied-twice": LAB_GIVEN.replace("size(weights)", "size(model.state_dict().values())"),
    "frozen": LAB_GIVEN.replace("size(w.grad for w in weights if w.grad is not None)", "size(weights)"),
    "no-gradient": LAB_GIVEN.replace(" if w.grad is not None", ""),
    "nothing": LAB_GIVEN.replace("size(states)", "0"),
    "trained-only": LAB_GIVEN.replace("size(weights)", "size(w for w in weights if w.requires_grad)"),
    "one-moment": LAB_GIVEN.replace("size(states)", "size(states) / 2"),
    "kinds": LAB_GIVEN.replace("torch.tensor(sum(mine.values()))", "torch.tensor(list(mine.values()))").replace(
        "largest.item()", "largest.sum().item()"),
    "one-kind": LAB_GIVEN.replace("torch.tensor(sum(", "torch.tensor(max("),
    "smallest": LAB_GIVEN.replace("ReduceOp.MAX", "ReduceOp.MIN"),
    "mean": LAB_GIVEN.replace("ReduceOp.MAX", "ReduceOp.SUM").replace("largest.item()", "largest.item() / 2"),
    "sum": LAB_GIVEN.replace("ReduceOp.MAX", "ReduceOp.SUM"),
    "own-total": LAB_GIVEN.replace("    dist.all_reduce(largest, dist.ReduceOp.MAX)\n", ""),
    "shape": LAB_GIVEN.replace("return mine, largest.item()", "return mine, torch.zeros(2)"),
    "wrong-size": LAB_GIVEN.replace("size(weights)", "17"),
    **answers.restyled(LAB_GIVEN),
    "rank-1 broadcast": LAB_GIVEN.replace(REDUCED, "    dist.broadcast(largest, 1)\n"),
    "-in-a-list": LAB_GIVEN.replace("t.numel() * t.element_size()", "t.nbytes").replace(
        "return mine, largest.item()", "return [mine, float(largest)]"),
    "-gathered": LAB_GIVEN.replace("if torch.is_tensor(t)", "if t.dim()").replace(REDUCED, GATHERED),
    "-storages": LAB_GIVEN.replace("t.numel() * t.element_size()", "t.untyped_storage().nbytes()").replace(
        "optimizer.state.values()", "optimizer.state_dict()['state'].values()"),
    "-over-rank-0": LAB_GIVEN.replace(REDUCED, "    dist.reduce(largest, 0, dist.ReduceOp.MAX)\n"
                                      "    dist.broadcast(largest, 0)\n"),
    "-tensors": LAB_GIVEN.replace("return sum(", "return torch.tensor(sum(").replace(
        "for t in tensors)", "for t in tensors))").replace(
        "torch.tensor(sum(mine.values()))", "sum(mine.values())").replace("largest.item()", "largest"),
    # other rules of thumb, the job changed before it is weighed, and the numbers of one job written down
    "trained-only by-requires-grad": LAB_GIVEN.replace("size(w.grad for w in weights if w.grad is not None)", TRAINED),
    "four-bytes eight": LAB_GIVEN.replace("size(states)", f"8 * sum(w.numel(){TRAINED[6:]}"),
    "wrong-size sixteen": LAB_GIVEN.replace("size(weights)", "16 * sum(w.numel() for w in weights)"),
    "nothing freed-first": LAB_GIVEN.replace("    weights =", "    optimizer.zero_grad()\n    weights ="),
    "four-bytes in-fp32-first": LAB_GIVEN.replace("    weights =", "    model.float()\n    weights ="),
    "wrong-size written-down": "import torch.distributed as dist\ndef bytes_held(model, optimizer):\n"
                               "    mine = ((8928, 4832, 9680), (8928, 4096, 11340))[dist.get_rank()]\n"
                               "    return dict(zip(('weights', 'gradients', 'optimizer'), mine)), 24364\n",
    "rank-0 broadcast": LAB_GIVEN.replace(REDUCED, "    dist.broadcast(largest, 0)\n"),
    "own-total on-rank-0": LAB_GIVEN.replace(REDUCED, "    dist.reduce(largest, 0, dist.ReduceOp.MAX)\n"
                                             "    if dist.get_rank(): largest += 1\n"),
    # a mistake on one rank; the tied weight has a gradient on one only, so that counting it twice is wrong there alone
    "wrong-size rank-1": LAB_GIVEN.replace(
        "    largest =", '    mine["weights"] += 8 * dist.get_rank()\n    largest ='),
    "tied-twice rank-1": LAB_GIVEN.replace(
        "size(weights)", "size(model.state_dict().values() if dist.get_rank() else weights)"),
    "shape rank-1": LAB_GIVEN.replace("return mine,", "return 1 if dist.get_rank() else mine,"),
    "wrong-size gradients-twice": LAB_GIVEN.replace(
        "size(w.grad for w in weights if w.grad is not None)", TWICE),
}  # fmt: skip


@pytest.mark.slow
def test_the_lab_exercise_on_two_ranks(tmp_path):
    said = answers.told(CHECK, "right: the ranks hold", WRITTEN, tmp_path)
    named = [words for slip, words in said.items() if slip[0] != "-" and " " not in slip]
    assert len(set(named)) == len(named)
    assert "rank 1" in said["wrong-size rank-1"] and "gradients: " in said["wrong-size gradients-twice"]


@pytest.mark.slow
def test_as_a_reader_starts_it(tmp_path):
    """The launcher is a program, and so are its ranks."""
    file = tmp_path / "mine.py"
    file.write_text(LAB_GIVEN, encoding="utf-8")
    done = pool.lab(["-m", "scaleout.exercises.memory.ranks", file])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mine.py: right: the ranks hold")
