"""What the view `capstone` says: its sentence, the law beside the picture, and what wrong guesses are made of."""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.draw.labels import clock
from scaleout.spec.hardware import DEVICES
from scaleout.timing.price import EXAMPLE
from scaleout.views.capstone.levers import limit, sparing
from scaleout.views.capstone.speedup import Setting
from scaleout.views.choices import LINKS, NAMES


def sentence(setting: Setting, values: dict) -> str:
    """What the GPUs do together and what it costs."""
    n, gpus = setting.world, f"{setting.world:,} {DEVICES[setting.device].name}"
    price = f"{svg.quantity(values['strong_price'])} {EXAMPLE.currency} a billion tokens."
    found = f"does {svg.quantity(values['strong_tokens_per_second'])} tokens/s, {price}"
    if n > 1:
        work = f"{svg.quantity(values['strong_speed_up'])}** ({values['strong_efficiency']:.0%})"
        found = f"do the work of **{work}, {price}"
    return f"{NAMES[setting.model]}: {gpus} {found}"


def advice(setting: Setting, values: dict) -> str:
    """What limits them, or what makes it fit."""
    found = limit(setting, values, LINKS["node-ib"]) if values["fits"] else sparing(setting, values)
    return found.strip()


def law(setting: Setting, values: dict) -> list[str]:
    """The speed-up of strong scaling, as the seconds of one GPU and of the step give it."""
    unit, one = clock(values["strong_seconds"])
    alone, step = (svg.quantity(values[name] / one) for name in ("alone_seconds", "strong_seconds"))
    return [
        "GPUs at work × what one alone would take for the part of each ÷ the step:",
        f"{values['busy']:,} × {alone} ÷ {step} {unit} = {svg.quantity(values['strong_speed_up'])}",
        f"Upper bounds: no GPU is late here, and no kernel slower for being small.{_weak(values)}{_measured(values)}",
    ]


def _weak(values: dict) -> str:
    """Why weak scaling passes 100%, where it does."""
    return (
        " Weak passes 100%: one GPU alone updates all weights." if values["weak_efficiency"] > 1.005 else ""
    )


def _measured(values: dict) -> str:
    """What a comparable published run kept of the tokens/s of a GPU, from its fewest to its most GPUs."""
    if not values["published"]:
        return ""
    (first, start), (last, end) = values["published"][0], values["published"][-1]
    return f" Measured, weak: {values['published_by']} kept {end / start:.0%} from {first} to {last} GPUs."


def slips(values: dict) -> list[tuple[float, str]]:
    """Speed-ups that likely mistakes give, and which."""
    n = values["busy"]
    return [
        (n, "as if nobody waited"),
        (n * values["strong_mfu"], "the share of the peak, not of what one GPU does"),
        (n / 8, "one for each node"),
    ]
