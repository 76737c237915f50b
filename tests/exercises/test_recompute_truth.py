"""What `recompute`'s exercises say of frozen models, of a reentrant checkpoint and of torch's early stop, in torch."""

import warnings

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

LAYERS = 8


def flops(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_a_frozen_model_does_two_forwards_and_recomputation_one_more_less_the_last_product():
    for frozen, forwards in ((False, 3), (True, 2)):
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(LAYERS))).requires_grad_(not frozen)
        x = torch.randn(4, 16, requires_grad=True)
        forward = flops(lambda model=model, x=x: model(x))
        assert flops(lambda model=model, x=x: model(x).sum().backward()) == forwards * forward
        recomputed = flops(lambda model=model, x=x: checkpoint(model, x, use_reentrant=False).sum().backward())
        assert recomputed / forward == forwards + (LAYERS - 1) / LAYERS


class Adapted(nn.Module):
    """A frozen product with a small one beside it that is trained."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x):
        return x + torch.relu(self.frozen(x) + self.up(self.down(x)))


def trained(reentrant, wanted=False):
    """(adapters with a gradient, whether the head has one, warnings) after a backward; `wanted` makes the embedding's
    output need a gradient."""
    torch.manual_seed(0)
    embedding, head = nn.Embedding(5, 8).requires_grad_(False), nn.Linear(8, 1)
    blocks = nn.ModuleList(Adapted() for _ in range(3))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        x = embedding(torch.arange(5)).requires_grad_(wanted)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        head(x).sum().backward()
    adapters = [item.grad is not None for item in blocks.parameters() if item.requires_grad]
    return sum(adapters), head.weight.grad is not None, [str(item.message) for item in warned]


def test_a_reentrant_checkpoint_behind_a_frozen_embedding_trains_the_head_alone():
    learnt, head, warned = trained(reentrant=True)
    assert (learnt, head) == (0, True)
    assert warned and all(
        text.startswith("None of the inputs have requires_grad=True. Gradients will be None") for text in warned
    )
    assert trained(reentrant=False) == (6, True, [])
    assert trained(reentrant=True, wanted=True) == (6, True, [])


def test_the_output_of_attention_stays_where_only_its_core_is_checkpointed():
    """For the projection behind it keeps its input; with the projection inside, nothing does."""
    weight = nn.Parameter(torch.randn(16, 16))
    q, k, v = (torch.randn(1, 1, 32, 16, requires_grad=True) for _ in range(3))
    storages = []

    def core(q, k, v):
        output = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        storages.append(StorageWeakRef(output.untyped_storage()))
        return output

    def projected(q, k, v):
        return core(q, k, v).reshape(1, 32, 16) @ weight

    around_core = checkpoint(core, q, k, v, use_reentrant=False).reshape(1, 32, 16) @ weight
    around_both = checkpoint(projected, q, k, v, use_reentrant=False)
    assert [storage.expired() for storage in storages] == [False, True]
    assert torch.equal(around_core, around_both)
