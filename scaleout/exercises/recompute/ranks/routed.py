"""Check the lab exercise `kept-choice`: a layer of experts behind a gate that chooses otherwise when it runs again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.sure import Fault, Seen, by_mistakes

TOKENS, WIDTH, EXPERTS = 12, 6, 4
INSIDE = 16 * WIDTH  # of an expert: much more than what goes in and comes out
KEPT_LIMIT = 4 * TOKENS * (6 * WIDTH + 4 * EXPERTS)  # bytes that may be kept: rows in and out, and the gate's numbers
NUDGE = 1e-5  # by which a gate's logits differ from one run to the next
CLOSE = 1e-3  # of gradients: a second softmax may be part of a right answer


@dataclass(frozen=True)
class Case:
    """swaps: a second run chooses otherwise on some tokens, but each expert has as many as before. empty: the last
    expert has none. seed: of its tensors."""

    name: str
    swaps: bool
    empty: bool = False
    seed: int = 3


CASES = (
    Case("a gate that says the same twice", False),
    Case("a second choice, and as many tokens for each expert", True),
    Case("a second choice of other tokens", True, seed=30),
    Case("an expert that no token goes to", True, empty=True),
)


class Gate(nn.Module):
    """Experts 0 and 1 are level for every token; a nudge, another one in each run, decides."""

    def __init__(self, case: Case, x: torch.Tensor, generator: torch.Generator) -> None:
        super().__init__()
        weight = torch.randn(WIDTH, EXPERTS, generator=generator)
        weight[:, 1] = weight[:, 0]
        self.weight, self.runs = nn.Parameter(weight), 0
        tied = [i for i, row in enumerate(x @ weight) if row[0] >= row[2 : EXPERTS - case.empty].max()]
        first, second = torch.zeros(TOKENS, EXPERTS), torch.zeros(TOKENS, EXPERTS)
        for number, token in enumerate(tied):
            first[token, number % 2] = NUDGE
            moves = case.swaps and number < len(tied) // 2 * 2  # in pairs
            second[token, (number + moves) % 2] = NUDGE
        for nudge in (first, second):
            nudge[:, EXPERTS - 1] -= 50.0 * case.empty
        self.nudges = (first, second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nudge = self.nudges[min(self.runs, 1)]
        self.runs += 1
        return x @ self.weight + nudge


class Expert(nn.Module):
    """Two matmuls, a count of the tokens that came, and whether the tensor between them is still in memory."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Parameter(torch.randn(*size, generator=generator) / 4) for size in ((WIDTH, INSIDE), (INSIDE, WIDTH))
        )
        self.rows = 0
        self.inside: list = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows += len(x)
        hidden = torch.relu(x @ self.up)
        if len(x):
            self.inside.append(StorageWeakRef(hidden.untyped_storage()))
        return hidden @ self.down


@dataclass
class Layer:
    """A case's tensors and modules; made twice they are the same."""

    x: torch.Tensor
    gate: Gate
    experts: list[Expert]
    upstream: torch.Tensor  # the gradient that the backward begins at

    def gradients(self) -> dict[str, torch.Tensor | None]:
        gradients = {"x": self.x.grad, "the gate": self.gate.weight.grad}
        gradients |= {f"expert {i}": expert.up.grad for i, expert in enumerate(self.experts)}
        return gradients | {f"expert {i}'s second weight": expert.down.grad for i, expert in enumerate(self.experts)}


def layer(case: Case, rank: int) -> Layer:
    generator = torch.Generator().manual_seed(case.seed + rank)
    x, upstream = (torch.randn(TOKENS, WIDTH, generator=generator) for _ in range(2))
    gate = Gate(case, x, generator)
    return Layer(x.requires_grad_(), gate, [Expert(generator) for _ in range(EXPERTS)], upstream)


def plain(case: Case, rank: int, run: int = 0, weighted: bool = True, soft: bool = False) -> tuple[torch.Tensor, Layer]:
    """The layer with nothing recomputed, by the gate's choice in its first run or in a later one, and its backward.
    Not weighted: without the probability. soft: all experts for every token."""
    reference = layer(case, rank)
    reference.gate.runs = run
    shares = reference.gate(reference.x).softmax(-1)
    share, chosen = shares.max(-1)
    output = torch.zeros_like(reference.x)
    for i, expert in enumerate(reference.experts):
        mine = torch.ones_like(chosen, dtype=torch.bool) if soft else chosen == i
        times = shares[:, i] if soft else share if weighted else torch.ones_like(share)
        rows = torch.zeros_like(output)
        rows[mine] = times[mine, None] * expert(reference.x[mine])
        output = output + rows
    output.backward(reference.upstream)
    return output.detach(), reference


