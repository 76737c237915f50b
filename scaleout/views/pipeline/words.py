"""What the view `pipeline` says: its sentence, the law beside the picture, and what wrong guesses are made of."""

from __future__ import annotations

from scaleout.words.amounts import short

KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
ALIKE = 0.005  # share by which two steps may differ and still be called as long


def sentence(setting, values: dict) -> str:
    """How long the step is, what share of it is bubble, and what is in flight; compared with GPipe."""
    if setting.waits:
        return _stuck(setting)
    if setting.schedule == "yours":
        return _beside_rivals(setting, values)
    micro_batches = f"{setting.micro_batches} micro-batch{'es' if setting.micro_batches > 1 else ''}"
    if setting.requested != setting.micro_batches:
        micro_batches += f" (nearest possible to {setting.requested})"
    takes = f"a step takes {slots(values['slots'])}{_gpipe_takes(setting, values)}"
    result = f"{takes} and is {values['bubble_percent']:.0f}% idle"
    label = setting.label[0].upper() + setting.label[1:]
    return f"**{label}**, {setting.ranks} ranks, {micro_batches}: {result}. {_held_words(setting, values)}."


def _gpipe_takes(setting, values: dict) -> str:
    """GPipe's step."""
    if setting.schedule == "gpipe":
        return ""
    longer = values["slots"] / values["gpipe_slots"] - 1
    return ", as long as with GPipe," if abs(longer) < ALIKE else f" (GPipe: {number(values['gpipe_slots'])})"


def _held_words(setting, values: dict) -> str:
    """What is in flight, and what GPipe has in flight."""
    if setting.schedule == "gpipe":
        return f"Every rank has all {setting.micro_batches} in flight"
    return f"Rank 0 has up to {amount(values['held'][0])} in flight (GPipe: {setting.micro_batches})"


def _beside_rivals(setting, values: dict) -> str:
    """The step of the reader's own order and what rank 0 has in flight; and those of 1F1B and GPipe."""
    result = (
        f"{slots(values['slots'])}, {values['bubble_percent']:.0f}% idle; rank 0 has up to "
        f"{amount(setting.peaks[0])} in flight"
    )
    gpipe, one_f_one_b, _ = (f"{slots(rival.slots)}, {amount(rival.peaks[0])} in flight" for rival in setting.rivals)
    return f"**{setting.label}**: {result}. 1F1B: {one_f_one_b}; GPipe: {gpipe}."


def goal(setting) -> str:
    """What the reader's own order has to reach."""
    return f"{slots(setting.goal.slots)}, at most {amount(setting.goal.peaks[0])} in flight on rank 0"


def stuck(setting) -> tuple[str, list[str]]:
    """What is wrong with an order that never ends: its name, and each rank of the ring with what it waits for."""
    texts = [
        f"rank {wait.rank} waits at {name(wait.action)} for {name(wait.for_action)} of rank {wait.of_rank}"
        for wait in setting.waits
    ]
    if len(texts) == 1:  # a rank that waits for itself
        wait = setting.waits[0]
        cause = f"rank {wait.rank} has {name(wait.action)} before {name(wait.for_action)}, which it needs"
        return "A broken dependency", [cause]
    return "Deadlock", texts


def _stuck(setting) -> str:
    """The ring in one sentence."""
    wrong, texts = stuck(setting)
    return f"**{wrong}**: {', and '.join(texts)}."


def name(action) -> str:
    """An action as its block says it."""
    return f"{KINDS[action.kind]} {action.micro}"


def number(slots: float) -> str:
    """No more digits than are read.

    >>> number(33.0), number(5.25), number(35.25), number(1504.4)
    ('33', '5.25', '35.2', '1,504')
    """
    return short(round(slots, 2 if slots < 10 else 1 if slots < 1000 else None))


def slots(count: float) -> str:
    return f"{number(count)} slots"


def amount(micro_batches: float) -> str:
    return short(round(micro_batches, 1))


def idle(setting, wait: float) -> str:
    """How long rank 0 is idle: in micro-batches where the formula says it, else in slots."""
    pieces = setting.ranks - 1
    if wait < 0.005:
        return "never idle"
    piece = (1 + setting.backward) / setting.chunks
    if setting.plain and abs(wait - pieces * piece) < 1e-6:
        formula = f"(p − 1)/v = {pieces}/{setting.chunks}" if setting.chunks > 1 else f"p − 1 = {pieces}"
        return f"idle: {formula}"
    return f"idle: {slots(wait)}"


def law(setting, values: dict) -> list[str]:
    """The bubble with its numbers: in pieces where hops cost nothing and stages are even, else as time."""
    p, m, v = setting.ranks, setting.micro_batches, setting.chunks
    bubble = values["bubble"]
    if setting.waits:
        if len(setting.waits) == 1:
            return ["The order of one rank is impossible:", f"rank {setting.waits[0].rank} waits for itself", ""]
        return [
            "Each rank waits for the next, in a cycle:",
            " → ".join(f"rank {wait.rank}" for wait in [*setting.waits, setting.waits[0]]),
            "",
        ]
    textbook = (p - 1) / (v * m + p - 1)
    if setting.plain and abs(bubble - textbook) < 1e-6:
        formula = f"(p − 1) / (m + p − 1) = {p - 1}/{m + p - 1} = {bubble:.0%}"
        if v > 1:
            formula = f"(p − 1) / (v·m + p − 1) = {p - 1}/{v * m + p - 1} = {bubble:.0%}"
        words = "The bubble as a share of the total time" + (f", with v = {v} chunks per rank:" if v > 1 else ":")
    else:
        words = "The bubble as a share of the total time: 1 − work per rank / total time"
        work = number(values["work_slots"] / p)
        formula = f"1 − {work} / {number(values['slots'])} = {bubble:.0%}"
    return [words, formula, _formula_words(setting, values)]


def _formula_words(setting, values: dict) -> str:
    hops = f"A micro-batch makes {values['hops']:,} hops forward and back"
    cost = (
        f", {short(setting.hop)} slot{'s' if setting.hop != 1 else ''} each."
        if setting.hop
        else ", which take no time here."
    )
    return f"A slot is the time of one micro-batch's forward on one rank. {hops}{cost}"


def slips(setting, values: dict) -> list[tuple[float, str]]:
    """Ends of the step that likely mistakes give, of the opening setting, and which."""
    p, m, piece = setting.ranks, setting.micro_batches, 1 + setting.backward
    work, end = m * piece, values["slots"]
    return [
        (work, "the work alone, as if no rank were ever idle"),
        (work + p - 1, "the work and the forwards to the last rank, without the backwards that come back from it"),
        (
            work + (p - 1) * setting.backward,
            "the work and the backwards from the last rank, without the forwards that lead to it",
        ),
        (work + (end - work) / 2, "half of GPipe's bubble: 1F1B has all of it, and saves memory instead"),
        (work + p * piece, "a bubble as long as p micro-batches: a rank does not wait for itself"),
    ]
