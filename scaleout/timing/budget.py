"""What a budget of FLOPs buys: a model of which size, trained on how many tokens, and how many sampled answers.

N: parameters, D: training tokens, k: samples per question. Training takes about 6 FLOPs per parameter and token, a
forward pass 2 (Kaplan et al., arXiv 2001.08361, section 2.1), so a model that is trained once and then writes `answers`
tokens for each of k samples costs 6ND + 2N * answers * k (as in Sardana et al., arXiv 2401.00448, who count the served
tokens in this way). All losses are in nats per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, lgamma, log, sqrt

TRAIN, FORWARD = 6, 2  # FLOPs per parameter and token
# Fewest and most parameters and tokens of the runs that both laws were fitted on (Hoffmann et al., arXiv 2203.15556,
# abstract), and the largest FLOPs for which they compared models of several sizes (section 3.2).
FITTED_PARAMETERS = (70e6, 16e9)
FITTED_TOKENS = (5e9, 500e9)
FITTED_FLOPS = 3e21
SMALLEST, LARGEST = 1e6, 1e13  # parameters among which `Budget.best` searches
GOLDEN = (sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Law:
    """The loss of a language model: E + A / N^alpha + B / D^beta. Fields: E, A, alpha, B, beta."""

    words: str
    floor: float
    model: float
    model_power: float
    data: float
    data_power: float

    def reducible(self, parameters: float, tokens: float) -> float:
        """Nats per token above the floor, which no model and no data would go below."""
        return self.model / parameters**self.model_power + self.data / tokens**self.data_power

    def loss(self, parameters: float, tokens: float) -> float:
        """Nats per token."""
        return self.floor + self.reducible(parameters, tokens)

    def fitted(self, parameters: float, tokens: float) -> bool:
        """Whether the law was fitted on runs as small and as large as this one."""
        return _within(parameters, FITTED_PARAMETERS) and _within(tokens, FITTED_TOKENS)


LAWS = {
    # Besiroglu et al., arXiv 2404.10102, table 1: a second fit to the runs of Hoffmann et al., read from their figure.
    "besiroglu": Law("Besiroglu et al. (2024)", 1.8172, 482.01, 0.3478, 2085.43, 0.3658),
    # Hoffmann et al., arXiv 2203.15556, equation 10, as printed. Besiroglu et al. show that its optimizer stopped early
    # and that the rounding biases it: its best models have more tokens per parameter than those of the paper's other
    # methods.
    "hoffmann": Law("Hoffmann et al. (2022), as printed", 1.69, 406.4, 0.34, 410.7, 0.28),
}


@dataclass(frozen=True)
class Plan:
    """A model and what it is used for: parameters, training tokens, samples per question, FLOPs of both parts."""

    parameters: float
    tokens: float
    samples: int
    training: float
    answering: float

    @property
    def per_parameter(self) -> float:
        """Training tokens per parameter."""
        return self.tokens / self.parameters

    @property
    def answering_share(self) -> float:
        """The part of all FLOPs that goes into answers."""
        return self.answering / (self.training + self.answering)


@dataclass(frozen=True)
class Budget:
    """FLOPs of a model's whole life, and the tokens that it writes for one sample of each of its questions."""

    flops: float
    answers: float

    def plan(self, parameters: float, samples: int) -> Plan | None:
        """A model of this size: it trains on what k samples leave. None where they leave nothing."""
        answering = FORWARD * parameters * self.answers * samples
        training = self.flops - answering
        if training <= 0:
            return None
        return Plan(parameters, training / (TRAIN * parameters), samples, training, answering)

    def best(self, law: Law, samples: int) -> Plan:
        """The plan with the lowest loss at k samples per question, by golden-section search over log N: from small to
        large models the loss falls and then rises."""
        most = self.flops / (FORWARD * self.answers * samples) if self.answers else LARGEST
        low, high = log(SMALLEST), log(min(LARGEST, most * (1 - 1e-9)))

        def loss(place: float) -> float:
            plan = self.plan(exp(place), samples)
            return law.loss(plan.parameters, plan.tokens) if plan else float("inf")

        while high - low > 1e-9:
            left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
            low, high = (low, right) if loss(left) < loss(right) else (left, high)
        found = self.plan(exp((low + high) / 2), samples)
        assert found is not None
        return found


def accuracy(reducible: float, decisive: float) -> float:
    """The probability that one sample is right, averaged over questions: each of so many decisive tokens has a
    probability of exp(-reducible loss). This is an assumption, and so is how many tokens decide. -log(accuracy) is then
    linear in the terms of the scaling law. Roberts et al. (arXiv 2604.01411) fit such a law, with one more term that
    falls with k, to the mean of -log(pass@k) by question; their constants are not used here."""
    return exp(-decisive * reducible)


def pass_at(samples: int, a: float, b: float) -> float:
    """pass@k: the share of questions with at least one right answer among k samples, where the accuracy by question
    has a Beta(a, b) distribution: 1 - B(a, b + k) / B(a, b)."""
    return 1 - exp(_log_beta(a, b + samples) - _log_beta(a, b))


def beta_of(mean: float, spread: float) -> tuple[float, float]:
    """(a, b) of the Beta distribution with this mean and a + b = spread. The smaller the spread, the more questions
    are either always or never answered."""
    return mean * spread, (1 - mean) * spread


def beta_fit(accuracies: list[float]) -> tuple[float, float]:
    """(a, b) of the Beta distribution with the mean and the variance of measured accuracies by question, of which at
    least two differ."""
    mean = sum(accuracies) / len(accuracies)
    variance = sum((p - mean) ** 2 for p in accuracies) / len(accuracies)
    return beta_of(mean, mean * (1 - mean) / variance - 1)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def _within(value: float, ends: tuple[float, float]) -> bool:
    return ends[0] <= value <= ends[1]
