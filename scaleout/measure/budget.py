"""A byte model that trains on text of its own: it writes on all ranks, each a share, and trains on what it wrote.

No text is communicated, and nothing is checked or thrown away. Three models are compared, all trained from the same
base for as many steps: on text that the base wrote with a truncated distribution, on text that it sampled as it is, and
on the real continuations of the same prompts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from scaleout.lab import session
from scaleout.parallel.replicas import Replicas
from scaleout.parallel.transformer import Transformer

TEMPERATURES = (0.3, 0.5, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0)  # of the answers
TOP_P = 0.8  # of the answers
SAMPLES = (1, 16)  # per question
BYTES = 4  # of an answer: the next bytes of the text, which one sample has to hit
SURE, OPEN = 0.1, 0.5  # of the positions: where the base's largest probability is highest, and where it is lowest
WARMUP = 50  # steps in which the learning rate rises
SPACE = 32  # a byte with which no answer begins: the next bytes of code are often more spaces
HELD_OUT = 0.1  # of the text, its end: no model trains on it


def truncated(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """Probabilities of the next byte at a temperature, cut to the fewest likely bytes that together have `top_p`.
    logits: (..., V)."""
    likely, order = (logits.float() / temperature).softmax(-1).sort(-1, descending=True)
    before = likely.cumsum(-1) - likely  # of all that are more likely
    kept = likely.masked_fill(before >= top_p, 0.0)
    return torch.zeros_like(kept).scatter(-1, order, kept / kept.sum(-1, keepdim=True))


@torch.no_grad()
def write(model: Transformer, prompts: Tensor, chances: Tensor, temperature: float, top_p: float) -> Tensor:
    """Prompts with their continuations. prompts: (b, p); chances: (b, n), a number from 0 to 1 for each byte that is
    written -> (b, p + n). Without a cache of keys and values: each byte takes a forward pass over all before it."""
    text = prompts
    for chance in chances.unbind(1):
        sums = truncated(model(text)[:, -1], temperature, top_p).cumsum(-1)
        byte = (sums < chance[:, None] * sums[:, -1:]).sum(-1, keepdim=True)
        text = torch.cat((text, byte.clamp(max=sums.shape[-1] - 1)), 1)
    return text


def accuracies(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """The probability that one sample hits the next BYTES bytes of the text, from each position on: the product of the
    sampler's probabilities of these bytes, exact. logits: (b, s, V), targets: (b, s) -> (b * (s - BYTES + 1))."""
    hit = truncated(logits, temperature, TOP_P).gather(-1, targets[..., None])[..., 0]
    return hit.unfold(1, BYTES, 1).prod(-1).flatten()


@dataclass(frozen=True)
class Seen:
    """What held-out text shows of a model. loss, other_loss: nats per byte on text of the training's kind and of
    another; sure, open: mean entropy in nats where the base was surest and where it was not; tail: probability off the
    likeliest byte where it was surest; right: {samples: {temperature: share of questions with a right answer among
    them}}."""

    loss: float
    other_loss: float
    sure: float
    open: float
    tail: float
    right: dict[int, dict[float, float]]

    def best(self, samples: int) -> tuple[float, float]:
        """(temperature, share of right answers) where this is highest."""
        right = self.right[samples]
        at = max(right, key=lambda temperature: right[temperature])
        return at, right[at]


