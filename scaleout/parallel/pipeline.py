"""Pipeline parallelism from scratch: a rank has some consecutive layers, and micro-batches pass from rank to rank.

The forward of a stage sends its output on, the backward sends the gradient of its input back. All schedules do the
same forwards and backwards; they differ in the order in which a rank does its own (GPipe: Huang et al., arXiv
1811.06965; 1F1B: Narayanan et al., arXiv 2104.04473). `HandPipeline` has the work of one stage and one micro-batch,
`naive`, `gpipe` and `one_f_one_b` are its orders as loops, `run` takes those of `spec.pipeline`, where a backward may
come in two halves.
p: ranks, v: stages per rank, m: micro-batches. b: sequences of a micro-batch, s: tokens, h: hidden.
"""

from __future__ import annotations

from collections import deque
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from scaleout.parallel.pipeline_stage import Stage, tied_weights

# --- the heart ----------------------------------------------------------------------------------------------


class HandPipeline:
    """The stages of this rank, and what it does with micro-batch i of each. Gradients accumulate over micro-batches.

    stages: {stage: Stage}. inward[stage] is the Wire that brings the stage's input, outward[stage] the Wire that takes
    its output; back_in and back_out are the Wires of the gradients. The first stage has no inward, the last no outward.
    held: {(stage, i): (input, output's edge of the graph, edges of its layers)} between forward and backward.
    """

    def __init__(
        self, s, stages: dict[int, Stage], place: tuple[int, ...], like: Tensor, wire=None, timeout=None, lines=None
    ):
        """place: the rank of every stage of the model. like: a tensor as stages send it on, (b, s, h). wire: what makes
        a Wire. timeout: of a message (timedelta; without one, torch's half an hour). lines: of a job of several
        pipelines, the ranks of each; `s` is then among those of this one."""
        self.s, self.stages, self.held, self.later = s, stages, {}, {}
        lines = lines or (tuple(range(s.world)),)
        self.inward, self.outward, self.back_in, self.back_out = connect(s, place, like, wire or Wire, timeout, lines)
        self.tie = Tie(stages, place, lines)

    def forward(self, stage: int, i: int) -> None:
        """Receive the input from the previous stage, save what backward needs, send the output on."""
        part = self.stages[stage]
        x = self.tokens[i] if part.first else self.inward[stage].receive().requires_grad_()
        out = part(x, self.targets[i] if part.last else None)
        self.held[stage, i] = x, get_gradient_edge(out), part.edges  # the output itself may go once it is sent
        part.edges = []
        if part.last:
            self.losses.append(out.detach() / len(self.tokens))
        else:
            self.outward[stage].send(out.detach())

    def backward(self, stage: int, i: int) -> None:
        """Receive the output's gradient, compute those of the weights and of the input, send the latter back."""
        x, out, _ = self.held.pop((stage, i))
        torch.autograd.backward(out, self.gradient(stage))
        if not self.stages[stage].first:
            self.back_out[stage].send(x.grad)

    def input_gradient(self, stage: int, i: int) -> None:
        """The part of a backward that the previous stage waits for. What weight gradients need is saved for later."""
        x, out, edges = self.held.pop((stage, i))
        first = self.stages[stage].first
        wanted = [edge for edge, _ in edges] + ([] if first else [x])
        found = torch.autograd.grad(out, wanted, self.gradient(stage), retain_graph=True)
        self.later[stage, i] = list(zip(edges, found, strict=False))
        if not first:
            self.back_out[stage].send(found[-1])

    def weight_gradient(self, stage: int, i: int) -> None:
        """The other part, at any later time: each layer's weight gradients, from its output's gradient."""
        for (edge, weights), gradient in self.later.pop((stage, i)):
            torch.autograd.backward(edge, gradient, inputs=weights)

    def gradient(self, stage: int) -> Tensor:
        """The gradient of a stage's output, as the next stage sends it; for the loss, its share in the mean."""
        if self.stages[stage].last:
            return torch.tensor(1 / len(self.tokens), device=self.s.device)
        gradient = self.back_in[stage].receive()
        self.outward[stage].sent_one()  # the output that it belongs to has arrived
        return gradient

    # --- around the core ------------------------------------------------------------------------------------

    def step(self, tokens: tuple[Tensor, ...], targets: tuple[Tensor, ...], work) -> float:
        """Losses and gradients of m micro-batches, each (b, s); returns the mean loss, on every rank. `work(self, m)`
        is their order: one of WAYS, or `run` with a rank's list of actions."""
        self.tokens, self.targets, self.losses = tokens, targets, []
        for wire in (*self.inward.values(), *self.back_in.values()):
            wire.begin(len(tokens))
        work(self, len(tokens))
        for wire in (*self.outward.values(), *self.back_out.values()):
            wire.end()
        self.tie()
        share = sum(self.losses).item() if self.losses else 0.0
        return self.s.total(share)

    def close(self) -> None:
        """Destroy the process groups. Every rank closes its own end."""
        for ways in (self.inward, self.outward, self.back_in, self.back_out):
            for wire in ways.values():
                wire.close()
        self.tie.close()


def naive(pipe: HandPipeline, m: int) -> None:
    """Each micro-batch goes through the whole pipeline before the next: one rank works, the others are idle."""
    for i in range(m):
        pipe.forward(pipe.s.rank, i)
        pipe.backward(pipe.s.rank, i)


def gpipe(pipe: HandPipeline, m: int) -> None:
    """All forwards, then all backwards: every rank stores the activations of all m micro-batches."""
    for i in range(m):
        pipe.forward(pipe.s.rank, i)
    for i in range(m):
        pipe.backward(pipe.s.rank, i)


