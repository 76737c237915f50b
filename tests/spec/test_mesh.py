"""The grid of a mesh: who stands where, who is in whose group, and which groups leave a node."""

from collections import Counter
from itertools import pairwise, permutations

import pytest
from cases import over, refused

from scaleout.spec.layout import Layout, alone, context_share
from scaleout.spec.mesh import ORDER, Grid, blocks, crosses, grid, group_cluster, group_on, link, nearest, refuse
from scaleout.spec.slices import divides
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS

EIGHT = Layout(dp=2, tp=2, pp=2)


@over(order=list(permutations(ORDER)), sizes=[(2, 3, 1, 4), (1, 1, 1, 1), (5, 2, 2, 1)])
def test_every_rank_stands_somewhere_and_is_in_one_group_of_each_axis(order, sizes):
    ours = grid(Layout(**dict(zip(("dp", "tp", "cp", "pp"), sizes, strict=True))), order)
    places = [ours.coordinates(rank) for rank in range(ours.ranks)]
    assert [ours.rank(place) for place in places] == list(range(ours.ranks))
    for axis in order:
        groups = ours.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(ours.ranks))
        assert {len(group) for group in groups} == {ours.size(axis)}
        for group in groups:
            assert {b - a for a, b in pairwise(group)} <= {ours.stride(axis)}
    assert ours.groups(*order) == (tuple(range(ours.ranks)),)


