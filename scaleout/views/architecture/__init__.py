"""Who slows the run down: a recorded trace of eight ranks, its replay without a straggler, and a day of such steps."""

from __future__ import annotations

from scaleout.views import guess, more, play, select, slider
from scaleout.views.architecture import levers, picture, words
from scaleout.views.architecture.setting import ALL, EVERY, NONE, Setting

TITLE = "Who slows the run down?"

CONTROLS = (
    guess("Each square is the time that one rank spends in the all-reduce of one step. **Which rank slows this run "
          "down?**", "culprit", "rank", lo=0, hi=7, step=1),
    play("step", "Step", 6, 0, 19),
    select("rank", "Replace by the median", NONE,
           [(NONE, "nothing"), *((str(rank), f"rank {rank}") for rank in range(8)), (EVERY, "every rank")]),
    select("part", "What is replaced", ALL, [(ALL, "all its work"), *words.NAMES.items()]),
    slider("nodes", "Nodes of 8 GPUs", 512, 16, 4096, 16, log=True),
    *more(
        slider("failures", "Failures per 1,000 node-days", 6.5, 0.5, 20.0, 0.5),
        slider("interval", "Minutes between checkpoints", 60, 5, 240, 5, "min"),
        slider("saving", "Training stops to save for", 60, 0, 600, 10, "s"),
        slider("restart", "A restart takes", 15, 1, 120, 1, "min"),
    ),
)  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """Rows are ranks: the all-reduce of each step, the chosen step in full, and beneath them a day of such steps."""
    setting = Setting.of(params)
    return {
        "svg": picture.picture(setting, width),
        "sentence": words.sentence(setting),
        "law": words.law(setting),
        "values": _values(setting),
        "levers": levers.notes(setting),
    }


advice = Setting.asked(levers.sentence)
locked = Setting.asked(picture.locked)


def slips(params: dict) -> list[tuple[float, str]]:
    """Ranks that likely mistakes name."""
    return words.slips()


def _values(setting: Setting) -> dict:
    """What is the same at both widths; culprit: of the recorded run."""
    trace = setting.trace
    return {
        "culprit": setting.other(rank=NONE).verdict.rank,
        "now": setting.verdict.rank,
        "cause": setting.verdict.part,
        "waited_s": [trace.waited(rank) for rank in range(trace.ranks)],
        "step_ms": 1e3 * setting.length,
        "mean_ms": 1e3 * setting.mean,
        "gain_percent": 100 * setting.gain,
        "day": setting.day,
        "steps_per_day": setting.steps_per_day,
        "hours_between_failures": setting.mtbf / 3600,
    }
