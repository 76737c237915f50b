"""What the view `tensor` says: its sentence, its formula, why a step is not possible, and what a wrong guess counts."""

from __future__ import annotations

from scaleout.collectives.tensor import HALVES, MEGATRON
from scaleout.views.choices import NAMES
from scaleout.words.amounts import amount, took


def sentence(setting, values: dict) -> str:
    """The bytes sent and the exposed communication, or why more is sent than necessary."""
    start = f"{NAMES[setting.model]} on {setting.tp} H100s:"
    total, waits = took(values["seconds"]), took(values["exposed_seconds"])
    if values["sent_mb"] == 0:
        return f"{start} with copies of all four matrices, nothing is sent, and each GPU does all of the work: {total}."
    share = f"{values['exposed_percent']:.0f}%"
    cost = f"each sends **{amount(setting.sent)}** per block, and waits {waits} of {total} ({share})."
    wrong = next((join for join in setting.block.joins if not join.legal), None)
    return f"{start} {wrong.reason}; {cost}" if wrong else f"{start} {cost}"


def law(setting, values: dict) -> list[str]:
    """Bytes sent, as so many all-reduces of x, or so many halves of one."""
    x = setting.all_reduce_bytes * setting.tp / (2 * (setting.tp - 1))
    halves = setting.sequence
    count = f"{values['all_reduces'] * (2 if halves else 1):.3g}"
    ring = "(t − 1)/t" if halves else "2(t − 1)/t"
    limit_words = ", the model's maximum" if setting.tokens < setting.seq else ""
    sizes = f"s = {setting.tokens:,}{limit_words}, h = {setting.shape.hidden:,}"
    definitions = f"{sizes}, so x has s·h·2 bytes, {amount(x)}; t = {setting.tp}."
    if halves:
        definitions += " An all-reduce is a reduce-scatter and an all-gather."
    if halves and setting.cuts == MEGATRON:
        definitions += " Two all-gathers are repeated in the backward pass, for the weights' gradients."
    return ["Each GPU sends, forward and backward:", f"{count} × {ring} × x = {amount(setting.sent)}", definitions]


def troubles(setting) -> dict[str, str]:
    """By half, in a few words, why what one operation gives cannot be used as it is by the next."""
    words_by_half: dict[str, str] = {}
    for join in setting.block.joins:
        if not join.legal:
            words_by_half.setdefault(join.half, _trouble(join, "SwiGLU" if setting.shape.gated_mlp else "GeLU"))
    return words_by_half


def _trouble(join, function: str) -> str:
    if join.at == "between":
        return f"the next matrix reads all {'tokens' if join.gives.value == 'S(1)' else 'columns'}"
    if join.gives.value == "S(1)":
        return "each query needs all keys and values"
    if join.half == "attention":
        return "the scores need the sum first"
    return f"{function}(a + b) ≠ {function}(a) + {function}(b)"


def slips() -> list[tuple[float, str]]:
    """All-reduces that likely mistakes count."""
    matrices = sum(map(len, HALVES.values()))
    return [
        (1, "one for the whole block, and none in the backward pass"),
        (2, "those of the forward pass alone: the backward pass needs as many"),
        (2 * matrices, "one for each split matrix, forward and backward"),
        (6, "one for each of six matrices, with Q, K and V apart"),
        (12, "one for each of six matrices, forward and backward"),
    ]
