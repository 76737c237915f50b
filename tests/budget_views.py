"""What the view `budget` always shows, for the test of every view."""

import pytest


def holds(params, values, result):
    """Of every setting: parts sum to the budget, shares are shares, and a best value is the best."""
    assert len(result["svg"]) < 25_000
    if params["show"] == "writes":
        (at_before, before), (at_after, after) = values["best_before"], values["best_after"]
        assert 0 <= values["right_percent"] <= 1.001 * (after if params["state"] == "after" else before)
        assert 0.3 <= at_before <= 3 and 0.3 <= at_after <= 3 and all(0 <= p <= 1 for p in values["right_at"].values())
        return
    assert 0 < values["best_billions"] <= values["alone_billions"] and 0 < values["answering_percent"] < 100
    spent = 6 * values["best_billions"] * values["token_billions"] * 1e18 / 3e21
    assert spent == pytest.approx(1 - values["answering_percent"] / 100, rel=1e-4)
    solved = values["pass_percent"]
    assert solved[str(values["most_solved"])] == max(solved.values()) < 100
