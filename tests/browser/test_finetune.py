"""The view of fine-tuning under a reader's hands, and the tabs of the planner's page."""

from __future__ import annotations

import driver
import pytest
from view_settings import PASTED

from scaleout import views
from scaleout.views import blocks
from scaleout.views.finetune.setting import BATCHES, SEQS

VIEW = driver.live("finetune")
TOLD = "!document.querySelector('#live-finetune [data-stale]')"


@pytest.fixture
def finetune(shared):
    page = shared("views")
    view = driver.wake(page, "finetune")
    page.evaluate(f"(params) => {VIEW}.choose(params)", views.defaults("finetune"))
    driver.stands(page, "finetune", {"seq": 2048, "batch": 1})
    view.evaluate("(root) => root.scrollIntoView({block: 'start', behavior: 'instant'})")
    return view


def test_a_cell_says_what_it_takes_and_a_press_chooses_it(finetune):
    page, field = finetune.page, finetune.locator(".live-wide [data-field]")
    every, words = driver.points(field), field.locator("text")
    x, y, (seq, batch), said = every[len(SEQS) + 3]  # 4,096 tokens, micro-batch 2
    assert (seq, batch) == (4096, 2)
    box = finetune.locator(".live-stage .live-wide > svg").bounding_box()
    scale = box["width"] / 600
    corner = box["x"] + (x + 30) * scale, box["y"] + (y + 8) * scale  # anywhere in the cell
    page.mouse.move(*corner)
    assert words.text_content() == said
    page.mouse.click(*corner)
    driver.stands(page, "finetune", {"seq": 4096, "batch": 2})
    there = views.render("finetune", {"seq": 4096, "batch": 2})
    assert page.evaluate(f"{VIEW}.values.peak_gb") == there["values"]["peak_gb"]
    page.mouse.move(5, 5)


def test_arrow_keys_go_through_rows_and_columns_and_enter_chooses(finetune):
    page, field = finetune.page, finetune.locator(".live-wide [data-field]")
    every = driver.points(field)
    assert len(every) == len(SEQS) * len(BATCHES)
    field.focus()
    at = -1
    for key, step in (
        ("ArrowRight", 1),
        ("ArrowRight", 1),
        ("ArrowUp", len(SEQS)),
        ("ArrowRight", 1),
        ("ArrowDown", -len(SEQS)),
    ):
        page.keyboard.press(key)
        at += step
        assert field.get_attribute("aria-valuetext") == every[at][3], key
    page.keyboard.press("Enter")
    seq, batch = every[at][2]
    driver.stands(page, "finetune", {"seq": seq, "batch": batch})
    assert page.evaluate("document.activeElement.dataset.mark") == "field"


def test_a_bar_chooses_its_method_and_what_is_beneath_follows(finetune):
    page = finetune.page
    finetune.locator(".live-stage .live-wide [data-press='method=full']").click()
    driver.stands(page, "finetune", {"method": "full"})
    page.wait_for_function(f"{VIEW}.sentence.includes('it does not fit')")
    page.wait_for_function(TOLD)
    params = page.evaluate(f"{VIEW}.params")
    driver.settle(page, views.advice("finetune", params).replace("**", ""), "#live-finetune .live-sentence")
    for name in ("changes", "layouts", "figures", "cards", "run"):
        there = finetune.locator(f"[data-section={name}]")
        assert there.text_content() == driver.text_of(page, blocks.html(views.beneath("finetune", params, name))), name
    finetune.locator(".live-more summary").click()
    help_of_rank = finetune.locator("[data-name=rank] .live-help")
    assert help_of_rank.text_content() == "Changes only the memory of LoRA and QLoRA."
    finetune.locator(".live-more summary").click()


def test_a_config_is_pasted_and_what_is_not_priced_is_a_line(finetune):
    page, paste = finetune.page, finetune.locator("[data-name=config] textarea")
    paste.fill(PASTED)
    page.wait_for_function(f"{VIEW}.sentence.startsWith('mistral of 7.25B, QLoRA on one RTX 4090')")
    paste.fill('{"peft_type": "LORA", "base_model_name_or_path": "x"}')
    page.wait_for_function("document.querySelector('#live-finetune').textContent.includes('this file is an adapter')")
    paste.fill("")
    page.wait_for_function(f"{VIEW}.sentence.startsWith('Llama 3.1 8B')")


# --- the tabs -------------------------------------------------------------------------------------------------------


def shown(page):
    """The views that are seen."""
    return page.evaluate(
        "[...document.querySelectorAll('.live-widget')].filter((one) => one.checkVisibility()).map((one) => one.id)"
    )


def test_one_tab_is_shown_at_a_time_by_keyboard_and_by_a_link(page, site):
    address = f"{site}/tabs.html"
    page.goto(address)
    assert shown(page) == ["live-kernels"]
    page.get_by_role("radio", name="A cluster").focus()
    page.keyboard.press("ArrowRight")
    assert shown(page) == ["live-finetune"]
    driver.wake(page, "finetune")
    page.get_by_role("radio", name="A cluster").check()
    assert shown(page) == ["live-kernels"]
    page.evaluate("location.hash = '#live-finetune?method=lora&rank=64'")
    driver.stands(page, "finetune", {"method": "lora", "rank": 64})
    assert shown(page) == ["live-finetune"] and page.get_by_role("radio", name="One GPU").is_checked()
    page.goto(f"{site}/index.html")
    page.goto(f"{address}#live-finetune?gpus=8")
    assert shown(page) == ["live-finetune"]
    driver.stands(page, "finetune", {"gpus": 8})
    page.set_viewport_size(driver.NARROW)
    page.goto(f"{site}/index.html")
    page.goto(f"{address}#live-finetune?gpus=4")
    page.locator("#live-finetune .live-narrow svg[aria-label*='on 4 RTX 4090']").wait_for()  # a link on a phone
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size(driver.WIDE)


def test_on_paper_both_are_there(page, site):
    page.goto(f"{site}/tabs.html")
    page.emulate_media(media="print")
    assert shown(page) == ["live-kernels", "live-finetune"] and not page.locator(".live-tablist").is_visible()
    page.emulate_media(media="screen")
