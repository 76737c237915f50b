"""What the view `budget` says: the best model and what its budget goes into, and how often the toy is right."""

from __future__ import annotations

from scaleout.numerics.decoding import LOCKS
from scaleout.views.budget.setting import FLOPS, SPLIT, WRITES, Look, Setting

OTHER = {SPLIT: "a model that trains itself", WRITES: "training or answers: one budget"}  # by what is shown
EXTRAPOLATED = "outside the runs that the law was fitted on"


def of_split(setting: Setting) -> str:
    """The best model for this number of samples, and the number with which most questions are answered."""
    best, winner = setting.best, setting.winner
    aside = "" if setting.fit.fitted(best.parameters, best.tokens) else f", {EXTRAPOLATED}"
    tail = "this k answers the most questions" if winner == setting.samples else f"k = {winner} answers more questions"
    return (
        f"**For k = {setting.samples} the best model has {billions(best.parameters)} parameters**, trained on "
        f"{best.per_parameter:,.0f} tokens per parameter{aside}. {answers(best.answering_share)}; {tail}."
    )


def answers(share: float) -> str:
    """How much of the budget writes answers."""
    return f"Answers take {share:.0%} of the budget"


def billions(amount: float) -> str:
    """Parameters or tokens in billions."""
    return f"{amount / 1e9:,.2f} billion" if amount < 1e10 else f"{amount / 1e9:,.0f} billion"


def split_law(setting: Setting) -> list[str]:
    """The budget as its two parts."""
    total, answering = round(FLOPS / 1e21, 2), round(setting.best.answering / 1e21, 2)
    return [
        "Training 6ND and answers 2NQk share the budget, in 10²¹ FLOPs:",
        f"{total - answering:.2f} + {answering:.2f} = {total:.2f}",
        f"Loss {setting.loss:.2f} nats per token.",
    ]


def slips(setting: Setting) -> list[tuple[float, str]]:
    """Billions of parameters that likely mistakes give."""
    alone, k = setting.each[1].best.parameters, setting.samples
    share = setting.each[1].best.answering_share
    cost = 2 * alone * setting.budget.answers * k / FLOPS
    return [
        (alone / 1e9, f"that is the same model: its {k} samples alone would take {cost:.1f} times the budget"),
        (alone / k / 1e9, f"that is {k} times smaller, as if answers had been the whole budget; at k = 1 they are "
                          f"{share:.0%}"),
        (FLOPS / (2 * setting.budget.answers * k) / 1e9, "that model could write the answers, with nothing left to "
                                                         "train it"),
        (2 * alone / 1e9, "a larger model is better per sample, but each of its samples costs more as well"),
    ]  # fmt: skip


def of_toy(setting: Setting, look: Look) -> str:
    """How often the toy is right, and at which temperature it would be most often."""
    peak_at, peak = setting.curves[look.state].peak
    right = look.toy(setting).success(look.temperature)
    state = "After training on its own text" if look.state == "after" else "As it was"
    best = f"at its best temperature, {peak_at:.2f}, in {peak:.1%}"
    other = setting.curves["before" if look.state == "after" else "after"].peak[1]
    compare = f"before training at best {other:.1%}" if look.state == "after" else f"after training up to {other:.1%}"
    return f"**{state}, the toy is right in {right:.1%} of answers**; {best}; {compare}. No answer was checked."


def toy_law(setting: Setting, look: Look) -> list[str]:
    """The probability of a right answer as a product."""
    toy = look.toy(setting)
    root, fork, lock = toy.decoded(look.temperature).right
    return [
        f"An answer is right if its root, its fork and its {LOCKS} locks are:",
        f"{root:.3f} × {fork:.3f} × {lock:.3f}³ = {toy.success(look.temperature):.4f}",
        "",
    ]
