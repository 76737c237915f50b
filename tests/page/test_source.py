"""`{source}`: an excerpt of the package, folded, in a page that Sphinx builds."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from sphinx.application import Sphinx

from scaleout.page import source

MODULE = '''"""Words."""

import functools

@functools.cache
def first(x):
    """Twice."""
    return 2 * x

class Second:
    def one(self):
        return 1
'''


def test_an_excerpt_is_a_function_a_class_a_method_or_all():
    assert source.excerpt(MODULE, "first").splitlines()[0] == "@functools.cache"
    assert source.excerpt(MODULE, "first").endswith("return 2 * x")
    assert source.excerpt(MODULE, "Second.one") == "def one(self):\n    return 1"
    assert source.excerpt(MODULE, "Second").startswith("class Second:")
    assert source.excerpt(MODULE, "") == MODULE.strip()
    for missing in ("third", "Second.two", "first.x", "functools"):
        with pytest.raises(KeyError):
            source.excerpt(MODULE, missing)


@pytest.fixture
def built(tmp_path):
    """Build a page of Markdown; gives (the application, its HTML, its warnings)."""

    def build(text):
        (tmp_path / "index.md").write_text(text)
        warnings = StringIO()
        app = Sphinx(
            tmp_path,
            None,
            tmp_path / "out",
            tmp_path / "trees",
            "html",
            status=None,
            warning=warnings,
            freshenv=True,
            confoverrides={"extensions": ["myst_parser"], "myst_enable_extensions": ["colon_fence"]},
        )
        app.add_directive("source", source.Source)
        app.build()
        return app, (tmp_path / "out" / "index.html").read_text(), warnings.getvalue()

    return build


def test_the_fold_says_what_it_is_where_and_how_long(built):
    app, html, warnings = built(
        "# A page\n\n:::{source} scaleout/page/source.py::excerpt\n**The excerpt.** With `its` decorators.\n:::\n\n"
        "```{source} scaleout/page/source.py\n```\n"
    )
    first, second = re.findall(r'<details class="fold">.*?</details>', html, flags=re.S)
    summary = re.search(r"<summary>(.*)</summary>", first, flags=re.S).group(1)
    lines = len(source.excerpt(Path(source.__file__).read_text(), "excerpt").splitlines())
    words = re.sub(r"<[^>]+>", "", summary)
    assert words.split() == f"The excerpt. With its decorators. scaleout/page/source.py, {lines} lines".split()
    assert (
        '<span class="k">def</span>' in first
        and "DEFINITIONS" in first
        and "class Source" not in re.sub("<.*?>", "", first)
    )
    assert "The version of the package" in second and '<span class="nc">Source</span>' in second
    assert any(str(name).endswith("scaleout/page/source.py") for name in app.env.dependencies["index"])
    assert "ERROR" not in warnings


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("page/source.py::nothing", "scaleout/page/source.py defines no nothing: name a function or a class of it"),
        ("page/nowhere.py", "there is no file scaleout/page/nowhere.py in the package: write scaleout/ROOM/MODULE.py"),
        ("../README.md", "there is no file scaleout/../README.md in the package"),
    ],
)
def test_what_is_not_there_is_an_error_of_the_build(built, asked, words):
    assert words in built(f"# A page\n\n```{{source}} scaleout/{asked}\n```\n")[2]
