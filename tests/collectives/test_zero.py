"""What ZeRO sends: the paper's pieces, what programs make of them, and what what its frames have moved."""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from cases import refused, refuses_nonsense

from scaleout.collectives import alpha_beta
from scaleout.collectives.zero import (
    REUSE,
    WAYS,
    Message,
    messages,
    muon_messages,
    pieces,
    sent,
    share,
    wire_bytes,
)
from scaleout.memory.zero_frames import frames
from scaleout.spec.layout import Layout
from scaleout.spec.muon import matrix_parameters
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, units
from scaleout.spec.topology import Wire
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.timing.fsdp import volume

MEASURED = json.loads((Path(__file__).parents[1] / "published" / "zero_deepspeed.json").read_text())
ADAMW = Recipe("bf16-master")
N = 6_738_415_616  # Llama 2 7B


def on(ranks, stage):
    return Layout(dp=ranks, zero=stage)


def test_the_papers_pieces():
    """2, 2, 2 and 3 times the weights (1910.02054, section 7), whatever the number of ranks."""
    for n in (2, 3, 4, 64):
        assert [pieces(N, ADAMW, on(n, stage)) for stage in range(4)] == pytest.approx([2, 2, 2, 3], rel=1e-15)
    assert sent(messages(N, ADAMW, on(4, 2)), 4) == 2 * 2 * N * 3 / 4
    assert [one.collective for one in messages(N, ADAMW, on(4, 3))] == ["all_gather", "all_gather", "reduce_scatter"]


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("paper", (2, 2, 2, 3)),
        ("DistributedDataParallel", (2,)),
        ("ZeroRedundancyOptimizer", (3,)),
        ("DeepSpeed reduce", (2, 2)),
        ("fully_shard", (3,)),
    ],
)
def test_programs_differ(way, said):
    assert [pieces(N, ADAMW, on(8, stage), way) for stage in WAYS[way]] == pytest.approx(said, rel=1e-15)


def test_deepspeed_as_it_comes():
    """It all-reduces what stages 1 and 2 could reduce to the owner; stage 3 gathers its last 5e8 parameters once."""
    assert [pieces(N, ADAMW, on(8, stage), "DeepSpeed") for stage in (1, 2)] == pytest.approx([3, 3], rel=1e-15)
    assert pieces(N, ADAMW, on(8, 3), "DeepSpeed") == pytest.approx(3 - REUSE / 2 / N, rel=1e-12)
    assert pieces(10**8, ADAMW, on(8, 3), "DeepSpeed") == pytest.approx(2, rel=1e-15)
    assert pieces(10**8, ADAMW, on(8, 3), "DeepSpeed", stay=0) == pytest.approx(3, rel=1e-15)


@pytest.mark.parametrize("row", MEASURED["rows"], ids=str)
def test_deepspeed_as_it_was_counted(row):
    many, reuse = MEASURED["layers"] * MEASURED["layer"], row["options"].get("stage3_max_reuse_distance")
    way = "DeepSpeed reduce" if "use_multi_rank_bucket_allreduce" in row["options"] else "DeepSpeed"
    found = messages(
        many, Recipe("fp32"), on(2, row["stage"]), way, passes=row["passes"], stay=None if reuse is None else reuse // 2
    )
    bytes_of = Counter()
    for one in found:
        bytes_of[one.collective] += one.bytes
    assert {name: size / many / 4 for name, size in bytes_of.items()} == row["pieces"]


def test_the_grid_has_moved_as_much():
    """The last frame's pieces, and pass by pass."""
    for n, stage, passes in product((1, 2, 3, 8), range(4), (1, 2, 5)):
        for keep in {False, stage == 3}:
            play = frames(ADAMW, on(n, stage), keep, passes)
            assert pieces(N, ADAMW, on(n, stage), keep=keep, passes=passes) == pytest.approx(play[-1].sent, rel=1e-14)


def test_one_rank_sends_nothing():
    for way, stages in WAYS.items():
        for stage in stages:
            assert messages(N, ADAMW, on(1, stage), way) == () and pieces(N, ADAMW, on(1, stage), way) == 0


@pytest.mark.parametrize("n", [2, 3, 7, 8])
def test_a_share_is_what_the_algorithms_send(n):
    """Of a ring, which sends no more than it must; an owner of an n-th gathers or scatters it among n - 1."""
    wire = Wire(0.0, 1.0)
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        cost = alpha_beta.cost(collective, "ring", n * 10**6, n, wire)
        assert cost.sent_bytes == cost.received_bytes == pytest.approx(share(collective, n) * n * 10**6)
    for collective in ("broadcast", "reduce"):  # from each owner or to it: its own part, once past n - 1 links
        assert share(collective, n) * n * 10**6 == pytest.approx(sum((n - 1) * 10**6 for _ in range(n)) / n)


