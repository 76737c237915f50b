"""What the browser tests share besides fixtures."""

from __future__ import annotations

import re
from urllib.parse import urlparse

import live_page
import pytest
from repo import ROOT

from scaleout import views
from scaleout.page import sphinx

HTML = ROOT / "_build" / "html"
AXE = sphinx.NPM / "axe-core" / "axe.min.js"
WIDE, NARROW = {"width": 1000, "height": 1100}, {"width": 390, "height": 844}
READY = "document.querySelector('.live-widget').live.runtime.state === 'ready'"
SKIP = "Show me without a guess"
PYTHON = re.compile(r"pyodide|worker\.js|\.zip$")  # what a page asks for only once it starts Python


# Whoever opened the page keeps the image that the first Python left (scaleout/page/static/python.js): starting there
# takes a fifth. A page that forgets its opener starts as a reader's first does.
LENT = """(async () => {
  const { Python } = await import("/_static/live/python.js");
  if (!opener) return;
  let own = Python.image ?? opener.image ?? null;
  const keep = (image) => { own = image; if (image) opener.image ??= image; };
  Object.defineProperty(Python, "image", { get: () => own, set: keep });
})();"""
ALONE = "opener = null;"
KEEPER = "_static/live/palette.css"


class Watch:
    """What a page did that it must not. `allow` takes words of messages that a test provokes."""

    def __init__(self, page, host: str):
        self.host = host
        self.again()
        page.on("console", lambda message: message.type == "error" and self.found.append(message.text))
        page.on("pageerror", lambda error: self.found.append(str(error)))
        page.on("request", lambda request: self._request(request.url))

    def again(self) -> None:
        """For another test on the same page."""
        self.found: list[str] = []
        self.allowed: list[str] = []
        self.requests: list[str] = []

    def allow(self, *words: str) -> None:
        self.allowed += words

    def python(self) -> list[str]:
        """The requests that belong to Python."""
        return [url for url in self.requests if PYTHON.search(url)]

    def _request(self, url: str) -> None:
        self.requests.append(url)
        parts = urlparse(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != self.host:
            self.found.append(f"foreign request: {url}")

    def unexpected(self) -> list[str]:
        return [line for line in self.found if not any(word in line for word in self.allowed)]


def watched(context, address: str, metered: bool = True):
    """A new page; what went wrong on it is in `page.watch`. Metered: its Python waits for the first touch."""
    keeper = next((one for one in context.pages if one.url == f"{address}/{KEEPER}"), None)
    if not keeper:
        keeper = context.new_page()
        keeper.goto(f"{address}/{KEEPER}")
    with context.expect_page() as opened:
        keeper.evaluate("void open('about:blank')")
    page = opened.value
    page.add_init_script(LENT)
    if metered:
        page.add_init_script(live_page.METERED)
    page.watch = Watch(page, urlparse(address).netloc)
    return page


def contents() -> list[str]:
    """Names of the pages in _toc.yml, in its order."""
    return re.findall(r"(?:file|root): (\S+)", (ROOT / "_toc.yml").read_text())


def settle(page, words: str, selector: str = ".live-sentence") -> None:
    """Wait until an element holds these words: "2 bars" is not found in "12 bars"."""
    from playwright.sync_api import TimeoutError  # here: without it the browser tests are skipped, and say so

    pattern = rf"(?<!\w){re.escape(words)}"
    try:
        page.wait_for_function(
            "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector)?.textContent)",
            arg=[selector, pattern],
        )
    except TimeoutError:
        there = page.evaluate("(selector) => document.querySelector(selector)?.textContent", selector)
        pytest.fail(f"{selector} holds {there!r}, not {words!r}")


def values(page) -> dict:
    """The values of the first view, as they stand."""
    return page.evaluate("document.querySelector('.live-widget').live.values")


def params(page) -> dict:
    """The parameters of the first view, as they stand."""
    return page.evaluate("document.querySelector('.live-widget').live.params")


def live(stem: str) -> str:
    """A view of a page with several, in JavaScript."""
    return f"document.querySelector('#live-{stem}').live"


def wake(page, stem: str):
    """A view's box, once its Python runs."""
    page.evaluate(f"{live(stem)}.status.touch()")
    page.wait_for_function(f"{live(stem)}.runtime.state === 'ready'")
    return page.locator(f"#live-{stem}")


def stands(page, stem: str, wanted: dict) -> None:
    """Wait until a view rests at these parameters."""
    each = f"([name, one]) => {live(stem)}.params[name] === one"
    page.wait_for_function(f"(wanted) => !{live(stem)}.busy && Object.entries(wanted).every({each})", arg=wanted)


def rests(page, stem: str, shown: tuple[str, ...], wanted: dict) -> dict:
    """The values of a view that rests at these parameters; those of `shown` are what the kernel's Python says there."""
    stands(page, stem, wanted)
    given, found = page.evaluate(f"[{live(stem)}.params, {live(stem)}.values]")
    there = views.render(stem, given)["values"]
    assert {name: found[name] for name in shown} == {name: there[name] for name in shown}
    return found


def text_of(page, html: str) -> str:
    """The text of some HTML, as the browser reads it."""
    return page.evaluate(
        """(html) => {
          const box = document.createElement("div");
          box.innerHTML = html;
          return box.textContent;
        }""",
        html,
    )


def points(field) -> list[tuple[float, float, list[int | str], str]]:
    """(x, y, values, words) of each point of a picture's field, in the order of arrow keys."""
    found = []
    for point in field.get_attribute("data-points").split(";"):
        place, _, words = point.partition("|")
        x, y, *values = place.split(" ")
        found.append((float(x), float(y), [int(v) if v.isdecimal() else v for v in values], words))
    return found


def type_code(page, text: str) -> None:
    """Put code in the specimen's box and run it."""
    page.get_by_role("textbox", name="The height of bar x").fill(text)
    page.get_by_role("button", name="Run", exact=True).click()


def paint(page, theme: str) -> None:
    """Make a page light or dark, and wait until its colours have changed."""
    page.evaluate(
        """async (theme) => {
      document.documentElement.dataset.theme = theme;
      const changing = document.getAnimations().filter((one) => one instanceof CSSTransition);
      await Promise.allSettled(changing.map((one) => one.finished));
    }""",
        theme,
    )


def unfold(page) -> None:
    """Show all that widgets hide at first: what is behind a guess, the hints, what is folded."""
    page.evaluate(
        """(skip) => {
      const press = (words) => [...document.querySelectorAll(".live-widget button")]
        .filter((one) => one.checkVisibility() && words.test(one.textContent)).map((one) => one.click());
      press(new RegExp(skip));
      while (press(/^(Hint|Next hint)/).length);
      for (const fold of document.querySelectorAll(".live-widget details")) fold.open = true;
    }""",
        SKIP,
    )


# What axe does not look into, and words of code that look like one before them, are half of a page and only take time.
SHORT = """async ([within, only]) => {
  const whole = [], seen = new Set();
  const shorten = (node, kept) => {
    whole.push([node, [...node.childNodes]]);
    node.replaceChildren(...kept);
  };
  const again = (code, word) => {
    const look = `${code.parentElement.className} ${word.className}`;
    return seen.has(look) || !seen.add(look);
  };
  for (const picture of document.querySelectorAll("svg.plot, figure.drawing svg")) shorten(picture, []);
  for (const code of document.querySelectorAll("pre:not([contenteditable])")) {
    shorten(code, [...code.childNodes].map((one) => one.matches?.("span") && again(code, one) ? one.textContent : one));
  }
  try {
    return (await axe.run(within, only)).violations;
  } finally {
    for (const [node, nodes] of whole) node.replaceChildren(...nodes);
  }
}"""


def violations(page, rules: tuple[str, ...] = (), within: str = "html") -> list[str]:
    """Serious and critical findings of axe-core within an element, each with what it is about; by all its rules, or by
    some."""
    if not page.evaluate("'axe' in window"):
        page.add_script_tag(path=AXE)
    only = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = page.evaluate(SHORT, [within, only])
    return [
        f"{one['id']}: {node['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
