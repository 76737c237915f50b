"""The projector view: projector/STEM.html shows a view's question and its steps to a room, and nothing else.

It is the view itself, drawn wide and scaled as a whole, with the same front end and the same Python in the page;
static/projector.js has the keys.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from scaleout import views
from scaleout.page import cards, describe, form
from scaleout.page.ladder import rungs

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: for the room</title>
{meta}
<link rel="icon" href="../_static/favicon.svg">
<link rel="stylesheet" href="../_static/live/live.css">
<link rel="stylesheet" href="../_static/live/projector.css">
<script>
try {{ document.documentElement.dataset.theme = localStorage.getItem("theme"); }} catch {{ /* then it is light */ }}
</script>
<script type="module" src="../_static/live/projector.js"></script>
</head>
<body class="room">
<main>
{body}
</main>
<p class="room-hint"><span><kbd>←</kbd> <kbd>→</kbd> step</span><span><kbd>F</kbd> full screen</span>
<a href="{back}">back to the chapter</a></p>
</body>
</html>
"""


def stems() -> list[str]:
    """The views that ask a question."""
    return [stem for stem in views.stems() if views.asks(stem)]


def page_html(stem: str) -> str:
    """The page of one view. ValueError for a view that asks nothing."""
    number, title = cards.title(stem)
    body = form.html(form.view(stem, ask=True))
    tag = describe.meta(f"projector/{stem}")
    return PAGE.format(title=escape(title), meta=tag, body=body, back=f"../notebooks/{number}_{stem}.html")


def write(folder: Path) -> None:
    """Every view that asks a question as projector/STEM.html."""
    (folder / "projector").mkdir(exist_ok=True)
    for stem in stems():
        (folder / "projector" / f"{stem}.html").write_text(page_html(stem), encoding="utf-8")


def room_html(stem: str, root: str) -> str:
    """What of a chapter is for a class, as links: its question on a projector, its card on paper.

    `root` leads from the page to the site's root.
    """
    parts = [f'<a href="{root}projector/{stem}.html">its question, step by step, for a projector</a>'] * (
        stem in stems()
    )
    parts += [f'<a href="{root}cards/{stem}.html">its card, one page to print</a>'] * (stem in cards.stems())
    return f'<p class="for-the-room"><strong>For the room:</strong> {"; ".join(parts)}.</p>'


class ForTheRoom(SphinxDirective):
    """Links from an instructor's page to what its class needs: `{for-the-room} collectives`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        stem = self.arguments[0]
        if stem not in {rung["stem"] for rung in rungs()}:
            raise self.error(f"there is no rung {stem!r}")
        return [nodes.raw("", room_html(stem, "../" * self.env.docname.count("/")), format="html")]
