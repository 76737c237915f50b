"""What the view `mesh` says: its sentence, the law beside the picture, and what wrong guesses are made of."""

from __future__ import annotations

from math import fsum

from scaleout.views.choices import NAMES
from scaleout.views.mesh.nodes import stage
from scaleout.words.amounts import amount, quantity, took

GIGA = 10**9


def cuts(layout) -> str:
    """The degrees of a layout."""
    context = f" × cp {layout.cp}" if layout.cp > 1 else ""
    return f"dp {layout.dp:,}{context} × tp {layout.tp} × pp {layout.pp}"


def sentence(setting, values: dict) -> str:
    """Which axes cross, what of the communication is exposed, and whether it fits."""
    crossing = [axis.upper() for axis in setting.shown if axis in setting.crossing]
    names = " and ".join(filter(None, (", ".join(crossing[:-1]), *crossing[-1:])))
    crossing_text = (
        f"**{names}** cross{'es' if len(crossing) == 1 else ''} nodes" if crossing else "no axis leaves its node"
    )
    memory_text = f"{amount(setting.account.peak_bytes, GIGA)} per GPU{'' if setting.fits else ' do not fit'}"
    return (
        f"{NAMES[setting.model]}, {cuts(setting.layout)}: {crossing_text}. Communication "
        f"**{took(values['communication_ms'] / 1e3)}** per step, exposed {took(values['exposed_seconds'])}; step time "
        f"{took(values['seconds'])}; {memory_text}."
    )


def law(setting, look, values: dict) -> list[str]:
    """Bytes of each axis over the rate of the wire that it takes."""
    place = stage(setting, look.rank)
    sent, spent = setting.traffic(place), setting.wire_seconds(place)
    slowest = max(setting.shown, key=lambda axis: spent[axis])
    flow = sent[slowest]
    if not flow.bytes:
        return ["A rank alone sends nothing:", "0 B", "Every axis has one rank."]
    reached = flow.bytes / spent[slowest] / GIGA
    rate = f"{quantity(reached)} GB/s"
    least = min((axis for axis in setting.shown if sent[axis].bytes), key=lambda axis: sent[axis].bytes)
    remark = f"Its slowest link carries {quantity(flow.bytes_per_s / GIGA)} GB/s. "
    if least != slowest:
        times = quantity(flow.bytes / sent[least].bytes, 2)
        remark += f"{least.upper()} sends {times} times fewer bytes."
    remark = remark.strip()
    return [
        f"{slowest.upper()} takes longest. Its bytes, divided by the rate it reaches:",
        f"{amount(flow.bytes, GIGA)} / {rate} = {took(spent[slowest])}",
        remark,
    ]


def slips(setting) -> list[tuple[float, str]]:
    """Milliseconds that likely mistakes give, of the opening setting."""
    flows, spent = setting.traffic(0), setting.wire_seconds(0)
    data = setting.other(order="dp.pp.tp")
    slow = setting.cluster.share.bytes_per_s
    crossing = fsum(flow.bytes for flow in flows.values()) / slow
    without_pipeline = fsum(seconds for axis, seconds in spent.items() if axis != "pp")
    return [
        (1e3 * data.spent(0), "DP across: it sends less than TP, but more than PP"),
        (1e3 * spent["pp"], "the crossing axis alone: the others still communicate, inside the nodes"),
        (1e3 * crossing, "as if all bytes crossed the nodes: two of the three axes do not"),
        (1e3 * setting.other(order="tp.pp.dp").spent(0) / 2, "half of it: the axes differ by much more than that"),
        (
            1e3 * (without_pipeline - spent["tp"] + spent["pp"]),
            "without TP, which sends as much as before, now over NVLink",
        ),
    ]
