"""The lab exercise `bytes-held` on real ranks: right in other words, and what is said of what is wrong."""

import re

import answers
import pytest

from scaleout import exercises

LAB = exercises.exercise("memory", "bytes-held")
LAB_GIVEN = re.search(r"```python\n(.*?)```", LAB.solution, re.S).group(1)

# What a reader writes in the lab, and the slip it is answered with.
WRITTEN = {
    "": LAB_GIVEN,
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
}

REDUCED = "    dist.all_reduce(largest, dist.ReduceOp.MAX)\n"
GATHERED = """\
    everyone = [None, None]
    dist.all_gather_object(everyone, largest.item())
    largest = torch.tensor(max(everyone))
"""
TRAINED = "size(w for w in weights if w.requires_grad)"

# The same in other words.
RIGHT = {
    "in-a-list": LAB_GIVEN.replace("t.numel() * t.element_size()", "t.nbytes").replace(
        "return mine, largest.item()", "return [mine, float(largest)]"),
    "gathered": LAB_GIVEN.replace("if torch.is_tensor(t)", "if t.dim()").replace(REDUCED, GATHERED),
    "storages": LAB_GIVEN.replace("t.numel() * t.element_size()", "t.untyped_storage().nbytes()").replace(
        "optimizer.state.values()", "optimizer.state_dict()['state'].values()"),
    "over-rank-0": LAB_GIVEN.replace(REDUCED, "    dist.reduce(largest, 0, dist.ReduceOp.MAX)\n"
                                     "    dist.broadcast(largest, 0)\n"),
}  # fmt: skip

# More that is wrong, by the slip it is answered with: other rules of thumb, the job changed before it is weighed, and
# the numbers of one job written down.
OTHERWISE = {
    "by-requires-grad": ("trained-only", LAB_GIVEN.replace(
        "size(w.grad for w in weights if w.grad is not None)", TRAINED)),
    "eight-bytes": ("four-bytes", LAB_GIVEN.replace("size(states)", f"8 * sum(w.numel(){TRAINED[6:]}")),
    "sixteen": ("wrong-size", LAB_GIVEN.replace("size(weights)", "16 * sum(w.numel() for w in weights)")),
    "freed-first": ("nothing", LAB_GIVEN.replace("    weights =", "    optimizer.zero_grad()\n    weights =")),
    "in-fp32-first": ("four-bytes", LAB_GIVEN.replace("    weights =", "    model.float()\n    weights =")),
    "written-down": ("wrong-size", "import torch.distributed as dist\ndef bytes_held(model, optimizer):\n"
                     "    mine = ((8928, 4832, 9680), (8928, 4096, 11340))[dist.get_rank()]\n"
                     "    return dict(zip(('weights', 'gradients', 'optimizer'), mine)), 24364\n"),
    "of-rank-0": ("smallest", LAB_GIVEN.replace(REDUCED, "    dist.broadcast(largest, 0)\n")),
    "on-rank-0": ("own-total", LAB_GIVEN.replace(REDUCED, "    dist.reduce(largest, 0, dist.ReduceOp.MAX)\n"
                                                 "    if dist.get_rank(): largest += 1\n")),
}  # fmt: skip

# A mistake on one rank is told as what it is. In the last the other rank waits in its all_reduce until that
# gives up.
ONE_RANK = {
    "wrong-size": LAB_GIVEN.replace("    largest =", '    mine["weights"] += 8 * dist.get_rank()\n    largest ='),
    "tied-twice": LAB_GIVEN.replace(
        "size(weights)", "size(model.state_dict().values() if dist.get_rank() else weights)"),
    "shape": LAB_GIVEN.replace("return mine,", "return 1 if dist.get_rank() else mine,"),
    "no-gradient": LAB_GIVEN.replace("    largest =", "    if dist.get_rank(): None.numel()\n    largest ="),
}  # fmt: skip


def lab(*files):
    return answers.lab("memory", *files)


