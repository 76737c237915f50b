"""The Sphinx extension of the book: everything that a page needs is served from the site itself.

At the start of a build it copies Pyodide, MathJax and tippy (npm packages under book/node_modules), the
front end (scaleout/page/static) and the pure Python (one zip) into the output's `_static`. On each page it drops
scripts that name other hosts and adds the notebook buttons. At the end it fails when a page of the contents
is missing.
"""

from __future__ import annotations

import ast
import shutil
import zipfile
import zlib
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlparse

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from scaleout.page import cards, cells, describe, markup, plots, projector, prose, repairs, short_path
from scaleout.page.directives import DIRECTIVES

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent
NPM = ROOT / "book" / "node_modules"

# Files of npm packages that pages load: (package folder, pattern, folder under _static).
VENDORED = (
    ("pyodide", "pyodide.mjs", "pyodide"),
    ("pyodide", "pyodide.asm.mjs", "pyodide"),
    ("pyodide", "pyodide.asm.wasm", "pyodide"),
    ("pyodide", "pyodide-lock.json", "pyodide"),
    ("pyodide", "python_stdlib.zip", "pyodide"),
    ("mathjax", "es5/tex-chtml.js", "mathjax"),
    ("mathjax", "es5/input/tex/extensions/*.js", "mathjax"),
    ("mathjax", "es5/output/chtml/fonts/woff-v2/*.woff", "mathjax"),
    ("mathjax", "es5/a11y/*.js", "mathjax"),
    ("mathjax", "es5/sre/mathmaps/*.json", "mathjax"),
    ("@popperjs/core/dist/umd", "popper.min.js", "tippy"),
    ("tippy.js/dist", "tippy-bundle.umd.min.js", "tippy"),
)

# What every page loads besides the theme: (file under _static, attributes of its tag).
SCRIPTS = (("live/host.js", {"type": "module"}),)
STYLES = ("live/live.css", "book.css")

NOT_FOUND = """<h1>Page not found</h1>
<p>There is no page at this address. It may have moved, or the link may be wrong.</p>
<p>Go to <a href="{prefix}book/index.html">the first page</a>, or search for what you wanted.</p>"""


def _imports(path: Path) -> set[str]:
    """Dotted names that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _module_file(name: str) -> Path | None:
    """The file of a module of this package, or None when `name` is something else."""
    base = ROOT.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if name.split(".")[0] == PACKAGE.name and path.is_file():
            return path
    return None


def page_modules() -> list[Path]:
    """The modules that the page's Python gets: `live`, what a live cell may import, every chapter's exercises, and what
    these import."""
    chapters = [path for path in (PACKAGE / "exercises").glob("*/__init__.py") if path.parent.name != "ranks"]
    rooms = ("words", "spec", "memory", "numerics", "timing", "draw", "views", "records", "fit", "writeup")
    waiting = [PACKAGE / "page" / "live.py", *chapters, *(p for room in rooms for p in (PACKAGE / room).rglob("*.py"))]
    modules = set()
    while waiting:
        path = waiting.pop()
        if path not in modules:
            modules.add(path)
            faces = [folder / "__init__.py" for folder in path.parents if folder.is_relative_to(PACKAGE)]
            waiting += [*faces, *(file for name in _imports(path) if (file := _module_file(name)))]
    return sorted(modules)


def write_zip(target: Path) -> None:
    """Pack `page_modules`, and the trace that they read, into `target`: the same files give the same bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in [*page_modules(), *sorted((PACKAGE / "timing").glob("*.json"))]:
            entry = zipfile.ZipInfo(path.relative_to(ROOT).as_posix(), date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())


def _copy(source: Path, target: Path) -> None:
    """Copy when the target is missing or differs in size or is older."""
    if target.is_file():
        old, new = target.stat(), source.stat()
        if old.st_size == new.st_size and old.st_mtime >= new.st_mtime:
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def copy_assets(app: Sphinx) -> None:
    """Fill the output's `_static` with what pages load from their own host."""
    if app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    for package, pattern, folder in VENDORED:
        files = sorted((NPM / package).glob(pattern))
        if not files:
            raise SphinxError(f"book/node_modules/{package} is missing {pattern}: build with `make site`")
        for file in files:
            _copy(file, static / folder / file.relative_to(NPM / package))
    for origin, target in ((PACKAGE / "page" / "static", static / "live"), (ROOT / "book" / "static", static)):
        for file in sorted(origin.iterdir()):
            _copy(file, target / file.name)
    write_zip(static / "live" / "scaleout.zip")


def pages_address(repository: str) -> str:
    """Where GitHub Pages serves a repository ("" for none): https://github.com/O/N -> https://O.github.io/N/.

    Raises SphinxError when the address is not of that form.
    """
    if not repository:
        return ""
    parts = urlparse(repository)
    names = parts.path.strip("/").split("/")
    if parts.scheme != "https" or parts.netloc != "github.com" or len(names) != 2:
        raise SphinxError(f"repository url {repository!r} in _config.yml: use https://github.com/OWNER/NAME")
    return f"https://{names[0].lower()}.github.io/{names[1]}/"


