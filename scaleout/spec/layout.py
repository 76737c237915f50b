"""How a job's ranks divide the model and the data."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.spec import checks


@dataclass(frozen=True)
class Layout:
    """Degrees of data (dp), tensor (tp) and pipeline (pp) parallelism, and the ZeRO stage on the dp ranks.

    ZeRO (arXiv 1910.02054): stage 1 splits the optimizer's state over the dp ranks, 2 the gradients too, 3 the
    weights too. `sequence_parallel` splits what tensor parallelism leaves whole (arXiv 2205.05198, section 4.2.2);
    `gather_again`: what its matrices read whole is then gathered a second time in the backward, as there, and not kept.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0
    sequence_parallel: bool = False
    gather_again: bool = True

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp"):
            checks.whole(name, getattr(self, name))
        if not checks.is_whole(self.zero) or not 0 <= self.zero <= 3:
            raise ValueError(f"zero must be 0, 1, 2 or 3, not {self.zero!r}")
        for name in ("sequence_parallel", "gather_again"):
            checks.flag(name, getattr(self, name))

    @property
    def ranks(self) -> int:
        """Processes in the job."""
        return self.dp * self.tp * self.pp
