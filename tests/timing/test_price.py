"""What a class and a run cost: GPU-hours by hand, prices that are asked for, the table of the page on running it."""

import re

import pytest
import repo

from scaleout import views
from scaleout.spec import hardware
from scaleout.timing import price
from scaleout.timing.price import SETTINGS, Use, run_cost
from scaleout.views import capstone


def test_gpu_hours_count_groups_slack_and_nothing_else():
    pairs = Use("pairs", 21, 2, 2, group=2)
    assert pairs.groups == 11  # the last student alone
    assert pairs.gpu_hours == 11 * 2 * (2 + 1)
    assert pairs.price(2.5) == 66 * 2.5
    assert Use("laptops", 30, 0, 2).price(9.0) == 0
    assert Use("bare", 1, 8, 4, slack_hours=0).gpu_hours == 32


def test_energy_is_power_times_hours_times_overhead():
    node = Use("node", 1, 8, 3, slack_hours=1)
    assert node.kwh(1000) == 32
    assert node.kwh(700, 1.5) == pytest.approx(32 * 0.7 * 1.5)


def test_what_a_run_takes():
    cost = run_cost(1e9, 1e6, 16, 700, 2.5)
    assert cost.hours == pytest.approx(1000 / 3600) and cost.gpu_hours == pytest.approx(16 * cost.hours)
    assert cost.kwh == pytest.approx(16 * 0.7 * cost.hours) and cost.price == pytest.approx(2.5 * cost.gpu_hours)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Use("x", 0, 1, 1), "students must be a whole number from 1, not 0"),
        (lambda: Use("x", 1, True, 1), "gpus must be a whole number from 0, not True"),
        (lambda: Use("x", 1, 1, -1), "hours must be a number from 0, not -1"),
        (lambda: Use("x", 1, 1, 1).price(float("nan")), "the price of a GPU-hour must be a number from 0, not nan"),
        (
            lambda: Use("x", 1, 1, 1).kwh(700, 0.9),
            "overhead must be at least 1, not 0.9: it counts the machines themselves",
        ),
        (lambda: run_cost(1e9, 0, 8, 700, 2), "a run needs tokens per second above 0 and ranks from 1, not 0, 8"),
        (lambda: run_cost(1e9, 1e5, 8, -1, 2), "watts must be a finite number from 0 up, not -1"),
    ],
)
def test_what_nobody_can_rent_is_refused(make, words):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        make()


def test_the_command_needs_a_price_and_says_so_in_one_line(capsys):
    assert price.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "price: the following arguments are required: --price, --currency (--help lists the options)\n"
    assert price.main(["--price", "2"]) == 2
    assert "the following arguments are required: --currency" in capsys.readouterr().err
    assert price.main(["--price", "2", "--currency", "EUR", "--gpus", "-1"]) == 2
    assert capsys.readouterr().err == "price: gpus must be a whole number from 0, not -1\n"


def test_the_command_prices_a_class_of_your_own(capsys):
    assert price.main(["--price", "2.5", "--currency", "EUR", "--students", "10", "--gpus", "4", "--hours", "3"]) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    assert "EUR, at 2.5 EUR per GPU-hour" in head and "kWh, at 1,275 W per GPU" in head
    assert row == "| your class | 10 | 4 | 10 | 4 | 160 | 400.00 | 204.0 |"


# --- one table, on every page that says what a class costs ---------------------------------------------------

TABLES = re.compile(r"(?:^\|.*\n)+", re.M)


def pages():
    """{path: text} of what is written by hand: the README and the pages of the book."""
    names = [name for name in repo.files() if name == "README.md" or re.fullmatch(r"(book|labs)/.*\.md", name)]
    return {name: repo.text(name) for name in names}


def test_every_page_with_a_table_of_costs_shows_this_one():
    shown = {
        name: table
        for name, text in pages().items()
        for table in TABLES.findall(text)
        if re.search(r"hours", table.splitlines()[0], re.I)
    }
    assert set(shown) == {"book/running.md", "book/instructor/index.md"}
    assert {table.strip() for table in shown.values()} == {price.markdown(SETTINGS, price.EXAMPLE)}


def test_pages_count_gpu_hours_and_name_the_currency():
    for name, text in pages().items():
        assert not re.search(r"machine.hours|1,?000 W\b", text, re.I), name
        for command in re.findall(r"scaleout\.price .*", text):
            assert "--currency" in command, f"{name}: {command}"
        for found in re.findall(r"price of \d[\d.]*[^.,\n]{0,8}", text):
            assert "EUR" in found, f"{name}: {found}"


def test_one_power_of_a_gpu_and_it_is_a_node_s_share():
    """NVIDIA's DGX H100: 10.2 kW at most, 8 GPUs."""
    assert hardware.NODE_WATTS == 10_200 and hardware.GPU_WATTS == 10_200 / 8 == 1275
    assert views.defaults("capstone")["watts"] == hardware.GPU_WATTS
    assert "1,275 W per GPU, for all the time" in repo.text("book/running.md")
    given = capstone.CONTROLS
    assert next(one for one in given if one.name == "price").unit == price.EXAMPLE.currency
    assert f"{price.EXAMPLE.currency}" in views.render("capstone", {})["sentence"]
