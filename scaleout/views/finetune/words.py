"""The texts of the view `finetune`: whether the job fits, how fast it is, what to try, and what has no effect."""

from __future__ import annotations

from scaleout.spec.hardware import GPU_WATTS
from scaleout.timing.price import RunCost, run_cost
from scaleout.views import lever
from scaleout.views.finetune import levers
from scaleout.views.finetune.setting import METHODS, Setting
from scaleout.words.amounts import amount, quantity, short, took

WAYS = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}


def gb(size: float) -> str:
    """Bytes in GB: a decimal below a hundred."""
    return f"{size / 1e9:,.1f}" if size < 99.95e9 else f"{size / 1e9:,.0f}"


def card(setting: Setting) -> str:
    """ "one RTX 4090", "8 H100"."""
    name = " ".join(setting.card.name.split()[:-2]).removesuffix(" SXM")
    return f"{'one' if setting.gpus == 1 else setting.gpus} {name}"


def sentence(setting: Setting, tokens: float) -> str:
    """Whether it fits, the largest micro-batch, and how long `tokens` take."""
    start = f"{setting.name}, {WAYS[setting.method]} on {card(setting)}: "
    sizes = f"{gb(setting.peak)} of {gb(setting.usable)} GB"
    if setting.verdict == "does not fit":
        over = f"{gb(setting.peak)} GB, and {gb(setting.usable)} are usable"
        return f"{start}**it does not fit:** {over}."
    fits = "it fits" if setting.fits else "it may fit"
    rate = f"{quantity(setting.rate)} tokens/s ± {setting.band.share:.0%}"
    most = f"up to micro-batch {setting.largest:,}" if setting.fits else "if the allocator wastes little"
    run = cost(setting, tokens, 0.0)
    return f"{start}**{fits}: {sizes},** {most}. {rate}: {short(tokens)} tokens in {took(3600 * run.hours)}."


def cost(setting: Setting, tokens: float, price: float) -> RunCost:
    """Of a run on so many tokens."""
    return run_cost(tokens, setting.rate, setting.gpus, GPU_WATTS, price)


def advice(setting: Setting) -> str:
    """The lever worth trying now."""
    otherwise = f"No change here gains {levers.GAIN:.0%}." if setting.fits else "No change here makes it fit."
    return lever.sentence(levers.best(setting), otherwise)


def notes(setting: Setting, pasted: bool) -> dict:
    """What is said of controls that do not act on what is chosen."""
    found = {"model": {"off": "config.json gives the model: empty its box"}} if pasted else {}
    if setting.program != setting.runs:
        found["program"] = {"note": "Liger's kernels are priced for Llama's modules only: priced without them"}
    if setting.runs == "liger":
        found["loss"] = {"off": "Liger makes the loss in chunks"}
    if setting.fused and setting.targets == "q+v" and setting.method != "full":
        found["targets"] = {"note": "q, k and v are one matrix here, which is adapted whole"}
    if setting.gpus == 1 and setting.layout != "offload":
        found["layout"] = {"note": "One GPU has nothing to shard: only the offload changes anything."}
    if setting.card.half == "fp16":
        name = " ".join(setting.card.name.split()[:-2])
        found["device"] = {"note": f"{name} has no bf16: train in fp16 with loss scaling. Both have 16 bits."}
    only = {"precision": ("full",), "rank": ("lora", "qlora"), "targets": ("lora", "qlora"), "unquantized": ("qlora",)}
    for name, methods in only.items():
        if setting.method not in methods:
            found[name] = {"note": f"Changes only the memory of {' and '.join(WAYS[method] for method in methods)}."}
    return found


def label(setting: Setting) -> str:
    """What the picture shows, for who does not see it."""
    sizes = ", ".join(f"{name} {amount(one.peak)}" for name, one in zip(METHODS.values(), setting.methods.values(),
                                                                     strict=True))  # fmt: skip
    return (
        f"A grid of sequence lengths and micro-batches on {card(setting)}: tokens per second where a job fits. Below, "
        f"the peak memory at {setting.tokens:,} tokens and micro-batch {setting.batch}: {sizes}; "
        f"{amount(setting.usable)} are usable."
    )
