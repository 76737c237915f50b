"""Markup of a notebook: MyST where Sphinx reads it, plain Markdown in JupyterLab, VS Code and Colab.

    {cite}`young1974`                       ([Young, 1974](https://doi.org/10.1145/361147.361115))
    {cite:t}`young1974`                     [Young (1974)](https://doi.org/10.1145/361147.361115)
    {term}`ranks <rank>`                    [ranks](../book/glossary.md#rank)
    :::{source} PATH::NAME and its words    The words ([`PATH::NAME`](../PATH))
    :::{chapter-card} STEM                  [The card of this chapter](../book/cards/STEM.yml): what is on it
    :::{margin} and its words               > The words
    :::{dropdown} Title and its text        <details><summary>Title</summary> its text, folded
    :::{admonition} Title and its text      **Title** and its text

An author writes either; a notebook is stored with the second. Sphinx is given the first: on the site a citation and a
term explain themselves under the pointer, code unfolds, and what there is none of is named. Once the site has an
address, a notebook's links to pages lead there: a notebook that is read alone has no pages beside it.
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

BOOK = Path(__file__).resolve().parents[2] / "book"
BIBLIOGRAPHY, GLOSSARY = BOOK / "references.bib", BOOK / "glossary.md"


@cache
def entries() -> dict[str, Entry]:
    """Every source of the book by its key."""
    return dict(parse_file(str(BIBLIOGRAPHY)).entries)


@cache
def keys() -> dict[str, str]:
    """Keys of sources by their address."""
    return {entry.fields["url"]: key for key, entry in entries().items() if "url" in entry.fields}


def authors(entry: Entry) -> str:
    """Young; Patarasuk and Yuan; Li et al."""
    names = [
        " ".join(map(str, person.rich_prelast_names + person.rich_last_names)) for person in entry.persons["author"]
    ]
    return f"{names[0]} et al." if len(names) > 2 or names[-1] == "others" else " and ".join(names)


def cited(match: re.Match) -> str:
    """A citation as a link. ValueError where its key has no entry, or the entry no address."""
    entry = entries().get(match[2])
    if entry is None or "url" not in entry.fields:
        raise ValueError(f"{match[0]}: book/references.bib has no entry of that key with a url")
    names, year, url = authors(entry), entry.fields["year"], entry.fields["url"]
    return f"[{names} ({year})]({url})" if match[1] else f"([{names}, {year}]({url}))"


def cite(match: re.Match) -> str:
    """A link to a source as a citation; a link to something else as it is."""
    key = keys().get(match[1] or match[2])
    return f"{{cite{'' if match[1] else ':t'}}}`{key}`" if key else match[0]


def term(match: re.Match) -> str:
    """A link into the glossary as a term."""
    words, name = match[1], unquote(match[2])
    return f"{{term}}`{words}`" if words == name else f"{{term}}`{words} <{name}>`"


def quoted(match: re.Match) -> str:
    """A note for the margin as a quotation."""
    return re.sub("^", "> ", match[1].strip(), flags=re.M)


def margin(match: re.Match) -> str:
    """A quotation as a note for the margin."""
    return ":::{margin}\n" + re.sub("^> ?", "", match[0], flags=re.M) + "\n:::"


def dropdown(match: re.Match) -> str:
    """A dropdown as HTML that folds."""
    return f"<details>\n<summary>{match[1]}</summary>\n\n{match[2].strip()}\n\n</details>"


def admonition(match: re.Match) -> str:
    """An admonition as its title in bold and its text, in an element that keeps its class."""
    return f'<div class="admonition {match[2] or "note"}">\n\n**{match[1]}**\n\n{match[3].strip()}\n\n</div>'


PLAIN = (
    (r"\{cite(:t)?\}`([^`]+)`", cited),
    (r"\{term\}`([^`<]+?)(?: <(.+?)>)?`", lambda m: f"[{m[1]}](../book/glossary.md#{quote(m[2] or m[1])})"),
    (r"^:::\{source\} (\S+)\n+((?:.+\n)*):::$",
     lambda m: f"{' '.join(m[2].split()) or UNNAMED} ([`{m[1]}`](../{m[1].partition('::')[0]}))"),
    (r"^:::\{chapter-card\} (\w+)\n+:::$",
     r"[The card of this chapter](../book/cards/\1.yml): its formulas, symbols and numbers to remember"),
    (r"^:::\{margin\}\n+((?:.*\n)*?):::$", quoted),
    (r"^:{3,4}\{dropdown\} (.+)\n((?:.*\n)*?):{3,4}$", dropdown),
    (r"^:{3,4}\{admonition\} (.+)\n(?::class: ([\w-]+)\n)?((?:.*\n)*?):{3,4}$", admonition),
)  # fmt: skip
MYST = (
    (r"^> .*(?:\n>.*)*$", margin),
    (r"^\[The card of this chapter\]\(\.\./book/cards/(\w+)\.yml\).*$", r":::{chapter-card} \1\n:::"),
    (r"^(.+) \(\[`(scaleout/[\w/]+\.py)((?:::[\w.]+)?)`\]\(\.\./\2\)\)$", r":::{source} \2\3\n\1\n:::"),
    # four colons: what is inside may have three
    (r"^<details>\n<summary>(.+)</summary>\n\n((?:.*\n)*?)\n</details>$", r"::::{dropdown} \1\n\n\2::::"),
    (
        r'^<div class="admonition ([\w-]+)">\n\n\*\*(.+)\*\*\n\n((?:.*\n)*?)\n</div>$',
        r"::::{admonition} \2\n:class: \1\n\n\3::::",
    ),
    (r"\[([^][]+)\]\(\.\./book/glossary\.md#([^)\s]+)\)", term),
    (r"\(\[[^][]+, \d{4}\]\((https://[^)\s]+)\)\)|\[[^][]+ \(\d{4}\)\]\((https://[^)\s]+)\)", cite),
)


def to_plain(text: str) -> str:
    """Markdown that any editor shows. ValueError where there is no such source."""
    for pattern, written in PLAIN:
        text = re.sub(pattern, written, text, flags=re.M)
    return text


def to_myst(text: str) -> str:
    """Markdown for Sphinx: what `to_plain` took."""
    for pattern, written in MYST:
        text = re.sub(pattern, written, text, flags=re.M)
    return text


LINK = re.compile(r"\]\((?:\.\./(book/[\w/-]+)\.md|(\d\d_\w+)\.ipynb)(#[^)\s]+)?\)")


def term_id(name: str) -> str:
    """The anchor of a term in the site's glossary, where Sphinx finds it whatever its capitals."""
    name = next((term_name for term_name in terms().values() if term_name.lower() == name.lower()), name)
    return anchor_of(name)


