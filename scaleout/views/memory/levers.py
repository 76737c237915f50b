"""Which lever to move: what lowers the peak of a setting of the view `memory`, each tried before it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from scaleout.views import lever
from scaleout.views.choices import NODE
from scaleout.views.lever import Change, Lever
from scaleout.words.amounts import count

LEAST_SAVING = 0.05  # share of the peak that a lever must take off to be named

Places = Mapping[str, Sequence[int]]  # values of the controls that are numbers: batch, seq, gpus
STATES = {"optimizer": 1, "master": 1, "gradients": 2, "weights": 3}  # by the ZeRO stage that splits it


def advice(setting, places: Places) -> Lever | None:
    """The mildest lever on the largest kind that makes it fit, or on the next kind; where none does, the one that
    takes most off the largest kind on which there is one. At least LEAST_SAVING; None where nothing takes that much.
    """
    kinds, best = setting.account.peak, None
    peak_bytes = sum(kinds.values())
    large = [kind for kind in kinds if kinds[kind] > LEAST_SAVING * peak_bytes]
    for kind in sorted(large, key=lambda kind: -kinds[kind]):
        saving = []
        for candidate in lever.tried(setting, _levers(kind, setting, places)):
            if candidate.after.peak_bytes <= (1 - LEAST_SAVING) * peak_bytes:
                if candidate.after.fits:
                    return candidate
                saving.append(candidate)
        best = best or min(saving, key=lambda candidate: candidate.after.peak_bytes, default=None)
    return best


def _number(setting, places: Places, name: str, upward: bool, fixed: dict) -> int | None:
    """The place of a number nearest to today's, upward or downward, at which it fits; the last one where none does,
    and half or twice of it where it fits today. fixed: what else changes. None at the control's end."""
    current = getattr(setting, name)
    candidates = sorted((n for n in places[name] if (n > current if upward else n < current)), reverse=not upward)
    if not candidates:
        return None
    if setting.fits:
        return next((n for n in candidates if max(n / current, current / n) >= 2), candidates[-1])

    def peak(n: int) -> int:
        return setting.other(**fixed, **{name: n}).peak_bytes

    return _nearest([current, *candidates], upward, peak, setting.usable)


def _nearest(places: list[int], upward: bool, peak: Callable[[int], int], room: int) -> int:
    """The first place after the first at which it fits, or the last.

    A peak is a maximum of lines over sequences, tokens or 1 / GPUs, so that the chord from a place that does not fit to
    one that does lies above it: where it meets the room it fits, and seldom much before.
    """
    low, high = 0, len(places) - 1
    low_peak, high_peak = peak(places[low]), peak(places[high])
    if high_peak > room or low_peak <= room:
        return places[high] if high_peak > room else places[1]
    axis = [1 / n if upward else n for n in places]
    while high - low > 1:
        meets = axis[low] + (axis[high] - axis[low]) * (low_peak - room) / (low_peak - high_peak)
        guess = next(i for i in range(low + 1, high + 1) if axis[i] <= meets or i == high - 1)
        size = peak(places[guess])
        if size <= room:
            high, high_peak = guess, size
        else:
            low, low_peak = guess, size
    return places[high]


def _levers(kind: str, setting, places: Places) -> Iterator[Change]:
    """Of one kind, the mildest first."""
    if kind in STATES or kind == "temporaries":
        yield from _split(STATES.get(kind, 1), setting, places)
        if setting.optimizer == "adamw" and kind == "optimizer":
            yield "8-bit AdamW", {"optimizer": "adamw-8bit"}
        if setting.adapter == "none" and kind in STATES:
            yield "LoRA, which trains only adapters", {"adapter": "lora"}
    if kind not in STATES:
        yield from _smaller(kind, setting, places)


def _split(stage: int, setting, places: Places) -> Iterator[Change]:
    """ZeRO from the stage that splits the kind, over the GPUs that there are, or a node of them; then over more."""
    current, have = setting.zero, setting.gpus
    node = {"gpus": NODE} if have == 1 else {}
    for next_stage in range(max(stage, current + 1), 4):
        yield f"ZeRO-{next_stage} over {node.get('gpus', have):,} GPUs", {"zero": next_stage, **node}
    for next_stage in sorted({current, 3}):
        change = {"zero": next_stage} if next_stage > current else {}
        gpus = _number(setting, places, "gpus", True, change) if next_stage >= stage else None
        if gpus:
            yield (f"ZeRO-{next_stage} over " if change else "") + f"{gpus:,} GPUs", {**change, "gpus": gpus}


def _smaller(kind: str, setting, places: Places) -> Iterator[Change]:
    """Activations, logits and temporaries: a better kernel, recomputing, fewer sequences, shorter ones."""
    if kind != "logits":
        if setting.attention == "naive":
            yield "the fused attention kernel", {"attention": "sdpa"}
        if setting.checkpointing != "full":
            yield "full checkpointing", {"checkpointing": "full"}
    batch = _number(setting, places, "batch", False, {})
    if batch:
        yield f"{count(batch, 'sequence')} per GPU", {"batch": batch}
    tokens = _number(setting, places, "seq", False, {})
    if tokens:
        yield f"{tokens:,} tokens per sequence", {"seq": tokens}
