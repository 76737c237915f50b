"""Which files are held out, and which window of the text every sequence of a training run is.

Both are pure functions: of the files' names and sizes, and of (seed, number of the sequence). So a run that stops goes
on with the sequence that comes next, whatever number of ranks it then has, and no list of an epoch's windows is stored.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from scaleout.spec import checks

_MASK = (1 << 64) - 1
_ROUNDS = 4  # of a Feistel network; Luby and Rackoff 1988: four are enough with a good round function


def share_of(name: str) -> float:
    """A number from 0 up to 1 that depends on a name only: where its SHA-256 begins."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:7], "big") / (1 << 56)


def split(sizes: dict[str, int], share: float, least: int = 1) -> dict[str, int]:
    """{name of a file: bytes at its end that are held out}, for {name: bytes} of a text.

    The held-out part has at least `share` of the bytes and at least `least` bytes, and less than twice as much. Whole
    files are taken in the order of the SHA-256 of their names until that is reached, so that a new or longer file
    changes few others. A file that alone has too many bytes is skipped, and so is the largest file. If the others are
    not enough, for example if there is only one file, the end of the largest file is added.

    Raises ValueError for a share that is not above 0 and below 1, and where `least` is more than half the text.
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise ValueError(f"the share of the text held out must be above 0 and below 1, not {share!r}")
    total = sum(sizes.values())
    if 2 * least > total:
        raise ValueError(
            f"the text has {total:,} bytes, and one validation batch takes {least:,}, of which training "
            "wants as many: use a larger --dataset, or a smaller --batch or --seq"
        )
    ranked = sorted(sizes, key=lambda name: (share_of(name), name))
    largest, wanted = max(reversed(ranked), key=sizes.get), max(math.ceil(share * total), least)
    tails, lacking = {}, wanted
    for name in ranked:
        if lacking > 0 and name != largest and 0 < sizes[name] <= wanted:
            tails[name] = sizes[name]
            lacking -= sizes[name]
    return tails | ({largest: lacking} if lacking > 0 else {})


def _mixed(value: int) -> int:
    """64 bits from 64 bits, each of which depends on all: the finalizer of SplitMix64 (Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permuted(index: int, count: int, key: int) -> int:
    """Place `index` of a permutation of range(count) that `key` picks, computed without the other places.

    A Feistel network is a permutation of an even number of bits whatever its rounds do; a place that falls beyond
    count walks on until it is inside (Black and Rogaway 2002). ValueError unless 0 <= index < count.
    """
    if not 0 <= index < count:
        raise ValueError(f"index {index} is not in a permutation of {count}")
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    place = index
    while True:
        high, low_half = place >> half, place & low
        for turn in range(_ROUNDS):
            high, low_half = low_half, high ^ (_mixed(_mixed(key + turn) ^ low_half) & low)
        place = high << half | low_half
        if place < count:
            return place


@dataclass(frozen=True)
class Order:
    """The windows of a text of `length` bytes in the order in which they are trained on.

    A window is `seq` tokens and the one after them. An epoch cuts the text into windows from an offset of its own and
    visits each once, in an order of its own; both depend on seed and epoch. Raises ValueError where the text is too
    short for one window at any offset.
    """

    length: int
    seq: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("seq", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if self.windows < 1:
            raise ValueError(f"the text holds {self.length} bytes: it must hold {2 * self.seq} or more, two sequences")

    @property
    def windows(self) -> int:
        """Windows of an epoch."""
        return self.length // self.seq - 1

    def _key(self, epoch: int) -> int:
        return _mixed(_mixed(self.seed) ^ epoch)

    def offset(self, epoch: int) -> int:
        """Bytes before an epoch's first window, below `seq`."""
        return _mixed(self._key(epoch) ^ _MASK) % self.seq

    def start(self, sequence: int) -> int:
        """First byte of the window that is sequence number `sequence` of the run, over all epochs and ranks."""
        epoch, index = divmod(sequence, self.windows)
        return self.offset(epoch) + self.seq * permuted(index, self.windows, self._key(epoch))

    def starts(self, step: int, batch: int, rank: int = 0, world: int = 1) -> list[int]:
        """First bytes of rank `rank`'s share of step `step`: `batch` sequences over all ranks, in equal parts.

        The parts of ranks 0, 1, ... joined are the same list for every world. ValueError where world does not divide
        the batch.
        """
        if batch % world:
            raise ValueError(f"{world} ranks do not divide a batch of {batch} sequences: use one of {divisors(batch)}")
        share = batch // world
        first = step * batch + rank * share
        return [self.start(sequence) for sequence in range(first, first + share)]


def divisors(number: int) -> str:
    """Those of a number, as words: "1, 2 or 4"."""
    words = [*map(str, checks.divisors(number))]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def passes(batch: int, world: int, limit: int | None = None) -> int:
    """Passes of a step whose rank takes at most `limit` sequences in one: the least number that divides its share.

    limit: None for one pass. ValueError where world does not divide the batch.
    """
    if batch % world:
        raise ValueError(f"{world} ranks do not divide a batch of {batch} sequences: use one of {divisors(batch)}")
    share = batch // world
    return next(n for n in checks.divisors(share) if limit is None or share // n <= limit)


def even_starts(length: int, seq: int, count: int) -> list[int]:
    """First bytes of `count` windows spread evenly over a text, fewer where it has no more: for validation.

    ValueError where the text holds no window.
    """
    windows = (length - 1) // seq
    if windows < 1:
        raise ValueError(f"the text held out has {length} bytes: it must be longer than one sequence, {seq}")
    number = min(count, windows)
    return [seq * (i * windows // number) for i in range(number)]
