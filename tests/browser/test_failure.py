"""What the page does when Python cannot start, or when the reader's code does not end."""

from __future__ import annotations

import time
from urllib.parse import urljoin

from driver import KEEPER, READY, SKIP, settle, type_code, values

from scaleout.page import live

STATE = "document.querySelector('.live-widget').live.runtime.state"


WASM = "pyodide.asm.wasm"
PARTS = ("worker.js", "pyodide.mjs", "pyodide.asm.mjs", "pyodide-lock.json", "python_stdlib.zip", "scaleout.zip")


def test_without_python_the_picture_stays_and_says_so(visit, context):
    """Whatever is missing; and one time after the other, until the reader's "Try again" finds all of it."""
    page = visit("specimen", alone=True)
    page.watch.allow("Failed to load resource", "Failed to fetch", "wasm", "standard library")
    locked = page.locator(".live-wide").inner_html()
    page.get_by_role("button", name=SKIP).click()  # the first touch; what the page holds needs no Python
    picture = page.locator(".live-wide").inner_html()
    assert picture != locked
    told, again = page.locator(".live-python"), page.get_by_role("button", name="Try again")
    cases = [(part, lambda route: route.abort()) for part in (*PARTS, WASM)]
    cases.append((WASM, lambda route: route.fulfill(content_type="application/wasm", body="\0asm")))  # cut short
    for missing, answer in cases:
        # on the context: what a worker asks for is not seen by the page's own routes
        context.route(f"**/{missing}", answer)
        if missing == "worker.js":
            page.get_by_role("slider", name="Bars").press("ArrowRight")
        else:
            again.click()
        page.wait_for_function(f"{STATE} === 'failed'")
        assert told.is_visible()
        assert told.get_attribute("role") == "status"
        for words in ("Python did not start", "picture stays", "try again", "download"):
            assert words in told.text_content()
        assert page.locator(".live-wide").inner_html() == picture
        assert page.locator(".live-wide > svg").is_visible()
        context.unroute(f"**/{missing}")
        if missing == "python_stdlib.zip":
            page.watch.found.clear()  # Python itself may have said what it lacks, in its own many words
    again.click()
    page.wait_for_function(READY)
    settle(page, "7 bars")  # the state that the reader asked for meanwhile
    assert told.is_hidden()
    page.get_by_text("More:").click()
    type_code(page, "import js\njs.self.postMessage(js.JSON.parse('1'))\ndef height(x):\n    return 1\n")
    settle(page, "9.500 mm")  # the first code on a page has JavaScript as the next has it


def test_an_endless_loop_is_stopped_and_the_page_stays_alive(opened):
    opened.evaluate(f"document.querySelector('.live-widget').live.data.seconds = {live.LEARNER_SECONDS}")
    started = time.monotonic()
    type_code(opened, "while True:\n    pass\n")
    assert opened.evaluate("1 + 1") == 2  # the page itself answers meanwhile
    settle(opened, "Your code was stopped after 5 seconds", ".live-status .live-problem")
    assert time.monotonic() - started >= live.LEARNER_SECONDS
    assert opened.locator(".live-status .live-problem").text_content() == live.STOPPED
    type_code(opened, "def height(x):\n    return 1\n")
    settle(opened, "9.500 mm")  # 1.5 + 8 * 1: Python was started again
    assert opened.locator(".live-status .live-problem").is_hidden()


def test_a_busy_machine_is_no_endless_loop(opened):
    """By a clock on which whatever the page does takes a minute: how busy the machine is that runs this test, now or
    when the page first measured itself, would else decide."""
    seconds = 3
    opened.evaluate(f"document.querySelector('.live-widget').live.data.seconds = {seconds}")
    opened.evaluate("""() => {
      let now = performance.now();
      performance.now = () => (now += 60_000);
    }""")
    try:
        type_code(
            opened,
            f"import time\nend = time.monotonic() + {seconds + 2}\n"
            "while time.monotonic() < end:\n    pass\ndef height(x):\n    return 1\n",
        )
        settle(opened, "9.500 mm")
    finally:
        opened.evaluate("delete performance.now")


