"""What a search engine and a shared link say of a page: one sentence or two, of at most 180 characters.

Of chapters, class plans, cards and projector pages they follow from book/rungs.yml; of the other pages they stand here.
"""

from __future__ import annotations

import re
from html import escape

from sphinx.application import Sphinx

from scaleout.page.ladder import rungs

PAGES = {
    "book/index": "How to train a model that is too large for one GPU: an executable book on distributed training. You "
    "guess, you run the real thing, and you see how far off you were.",
    "book/how-to-use": "Three ways to use the book: read it in the browser with nothing installed, run its notebooks "
    "and labs on a laptop or on GPUs, or teach a class with it.",
    "book/planner": "Choose a model, GPUs and a batch: every way to cut the training among them, with its seconds, its "
    "memory, and the reason why it is not the best.",
    "book/notation": "The symbols of the book and what they mean: of the model, of the run and of the machine, with "
    "units, and what a GB and a GiB are.",
    "book/glossary": "The words of distributed training, a short entry each: from 1F1B and activation checkpointing to "
    "Young's interval and ZeRO.",
    "book/accuracy": "How far predicted training steps are from 227 that others measured: by program, GPU, size and "
    "project, the worst with their reasons.",
    "book/hardware": "Accelerators and links in numbers: rates of matrix products, memory and its bandwidth, NVLink, "
    "PCIe and networks, what of them is reached, and three factors of two.",
    "book/running": "Running the labs elsewhere: on rented GPUs with SkyPilot, on a Slurm cluster, on Kaggle's two "
    "T4s, on two machines, in a container, and what it costs.",
    "book/troubleshooting": "Messages and symptoms of pages, builds, labs and notebooks, each with what is wrong and "
    "what to do about it.",
    "book/execution": "On which machine and with which versions the stored outputs of the notebooks were made.",
    "book/references": "The papers, documentation and measurements that the book stands on.",
    "book/instructor/index": "Teaching distributed training with the book: what to prepare, how to run a class, what "
    "the GPUs cost, and a plan for each rung.",
}
KINDS = {
    "notebooks": "Rung {number}, {title}: {done} With live pictures, code and exercises.",
    "instructor": "A class plan for rung {number}, {title}: minutes, questions, wrong answers to expect. {done}",
    "cards": "Rung {number}, {title}, on one page to print: formulas, symbols, numbers to remember.",
    "projector": "Rung {number}, {title}, for a room: its question, step by step, on a projector.",
}


def description(name: str) -> str:
    """Of a page by its name, as Sphinx has it. ValueError for one that nobody has described."""
    if name in PAGES:
        return PAGES[name]
    kind, stem = name.split("/")[-2:] if "/" in name else ("", name)
    rung = next((row for row in rungs() if row["stem"] == re.sub(r"^\d\d_", "", stem)), None)
    if kind not in KINDS or rung is None:
        raise ValueError(f"{name} has no description: give it one in scaleout/page/describe.py")
    return KINDS[kind].format(**rung)


def meta(name: str) -> str:
    """The same as a tag of the page's head."""
    return f'<meta name="description" content="{escape(description(name))}">'


def describe(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Give a page of the book its description, before the extension for shared links takes its first words for one; the
    first page is called as the book is, and once."""
    if pagename == app.config.root_doc:
        context["docstitle"] = ""
    if doctree is not None:
        context["metatags"] = context.get("metatags", "") + meta(pagename)
        context["meta"] = {**(context.get("meta") or {}), "og:description": description(pagename)}


def setup(app: Sphinx) -> None:
    """Called by the book's extension."""
    app.connect("html-page-context", describe, priority=400)
