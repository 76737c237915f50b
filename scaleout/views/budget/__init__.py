"""What a budget buys: the best model for a number of samples per question, and a toy trained on its own text."""

from __future__ import annotations

from scaleout.timing.budget import LAWS
from scaleout.views import guess, more, select, slider
from scaleout.views.base import kept
from scaleout.views.budget import split, words, writes
from scaleout.views.budget.setting import HIGHEST, LOWEST, SAMPLES, SPLIT, STEPS, WRITES, Look, Setting

TITLE = "What a budget buys"
OF_SPLIT, OF_WRITES = ("samples", "answers", "law"), ("state", "temperature", "write_at", "write_top_p")

CONTROLS = (
    guess("With one sample per question, the best model that this budget can buy has 4.6 billion parameters. How many "
          "does it have if every question is sampled **64 times**, for the same budget?",
          "best_billions", "billion parameters", lo=0.1, hi=16, step=0.1),
    select("show", "Show", SPLIT, [(SPLIT, "training or answers: one budget"), (WRITES, "a model that trains itself")]),
    select("samples", "Samples per question, k", 64, [(k, str(k)) for k in SAMPLES]),
    select("state", "The toy model", "before", [("before", "as it was"), ("after", "trained on its own text")]),
    slider("temperature", "Temperature of its answers", 1.0, LOWEST / STEPS, HIGHEST / STEPS, step=0.01),
    *more(
        slider("answers", "Tokens for one sample of each question", 10.0, 1.0, 20.0, step=0.5, unit="billion"),
        select("law", "Scaling law", "besiroglu", [(key, law.words) for key, law in LAWS.items()]),
        slider("write_at", "Temperature of the training text", 0.9, 0.5, 1.6, step=0.05),
        slider("write_top_p", "Top-p of the training text", 0.85, 0.6, 0.95, step=0.05),
    ),
)  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """Loss by size of the model with the best one marked, and pass@k; or the toy's distributions and its curve."""
    setting, look = Setting.of(params), Look.of(params)
    toy = look.show == WRITES
    idle = OF_SPLIT if toy else OF_WRITES
    return {
        "svg": writes.picture(setting, look, width) if toy else split.picture(setting, width),
        "sentence": words.of_toy(setting, look) if toy else words.of_split(setting),
        "law": words.toy_law(setting, look) if toy else words.split_law(setting),
        "values": _toy_values(setting, look) if toy else _values(setting),
        "levers": {name: {"off": f"Only for “{words.OTHER[look.show]}”."} for name in idle},
    }


locked = Setting.asked(split.locked)
slips = Setting.asked(words.slips)


@kept
def _values(setting: Setting) -> dict:
    """best_billions: parameters of the best model; alone_billions: with one sample."""
    best = setting.best
    return {
        "best_billions": _fixed(best.parameters / 1e9),
        "alone_billions": _fixed(setting.each[1].best.parameters / 1e9),
        "token_billions": _fixed(best.tokens / 1e9),
        "tokens_per_parameter": _fixed(best.per_parameter),
        "loss": _fixed(setting.loss),
        "answering_percent": _fixed(100 * best.answering_share),
        "pass_percent": {str(k): _fixed(100 * one.solved) for k, one in setting.each.items()},
        "most_solved": setting.winner,
    }


def _toy_values(setting: Setting, look: Look) -> dict:
    """Percent of right answers now and at the best temperature; how often each kind of position is right."""
    toy, peaks = look.toy(setting), {name: curve.peak for name, curve in setting.curves.items()}
    return {
        "right_percent": _fixed(100 * toy.success(look.temperature)),
        "right_at": dict(zip(toy.positions, map(_fixed, toy.decoded(look.temperature).right), strict=True)),
        "best_before": [_fixed(peaks["before"][0]), _fixed(100 * peaks["before"][1])],
        "best_after": [_fixed(peaks["after"][0]), _fixed(100 * peaks["after"][1])],
    }


def _fixed(value: float) -> float:
    """With six digits: a power's last ones differ between the page's Python and the kernel's, and golden-section search
    finds the lowest point of a flat curve to about eight."""
    return float(f"{value:.6g}")