def test_the_next_worker_begins_where_the_first_one_was_unless_that_is_damaged(opened):
    bytes_, again, other = opened.evaluate("""async () => {
      const {runtime} = document.querySelector(".live-widget").live;
      const python = runtime.book ?? runtime, {constructor: Python} = python;
      const sound = Python.image;
      const drawn = async () => {
        python.boot();
        const answer = await python.call("draw", {stem: "specimen", params: {count: 3}});
        return [answer.values.heights.length, Python.image === sound];
      };
      const again = await drawn();
      Python.image = {...sound, memory: new Uint8Array(sound.memory.length)};
      const other = await drawn();
      const left = Python.image;  // none, and none is made any more: it would fail as this one did
      Python.image = sound;
      return [sound.memory.length, again, [...other, left]];
    }""")
    assert bytes_ > 20_000_000  # Python and the book's modules
    assert again == [3, True]
    assert other == [3, False, False]


def test_other_calls_survive_an_endless_loop(opened):
    result = opened.evaluate("""async () => {
      const {runtime} = document.querySelector(".live-widget").live;
      const ask = (params, limit) => runtime.call("draw", {stem: "specimen", params}, limit);
      const loop = ask({source: "while True: pass"}, {seconds: 1, stopped: "stopped"});
      return Promise.all([loop, ask({count: 3})]);
    }""")
    assert result[0] == {"error": "stopped"}
    assert len(result[1]["values"]["heights"]) == 3


MISTAKES = {
    "def height(x)\n    return x\n": "line 1: expected ':'",
    "def height(x):\n    y = 0\n    return x / y\n": "line 3: ZeroDivisionError",
    "def height(x):\n    return height(x)\n": "line 2: RecursionError",
    "raise SystemExit\n": "SystemExit",
}


def test_a_mistake_in_code_names_its_line(opened):
    before = values(opened)
    for text, words in MISTAKES.items():
        type_code(opened, text)
        settle(opened, words, ".live-status .live-problem")
        assert "Traceback" not in opened.locator(".live-status .live-problem").text_content()
        assert values(opened) == before


def test_bad_calls_come_back_as_one_line(opened):
    ask = "([method, args]) => document.querySelector('.live-widget').live.runtime.call(method, args)"
    for method, stem, wrong, words in [
        ("draw", "nothing", {}, "there is no view 'nothing': use one of"),
        ("draw", "specimen", {"count": 1e300}, "count must be from 2 to 12"),
        ("draw", "specimen", {"depth": 1}, "specimen has no parameter 'depth': use one of"),
        ("draw", "specimen", {"hue": "pink"}, "hue must be one of c1, c2, c3, not 'pink'"),
        ("draw", "specimen", {"frame": 1}, "frame must be True or False, not 1"),
        ("erase", "specimen", {}, "there is no method 'erase': use draw, advice, beneath, measured"),
    ]:
        result = opened.evaluate(ask, [method, {"stem": stem, "params": wrong}])
        assert list(result) == ["error"]
        assert words in result["error"]
        assert "\n" not in result["error"]


def test_the_watch_on_pages_can_fail(visit, context):
    """The other tests rely on it: a foreign request, from the page or a worker, and an error must be seen. On a page
    without a policy, which would stop the requests before they are seen."""
    page = visit("specimen")
    page.goto(urljoin(page.url, f"/{KEEPER}"))
    context.route("**/elsewhere.invalid/**", lambda route: route.fulfill(body="{}"))
    page.evaluate("""async () => {
      const ask = (name) => `fetch("http://elsewhere.invalid/${name}").catch(() => {})`;
      const from = URL.createObjectURL(new Blob([`${ask("worker")}.then(() => postMessage(1))`]));
      const worker = new Worker(from);
      await new Promise((done) => { worker.onmessage = done; });
      await fetch("http://elsewhere.invalid/page").catch(() => {});
      console.error("a mistake of the test's own");
    }""")
    context.unroute("**/elsewhere.invalid/**")
    found = " ".join(page.watch.unexpected())
    for words in ("elsewhere.invalid/worker", "elsewhere.invalid/page", "a mistake of the test's own"):
        assert words in found
    page.watch.allow("elsewhere.invalid", "a mistake of the test's own", "CORS", "net::")
