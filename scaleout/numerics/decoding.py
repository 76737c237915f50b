"""The next token's distribution as a sampler changes it, by temperature and by top-p, and what training on its own
samples makes of a model.

The toy is that of Zhang et al., arXiv 2604.01193, section on a toy example: an answer is one root token, one fork and
three locks. At a lock one token is right and the others are a tail of mistakes. At the root two tokens are right, at
the fork one, and the most likely one is wrong at both. The paper gives the first four of 16 probabilities; here the
rest of each is a geometric tail of ratio 1/2, which reproduces its figures (tests/published/self_distillation.json).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

TOKENS = 16
TAIL = 0.5  # each probability of the tail by the one before it
LOCKS = 3  # lock positions of an answer
TOP_P = 0.8  # with which the toy's answers are written
WRITTEN = (0.9, 0.85)  # temperature and top-p of the text that the toy is trained on


def decoded(p: Sequence[float], temperature: float, top_p: float = 1.0) -> list[float]:
    """A distribution at a temperature, cut to the fewest likely tokens that together have at least `top_p`."""
    kept, mass = _cut(p, temperature, top_p)
    return [x / mass for x in kept]


def _cut(p: Sequence[float], temperature: float, top_p: float) -> tuple[list[float], float]:
    """The same before it is divided by its sum, and the sum."""
    power = 1 / temperature
    q = [x**power for x in p]
    kept, mass, enough = [0.0] * len(q), 0.0, top_p * sum(q) * (1 - 1e-12)
    for i in sorted(range(len(q)), key=q.__getitem__, reverse=True):
        kept[i], mass = q[i], mass + q[i]
        if mass >= enough:
            break
    return kept, mass


def entropy(p: Sequence[float]) -> float:
    """Nats."""
    return -sum(x * log(x) for x in p if x > 0)


def with_tail(head: Sequence[float]) -> list[float]:
    """A distribution over TOKENS whose first probabilities are given."""
    weights = [TAIL**i for i in range(TOKENS - len(head))]
    rest = (1 - sum(head)) / sum(weights)
    return [*head, *(rest * weight for weight in weights)]


@dataclass(frozen=True)
class Toy:
    """A model that answers with a root, a fork and LOCKS locks: the distribution at each, and which tokens are right
    (RIGHT)."""

    root: tuple[float, ...]
    fork: tuple[float, ...]
    lock: tuple[float, ...]

    def decoded(self, temperature: float, top_p: float = TOP_P) -> Toy:
        """The same positions as a sampler sees them."""
        return Toy(*(tuple(decoded(p, temperature, top_p)) for p in (self.root, self.fork, self.lock)))

    def trained(self, temperature: float = WRITTEN[0], top_p: float = WRITTEN[1]) -> Toy:
        """The model after training on what it wrote, with as much text as one likes: it then has at temperature 1 the
        distribution that wrote it, for that is where the cross-entropy is lowest."""
        return self.decoded(temperature, top_p)

    @property
    def right(self) -> tuple[float, float, float]:
        """The probability of a right token at the root, at the fork and at a lock."""
        root, fork, lock = (sum(p[i] for i in RIGHT[name]) for name, p in self.positions.items())
        return root, fork, lock

    @property
    def positions(self) -> dict[str, tuple[float, ...]]:
        """The distributions by name."""
        return {"root": self.root, "fork": self.fork, "lock": self.lock}

    def success(self, temperature: float, top_p: float = TOP_P) -> float:
        """The probability that an answer is right."""
        right = []
        for name, p in self.positions.items():  # of all tokens only the right ones are asked for
            kept, mass = _cut(p, temperature, top_p)
            right.append(sum([kept[i] / mass for i in RIGHT[name]]))
        root, fork, lock = right
        return root * fork * lock**LOCKS


RIGHT = {"root": (0, 1), "fork": (0,), "lock": (0,)}  # tokens
TOY = Toy(
    *(
        tuple(with_tail(head))
        for head in ((0.2, 0.19, 0.329, 0.126), (0.148, 0.28, 0.14, 0.144), (0.75, 0.055, 0.05, 0.037))
    )
)
