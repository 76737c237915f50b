"""Published rates of FSDP by number of GPUs, to stand beside a curve of the model: what was measured, and by whom.

Copied from tests/published/fsdp_by_gpus.json, which has the sources, the settings, and the series left out here: one
that no model of the scaling explorer is near to, and torchtitan's compiled one, which would hide the eager one. All
are weak scaling: each GPU has the same tokens per step at every size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaleout.spec.transformer import total_parameters
from scaleout.views.capstone.speedup import Setting, Size
from scaleout.views.choices import LINKS

SIZE, TOKENS = 1.5, 4.0  # comparable: a model, and work of a GPU and step, at most this many times as large
_A100 = ("a100-40gb", "a100-80gb")


@dataclass(frozen=True)
class Series:
    """name: a short name of the measurer and the way. rates: tokens per second of one GPU, by number of GPUs.

    devices: keys of `devices.DEVICES` that it counts for. tokens: of one GPU in a step, at every size.
    """

    name: str
    devices: tuple[str, ...]
    parameters: float
    tokens: int
    rates: dict[int, float]

    @property
    def shares(self) -> dict[int, float]:
        """Efficiency against the fewest GPUs of the series itself."""
        first = self.rates[min(self.rates)]
        return {gpus: rate / first for gpus, rate in self.rates.items()}

    def comparable(self, setting: Setting, tokens: int) -> bool:
        """Whether it may stand beside the weak curve of `setting`, where each GPU has `tokens` a step.

        The setting shards over all GPUs, in nodes of 8 with an RDMA adapter for each. A device of the same family, a
        model and an amount of work near by (SIZE, TOKENS). Checkpointing, kernels, the adapters' rate (half of the
        setting's on A100, unnamed for MosaicML's H100) and versions of software may differ.
        """
        node_gpus, _, adapters, rdma, _ = LINKS[setting.link]
        alike = setting.sharding == "full" and rdma and node_gpus == adapters == 8 and setting.device in self.devices
        near_by = _in_ratio(SIZE, self.parameters / total_parameters(setting.shape))
        return alike and near_by and _in_ratio(TOKENS, self.tokens / tokens)

    def on_curve(self, curve: dict[int, Size]) -> dict[int, float]:
        """Its points on the plane of `curve`: the first lies on the curve, the others keep their share of the first."""
        start = _interpolated(curve, min(self.rates))
        return {gpus: start * share for gpus, share in self.shares.items()}


SERIES = (
    Series("torchtitan eager", ("h100-sxm",), 8.03e9, 2 * 8192, {8: 5762, 128: 5605}),
    Series("Kempner compiled", ("h200",), 8.03e9, 32_768, {1: 10_471, 2: 18_728 / 2, 4: 38_983 / 4}),
    Series("MosaicML 13B", ("h100-sxm",), 12.85e9, 2 * 2048, {8: 38_336 / 8, 16: 76_280 / 16, 32: 153_960 / 32,
                                                               64: 307_209 / 64}),
    Series("MosaicML 1.3B", ("h100-sxm",), 1.316e9, 20 * 2048, {16: 736_596 / 16, 32: 1_444_183 / 32,
                                                                64: 2_841_754 / 64}),
    Series("MosaicML 760M", ("h100-sxm",), 0.760e9, 24 * 2048, {16: 1_096_819 / 16, 32: 2_175_091 / 32}),
    Series("MosaicML 13B", _A100, 12.85e9, 16 * 2048, {64: 126_479 / 64, 128: 252_444 / 128}),
    Series("MosaicML 7B", _A100, 6.66e9, 18 * 2048, {32: 119_202 / 32, 64: 234_614 / 64, 128: 463_749 / 128}),
    Series("MosaicML 1.3B", _A100, 1.316e9, 10 * 2048, {64: 1_216_104 / 64, 128: 2_386_897 / 128}),
    Series("MosaicML 760M", _A100, 0.760e9, 12 * 2048, {16: 473_723 / 16, 32: 948_745 / 32, 64: 1_878_030 / 64,
                                                        128: 3_704_382 / 128}),
    Series("MosaicML 125M", _A100, 0.1253e9, 26 * 2048, {16: 2_088_560 / 16, 32: 4_067_922 / 32, 64: 8_015_010 / 64,
                                                        128: 15_863_837 / 128}),
)  # fmt: skip


def comparable_series(setting: Setting, tokens: int) -> Series | None:
    """The comparable series, if there is one: see `Series.comparable`."""
    return next((series for series in SERIES if series.comparable(setting, tokens)), None)


def _in_ratio(times: float, ratio: float) -> bool:
    return 1 / times <= ratio <= times


def _interpolated(curve: dict[int, Size], gpus: int) -> float:
    """Efficiency of the curve as drawn: a straight line over the logarithm between its sizes."""
    low, high = max(n for n in curve if n <= gpus), min(n for n in curve if n >= gpus)
    part = 0.0 if low == high else math.log(gpus / low) / math.log(high / low)
    return curve[low].efficiency + part * (curve[high].efficiency - curve[low].efficiency)
