"""Second runs that differ from the first: the loss is right, gradients are wrong, and usually there is no error.

A router that balances its experts with a bias (Wang et al. 2024, arXiv 2408.15664), and updates it in its forward,
updates it in the second forward too: then some tokens go to other experts than in the first.
"""

from __future__ import annotations

import torch
from torch import nn

from scaleout.lab import recompute as lab_recompute
from scaleout.measure import recompute as measure
from scaleout.memory import recompute as memory
from scaleout.parallel import recompute, recompute_ways
from scaleout.parallel.transformer import Transformer

EXPERTS = 4
RATE = 0.2  # of the bias, against scores of about 1


class Routed(nn.Module):
    """x plus what one of several experts makes of each token, (b, s, h) -> (b, s, h).

    ragged: an expert gets its own tokens, in a tensor of as many rows; else all of them, and the others' are masked, as
    where every expert has a fixed capacity. inside: the bias moves in the forward, and not by `balance` after a step.
    """

    def __init__(self, hidden: int, ragged: bool, inside: bool) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(EXPERTS))
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.ragged, self.inside, self.load = ragged, inside, torch.zeros(EXPERTS)

    def forward(self, x):
        scores = self.router(x)
        chosen = (scores + self.bias).argmax(-1)  # (b, s)
        self.load = torch.bincount(chosen.flatten(), minlength=EXPERTS).float()
        mixed = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mine = (chosen == i)[..., None]
            if self.ragged:
                mixed = mixed.masked_scatter(mine, expert(x[mine[..., 0]]).tanh())
            else:
                mixed = mixed + expert(x).tanh() * mine
        if self.inside:
            self.balance()
        return x + scores.softmax(-1).gather(-1, chosen[..., None]) * mixed

    def balance(self):
        """The bias of an expert with more than its part of the tokens goes down, the others' go up."""
        self.bias += RATE * (self.load.mean() - self.load).sign()


def routed(x, via, ragged=False, inside=True, seed=0):
    """(loss, {part: gradient}) of one Routed behind checkpointing: via "none", "hand" or "torch"."""
    torch.manual_seed(seed)
    layer = Routed(x.shape[-1], ragged, inside).to(x.device)
    run = recompute_ways.Rebuilt([layer], via, frozenset(), None) if via != "none" else layer
    loss = run(x.detach().requires_grad_()).square().mean()
    loss.backward()
    return loss.item(), {name: p.grad for name, p in layer.named_parameters()}


def errors(tensors, wanted):
    """{name: norm of the difference of two gradients over that of the right one}. An expert without a token has a
    gradient of zeros: 0 where both are, else infinite."""
    return {
        name: 0.0 if torch.equal(tensors[name], right) else ((tensors[name] - right).norm() / right.norm()).item()
        for name, right in wanted.items()
    }


def show_router(s, x):
    """What a bias that moves in the forward does: losses, gradients by expert, what torch says, what the check says."""
    rows, message = {}, "nothing: no expert's rows changed"
    right = routed(x, "none")
    for via in recompute_ways.VIAS:
        loss, grads = routed(x, via)
        rows[via] = loss == right[0], errors(grads, right[1])
    try:
        routed(x, "torch", ragged=True)
    except torch.utils.checkpoint.CheckpointError as error:
        message = str(error).strip().splitlines()[0]
    checks = {
        name: recompute.repeats(Routed(x.shape[-1], False, inside).to(x.device), x)
        for name, inside in (("bias updated in the forward", True), ("bias updated after the step", False))
    }
    fixed = {via: errors(routed(x, via, inside=False)[1], right[1]) for via in recompute_ways.VIAS}
    s.say("\n" + lab_recompute.router(rows, message, checks, fixed))


def show_random(s, o, tokens):
    """What other random numbers in the second run do to the gradients of the blocks."""
    gradients = {}
    for random in (None, True, False):
        torch.manual_seed(o.seed)
        model = Transformer(o.shape, o.attention, o.dropout).to(s.device)
        if random is not None:
            recompute_ways.apply(model, memory.full(o.sizes), frozenset(), "torch", random)
        gradients[random] = measure.gradients(model, measure.stream(model, tokens), o.seed)[0]
    right = torch.cat([gradient.flatten() for gradient in gradients[None]])
    s.say(
        "\n"
        + lab_recompute.random(
            {
                random: (
                    (torch.cat([gradient.flatten() for gradient in gradients[random]]) - right).norm() / right.norm()
                ).item()
                for random in (True, False)
            }
        )
    )
