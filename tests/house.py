"""What the tests of the house share: its sources, and its rules.

Each rule is a function from {module: source} to the places that break it, so that a house of two modules can show that
the rule can fail.
"""

import ast
import json
import re
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter

import repo
import yaml
from IPython.core.inputtransformer2 import TransformerManager

ROW = re.compile(r"^\| (\d+) \| `(\w+)` \| .+ \| (.+) \|$", re.M)
STANDARD = "the standard library"
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef
STARTS = "scaleout.lab.start"  # a lab's first line: it works by being imported


def floors(page):
    """{room: (floor, what else it may import)} of the table in a page."""
    return {room: (int(floor), words) for floor, room, words in ROW.findall(page)}


def module_of(path):
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def code_of(notebook):
    """The code of a notebook as Python: IPython turns its lines for the shell into calls."""
    cells = [cell for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
    return "\n".join(TransformerManager().transform_cell("".join(cell["source"])) for cell in cells)


FLOORS = floors(repo.text("CONTRIBUTING.md"))
HOUSE = {module_of(name): repo.text(name) for name in repo.with_suffix(".py") if name.startswith("scaleout/")}
READERS = {name: repo.text(name) for name in repo.with_suffix(".py") if name.startswith("labs/")} | {
    name: code_of(repo.text(name)) for name in repo.with_suffix(".ipynb")
}
STEMS = [rung["stem"] for rung in yaml.safe_load(repo.text("book/rungs.yml"))]


@cache
def imports(source):
    """[(module, name)] of every import of a source, those inside functions too; name is "" for `import module`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [("." * node.level + (node.module or ""), alias.name) for alias in node.names]
    return found


@cache
def face(source):
    """{name: module} of a room's face: the names that it promises, and the module of the room that has each."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = {}
    for call in calls:
        if getattr(call.func, "id", "") == "face":
            for part in call.keywords:  # module="names", or **{"module": "names"}
                table = {part.arg: part.value.value} if part.arg else ast.literal_eval(part.value)
                found |= {name: module for module, names in table.items() for name in names.split()}
    return found


@cache
def defined(source):
    """The names that a module has: its own, what it imports, what its face promises."""
    found = set(face(source))
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        else:
            names = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]
            found |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return found


def room(module):
    """The room of a module of the package; "" for the package itself and for what is none of it."""
    parts = module.split(".")
    return parts[1] if parts[0] == "scaleout" and len(parts) > 1 else ""


def arrows(house):
    """[(module, what it imports)]: a module of the package where there is one of that name."""
    return sorted(
        {
            (module, f"{base}.{name}" if f"{base}.{name}" in house else base)
            for module, source in house.items()
            for base, name in imports(source)
        }
    )


def upward(house, floors):
    """Imports of a room that is not on a lower floor."""
    return [
        (module, target)
        for module, target in arrows(house)
        if room(module)
        and room(target)
        and room(module) != room(target)
        and floors[room(module)][0] <= floors[room(target)][0]
    ]


def circle(house):
    """The modules of one circle of imports, the first again at the end; [] when there is none."""
    below = {module: set() for module in house}
    for module, target in arrows(house):
        below[module] |= {target} - {module}
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def pure(module, floors):
    """Whether a module has to run in the reader's browser."""
    floor = floors.get(room(module), (0, STANDARD))
    return module == "scaleout.page.live" or (floor[1].startswith(STANDARD) and "ranks" not in module.split("."))


def foreign(house, floors):
    """Imports that the table does not give the room: of a package, or of what is not pure by what is."""
    found = []
    for module, target in arrows(house):
        top = target.split(".")[0]
        allowed = set() if pure(module, floors) else set(re.findall(r"`(\w+)`", floors[room(module)][1]))
        if top == "scaleout":
            wrong = pure(module, floors) and not pure(target, floors)
        else:
            wrong = top not in sys.stdlib_module_names | allowed
        found += [(module, target)] if wrong else []
    return found


def behind_faces(readers, house):
    """Imports of chapters and labs that reach behind a face, or ask one for what it has not."""
    found = []
    for reader, source in readers.items():
        for base, name in imports(source):
            whole = f"{base}.{name}".rstrip(".")
            known = re.fullmatch(r"scaleout(\.\w+)?|scaleout\.exercises\.\w+", base)
            asked = name and known and (whole in house or name in defined(house.get(base, "")))
            if base.split(".")[0] == "scaleout" and base != STARTS and not asked:
                found.append((reader, whole))
    return found


def by_faces(house):
    """Modules of the package that take a name from a face, which hides the module that has it."""
    return [
        (module, f"{base}.{name}")
        for module, source in house.items()
        for base, name in imports(source)
        if name in face(house.get(base, ""))
    ]


def idle(readers, house):
    """Names of a room's face that no chapter and no lab asks for."""
    asked = {pair for source in readers.values() for pair in imports(source)}
    promised = {(package, name) for package, source in house.items() if room(package) for name in face(source)}
    return sorted(promised - asked)


def private_parts(sources):
    """Imports of what torch keeps for itself: names that start with an underscore, at any depth."""
    return [
        (module, f"{base}.{name}")
        for module, source in sources.items()
        for base, name in imports(source)
        if base.split(".")[0] == "torch" and "._" in f"{base}.{name}"
    ]


def broken_faces(house):
    """Names of a face that its module has not, and names that a module of the room would hide."""
    promised = [(package, name, part) for package, source in house.items() for name, part in face(source).items()]
    return [
        (f"{package}.{part}", name)
        for package, name, part in promised
        if name not in defined(house.get(f"{package}.{part}", "")) or f"{package}.{name}" in house
    ]


def unnamed(house, stems):
    """Modules and folders that the docstring of their folder does not name; `STEM` stands for each rung's word.

    What is in the folder of one chapter's exercises is gathered by that folder's imports, and needs no name.
    """
    found = []
    for module in house:
        package, _, name = module.rpartition(".")
        of_a_chapter = package.count(".") == 2 and package.rpartition(".")[2] in stems
        if room(package) and not of_a_chapter and name != "__main__":
            told = " ".join(re.findall(r"`[^`]+`", ast.get_docstring(ast.parse(house[package])) or ""))
            named = {word.replace("STEM", stem) for word in re.findall(r"\w+", told) for stem in stems}
            found += [module] if name not in named else []
    return found


def vanished(sources, house):
    """Names in docstrings that nothing has: `room.module`, `room.module.Name`, `room/module.py`, and `module.py`, which
    is beside the file that names it. An indented line is a command, which may name a reader's file."""
    inside = {module.removeprefix("scaleout."): source for module, source in house.items()}
    known = set(inside) | {f"{module}.{name}" for module, source in inside.items() for name in defined(source)}
    rooms = "|".join({room(module) for module in house} - {""})
    dotted = re.compile(rf"(?<![\w./])(?:scaleout\.)?((?:{rooms})\.(?!py\b|STEM\b)\w+(?:\.\w+)?)")
    script = re.compile(rf"(?<![\w/.-])(?:scaleout/)?((?:{rooms})/)?([a-z_]\w*\.py)\b")
    found = []
    for path, source in sources.items():
        told = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
        words = re.sub(r"(?m)^ .*", "", "\n".join(ast.get_docstring(node) or "" for node in told))
        found += [(path, name) for name in dotted.findall(words) if name not in known]
        found += [
            (path, name)
            for folder, name in script.findall(words)
            if (f"scaleout/{folder}" if folder else path[: path.rfind("/") + 1]) + name not in sources
        ]
    return found
