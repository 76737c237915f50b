"""Markup of a notebook that only Sphinx knows: roles and directives where it reads them, links where anybody else does.

    {cite}`young1974`      ([Young, 1974](https://doi.org/10.1145/361147.361115))
    {cite:t}`young1974`    [Young (1974)](https://doi.org/10.1145/361147.361115)
    {term}`ranks <rank>`   [ranks](../book/glossary.md#rank)
    :::{source} PATH::NAME and its words    The words ([`PATH::NAME`](../PATH))
    :::{chapter-card} STEM                  [The card of this chapter](../book/cards/STEM.yml): what is on it

A notebook is stored with links, so that it reads in JupyterLab, VS Code and Colab. Sphinx is given the rest back: on
the site a citation and a term explain themselves under the pointer, code unfolds, and what there is none of is named.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote

from pybtex.database import Entry, parse_file
from sphinx.application import Sphinx

from scaleout.page.source import UNNAMED

BIBLIOGRAPHY = Path(__file__).resolve().parents[2] / "book" / "references.bib"
GLOSSARY = "../book/glossary.md#"

ROLE = re.compile(r"\{(cite|cite:t|term)\}`([^`]+)`")
CITED = re.compile(r"\(\[[^][]+, \d{4}\]\((https://[^)\s]+)\)\)|\[[^][]+ \(\d{4}\)\]\((https://[^)\s]+)\)")
SOURCE = re.compile(r"^:::\{source\} (\S+)\n+((?:.+\n)*):::$", re.M)
CODE = re.compile(r"^(.+) \(\[`(scaleout/[\w/]+\.py)((?:::[\w.]+)?)`\]\(\.\./\2\)\)$", re.M)
CARD = re.compile(r"^:::\{chapter-card\} (\w+)\n+:::$", re.M)
CARD_FILE = re.compile(r"^\[The card of this chapter\]\(\.\./book/cards/(\w+)\.yml\).*$", re.M)
TERM = re.compile(rf"\[([^][]+)\]\({re.escape(GLOSSARY)}([^)\s]+)\)")


@cache
def entries() -> dict[str, Entry]:
    """Every source of the book by its key."""
    return dict(parse_file(str(BIBLIOGRAPHY)).entries)


def authors(entry: Entry) -> str:
    """Young; Patarasuk and Yuan; Li et al."""
    names = [" ".join(map(str, one.rich_prelast_names + one.rich_last_names)) for one in entry.persons["author"]]
    return f"{names[0]} et al." if len(names) > 2 or names[-1] == "others" else " and ".join(names)


def to_links(text: str) -> str:
    """Markdown with links in place of roles and directives. ValueError where a key has no entry, or that no address."""

    def code(match: re.Match) -> str:
        words = match[2].replace("\n", " ").strip() or UNNAMED
        return f"{words} ([`{match[1]}`](../{match[1].partition('::')[0]}))"

    def link(match: re.Match) -> str:
        role, inside = match.groups()
        if role == "term":
            words, term = re.fullmatch(r"(.+?)(?: <(.+)>)?", inside).groups()
            return f"[{words}]({GLOSSARY}{quote(term or words)})"
        entry = entries().get(inside)
        if entry is None or "url" not in entry.fields:
            raise ValueError(f"{match[0]}: book/references.bib has no entry of that key with a url")
        who, year, url = authors(entry), entry.fields["year"], entry.fields["url"]
        return f"([{who}, {year}]({url}))" if role == "cite" else f"[{who} ({year})]({url})"

    card = r"[The card of this chapter](../book/cards/\1.yml): its formulas, symbols and numbers to remember"
    return ROLE.sub(link, CARD.sub(card, SOURCE.sub(code, text)))


def from_links(text: str) -> str:
    """Markdown with roles and directives in place of the links that `to_links` makes; other links stay."""
    keys = {entry.fields["url"]: key for key, entry in entries().items() if "url" in entry.fields}

    def cite(match: re.Match) -> str:
        key = keys.get(match[1] or match[2])
        return match[0] if key is None else f"{{{'cite' if match[1] else 'cite:t'}}}`{key}`"

    def term(match: re.Match) -> str:
        words, name = match[1], unquote(match[2])
        return f"{{term}}`{words}`" if words == name else f"{{term}}`{words} <{name}>`"

    text = CARD_FILE.sub(r":::{chapter-card} \1\n:::", CODE.sub(r":::{source} \2\3\n\1\n:::", text))
    return TERM.sub(term, CITED.sub(cite, text))


def give_back(app: Sphinx, docname: str, source: list[str]) -> None:
    """Sphinx is about to read a page."""
    if docname.startswith("notebooks/"):
        notebook = json.loads(source[0])
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = from_links("".join(cell["source"]))
        source[0] = json.dumps(notebook)


def setup(app: Sphinx) -> None:
    """What the book's extension gets from here."""
    app.connect("source-read", give_back)
