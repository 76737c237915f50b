"""How far a predicted step may be from a measured one: errors on published steps, by program and family of GPUs.

Each error is of constants that were fitted without the project that measured the step; the page "How good are these
numbers?" has all of them (tests/published/steps_judged.json). A search cannot tell apart layouts whose steps differ by
less than the band.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import NamedTuple

from scaleout.spec import checks
from scaleout.spec.job import Job
from scaleout.timing.rates import family

FEWEST = 8  # steps of which nine of ten are spoken of


class Errors(NamedTuple):
    """Of n published steps: the median of |predicted / measured - 1|, what nine of ten are within, the longest
    sequence and the most GPUs among them."""

    n: int
    median: float
    ninth: float
    seq: int
    gpus: int


# By program and family of chips; "" stands for all. Written by `tools/fit_seconds.py --table`.
ERRORS = {
    ("", ""): Errors(227, 0.053, 0.163, 65536, 3072),
    ("compiled", ""): Errors(43, 0.141, 0.256, 8192, 464),
    ("compiled", "ampere"): Errors(5, 0.153, 0.222, 4096, 128),
    ("compiled", "cdna3"): Errors(1, 0.159, 0.159, 8192, 8),
    ("compiled", "hopper"): Errors(37, 0.118, 0.291, 8192, 464),
    ("composer", ""): Errors(100, 0.051, 0.075, 65536, 512),
    ("composer", "ampere"): Errors(70, 0.057, 0.076, 32768, 128),
    ("composer", "hopper"): Errors(30, 0.023, 0.06, 65536, 512),
    ("eager", ""): Errors(28, 0.073, 0.208, 8192, 464),
    ("eager", "ampere"): Errors(17, 0.05, 0.121, 8192, 128),
    ("eager", "hopper"): Errors(11, 0.093, 0.295, 8192, 464),
    ("megatron", ""): Errors(42, 0.025, 0.068, 4096, 2048),
    ("megatron", "blackwell"): Errors(24, 0.037, 0.114, 4096, 8),
    ("megatron", "hopper"): Errors(18, 0.018, 0.052, 4096, 2048),
    ("megatron-2021", ""): Errors(14, 0.063, 0.112, 2048, 3072),
    ("megatron-2021", "ampere"): Errors(14, 0.063, 0.112, 2048, 3072),
}  # fmt: skip

# The same of fine-tuning steps by Hugging Face's plain modules (tests/published/fine_tuning_runs.json), which made no
# constant but two of GeForce of Ada's.
TUNED = {
    ("huggingface", ""): Errors(73, 0.063, 0.252, 8192, 8),
    ("huggingface", "ada-rtx"): Errors(5, 0.048, 0.082, 2048, 2),
    ("huggingface", "ampere"): Errors(67, 0.063, 0.253, 8192, 8),
    ("huggingface", "hopper"): Errors(1, 0.178, 0.178, 2048, 4),
}

CHIPS = {
    "ampere": "Ampere",
    "ada-rtx": "GeForce RTX 40",
    "hopper": "Hopper",
    "blackwell": "Blackwell",
    "cdna3": "CDNA 3",
}


KNOWN = ERRORS | TUNED


@dataclass(frozen=True)
class Band:
    """Nine of ten of `n` published steps lie within `share` of what is predicted, half of them within `middle`. of:
    which steps; outside: in which respects the job is outside their range, a phrase each; constants: which predict
    them."""

    share: float
    middle: float
    n: int
    of: str
    outside: tuple[str, ...] = ()
    constants: str = "that were fitted without them"

    @property
    def why(self) -> str:
        """In one or two sentences."""
        errors = (
            f"Nine of ten of the {self.n} published steps {self.of} are predicted within {100 * self.share:.0f}%, half "
            f"within {100 * self.middle:.0f}%, by constants {self.constants}."
        )
        return errors + (f" This job is outside their range: {'; '.join(self.outside)}." * bool(self.outside))

    def ends(self, seconds: float) -> tuple[float, float]:
        """(low, high) seconds around a prediction."""
        return seconds * (1 - min(self.share, 1.0)), seconds * (1 + self.share)


def band(job: Job) -> Band:
    """The band of the job's program on its family of GPUs; with too few such steps of its program; else of all.

    A GPU whose family is a guess (`spec.devices`) is of no family.
    """
    checks.instance("job", job, Job)
    name, label, chips, outside = job.program.name, job.program.label, family(job.device), []
    own_errors = None if job.device.priced_as else KNOWN.get((name, chips))
    if job.device.priced_as:
        outside.append(f"no published step on {job.device.name}, whose kernels are taken for {CHIPS[chips]}'s")
    elif own_errors is None:
        outside.append(f"no published step of {label} on {CHIPS[chips]}")
    elif own_errors.n < FEWEST:
        outside.append(f"only {own_errors.n} published step{'s' * (own_errors.n > 1)} of {label} on {CHIPS[chips]}")
    labels = {(name, chips): f"of {label} on {CHIPS[chips]}"} if own_errors else {}
    labels |= {(name, ""): f"of {label}", ("", ""): "of all programs"}
    key = next(key for key in labels if key == ("", "") or (key in KNOWN and KNOWN[key].n >= FEWEST))
    chosen = KNOWN[key]
    if job.seq > chosen.seq:
        outside.append(f"longer sequences than their {chosen.seq:,} tokens")
    if job.layout.ranks > chosen.gpus:
        outside.append(f"more GPUs than their {chosen.gpus:,}")
    found = Band(chosen.ninth, chosen.median, chosen.n, labels[key], tuple(outside))
    return replace(found, constants="that they did not make, but for two of GeForce GPUs") if key in TUNED else found


def errors(rows: Iterable[tuple[Job, float]]) -> dict[tuple[str, str], Errors]:
    """ERRORS of rows of (job, predicted / measured - 1)."""
    groups: dict[tuple[str, str], list] = {}
    for job, error in rows:
        for key in ((job.program.name, family(job.device)), (job.program.name, ""), ("", "")):
            groups.setdefault(key, []).append((job, abs(error)))
    table = {}
    for key in sorted(groups):
        jobs, size = [job for job, _ in groups[key]], [error for _, error in groups[key]]
        table[key] = Errors(
            len(size),
            round(median(size), 3),
            round(ninth(size), 3),
            max(job.seq for job in jobs),
            max(job.layout.ranks for job in jobs),
        )
    return table


def ninth(sizes: Iterable[float]) -> float:
    """What nine of ten sizes are at most: of 14 the thirteenth, since twelve are fewer."""
    ordered = sorted(sizes)
    return ordered[ceil(0.9 * len(ordered)) - 1]
