"""What the book takes from torch's private parts is there, in this torch; what is gone is named."""

import pytest
import torch

from scaleout.measure.fsdp_memory import fake_world
from scaleout.parallel import private, shard
from scaleout.parallel.transformer import Transformer
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape


@pytest.mark.parametrize("name", private.NAMES)
def test_torch_still_has(name):
    assert getattr(private, name) is not None


def test_what_is_gone_is_named_with_the_version(monkeypatch):
    monkeypatch.setitem(private.NAMES, "gone", "torch.utils._pytree:gone")
    with pytest.raises(ImportError) as caught:
        private.gone  # noqa: B018
    assert str(caught.value) == f"torch {torch.__version__} has no torch.utils._pytree.gone"
    with pytest.raises(AttributeError, match="has no attribute 'never'"):
        private.never  # noqa: B018


def test_fully_shard_is_built_as_the_book_reads_it():
    with fake_world(2) as s:
        model = shard.shard(s, Transformer(Shape(2, 32, 4, 50, max_seq=16)), Sharding(2))
        group = private.group(model.blocks[0])
        missing = [name for name in (*private.GROUP, *private.METHODS) if not hasattr(group, name)]
        assert not missing, f"torch {torch.__version__}: a group of fully_shard has no {', '.join(missing)}"
        half = sum(p.numel() for p in model.blocks[0].parameters()) // 2
        assert (private.shard_elements(group), private.gathered_ahead(model.blocks[0])) == (half, 1)
        private.gather_beside_compute(model, False)
        assert not group.unshard_async_op
