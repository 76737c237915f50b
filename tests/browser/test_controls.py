"""Every kind of control: its role and name, its keys, and what the picture makes of it."""

from __future__ import annotations

from driver import params, settle, values


def test_roles_and_names(opened):
    group = opened.get_by_role("group", name="Every kind of control")
    assert group.count() == 1
    for role, name in [
        ("slider", "Bars"),
        ("slider", "Gain"),
        ("slider", "Time"),
        ("radiogroup", "Colour"),
        ("radio", "orange"),
        ("combobox", "Letter"),
        ("switch", "Show a frame"),
        ("spinbutton", "Offset"),
        ("textbox", "The height of bar x"),
        ("button", "Run"),
        ("button", "Play"),
        ("button", "Step back: Time"),
        ("button", "Step on: Time"),
        ("button", "Reset"),
        ("button", "Copy link"),
        ("button", "Guess again"),
        ("group", "6 bars"),
        ("button", "Draw a frame"),
        ("slider", "block b of row 2"),
        ("button", "Put back: Order of the blocks"),
    ]:
        assert group.get_by_role(role, name=name, exact=role == "button").count() == 1, (role, name)


def test_linear_slider_by_keyboard(opened):
    slider = opened.get_by_role("slider", name="Bars")
    slider.focus()
    for key, count in [("ArrowRight", 7), ("ArrowRight", 8), ("ArrowLeft", 7), ("End", 12), ("Home", 2)]:
        opened.keyboard.press(key)
        settle(opened, f"{count} bars")
        assert len(values(opened)["heights"]) == count
        assert slider.get_attribute("aria-valuetext") == str(count)


def test_logarithmic_slider_by_keyboard(opened):
    slider = opened.get_by_role("slider", name="Gain")
    slider.focus()
    before = params(opened)["gain"]
    opened.keyboard.press("ArrowRight")
    assert (before, params(opened)["gain"]) == (8.0, 10.0)  # the next of the R10 series
    assert slider.get_attribute("aria-valuetext") == "10 mm"
    settle(opened, "4.000 mm")  # 1.5 + 10 * 0.5^2
    opened.keyboard.press("End")
    assert slider.get_attribute("aria-valuetext") == "1,000 mm"


def test_select_keeps_the_type_of_its_option(opened):
    opened.get_by_role("radio", name="two").check()
    settle(opened, "2.000 mm")  # 1.5 + 8 * (0.5^2)^2
    assert params(opened)["power"] == 2
    opened.get_by_role("radio", name="blue").focus()
    opened.keyboard.press("ArrowRight")
    opened.wait_for_selector(".live-wide rect[fill^='var(--c2']")
    opened.get_by_role("switch", name="Show a frame").check()
    opened.get_by_role("combobox", name="Letter").select_option("the letter c of an alphabet")
    assert params(opened)["letter"] == "c"


def test_a_control_that_changes_nothing_now_says_why(opened):
    letter = opened.get_by_role("combobox", name="Letter")
    assert letter.is_disabled()
    why = opened.locator(f"#{letter.get_attribute('aria-describedby')}").inner_text()
    assert why == "There are no letters without a frame."
    opened.get_by_role("switch", name="Show a frame").check()
    opened.wait_for_function("!document.querySelector('[data-name=letter] select').disabled")
    assert letter.get_attribute("aria-describedby") is None


def test_a_range_ends_where_another_control_says(opened):
    time, bars = (opened.get_by_role("slider", name=name) for name in ("Time", "Bars"))
    time.press("End")
    settle(opened, "6 bars")
    assert time.get_attribute("aria-valuetext") == "5 of 5 s" and params(opened)["time"] == 5
    bars.press("Home")
    settle(opened, "2 bars")
    assert time.get_attribute("aria-valuetext") == "2 of 2 s" and params(opened)["time"] == 2
    bars.press("End")
    settle(opened, "12 bars")
    time.press("End")
    assert params(opened)["time"] == 5


def test_toggle_by_keyboard(opened):
    switch = opened.get_by_role("switch", name="Show a frame")
    assert switch.get_attribute("aria-describedby")
    switch.focus()
    opened.keyboard.press("Space")
    opened.locator(".live-wide line[stroke^='var(--ink']").first.wait_for(state="attached")
    assert params(opened)["frame"] is True


def test_number_says_what_would_be_right(opened):
    box = opened.get_by_role("spinbutton", name="Offset")
    alert = opened.locator(".live-status .live-problem")
    wrong = {"99": "offset must be from -10.0 to 10.0 mm, not 99", "": "offset must be a number, not ''"}
    for typed, words in wrong.items():
        box.fill(typed)
        settle(opened, words, ".live-status .live-problem")
        assert alert.get_attribute("role") == "alert"
    box.fill("2")
    settle(opened, "4.000 mm")
    assert alert.is_hidden()


