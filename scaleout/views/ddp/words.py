"""What the view `ddp` says: its sentence, the law next to the picture, and the mistakes behind wrong guesses."""

from __future__ import annotations

from scaleout.spec.hardware import COMPUTE_SHARE
from scaleout.spec.program import PROGRAMS
from scaleout.views import lever
from scaleout.views.choices import NAMES
from scaleout.views.ddp.levers import WORTH
from scaleout.views.lever import Lever
from scaleout.words.amounts import count, quantity, took


def sentence(setting, values: dict) -> str:
    """The result, and what causes it."""
    start = f"{NAMES[setting.model]} on {count(setting.ranks, 'GPU')}: a step takes {took(values['step_seconds'])}"
    text = f"{start}. One GPU has nothing to exchange: use two or more."
    if setting.ranks > 1:
        exposed = f"{took(values['exposed_seconds'])} ({values['exposed_percent']:.1f}%)"
        text = (
            f"{start}, with {exposed} of exposed communication. {setting.ranks} GPUs do the work of "
            f"{quantity(values['speed_up'])}."
        )
        text += f" {_cause_words(setting, values)}" if values["states_fit"] else ""
    if values["states_fit"]:
        return text
    extra = " with DDP's buckets" if setting.ranks > 1 else ""
    return (
        f"{text} But the states need {quantity(values['states_gb'])} GB{extra}, and one "
        f"{setting.card.name} has {quantity(values['usable_gb'])} usable GB: use **ZeRO**."
    )


def cause(values: dict) -> tuple[str, float]:
    """What takes most of the communication time, "bytes" or "starts" (latency), and its share."""
    moved, started = values["byte_seconds"], values["start_seconds"]
    name, seconds = ("bytes", moved) if moved >= started else ("starts", started)
    return name, seconds / (moved + started)


def _cause_words(setting, values: dict) -> str:
    """The last bucket where it is most of the exposed communication, as no overlap hides it; else the larger cost."""
    last = values["last_message_seconds"] * (1 if setting.no_sync else setting.accumulation)
    if setting.overlap and values["exposed_percent"] >= 100 * WORTH and last > 0.5 * values["exposed_seconds"]:
        share = min(1, last / values["exposed_seconds"])
        return f"The last bucket is {share:.0%} of that: no backward is left to hide it."
    part, share = cause(values)
    return f"Communication spends {share:.0%} of its time on {part if part == 'bytes' else 'latency'}."


def advice(best: Lever | None, efficiency: float) -> str:
    """The one lever worth trying where the `efficiency` is reached."""
    best = best.giving(f"{best.after.efficiency:.0%} efficiency") if best else None
    return lever.sentence(best, f"No single change here adds two points to the efficiency of {efficiency:.0%}.")


def law(setting, values: dict) -> list[str]:
    """Tokens from which the backward pass, 4NT/R, takes longer than the communication. Both times are the model's: R
    and 1/β, the mean rate of the communication, follow from them. Then what the rule of thumb says."""
    p = setting.ranks
    # 4NT leaves out attention's own matmuls and kernels that move bytes, which makes R lower.
    if p == 1:
        return [
            "Bytes that each of W GPUs sends for n bytes of gradients:",
            "2n(W − 1)/W = 0",
            f"One GPU has nothing to exchange ({PROGRAMS[setting.program].label}).",
        ]
    sent = 2 * (p - 1) / p * values["message_gb"] * (1 if setting.no_sync else setting.accumulation)
    rate = sent / values["communication_seconds"]  # GB/s, starts included
    tflops = values["tokens_needed"] * setting.ratio * rate * p / (2 * (p - 1)) / 1000  # TFLOP/s
    bare = quantity(sent / values["byte_seconds"])
    smaller = f" ÷ {quantity(setting.ratio, 2)}" if setting.ratio > 1 else ""
    left_out = " PowerSGD's own arithmetic is left out." if setting.compression == "powersgd" else ""
    return [
        f"Hidden if 4NT/R ≥ 2(W − 1)/W × 4Nβ{smaller}:",
        f"T ≥ 2Rβ(W − 1)/W{smaller} = {quantity(values['tokens_needed'])}",
        f"tokens per GPU. W = {p}, R = {quantity(tflops)} TFLOP/s ({PROGRAMS[setting.program].label}), "
        f"1/β = {quantity(rate)} GB/s ({bare} without latency); compute at {COMPUTE_SHARE:.0%} of peak: "
        f"{quantity(values['tokens_by_rule'])}.{left_out}",
    ]


def slips(values: dict) -> list[tuple[float, str]]:
    """Shares of the step that likely mistakes give, and the mistakes."""
    names = ("step", "communication", "exposed", "last_message")
    step, sent, waits, last = (values[f"{name}_seconds"] for name in names)
    busy, prompt = step - waits, step - values["straggler_seconds"]
    exposed_step = (
        (prompt - waits - values["slowed_seconds"] + sent) * step / prompt
    )  # without overlap nothing is slowed
    return [
        (100 * last / (busy + last), "as if only the last bucket were exposed"),
        (100 * sent / exposed_step, "as if none of it were hidden"),
        (100 * waits / sent, "a share of the communication, not of the step"),
        (100 * waits / busy, "a share of the compute, not of the step"),
    ]
