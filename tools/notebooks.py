"""Run notebooks from top to bottom and store their outputs.

    .venv/bin/python tools/notebooks.py notebooks/*.ipynb
    .venv/bin/python tools/notebooks.py --widgets notebooks/*.ipynb    only live pictures and exercises

A notebook is stored only when every cell ran. What would differ from run to run without meaning is left out: the
widgets' kernel form (the HTML form stays), widget state, time stamps. And it is stored so that it reads in any editor:
what a tag hides is folded, what only Sphinx knows is plain Markdown, and its first code cell finds the book or fetches
it (tools/first_cell.py).
"""

from __future__ import annotations

import argparse
import datetime
import platform
import re
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import nbformat
import yaml
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from scaleout.lab import limits
from scaleout.page import markup, sphinx

ROOT = Path(__file__).resolve().parent.parent
FIRST = (ROOT / "tools" / "first_cell.py").read_text(encoding="utf-8").partition('"""\n\n')[2].strip()
FIND = "find-book"  # the first code cell's id, after the chapter's stem
WIDGET = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}  # as JupyterLab says it
SECONDS_PER_CELL = 300
SHOWN = ("torch", "accelerate", "matplotlib")

FOLDS_CODE = {"hide-cell", "hide-input", "remove-cell", "remove-input"}
FOLDS_OUTPUT = {"hide-cell", "hide-output", "remove-cell", "remove-output"}
CHECKS = "# Checks what the text says"  # the first line is what an editor shows of a cell that is folded

# A cell that shows a live picture or an exercise, and nothing else.
WIDGETS = re.compile(r"(from scaleout import [^\n]*\n+)?(show|show_exercise)\([^\n]*\)")

# A directive of prose between backticks: its head, its options, its text.
FENCED = re.compile(r"^```(\{(?!code|math)[\w-]+\}.*\n)((?::.*\n)*)\n*((?:(?!```).*\n)*?)```$", re.M)


def machine() -> str:
    """Processor, cores and memory (GiB) that may be used here, and the GPUs where torch sees any."""
    words = [f"CPU only, {platform.machine()}", f"{limits.cores()} cores", f"{limits.memory() / 2**30:.0f} GiB"]
    try:
        import torch

        if torch.cuda.is_available():
            words[0] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    except ImportError:
        pass
    return ", ".join(words)


def versions() -> str:
    """Python and the packages whose version can change an output."""
    words = [f"Python {platform.python_version()}"]
    for name in SHOWN:
        try:
            words.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(words)


def joined(outputs: list) -> list:
    """The outputs, with what a cell printed in one piece: how print is cut into messages is chance."""
    found: list = []
    for output in outputs:
        last = found[-1] if found else {}
        if output["output_type"] == "stream" == last.get("output_type") and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            found.append(output)
    return found


def strip(notebook: nbformat.NotebookNode) -> None:
    """Remove what is not part of the book, in place."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["kernelspec"] = KERNEL
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "data" in output:
                output["data"].pop(WIDGET, None)
        if "outputs" in cell:
            cell["outputs"] = joined(cell["outputs"])


def fold(cell: nbformat.NotebookNode) -> None:
    """Fold in other editors what the tags of a code cell hide on the site: JupyterLab and VS Code read `jupyter`, Colab
    `cellView`. JupyterLab adds `collapsed` when it opens a notebook: it is stored, so that reading changes no file."""
    tags = set(cell.metadata.get("tags", ()))
    shown = cell.id.endswith(FIND)  # it may have to say what to do
    folded = {"outputs_hidden": bool(tags & FOLDS_OUTPUT) and not shown, "source_hidden": bool(tags & FOLDS_CODE)}
    cell.metadata["jupyter"] = {key: True for key, is_so in folded.items() if is_so}
    cell.metadata["cellView"] = "form" if folded["source_hidden"] else None
    cell.metadata["collapsed"] = folded["outputs_hidden"]
    for key in ("jupyter", "cellView", "collapsed"):
        if not cell.metadata[key]:
            del cell.metadata[key]
    if "remove-cell" in tags and not cell.source.startswith("#"):
        cell.source = f"{CHECKS}\n{cell.source}"


def address() -> str:
    """Of the book's repository, "" where there is none yet."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]


