"""How far a predicted step may be from a measured one: errors on published steps, by program and family of GPUs.

Each error is cross-validated: the constants were fitted without the project that measured the step
(`tools/fit_seconds.py --cross`, rows in tests/published/cross.json). A search cannot tell apart layouts whose steps
differ by less than the band.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp
from statistics import median
from typing import NamedTuple

from scaleout.spec.job import Job

FEWEST = 8  # steps from which a ninth of ten is read


class Errors(NamedTuple):
    """Of n published steps: the median and the ninth of ten |log(predicted / measured)|; the longest sequence and the
    most GPUs among them."""

    n: int
    median: float
    ninth: float
    seq: int
    gpus: int


# By program and family of chips; "" stands for all. Made by `tools/fit_seconds.py --table`.
ERRORS = {
    ("", ""): Errors(239, 0.0302, 0.1203, 65536, 3072),
    ("compiled", ""): Errors(44, 0.1059, 0.1862, 8192, 464),
    ("compiled", "ampere"): Errors(5, 0.0857, 0.1399, 4096, 128),
    ("compiled", "blackwell"): Errors(1, 0.1486, 0.1486, 8192, 8),
    ("compiled", "cdna3"): Errors(1, 0.1515, 0.1515, 8192, 8),
    ("compiled", "hopper"): Errors(37, 0.1037, 0.2033, 8192, 464),
    ("composer", ""): Errors(100, 0.0244, 0.079, 65536, 512),
    ("composer", "ampere"): Errors(70, 0.0306, 0.0882, 32768, 128),
    ("composer", "hopper"): Errors(30, 0.0123, 0.0411, 65536, 512),
    ("eager", ""): Errors(28, 0.0388, 0.157, 8192, 464),
    ("eager", "ampere"): Errors(17, 0.0262, 0.0724, 8192, 128),
    ("eager", "hopper"): Errors(11, 0.0525, 0.3002, 8192, 464),
    ("megatron", ""): Errors(53, 0.0183, 0.0724, 8192, 2048),
    ("megatron", "blackwell"): Errors(24, 0.0429, 0.0811, 4096, 8),
    ("megatron", "hopper"): Errors(29, 0.0137, 0.0285, 8192, 2048),
    ("megatron-2021", ""): Errors(14, 0.0492, 0.0768, 2048, 3072),
    ("megatron-2021", "ampere"): Errors(14, 0.0492, 0.0768, 2048, 3072),
}  # fmt: skip

FAMILIES = {"ampere": "Ampere", "hopper": "Hopper", "blackwell": "Blackwell", "cdna3": "CDNA 3", "ada": "Ada",
            "turing": "Turing", "volta": "Volta"}  # fmt: skip


@dataclass(frozen=True)
class Band:
    """Nine of ten of `n` published steps lie within `share` of what is predicted, half of them within `middle`. of:
    which steps; outside: in what the job lies outside all of them, one phrase each."""

    share: float
    middle: float
    n: int
    of: str
    outside: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """In a sentence or two."""
        said = (f"Nine of ten of {self.n} published steps {self.of} are predicted within {100 * self.share:.0f}%, half "
                f"of them within {100 * self.middle:.0f}%, by constants fitted without them.")  # fmt: skip
        return said + (f" This job lies outside: {'; '.join(self.outside)}." if self.outside else "")

    def ends(self, seconds: float) -> tuple[float, float]:
        """(low, high) seconds around a prediction."""
        return seconds / (1 + self.share), seconds * (1 + self.share)


def band(job: Job) -> Band:
    """Of the job's program on its family of GPUs; where those are too few, of its program, or of all."""
    name, family = job.program.name, job.device.architecture
    own, outside = ERRORS.get((name, family)), []
    chip = FAMILIES.get(family, job.device.name)
    if own is None:
        outside.append(f"no published step of {job.program.label} on {chip}")
    elif own.n < FEWEST:
        outside.append(f"only {own.n} of {job.program.label} on {chip}")
    which = {(name, family): f"of {job.program.label} on {chip}", (name, ""): f"of {job.program.label}",
             ("", ""): "of all programs"}  # fmt: skip
    key = next(key for key in which if key in ERRORS and (ERRORS[key].n >= FEWEST or key == ("", "")))
    found = ERRORS[key]
    if job.seq > found.seq:
        outside.append(f"longer sequences than their {found.seq:,} tokens")
    if job.layout.ranks > found.gpus:
        outside.append(f"more GPUs than their {found.gpus:,}")
    return Band(exp(found.ninth) - 1, exp(found.median) - 1, found.n, which[key], tuple(outside))


def errors(rows: list[tuple[Job, float]]) -> dict[tuple[str, str], Errors]:
    """ERRORS of rows of (job, log(predicted / measured))."""
    groups: dict[tuple[str, str], list] = {}
    for job, error in rows:
        name, family = job.program.name, job.device.architecture
        for key in ((name, family), (name, ""), ("", "")):
            groups.setdefault(key, []).append((job, abs(error)))
    out = {}
    for key in sorted(groups):
        jobs, size = [job for job, _ in groups[key]], sorted(error for _, error in groups[key])
        out[key] = Errors(
            len(size), round(median(size), 4), round(size[ceil(0.9 * len(size)) - 1], 4), max(job.seq for job in jobs),
            max(job.layout.ranks for job in jobs),
        )  # fmt: skip
    return out
