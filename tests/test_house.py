"""The house as CONTRIBUTING.md has it: floors, faces, pure rooms, read from the imports of every module."""

import ast
import re

import house
import mutants
import mutate
import names
import pytest
import repo
import tree

from scaleout.page import sphinx

BESIDE = {"attacks", "browser", "published", "ranks"}  # folders of tests that are no room's


def test_the_table_of_floors_has_every_room_and_only_rooms():
    assert {room: floor for room, (floor, _) in house.FLOORS.items()} == tree.floors()
    assert {house.room(module) for module in house.HOUSE} == {"", *house.FLOORS}
    numbers = [floor for floor, _ in house.FLOORS.values()]
    assert numbers == sorted(numbers)


def test_no_module_stands_outside_the_rooms():
    assert [path.name for path in (repo.ROOT / "scaleout").glob("*.py")] == ["__init__.py"]


def test_folders_of_tests_are_rooms():
    folders = {name.split("/")[1] for name in repo.files() if name.startswith("tests/") and name.count("/") > 1}
    assert folders - BESIDE <= set(house.FLOORS)


def test_imports_are_absolute_and_go_down():
    relative = [module for module, target in house.arrows(house.HOUSE) if target.startswith(".")]
    assert relative == []
    assert house.upward(house.HOUSE, house.FLOORS) == []


def test_no_circle():
    assert house.circle(house.HOUSE) == []


def test_rooms_import_what_the_table_gives_them():
    assert house.foreign(house.HOUSE, house.FLOORS) == []


def test_the_page_gets_pure_modules_only():
    shipped = {house.module_of(path.relative_to(repo.ROOT).as_posix()) for path in sphinx.page_modules()}
    assert {module for module in shipped if not house.pure(module, house.FLOORS)} <= {"scaleout.page"}
    assert {"scaleout.page.live", "scaleout.views.memory", "scaleout.spec.hardware"} <= shipped
    rooms = [module for module in house.HOUSE if house.room(module) and house.pure(module, house.FLOORS)]
    assert {module for module in rooms if house.room(module) != "exercises"} <= shipped  # for cells that run there


def test_chapters_and_labs_import_faces():
    assert house.behind_faces(house.READERS, house.HOUSE) == []
    assert house.idle(house.READERS, house.HOUSE) == []


def test_modules_import_modules():
    assert house.by_faces(house.HOUSE) == []


def test_faces_keep_their_promises():
    assert house.broken_faces(house.HOUSE) == []


def test_faces_show_their_names_to_editors():
    """`from scaleout.ROOM.MODULE import NAME as NAME` in the stub beside a face, for each name of its table."""
    for package, source in house.HOUSE.items():
        promised = {(f"{package}.{module}", name, name) for name, module in house.face(source).items()}
        stub = repo.ROOT / package.replace(".", "/") / "__init__.pyi"
        nodes = ast.walk(ast.parse(stub.read_text("utf-8") if stub.exists() else ""))
        shown = [(node.module, alias.name, alias.asname) for node in nodes if isinstance(node, ast.ImportFrom)
                 for alias in node.names if node.module.startswith("scaleout.")]  # fmt: skip
        assert sorted(shown) == sorted(promised), f"write {stub} anew"


def test_docstrings_of_rooms_name_their_modules():
    assert house.unnamed(house.HOUSE, house.STEMS) == []


def test_docstrings_name_what_exists():
    folders = ("scaleout/", "labs/", "tools/")
    sources = {name: repo.text(name) for name in repo.with_suffix(".py") if name.startswith(folders)}
    assert house.vanished(sources, house.HOUSE) == []
    small = {
        "scaleout/cellar/wine.py": '"""attic.box.Lid, attic.Lid, oak.py, attic/lid.py; attic.box, wine.py."""',
        "scaleout/attic/box.py": '"""Of `cellar.wine`:\n\n    python mine.py\n\nNo more."""',
    }
    found = house.vanished(small, {house.module_of(name): source for name, source in small.items()})
    assert [name for _, name in found] == ["attic.box.Lid", "attic.Lid", "oak.py", "lid.py"]


HEAVY = re.compile(r"(torch|accelerate|scaleout\.parallel)(\.|$)")


