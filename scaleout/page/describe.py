"""The description of a page for search engines and shared links: one or two sentences of at most 180 characters.

For chapters, class plans, cards and projector pages they are made from book/rungs.yml; for other pages they are here.
"""

from __future__ import annotations

import re
from html import escape

from sphinx.application import Sphinx

from scaleout.page.ladder import rungs

PAGES = {
    "book/index": "How to train a model that is too large for one GPU: an executable book on distributed training. "
    "You guess, you run the real thing, and you see how far off you were.",
    "book/how-to-use": "Three ways to use the book: read it in the browser with nothing installed, run its notebooks "
    "and labs on a laptop or on GPUs, or teach a class with it.",
    "book/planner": "Choose a model, GPUs and a batch, and see every layout of the training with its step time, its "
    "memory, and the reason why it is not the best; or what fine-tuning fits on one GPU.",
    "book/notation": "The symbols of the book for the model, the run and the machine, with their units, and the "
    "difference between GB and GiB.",
    "book/glossary": "The vocabulary of distributed training in short entries, from 1F1B and activation "
    "checkpointing to Young's interval and ZeRO.",
    "book/review": "A review checklist to print, for a training run: memory, sustained utilization, checkpoints, "
    "recovery and the simplest baseline, each with the evidence that answers it.",
    "book/accuracy": "The errors of predicted step times and memory, compared with 227 training steps and 171 runs of "
    "fine-tuning that others measured, with reasons for the largest errors.",
    "book/hardware": "GPUs and links in numbers: rates of matrix multiplications, memory, bandwidths of memory, "
    "NVLink, PCIe and networks, how much of them is reached, and three factors of two.",
    "book/running": "How to run the labs on rented GPUs with SkyPilot, on a Slurm cluster, on Kaggle's two T4s, on "
    "two machines or in a container, and what it costs.",
    "book/troubleshooting": "Error messages and symptoms of pages, builds, labs and notebooks, each with its cause "
    "and what to do.",
    "book/execution": "The machine and the versions with which the stored outputs of the notebooks were made.",
    "book/references": "The papers, documentation and measurements that the book uses.",
    "book/instructor/index": "How to teach distributed training with the book: what to prepare, how to run a class, "
    "what the GPUs cost, and a plan for each rung.",
}
KINDS = {
    "notebooks": "Rung {number}, {title}: {done} With live pictures, code and exercises.",
    "instructor": "A class plan for rung {number}, {title}: minutes, questions, wrong answers to expect. {done}",
    "cards": "Rung {number}, {title}, on one page to print: formulas, symbols, numbers to remember.",
    "projector": "The question of rung {number}, {title}, step by step, for a projector.",
}


def description(name: str) -> str:
    """The description of a page by its name in Sphinx. ValueError for a page without one."""
    if name in PAGES:
        return PAGES[name]
    kind, stem = name.split("/")[-2:] if "/" in name else ("", name)
    rung = next((row for row in rungs() if row["stem"] == re.sub(r"^\d\d_", "", stem)), None)
    if kind not in KINDS or rung is None:
        raise ValueError(f"{name} has no description: give it one in scaleout/page/describe.py")
    return KINDS[kind].format(**rung)


def meta(name: str) -> str:
    """The description as a meta tag."""
    return f'<meta name="description" content="{escape(description(name))}">'


def describe(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Give a page its description, before the extension for shared links uses its first words. The front page has the
    title of the book, once."""
    if pagename == app.config.root_doc:
        context["docstitle"] = ""
    if doctree is not None:
        context["metatags"] = context.get("metatags", "") + meta(pagename)
        context["meta"] = {**(context.get("meta") or {}), "og:description": description(pagename)}


def setup(app: Sphinx) -> None:
    """Called by the book's extension."""
    app.connect("html-page-context", describe, priority=400)
