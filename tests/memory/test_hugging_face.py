"""What the book says of Hugging Face's models: the stored table, its predictions made again, and the words about it."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from cases import over, refused
from repo import ROOT

from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes, block_kept
from scaleout.memory.mesh_peaks import Peaks, ends_of
from scaleout.memory.recompute import tiles
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import CHOICES, Recipe
from scaleout.spec.transformer import PRESETS, Shape

TABLE = json.loads((ROOT / "tests/published/hugging_face_memory.json").read_text(encoding="utf-8"))
MODELS = json.loads((ROOT / "tests/published/hugging_face_parameters.json").read_text(encoding="utf-8"))["models"]
CHAPTER = ("Llama, 32,000 words", "Qwen 3, 32,000 words", "GPT-2, 50,257 words")
WORDS = ("2 to 22%", "37%", "1%")


def found(row, operations):
    recipe = Recipe(
        row["precision"], attention=row["attention"], checkpointing=row["checkpointing"], operations=operations
    )
    return account(Shape.from_config(TABLE["configs"][row["model"]]), TABLE["batch"], TABLE["seq"], recipe)


def name(row):
    return "-".join(row[key] for key in ("model", "precision", "attention", "checkpointing"))


@pytest.mark.parametrize("row", TABLE["rows"], ids=name)
def test_the_predictions_are_todays(row):
    assert found(row, "book").peak_bytes == row["book"]
    moments = found(row, "transformers").moments
    assert {moment: sum(kinds.values()) for moment, kinds in moments.items()} == row["predicted"]


def test_how_far_off_it_is():
    """Of the peak, and of each moment: what is more than 2% off is not the peak, and has its reason."""
    off = sorted(abs(max(row["predicted"].values()) / max(row["measured"].values()) - 1) for row in TABLE["rows"])
    families = {config["model_type"] for config in TABLE["configs"].values()}
    assert len(off) >= 80 and len(families) >= 10
    assert off[len(off) // 2] < 1e-4 and off[len(off) * 9 // 10] < 1e-3 and off[-1] < 0.02
    missed = {
        (row["model"].split(",")[0], moment)
        for row in TABLE["rows"]
        for moment, size in row["measured"].items()
        if abs(row["predicted"][moment] / size - 1) > 0.02
    }
    # one tensor of Falcon's forward is freed earlier under autocast than here, where nothing else is saved
    assert missed <= {("Falcon", "forward")}


def test_what_transformers_does_not_have_is_refused():
    z = Sizes(PRESETS["gpt2"], 1, 128, Recipe(operations="transformers"), Layout())
    refused(lambda: Recipe("fp32", attention="flash"), "flash-attn computes in 16 bits: use attention sdpa")
    refused(lambda: tiles(z), "tiles are of the book's operations: use operations book")
    refused(lambda: block_kept(z, "none"), "bytes by operation are of the book's modules: use operations book")
    refused(
        lambda: account(PRESETS["gpt2"], 1, 128, Recipe(operations="transformers", checkpointing="selective")),
        "transformers' modules have no selective checkpointing: use operations book",
    )
    refused(
        lambda: account(
            PRESETS["gpt2"], 1, 128, Recipe(operations="transformers"), Layout(tp=2, sequence_parallel=True)
        ),
        "transformers' modules have no sequence parallelism: use operations book",
    )


def test_how_low_the_account_of_the_books_operations_is():
    low = {}
    for row in TABLE["rows"]:
        if row["model"] in CHAPTER:
            kind = "full" if row["checkpointing"] == "full" else row["attention"]
            low.setdefault(kind, []).append(round(100 * (1 - row["book"] / max(row["measured"].values()))))
    assert {kind: (min(some), max(some)) for kind, some in low.items()} == {
        "sdpa": (2, 22),
        "naive": (3, 37),
        "full": (0, 1),
    }


KERNELS = [(p, a) for p in CHOICES["precision"] for a in CHOICES["attention"] if (p, a) != ("fp32", "flash")]
NAMES = ["qwen3, biases", "olmo2, biases", "gemma3, biases", "gpt2, a wide MLP", "gpt_neox, no biases of attention"]


@over(
    name=NAMES,
    kernel=KERNELS,
    checkpointing=CHOICES["checkpointing"],
    layout=[Layout(tp=2, sequence_parallel=True), Layout(pp=2, micro_batches=4)],
)
def test_what_a_step_saves_its_backward_frees(name, kernel, checkpointing, layout):
    shape, batch, seq = Shape.from_config(MODELS[name]["config"]), 2, 16
    precision, attention = kernel
    recipe = Recipe(precision, attention=attention, checkpointing=checkpointing)
    left = account(shape, batch, seq, recipe, layout).moments["optimizer"]["activations"]
    assert left == 2 * 8 * batch * seq


@over(
    name=NAMES,
    kernel=KERNELS,
    checkpointing=["none", "full"],
    loss=CHOICES["loss"],
    layout=[Layout(tp=2), Layout(pp=2, micro_batches=4)],
)
def test_what_their_step_saves_its_backward_frees(name, kernel, checkpointing, loss, layout):
    """And the search's formula has the peak of it."""
    shape, batch, seq = Shape.from_config(MODELS[name]["config"]), 2, 16
    precision, attention = kernel
    recipe = Recipe(precision, attention=attention, checkpointing=checkpointing, loss=loss, operations="transformers")
    found = account(shape, batch, seq, recipe, layout).moments["optimizer"]
    assert found["activations"] == 2 * 8 * batch * seq and not found["logits"]
    recipe = replace(recipe, gradients="kept")
    stages = [shape.layers // layout.pp] * layout.pp
    peak, _ = Peaks(shape, seq).peak(batch, recipe, layout, ends_of(layout, stages))
    assert peak == pytest.approx(account(shape, batch, seq, recipe, layout).peak_bytes, rel=1e-3)


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