def put_first(notebook: nbformat.NotebookNode, repository: str) -> None:
    """Put the cell that finds the book, or fetches it from `repository`, behind the title of a chapter, in place."""
    title = notebook.cells[0]
    if title.cell_type != "markdown" or "-" not in title.id:
        return
    name = f"{title.id.partition('-')[0]}-{FIND}"
    if notebook.cells[1].id != name:
        notebook.cells.insert(1, nbformat.v4.new_code_cell(id=name, metadata={"tags": ["remove-cell"]}))
    notebook.cells[1].source = FIRST.replace('address=""', f'address="{repository}"')


def colons(text: str) -> str:
    """Markdown with directives of prose between colons: who does not know a directive then shows its text as text."""

    def written(match: re.Match) -> str:
        head, options, body = match.groups()
        return f":::{head}{options}\n{body}:::" if body else f":::{head}{options}:::"

    return FENCED.sub(written, text)


def make_readable(notebook: nbformat.NotebookNode) -> None:
    """Write the notebook, in place, so that it reads in any editor. ValueError names what cannot be."""
    put_first(notebook, repository := address())
    site = sphinx.pages_address(repository)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            fold(cell)
        else:
            cell.source = markup.to_site(markup.to_plain(colons(cell.source)), site)


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook in a file. ValueError, one line, where there is none."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (OSError, ValueError, AttributeError, RecursionError, nbformat.ValidationError) as error:
        raise ValueError(f"{path} is no notebook: {str(error).splitlines()[0]}") from None
    return notebook


def execute(notebook: nbformat.NotebookNode, path: Path) -> float:
    """Run the cells of the notebook, which is or belongs to that file, in its folder; the seconds it took.

    Raises ValueError when a cell fails or takes too long.
    """
    client = NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": path.parent}},
    )
    start = time.perf_counter()
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise ValueError(f"{path} was not stored, a cell failed:\n{error}") from None
    seconds = time.perf_counter() - start
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":  # from a formatter: the cell itself went through
                reason = f"{output['ename']}: {output['evalue']}"
                raise ValueError(f"{path} was not stored, an output of cell {cell['id']} failed: {reason}")
    strip(notebook)
    return seconds


def run(path: Path) -> float:
    """Run one notebook and store it; the seconds it took. ValueError as in `execute`; the file is then as it was."""
    notebook = read(path)
    make_readable(notebook)
    seconds = execute(notebook, path)
    notebook.metadata["execution"] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "seconds": round(seconds),
        "versions": versions(),
    }
    store(notebook, path)
    return seconds


def renew_widgets(path: Path) -> float:
    """Store again what the cells of a notebook show that are a call of `show` or `show_exercise` and nothing else; the
    seconds it took. No other cell is run, and no other output changes but in its number. ValueError as in `run`."""
    notebook = read(path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and WIDGETS.fullmatch(cell.source.strip())]
    part = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("from scaleout import show, show_exercise")])
    part.cells += [nbformat.v4.new_code_cell(cell.source, id=cell.id) for cell in cells]
    seconds = execute(part, path)
    for cell, shown in zip(cells, part.cells[1:], strict=True):
        cell.outputs = shown.outputs
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count  # one may be new
        for output in cell.outputs:
            if "execution_count" in output:
                output["execution_count"] = count
    make_readable(notebook)
    store(notebook, path)
    return seconds


def store(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write the notebook beside `path`, then move it there: `path` is never half written."""
    new = path.with_suffix(".new")
    nbformat.write(notebook, new)
    new.replace(path)


def main() -> int:
    """Run and store each notebook named; the exit code."""
    parser = argparse.ArgumentParser(description="Run notebooks and store their outputs.")
    parser.add_argument("notebooks", type=Path, nargs="+")
    parser.add_argument("--widgets", action="store_true", help="only cells that show a live picture or an exercise")
    args = parser.parse_args()
    for path in args.notebooks:
        try:
            print(f"{path} ...", end=" ", flush=True)
            print(f"{(renew_widgets if args.widgets else run)(path):.0f} s")
        except ValueError as error:
            print(f"\nnotebooks: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
