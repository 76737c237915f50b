"""The answers of `fsdp`'s exercises, against arithmetic by hand, torch's own chunks, Accelerate and real ranks."""

import json
import re
from dataclasses import asdict
from functools import partial

import answers
import pool
import pytest

from scaleout import exercises
from scaleout.collectives import nccl
from scaleout.collectives.alpha_beta import bus_bandwidth
from scaleout.exercises.fsdp import fallback
from scaleout.exercises.fsdp import sizes as fsdp_sizes
from scaleout.exercises.fsdp import wrap as fsdp_wrap
from scaleout.exercises.fsdp.ranks import CHECK
from scaleout.exercises.fsdp.sizes import SHAPE
from scaleout.memory import fsdp as memory_fsdp
from scaleout.spec.sharding import Sharding
from scaleout.spec.topology import cluster
from scaleout.views import render

N = 8_030_261_248  # parameters of Llama 3 8B, by its model card 8.03 billion
BLOCK, ROOT_UNIT = 218_112_000, 1_050_677_248  # by hand: 4096 x (2 x 4096 + 2 x 1024 + 3 x 14336 + 2); the rest
# The exercises' own model, Llama 2 7B: parameters, a block by hand, and what is left in the root.
LLAMA_2_7B, OWN_BLOCK, OWN_ROOT = 6_738_415_616, 4096 * (4 * 4096 + 3 * 11_008 + 2), (2 * 32_000 + 1) * 4096


value = partial(answers.value, "fsdp")
solution = partial(answers.solution, "fsdp")


def test_the_model_and_its_units_are_those_that_hand_arithmetic_gives():
    assert fsdp_sizes.PARAMETERS == N == 32 * BLOCK + ROOT_UNIT
    assert fsdp_sizes.BLOCK.parameters == BLOCK == 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336 + 2)
    assert fsdp_sizes.ROOT.parameters == ROOT_UNIT == (2 * 128_256 + 1) * 4096
    assert fsdp_sizes.OTHER_PARAMETERS == LLAMA_2_7B == 32 * OWN_BLOCK + OWN_ROOT


def test_numbers_that_follow_from_one_line_of_arithmetic():
    assert value("gathered-peak") == 2 * (OWN_ROOT + 2 * OWN_BLOCK)
    assert value("prefetch-forward") == pytest.approx(0.005 + 32 * 0.007)
    assert value("offload-seconds") == pytest.approx(2 * 4 * LLAMA_2_7B / 32 / (16e9 * 16 * 128 / 130 / 8))


def test_too_fine_a_wrapping_waits_in_the_books_model_as_the_exercise_says():
    seen = {
        wrap: render(
            "fsdp", {"model": "gpt2-medium", "ranks": "64", "link": "node-ib", "batch": 2, "seq": "1024", "wrap": wrap}
        )["values"]
        for wrap in ("layer", "block")
    }
    assert (round(seen["layer"]["waiting_percent"]), round(seen["block"]["waiting_percent"], 1)) == (28, 2.2)
    peak, usable = (seen["layer"][f"{name}_gib"] for name in ("peak", "usable"))
    assert (round(peak), round(usable), int(usable - peak)) == (3, 68, 65)
    machine = cluster(8, 8)
    reached = [
        bus_bandwidth("all_gather", size, 64, nccl.price("all_gather", size, machine).seconds) / 400e9
        for size in (2 * 1024**2, 2 * 4 * 1024**2, 2 * 12.6e6)
    ]  # a matrix of attention, of the MLP; a block
    assert [round(share, 2) for share in reached] == [0.03, 0.12, 0.28], "of eight adapters at 50 GB/s"


def test_counts_are_those_of_the_books_memory_model():
    count = solution("all-gathers")
    for wrap in ("model", "block", "layer"):
        for reshard in (True, False, 4):
            cut = Sharding(ranks=8, wrap=wrap, reshard=reshard)
            gathers = memory_fsdp.collectives(SHAPE, cut)["all_gather"]["count"]
            assert count(len(fsdp_sizes.wrapped(wrap)), reshard, 1) == gathers


def test_gathered_peaks_are_those_of_the_memory_model():
    """What a block in the middle of the forward finds whole, and what is on its way in a buffer."""
    for kind, buffer in (("cpu", 0), ("cuda", 2 * OWN_BLOCK)):  # the buffer that a GPU keeps is left out
        held_bytes = next(
            moment.held
            for moment in fsdp_sizes.memory(kind, fsdp_sizes.LLAMA, 32, wrap="block").moments
            if (moment.phase, moment.unit, moment.activity) == ("forward", "blocks.16", "compute")
        )
        assert value("gathered-peak") + buffer == held_bytes["gathered"] + held_bytes["buffers"]
    assert 1.96 < fsdp_wrap._SPARED / 2**30 < 1.96 + 0.99


def test_gathers_by_hand():
    count = solution("all-gathers")
    assert (count(5, True, 1), count(5, False, 1), count(5, 2, 1)) == (9, 5, 9)
    assert count(1, True, 3) == 3


# --- against torch and Accelerate on real ranks -----------------------------------------------------------

COUNT = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
dist.init_process_group("gloo")
def model():
    return nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({str(i): nn.Linear(4, 4) for i in range(4)}))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.blocks = nn.Linear(4, 4), nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    def forward(self, x):
        return self.blocks(self.table(x))
out = {}
for reshard in (True, False):
    net = Net()
    for block in net.blocks:
        fully_shard(block, reshard_after_forward=reshard)
    fully_shard(net)
    with CommDebugMode() as counted:
        net(torch.randn(2, 4)).sum().backward()
    out[str(reshard)] = {str(name).split(".")[-1]: n for name, n in counted.get_comm_counts().items()}
