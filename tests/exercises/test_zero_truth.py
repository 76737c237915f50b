"""What `zero`'s exercises say of torch's parts and of AdamW, held against torch."""

import pytest
import torch
from answers import solution

from scaleout.exercises.zero.ranks import clip, step


def test_what_a_rank_owns_is_its_chunk_of_the_padded_tensors():
    owned = solution("zero", "whose-elements")
    sizes, ranks = [10, 3, 7, 5], 3
    tensors = [torch.arange(size) + 100 * tensor for tensor, size in enumerate(sizes)]
    flat = torch.nn.functional.pad(torch.cat(tensors), (0, -sum(sizes) % ranks), value=-1)
    for rank, chunk in enumerate(flat.chunk(ranks)):
        parts = [tensors[tensor][first:end] for tensor, first, end in owned(sizes, ranks, rank)]
        assert torch.equal(torch.cat(parts), chunk[chunk >= 0])


def test_the_reference_step_is_torchs_and_a_sum_passes_for_a_mean_where_eps_is_small(monkeypatch):
    assert step.close(step.trained(3), step.reference(3)) and not step.close(
        step.trained(3, times=3), step.reference(3)
    )
    monkeypatch.setattr(step, "EPS", 1e-12)
    assert step.close(step.trained(3, times=3), step.reference(3))


def test_a_global_norm_is_what_torch_clips_by():
    for case in clip.CASES:
        shards = [shard for parts in clip.shards(case, 3) for shard in parts]
        parameter = torch.nn.Parameter(torch.zeros(sum(map(len, shards))))
        parameter.grad = torch.cat(shards)
        assert float(torch.nn.utils.clip_grad_norm_([parameter], case.max_norm)) == pytest.approx(
            clip.norm(shards), rel=1e-5
        )


def test_moments_of_four_equal_shards_load_on_every_rank_and_are_a_quarter(tmp_path):
    shards = [torch.full((2, 6), float(rank)) for rank in range(4)]
    torch.save(shards[0], tmp_path / "moments.pt")
    loaded = [torch.load(tmp_path / "moments.pt") for _ in shards]
    assert all(
        shard.shape == mine.shape and torch.equal(shard, shards[0]) for shard, mine in zip(loaded, shards, strict=True)
    )
    assert 4 * loaded[0].numel() == sum(shard.numel() for shard in shards)
