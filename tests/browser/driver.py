"""What the browser tests share besides fixtures."""

import re

READY = "document.querySelector('.live-widget').live.runtime.state === 'ready'"


def settle(page, words: str, selector: str = ".live-sentence") -> None:
    """Wait until an element holds these words: "2 bars" is not found in "12 bars"."""
    pattern = rf"(?<!\w){re.escape(words)}"
    page.wait_for_function(
        "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector)?.textContent)",
        arg=[selector, pattern],
    )


def values(page) -> dict:
    """The values of the first view, as they stand."""
    return page.evaluate("document.querySelector('.live-widget').live.values")


def params(page) -> dict:
    """The parameters of the first view, as they stand."""
    return page.evaluate("document.querySelector('.live-widget').live.params")