@pytest.mark.slow
def test_the_lab_exercise_on_two_ranks(tmp_path):
    """One launch for all files: the reference is right, and every other is told what is wrong with it."""
    files = [tmp_path / f"{slip or 'solution'}.py" for slip in WRITTEN]
    for file, source in zip(files, WRITTEN.values(), strict=True):
        file.write_text(source, encoding="utf-8")
    assert len(set(WRITTEN.values())) == len(WRITTEN)
    result = lab(*files)
    assert result.returncode == 1, result.stderr
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert said.pop("solution.py").startswith("right: the ranks hold")
    for slip in filter(None, WRITTEN):
        assert said[f"{slip}.py"].startswith(f"not yet ({slip}): "), said[f"{slip}.py"]
    assert len(set(said.values())) == len(WRITTEN) - 1


@pytest.mark.slow
def test_the_lab_exercise_takes_other_words_and_no_rule_of_thumb(tmp_path):
    sources = {**RIGHT, **{name: source for name, (_, source) in OTHERWISE.items()}}
    assert len({LAB_GIVEN, *sources.values()}) == len(sources) + 1
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    said = dict(line.split(": ", 1) for line in lab(*(tmp_path / f"{name}.py" for name in sources)).stdout.splitlines())
    for name in RIGHT:
        assert said[f"{name}.py"].startswith("right: the ranks hold"), said[f"{name}.py"]
    for name, (slip, _) in OTHERWISE.items():
        assert said[f"{name}.py"].startswith(f"not yet ({slip}): "), said[f"{name}.py"]


@pytest.mark.slow
def test_a_mistake_on_one_rank_is_told_and_the_next_file_is_still_checked(tmp_path):
    """The tied weight has a gradient on one rank only, so counting gradients twice is wrong on that rank alone."""
    twice = "size(w.grad for w in [*weights, model['head'].weight] if w.grad is not None)"
    sources = {
        "one_rank": LAB_GIVEN.replace("size(w.grad for w in weights if w.grad is not None)", twice),
        "tensors": LAB_GIVEN.replace("return sum(", "return torch.tensor(sum(").replace(
            "for t in tensors)", "for t in tensors))"
        ).replace("torch.tensor(sum(mine.values()))", "sum(mine.values())").replace("largest.item()", "largest"),
    }
    files = [tmp_path / f"{name}.py" for name in sources]
    for file, source in zip(files, sources.values(), strict=True):
        file.write_text(source, encoding="utf-8")
    said = dict(line.split(": ", 1) for line in lab(*files).stdout.splitlines())
    assert "gradients: " in said["one_rank.py"] and said["one_rank.py"].startswith("not yet (")
    assert said["tensors.py"].startswith("right: the ranks hold")


@pytest.mark.slow
def test_what_stops_one_rank_does_not_lose_the_other(tmp_path):
    """Also where it comes before the reader's own collective, in which the other rank waits."""
    files = [tmp_path / f"{slip}.py" for slip in ONE_RANK]
    for file, source in zip(files, ONE_RANK.values(), strict=True):
        assert source != LAB_GIVEN
        file.write_text(source, encoding="utf-8")
    result = lab(*files)
    assert result.returncode == 1, result.stderr
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert {file: line.split(": ")[0] for file, line in said.items()} == {
        f"{slip}.py": f"not yet ({slip})" for slip in ONE_RANK}  # fmt: skip
    assert "rank 1" in said["wrong-size.py"] and "rank 1" in said["no-gradient.py"]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "words"), [
    (None, "there is no file"),
    ("def bytes_held(:", "line 1: "),
    ("x = 1", "has no function bytes_held"),
    ("import no_such_module\nbytes_held = print", "ModuleNotFoundError"),
])  # fmt: skip
def test_a_file_that_cannot_be_checked_is_one_line_and_exit_code_2(tmp_path, source, words):
    file = tmp_path / "mine.py"
    if source is not None:
        file.write_text(source, encoding="utf-8")
    result = lab(file)
    assert result.returncode == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
