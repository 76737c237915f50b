"""Published bus bandwidths of all-reduce, with which a view compares its prediction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sweep:
    """rows: (KiB of the message, GB/s), on nodes of eight H100 with InfiniBand. algorithm: the one forced, or ""."""

    words: str
    source: str
    rows: tuple[tuple[int, float], ...]
    algorithm: str = ""


# By number of ranks, from togethercomputer/together-nccl-tests at 6698e53c and issue 309 of NVIDIA/nccl-tests. What
# else was measured, and the versions of NCCL, are in tests/published/nccl_sweeps.json.
SWEEPS = {
    8: Sweep("8 H100, ring forced", "together.ai", (
        (2048, 87.26), (4096, 138.26), (8192, 182.39), (16384, 231.88), (32768, 274.45), (65536, 318.55),
        (131072, 334.33), (262144, 347.64), (524288, 355.65), (1048576, 360.07), (2097152, 363.84),
        (4194304, 366.72), (8388608, 368.09),
    ), algorithm="ring"),
    32: Sweep("4 nodes of 8 H100", "nccl-tests #309", (
        (32, 1.29), (64, 2.5), (128, 4.55), (256, 7.49), (512, 13.94), (1024, 24.73), (4096, 53.77), (8192,
        74.78), (16384, 125.23), (32768, 172.92), (65536, 224.53), (131072, 262.48), (262144, 294.16),
        (524288, 334.58), (1048576, 358.14), (2097152, 361.56), (4194304, 363.54), (8388608, 364.93),
        (16777216, 365.84),
    )),
    64: Sweep("8 nodes of 8 H100", "nccl-tests #309", (
        (1024, 17.64), (2048, 28.78), (4096, 40.52), (16384, 87.36), (32768, 129.63), (65536, 184.0),
        (131072, 227.97), (262144, 270.31), (524288, 300.51), (1048576, 286.81), (2097152, 319.03),
        (4194304, 319.83), (8388608, 320.7),
    )),
}  # fmt: skip