def test_accumulation():
    """What is sent in every pass, beside what is sent once."""
    found = {stage: pieces(N, ADAMW, on(8, stage), passes=4) for stage in range(4)}
    assert found == pytest.approx({0: 2, 1: 2, 2: 4 + 1, 3: 4 * 3}, rel=1e-15)
    assert pieces(N, ADAMW, on(8, 0), "DistributedDataParallel", passes=4) == pytest.approx(8)
    assert pieces(N, ADAMW, on(8, 0), "DistributedDataParallel", passes=4, every_pass=False) == pytest.approx(2)
    assert pieces(N, ADAMW, on(8, 1), "ZeroRedundancyOptimizer", passes=4) == pytest.approx(9)
    assert pieces(N, ADAMW, on(8, 1), "DeepSpeed", passes=4) == pytest.approx(3)
    assert pieces(N, ADAMW, on(8, 2), "DeepSpeed", passes=4) == pytest.approx(9)
    assert pieces(N, ADAMW, on(8, 3), "fully_shard", passes=4, every_pass=False) == pytest.approx(9)
    assert pieces(N, ADAMW, on(8, 3), "fully_shard", passes=4, every_pass=False, keep=True) == pytest.approx(5)


def test_dtypes_of_what_travels():
    """fully_shard with bf16 parameters and fp32 reduction: 2 + 2 + 4 bytes per parameter; main gradients are fp32."""
    mixed = messages(N, Recipe("fp32"), on(2, 3), "fully_shard", weight_bytes=2, gradient_bytes=4)
    assert [one.bytes / N for one in mixed] == [2, 2, 4] and sent(mixed, 2) == 4 * N
    main = messages(N, Recipe("bf16-master", main_gradients="instead"), on(2, 1))
    assert [one.bytes / N for one in main] == [4, 2]
    assert [one.bytes / N for one in messages(N, Recipe("fp32"), on(2, 1))] == [4, 4]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("n", [2, 8])
def test_fully_shard_as_chapter_06_has_it(n, keep):
    """Unit by unit and padded there, where no unit of this model needs padding; the root is gathered once."""
    shape = PRESETS["llama-2-7b"]
    sharding = Sharding(n, reshard=not keep, parameter="bf16", reduce="fp32")
    root = next(unit.parameters for unit in units(shape, sharding) if not unit.name)
    found = messages(
        total_parameters(shape),
        Recipe("fp32"),
        on(n, 3),
        "fully_shard",
        keep=keep,
        weight_bytes=2,
        gradient_bytes=4,
        stay=None if keep else root,
    )
    assert sent(found, n) == volume(shape, sharding)["total"]


def test_buckets_are_counted():
    """A unit is what travels together: as many calls as it takes, and not a byte more."""
    whole, cut = (messages(10**9, ADAMW, on(4, 3), unit=unit, passes=2) for unit in (None, 3 * 10**8))
    assert [one.count for one in whole] == [2, 2, 2] and [one.count for one in cut] == [8, 8, 8]
    assert [one.bytes for one in whole] == [one.bytes for one in cut]
    assert whole[0] == Message("forward", "all_gather", "weights", 4 * 10**9, 2, 2)
    assert messages(10**9, ADAMW, on(4, 1), "ZeroRedundancyOptimizer")[1].count == 4, "each owner its own"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: messages(N, ADAMW, on(4, 2), "fully_shard"), "fully_shard has no stage 2: use 3"),
        (lambda: messages(N, ADAMW, on(4, 0), "DeepSpeed"), "DeepSpeed has no stage 0: use 1 or 2 or 3"),
        (lambda: messages(N, ADAMW, on(4, 2), "FairScale"), "way 'FairScale' is unknown"),
        (lambda: messages(N, ADAMW, on(4, 2), keep=True), "use stage 3, not 2"),
        (lambda: messages(N, ADAMW, on(4, 3), stay=N + 1), "is more than all"),
        (lambda: messages(N, ADAMW, on(4, 2), "DeepSpeed", every_pass=False), "in every pass: leave every_pass None"),
        (lambda: messages(N, ADAMW, on(4, 1), passes=0), "passes must be a whole number"),
        (lambda: messages(0, ADAMW, on(4, 1)), "parameters must be a whole number"),
        (lambda: messages(N, ADAMW, on(4, 1), unit=0), "unit must be a whole number"),
        (lambda: messages(N, ADAMW, on(4, 1), weight_bytes=0.5), "weight_bytes must be a whole number"),
        (lambda: messages(N, Recipe(adapter="lora"), on(4, 1)), "use adapter none"),
    ],
)
def test_refusals_are_one_line(wrong, says):
    refused(wrong, says)


