"""What the book says of Hugging Face's models: the stored table, its predictions made again, and the words about it."""

import json
import subprocess
import sys

import pytest
from repo import ROOT

from scaleout.memory.accounts import Recipe, account
from scaleout.spec.transformer import Shape

TABLE = json.loads((ROOT / "tests/published/hugging_face_memory.json").read_text(encoding="utf-8"))
WORDS = ("7 to 24%", "33%", "1%")


def shape(name):
    sizes = dict(TABLE["shapes"][name])
    if name == "GPT2LMHeadModel":
        return Shape(**sizes)
    return Shape(**sizes, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", max_seq=2048, tied_head=False)


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda r: "-".join(map(str, list(r.values())[:4])))
def test_the_predictions_are_todays(row):
    recipe = Recipe(row["precision"], attention=row["attention"], checkpointing=row["checkpointing"])
    assert account(shape(row["model"]), TABLE["batch"], TABLE["seq"], recipe).peak_bytes == row["predicted"]


def test_how_low_it_is():
    low = {}
    for row in TABLE["rows"]:
        kind = "full" if row["checkpointing"] == "full" else row["attention"]
        low.setdefault(kind, []).append(round(100 * (1 - row["predicted"] / row["measured"])))
    assert {kind: (min(some), max(some)) for kind, some in low.items()} == {
        "sdpa": (7, 24),
        "naive": (3, 33),
        "full": (0, 1),
    }
    assert len(TABLE["rows"]) == 24 and TABLE["transformers"] and TABLE["torch"]


@pytest.mark.parametrize("page", ["README.md", "book/index.md", "book/notation.md", "notebooks/01_memory.ipynb"])
def test_pages_say_so(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "Hugging Face" in text and all(words in text for words in WORDS), page
    assert "to the per cent" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_without_transformers_the_tool_says_what_to_install():
    code = "import sys; sys.modules['transformers'] = None; sys.path.insert(0, 'tools')\n"
    code += "import hugging_face_memory as b\n"
    done = subprocess.run([sys.executable, "-c", code + "sys.exit(b.main())"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "pip install transformers" in done.stderr
