"""Recomputation in torch: saved bytes by the ledger, recomputed FLOPs as torch counts them, gradients bit by bit."""

from __future__ import annotations

import statistics
from dataclasses import replace

import torch
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from scaleout.lab import session
from scaleout.measure.ledger import Ledger, watch
from scaleout.measure.peak import timed
from scaleout.measure.rounds import Alternation
from scaleout.memory import recompute
from scaleout.memory.accounts import account
from scaleout.parallel import private, recompute_ways
from scaleout.parallel.ddp_ways import DDPWay
from scaleout.parallel.recipe import Training
from scaleout.parallel.replicas import Replicas
from scaleout.parallel.transformer import Transformer
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import flops
from scaleout.timing.knapsack import Priced, pareto

aten = torch.ops.aten

# As the profiler calls them.
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
FUSED = ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention",
         "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention")  # fmt: skip


def _fused(q, k, v, *_, out_shape=None, **__):
    """FLOPs of fused attention, all scores counted, as torch counts the kernels of GPUs."""
    b, heads, s, d = q
    return 4 * b * heads * s * k[2] * d


def _fused_backward(gradient, q, k, v, *_, out_shape=None, **__):
    """Five matmuls, one of which recomputes the scores."""
    return _fused(q, k, v) * 5 // 2


# torch's table has the kernels of GPUs only.
KERNELS = {aten._scaled_dot_product_flash_attention_for_cpu: _fused,
           aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward}  # fmt: skip


def stream(model, tokens):
    """What the first block of a Transformer reads, (b, s, h)."""
    x = model.tokens(tokens)
    return x if model.positions is None else x + model.positions.weight[: tokens.shape[1]]


def run_blocks(model, x):
    """x behind all blocks of a Transformer."""
    for block in model.blocks:
        x = block(x)
    return x


def kept_bytes(model, x):
    """Bytes that the blocks keep between forward and backward, their inputs among them: of all tensors that are there
    once the forward has returned, each storage once, without weights and the blocks' output."""
    with Ledger() as ledger:
        ledger.claim(x, "activations")
        for p in model.parameters():
            ledger.claim(p, "weights")
        output = run_blocks(model, x)
        ledger.claim(output, "temporaries")
        return ledger.now["activations"]


def gradients(model, x, seed=0):
    """[gradient of x, and of each of the blocks' parameters] of the sum of squares behind the blocks, and the FLOPs of
    matmuls in its forward and backward."""
    x, parameters = x.detach().requires_grad_(), list(model.blocks.parameters())
    for p in parameters:
        p.grad = None
    torch.manual_seed(seed)
    with FlopCounterMode(display=False, custom_mapping=KERNELS) as seen:
        run_blocks(model, x).square().sum().backward()
    return [x.grad, *(p.grad for p in parameters)], seen.get_total_flops()


def equal(tensors, wanted):
    """Whether two lists of tensors agree in every bit."""
    return all(torch.equal(a, b) for a, b in zip(tensors, wanted, strict=True))


# --- one budget -------------------------------------------------------------------------------------------------------


def make(s, o, policy, via):
    """A Training whose blocks follow a policy (memory.recompute.Policy); the same seed gives the same weights.

    o: options of the lab, with a shape, a recipe, sizes (memory.activations.Sizes), lr and seed.
    """
    torch.manual_seed(o.seed)
    training = Training(o.shape, o.recipe, s.device, o.lr)
    recompute_ways.apply(training.model, policy, frozenset(recompute.outputs(o.sizes)), via)
    return training


def weigh(s, o, policy, via, batch):
    """{"kept", "flops", "peak"} of one budget, and its gradients. flops: of forward and backward of the blocks."""
    session.reset_allocator(s)  # the last budget's model goes
    training = make(s, o, policy, via)
    with autocast(s, o):
        x = stream(training.model, batch[0])
        figures = {"kept": kept_bytes(training.model, x.detach().requires_grad_())}
        grads, figures["flops"] = gradients(training.model, x, o.seed)
    training.clear()
    return figures | {"peak": peak(training, batch)}, grads


def peak(training, batch):
    """Bytes at the peak of a step that is not the first."""
    training.warm_up()
    with watch(training, *batch) as ledger:
        training.loss(*batch).backward()
        ledger.enter("optimizer")
        training.step()
    return max(sum(kinds.values()) for kinds in ledger.moments.values())


def autocast(s, o):
    """The context that the blocks run in."""
    return torch.autocast(s.device.type, torch.bfloat16, enabled=o.recipe.autocast)


def predicted(o, policy, via):
    """The same by the pure model, with recomputed FLOPs. By hand the recomputation of a block has no early stop, and
    its output is still in memory during its backward."""
    z, hand, policy = o.sizes, via == "hand", replace(policy, outputs=True)
    moments = account(o.shape, o.micro_batch, o.seq, o.recipe, policy=policy).moments
    extra = {"block": z.x if hand and any(policy.drops) else 0}
    return {
        "kept": recompute.kept(z, policy),
        "flops": recompute.outputs_flops(z, policy, early_stop=not hand),
        "peak": max(sum(kinds.values()) + extra.get(moment, 0) for moment, kinds in moments.items()),
    }


def six(s, o, policies, via, batch):
    """{share: {"measured", "predicted": {figure: number}, "equal": whether its gradients are those of the first, which
    keeps everything, and by how much they are not}} of all budgets."""
    rows, wanted, base = {}, None, 0
    for share, policy in policies.items():
        figures, grads = weigh(s, o, policy, via, batch)
        if wanted is None:
            wanted, base = grads, figures["flops"]
        rows[share] = {
            "measured": figures | {"flops": figures["flops"] - base},
            "predicted": predicted(o, policy, via),
            "equal": equal(grads, wanted),
            "off": distance(grads, wanted),
        }
    return rows


