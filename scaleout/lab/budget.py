"""What the lab of budget prints: a base model and three that were trained from it, and what was gained. Standard
library only."""

from __future__ import annotations

from statistics import fmean

from scaleout.lab.text import ms, ratio, table

OWN, RAW, REAL = "own", "raw", "real"
ARMS = {OWN: "its own text, truncated", RAW: "its own text, as sampled", REAL: "real text"}
FIGURES = {
    "loss": "held-out loss, nats per byte",
    "other_loss": "loss on the other text",
    "sure": "entropy where the base was surest, nats",
    "tail": "probability off the likeliest byte there",
    "open": "entropy where it was open, nats",
    "right": "right in one sample, best temperature",
    "at": "that temperature",
    "among": "right among 16 samples, best temperature",
    "among_at": "that temperature",
}
LOWER = ("loss", "other_loss")  # of these figures the lower one is better
SHARES = ("right", "among")
JUDGED = {"right": "one sample", "among": "16 samples", "loss": "held-out loss", "other_loss": "loss on the other text"}
CLEAR = 2  # times the spread over seeds: what is called gained or lost is at least so far from the base


def spread(values: list[float]) -> tuple[float, float]:
    """(mean, half of the range) of a figure over seeds."""
    return fmean(values), (max(values) - min(values)) / 2


def shown(name: str, values: list[float]) -> str:
    """A figure with its spread over seeds, as text."""
    mean, half = spread(values)
    if name in SHARES:
        return f"{100 * mean:.2f}%" + (f" ± {100 * half:.2f}" if len(values) > 1 else "")
    digits = 2 if name in ("at", "among_at") else 3
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if len(values) > 1 else "")


def models(base: dict[str, float], arms: dict[str, dict[str, list[float]]]) -> str:
    """Every figure of the base and of the models trained from it, as text. arms: {arm: {figure: by seed}}."""
    rows = [
        (words, shown(name, [base[name]]), *(shown(name, figures[name]) for figures in arms.values()))
        for name, words in FIGURES.items()
    ]
    return table(("on text that no model trained on", "base", *(ARMS[arm] for arm in arms)), rows)


def judged(name: str, base: float, values: list[float]) -> str:
    """Whether a figure was gained, lost, or neither: the means differ by less than CLEAR times the spread."""
    mean, half = spread(values)
    change = (mean - base) * (-1 if name in LOWER else 1)
    if abs(change) <= CLEAR * half + 1e-9:  # a mean of equal numbers may differ from them in its last digit
        return "nothing"
    return "gained" if change > 0 else "lost"


def verdicts(base: dict[str, float], arms: dict[str, dict[str, list[float]]]) -> list[str]:
    """A line for each arm, and one beneath it for each figure that is judged: gained, lost, or nothing gained."""
    lines = []
    for arm, figures in arms.items():
        parts = [f"trained on {ARMS[arm]}:"]
        for name, words in JUDGED.items():
            said = judged(name, base[name], figures[name])
            change = fmean(figures[name]) - base[name]
            amount = f"{100 * change:+.2f} points" if name in SHARES else f"{change:+.3f} nats"
            parts.append(f"  {words}: {'nothing gained' if said == 'nothing' else said} ({amount})")
        lines += parts
    return lines


def passes(rows: list[tuple[int, float, float]]) -> str:
    """pass@k from a Beta distribution and from the accuracies themselves, as text. rows: (k, predicted, measured)."""
    return table(("pass@k of the base", "predicted", "measured", "ratio"), [
        (f"k = {k}", f"{predicted:.4f}", f"{measured:.4f}", ratio(predicted, measured)) for k, predicted, measured in
        rows])  # fmt: skip


def costs(written: float, trained: float, sequences: int, steps: int) -> str:
    """Seconds to write the text and to train on it, as one line."""
    return (
        f"writing {sequences} sequences took {ms(written)} ms, {steps} training steps on them {ms(trained)} ms; "
        "no text was communicated"
    )
