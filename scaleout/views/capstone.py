"""The scaling explorer: efficiency, hours, energy and price of a training run from 1 GPU to thousands."""

from __future__ import annotations

from math import floor, log10

from scaleout.draw import svg
from scaleout.draw.plot import Axis, Plane
from scaleout.spec.hardware import COMPUTE_SHARE, DEVICES, GPU_WATTS
from scaleout.spec.transformer import PRESETS
from scaleout.timing import scaling
from scaleout.timing.price import EXAMPLE, run_cost
from scaleout.views import guess, number, select, slider
from scaleout.views.capstone_curves import Curves, Setting, curves, fits, held, nodes_of
from scaleout.views.capstone_levers import MOST, SEQUENCES, SHARDINGS, limit, sequences, sparing
from scaleout.views.capstone_published import Series, near
from scaleout.views.choices import LINKS, NAMES

TITLE = "From one GPU to thousands"

BILLION = 1e9  # tokens that hours, energy and price are of
MODELS = tuple(key for key in PRESETS if key != "zero-1t")
WIDTH, LEFT, RIGHT = 480, 46, 20
X_TICKS = [(4**k, f"{4**k:,}") for k in range(7)]
OWN = (1, 2, 4, 8)  # numbers of processes that a reader can type a rate for

# What the lower chart can show: the label of its axis
LOWER = {
    "hours": "hours for a billion tokens",
    "price": f"price of a billion tokens, {EXAMPLE.currency}",
    "energy": "kWh for a billion tokens",
    "mfu": "MFU, %",
}

CONTROLS = (
    guess("512 GPUs, the global batch of one: how many times as fast as one GPU are they?", "strong_speed_up",
          lo=0, hi=512, step=1),
    select("model", "Model", "llama-3-8b", [(key, NAMES[key]) for key in MODELS]),
    select("device", "GPU", "h100-sxm", [(key, device.name) for key, device in DEVICES.items()]),
    slider("world", "GPUs", 512, 1, MOST, log=True),
    select("link", "Joined by", "node-ib", [(key, words) for key, (*_, words) in LINKS.items()]),
    select("sharding", "Sharding", "full", list(SHARDINGS.items())),
    slider("batch", "Global batch, sequences", 512, 1, SEQUENCES, log=True),
    slider("each", "Sequences per GPU and pass, at most", 4, 1, 64, log=True),
    select("seq", "Tokens per sequence", "4096", [(str(2**k), f"{2**k:,}") for k in range(9, 15)]),
    select("checkpointing", "Checkpointing", "none", [("none", "none"), ("full", "full: recompute each block")]),
    slider("reached", "Share of the GPU's peak that compute reaches", round(100 * COMPUTE_SHARE), 5, 90, 5, unit="%",
           help="An assumption: a step on one GPU of yours gives it."),
    select("lower", "The lower chart shows", "price", list(LOWER.items())),
    number("price", "Price of one GPU for an hour", EXAMPLE.gpu_hour, 0.0, 1000.0, 0.1, unit=EXAMPLE.currency,
           help="An example, of no provider: look up what you would pay."),
    number("watts", "Power of one GPU with its share of the node", GPU_WATTS, 0.0, 10_000.0, 10.0, unit="W",
           help="An eighth of a DGX H100 at most. The GPU's own limit is only a part of it."),
    *(number(f"own_{n}", f"Your own run on {n} process{'es' if n > 1 else ''}", 0.0, 0.0, 1e9, 1.0, unit="tokens/s",
             help="0: none. The first of them counts as 100%." if n == 1 else "") for n in OWN),
)  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """Efficiency against GPUs, strong and weak, DDP beside them; beneath, hours, price, energy or MFU."""
    own = {n: params.pop(f"own_{n}") for n in OWN}
    lower, rates = params.pop("lower"), (params.pop("watts"), params.pop("price"))
    setting = Setting(**{**params, "link": LINKS[params["link"]], "seq": int(params["seq"])})
    found = curves(setting)
    points = own_points({n: rate for n, rate in own.items() if rate})
    batch, count = setting.passes(setting.world)
    published = near(setting, batch * count * setting.tokens)
    values = _values(setting, found, rates) | {
        "own": [[n, share] for n, share in points.items()],
        "published": [[n, share] for n, share in published.beside(found.weak).items()] if published else [],
    }
    return {
        "svg": _picture(setting, found, points, published, lower, rates),
        "sentence": _sentence(setting, values, published),
        "values": values,
    }


