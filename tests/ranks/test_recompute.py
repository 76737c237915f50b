"""Recomputation on real processes: what FSDP gathers, and labs/recompute.py as a reader starts it."""

import re

import pool
import pytest
import specimen_recompute
from lab_runs import recorded, without

from scaleout.measure import recompute as measure
from scaleout.memory import recompute as memory
from scaleout.timing import recompute as timing

FAST = [
    "labs/recompute.py",
    "--layers",
    "2",
    "--hidden",
    "32",
    "--heads",
    "4",
    "--seq",
    "16",
    "--steps",
    "5",
    "--micro-batch",
    "2",
]


def test_under_fsdp_no_weight_is_gathered_once_more_and_gradients_are_one_processs():
    found = pool.ranks(specimen_recompute.main, 2)
    assert found[0] == found[1]
    policies = specimen_recompute.policies(specimen_recompute.O.sizes)
    assert {name for name, _ in found[0]} == set(policies)
    for (name, via), (forward, backward, error) in found[0].items():
        blocks = [order.count("G") for order in (forward, backward)]
        each, at_once = timing.gathers(policies[name])
        assert sum(blocks) == each * 4 + 1, (name, via)  # the root is gathered once
        assert backward.index("R") == at_once, (name, via)
        assert error < 1e-5, (name, via)
    assert found[0]["one segment", "torch"][1] == "GGGGRRRRR"


def test_a_unit_rebuilt_from_outside_gathers_what_it_was_told_to_prefetch():
    assert pool.ranks(specimen_recompute.around, 2) == [{False: 8, True: 11}] * 2


@pytest.mark.parametrize(
    ("world", "words"),
    [(1, ["--dropout", "0.1", "--attention", "naive", "--via", "hand"]), (2, ["--form", "llama", "--kv-heads", "2"])],
)
def test_six_budgets_are_as_predicted(world, words, tmp_path):
    record, said = recorded(pool.lab, [*FAST, *words], world, tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert all(check["passed"] for check in record.checks.values())
    exact = {
        name: check["value"] for name, check in record.checks.items() if "peak" not in name and "ranks" not in name
    }
    assert len(exact) == 5 * 3 * 2 + 6 * (world == 2)
    assert set(exact.values()) == {0}, "bytes, FLOPs and gradients to the last one"
    for via in ("by hand", "torch.utils.checkpoint"):
        kept = [
            record.measurement[f"bytes the blocks keep, {share}, {via}"]
            for share in ("everything", "80%", "60%", "40%", "20%", "inputs alone")
        ]
        assert kept == sorted(kept, reverse=True)
        assert kept[0] > 2 * kept[3] > 4 * kept[5]
    assert sum("ranks: gradients equal one process" in name for name in record.checks) == 4 * (world == 2)
    assert len(record.series["seconds per step, 40%"]) == 5
    assert record.losses[-1] < record.losses[0]
    assert ("replicas and FSDP's gathers" in said) is (world == 1)
    assert said.count(" yes\n") == 12


def test_a_router_that_changes_is_silent_and_a_check_finds_it():
    output = pool.output([*without(FAST, "--steps"), "--fault", "router"])
    assert "by hand: the same; torch's: the same" in output
    rows = {
        line.split()[0]: [float(cell.rstrip("%")) for cell in line.split()[1:]]
        for line in output.splitlines()
        if re.match(r"(router|experts\.\d)\.weight", line)
    }
    assert len(rows) == 5
    assert max(row[0] for row in rows.values()) > 20
    assert all(row[0] == row[1] and row[2:] == [0, 0] for row in rows.values())
    assert "have different metadata than during the forward pass" in " ".join(output.split())
    assert re.findall(r"(FAILED|ok) +run twice.*: (.*)", output) == [
        ("FAILED", "bias updated in the forward"),
        ("ok", "bias updated after the step"),
    ]


def test_a_router_with_one_token_has_no_error_and_says_what_it_did_not_see():
    done = pool.lab(["labs/recompute.py", "--fault", "router", "--seq", "1", "--micro-batch", "1"])
    assert done.returncode == 0 and "nan" not in done.stdout
    assert "nothing: no expert's rows changed" in done.stdout


def test_other_random_numbers_are_silent_too():
    done = pool.lab([*without(FAST, "--steps"), "--fault", "random", "--dropout", "0.2"])
    errors = re.findall(r"(?:first|others) +([\d.]+)%", done.stdout)
    assert float(errors[0]) == 0 and float(errors[1]) > 5


def test_torch_compile_finds_about_what_the_tiles_say():
    (_, half, some, fewest), (_, inputs, again, least) = measure.compiled(specimen_recompute.O, (0.5, 0.0))
    z = specimen_recompute.O.sizes
    assert inputs == z.x < half < 0.6 * memory.block_bytes(z, ())
    assert again == least == memory.flops(z, memory.full(z)) // 4, "from its input, a block is made again in one way"
    assert fewest <= some < again