class Study:
    """The base model of a session `s` with options `o`, and the models trained from it. text: bytes of one kind, its
    end held out; other: bytes of another kind."""

    def __init__(self, s, o, text: Tensor, other: Tensor) -> None:
        self.s, self.o = s, o
        if s.device.type == "cpu":
            torch.set_num_threads(1)  # the same for one rank and for several
        cut = int(len(text) * (1 - HELD_OUT))
        self.text, self.held, self.other = text[:cut], text[cut:], other
        self.each = o.batch // s.world  # sequences of a step on each rank
        self.share = o.written // s.world  # sequences that each rank writes

    def model(self, weights: dict | None = None) -> Replicas:
        """The transformer on every rank: as it is initialized, or with these weights."""
        torch.manual_seed(self.o.seed)
        model = Transformer(self.o.shape).to(self.s.device)
        if weights:
            model.load_state_dict(weights)
        return Replicas(self.s, model, self.o.via)

    def batch(self, step: int, alone: bool = False) -> tuple[Tensor, Tensor]:
        """This rank's part of a step's batch of real text, or all of it."""
        rank, world, each = (0, 1, self.o.batch) if alone else (self.s.rank, self.s.world, self.each)
        return session.batch(self.text, step, each, self.o.seq, rank, world, self.o.seed, self.s.device)

    def base(self) -> tuple[Replicas, list[float], list[float]]:
        """The base model, the seconds of each of its steps and its losses. The learning rate rises for a few steps and
        then falls in proportion to the steps that are left."""
        replicas, seconds, losses = self.model(), [], []
        optimizer = torch.optim.AdamW(replicas.model.parameters(), lr=self.o.lr, foreach=False)
        for step in range(self.o.steps):
            began = self.s.clock()
            for group in optimizer.param_groups:
                group["lr"] = self.o.lr * min((step + 1) / WARMUP, 1.0) * (1 - step / self.o.steps)
            loss = replicas(*self.batch(step))
            self._update(replicas, optimizer, loss)
            losses.append(self.s.mean(loss.item()))
            seconds.append(self.s.clock() - began)
        return replicas, seconds, losses

    def prompts(self, seed: int) -> Tensor:
        """This rank's share of the prompts, each with its real continuation: (share, seq + 1)."""
        tokens, targets = session.batch(
            self.text, 10**6 + seed, self.share, self.o.seq, self.s.rank, self.s.world, self.o.seed, self.s.device
        )
        return torch.cat((tokens, targets[:, -1:]), 1)

    def written(self, base: Replicas, seed: int, temperature: float, top_p: float) -> tuple[Tensor, float]:
        """This rank's share of the text that the base writes, and the seconds that it took."""
        o, rows = self.o, slice(self.s.rank * self.share, (self.s.rank + 1) * self.share)
        chance = torch.Generator().manual_seed(7_000_003 * (o.seed + 1) + seed)
        chances = torch.rand(o.written, o.seq + 1 - o.prompt, generator=chance)[rows].to(self.s.device)
        began = self.s.clock()
        text = write(base.model, self.prompts(seed)[:, : o.prompt], chances, temperature, top_p)
        return text, self.s.clock() - began

    def trained(self, base: Replicas, rows: Tensor, seed: int) -> tuple[Replicas, float]:
        """A model that starts as the base and trains on this rank's rows, without their prompts; and its seconds."""
        o = self.o
        replicas = self.model(base.model.state_dict())
        optimizer = torch.optim.AdamW(replicas.model.parameters(), lr=o.tune_lr, foreach=False)
        order = torch.Generator().manual_seed(seed)
        began = self.s.clock()
        for step in range(o.tune_steps):
            optimizer.param_groups[0]["lr"] = o.tune_lr * (1 - step / o.tune_steps)
            some = rows[torch.randperm(len(rows), generator=order)[: self.each]]
            logits = replicas(some[:, :-1])[:, o.prompt - 1 :]
            loss = F.cross_entropy(logits.flatten(0, 1).float(), some[:, o.prompt :].flatten())
            self._update(replicas, optimizer, loss)
        return replicas, self.s.clock() - began

    def _update(self, replicas: Replicas, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        replicas.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _windows(self, text: Tensor) -> tuple[Tensor, Tensor]:
        return session.batch(text, 0, self.o.windows, self.o.seq, seed=self.o.seed, device=self.s.device)

    @torch.no_grad()
    def seen(self, replicas: Replicas, base: Replicas) -> tuple[Seen, list[float]]:
        """What held-out text shows of a model, and its accuracy for each question at its best temperature for
        several samples."""
        tokens, targets = self._windows(self.held)
        logits = replicas.model(tokens)
        p, likeliest = logits.float().softmax(-1), base.model(tokens).float().softmax(-1).amax(-1)
        entropy = -(p * p.clamp_min(1e-30).log()).sum(-1)
        order = likeliest.flatten().argsort()
        sure, unsure = order[-max(1, int(SURE * len(order))) :], order[: int(OPEN * len(order))]
        others = self._windows(self.other)
        asked = (targets[:, : 1 - BYTES] != SPACE).flatten()
        answers = {t: accuracies(logits, targets, t)[asked] for t in TEMPERATURES}
        found = Seen(
            F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).item(),
            replicas.model(*others).item(),
            entropy.flatten()[sure].mean().item(),
            entropy.flatten()[unsure].mean().item(),
            (1 - p.amax(-1)).flatten()[sure].mean().item(),
            {k: {t: (1 - (1 - p.double()) ** k).mean().item() for t, p in answers.items()} for k in SAMPLES},
        )
        return found, answers[found.best(SAMPLES[-1])[0]].tolist()

    def counted(self) -> dict[str, int]:
        """FLOPs, as torch counts them, of a training step on this rank, and of writing one sequence."""
        o, counts = self.o, {}
        model = Transformer(o.shape, attention="naive").to(self.s.device)  # of which torch counts every matmul
        with FlopCounterMode(display=False) as step:
            model(*self.batch(0)).backward()
        counts["FLOPs of a training step"] = step.get_total_flops()
        with FlopCounterMode(display=False) as writing:
            chances = torch.full((1, o.seq + 1 - o.prompt), 0.5, device=self.s.device)
            write(model, self.prompts(0)[:1, : o.prompt], chances, 1.0, 1.0)
        counts["FLOPs to write a sequence, without a cache"] = writing.get_total_flops()
        return counts
