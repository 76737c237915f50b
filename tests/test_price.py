"""What a class costs: GPU-hours by hand, prices that are asked for, and the table of the page on running it."""

import re

import pytest
import repo

from scaleout import price
from scaleout.price import SETTINGS, Use


def test_gpu_hours_count_groups_slack_and_nothing_else():
    pairs = Use("pairs", 21, 2, 2, group=2)
    assert pairs.groups == 11                                   # the last student alone
    assert pairs.gpu_hours == 11 * 2 * (2 + 1)
    assert pairs.price(2.5) == 66 * 2.5
    assert Use("laptops", 30, 0, 2).price(9.0) == 0
    assert Use("bare", 1, 8, 4, slack_hours=0).gpu_hours == 32


def test_energy_is_power_times_hours_times_overhead():
    node = Use("node", 1, 8, 3, slack_hours=1)
    assert node.kwh(1000) == 32
    assert node.kwh(700, 1.5) == pytest.approx(32 * 0.7 * 1.5)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Use("x", 0, 1, 1), "students must be a whole number from 1, not 0"),
    (lambda: Use("x", 1, True, 1), "gpus must be a whole number from 0, not True"),
    (lambda: Use("x", 1, 1, -1), "hours must be a number from 0, not -1"),
    (lambda: Use("x", 1, 1, 1).price(float("nan")), "the price of a GPU-hour must be a number from 0, not nan"),
    (lambda: Use("x", 1, 1, 1).kwh(700, 0.9),
     "overhead must be at least 1, not 0.9: it counts the machines themselves"),
])  # fmt: skip
def test_what_nobody_can_rent_is_refused(make, words):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        make()


def test_the_command_needs_a_price_and_says_so_in_one_line(capsys):
    assert price.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "price: the following arguments are required: --price (--help says more)\n"
    assert price.main(["--price", "2", "--gpus", "-1"]) == 2
    assert capsys.readouterr().err == "price: gpus must be a whole number from 0, not -1\n"


def test_the_command_prices_a_class_of_your_own(capsys):
    assert price.main(["--price", "2.5", "--currency", "EUR", "--students", "10", "--gpus", "4", "--hours", "3"]) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    assert "price at 2.5 EUR a GPU-hour" in head
    assert row == "| your class | 10 | 4 | 10 | 4 | 160 | 400.00 | 160.0 |"


def test_the_page_shows_the_table_that_the_command_prints():
    assert price.markdown(SETTINGS, 2.5, 1275) in repo.text("book/running.md")