def needs_torch(source):
    """Lines of a test file that import torch where none may be: outside a function, or in one that does not skip."""
    found = []
    for node in ast.iter_child_nodes(ast.parse(source)):
        asked = isinstance(node, ast.FunctionDef) and 'importorskip("torch")' in ast.get_source_segment(source, node)
        for one in ast.walk(node):
            names = (
                [one.module or ""]
                if isinstance(one, ast.ImportFrom)
                else [each.name for each in one.names]
                if isinstance(one, ast.Import)
                else []
            )
            found += [one.lineno for name in names if HEAVY.match(name) and not asked]
    return found


def test_the_tests_of_pure_rooms_need_no_torch():
    """But for the truths: `make quick` leaves those out, and runs where no torch is."""
    pure = re.search(r"^PURE := (.*)$", repo.text("Makefile"), re.M)[1].split()
    files = [name for name in repo.with_suffix(".py") if re.match(rf"tests/({'|'.join(pure)})/test_", name)]
    wrong = {name: needs_torch(repo.text(name)) for name in files if not name.endswith("truth.py")}
    assert len(wrong) > 100 and {name: lines for name, lines in wrong.items() if lines} == {}


def test_a_test_that_needs_torch_is_found():
    assert needs_torch("import torch\ndef test_a():\n    import torch.nn\n    import math\n") == [1, 3]
    assert needs_torch('def test_a():\n    torch = pytest.importorskip("torch")\n    from torch import nn\n') == []


def test_torchs_private_parts_enter_by_one_door():
    labs = {name: source for name, source in house.READERS.items() if name.startswith("labs/")}
    assert house.private_parts(house.HOUSE | labs) == []
    assert house.private_parts({ATTIC: "from torch.nn import Linear\nimport torch.distributed as dist"}) == []
    for line in ("from torch._C import Node", "from torch.cuda.memory import _snapshot", "import torch._guards"):
        assert len(house.private_parts({ATTIC: line})) == 1, line


TWO_FLOORS = house.floors("| 1 | `cellar` | wine | the standard library |\n| 2 | `attic` | a box | `torch` |\n")
CELLAR, ATTIC = "scaleout.cellar.wine", "scaleout.attic.box"
FACE = '__getattr__ = face(__name__, wine="Red", oak="barrel")'


@pytest.mark.parametrize(
    ("rule", "good", "bad", "where"),
    [
        (
            house.upward,
            {ATTIC: "from scaleout.cellar import wine", CELLAR: ""},
            {CELLAR: "def f():\n    from scaleout.attic import box", ATTIC: ""},
            (CELLAR, ATTIC),
        ),
        (
            house.upward,
            {"scaleout.cellar.oak": "from scaleout.cellar import wine", CELLAR: ""},
            {CELLAR: "import scaleout.attic.box", ATTIC: ""},
            (CELLAR, ATTIC),
        ),
        (
            house.foreign,
            {CELLAR: "import json", ATTIC: "import torch.distributed"},
            {CELLAR: "import torch"},
            (CELLAR, "torch"),
        ),
        (house.foreign, {ATTIC: "import torch"}, {ATTIC: "from numpy import array"}, (ATTIC, "numpy")),
        (
            house.foreign,
            {ATTIC: "from scaleout.cellar import wine", CELLAR: ""},
            {CELLAR: "from scaleout.attic import box", ATTIC: ""},
            (CELLAR, ATTIC),
        ),
    ],
)
def test_a_wrong_import_is_found(rule, good, bad, where):
    assert rule(good, TWO_FLOORS) == []
    assert rule(bad, TWO_FLOORS) == [where]


def test_a_circle_is_found():
    assert house.circle({"a": "import b", "b": "import json"}) == []
    found = house.circle({"a": "import b", "b": "def f():\n    from c import g", "c": "import a"})
    assert set(found) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("from scaleout.cellar import Red, wine", True),
        ("import scaleout.lab.start", True),
        ("from scaleout.cellar.wine import Red", False),
        ("import scaleout.cellar", False),
        ("from scaleout.cellar import White", False),
    ],
)
def test_a_lab_that_reaches_behind_a_face_is_found(line, right):
    assert (house.behind_faces({"lab": line}, {"scaleout.cellar": FACE, CELLAR: "Red = 1"}) == []) is right


def test_a_name_of_a_face_that_nobody_wants_is_found_and_one_that_a_module_takes():
    small = {"scaleout.cellar": FACE, CELLAR: "", ATTIC: "from scaleout.cellar import Red"}
    assert house.idle({"lab": "from scaleout.cellar import Red"}, small) == [("scaleout.cellar", "barrel")]
    assert house.by_faces(small) == [(ATTIC, "scaleout.cellar.Red")]
    assert house.by_faces(small | {ATTIC: "from scaleout.cellar import wine"}) == []


