"""Run `live.call` in a process of its own (`exercises.engine.apart`): what a notebook's front end asks for where a
reader's code runs."""

from __future__ import annotations

from scaleout.exercises.engine import apart
from scaleout.page import live


def call(method: str, args: dict, seconds: float) -> dict:
    """`live.call(method, args)` within `seconds` of wall clock.

    Returns what it returns. When the process does not come to its end: for "check" a verdict whose slip is
    "endless-loop", "memory", "exit" or "crash", for other methods {"error": one line}.
    """
    if method != "check":
        return _run(method, args, seconds)
    outcome = _run("run", args, seconds)
    if "error" in outcome:
        return {"error": str(outcome["error"])}
    named = {name: args[name] for name in ("stem", "key")}
    return live.call("judge", {**named, "outcome": outcome})


def _run(method: str, args: dict, seconds: float) -> dict:
    try:
        return apart.call("scaleout.page.live:call", {"method": method, "args": args}, seconds)
    except apart.Ended as end:
        # The page's own words, with the limit that held here.
        page = live.STOPPED.replace(f"{live.LEARNER_SECONDS} seconds", f"{seconds:g} seconds")
        words = page if end.slip == "endless-loop" else end.message
        return {"stopped": words, "slip": end.slip} if method == "run" else {"error": words}
