"""Checks of a mesh, on what ranks would say: what no fault of labs/mesh.py shows."""

from types import SimpleNamespace

import pytest
import torch

from scaleout.parallel.mesh_checks import assert_parts, assert_same_tokens
from scaleout.spec.layout import Layout
from scaleout.spec.transformer import Shape


def mesh_of(answers):
    """A mesh whose ranks have said this."""
    return SimpleNamespace(
        s=SimpleNamespace(gathered=lambda _: answers),
        place={"dp": 0, "pp": 0},
        stored=0,
        shape=Shape(4, 24, 4, 64),
        layout=Layout(),
    )


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([(0, 5), (0, 5), (1, 5), (1, 5)], "two replicas read the same batch"),
        ([(0, 5), (0, 5), (1, 6), (1, 7)], "the ranks of replica 1 read 2 different batches"),
        ([(0, 5), (1, 6), (2, 5)], "two replicas read the same batch"),
    ],
)
def test_replicas_read_other_tokens_and_ranks_of_one_the_same(answers, said):
    with pytest.raises(RuntimeError, match=said):
        assert_same_tokens(mesh_of(answers), [torch.zeros(1, 2)])
    assert_same_tokens(mesh_of([(0, 5), (0, 5), (1, 6), (1, 6)]), [torch.zeros(1, 2)])


@pytest.mark.parametrize("stored", [200, 50])
def test_a_rank_with_more_or_less_than_its_part_is_named(stored):
    with pytest.raises(RuntimeError, match=f"rank 1 holds {stored} bytes of weights, and its part is 100"):
        assert_parts(mesh_of([(100, 100), (stored, 100)]))
    assert_parts(mesh_of([(100, 100), (100, 100)]))
