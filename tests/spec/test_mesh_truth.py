"""The grid of ranks against torch's device mesh: coordinates, and the members of every group, on every rank."""

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from scaleout.parallel import private
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import ORDER, Grid, grid

LAYOUTS = {
    "2 x 2 x 2": grid(Layout(dp=2, tp=2, pp=2)),
    "another order": grid(Layout(dp=3, tp=2, pp=2, cp=2), ("tp", "cp", "dp", "pp")),
    "sizes that differ": grid(Layout(dp=3, tp=4, pp=2), ORDER),
    "experts' mesh": Grid((("pp", 2), ("edp", 2), ("ep", 4), ("etp", 1))),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_coordinates_and_groups_are_torchs(name):
    ours, groups = LAYOUTS[name], {axis: set() for axis in LAYOUTS[name].names}
    for rank in range(ours.ranks):
        dist.init_process_group("fake", store=private.FakeStore(), rank=rank, world_size=ours.ranks)
        try:
            mesh = init_device_mesh("cpu", ours.sizes, mesh_dim_names=ours.names)
            assert list(mesh.get_coordinate()) == list(ours.coordinates(rank).values())
            for axis in ours.names:
                members = tuple(dist.get_process_group_ranks(mesh.get_group(axis)))
                assert members == ours.group(rank, axis)
                groups[axis].add(members)
        finally:
            dist.destroy_process_group()
    assert all(set(ours.groups(axis)) == groups[axis] for axis in ours.names)


def test_axes_side_by_side_flatten_to_one_group():
    ours = LAYOUTS["sizes that differ"]
    dist.init_process_group("fake", store=private.FakeStore(), rank=5, world_size=ours.ranks)
    try:
        mesh = init_device_mesh("cpu", ours.sizes, mesh_dim_names=ours.names)
        flat = tuple(mesh["dp", "cp"].mesh.flatten().tolist())
    finally:
        dist.destroy_process_group()
    assert flat == ours.group(5, "dp", "cp") == ours.group(5, "dp")
