"""The Sphinx extension, without a build: addresses, buttons, what is dropped, tables from their source."""

import zipfile
from types import SimpleNamespace

import pytest
from sphinx.errors import SphinxError

from scaleout.page import prose, repairs, tables
from scaleout.page import sphinx as page_sphinx
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import LINKS


def test_the_sites_address_follows_from_the_repositorys():
    assert page_sphinx.pages_address("https://github.com/Ada/book") == "https://ada.github.io/book/"
    assert page_sphinx.pages_address("") == ""


@pytest.mark.parametrize(
    "wrong", ["github.com/a/b", "https://github.com/a", "https://example.org/a/b", "https://github.com/a/b/c"]
)
def test_another_address_is_refused_with_the_right_form(wrong):
    with pytest.raises(SphinxError, match=r"use https://github\.com/OWNER/NAME"):
        page_sphinx.pages_address(wrong)


def test_colab_and_kaggle_open_the_notebook_once_there_is_an_address():
    assert page_sphinx.notebook_buttons("", "main", "notebooks/01_memory") == []
    (group,) = page_sphinx.notebook_buttons("https://github.com/a/b", "main", "notebooks/01_memory")
    colab, kaggle = (button["url"] for button in group["buttons"])
    assert colab == "https://colab.research.google.com/github/a/b/blob/main/notebooks/01_memory.ipynb"
    assert kaggle == (
        "https://kaggle.com/kernels/welcome?src=https://github.com/a/b/blob/main/notebooks/01_memory.ipynb"
    )


def configured(url):
    options = {"repository_url": url}
    config = SimpleNamespace(html_theme_options=options, project="A book", html_baseurl="", ogp_site_url="")
    page_sphinx.configure(None, config)
    return config


def test_one_address_sets_all_that_follows():
    config = configured("https://github.com/a/b")
    assert config.html_baseurl == config.ogp_site_url == "https://a.github.io/b/"
    assert config.notfound_urls_prefix == "/b/"
    assert 'href="/b/book/index.html"' in config.notfound_context["body"]
    assert config.ogp_image == "https://a.github.io/b/_static/social.png"
    assert config.html_theme_options["use_repository_button"] is True


def test_no_address_means_no_buttons_and_a_site_at_the_root():
    config = configured("")
    assert (config.html_baseurl, config.notfound_urls_prefix) == ("", "/")
    assert config.html_theme_options["use_repository_button"] is False


def test_long_names_in_a_table_may_break_between_their_parts():
    code = '<code class="docutils literal notranslate"><span class="pre">{}</span></code>'
    some = ["bucket_|cap_|mb=|25", "fp32", "Zero|Redundancy|Optimizer", "torch.|nn.|Linear"]

    def body(bar):
        names = " ".join(code.format(one.replace("|", bar)) for one in some)
        return f"<p>{code.format('bucket_cap_mb')}</p><td>{names}</td>"

    context, without = {"body": body("")}, {}
    for one in (context, without):
        prose.break_names(None, "", "", one, None)
    assert context == {"body": body("<wbr>")} and without == {}


def test_the_themes_script_is_told_before_it_loads_that_no_icon_comes_later():
    context = {"metatags": "<meta>"}
    repairs.settle_icons(None, "notebooks/01_memory", "page.html", context, None)
    assert context["metatags"] == "<script>FontAwesomeConfig = {observeMutations: false};</script><meta>"


def script(filename=None, **attributes):
    return SimpleNamespace(filename=filename, attributes=attributes)


def test_scripts_of_other_hosts_are_dropped():
    foreign = [script("https://x.org/a.js"), script("sphinx-thebe.js"), script(body='U = "https://unpkg.com/t"')]
    assert all(page_sphinx.is_foreign(one) for one in foreign)
    assert not any(page_sphinx.is_foreign(one) for one in (script("live/host.js"), script(body="let a = 1")))


def test_mathjax_is_dropped_where_there_is_no_formula():
    mathjax = script("mathjax/es5/tex-chtml.js")
    assert page_sphinx.is_spare(mathjax, "<p>none</p>")
    assert not page_sphinx.is_spare(mathjax, '<span class="math notranslate">x</span>')
    assert not page_sphinx.is_spare(script("live/host.js"), "<p>none</p>")


def test_the_same_files_give_the_same_archive(tmp_path, monkeypatch):
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    found = page_sphinx.page_modules()
    monkeypatch.setattr(page_sphinx, "page_modules", lambda: found)
    page_sphinx.write_zip(first)
    page_sphinx.write_zip(second)
    assert first.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert "scaleout/page/live.py" in names and "scaleout/views/memory/__init__.py" in names
    assert "scaleout/page/widget.py" not in names


def test_a_row_for_each_device_in_the_units_of_the_head():
    rows = {row[0]: row[1:] for row in tables.hardware_rows()}
    assert len(rows) == len(DEVICES)
    h100 = ["79.65", "3.35", "67", "494.7", "989.4", "989.4", "1,979", "295", "NVLink 4", "450"]
    assert rows["H100 SXM 80 GB"] == h100
    assert rows["T4 16 GB"][3] == "–" and rows["T4 16 GB"][5:7] == ["–", "–"]
    assert {row[8] for row in rows.values()} <= {link.name for link in LINKS.values()}