LLAMA = PRESETS["llama-2-7b"]


def test_muon_sends_at_most_a_quarter_more():
    """Liu et al. 2025 (2502.16982, section 2.3): 4 + 2 + 4 bytes per parameter beside AdamW's 4 + 4; only matrices."""
    layout, fp32 = on(8, 1), Recipe("fp32")
    adamw, extra = (
        sent(found, 8)
        for found in (messages(matrix_parameters(LLAMA), fp32, layout), muon_messages(LLAMA, fp32, layout))
    )
    assert (adamw + extra) / adamw == 1.25
    assert 1.2 < 1 + extra / sent(messages(N, fp32, layout), 8) < 1.25


@pytest.mark.parametrize("n", [2, 4, 8])
def test_what_muon_gathers_under_each_stage(n):
    matrix, bytes_of = 2 * matrix_parameters(LLAMA) * (n - 1) / n, {}
    for stage, how in product(range(4), ("gather", "owner", "DeepSpeed")):
        bytes_of[stage, how] = sent(muon_messages(LLAMA, ADAMW, on(n, stage), how), n)
    assert all(bytes_of[0, how] == 0 for how in ("gather", "owner", "DeepSpeed"))
    for stage in (1, 2, 3):
        assert bytes_of[stage, "gather"] == matrix
        assert bytes_of[stage, "owner"] == pytest.approx(2 * matrix / n, rel=1e-9)
        assert bytes_of[stage, "DeepSpeed"] == (4 * matrix if stage == 3 else 0)
    assert muon_messages(LLAMA, ADAMW, on(n, 2), "whole") == () == muon_messages(LLAMA, ADAMW, on(1, 3))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: muon_messages(LLAMA, ADAMW, on(4, 3), "whole"), "use stage 1 or 2"),
        (lambda: muon_messages(LLAMA, ADAMW, on(4, 3), "rows"), "how must be one of gather, owner, whole, DeepSpeed"),
        (lambda: muon_messages(LLAMA, ADAMW, on(4, 3), width=0), "width must be a whole number"),
        (lambda: muon_messages([1], ADAMW, on(4, 3)), "shape must be a Shape"),
        (lambda: matrix_parameters([1]), "shape must be a Shape"),
    ],
)
def test_muons_refusals_are_one_line(wrong, says):
    refused(wrong, says)


def test_nonsense_is_refused():
    layout, found = on(4, 3), messages(N, ADAMW, on(4, 3))
    refuses_nonsense(messages, N, ADAMW, layout)
    refuses_nonsense(pieces, N, ADAMW, layout)
    refuses_nonsense(share, "all_gather", 4)
    refuses_nonsense(sent, found, 4, allowed=[(0, [])])
    refuses_nonsense(wire_bytes, ADAMW, 2, 4, allowed=[(1, None), (2, None)])
    refuses_nonsense(Message, "backward", "all_reduce", "gradients", 8, 4, 1, allowed=[(3, 0)])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            lambda: share("gossip", 4),
            "collective 'gossip' is unknown: use one of all_reduce, all_gather, reduce_scatter, ",
        ),
        (lambda: share("all_reduce", 0), "ranks must be a whole number of at least 1, not 0"),
        (lambda: sent("abc", 4), "found must be what `messages` gives, a tuple of Message, not 'abc'"),
        (lambda: sent([8], 4), "each of found must be a Message, not 8"),
        (lambda: wire_bytes("bf16"), "recipe must be a Recipe, not 'bf16'"),
        (
            lambda: Message("backward", "all_reduce", "gradients", -8, 4),
            "bytes must be a whole number of at least 0, not",
        ),
        (
            lambda: Message("backward", "all_reduce", "gradients", 8, 0),
            "count must be a whole number of at least 1, not 0",
        ),
        (
            lambda: messages(10**308, ADAMW, on(4, 1)),
            "bytes must be a whole number from 0 to 1.79769e+308, not 2000000000",
        ),
    ],
)
def test_what_is_no_message_is_said(wrong, says):
    refused(wrong, says)
