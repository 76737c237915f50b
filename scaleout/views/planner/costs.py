"""Next to the landscape of the view `planner`: step time and memory in figures, the whole run, neighboring layouts."""

from __future__ import annotations

from scaleout.spec.transformer import unpriced
from scaleout.timing.job import PARTS
from scaleout.timing.plan import WORDS, Plan
from scaleout.timing.quick import RECOMPUTE
from scaleout.views.planner import words
from scaleout.views.planner.bars import bytes_by_kind
from scaleout.views.planner.setting import Cuts, Setting, cuts_of, picked
from scaleout.words.amounts import amount, quantity, took

# Parts of a step as a table names them.
CALLED = WORDS | {"host": "host, at any size", "stragglers": "waiting for the slowest"}
ACCURACY = "accuracy.html"
NAMES = {"none": "nothing", "selective": "attention", "full": "every block"}


def figures(setting: Setting) -> dict:
    """Step time and memory by part, for the best layout and the reader's."""
    plans = [plan for plan in (setting.shown, setting.yours) if isinstance(plan, Plan)]
    heads = [
        "",
        *(["best" if setting.best else "smallest"] if setting.shown else []),
        *(["yours"] if isinstance(setting.yours, Plan) else []),
    ]
    rows = [
        [CALLED[part], *(_time(plan.parts[part]) for plan in plans)]
        for part in PARTS
        if any(plan.parts[part] > 5e-4 * plan.seconds for plan in plans)
    ]
    rows.append(["**step time**", *(f"**{took(plan.seconds)}**" for plan in plans)])
    sizes = [bytes_by_kind(plan.job) for plan in plans]
    kinds = [
        [kind.name, *(_size(size[kind]) for size in sizes)]
        for kind in (sizes[0] if sizes else ())
        if any(size[kind] for size in sizes)
    ]
    kinds.append(
        [f"**total**, of {amount(setting.usable, 10**9)}", *(f"**{amount(plan.bytes, 10**9)}**" for plan in plans)]
    )
    refusal = "" if isinstance(setting.yours, Plan) else f"Your layout is not possible: {setting.yours}."
    phrases = unpriced(setting.question.shape, setting.job.recipe.operations)
    not_priced = f"Not in these figures yet: {'; '.join(phrases)}." if phrases else ""
    return {
        "title": "Where the time goes, and the memory of the fullest GPU",
        "blocks": [
            *(("words", text) for text in (refusal, not_priced) if text),
            ("table", heads, rows),
            ("words", setting.result.band.why),
            ("link", "how good these numbers are", ACCURACY),
            ("table", heads, kinds),
        ],
    }


def _time(seconds: float) -> str:
    return took(seconds) if seconds > 5e-5 else "–"


def _size(size: float) -> str:
    return amount(size, 10**9) if size else "–"


def whole_run(setting: Setting, run: dict | None, params: dict) -> dict:
    """Days, GPU-hours, energy and price of a run with the best layout."""
    if run is None or setting.best is None:
        return {"title": "The whole run", "blocks": [("words", "Nothing fits, so there is nothing to run.")]}
    days = run["hours"] / 24
    rows = [
        ["time", f"{quantity(days)} days" if days >= 2 else f"{quantity(run['hours'])} hours"],
        ["GPU-hours", quantity(run["gpu_hours"])],
        ["energy, at most", f"{quantity(run['mwh'])} MWh"],
        [f"at {params['price']:g} EUR per GPU-hour", f"{quantity(run['price'])} EUR"],
    ]
    rate = quantity(setting.rate(setting.best))
    text = (
        f"{params['tokens']:g} T tokens at {rate} tokens/s, ± {setting.percent}. "
        "Failures, checkpoints and restarts are not included. Change tokens, price and power under More."
    )
    return {"title": "The whole run", "blocks": [("table", ["", ""], rows), ("words", text)]}


# --- one step away ----------------------------------------------------------------------------------------------


def steps(start: Cuts) -> list[tuple[str, Cuts]]:
    """Each degree halved and doubled, the other sharding, and the other kinds of recomputation."""
    neighbours = []
    for axis in ("tp", "pp", "cp"):
        size = getattr(start, axis)
        neighbours += [
            (f"{axis} {degree}", start._replace(**{axis: degree})) for degree in (size // 2, 2 * size) if degree >= 1
        ]
    shard = 3 if start.zero == 1 else 1
    neighbours.append((words.SHARDS[shard], start._replace(zero=shard)))
    neighbours += [
        (f"recompute {NAMES[method]}", start._replace(recompute=method))
        for method in RECOMPUTE
        if method != start.recompute
    ]
    return neighbours


def one_step(setting: Setting) -> dict:
    """The cost of one change of the best layout."""
    best = setting.best
    if best is None:
        return {
            "title": "One change away",
            "blocks": [("words", "Nothing fits, so there is no best layout.")],
        }
    rows = [[name, fate(setting, picked(setting.question, cuts))] for name, cuts in steps(cuts_of(best))]
    return {"title": "One change away from the best layout", "blocks": [("table", ["", ""], rows)]}


def because(setting: Setting) -> str:
    """Why the best layout is as it is: the result with half of each degree, and with FSDP alone."""
    if setting.best is None:
        return ""
    best = cuts_of(setting.best)
    halves = [(axis, getattr(best, axis) // 2) for axis in ("tp", "cp", "pp") if getattr(best, axis) > 1]
    results = [(f"{axis} {half}", picked(setting.question, best._replace(**{axis: half}))) for axis, half in halves]
    plain = [picked(setting.question, Cuts(1, 1, 1, 3, checkpointing)) for checkpointing in RECOMPUTE]
    feasible = [plan for plan in plain if isinstance(plan, Plan)] or plain
    alone = (
        min(feasible, key=lambda plan: (not plan.fits, bool(plan.cannot), plan.seconds))
        if feasible is not plain
        else (plain[0])
    )
    if best[:3] != (1, 1, 1):
        checkpointing = alone.checkpointing if isinstance(alone, Plan) else "none"
        suffix = f", {words.RECOMPUTES[checkpointing]}" if checkpointing != "none" else ""
        results.append((f"FSDP alone{suffix}", alone))
    fates = [f"{name}: {fate(setting, plan)}" for name, plan in results if setting.job.cluster.ranks > 1]
    return f"Why this layout? {'; '.join(fates)}." if fates else ""


def fate(setting: Setting, plan: Plan | str) -> str:
    """The result of another layout, compared with the best."""
    if isinstance(plan, str):
        return "not possible: " + plan.split(":")[0]
    if not plan.fits or plan.cannot or setting.best is None:
        return setting.result.reason(plan)
    excess = plan.seconds / setting.best.seconds - 1
    percent = f"{100 * excess:+.1f}%" if abs(excess) < 0.1 else f"{100 * excess:+.0f}%"
    reason = "equal within the band" if setting.result.equal(plan) else plan.loses_by(setting.best)
    return f"{percent}: {reason}"
