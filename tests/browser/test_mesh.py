"""The view of three axes under a reader's hands: a press sets a rank and what is lit of it, a chip is dragged along."""

from __future__ import annotations

import driver
import pytest

VIEW = driver.live("mesh")
SHOWN = ("crossing", "communication_ms", "rank", "look", "groups", "holders", "sent_so_far_gb", "dp")


@pytest.fixture
def mesh(shared):
    """The view among the others, its Python running and its picture in sight."""
    view = driver.wake(shared("views"), "mesh")
    view.scroll_into_view_if_needed()
    return view


def rests(view, **wanted):
    """Wait until the view stands at these parameters; all that it says there is what the kernel's Python says."""
    return driver.rests(view.page, "mesh", SHOWN, wanted)


def test_one_press_sets_a_rank_and_what_is_lit_of_it(mesh):
    mesh.page.locator("#live-mesh").get_by_role("button", name="weights of rank 6: ranks with the same weights").click()
    assert rests(mesh, rank=6, look="weights")["holders"] == [4, 6]
    assert (
        mesh.get_by_label("Light in the picture").locator("option:checked").text_content()
        == "ranks with the same weights"
    )
    mesh.get_by_role("button", name="tokens of rank 1: ranks with the same tokens").press("Enter")
    rests(mesh, rank=1, look="tokens")
    rank = mesh.get_by_role("button", name="rank 1: ranks it communicates with")
    rank.focus()
    mesh.page.keyboard.press("Space")
    assert rests(mesh, rank=1, look="groups")["groups"]["pp"] == [1, 5]
    assert mesh.page.evaluate("document.activeElement.dataset.mark") == "r1", "under another label, and still there"
    mesh.page.keyboard.press("Space")
    rests(mesh, rank=1, look="all")


def test_a_chip_that_is_dragged_outward_takes_the_cable(mesh):
    assert rests(mesh, order="pp.dp.tp")["crossing"] == ["pp"]
    chip = mesh.get_by_role("slider", name="TP 2, place in the order of ranks").filter(visible=True)
    box = chip.bounding_box()
    middle = box["y"] + box["height"] / 2
    mesh.page.mouse.move(box["x"] + box["width"] / 2, middle)
    mesh.page.mouse.down()
    mesh.page.mouse.move(box["x"] - 3 * box["width"], middle, steps=6)
    mesh.page.mouse.up()
    found = rests(mesh, order="tp.pp.dp")
    assert found["crossing"] == ["tp"] and found["communication_ms"] > 500
    chip.focus()
    mesh.page.keyboard.press("End")
    assert rests(mesh, order="pp.dp.tp")["crossing"] == ["pp"]


def test_sixteen_thousand_ranks_answer_a_press(mesh):
    mesh.page.evaluate(f"{VIEW}.set({{gpus: 16384, tp: 8, pp: 16, node: 8, look: 'groups', rank: 5003}})")
    mesh.page.evaluate(f"{VIEW}.redraw()")
    assert rests(mesh, gpus=16384, rank=5003)["dp"] == 128
    mesh.locator("[data-mark='r6027']").filter(visible=True).click()
    assert rests(mesh, rank=6027)["groups"]["pp"][5] == 6027
    mesh.locator("[data-mark='n0 0']").filter(visible=True).click()
    assert rests(mesh)["rank"] % 8 == 0
