"""What the lab of three axes reads and prints, and how it predicts a slow link: by hand, without ranks."""

import pytest
from cases import each, refused

from scaleout.lab import mesh, mesh_link
from scaleout.lab.hosts import GOODPUT, burst
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import ORDER
from scaleout.spec.transformer import Shape

SHAPE = Shape(8, 64, 8, 256, max_seq=32)


def test_a_layout_of_so_many_ranks_and_sequences():
    layout, batch = mesh.layout(SHAPE, mesh.usual(8), 8, 16)
    assert (layout.dp, layout.tp, layout.pp, layout.m, batch) == (2, 2, 2, 4, 2), "two micro-batches for each stage"
    assert mesh.layout(SHAPE, "tp=8", 8, 16) == (Layout(tp=8, gather_again=False, micro_batches=1), 16)
    assert mesh.layout(SHAPE, "pp=2,v=2,m=2", 8, 16)[0].schedule == "interleaved"
    assert mesh.layout(SHAPE, "pp=3", 3, 3)[0].m == 3, "no more than there are"
    assert [mesh.layout(SHAPE, mesh.usual(n), n, 2 * n)[0].dp for n in (1, 2, 3, 4)] == [1, 1, 3, 1]
    split = mesh.layout(SHAPE, "tp=2,zero=1", 8, 16, sequence_parallel=True)[0]
    assert (split.zero, split.sequence_parallel) == (1, True)


@each(
    [
        ("tp=3", 8, 16, "the nearest that works is"),
        ("dp=4,tp=4", 8, 16, "is 16 ranks, there are 8: "),
        ("tp=2", 6, 16, "dp 3 does not divide a batch of 16 sequences"),
        ("pp=2,m=3", 8, 16, "m 3 does not fit 4 sequences a replica: use m "),
        ("pp=4,m=2", 8, 16, "1f1b needs a micro-batch for each of 4 ranks, not 2: use m = 4"),
    ]
)
def test_what_ranks_and_sequences_cannot_be_is_refused(text, world, sequences, said):
    refused(lambda: mesh.layout(SHAPE, text, world, sequences), said)


def test_a_profile_of_groups_is_said_to_be_too_low_where_ranks_share_cores():
    assert mesh.profile_lines(None, 0.4, 8, 2) == []
    (plain,) = mesh.profile_lines(0.2, 0.4, 8)
    assert plain == "predicted from the machine's profile: 200.0 ms, 0.500 of what was measured"
    assert mesh.profile_lines(0.2, 0.4, 2, 2) == [plain]
    assert mesh.profile_lines(0.2, 0.4, 8, 2)[0].startswith(f"{plain} (8 ranks share 2 cores: in a step")
    assert "share" not in mesh.profile_lines(0.5, 0.4, 8, 2)[0], "what is told too slow is no matter of turns"


def test_an_order_has_each_axis_once():
    assert mesh.order("pp,dp,tp") == ORDER
    assert mesh.order("tp,pp,dp") == ("tp", "pp", "dp", "cp")
    refused(lambda: mesh.order("pp,tp"), "name dp, tp and pp once each")


@pytest.mark.parametrize(("world", "count"), [(1, 1), (2, 3), (4, 6), (8, 10)])
def test_every_layout_of_a_power_of_two_is_there_once(world, count):
    found = [layout for layout, _ in mesh.layouts(SHAPE, world, 2 * world)]
    assert len(set(found)) == len(found) == count, "three exponents that add up to log2 of the ranks"
    assert all(layout.ranks == world for layout in found)


def test_layouts_that_cannot_be_are_left_out():
    few = mesh.layouts(Shape(2, 64, 4, 256, max_seq=32), 8, 16)
    assert max(layout.pp for layout, _ in few) == 2
    assert max(layout.tp for layout, _ in few) == 4
    assert [layout.dp for layout, _ in mesh.layouts(SHAPE, 3, 6)] == [3, 1], "three heads are not to be had"


def test_four_are_chosen_as_far_apart_as_four_can_be():
    names, factor = mesh.chosen({"a": 1.0, "b": 1.2, "c": 2.0, "d": 4.1, "e": 9.0, "f": 10.0})
    assert names == ["a", "c", "d", "e"]
    assert factor == 2.0, "a to c; at 2.1 there would be three"
    assert mesh.chosen({"a": 1.0, "b": 1.01})[0] == ["a", "b"]


def test_an_order_is_judged_where_predictions_are_apart():
    assert mesh.inversions([1, 2, 4], [3, 2, 9]) == (1, 3)
    assert mesh.inversions([1, 1.9], [3, 2]) == (0, 0)
    assert mesh.inversions([1, 2, 4], [1, 2, 3]) == (0, 3)


def test_what_decides_is_what_the_slowest_has_more_of():
    rows = [
        {"name": "a", "seconds": 1.0, "parts": {"compute": 0.8, "along tp": 0.2}},
        {"name": "b", "seconds": 3.0, "parts": {"compute": 0.6, "along tp": 2.4}},
    ]
    assert mesh.decides(rows) == "b takes 3.0 times as long as a: 110% of the difference is along tp"


def test_what_is_sent_is_told_by_axis():
    said = mesh.sent([(0, {"tp": {"all_reduce": (2000, 4)}}, {"tp": {"all_reduce": (2000, 4)}, "dp": {}})])
    assert "stage 0, along tp" in said and "4 AR" in said and "1.000" in said


def test_a_fault_says_what_each_check_says():
    said = mesh.fault([(5.0, 5.0), (4.0, 5.0)], 0.5, {"one": "", "another": "rank 1 is wrong"})
    assert "-2.0e-01" in said and "(WRONG)" in said
    assert said.splitlines()[-2:] == ["one      finds nothing", "another  rank 1 is wrong"]


# --- a slow link ----------------------------------------------------------------------------------------------------

RATE = 50e6
SPEED = RATE / 8 * GOODPUT


def test_messages_that_are_waited_for_add_up():
    free = min(burst(RATE), 0.01 * RATE / 8)
    wanted = 1.0 + 10 * (500_000 - free) / SPEED
    assert mesh_link.predicted(1.0, [("all_reduce", 500_000, 10)], 0.01, RATE) == pytest.approx(wanted)
    assert mesh_link.predicted(1.0, [("all_reduce", 500_000, 10)], 0.01, None) == 1.0
    assert mesh_link.predicted(1.0, [("all_reduce", 1000, 10)], 0.01, RATE) == 1.0, "the burst takes them"


def test_of_a_pipelines_messages_the_first_and_the_last_show():
    wire = (500_000 - 0.001 * RATE / 8) / SPEED
    assert mesh_link.predicted(1.0, [("send", 500_000, 4)], 0.001, RATE) == pytest.approx(1.0 + 2 * wire)
    late = mesh_link.predicted(0.1, [("send", 500_000, 4)], 0.001, RATE)
    assert late == pytest.approx(0.1 + 4 * wire), "unless they take longer than what is computed between two"


def test_what_leaves_a_host_is_that_of_all_its_ranks():
    asked = [("all_reduce", 100, 3), ("all_gather", 100, 2)]
    assert mesh_link.crossing(asked, 4) == [("all_reduce", 400, 3), ("all_gather", 200, 2)]
