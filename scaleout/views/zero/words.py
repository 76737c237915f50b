"""What the view `zero` says: its sentence, the law beside the picture, and what wrong guesses are made of."""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.draw.amounts import amount
from scaleout.draw.labels import took
from scaleout.views.choices import NAMES
from scaleout.views.zero.levers import Advice

GIGA = 10**9
SPLIT = {0: "nothing is split", 1: "the optimizer is split", 2: "gradients and optimizer are split",
         3: "all is split, and weights are borrowed"}  # fmt: skip
COUNTS = {1: "once", 2: "twice", 3: "three times"}


def times(pieces: float) -> str:
    """How often all weights' bytes are sent."""
    return COUNTS.get(pieces, f"{svg.quantity(pieces) if pieces != int(pieces) else int(pieces)} times")


def sentence(setting, values: dict) -> str:
    """What is held, what is sent and what is waited for."""
    held = f"{amount(setting.held(), GIGA)} of states" if setting.fits else (
        f"{amount(setting.held(), GIGA)} of states, too much for a {setting.card.name}")  # fmt: skip
    waits = f"{took(values['exposed_seconds'])} of {took(values['seconds'])}"
    return (
        f"{NAMES[setting.model]}, stage {setting.stage}: {SPLIT[setting.stage]} over {setting.ranks} GPUs. Each holds "
        f"**{held}** and sends every weight's bytes **{times(values['pieces'])}**; it waits {waits}."
    )


def advice(found: Advice | None) -> str:
    """The one lever worth trying now."""
    return f"Try **{found.words}**: {found.gives}." if found else ""


def law(setting, values: dict) -> list[str]:
    """Bytes of a parameter that a GPU keeps, or what it sends."""
    n = setting.ranks
    terms = [f"{size:g}/{n}" if values["split"][kind] else f"{size:g}" for kind, size in values["each"].items()]
    billions = setting.parameters / 1e9
    formula = f"({' + '.join(terms)}) B × {svg.quantity(billions)} billion = {amount(setting.held(), GIGA)}"
    after = (f"A piece is (n − 1)/n of {svg.quantity(billions)} billion × {setting.widths['weights']:g} B: "
             f"{amount(setting.piece, GIGA)}. Activations are each GPU's own, in every stage.")  # fmt: skip
    return ["A GPU keeps for each parameter, with n = " f"{n}:", formula, after]


def slips(setting) -> list[tuple[float, str]]:
    """Counts that likely mistakes give."""
    n = setting.ranks
    return [
        (1, "the gradients' way to their owners alone: new weights have to come back"),
        (2 * (n - 1) / n, f"with the (n − 1)/n that a piece has already: DDP's twice would be {2 * (n - 1) / n:g} too"),
        (3, "stage 3's, which gathers the weights for the forward and again for the backward"),
        (4, "an all-reduce of gradients, and as much again for weights"),
    ]
