"""The first page of the built site: two decisions that answer at once, and a ladder without badges."""

from __future__ import annotations

import live_page
import pytest

from scaleout import views

VALUES = "document.querySelector('#live-front').live.values"
LINES = """() => [...document.querySelectorAll("nav.bd-links a.reference")].map((one) => {
  const range = document.createRange();
  range.selectNodeContents(one);
  return [one.textContent.trim(), new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size];
})"""


@pytest.fixture
def front(reader, book):
    reader.set_viewport_size({"width": 1280, "height": 900})
    reader.goto(f"{book}/book/index.html")
    live_page.rest(reader)
    return reader


def test_the_decisions_answer_without_python(front):
    for states, activations in (
        ("Split", "Keep"),
        ("Split", "Recompute"),
        ("Copy", "Recompute"),
        ("Copy", "Keep"),
    ):
        front.get_by_role("radio", name=states, exact=True).check()
        front.get_by_role("radio", name=activations, exact=True).check()
        want = views.render("front", {"states": states.lower(), "activations": activations.lower()})
        front.wait_for_function(f"(held) => {VALUES}.held_gb === held", arg=want["values"]["held_gb"])
        assert front.locator(".live-sentence").inner_text() == want["sentence"].replace("**", "")
    assert front.watch.python() == []


def test_the_tanks_move_from_state_to_state(front):
    seen = front.evaluate("""async () => {
      const root = document.querySelector("#live-front"), out = [];
      root.querySelector("input[type=radio]:not(:checked)").click();
      for (const start = performance.now(); performance.now() < start + 1200;) {
        await new Promise(requestAnimationFrame);
        out.push(Number(root.querySelector(".live-wide [data-mark='7 adam']").getAttribute("height")));
      }
      return out;
    }""")
    assert seen[-1] < 10 and len({round(one) for one in seen}) > 3 and seen == sorted(seen, reverse=True)


def test_a_wrong_link_says_what_would_be_right(front, book):
    front.evaluate("location.hash = '#live-front?states=both'")
    front.get_by_text("states must be one of copy, split, not 'both'").wait_for()
    assert front.evaluate(f"{VALUES}.moment") == "loss"


def test_no_contents_at_the_side_and_one_line_for_each_page(front):
    assert front.locator(".bd-sidebar-secondary").is_hidden()
    front.evaluate("for (const fold of document.querySelectorAll('nav.bd-links details')) fold.open = true;")
    lines = front.evaluate(LINES)
    assert len(lines) > 15 and not [words for words, count in lines if count > 1]


def test_a_rung_to_come_is_a_dashed_line_with_a_small_name(front):
    coming = front.locator(".rungs-coming")
    assert coming.count() and front.get_by_text("Coming", exact=True).count() == 0
    name = coming.locator("b").first
    assert name.evaluate("(one) => parseFloat(getComputedStyle(one).fontSize)") == pytest.approx(13.5, abs=0.01)
    rows = coming.evaluate_all("""(all) => all.map((one) => {
      const tops = [...one.querySelectorAll("b")].map((name) => Math.round(name.getBoundingClientRect().top));
      return Math.max(...tops.map((top) => tops.filter((other) => other === top).length));
    })""")
    assert max(rows) <= 3


def test_the_ladder_says_what_this_reader_has_done(front):
    """From what is kept in the browser: nothing, one exercise, the short path, and all."""
    rung = front.locator('.rung[data-stem="memory"]')
    every, short = rung.get_attribute("data-every").split(), rung.get_attribute("data-short").split()
    assert 0 < len(short) < len(every) and set(short) < set(every)
    other = next(key for key in every if key not in short)
    seen = []
    for done in ([], [other], [other, *short], every):
        front.evaluate(
            "(keys) => keys.forEach((key) => localStorage.setItem(`scaleout:done:memory:${key}`, 'true'))", done
        )
        front.reload()
        live_page.rest(front)
        seen.append(rung.locator(".rung-progress").inner_text())
    count = len(every)
    assert seen == [
        "",
        f"1 of {count} exercises done",
        f"✓ short path, {1 + len(short)} of {count} exercises done",
        "✓ all exercises done",
    ]
    assert front.locator('.rung[data-stem="ddp"] .rung-progress').inner_text() == ""