def distance(tensors, wanted):
    """Largest difference of two lists of tensors, each by the largest entry of the right one (float)."""
    pairs = zip(tensors, wanted, strict=True)
    return max(((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item() for a, b in pairs)


# --- seconds ----------------------------------------------------------------------------------------------------------


class RecomputeWay(DDPWay):
    """Steps under a policy on every rank; DistributedDataParallel where there are several."""

    def __init__(self, s, o, policy, via):
        self.s, self.via, self.training = s, via, make(s, o, policy, via)
        self.replicas = Replicas(s, self.model, "torch")


class Rounds(Alternation):
    """A step of each budget a round, and forwards of the blocks by themselves, from which the seconds of what is made
    again are predicted: plain, for the share of its FLOPs that runs once more, and under a mode that looks at every
    operation, as one does twice where some are kept."""

    def __init__(self, s, o, policies, batches):
        """batches(step): [(tokens, targets)] of this rank."""
        ways = {share: RecomputeWay(s, o, policy, o.via) for share, policy in policies.items()}
        super().__init__(s, o, ways, list(ways), batches)
        self.policies, self.forward, self.looked_at = policies, [], []

    def sample(self, batch, step):
        """The forwards of the blocks of the model that keeps everything."""
        model, s = self.ways[self.names[0]].training.model, self.s
        with torch.no_grad(), autocast(s, self.o):
            x = stream(model, batch[0])
            self.forward.append(timed(s, lambda: run_blocks(model, x))[0])
            with recompute_ways.looking(model.shape, self.o.attention, self.o.via):
                self.looked_at.append(timed(s, lambda: run_blocks(model, x))[0])

    def middles(self, warmup):
        """{share: median step time}."""
        return {share: statistics.median(samples[warmup:]) for share, samples in self.seconds.items()}

    def predicted(self, warmup):
        """{share: seconds}."""
        z, first = self.o.sizes, self.middles(warmup)[self.names[0]]
        forward, looked_at = (statistics.median(samples[warmup:]) for samples in (self.forward, self.looked_at))
        all_flops, keepable, predictions = (
            flops(z.shape, z.batch, z.seq, "full")["recompute"],
            recompute.outputs(z).keys(),
            {},
        )
        for share, policy in self.policies.items():
            partly = sum(bool(drop and keepable - drop) for drop in policy.drops) / len(policy.drops)
            share_of_forward = recompute.outputs_flops(z, policy, self.o.via == "torch") / all_flops
            predictions[share] = first + forward * share_of_forward + 2 * partly * max(0.0, looked_at - forward)
        return predictions


# --- beside the libraries ---------------------------------------------------------------------------------------------


class Messages(private.TorchDispatchMode):
    """The order of all-gathers, "G", and reduce-scatters, "R"."""

    order = ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.order += {private.all_gather_op: "G", private.reduce_scatter_op: "R"}.get(func, "")
        return func(*args, **(kwargs or {}))


def messages(s, o, policy, batch, via="torch"):
    """(order of messages in the forward, in the backward) of a policy under `fully_shard` of each block and the root,
    and the model with its gradients."""
    model = make(s, o, policy, via).model
    recompute_ways.shard(model)
    with Messages() as forward:
        loss = model(*batch)
    with Messages() as backward:
        loss.backward()
    return forward.order, backward.order, model


def compiled(o, shares, device="cpu"):
    """[(budget, bytes that the block keeps, FLOPs recomputed, the fewest that as many bytes take by the tiles)] of one
    block in fp32 under torch.compile's budgets."""
    torch.manual_seed(o.seed)
    block = Transformer(o.shape).to(device).blocks[0]
    z = replace(o.sizes, recipe=Recipe("fp32"))
    x = torch.randn(z.batch, z.seq, o.shape.hidden, device=device, requires_grad=True)
    items = tuple(Priced(tile.name, tile.bytes, tile.flops) for tile in recompute.tiles(z)[1:])
    front, base, rows = pareto(items), backward_flops(block, x, z), []
    for share in shares:
        run = recompute_ways.compiled(block, share)
        size = saved(run, x, block)
        least = min(p.seconds for p in front if recompute.block_bytes(z, ()) - p.freed <= size)
        rows.append((share, size, backward_flops(run, x, z) - base, least))
    return rows


def saved(run, x, model, modules=()):
    """Bytes that autograd saves on this rank in run(x), each storage once, without the parameters of `model`. modules:
    those in whose forward it counts; none: everywhere."""
    weights, seen, entered = {storage(p).data_ptr() for p in model.parameters()}, {}, []
    handles = [module.register_forward_pre_hook(lambda *_: entered.append(1)) for module in modules]
    handles += [module.register_forward_hook(lambda *_: entered.clear()) for module in modules]

    def pack(tensor):
        kept = storage(tensor)
        if kept.data_ptr() not in weights and (entered or not modules):
            seen[kept.data_ptr()] = kept.nbytes(), tensor  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(x)
    for handle in handles:
        handle.remove()
    return sum(size for size, _ in seen.values())


def storage(x):
    """The storage of what this rank has of a tensor, once it is there."""
    x = x.to_local() if isinstance(x, DTensor) else x
    return (x.wait() if hasattr(x, "wait") else x).untyped_storage()


def backward_flops(run, x, z):
    """FLOPs of matmuls in the backward of run(x), and of fused attention's forward if it is recomputed there. Measured
    with the profiler, because torch.compile does not compile under a dispatch mode."""
    output = run(x).square().sum()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True) as seen:
        output.backward()
    core = next(tile.flops for tile in recompute.tiles(z) if tile.name == "attention")
    return sum(event.flops if event.name in PRODUCTS else core * (event.name in FUSED) for event in seen.events())
