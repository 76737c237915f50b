"""Operations of a block by the tiles they make: their names, their bytes, and what is handed back in their place."""

import torch
from cases import over

from scaleout.memory import recompute as memory
from scaleout.memory.activations import Sizes
from scaleout.parallel import private
from scaleout.parallel.recompute import Names, Recall
from scaleout.parallel.transformer import Transformer
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape


class Listen(private.TorchDispatchMode):
    """{tile: bytes that its operation gives}."""

    def __init__(self, named):
        super().__init__()
        self.named, self.found = named, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, out = self.named(func, args), func(*args, **(kwargs or {}))
        if name:
            assert name not in self.found, name
            self.found[name] = sum(one.nbytes for one in (out if isinstance(out, tuple) else (out,)) if one.numel())
        return out


@over(
    attention=["sdpa", "naive"],
    dropout=[0.0, 0.2],
    positions=["learned", "rotary"],
    heads=[1, 4],
    kv_heads=[1, None],
    llama=[False, True],
)
def test_the_operations_that_make_tiles_are_named_for_them(attention, dropout, llama, **of):
    norm = "rmsnorm" if llama else "layernorm"
    shape = Shape(1, 16, vocab=32, ff=40, bias=False, max_seq=8, gated_mlp=llama, norm=norm, **of)
    recipe = Recipe("fp32", attention=attention, dropout=dropout)
    block = Transformer(shape, attention, dropout).blocks[0]
    with Listen(Names(shape, attention)) as heard:
        block(torch.randn(2, 8, 16, requires_grad=True))
    z = Sizes(shape, 2, 8, recipe, Layout())
    dropped = heard.found.pop("dropped scores", None)
    assert (dropped is not None) == (attention == "naive" and dropout > 0)
    assert heard.found == memory.outputs(z)
    clone = Names(shape, attention)(torch.ops.aten.clone.default, (torch.ones(1),))
    assert (clone == "copy") == ("copy" in heard.found), "a copy that no tile is, as on another device, has no name"
    assert {*heard.found, *(["dropped scores"] if dropped else [])} <= {tile.name for tile in memory.tiles(z)}


def test_what_is_handed_back_is_no_part_of_the_graph_that_it_is_put_into():
    kept, x = torch.ones(3), torch.zeros(3, requires_grad=True)
    with Recall(lambda func, _: "GELU" if "gelu" in str(func) else "", {"GELU": (kept,)}):
        out = torch.nn.functional.gelu(x)
    assert torch.equal(out, kept) and out.requires_grad and out.data_ptr() == kept.data_ptr()
    assert not kept.requires_grad and kept.grad_fn is None
