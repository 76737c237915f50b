"""Which lever to move: what brings the efficiency of a setting of the view `ddp` up, each tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from scaleout.views import lever
from scaleout.views.base import kept
from scaleout.views.lever import Change, Lever

WORTH = 0.02  # what a lever must add to the efficiency to be named
FLAT = 0.01  # passes are added until one more brings less than this share
STRIDES = (3, 2, 1)  # places on the bucket's slider from one try to the next


def advice(setting, sizes: Sequence[int], most_passes: int, links: dict[str, str]) -> Lever | None:
    """The mildest lever that adds WORTH, or None where none does. setting: of the view, with its `efficiency`.

    In this order: what only DDP's own settings change, a larger batch, another network, and PowerSGD, which is last
    because its own arithmetic is not in the model. sizes: of buckets, in MiB; links: words by name.
    """
    current = setting.efficiency
    if current > 1 - WORTH:
        return None
    network = ((words, {"link": key}) for key, words in links.items() if key != setting.link)
    groups = (
        (_settings(setting, tuple(sizes)), WORTH),
        (_passes(setting, most_passes), 0.0),
        (network, 0.0),
        (_powersgd(setting), 0.0),
    )
    for changes, loss in groups:  # loss: what a milder one may give less than the best of its group
        tried = [*lever.tried(setting, changes)]
        best = max((candidate.after.efficiency for candidate in tried), default=0.0)
        if best >= current + WORTH:
            return next(
                candidate for candidate in tried if candidate.after.efficiency >= max(current + WORTH, best - loss)
            )
    return None


def _settings(setting, sizes: tuple[int, ...]) -> Iterator[Change]:
    """DDP's own settings, the mildest first: of those within WORTH of the best, that one is named."""
    if not setting.overlap:
        yield "overlap", {"overlap": True}
    if not setting.no_sync and setting.accumulation > 1:
        yield "no_sync", {"no_sync": True}
    bucket = _best_bucket(setting.other(bucket=sizes[0]), sizes)
    if bucket != setting.bucket:
        yield f"buckets of {bucket:,} MiB", {"bucket": bucket}
    if setting.compression == "none":
        yield "bf16, which rounds gradients", {"compression": "bf16"}


@kept  # the same for every position of the bucket's own slider
def _best_bucket(setting, sizes: tuple[int, ...]) -> int:
    """The size with the highest efficiency, or one close to it: a few far apart first, then nearer to the best."""

    @cache
    def good(i: int) -> float:
        return setting.other(bucket=sizes[i]).efficiency

    index = max(range(0, len(sizes), 2 * STRIDES[0]), key=good)
    for stride in STRIDES:
        index = max((i for i in (index, index - stride, index + stride) if 0 <= i < len(sizes)), key=good)
    return sizes[index]


def _passes(setting, most_passes: int) -> Iterator[Change]:
    """As many passes before an update as bring something. What sticks out is paid once, however many there are."""
    once, alone = setting.other(no_sync=True).step, setting.alone
    pass_seconds = alone.timeline.compute_seconds / setting.accumulation
    fixed = alone.seconds - alone.timeline.compute_seconds
    slowest = once.seconds / (once.seconds - once.parts["stragglers"])

    def good(passes: int) -> float:
        busy = passes * pass_seconds + fixed
        return busy / (busy + once.parts["exposed data"]) / slowest

    for passes in range(setting.accumulation + 1, most_passes + 1):
        if passes == most_passes or good(passes + 1) < (1 + FLAT) * good(passes):
            times = f"{passes / setting.accumulation:.2g}"
            yield (
                f"{passes} accumulation steps, a batch {times} times as large",
                {"accumulation": passes, "no_sync": True},
            )
            return


def _powersgd(setting) -> Iterator[Change]:
    if setting.compression != "powersgd":
        yield "PowerSGD", {"compression": "powersgd"}
