"""What the lab of budget prints: figures with their spread, and what it calls gained, lost, or nothing."""

import pytest
from cases import each

from scaleout.lab import budget

BASE = {"loss": 2.0, "other_loss": 3.0, "sure": 0.2, "open": 2.0, "tail": 0.03, "right": 0.05, "at": 0.7,
        "among": 0.2, "among_at": 1.0}  # fmt: skip
TRAINED = {
    "loss": [2.05, 2.06, 2.04], "other_loss": [3.3, 3.2, 3.25], "sure": [0.1, 0.11, 0.12], "open": [1.8, 1.7, 1.9],
    "tail": [0.01, 0.01, 0.01], "right": [0.06, 0.061, 0.062], "at": [1.0, 1.0, 1.25],
    "among": [0.21, 0.2, 0.1901], "among_at": [1.0, 1.0, 1.0],
}  # fmt: skip


@each(
    [
        ("loss", 2.0, [1.9, 1.91, 1.92], "gained"),
        ("loss", 2.0, [2.1, 2.11, 2.12], "lost"),
        ("loss", 2.0, [1.9, 2.0, 2.09], "nothing"),
        ("right", 0.05, [0.06, 0.061, 0.062], "gained"),
        ("right", 0.05, [0.04, 0.041, 0.042], "lost"),
        ("right", 0.05, [0.05, 0.05, 0.05], "nothing"),
        ("right", 0.05, [0.03, 0.09], "nothing"),
    ]
)
def test_what_is_gained_is_clear_of_the_spread(name, base, values, words):
    assert budget.judged(name, base, values) == words


def test_a_verdict_says_plainly_where_nothing_is_gained():
    lines = budget.verdicts(BASE, {budget.OWN: TRAINED, budget.RAW: TRAINED | {"right": [0.05, 0.04, 0.06]}})
    assert lines[:5] == [
        "trained on its own text, truncated:", "  one sample: gained (+1.10 points)",
        "  16 samples: nothing gained (+0.00 points)", "  held-out loss: lost (+0.050 nats)",
        "  loss on the other text: lost (+0.250 nats)",
    ]  # fmt: skip
    assert lines[6].startswith("  one sample: nothing gained (")


def test_figures_stand_beside_the_base_with_their_spread():
    text = budget.models(BASE, {budget.OWN: TRAINED})
    assert "2.050 ± 0.010" in text and "6.10% ± 0.10" in text and "1.08 ± 0.12" in text
    assert all(words in text for words in budget.FIGURES.values())


def test_passes_and_costs_have_ratios_and_units():
    assert budget.passes([(4, 0.2, 0.25)]).splitlines()[-1].split() == ["k", "=", "4", "0.2000", "0.2500", "0.800"]
    assert "writing 64 sequences took 1,500.0 ms, 40 training steps" in budget.costs(1.5, 0.8, 64, 40)


def test_the_spread_is_half_of_the_range():
    mean, half = budget.spread([1.0, 2.0, 4.0])
    assert mean == pytest.approx(7 / 3) and half == 1.5
