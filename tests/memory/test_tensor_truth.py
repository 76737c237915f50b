"""What a rank keeps under tensor and sequence parallelism against what torch keeps, to the byte.

One rank of a fake process group, which answers at once and sends nothing: what the book's model saves for its backward
does not depend on what the others would have said.
"""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from scaleout.memory.activations import Sizes, block_kept, norm_kept
from scaleout.memory.states import rank_parameters
from scaleout.parallel.tensor import Group
from scaleout.parallel.tensor_model import TensorTransformer
from scaleout.parallel.transformer import Transformer
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

GPT = {"max_seq": 32}
LLAMA = {"gated_mlp": True, "bias": False, "norm": "rmsnorm", "positions": "rotary", "tied_head": False}
SHAPES = {
    "gpt": ((64, 4, 304), GPT),
    "grouped": ((64, 8, 304), LLAMA | {"kv_heads": 4, "ff": 160}),
    "fewer heads of keys than ranks": ((64, 8, 304), LLAMA | {"kv_heads": 2, "ff": 96}),
}  # fmt: skip
BATCH, SEQ = 2, 16


def kept(shape, sequence_parallel):
    """(bytes saved for the backward without the parameters, parameters) of this rank's model, in fp32."""
    net = TensorTransformer(Transformer(shape), Group(), sequence=sequence_parallel)
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}
    held = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = (storage.nbytes(), tensor)  # which keeps it, so that its place is not taken
        return tensor

    tokens = torch.randint(shape.vocab, (BATCH, SEQ))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(tokens, tokens)
    return sum(size for size, _ in held.values()), sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_rank_keeps_what_torch_keeps(tp):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp)
    try:
        for name, sequence_parallel in itertools.product(SHAPES, (False, True)):
            sizes, rest = SHAPES[name]
            two, three = (Shape(layers, *sizes, **rest) for layers in (2, 3))
            layout = Layout(tp=tp, sequence_parallel=sequence_parallel, gather_again=False)
            z = Sizes(two, BATCH, SEQ, Recipe("fp32"), layout)
            (two_kept, two_held), (three_kept, _) = (kept(shape, sequence_parallel) for shape in (two, three))
            block = sum(block_kept(z, "none").values())
            assert three_kept - two_kept == block, (name, sequence_parallel)
            rows = z.tokens * (8 + 1) * 2  # for the table and the loss: where each token is, and whether it is ours
            ends = norm_kept(z) + z.read_kept + z.vocab32 + rows
            assert two_kept - 2 * block == ends
            assert two_held == rank_parameters(two, layout)
    finally:
        dist.destroy_process_group()
