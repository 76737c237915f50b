"""To run it: the command line of a layout in each framework, and a link to the picture of its ranks."""

from __future__ import annotations

from urllib.parse import urlencode

from scaleout import views
from scaleout.spec import frameworks, launchers
from scaleout.spec.program import PROGRAMS
from scaleout.timing.plan import Plan
from scaleout.views.planner import words
from scaleout.views.planner.setting import NETWORKS, RUNS, Setting, cuts_of

BOOK = frameworks.Framework("this book's job", launchers.book, PROGRAMS["eager"])
CHAPTER = "../notebooks/07_mesh.html#live-predict"
CHUNKS = 8  # of a pipeline rank, at most, in the chapter's picture


def commands(setting: Setting, plan: Plan) -> list[tuple[str, str, str]]:
    """(A framework, its lines or "", in one line what it cannot do or ""): of what runs the program that was priced;
    the book's own job is eager torch."""
    runs, blocks = [frameworks.RUNS[setting.question.program]], []
    for framework in runs + [BOOK] * (setting.question.program == "eager"):
        try:
            blocks.append((framework.name, " \\\n  ".join(frameworks.lines(plan.job, framework)), ""))
        except ValueError as error:
            blocks.append((framework.name, "", str(error)))
    return blocks


def ranks(setting: Setting, plan: Plan) -> str:
    """The address of the chapter's picture with this layout, of its chunks as many as the picture has; "" where that
    picture does not take the rest."""
    layout, question = plan.layout, setting.question
    params = {
        "model": question.model,
        "device": question.device,
        "gpus": question.gpus,
        "link": NETWORKS[question.network][0],
        "node": 8,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "zero": layout.zero,
        "chunks": min(CHUNKS, layout.chunks),
        "micro_batches": layout.m,
        "seq": setting.job.seq,
        "batch": plan.job.batch,
        "recompute": plan.checkpointing,
    }
    if NETWORKS[question.network][:2] not in (("ib-ndr", 8), ("ib-hdr", 8)):
        return ""
    try:
        views.clean("mesh", params)
    except ValueError:
        return ""
    return f"{CHAPTER}?{urlencode(params)}"


def section(setting: Setting) -> dict:
    """The best layout's lines, and the reader's."""
    yours = setting.yours if isinstance(setting.yours, Plan) else None
    plans = [("The best layout", setting.best)] if setting.best else []
    if yours and (setting.best is None or cuts_of(yours) != cuts_of(setting.best)):
        plans.append(("Your layout", yours))
    blocks: list[tuple[str, ...]] = []
    for name, plan in plans:
        blocks.append(("words", f"**{name}:** {words.layout(plan, chunks=True)}."))
        for program, lines, cannot in commands(setting, plan):
            blocks.append(("fold", program, lines) if lines else ("words", f"{program} cannot run it: {cannot}."))
        if address := ranks(setting, plan):
            fewer = ", with fewer chunks" if plan.layout.chunks > CHUNKS else ""
            blocks.append(("link", f"{name.lower()}: its ranks and what they communicate{fewer}", address))
    other_programs = ", ".join(label for name, label in RUNS.items() if name != setting.question.program)
    blocks += [("words", f"Other programs have other step times: choose {other_programs} under More.")] * bool(blocks)
    return {"title": "To run it", "blocks": blocks or [("words", "Nothing fits, and your layout is not possible.")]}
