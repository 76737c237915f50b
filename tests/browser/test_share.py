"""The state of a view in the address."""

from __future__ import annotations

import pytest
from driver import READY, params, settle, values

from scaleout import views

pytestmark = pytest.mark.browser


def fragment(page) -> str:
    return page.evaluate("location.hash")


def test_the_address_follows_and_restores(opened, visit):
    opened.get_by_role("slider", name="Bars").press("End")
    opened.get_by_role("combobox", name="Power").select_option("two")
    opened.get_by_role("switch", name="Show a frame").check()
    opened.wait_for_function("location.hash.includes('frame')")
    assert fragment(opened) == "#live-specimen?count=12&power=2&frame=true"
    length = opened.evaluate("history.length")
    there = values(opened)
    opened.reload()
    opened.wait_for_function(READY)  # a link to a state is a request to draw it
    settle(opened, "12 bars")
    assert values(opened) == there
    assert opened.get_by_role("slider", name="Bars").input_value() == "12"
    assert opened.get_by_role("switch", name="Show a frame").is_checked()
    assert opened.evaluate("history.length") == length


def test_a_wrong_link_says_what_would_be_right_and_keeps_the_picture(visit):
    page = visit("specimen-light", "#live-specimen?count=99")
    settle(page, "count must be from 2 to 12, not 99", ".live-status .live-problem")
    assert values(page) == views.render("specimen")["values"]
    assert params(page)["count"] == 6


def test_a_link_carries_no_code(visit):
    page = visit("specimen-light", "#live-specimen?count=8&source=1/0")
    settle(page, "8 bars")
    assert params(page)["source"] == views.defaults("specimen")["source"]


def test_a_new_link_on_the_same_page_is_taken(visit):
    page = visit("specimen-light", "#live-specimen?count=8")
    settle(page, "8 bars")
    page.evaluate("location.hash = '#live-specimen?count=9'")
    settle(page, "9 bars")


def test_copying_the_link(opened, context, site):
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site)
    opened.get_by_role("slider", name="Bars").press("Home")
    settle(opened, "2 bars")
    opened.get_by_role("button", name="Copy link").click()
    assert opened.get_by_role("button", name="Link copied").count() == 1
    assert opened.evaluate("navigator.clipboard.readText()") == (
        f"{site}/specimen-light.html#live-specimen?count=2"
    )


def test_other_fragments_start_nothing(visit):
    page = visit("specimen-light", "#a-heading")
    page.wait_for_timeout(300)
    assert page.evaluate("document.querySelector('.live-widget').live.runtime.state") == "idle"
