"""How a job's ranks divide the model and the data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Degrees of data (dp), tensor (tp) and pipeline (pp) parallelism, and the ZeRO stage on the dp ranks.

    ZeRO (arXiv 1910.02054): stage 1 splits the optimizer's state over the dp ranks, 2 the gradients too, 3 the
    weights too. `sequence_parallel` splits what tensor parallelism leaves whole (arXiv 2205.05198, section 4.2.2).
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if isinstance(self.zero, bool) or not isinstance(self.zero, int) or not 0 <= self.zero <= 3:
            raise ValueError(f"zero must be 0, 1, 2 or 3, not {self.zero!r}")
        if not isinstance(self.sequence_parallel, bool):
            raise ValueError(f"sequence_parallel must be True or False, not {self.sequence_parallel!r}")

    @property
    def ranks(self) -> int:
        """Processes in the job."""
        return self.dp * self.tp * self.pp
