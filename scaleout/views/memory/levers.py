"""Which lever to move: what lowers the peak of a setting of the view `memory`, each tried before it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scaleout.views.choices import NODE

LEAST_SAVING = 0.05  # share of the peak that a lever must take off to be named

Levers = Iterator[tuple[str, dict]]  # words, and the parameters that it changes
STATES = {"optimizer": 1, "master": 1, "gradients": 2, "weights": 3}  # by the ZeRO stage that splits it


@dataclass(frozen=True)
class Advice:
    """A lever: the parameters that it changes, words for it, the peak that it gives, and whether that fits."""

    change: dict
    words: str
    peak_bytes: int
    fits: bool


@dataclass(frozen=True)
class Question:
    """What is asked: the view's parameters, what others give, and the places of its numbers (batch, seq, gpus)."""

    params: dict
    peak: Callable[[dict], int]  # bytes of other parameters
    room: int  # bytes of the largest peak that fits
    places: Mapping[str, Sequence[int]]

    def fits(self, peak_bytes: int) -> bool:
        return peak_bytes <= self.room

    def try_out(self, words: str, change: dict) -> Advice:
        """The lever with what it gives."""
        size = self.peak({**self.params, **change})
        return Advice(change, words, size, self.fits(size))

    def number(self, name: str, upward: bool, fixed: dict) -> int | None:
        """The place of a number nearest to today's, upward or downward, at which it fits; the last one where none
        does, and half or twice of it where it fits today. fixed: what else changes. None at the control's end."""
        current = int(self.params[name])
        candidates = sorted(
            (n for n in self.places[name] if (n > current if upward else n < current)), reverse=not upward
        )
        if not candidates:
            return None
        if self.fits(self.peak(self.params)):
            return next((n for n in candidates if max(n / current, current / n) >= 2), candidates[-1])
        kind = type(self.params[name])  # a select's values are texts
        return self._nearest(
            [current, *candidates], upward, lambda n: self.peak({**self.params, **fixed, name: kind(n)})
        )

    def _nearest(self, places: list[int], upward: bool, peak: Callable[[int], int]) -> int:
        """The first place after the first at which it fits, or the last.

        A peak is a maximum of lines over sequences, tokens or 1 / GPUs, so that the chord from a place that does not
        fit to one that does lies above it: where it meets the room it fits, and seldom much before.
        """
        low, high = 0, len(places) - 1
        low_peak, high_peak = peak(places[low]), peak(places[high])
        if high_peak > self.room or low_peak <= self.room:
            return places[high] if high_peak > self.room else places[1]
        axis = [1 / n if upward else n for n in places]
        while high - low > 1:
            meets = axis[low] + (axis[high] - axis[low]) * (low_peak - self.room) / (low_peak - high_peak)
            guess = next(i for i in range(low + 1, high + 1) if axis[i] <= meets or i == high - 1)
            size = peak(places[guess])
            if size <= self.room:
                high, high_peak = guess, size
            else:
                low, low_peak = guess, size
        return places[high]


def advice(question: Question, kinds: dict[str, int]) -> Advice | None:
    """The mildest lever on the largest kind that makes it fit, or on the next kind; where none does, the one that
    takes most off the largest kind on which there is one. At least LEAST_SAVING; None where nothing takes that much.

    kinds: bytes by kind at the peak.
    """
    peak_bytes, best = sum(kinds.values()), None
    for kind in sorted(
        (kind for kind in kinds if kinds[kind] > LEAST_SAVING * peak_bytes), key=lambda kind: -kinds[kind]
    ):
        tries = []
        for words, change in _levers(kind, question):
            tried = question.try_out(words, change)
            if tried.peak_bytes <= (1 - LEAST_SAVING) * peak_bytes:
                if tried.fits:
                    return tried
                tries.append(tried)
        best = best or min(tries, key=lambda tried: tried.peak_bytes, default=None)
    return best


def _levers(kind: str, question: Question) -> Levers:
    """Of one kind, the mildest first."""
    params = question.params
    if kind in STATES or kind == "temporaries":
        yield from _split(STATES.get(kind, 1), question)
        if params["optimizer"] == "adamw" and kind == "optimizer":
            yield "AdamW in 8 bits", {"optimizer": "adamw-8bit"}
        if params["adapter"] == "none" and kind in STATES:
            yield "LoRA, which trains adapters only", {"adapter": "lora"}
    if kind not in STATES:
        yield from _smaller(kind, question)


def _split(stage: int, question: Question) -> Levers:
    """ZeRO from the stage that splits the kind, over the GPUs that there are, or a node of them; then over more."""
    current, have = int(question.params["zero"]), question.params["gpus"]
    node = {"gpus": NODE} if have == 1 else {}
    for next_stage in range(max(stage, current + 1), 4):
        yield f"ZeRO-{next_stage} over {node.get('gpus', have):,} GPUs", {"zero": str(next_stage), **node}
    for next_stage in sorted({current, 3}):
        change = {"zero": str(next_stage)} if next_stage > current else {}
        count = question.number("gpus", True, change) if next_stage >= stage else None
        if count:
            yield (f"ZeRO-{next_stage} over " if change else "") + f"{count:,} GPUs", {**change, "gpus": count}


def _smaller(kind: str, question: Question) -> Levers:
    """Activations, logits and temporaries: a better kernel, recomputing, fewer sequences, shorter ones."""
    params = question.params
    if kind != "logits":
        if params["attention"] == "naive":
            yield "the fused attention kernel", {"attention": "sdpa"}
        if params["checkpointing"] != "full":
            yield "full checkpointing", {"checkpointing": "full"}
    count = question.number("batch", False, {})
    if count:
        yield f"{count} sequence{'s' if count > 1 else ''} a GPU", {"batch": count}
    count = question.number("seq", False, {})
    if count:
        yield f"{count:,} tokens a sequence", {"seq": str(count)}
