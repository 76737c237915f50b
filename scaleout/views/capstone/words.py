"""What the view `capstone` says: its sentence, the inequalities next to the picture, likely mistakes in a guess."""

from __future__ import annotations

from scaleout.spec.program import PROGRAMS
from scaleout.timing.price import EXAMPLE
from scaleout.views.capstone.deal import amount
from scaleout.views.capstone.levers import limit, sparing
from scaleout.views.capstone.speedup import Setting
from scaleout.views.choices import NAMES
from scaleout.words.amounts import clock, count, quantity


def sentence(setting: Setting, values: dict) -> str:
    """What the GPUs do together and what it costs."""
    n, gpus = setting.world, count(setting.world, "GPU")
    price = f"at {quantity(values['strong_price'])} {EXAMPLE.currency} per billion tokens."
    text = f"trains at {quantity(values['strong_tokens_per_second'])} tokens/s, {price}"
    if n > 1:
        work = quantity(values["strong_speed_up"])
        text = f"do the work of **{work} single GPUs** ({values['strong_efficiency']:.0%}), {price}"
    return f"{NAMES[setting.model]}: {gpus} {text}"


def advice(setting: Setting, values: dict) -> str:
    """What limits them, or what makes it fit."""
    text = limit(setting, values) if values["fits"] else sparing(setting, values)
    return text.strip()


def law(setting: Setting, values: dict) -> list[str]:
    """Why each curve bends: the batch runs out, and communication takes longer than the computation that hides it."""
    unit, unit_seconds = clock(values["weak_seconds"])
    sent, starts, works = (values[f"weak_{name}_seconds"] / unit_seconds for name in ("byte", "start", "compute"))
    sign = "≤" if sent + starts <= works else ">"
    grow = {
        "full": "Latency grows with the GPUs",
        "hybrid": "All-gathers stay in a node",
        "ddp": "Latency grows with the GPUs",
    }[setting.sharding]
    program = PROGRAMS[setting.program].label
    return [
        f"{_dealt(setting)} Most communication hides if transfer + latency ≤ compute:",
        f"{amount(sent)} + {amount(starts)} {sign} {amount(works)} {unit}",
        f"{grow}. Hidden communication costs too: copies, slower kernels. "
        f"{program}: MFU {values['weak_mfu']:.0%}."
        f"{_weak(values)}{_measured(values)}",
    ]


def _dealt(setting: Setting) -> str:
    """Whether there is a sequence for every GPU."""
    idle = setting.world - setting.batch
    if idle > 0:
        return f"{idle:,} idle: {setting.world:,} GPUs > {setting.batch:,} sequences."
    return f"None is idle: {count(setting.world, 'GPU')} ≤ {setting.batch:,} sequences."


def _weak(values: dict) -> str:
    """Why weak scaling passes 100%, where it does."""
    return (
        " Weak scaling passes 100%, because one GPU alone updates all weights."
        if values["weak_efficiency"] > 1.005
        else ""
    )


def _measured(values: dict) -> str:
    """What a comparable published run kept of the tokens/s of a GPU, from its fewest to its most GPUs."""
    if not values["published"]:
        return ""
    (first, start), (last, end) = values["published"][0], values["published"][-1]
    return f" Measured, weak scaling: {values['published_by']}, {end / start:.0%} from {first} to {last}."


def slips(values: dict) -> list[tuple[float, str]]:
    """Speed-ups that likely mistakes give, and which."""
    n = values["busy"]
    return [
        (n, "as if no GPU waited"),
        (n * values["strong_mfu"], "the share of the peak, not of the throughput of one GPU"),
        (n / 8, "one for each node"),
    ]