def own_points(rates: dict[int, float]) -> dict[int, float]:
    """Efficiency by number of processes of the reader's own runs; the fewest count as 1. {} without any."""
    return scaling.efficiency(rates) if rates else {}


def _values(setting: Setting, found: Curves, rates: tuple[float, float]) -> dict:
    n = setting.world
    out = {}
    for name, point in (("strong", found.strong[n]), ("weak", found.weak[n])):
        cost = run_cost(BILLION, point.tokens_per_second, n, *rates)
        out |= {
            f"{name}_{key}": value for key, value in {
                "efficiency": point.efficiency, "speed_up": point.efficiency * n, "seconds": point.seconds,
                "tokens_per_second": point.tokens_per_second, "mfu": point.mfu, "exposed": point.exposed,
                "hours": cost.hours, "gpu_hours": cost.gpu_hours, "kwh": cost.kwh, "price": cost.price,
            }.items()
        }  # fmt: skip
    return out | {
        "ddp_efficiency": found.ddp[n].efficiency if found.ddp else None,
        "ddp_fits": fits(setting, "ddp"), "peak_gb": held(setting, setting.sharding) / 1e9,
        "fits": fits(setting, setting.sharding),
        "busy": min(n, setting.batch), "sequences_each": setting.passes(n)[0] * setting.passes(n)[1],
        "weak_batch": found.weak_batch[n],
        "curve": [[m, found.strong[m].efficiency, found.weak[m].efficiency] for m in found.weak],
    }  # fmt: skip


# --- the sentence ---------------------------------------------------------------------------------------------


def _sentence(setting: Setting, values: dict, published: Series | None) -> str:
    n, name = setting.world, NAMES[setting.model]
    nodes, gpus = nodes_of(n, setting.link[0])
    where = f"{n:,} {DEVICES[setting.device].name}" + (f" in {nodes:,} nodes of {gpus}" if min(nodes, gpus) > 1 else "")
    start = (
        f"{name} on {where}, {SHARDINGS[setting.sharding]}: {svg.quantity(values['strong_tokens_per_second'])} "
        f"tokens/s, MFU {values['strong_mfu']:.0%}. "
    )
    cost = (
        f"A billion tokens take {svg.quantity(values['strong_hours'])} hours, "
        f"{svg.quantity(values['strong_gpu_hours'])} GPU-hours, {svg.quantity(values['strong_kwh'])} kWh, "
        f"{svg.quantity(values['strong_price'])} {EXAMPLE.currency}. "
    )
    both = (
        f"Sharing {sequences(setting.batch)} they do the work of {svg.quantity(values['strong_speed_up'])} GPUs "
        f"(strong efficiency {values['strong_efficiency']:.0%}); at {sequences(values['sequences_each'])} a GPU "
        f"whatever their number, weak efficiency is {values['weak_efficiency']:.0%}"
        f"{' (one GPU alone would update all weights)' if values['weak_efficiency'] > 1.005 else ''}. Upper bounds: no "
        f"GPU is late here, and no kernel slower for being small. {_measured(published)}"
    ) if n > 1 else ""  # fmt: skip
    return (start + cost + both + limit(setting, values, LINKS["node-ib"]) + sparing(setting, values)).strip()


def _measured(published: Series | None) -> str:
    """What a comparable published run kept of the tokens/s of a GPU, from its fewest to its most GPUs."""
    if not published:
        return ""
    first, last = min(published.rates), max(published.rates)
    return f"Measured, weak: {published.who} kept {published.shares[last]:.0%} from {first} to {last} GPUs. "


# --- the picture ----------------------------------------------------------------------------------------------


