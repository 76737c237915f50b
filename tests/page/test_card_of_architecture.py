"""The card of rung 12: its formulas and numbers are the package's, and those of published runs."""

import json

import pytest
from repo import text
from tex import value

from scaleout.page import cards
from scaleout.timing import diagnosis, reliability, stragglers

CARD = cards.load("architecture")
WAITED, GAP, EFFECTIVE, FAILURES = (one["tex"] for one in CARD["formulas"])
PUBLISHED = json.loads(text("tests/published/interruptions.json"))
RUN = stragglers.stored()


def test_time_in_the_all_reduce_is_waiting_and_transfer():
    for step, rows in enumerate(RUN.steps):
        last = max(row.collectives[0][0] for row in rows)
        for row, (transfer,) in zip(rows, RUN.transfers(step), strict=True):
            assert value(WAITED, A=last, a=row.collectives[0][0], t=transfer) == pytest.approx(row.waited, abs=1e-9)


def test_the_gap_is_the_rules_score():
    waited = sorted(sum(row.waited for row in RUN.rows(rank)) for rank in range(RUN.ranks))
    found = value(GAP, w_m=waited[4], w_s=waited[0], Y=RUN.seconds)
    assert found == pytest.approx(stragglers.culprit(RUN).score, rel=0.05)  # which divides by the victim's own time


def test_effective_time_and_failures():
    shown = value(EFFECTIVE, N=256, rho=6.5e-3, u=0.01, tau=0.04, delta=0.001)
    assert shown == pytest.approx(reliability.effective_ratio(256, 6.5e-3, 0.04, 0.001, 0.01))
    assert value(FAILURES, N=2048, rho=6.5e-3) * 24 == pytest.approx(1.8, rel=0.01)


def test_numbers_are_the_packages_and_the_published_ones():
    llama, meta, marin = PUBLISHED["llama3"], PUBLISHED["meta"], PUBLISHED["marin_9205"]
    assert [one["value"] for one in CARD["numbers"]] == [
        f"{stragglers.CLEAR:.0%}",
        f"{stragglers.COVERED:.0%}",
        f"{llama['days'] * 24 / llama['unexpected']:.1f} h",
        f"{meta['hours_between_failures']['16384 GPUs, projected']} h",
        f"{marin['median_step_while_saving_s']:.1f} s",
    ]
    assert f"{marin['median_step_s']:.1f} s without" in CARD["numbers"][-1]["words"]


def test_the_card_has_a_line_for_what_the_lab_injects():
    assert len(CARD["tables"][0]["rows"]) == 8 and len(diagnosis.FAULTS) == 10