WORDS = {
    "unweighted": "the output lacks the probability: multiply the expert's output by the token's probability",
    "all-experts": "every token goes through all experts: send it only to the one with its largest logit",
    "asked-twice": "the output follows the gate's second choice: run the gate once",
    "changed": "there was no error, and the gradients follow the gate's second choice: tokens went through one "
               "expert, their gradients through another. Run the gate outside of the checkpoint",
}  # fmt: skip
# What is to be seen of the output and of the gradients.
PLAIN = (("other-output", "the output is not the one of the gate's first choice"),
         ("wrong-gradient", "the gradients are not those of the gate's first choice"))  # fmt: skip


def rank_report(function, rank: int, world: int) -> Verdict | list[Seen]:
    """What was seen of each case, up to one that no known mistake is behind."""
    seen: list[Seen] = []
    for case in CASES:
        place = f"rank {rank} of {world}, {case.name}"
        fault = _case(function, case, rank)
        if fault and fault[0] == "stub":
            return wrong(f"{place}: {fault[1]}", "stub")
        known = fault[0] if fault and fault[0] in WORDS else ""
        agree = {known} if known else {"asked-twice", "changed"} if not (fault or case.swaps) else set()
        seen.append(Seen(place, PLAIN[known == "changed"] if known else fault, frozenset(agree)))
        if fault and not known:
            break
    return seen


def _case(function, case: Case, rank: int) -> Fault:
    mine = layer(case, rank)
    with counted() as seen:
        output = function(mine.x, mine.gate, mine.experts)
    if output is ...:
        return "stub", "the function returns its ... at once: put your layer in its place"
    if not isinstance(output, torch.Tensor):
        return "no-tensor", f"the function gave a {type(output).__name__}: return a tensor like x"
    expected, right = plain(case, rank)
    fault = _output(output.detach(), expected, case, rank)
    if fault:
        return fault
    if any(not storage.expired() for expert in mine.experts for storage in expert.inside):
        return "kept", (
            "tensors computed inside the experts are still in memory before the backward pass: run the experts in a "
            "checkpoint"
        )
    rows = sum(expert.rows for expert in mine.experts)
    new_bytes = sum(storage.nbytes() for storage in seen.alive([mine.x]))
    if rows != TOKENS:
        return "more-tokens", (
            f"{rows} tokens went through the experts, and there are {TOKENS}: send each only through the "
            "expert that was chosen for it"
        )
    if new_bytes > KEPT_LIMIT:
        return "kept", (
            f"{new_bytes:,} new bytes are in memory before the backward pass, and the experts' inputs and "
            f"outputs have {8 * TOKENS * WIDTH:,}: save no copies of tensors computed inside the experts"
        )
    if not output.requires_grad:
        return "no-way-back", "the output has no graph: did something run under no_grad, or was it detached?"
    output.backward(mine.upstream)
    return _gradients(mine.gradients(), right.gradients(), case, rank)


def _output(output: torch.Tensor, expected: torch.Tensor, case: Case, rank: int) -> Fault:
    """What is wrong with what the layer gives."""
    if close(output, expected):
        return None
    made: dict[str, dict] = {
        "unweighted": {"weighted": False},
        "all-experts": {"soft": True},
        "asked-twice": {"run": 1},
    }
    known = (slip for slip, options in made.items() if close(output, plain(case, rank, **options)[0]))
    return next(((slip, WORDS[slip]) for slip in known), PLAIN[0])


def _gradients(actual: dict, expected: dict, case: Case, rank: int) -> Fault:
    """What is wrong with the gradients, where the output is right."""
    errors = [
        name
        for name, gradient in expected.items()
        if not close(_or_zeros(actual[name], gradient), _or_zeros(gradient, None))
    ]
    if not errors:
        return None
    if actual["the gate"] is None or not actual["the gate"].any():
        return "no-gate", "the gate has no gradient: it is trained through the probability, so keep that in the graph"
    if actual["x"] is None:
        return "no-x", "x has no gradient"
    later = plain(case, rank, run=1)[1].gradients()
    if case.swaps and all(
        close(_or_zeros(actual[name], gradient), _or_zeros(gradient, actual[name])) for name, gradient in later.items()
    ):
        return "changed", WORDS["changed"]
    return "wrong-gradient", f"the gradient of {errors[0]} is wrong"


def _or_zeros(gradient: torch.Tensor | None, like: torch.Tensor | None) -> torch.Tensor:
    """An expert without a token has no gradient, or one of zeros."""
    if gradient is not None:
        return gradient
    return torch.zeros(1) if like is None else torch.zeros_like(like)


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return actual.shape == expected.shape and torch.allclose(actual, expected, rtol=CLOSE, atol=CLOSE)


CHECK = Check(
    "scaleout.exercises.recompute.ranks",
    "routed",
    (2,),
    rank_report,
    by_mistakes(WORDS),
    wait_seconds=5,
    right="right on 2 processes: each token's gradient went through the expert that processed it, and "
    "nothing was saved inside",
)