def _picture(
    setting: Setting, found: Curves, points: dict[int, float], published: Series | None, lower: str, rates
) -> str:
    n = setting.world
    copies = f"DDP, weak: {found.ddp[n].efficiency:.0%}" if found.ddp else "DDP: does not fit one GPU"
    keys = [
        ("c1", f"strong, at most: {found.strong[n].efficiency:.0%}"),
        ("c3", f"weak, at most: {found.weak[n].efficiency:.0%}"), ("c2", copies), ("muted", "ideal"),
    ]  # fmt: skip
    if published:
        keys.append(("c6", f"{published.who}, measured"))
    if points:
        keys.append(("c4", f"your runs on {', '.join(str(m) for m in points)}"))
    legend, height = svg.legend(LEFT, 4, WIDTH - LEFT - 8, keys, 2)
    upper = Plane(LEFT, height + 30, WIDTH - LEFT - RIGHT, 160, Axis(1, MOST, log=True), Axis(0, 110))
    parts = [legend, upper.grid("GPUs", "efficiency, %: tokens/s of a GPU, one GPU alone = 100", X_TICKS,
                                [(20 * k, str(20 * k)) for k in range(6)])]  # fmt: skip
    parts.append(upper.curve([(1, 100), (MOST, 100)], "muted", 1.5, "6 4", "ideal: 100%"))
    lines = (("ddp", "c2", "3 3", "DDP, weak"), ("weak", "c3", "", "weak"), ("strong", "c1", "", "strong"))
    for kind, colour, dash, words in lines:
        curve = [(m, 100 * one.efficiency) for m, one in getattr(found, kind).items()]
        parts.append(upper.curve(curve, colour, 2 if dash else 2.5, dash, words))
    parts.append(upper.rule(n))
    for kind, colour, *_ in lines[1:]:
        share = getattr(found, kind)[n].efficiency
        parts.append(upper.dots([(n, 100 * share)], colour, 4.5, f"{kind}, {n:,} GPUs: {share:.1%}"))
    if published:
        parts.append(_published(upper, published, published.beside(found.weak)))
    for m, share in points.items():
        parts.append(upper.dots([(m, 100 * share)], "c4", 4.5, f"your run on {m}: {share:.1%}"))
    body, bottom = _lower(found, n, lower, rates, upper.bottom + 64)
    label = (
        f"Efficiency from 1 to {MOST:,} GPUs: strong {found.strong[n].efficiency:.0%}, weak "
        f"{found.weak[n].efficiency:.0%} at {n:,}; beneath, {LOWER[lower]}."
    )
    return svg.figure(WIDTH, bottom, "".join([*parts, body]), label)


def _published(plane: Plane, one: Series, points: dict[int, float]) -> str:
    """Small dots on a dotted line, each with what it kept of the first."""
    out = [plane.curve([(m, 100 * at) for m, at in points.items()], "c6", 1.5, "2 3", f"{one.who}, measured")]
    for m, at in points.items():
        title = f"{one.who}, measured: {one.shares[m]:.1%} on {m}, of {min(points)}"
        out.append(plane.dots([(m, 100 * at)], "c6", 3.5, title))
    return "".join(out)


def amounts(sizes: dict, lower: str, rates: tuple[float, float]) -> list[tuple[int, float]]:
    """(GPUs, what the lower chart shows) of a curve."""
    if lower == "mfu":
        return [(m, 100 * one.mfu) for m, one in sizes.items()]
    of = {"hours": "hours", "price": "price", "energy": "kwh"}[lower]
    return [(m, getattr(run_cost(BILLION, one.tokens_per_second, m, *rates), of)) for m, one in sizes.items()]


def _lower(found: Curves, n: int, lower: str, rates: tuple[float, float], top: float) -> tuple[str, float]:
    """The lower chart and where it ends. Logarithmic, but for MFU."""
    strong, weak = (amounts(sizes, lower, rates) for sizes in (found.strong, found.weak))
    every = [value for _, value in (*strong, *weak) if value > 0]
    if not every:
        words = f"{LOWER[lower]}: 0, because what one GPU takes is set to 0"
        return svg.text(LEFT, top, words, fill="muted"), top + 10
    if lower == "mfu":
        axis = Axis(0, svg.ticks(1.25 * max(every))[-1])
    else:
        axis = Axis(10.0 ** floor(log10(min(every))), 10.0 ** (floor(log10(max(every))) + 1), log=True)
    plane = Plane(LEFT, top, WIDTH - LEFT - RIGHT, 120, Axis(1, MOST, log=True), axis)
    parts = [plane.grid("GPUs", LOWER[lower], X_TICKS)]
    for curve, colour, words in ((weak, "c3", "weak"), (strong, "c1", "strong")):
        at = dict(curve)[n]
        parts.append(plane.curve(curve, colour, 2.5, "", words))
        parts.append(plane.dots([(n, at)], colour, 4.5, f"{words}, {n:,} GPUs: {svg.quantity(at)}"))
    return "".join([*parts, plane.rule(n)]), plane.bottom + 42