def test_a_face_that_promises_too_much_is_found():
    small = {"scaleout.cellar": FACE, CELLAR: "class Red: ...", "scaleout.cellar.oak": "def barrel(): ..."}
    assert house.broken_faces(small) == []
    assert house.broken_faces(small | {CELLAR: "def f():\n    Red = 1"}) == [(CELLAR, "Red")]
    assert house.broken_faces(small | {"scaleout.cellar.barrel": ""}) == [("scaleout.cellar.oak", "barrel")]


def test_a_module_without_a_word_is_found():
    small = {"scaleout.cellar": '"""Wine: `wine`, and one `STEM_cask` a rung."""', "scaleout.cellar.ddp_cask": ""}
    assert house.unnamed(small | {CELLAR: ""}, house.STEMS) == []
    assert house.unnamed(small | {"scaleout.cellar.oak": ""}, house.STEMS) == ["scaleout.cellar.oak"]


# What is written once: a pattern, and the modules that have it. `ring` stands floors below the session.
HOMES = {
    # in mesh.lab it is a reader's solution that does so
    r"dist\.all_gather_object\(": {"scaleout.exercises.mesh.lab", "scaleout.lab.session", "scaleout.parallel.ring"},
    r"\bfor (\w+) in range\([^)]*\) if (?:not [\w.]+ % \1\b|[\w.]+ % \1 == 0)": {"scaleout.spec.checks"},
    r"<strong>\\1": {"scaleout.words.markup"},
    r"\| \{' \| '\.join": {"scaleout.words.tables"},
    r"def (took|quantity|listed)\(.*-> str": {"scaleout.words.amounts"},
}


def written(pattern, sources):
    return {name for name, source in sources.items() if re.search(pattern, source)}


@pytest.mark.parametrize("pattern", HOMES)
def test_what_has_a_home_is_written_there_alone(pattern):
    assert (
        written(pattern, house.HOUSE | {name: house.READERS[name] for name in house.READERS if name.endswith(".py")})
        == HOMES[pattern]
    )


def test_what_is_written_twice_is_found():
    for pattern, line in zip(
        HOMES,
        (
            "dist.all_gather_object(a, b)",
            "[n for n in range(1, k + 1) if k % n == 0]",
            r're.sub("a", r"<strong>\1</strong>", b)',
            """f"| {' | '.join(cells)} |\"""",
            "def took(seconds: float) -> str:",
        ),
        strict=True,
    ):
        assert written(pattern, {"here": line, "there": "x = 1"}) == {"here"}


def test_breaks_stand_in_their_modules_once():
    """`tools/mutants.py` breaks lines of the package, which someone may have written anew since."""
    texts = {one[0]: repo.text(f"scaleout/{one[0]}") for one in mutants.BREAKS}
    assert not [one[:2] for one in mutants.BREAKS if texts[one[0]].count(one[1]) != 1]


def test_random_breaks_leave_types_text_and_errors_whole():
    """`tools/mutate.py` on a function: its default, its comparison, its operators and their numbers."""
    source = '''def cut(size: int = 2) -> int:
    """At least 1."""
    if size < 1:
        raise ValueError(f"{size + 1} is 3")
    return not size * 0.5
'''
    ways = [way for one in mutate.statements(ast.parse(source)) for way in mutate.breaks(one)]
    found = [(type(node), new if field == "value" else field) for node, field, new in ways]
    number = ast.Constant
    assert found == [(number, 3), (number, 1), (ast.Compare, "ops"), (number, 2), (number, 0), (ast.UnaryOp, "operand"),
                     (ast.BinOp, "op"), (number, 0.55)]  # fmt: skip


def test_names_that_say_nothing_are_counted():
    tree = ast.parse("def of(rank, one):\n    found, size = one\n    return [x for x in found]\n")
    assert [name for name, _ in names.bound(tree) if names.vague(name, "timing")] == ["of", "one", "found"]
    assert not names.vague("left", "draw") and names.vague("left", "timing") and not names.vague("__all__", "spec")
    assert names.main([]) == 0 and names.main(["--limit", "0"]) == 1
    with pytest.raises(SystemExit):
        names.main(["labs"])