def anchor_of(name: str) -> str:
    """As Sphinx makes one."""
    return f"term-{re.sub('[^a-zA-Z0-9._]+', '-', name).strip('-')}"


@cache
def terms() -> dict[str, str]:
    """Every term of the glossary by its anchor."""
    text = GLOSSARY.read_text(encoding="utf-8").partition("{glossary}\n")[2]
    return {anchor_of(name): name for name in re.findall(r"^(?!`)(\S.*)$", text, re.M)}


def to_site(text: str, site: str) -> str:
    """Links to files of pages as links to the site at the address `site`; as they are where there is none."""

    def address(match: re.Match) -> str:
        page, anchor = match[1] or f"notebooks/{match[2]}", match[3] or ""
        if page == "book/glossary" and anchor:
            anchor = f"#{term_id(unquote(anchor[1:]))}"
        return f"]({site}{page}.html{anchor})"

    return LINK.sub(address, text) if site else text


def to_files(text: str, site: str) -> str:
    """What `to_site` took."""

    def file(match: re.Match) -> str:
        folder, name, anchor = match[1], match[2], match[3] or ""
        if name == "glossary" and anchor:
            anchor = f"#{quote(terms()[anchor[1:]])}"
        return f"]({name}.ipynb{anchor})" if folder == "notebooks" else f"](../book/{name}.md{anchor})"

    pattern = rf"\]\({re.escape(site)}(book|notebooks)/([\w/-]+)\.html(#[^)\s]+)?\)"
    return re.sub(pattern, file, text) if site else text


def give_back(app: Sphinx, docname: str, source: list[str]) -> None:
    """Sphinx is about to read a page."""
    if docname.startswith("notebooks/"):
        notebook = json.loads(source[0])
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = to_myst(to_files("".join(cell["source"]), app.config.html_baseurl))
        source[0] = json.dumps(notebook)


def setup(app: Sphinx) -> None:
    """What the book's extension gets from here."""
    app.connect("source-read", give_back)
