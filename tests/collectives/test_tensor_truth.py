"""The joins of a block against numbers: t ranks in one process, each with its part of every matrix, and between two
operations nothing but the collectives that the joins name. Output and all gradients must be those of one process, for
any cut of any matrix, with and without sequence parallelism.
"""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

from scaleout.collectives.tensor import CUTS, HALVES, block
from scaleout.collectives.vocabulary import ends
from scaleout.measure import tensor as measure_tensor
from scaleout.parallel.tensor import Group
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape, linears

SHAPES = (
    Shape(1, 8, 4, 8, bias=False, max_seq=8),
    Shape(1, 8, 4, 8, kv_heads=2, ff=12, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary"),
)  # fmt: skip
BATCH, SEQ = 2, 8


def placed(have, want, ranks):
    """Each rank's tensor, (batch, tokens, width), as its group brings it from one placement to another."""
    if have == want:
        return ranks
    whole = {"R": lambda: ranks[0], "P": lambda: sum(ranks)}.get(have, lambda: torch.cat(ranks, dim=int(have[2])))()
    return [whole] * len(ranks) if want == "R" else list(whole.chunk(len(ranks), dim=int(want[2])))


class Joined(torch.autograd.Function):
    """One join: the forward by where the tensor is, the backward by where its gradient is."""

    @staticmethod
    def forward(ctx, join, *ranks):
        ctx.join = join
        return tuple(x.clone() for x in placed(join.gives.value, join.reads.value, ranks))

    @staticmethod
    def backward(ctx, *grads):
        return None, *(g.clone() for g in placed(ctx.join.reads.gradient, ctx.join.gives.gradient, grads))


def attend(q, k, v, d, first):
    """Attention of all heads that are here; `first`: the place of the first query among all tokens."""
    q, k, v = (x.view(*x.shape[:2], -1, d).transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    future = torch.arange(k.shape[2]) > first + torch.arange(q.shape[2])[:, None]
    scores = (q @ k.transpose(2, 3) / d**0.5).masked_fill(future, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def inner(shape, half, made, first):
    if half == "attention":
        return attend(made["q"], made["k"], made["v"], shape.d, first)
    return F.silu(made["gate"]) * made["up"] if shape.gated_mlp else F.gelu(made["up"])


def parts(weight, whole, t):
    """A rank's part of a matrix (inputs, outputs), by rank; grouped heads are copied for ranks that share them."""
    if weight.cut == "copies":
        return [whole] * t
    if weight.cut == "rows":
        return list(whole.chunk(t, dim=0))
    each = whole.chunk(whole.shape[1] // weight.local[1], dim=1)
    return [each[rank * len(each) // t] for rank in range(t)]


def cut_half(one, half, shape, x, whole):
    """(output, gradient of x, gradients of the matrices) of a half of the block on one.tp ranks."""
    t, joins = one.tp, {join.at: join for join in one.joins if join.half == half}
    weights = {weight.name: weight for weight in one.weights}
    own = {
        name: [part.detach().clone().requires_grad_() for part in parts(weights[name], matrix, t)]
        for name, matrix in whole.items()
    }
    start = [part.detach().requires_grad_() for part in placed("R", joins["into"].gives.value, [x] * t)]
    read = Joined.apply(joins["into"], *start)
    names = [name for name in whole if name not in ("out", "down")]
    made = {name: [a @ w for a, w in zip(read, own[name], strict=True)] for name in names}
    middle, tokens = joins["middle"], joins["middle"].gives.value == "S(1)"
    for name in ("k", "v") if tokens and half == "attention" else names:
        made[name] = Joined.apply(middle, *made[name])
    mixed = [
        inner(shape, half, {name: made[name][rank] for name in names}, rank * SEQ // t if tokens else 0)
        for rank in range(t)
    ]
    last = HALVES[half][1]
    given = [a @ w for a, w in zip(Joined.apply(joins["between"], *mixed), own[last], strict=True)]
    out = Joined.apply(joins["out of"], *given)
    outside = joins["out of"].reads.value
    torch.autograd.backward(out, placed("R", outside, [torch.ones_like(x).cumsum(2)] * t))
    return out, start, own, weights, outside


def whole_gradient(weight, grads):
    """A matrix's gradient, from what each rank has found of it, added up over the ranks that it is summed over."""
    n = weight.summed_over
    grads = [sum(grads[rank // n * n : rank // n * n + n]) for rank in range(len(grads))]
    if weight.cut == "copies":
        return grads[0]
    return torch.cat(grads[::n], dim=0 if weight.cut == "rows" else 1)


@pytest.mark.parametrize("half", HALVES)
def test_any_cut_gives_what_one_process_gives(half):
    torch.manual_seed(0)
    for shape, first, second, sp in itertools.product(SHAPES, CUTS, CUTS, (False, True)):
        cuts = dict(zip(HALVES[half], (first, second), strict=True))
        one = block(shape, BATCH, SEQ, 4, sequence_parallel=sp, cuts=cuts)
        names = ("q", "k", "v", "out") if half == "attention" else ("up", "gate", "down")
        whole = {
            name: torch.randn(size, dtype=torch.float64, requires_grad=True)
            for name, size in linears(shape).items()
            if name in names
        }
        x = torch.randn(BATCH, SEQ, shape.hidden, dtype=torch.float64, requires_grad=True)
        made = {name: x @ whole[name] for name in whole if name not in ("out", "down")}
        wanted = inner(shape, half, made, 0) @ whole[HALVES[half][1]]
        wanted.backward(torch.ones_like(x).cumsum(2))
        out, start, own, weights, outside = cut_half(one, half, shape, x.detach(), whole)
        case = (shape.kv, first, second, sp)
        assert torch.allclose(placed(outside, "R", out)[0], wanted), case
        assert torch.allclose(placed(outside, "R", [a.grad for a in start])[0], x.grad), case
        for name, matrix in whole.items():
            found = whole_gradient(weights[name], [part.grad for part in own[name]])
            assert torch.allclose(found, matrix.grad), (*case, name)


def called(shape, tp, sequence_parallel, autocast=False, silent=False):
    """[(collective, bytes)] that the book's model asks of its process group, and how many of them in the forward, and
    until the end of the backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from scaleout.parallel.tensor_model import TensorTransformer
    from scaleout.parallel.transformer import Transformer

    rows = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "c10d":
                tensors = [x for x in torch.utils._pytree.tree_leaves(args[:2]) if isinstance(x, torch.Tensor)]
                rows.append(
                    (
                        {
                            "_allgather_base_": "all_gather",
                            "_reduce_scatter_base_": "reduce_scatter",
                            "allreduce_": "all_reduce",
                        }[func._opname],
                        max(x.nbytes for x in tensors),
                    )
                )
            return func(*args, **(kwargs or {}))

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp)
    try:
        net = TensorTransformer(Transformer(shape), Group(), sequence=sequence_parallel)
        net.group.silent = silent
        tokens = torch.randint(shape.vocab, (BATCH, 16))
        with Calls():
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = net(tokens, tokens)
            forward = len(rows)
            loss.backward()
            backward = len(rows)
            net.sum_copies()
    finally:
        dist.destroy_process_group()
    return rows, forward, backward


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_silent_group_sends_nothing_and_leaves_what_it_is_given(sequence_parallel):
    assert called(Shape(2, 32, 4, 64, kv_heads=1, max_seq=16), 4, sequence_parallel, silent=True) == ([], 0, 0)
    given = torch.arange(2.0 * 8 * 3).view(2, 8, 3)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        group = Group()
        for group.silent in (True, False):
            assert group.reduced(given).data_ptr() != given.data_ptr(), "a sum in place would change a gradient"
        group.silent = True
        assert torch.equal(group.reduced(given), given)
        assert torch.equal(group.scattered(given), given[:, 4:]), "this rank's tokens"
        assert torch.equal(group.gathered(given), torch.cat([given, given], dim=1))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "autocast-bf16"])
@pytest.mark.parametrize(("tp", "kv"), [(2, 2), (4, 2), (4, 1)])
def test_counts_and_bytes_of_the_model_by_hand(tp, kv, precision, sequence_parallel):
    """In order, with their bytes; the norms' and biases' sums too, of fp32 weights whatever matrices are read in."""
    shape, recipe = Shape(2, 32, 4, 64, kv_heads=kv, max_seq=16), Recipe(precision)
    rows, forward, backward = called(shape, tp, sequence_parallel, recipe.autocast)
    cut = {
        "sequence_parallel": sequence_parallel,
        "width": recipe.width("compute"),
        "stream": recipe.width("stream"),
        "gather_again": False,
    }
    one, both = block(shape, BATCH, 16, tp, **cut), ends(shape, BATCH, 16, tp, **cut)

    def said(moves):
        return [(move.collective, move.size) for move in moves]

    parts = both.forward
    assert rows[:forward] == said([*parts["embedding"], *one.moves("forward") * 2, *parts["head"], *parts["loss"]])
    parts = both.backward
    assert rows[forward:backward] == said([*parts["head"], *one.moves("backward") * 2, *parts["embedding"]])
    priced = measure_tensor.moves(shape, BATCH, 16, tp, sequence_parallel, precision)
    assert sorted(rows[:forward]) == sorted(said(priced["forward"]))
    assert sorted(rows[forward:backward]) == sorted(said(priced["backward"]))
    sums = measure_tensor.copies(shape, BATCH, 16, tp, sequence_parallel)
    assert rows[backward:] == [("all_reduce", size) for _, size in sorted(sums.items(), reverse=True)]