def test_the_innermost_axis_has_neighbours_side_by_side():
    ours = grid(EIGHT)
    assert ours.groups("tp") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert ours.groups("dp") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert ours.groups("pp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert ours.coordinates(5) == {"pp": 1, "dp": 0, "cp": 0, "tp": 1}
    assert ours.group(5, "dp", "tp") == ours.group(5, "tp", "dp") == (4, 5, 6, 7)


@pytest.mark.parametrize(
    ("order", "crossing"), [(ORDER, {"pp"}), (("dp", "pp", "cp", "tp"), {"dp"}), (("tp", "pp", "dp", "cp"), {"tp"})]
)
def test_on_two_nodes_of_four_the_outermost_axis_crosses(order, crossing):
    two, ours = cluster(2, 4, nics=4), grid(EIGHT, order)
    assert {axis for axis in ORDER if crosses(two, ours, axis)} == crossing
    for axis in ("dp", "tp", "pp"):
        nodes = {two.node(rank) for rank in ours.group(0, axis)}
        assert group_on(two, ours, axis).nodes == len(nodes) == 1 + (axis in crossing)
        assert link(two, ours, axis) == (two.share if axis in crossing else two.near)


@over(nodes=[1, 2, 6], gpus=[2, 8], ranks=[1, 2, 4, 8, 16])
def test_groups_of_neighbours_and_of_ranks_apart(nodes, gpus, ranks):
    """Neighbours fill a node or whole nodes; every `ranks`-th rank is on as many nodes as can be, and all such groups
    share what leaves a node."""
    whole = cluster(nodes, gpus)
    if whole.ranks % ranks or (ranks > gpus and ranks % gpus) or ranks > whole.ranks:
        return
    near, far = group_cluster(whole, (1, ranks)), group_cluster(whole, (ranks, whole.ranks // ranks))
    assert (near.nodes, near.gpus_per_node) == (max(1, ranks // gpus), min(ranks, gpus))
    assert near.ranks * far.ranks == whole.ranks
    if near.nodes > 1:
        assert near.pool.bytes_per_s == pytest.approx(whole.pool.bytes_per_s)
    if far.nodes > 1:
        assert (far.nodes, far.gpus_per_node) == (whole.ranks // max(ranks, gpus), max(1, gpus // ranks))
        assert far.pool.bytes_per_s == pytest.approx(whole.pool.bytes_per_s / min(ranks, gpus))


def test_a_group_that_straddles_nodes_unevenly_is_taken_for_a_sparser_one():
    whole = cluster(3, 8)
    nine = group_cluster(whole, (2, 9))  # four a node would be 2.25 nodes
    assert (nine.nodes, nine.gpus_per_node) == (9, 1)
    assert nine.pool.bytes_per_s == whole.pool.bytes_per_s / 8
    six = group_cluster(whole, (1, 6))
    assert (six.nodes, six.gpus_per_node) == (3, 2)


def test_replicas_are_one_group_where_their_axes_are_side_by_side():
    layout = Layout(dp=4, cp=2, tp=2)
    assert group_on(cluster(2, 8), grid(layout), "dp", "cp") == group_cluster(cluster(2, 8), (2, 8))


@pytest.mark.parametrize("order", list(permutations(ORDER)), ids="-".join)
def test_a_group_of_two_axes_lies_on_the_nodes_that_its_ranks_are_on(order):
    """With any axis between them, as Llama 3 has the pipeline between dp and cp (arXiv 2407.21783, section 3.3.2)."""
    two, ours = cluster(4, 8), grid(Layout(dp=4, cp=2, tp=2, pp=2), order)
    nodes = Counter(two.node(rank) for rank in ours.group(0, "dp", "cp"))
    group = group_on(two, ours, "dp", "cp")
    assert group.ranks == 8 and {group.gpus_per_node} == set(nodes.values()) and group.nodes == len(nodes)


def test_experts_borrow_ranks():
    dense, experts = grid(Layout(dp=4, tp=2, pp=2)), Grid((("pp", 2), ("edp", 1), ("ep", 8), ("etp", 1)))
    assert dense.ranks == experts.ranks == 16, "no 16 x 8"
    assert experts.group(3, "ep") == dense.group(3, "dp", "tp")


@over(layers=[4, 7, 32, 80, 126], stages=[1, 2, 3, 4, 7, 16])
def test_blocks_are_the_models_and_the_longest_stages_are_inside(layers, stages):
    if stages > layers:
        stated = f"use at most {layers} stage{'s' if layers > 1 else ''}"
        return refused(lambda: blocks(layers, stages), stated)
    each = blocks(layers, stages)
    assert len(each) == stages and sum(each) == layers and min(each) >= 1
    if not layers % stages:
        assert set(each) == {layers // stages}
    elif stages > 2:
        assert max(each[0], each[-1]) <= min(each[1:-1])
    return None


def test_llama_3_has_one_block_less_on_its_first_and_its_last_stage():
    assert blocks(126, 16) == (7, *[8] * 14, 7)
    assert blocks(126, 9) == (14,) * 9


def test_a_context_rank_has_a_part_of_the_sequence_and_replicas():
    flat, tokens = context_share(Layout(dp=4, cp=2, tp=2, pp=2, micro_batches=8), 8192)
    assert (flat.dp, flat.cp, flat.ranks, tokens) == (8, 1, 32, 4096)
    assert Layout(dp=4, cp=2).replicas == 8
    assert context_share(EIGHT, 100) == (EIGHT, 100)
    refused(lambda: context_share(Layout(cp=4), 100), "cp 4 cuts a sequence into 8 pieces, not 100 tokens: use 96")


def test_a_wrong_number_of_gpus_is_told_the_nearest_layout():
    shape = PRESETS["llama-3-8b"]
    refuse(shape, Layout(dp=2, tp=4, pp=4), 32)
    refused(
        lambda: refuse(shape, Layout(dp=3, tp=4, pp=2), 32),
        "dp 3 x cp 1 x tp 4 x pp 2 is 24 ranks, there are 32: the nearest that works is dp 4, cp 1, tp 4, ",
    )
    near = nearest(shape, Layout(dp=1, tp=3, pp=5), 32)
    assert near.ranks == 32 and divides(shape, near.tp) and near.pp <= shape.layers
    near = nearest(PRESETS["llama-3-8b"], Layout(tp=12), 32)
    assert near.tp == 8, "16 would copy the 8 key-value heads"
    assert nearest(shape, Layout(dp=3, tp=16), 32).tp == 16, "which is kept where it was asked for"
    near = nearest(shape, Layout(pp=6, chunks=3, micro_batches=12, schedule="interleaved"), 8)
    assert (near.pp, near.chunks) == (8, 1), "the schedule of another pipeline is not kept"


@over(gpus=[1, 6, 8, 12, 96], tp=[1, 2, 3, 8], pp=[1, 2, 5, 8], cp=[1, 4])
def test_the_nearest_layout_fills_the_gpus_and_keeps_what_fits(gpus, tp, pp, cp):
    asked = Layout(tp=tp, pp=pp, cp=cp)
    near = nearest(PRESETS["llama-3-8b"], asked, gpus)
    assert near.ranks == gpus and divides(PRESETS["llama-3-8b"], near.tp) and near.pp <= 32
    if divides(PRESETS["llama-3-8b"], tp) and not gpus % (tp * pp * cp):
        assert (near.tp, near.pp, near.cp) == (tp, pp, cp)


def test_what_cannot_be():
    refused(lambda: Layout(cp=0), "cp must be a whole number of at least 1")
    refused(lambda: grid(EIGHT, ("dp", "tp", "pp")), "the order names pp, dp, cp, tp, each once, not dp, tp, pp")
    for order, said in ((0, "not 0"), (None, "not None"), ("a\nb", "not 'a', '\\n', 'b'"), ([["pp"]], "not ['pp']")):
        refused(lambda order=order: grid(EIGHT, order), f"the order names pp, dp, cp, tp, each once, {said}")
    for gpus in (None, 0, 10**30, 2**61 - 1):
        refused(lambda gpus=gpus: nearest(PRESETS["llama-3-8b"], Layout(), gpus), "gpus must be a whole number")
    refused(lambda: Grid(()), "name at least one")
    refused(lambda: Grid((("dp", 2), ("dp", 2))), "each once")
    refused(lambda: Grid((("dp", 0),)), "dp must be a whole number")
    refused(lambda: grid(EIGHT).coordinates(8), "ranks go from 0 to 7")
    refused(lambda: grid(EIGHT).group(0, "ep"), "use one of pp, dp, cp, tp")
    refused(lambda: grid(EIGHT).rank({"pp": 0, "dp": 0, "cp": 0}), "coordinates are of pp, dp, cp, tp")
    refused(lambda: grid(EIGHT).rank({"pp": 0, "dp": 2, "cp": 0, "tp": 0}), "dp 2 is not there: it goes from 0 to 1")
    refused(lambda: alone(Layout(cp=2), "dp", "tp"), "cp is priced in the models of a mesh: use cp 1, not 2")
