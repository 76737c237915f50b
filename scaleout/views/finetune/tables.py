"""Below the picture of the view `finetune`: one change away, layouts, the whole run, figures, and other GPUs."""

from __future__ import annotations

from scaleout.draw.parts import BYTES, sizes
from scaleout.spec.devices import DEVICES
from scaleout.timing.job import PARTS
from scaleout.timing.plan import WORDS
from scaleout.views.finetune import levers, words
from scaleout.views.finetune.setting import LAYOUTS, Setting
from scaleout.words.amounts import amount, quantity, short, took

ACCURACY = "accuracy.html"
MARKS = {"fits": "", "may fit": "may fit", "does not fit": "does not fit"}


def changes(setting: Setting) -> dict:
    """Every change of the lists of levers, each alone."""
    rows = [[name, *_change(setting, setting.other(**change))] for name, change in levers.every(setting).items()]
    return {
        "title": "One change away",
        "blocks": [("table", ["change", "memory", "tokens/s", ""], rows)],
    }


def _change(setting: Setting, after: Setting) -> list[str]:
    rate = f"{after.rate / setting.rate - 1:+.0%}".replace("-", "−") if after.verdict != "does not fit" else "–"
    return [amount(after.peak), rate, MARKS[after.verdict]]


def layouts(setting: Setting) -> dict:
    """A copy on each GPU, sharded, and offloaded, the fastest that fits first."""
    order = ("fits", "may fit", "does not fit")
    found = sorted(setting.layouts.items(), key=lambda pair: (order.index(pair[1].verdict), -pair[1].rate))
    alone = "one GPU" if setting.gpus == 1 else LAYOUTS["ddp"]
    names = LAYOUTS | {"ddp": alone} | ({"offload": "offloaded to CPU (FSDP)"} if setting.gpus == 1 else {})
    rows = [[names[name], amount(one.peak), f"{quantity(one.rate)}", MARKS[one.verdict]] for name, one in found]
    host = [sum(one.account.host.values()) for _, one in found if one.account.host]
    text = [("words", f"Offloaded: {amount(host[0])} of CPU memory per GPU.")] if host else []
    return {"title": "Layouts", "blocks": [("table", ["layout", "memory", "tokens/s", ""], rows), *text]}


def whole_run(setting: Setting, tokens: float, price: float) -> dict:
    """Hours and price."""
    cost = words.cost(setting, tokens, price)
    rows = [
        ["time", took(3600 * cost.hours)],
        ["GPU-hours", quantity(cost.gpu_hours)],
        [f"at {price:g} EUR per GPU-hour", f"{quantity(cost.price)} EUR"],
    ]
    text = f"{short(tokens)} tokens at {quantity(setting.rate)} tokens/s. Change tokens and price under More."
    return {"title": "The whole run", "blocks": [("table", ["", ""], rows), ("words", text)]}


def figures(setting: Setting) -> dict:
    """Step time and peak memory by part."""
    seconds = setting.step
    rows = [[WORDS[part], took(seconds.parts[part])] for part in PARTS if seconds.parts[part] > 5e-4 * seconds.seconds]
    rows.append(["**step time**", f"**{took(seconds.seconds)}**"])
    kinds = [[part.name, amount(size)] for part, size in sizes(BYTES, setting.account.peak).items() if size]
    kinds.append([f"**total**, of {amount(setting.usable)}", f"**{amount(setting.peak)}**"])
    left_out = f"Not in these figures yet: {'; '.join(setting.left_out)}." if setting.left_out else ""
    return {
        "title": "Where the time goes, and the memory of each GPU at its peak",
        "blocks": [
            *[("words", left_out)] * bool(left_out),
            ("table", ["", ""], rows),
            ("words", setting.band.why),
            ("link", "how good these numbers are", ACCURACY),
            ("table", ["", ""], kinds),
        ],
    }


def cards(setting: Setting) -> dict:
    """The same job on every GPU of the datasheets."""
    rows = []
    for key, device in DEVICES.items():
        one = setting.other(device=key)
        fits = MARKS[one.verdict] or f"up to {one.largest}"
        rate = quantity(one.rate) if one.verdict != "does not fit" else "–"
        rows.append([device.name, rate, fits])
    return {"title": "The same job on other GPUs", "blocks": [("table", ["GPU", "tokens/s", "micro-batch"], rows)]}