first = Net()
fully_shard(first)
out["root"] = len(first._get_fsdp_state()._fsdp_param_group.fsdp_params)
try:
    fully_shard(first.blocks[0])
    out["then"] = "no error"
except TypeError as error:
    out["then"] = "TypeError"
if dist.get_rank() == 0:
    import json
    print("COUNT " + json.dumps(out), flush=True)
dist.destroy_process_group()
"""


def two_ranks(script):
    process = pool.lab([script], 2)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


@pytest.mark.slow
def test_gathers_and_the_order_of_calls_are_those_of_torch(tmp_path):
    file = tmp_path / "count.py"
    file.write_text(COUNT, encoding="utf-8")
    counts = json.loads(re.search(r"COUNT (.*)", two_ranks(str(file))).group(1))
    count = solution("all-gathers")
    for reshard in (True, False):
        assert counts[str(reshard)] == {"_allgather_base_": count(5, reshard, 1), "_reduce_scatter_base_": 5}
    assert counts["root"] == 10  # a weight and a bias of each of the five layers: everything
    assert counts["then"] == "TypeError"


@pytest.mark.slow
def test_what_accelerate_builds_is_what_the_exercise_shows():
    pytest.importorskip("accelerate")
    reports = [
        json.loads(line) for line in re.findall(r"BUILT (\{.*?\})", two_ranks("tests/ranks/specimen_fallback.py"))
    ]
    by_rank = {(report.pop("asked"), report.pop("rank")): report for report in reports}
    assert set(by_rank) == {(strategy, rank) for strategy in fallback.BUILT for rank in (0, 1)}
    for strategy, built in fallback.BUILT.items():
        first, second, shown = by_rank[strategy, 0], by_rank[strategy, 1], asdict(built)
        assert first | {"losses": None} == shown | {"losses": None}
        assert first["losses"] == pytest.approx(shown["losses"], abs=2e-4)
        assert second["shard_bytes"] == first["shard_bytes"]
        assert second["losses"] != first["losses"], "each rank has its own data"


# --- the lab exercise on real ranks -----------------------------------------------------------------------

SOLUTION = answers.code_of(exercises.exercise("fsdp", "sharded-step"))
FORWARD = "        forward(unit, gather(unit)) "
SCATTER = "        dist.reduce_scatter(gradients[unit], list(padded.chunk(world)))\n"
NEVER_FREED = SOLUTION.replace(FORWARD, "        kept.append(gather(unit)); forward(unit, kept[-1]) ").replace(
    "    for unit in range(len(shards)):", "    kept = []\n    for unit in range(len(shards)):"
)
LAST = (
    SOLUTION.replace(FORWARD, "        last = gather(unit); forward(unit, last) ")
    .replace("backward(unit, gather(unit))", "backward(unit, last if unit == len(shards) - 1 else gather(unit))")
    .replace(
        "    for unit in range(len(shards)):",
        "    last = None\n    for unit in range(len(shards)):\n        last = None",
    )
    .replace("        padded = torch.zeros", "        last = None\n        padded = torch.zeros")
)
REDUCED = "        dist.all_reduce(padded)\n        mine = padded.view(world, -1)[dist.get_rank()]\n"
LONG = SOLUTION.replace(
    "        dist.all_gather(parts, shards[unit])\n",
    (
        "        whole = torch.cat(parts)\n        dist.all_gather_into_tensor(whole, shards[unit])\n"
        "        return whole[:sizes[unit]]\n"
    ),
).replace(SCATTER, ("        dist.reduce_scatter_tensor(gradients[unit], padded)\n"))
RESIZED = SOLUTION.replace(
    FORWARD, "        whole = gather(unit); forward(unit, whole); whole.untyped_storage().resize_(0) "
)
WRITTEN = {
    "-given": SOLUTION,
    "-last-kept": LAST,
    "-resized": RESIZED,
    "-long": LONG,
    "stub": exercises.exercise("fsdp", "sharded-step").stub,
    "not-freed": NEVER_FREED,
    "padding": SOLUTION.replace("torch.cat(parts)[:sizes[unit]]", "torch.cat(parts)"),
    "not-whole": SOLUTION.replace("forward(unit, gather(unit)) ", "forward(unit, shards[unit]) "),
    "not-averaged": SOLUTION.replace("        gradients[unit] /= world ", "        pass "),
    "own-gradient": SOLUTION.replace(SCATTER, "        gradients[unit].copy_(world * padded.view(world, -1)"
                                           "[dist.get_rank()])\n"),
    "all-reduce": SOLUTION.replace(SCATTER, REDUCED + "        gradients[unit].copy_(mine)\n"),
    "view": SOLUTION.replace(SCATTER, REDUCED + "        gradients[unit] = mine\n"),
    "whole-gradient": SOLUTION.replace(SCATTER, "        dist.all_reduce(padded)\n        gradients[unit] = padded\n"),
    "order": SOLUTION.replace("reversed(range(len(shards)))", "range(len(shards))"),
    "no-list": SOLUTION.replace("    return gradients\n", ""),
    "wrong-gradient": SOLUTION.replace("        gradients[unit] /= world ", "        gradients[unit] += 1 "),
    "too-many": SOLUTION.replace(FORWARD, "        gather(unit); forward(unit, gather(unit)) "),
    "exception": SOLUTION.replace("torch.zeros", "torch.zeroes"),
    "deadlock": SOLUTION.replace(
        "    gradients = ", "    if dist.get_rank():\n        dist.barrier()\n    gradients = "
    ),
}  # fmt: skip


@pytest.mark.slow
def test_the_lab_exercise_on_two_ranks(tmp_path):
    answers.told(CHECK, "right: 2 ranks gathered 4 units", WRITTEN, tmp_path)