def test_play_steps_and_plays(opened):
    slider = opened.get_by_role("slider", name="Time")
    opened.get_by_role("button", name="Step on: Time").click()
    assert slider.input_value() == "1"
    opened.get_by_role("button", name="Step back: Time").click()
    assert slider.input_value() == "0"
    opened.get_by_role("button", name="Play").click()
    opened.wait_for_function("document.querySelector('[data-name=time] input').value >= 2")
    opened.get_by_role("button", name="Pause").click()
    stood = slider.input_value()
    opened.wait_for_timeout(1200)
    assert slider.input_value() == stood


def test_code_box_indents_and_lets_keyboards_out(opened):
    box = opened.get_by_role("textbox", name="The height of bar x")
    box.fill("")
    box.press_sequentially("def height(x):\n")
    opened.keyboard.type("return 2 * x")
    assert box.input_value() == "def height(x):\n    return 2 * x"  # a colon indents the next line
    opened.keyboard.press("Home")
    opened.keyboard.press("Shift+Tab")
    assert box.input_value().endswith("\nreturn 2 * x")
    opened.keyboard.press("Tab")
    assert box.input_value().endswith("\n    return 2 * x")
    opened.keyboard.press("Control+Enter")
    settle(opened, "9.500 mm")  # 1.5 + 8 * (2 * 0.5)
    opened.keyboard.press("Escape")
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Run"


def test_a_drag_is_announced_once_it_rests(opened):
    status = opened.locator("[role=status].live-announce")
    opened.get_by_role("slider", name="Bars").focus()
    for _ in range(4):
        opened.keyboard.press("ArrowRight")
    settle(opened, "10 bars")
    assert "10 bars" not in status.text_content()
    opened.wait_for_function("document.querySelector('.live-announce').textContent.startsWith('10 bars')")
    # what is announced is not read twice
    assert opened.locator(".live-sentence").get_attribute("aria-hidden") == "true"


def test_reset_takes_everything_back(opened):
    start = params(opened)
    opened.get_by_role("slider", name="Bars").press("End")
    opened.get_by_role("switch", name="Show a frame").check()
    settle(opened, "12 bars")
    opened.get_by_role("button", name="Reset").click()
    settle(opened, "6 bars")
    assert params(opened) == start


def test_reset_of_a_slider_whose_end_has_moved_in_between(opened):
    """Its default lies beyond the present end; the picture's next drawing gives the end back."""
    shown = opened.evaluate("""async () => {
      const view = document.querySelector(".live-widget").live;
      const made = view.built.get("count");
      const seen = [];
      for (const hi of [3, undefined]) {
        view.lever({ count: { hi } });
        seen.push([Number(made.input.value), view.params.count]);
        view.set(view.data.params);  // as Reset does, before the drawing that follows it
      }
      view.lever({});
      seen.push([Number(made.input.value), view.params.count]);
      return seen;
    }""")
    assert shown == [[3, 3], [6, 6], [6, 6]], "the slider shows what the picture has"


def test_keys_stay_in_the_widget(opened):
    opened.evaluate("document.addEventListener('keydown', () => { window.heard = true; })")
    opened.get_by_role("slider", name="Bars").press("ArrowRight")
    assert opened.evaluate("window.heard === undefined")


def test_a_fast_drag_draws_the_last_value_and_never_two_at_once(opened):
    most = opened.evaluate("""async () => {
      const view = document.querySelector(".live-widget").live;
      let now = 0, most = 0, calls = 0;
      const call = view.runtime.call.bind(view.runtime);
      view.runtime.call = async (...all) => {
        calls += 1;
        most = Math.max(most, ++now);
        const result = await call(...all);
        now -= 1;
        return result;
      };
      const input = document.querySelector("[data-name=count] input");
      for (let turn = 0; turn < 50; turn += 1) {
        input.value = 2 + turn % 11;
        input.dispatchEvent(new Event("input"));
      }
      while (view.busy) await new Promise(requestAnimationFrame);
      return {most, calls};
    }""")
    assert most["most"] == 1
    assert most["calls"] <= 3  # the first, and the latest when it came back
    assert len(values(opened)["heights"]) == 2 + 49 % 11


def test_a_choice_that_asks_for_more_unfolds_it(shared):
    page = shared("views")
    view = page.locator("#live-collectives")
    fold = view.locator(".live-more")
    assert fold.get_attribute("open") is None and view.get_by_role("slider", name="Rate").count() == 0
    view.get_by_role("combobox", name="Connected by").select_option(label="my own: α and rate under More")
    view.get_by_role("slider", name="Rate of my own link").wait_for()
    assert fold.get_attribute("open") == ""