def configure(app: Sphinx, config) -> None:
    """Theme options, and what follows from the repository's address.

    The options that Jupyter Book generates are changed in place: setting `html_theme_options` in _config.yml
    would replace them all.
    """
    options = config.html_theme_options
    address = pages_address(options.get("repository_url", ""))
    options.update(
        logo={"alt_text": f"{config.project}: home", "text": config.project},
        use_repository_button=bool(address),
        use_issues_button=bool(address),
        show_toc_level=2,
        use_sidenotes=False,
        pygments_light_style="a11y-high-contrast-light",
        pygments_dark_style="a11y-high-contrast-dark",
    )
    if address:
        config.html_baseurl = config.ogp_site_url = address
    prefix = config.notfound_urls_prefix = urlparse(address).path or "/"
    config.notfound_context = {"title": "Page not found", "body": NOT_FOUND.format(prefix=prefix)}
    config.ogp_image = f"{address}_static/social.png"


def notebook_buttons(repository: str, branch: str, pagename: str) -> list[dict]:
    """Header buttons that open a notebook on Colab and on Kaggle; none without a repository address."""
    if not repository:
        return []
    path = f"blob/{branch}/{pagename}.ipynb"
    owner_and_name = urlparse(repository).path.strip("/")
    places = (
        ("Colab", f"https://colab.research.google.com/github/{owner_and_name}/{path}"),
        ("Kaggle", f"https://kaggle.com/kernels/welcome?src={repository.rstrip('/')}/{path}"),
    )
    buttons = [
        {
            "type": "link",
            "text": name,
            "url": url,
            "tooltip": f"Run this notebook on {name}",
            "icon": "fas fa-play",
            "label": f"launch-{name.lower()}",
        }
        for name, url in places
    ]
    return [
        {
            "type": "group",
            "tooltip": "Run this notebook elsewhere",
            "icon": "fas fa-rocket",
            "buttons": buttons,
            "label": "launch-buttons",
        }
    ]


def is_foreign(script) -> bool:
    """Whether a script of the page's context loads, or names for loading, something from another host."""
    name = str(getattr(script, "filename", script) or "")
    body = str(getattr(script, "attributes", {}).get("body", ""))
    return "thebe" in name or "://" in name or "unpkg.com" in body or "jsdelivr" in body


def is_spare(script, body: str) -> bool:
    """Whether a page with this body has no use for a script: MathJax (1.2 MB) where there is no formula."""
    return "mathjax" in str(getattr(script, "filename", "")).lower() and 'class="math' not in body


def finish_page(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Drop scripts (in place: the theme holds the same list) and add the notebook's buttons."""
    body = context.get("body", "")
    scripts = context["script_files"]
    scripts[:] = [script for script in scripts if not (is_foreign(script) or is_spare(script, body))]
    if pagename.startswith("notebooks/"):
        options = app.config.html_theme_options
        buttons = notebook_buttons(
            options.get("repository_url", ""), options.get("repository_branch", "main"), pagename
        )
        context["header_buttons"][:0] = buttons
        for button in (entry for group in context["header_buttons"] for entry in group.get("buttons", [])):
            if button["label"] == "download-source-button":
                button["tooltip"] = "Download this notebook"


def drop_thebe(app: Sphinx, doctree, docname: str) -> None:
    """Remove what sphinx-thebe appends to every page for its (dropped) script."""
    for node in list(doctree.findall(nodes.raw)):
        if "thebe" in node.astext() or "kernelName" in node.astext():
            node.parent.remove(node)


def widen(app: Sphinx, doctree, docname: str) -> None:
    """Give views the width of the page: the theme knows what is wide by its class."""
    for cell in doctree.findall(nodes.container):
        if "cell" in cell["classes"] and any('data-form="view"' in raw.astext() for raw in cell.findall(nodes.raw)):
            cell["classes"].append("full-width")


def write_pages(app: Sphinx, error: Exception | None) -> None:
    """Pages that are none of the book's documents."""
    if not error and app.builder.format == "html":
        cards.write(Path(app.outdir))
        projector.write(Path(app.outdir))


def check_pages(app: Sphinx, error: Exception | None) -> None:
    """Fail the build when a page of _toc.yml is not in the output."""
    if error or app.builder.format != "html":
        return
    names = sorted(app.config.external_site_map)
    missing = [name for name in names if not Path(app.builder.get_outfilename(name)).is_file()]
    if missing:
        raise SphinxError(f"in _toc.yml but not in the output: {', '.join(missing)}")


def fingerprint() -> int:
    """Changes with what the tables are made of: Sphinx then reads every page again."""
    sources = [*sorted((PACKAGE / "page").glob("*.py")), PACKAGE / "spec" / "hardware.py", ROOT / "book" / "rungs.yml"]
    return zlib.crc32(b"".join(path.read_bytes() for path in sources))


def setup(app: Sphinx) -> dict:
    """Sphinx calls this when the extension is loaded."""
    for name, directive in DIRECTIVES.items():
        app.add_directive(name, directive)
    for name in STYLES:
        app.add_css_file(name)
    for name, attributes in SCRIPTS:
        app.add_js_file(name, **attributes)
    for part in (cells, describe, markup, plots, prose, repairs, short_path):
        part.setup(app)
    app.connect("config-inited", configure)
    app.connect("builder-inited", copy_assets)
    app.connect("html-page-context", finish_page, priority=900)  # after the theme has made its buttons
    app.connect("doctree-resolved", drop_thebe, priority=900)
    app.connect("doctree-resolved", widen)
    app.connect("build-finished", write_pages)
    app.connect("build-finished", check_pages)
    return {
        "version": version("scaleout"),
        "env_version": fingerprint(),
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
