"""What the view `mesh` says: its sentence, the law beside the picture, and what wrong guesses are made of."""

from __future__ import annotations

from math import fsum

from scaleout.draw import svg
from scaleout.draw.amounts import amount
from scaleout.draw.labels import took
from scaleout.views.choices import NAMES
from scaleout.views.mesh.levers import WORTH, Advice
from scaleout.views.mesh.nodes import stage

GIGA = 10**9


def cuts(layout) -> str:
    """The degrees of a layout."""
    context = f" × cp {layout.cp}" if layout.cp > 1 else ""
    return f"dp {layout.dp:,}{context} × tp {layout.tp} × pp {layout.pp}"


def sentence(setting, values: dict) -> str:
    """Which axes cross, what of the communication is exposed, and whether it fits."""
    some = [axis.upper() for axis in setting.shown if axis in setting.crossing]
    said = " and ".join(filter(None, (", ".join(some[:-1]), *some[-1:])))
    who = f"**{said}** cross{'es' if len(some) == 1 else ''} nodes" if some else "no axis leaves its node"
    held = f"{amount(setting.account.peak_bytes, GIGA)} per GPU{'' if setting.fits else ': too much'}"
    return (
        f"{NAMES[setting.model]}, {cuts(setting.layout)}: {who}. Communication "
        f"**{took(values['communication_ms'] / 1e3)}**, exposed {took(values['exposed_seconds'])} of a step of "
        f"{took(values['seconds'])}; {held}."
    )


def advice(found: Advice | None) -> str:
    """The one lever worth trying now."""
    if not found:
        return f"No lever here gains {WORTH:.0%}."
    return f"Try **{found.words}**: {found.gives}."


def law(setting, look, values: dict) -> list[str]:
    """Bytes of each axis over the rate of the wire that it takes."""
    where = stage(setting, look.rank)
    sent, spent = setting.traffic(where), setting.took(where)
    most = max(setting.shown, key=lambda axis: spent[axis])
    one = sent[most]
    if not one.bytes:
        return ["A rank alone sends nothing:", "0 B", "Every axis has one rank."]
    reached = one.bytes / spent[most] / GIGA
    rate = f"{svg.quantity(reached)} GB/s"
    least = min((axis for axis in setting.shown if sent[axis].bytes), key=lambda axis: sent[axis].bytes)
    after = f"The slowest wire on its way carries {svg.quantity(one.bytes_per_s / GIGA)} GB/s. "
    if least != most:
        times = svg.quantity(one.bytes / sent[least].bytes, 2)
        after += f"{least.upper()} sends {times} times fewer bytes."
    after = after.strip()
    return [
        f"{most.upper()} takes longest, by the rate that it reaches:",
        f"{amount(one.bytes, GIGA)} / {rate} = {took(spent[most])}",
        after,
    ]


def slips(setting) -> list[tuple[float, str]]:
    """Milliseconds that likely mistakes give, of the opening setting."""
    there, spent = setting.traffic(0), setting.took(0)
    data = setting.other(order="dp.pp.tp")
    slow = setting.cluster.share.bytes_per_s
    crossing = fsum(one.bytes for one in there.values()) / slow
    far = fsum(seconds for axis, seconds in spent.items() if axis != "pp")
    return [
        (1e3 * data.spent(0), "DP across: it sends less than TP, but not least"),
        (1e3 * spent["pp"], "the crossing axis alone: the others still send, inside the nodes"),
        (1e3 * crossing, "as if all bytes took the cable: two of three axes stay in their node"),
        (1e3 * setting.other(order="tp.pp.dp").spent(0) / 2, "half of it: the axes differ by far more than that"),
        (1e3 * (far - spent["tp"] + spent["pp"]), "without TP, which sends as much as before, over NVLink"),
    ]
