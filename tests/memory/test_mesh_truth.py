"""Every rank of a mesh against torch: what a stage of a tensor-parallel pipeline holds, through its whole order.

One tp rank of a fake process group, which answers at once; what its neighbours in the pipeline would send are tensors
of the right size. So first, middle and last stages are measured one by one, each in the order that its rank has.
"""

import pytest
import torch
import torch.distributed as dist
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scaleout.measure.ledger import Ledger
from scaleout.memory.mesh import rank_account
from scaleout.parallel import private
from scaleout.parallel.tensor import Group, VocabularyLoss
from scaleout.parallel.tensor_model import TensorTransformer
from scaleout.parallel.transformer import Transformer
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import blocks
from scaleout.spec.pipeline import orders, stages_of
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

SIZES = {"hidden": 256, "heads": 8, "vocab": 1024, "kv_heads": 4, "ff": 704, "gated_mlp": True, "bias": False,
         "norm": "rmsnorm", "positions": "rotary", "tied_head": False}  # fmt: skip
BATCH, SEQ = 2, 128
ONE = {"schedule": "1f1b"}
TWO = {"schedule": "interleaved", "chunks": 2}
ALL_FIRST = {"schedule": "gpipe"}
ROUNDS_FIRST = {"schedule": "bfs", "chunks": 2}


class Rank:
    """The stages of one rank: neighbouring blocks of a TensorTransformer, with its ends where they belong."""

    def __init__(self, shape: Shape, layout: Layout, recipe: Recipe, rank: int) -> None:
        self.layout, self.recipe = layout, recipe
        whole = Transformer(shape, recipe.attention, recipe.dropout, "none")
        self.net = TensorTransformer(whole, Group(), sequence=layout.sequence_parallel)
        self.own, first = {}, 0
        for stage, n in enumerate(blocks(shape.layers, layout.stages)):
            if stage in stages_of(layout.schedule, rank, layout.pp, layout.chunks):
                self.own[stage] = self.net.blocks[first : first + n]
            first += n
        self.ends = {0: self.net.tokens} | {layout.stages - 1: torch.nn.ModuleList([self.net.norm, self.net.head])}
        self.tokens = torch.randint(shape.vocab, (layout.m, BATCH, SEQ))
        self.shape = (BATCH, SEQ // (layout.tp if layout.sequence_parallel else 1), shape.hidden)

    def parameters(self) -> list:
        mine = [*self.own.values(), *(end for stage, end in self.ends.items() if stage in self.own)]
        return [p for module in mine for p in module.parameters()]

    def forward(self, stage: int, i: int):
        """(input, where its graph ends)."""
        net, last = self.net, self.layout.stages - 1
        x = self.tokens[i] if stage == 0 else torch.randn(self.shape, requires_grad=True)
        out = net.tokens(x) if stage == 0 else x
        for block in self.own[stage]:
            out = checkpoint(block, out, use_reentrant=False) if self.recipe.checkpointing == "full" else block(out)
        if stage == last:
            logits, targets = net.head(net.enter(net.norm(out))).flatten(0, 1), self.tokens[i].flatten()
            out = (
                VocabularyLoss.apply(logits, targets, net.words, net.group)
                if self.layout.tp > 1
                else functional.cross_entropy(logits, targets)
            )
        return x, get_gradient_edge(out), out.detach() if stage == last else None

    def run(self, rank: int) -> int:
        """The highest bytes alive while this rank does what its order says."""
        held, last = {}, self.layout.stages - 1
        ledger = Ledger()
        for p in self.parameters():
            ledger.claim(p, "weights")
            p.grad = torch.zeros_like(p)  # of the step before: they are kept
            ledger.claim(p.grad, "gradients")
        with ledger:
            for action in orders(self.layout.schedule, self.layout.pp, self.layout.m, self.layout.chunks)[rank]:
                place = action.stage, action.micro
                if action.kind == "F":
                    held[place] = self.forward(*place)
                    continue
                x, edge, loss = held.pop(place)
                sent = torch.ones(()) if action.stage == last else torch.randn(self.shape)
                torch.autograd.backward(edge, sent)
                del x, edge, loss, sent
        return max(sum(kinds.values()) for kinds in ledger.moments.values())


@pytest.fixture
def tp(request):
    dist.init_process_group("fake", store=private.FakeStore(), rank=0, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("tp", "layers", "order", "checkpointing"),
    [
        (1, 6, ONE, "none"),
        (2, 6, ONE, "none"),
        (2, 6, ONE, "full"),
        (1, 8, TWO, "none"),
        (1, 6, ALL_FIRST, "none"),
        (2, 6, ALL_FIRST, "full"),
        (1, 8, ROUNDS_FIRST, "none"),
    ],
    indirect=["tp"],
    ids=["whole", "uneven", "recomputed", "interleaved", "gpipe", "gpipe full", "bfs"],
)
def test_every_rank_holds_what_its_account_says(tp, layers, order, checkpointing):
    """Within 0.3%; 2% is the book's promise."""
    shape = Shape(layers, **SIZES)
    layout = Layout(tp=tp, pp=4, sequence_parallel=tp > 1, gather_again=False, micro_batches=4, **order)
    recipe = Recipe("fp32", "sgd", checkpointing=checkpointing, gradients="kept")
    for rank in (0, 1, 3):
        measured = Rank(shape, layout, recipe, rank).run(rank)
        told = rank_account(shape, BATCH, SEQ, recipe, layout, rank)
        peak = max(sum(kinds.values()) for moment, kinds in told.moments.items() if moment != "optimizer")
        assert peak == pytest.approx(measured, rel=0.003), (rank, peak, measured)
