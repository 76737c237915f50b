"""Three axes by torch's own means on eight real processes and on four: values, what was built, what goes along each
axis."""

import pool
import pytest
import specimen_mesh_ways as specimen

from scaleout.memory.mesh import rank_parameters

TOLERANCE = 1e-5  # fp32, sums in other orders: see parallel/parity.py


LAYOUTS = specimen.LAYOUTS[8] | specimen.LAYOUTS[4] | specimen.ACCELERATE


@pytest.fixture(scope="module")
def worlds():
    return {world: pool.ranks(specimen.main, world)[0] for world in (8, 4)}


@pytest.fixture(scope="module")
def cases(worlds):
    return worlds[8]["cases"] | worlds[4]["cases"]


def layout_of(name):
    return LAYOUTS.get(name, LAYOUTS["2x2x2"])


def test_losses_and_all_gradients_are_one_processs(cases):
    assert len(cases) == len(LAYOUTS) + 2
    for name, case in cases.items():
        assert case["loss"] < TOLERANCE, name
        assert case["gradients"] < TOLERANCE, name


def test_a_rank_has_its_stages_and_its_part_of_each_matrix(cases):
    for (_, name), case in cases.items():
        layout = layout_of(name)
        assert len({tuple(stages) for stages in case["stages"]}) == layout.pp
        shards = "_StridedShard(dim=0, sf=2), Shard(dim=0)" if layout.tp > 1 else "Shard(dim=0),"
        replicas = "Replicate(), " if layout.zero == 0 else ""
        assert case["placements"] == f"({replicas}{shards})", name
    assert cases["gpt", "zero bubble"]["stages"][0] == [0, 3], "it bends back"
    assert cases["gpt", "2x2x2"]["built"] == (
        "fully_shard of DTensors on pp 2 x dp 2 x tp 2: stage(s) 0 of 2, Schedule1F1B of 2, 16,848 bytes of parameters "
        "here"
    )


def test_bytes_of_a_stages_ranks_are_its_parameters(cases):
    """The ranks of a stage have between them each of its parameters once for every copy that there should be."""
    for (form, name), case in cases.items():
        layout, each = layout_of(name), layout_of(name).ranks // layout_of(name).pp
        for stage in range(layout.pp):
            held = sum(case["bytes"][stage * each : (stage + 1) * each])
            wanted = 4 * rank_parameters(specimen.SHAPES[form], layout, stage)
            copies = layout.tp * (layout.dp if layout.zero == 0 else 1)
            twice = form == "gpt" and name == "zero bubble" and stage == 0  # both ends: torch's have a table each
            assert held == (wanted + 4 * 64 * 24 * twice) * copies, (form, name, stage)


def test_torchs_and_accelerates_ranks_stand_where_the_grid_says(worlds):
    assert worlds[8]["grids"][5]["2x2x2"] == [([1, 5], [1, 5]), ([5, 7], [5, 7]), ([4, 5], [4, 5])]
    for rank in (*worlds[8]["grids"], *worlds[4]["grids"]):
        for name, pairs in rank.items():
            assert pairs, name
            assert [theirs for theirs, _ in pairs] == [ours for _, ours in pairs], name


def test_each_axis_sends_what_it_is_for(worlds):
    """2x2x2 with two micro-batches, by hand: a unit is gathered in the first forward and again before the first
    backward (not the root, which stays), and reduced once; each half of a block is entered and left once forward and
    once backward for each of two blocks, with a gather and a scatter; so are the table and the head."""
    every = worlds[8]["sent"] | worlds[4]["sent"]
    sent = every["2x2x2"]
    assert sent[0]["pp"] == sent[7]["pp"] == {"send": 2, "recv": 2}, "activations one way, gradients the other"
    units, micro, halves = 2 + 1, 2, 2 * 2
    for rank in (0, 7):
        assert sent[rank]["dp"]["reduce_scatter"] == units
        assert sent[rank]["tp"]["all_gather"] == sent[rank]["tp"]["reduce_scatter"] == micro * (2 * halves + 1)
    assert sent[0].keys() == {"pp", "dp", "tp"}
    for rank in every["replicas"]:
        assert rank["dp"] == {"all_reduce": units}, "whole gradients, once a unit, and no weights"
    assert every["4x1x1"][0] == {"dp": {"all_gather": 4 + 1 + 4, "reduce_scatter": 4 + 1}}
    assert not any("pp" in rank for rank in every["2x2x1"])


def test_accelerate_says_what_it_lacks(worlds):
    pipeline, tensor = worlds[8]["refused"]
    assert pipeline == "Accelerate's ParallelismConfig has no pipeline: use pp 1, not 4, or torch's mesh"
    for said in worlds[4]["accelerator"].values():
        assert "ParallelismConfig is only compatible" in said and said.endswith("got DistributedType.MULTI_CPU."), said
    assert tensor == "" or "(tp_size=8) asks for transformers" in tensor