def one_f_one_b(pipe: HandPipeline, m: int) -> None:
    """Warm-up forwards, then one forward and one backward in turn: at most p - rank micro-batches in flight."""
    rank = pipe.s.rank
    ahead = min(pipe.s.world - 1 - rank, m)
    for i in range(ahead):  # warm-up
        pipe.forward(rank, i)
    for i in range(m - ahead):  # one forward, one backward
        pipe.forward(rank, ahead + i)
        pipe.backward(rank, i)
    for i in range(m - ahead, m):  # cool-down
        pipe.backward(rank, i)


def run(actions):
    """The `work` of a list of actions (kind, stage, micro-batch), as scaleout.spec.pipeline.orders has for a rank. Two
    neighbours must take the micro-batches in the same order: a message does not say which one it is of."""

    def work(pipe, m):
        does = {"F": pipe.forward, "B": pipe.backward, "I": pipe.input_gradient, "W": pipe.weight_gradient}
        for kind, stage, i in actions:
            does[kind](stage, i)

    return work


WAYS = {"naive": naive, "gpipe": gpipe, "1f1b": one_f_one_b}

# --- messages -----------------------------------------------------------------------------------------------


class Wire:
    """One direction between two stages: messages in the order of micro-batches. No rank waits for a send before it has
    to, and the next message may arrive while this rank computes: so no order of sends and receives can deadlock.

    A wire has a process group of its own, of two ranks: on NCCL, the messages of one group run one after the other on
    a rank, and a send that is queued before a receive would block it.
    """

    def __init__(self, source: int, target: int, group, like: Tensor) -> None:
        self.source, self.target, self.group, self.like = source, target, group, like
        self.sent, self.coming, self.left = deque(), deque(), 0

    def begin(self, m: int) -> None:
        """A step of m messages: its first may come from now on."""
        self.left = m
        self.expect()

    def expect(self) -> None:
        """Start to receive the next message, if there is one more."""
        if self.left:
            self.left -= 1
            buffer = torch.empty_like(self.like)
            self.coming.append((buffer, dist.irecv(buffer, self.source, self.group)))

    def send(self, message: Tensor) -> None:
        """Returns at once; the tensor has to stay in memory until it is sent."""
        message = message.contiguous()
        self.sent.append((message, dist.isend(message, self.target, self.group)))

    def receive(self) -> Tensor:
        """Wait for the next message."""
        buffer, work = self.coming.popleft()
        work.wait()
        self.expect()
        return buffer

    def sent_one(self) -> None:
        """Wait until the oldest message is sent, and drop it."""
        _, work = self.sent.popleft()
        work.wait()

    def end(self) -> None:
        """Wait until all messages are sent."""
        while self.sent:
            self.sent_one()

    def close(self) -> None:
        """Destroy the process group."""
        dist.destroy_process_group(self.group)


class Handover(deque):
    """A wire between two stages of one rank."""

    def begin(self, m: int) -> None:
        """Nothing to prepare."""

    def send(self, message: Tensor) -> None:
        """Leave it here."""
        self.append(message)

    def receive(self) -> Tensor:
        """Take the oldest."""
        return self.popleft()

    def sent_one(self) -> None:
        """Nothing is under way."""

    end = close = sent_one


def connect(s, place: tuple[int, ...], like: Tensor, make, timeout, lines) -> tuple[dict, dict, dict, dict]:
    """(inward, outward, back_in, back_out) of this rank: {stage: wire}. Collective: every group is made by all ranks of
    all lines, and its first message sent, in one order."""
    inward, outward, back_in, back_out = {}, {}, {}, {}
    mine = next(line for line in lines if joined() in line)
    for line, stage in product(lines, range(len(place) - 1)):
        for sender, receiver, enter, leave in (
            (stage, stage + 1, inward, outward),
            (stage + 1, stage, back_in, back_out),
        ):
            source, target = line[place[sender]], line[place[receiver]]
            if source == target:
                if source == mine[s.rank]:
                    enter[receiver] = leave[sender] = Handover()
                continue
            group = dist.new_group(sorted((source, target)), timeout)
            if mine[s.rank] in (source, target):
                wire, sends = make(source, target, group, like), mine[s.rank] == source
                first = torch.zeros(1, device=s.device)  # NCCL joins the two with their first message
                dist.send(first, target, group) if sends else dist.recv(first, source, group)
                (leave if sends else enter)[sender if sends else receiver] = wire
    return inward, outward, back_in, back_out


def joined() -> int:
    """This process's rank in the whole job."""
    return dist.get_rank() if dist.is_initialized() else 0


class Tie:
    """Gives the embedding and its copy in the head the gradient of both, if the head is tied: the sum over the
    first and the last stage. Collective, as `connect` is."""

    def __init__(self, stages: dict[int, Stage], place: tuple[int, ...], lines) -> None:
        self.weights, self.group = tied_weights(stages), None
        for line in lines:
            ends = sorted({line[place[0]], line[place[-1]]})
            group = dist.new_group(ends) if len(ends) == 2 else None
            self.group = group if joined() in ends else self.group

    def __call__(self) -> None:
        """After the backwards of a step."""
        if len(self.weights) == 2:
            mine, copy = self.weights
            mine.grad += copy.grad
            copy.grad.copy_(mine.grad)
        elif self.weights:
            dist.all_reduce(self.weights[0].grad, group=self.group)

    def close(self) -> None:
        """Destroy the process group."""
        if self.group not in (None, dist.GroupMember.NON_GROUP_MEMBER):
            dist.destroy_process_group(self.group)
