"""Print how far the memory model of FSDP is from what torch allocates, over a grid of random cases.

    .venv/bin/python tools/bench_fsdp_memory.py [--cases 96] [--seed 2026] [--small] [--smallest]

The truth is a step under `fully_shard` on fake tensors in a world of which only rank 0 is there
(`scaleout.measure.fsdp_memory`). tests/memory/test_fsdp_truth.py holds the model to 2% on the same cases. Then a
7B model on 8, 64 and 512 ranks with all its layers, and a 70B on 64, with torch's own FSDPMemTracker as second
witness: some minutes, which --small leaves out.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, replace

import launching
from bench_memory import TOLERANCE, line

from scaleout.measure.fsdp_memory import MeasuredFsdp, measure_fsdp
from scaleout.memory.fsdp import FsdpAccount, collectives, fsdp_account
from scaleout.memory.fsdp_tape import KINDS
from scaleout.spec.recipe import CHOICES, Recipe
from scaleout.spec.sharding import DTYPES, WRAPS, Sharding
from scaleout.spec.transformer import Shape, preset

CASES, SEED = 96, 2026

GPT = Shape(3, 64, 4, 300, max_seq=64)
LLAMA = Shape(
    3, 64, 4, 300, kv_heads=2, ff=160, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", tied_head=False
)
WORLDS = ((2, 1), (4, 1), (8, 1), (64, 1), (512, 1), (1, 2), (2, 2), (8, 8), (3, 1))  # ranks x replicas


@dataclass(frozen=True)
class Case:
    """One step to measure."""

    shape: Shape
    batch: int
    seq: int
    recipe: Recipe
    sharding: Sharding
    device_kind: str

    @property
    def name(self) -> str:
        """What makes the case, in short."""
        s, r, f = self.shape, self.recipe, self.sharding
        style = ("llama" if s.norm == "rmsnorm" else "gpt") + ("-tied" if s.tied_head else "")
        words = [
            style,
            f"L{s.layers}",
            f"b{self.batch}s{self.seq}",
            r.precision,
            r.optimizer,
            r.attention,
            r.checkpointing,
            r.gradients,
            f"{f.ranks}x{f.replicas}",
            f.wrap,
            f"reshard-{f.reshard}",
            f"prefetch-{f.prefetch}",
            f"{f.parameter}/{f.reduce}",
            self.device_kind,
        ]
        return " ".join(words + ["offload"] * f.offload + ["dropout"] * bool(r.dropout) + ["loop"] * (not r.foreach))

    def predicted(self) -> FsdpAccount:
        return fsdp_account(self.shape, self.batch, self.seq, self.recipe, self.sharding, self.device_kind)

    def measured(self, witness: str = "ledger", fake: bool = True) -> MeasuredFsdp:
        return measure_fsdp(
            self.shape, self.batch, self.seq, self.recipe, self.sharding, self.device_kind, witness, fake
        )


def random_sharding(dice: random.Random) -> Sharding:
    """Any world, wrapping, reshard, prefetch and policy. A number to reshard to is tried with up to 8 ranks, and in
    `big` with 64: torch makes a mesh with all its groups for every unit, which takes minutes with 512."""
    ranks, replicas = dice.choice(WORLDS)
    smaller = [k for k in (2, 4) if k < ranks <= 8 and ranks % k == 0]
    return Sharding(
        ranks,
        replicas,
        wrap=dice.choice(WRAPS),
        least_parameters=dice.choice((3_000, 10_000, 30_000)),
        reshard=dice.choice([True, False, *smaller]),
        prefetch=dice.choice((0, 1, 1, 2, 3)),
        offload=dice.random() < 0.2,
        parameter=dice.choice(tuple(DTYPES)),
        reduce=dice.choice(tuple(DTYPES)),
    )


def cases(count: int = CASES, seed: int = SEED) -> list[Case]:
    """The same cases for the same seed. Offload is measured as on a CPU only: on a GPU the shards lie elsewhere."""
    dice, out = random.Random(seed), []
    for _ in range(count):
        sharding = random_sharding(dice)
        recipe = Recipe(
            dice.choice(("fp32", "fp32", "bf16")),
            optimizer=dice.choice(("adamw", "adamw", "momentum", "sgd")),
            foreach=dice.random() < 0.5,
            attention=dice.choice(("sdpa", "naive")),
            dropout=dice.choice((0.0, 0.0, 0.1)),
            checkpointing=dice.choice(CHOICES["checkpointing"]),
            gradients=dice.choice(("fresh", "fresh", "kept")),
        )
        shape = replace(dice.choice((GPT, LLAMA)), layers=dice.choice((1, 2, 4)), tied_head=dice.random() < 0.5)
        batch, seq = dice.choice(((2, 48), (1, 64), (4, 32)))
        kind = "cpu" if sharding.offload else dice.choice(("cpu", "cuda"))
        out.append(Case(shape, batch, seq, recipe, sharding, kind))
    return out


def errors(case: Case, truth: MeasuredFsdp) -> dict[str, float]:
    """Relative errors of the peak; of each phase's peak, and of the kind that is furthest off at the peak of the
    phase that has the truth's, in shares of the peak; and of the bytes and counts of collectives."""
    model = case.predicted()
    fullest = max(truth.moments, key=lambda phase: sum(truth.moments[phase].values()))
    out = {"peak": model.peak_bytes / truth.peak_bytes - 1}
    for phase, held in truth.moments.items():
        most = max((moment for moment in model.moments if moment.phase == phase), key=lambda moment: moment.bytes)
        out[phase] = (most.bytes - sum(held.values())) / truth.peak_bytes
        if phase == fullest:
            out["kind"] = max(((most.held[kind] - held[kind]) / truth.peak_bytes for kind in KINDS), key=abs)
    counted = collectives(case.shape, case.sharding, case.recipe)
    out["collectives"] = max(
        (
            counted[name][unit] / (seen[unit] or 1) - (1 if seen[unit] else 0)
            for name, seen in truth.collectives.items()
            for unit in seen
        ),
        key=abs,
    )
    return out


def big() -> list[Case]:
    """A 7B with all its layers on 8, 64 and 512 ranks, and a 70B on 64."""
    mixed, full = {"parameter": "bf16"}, Recipe("fp32", checkpointing="full")
    seven, seventy = preset("llama-2-7b"), preset("llama-2-70b")
    return [
        Case(seven, 1, 4096, full, Sharding(8, **mixed), "cuda"),
        Case(seven, 1, 4096, Recipe("fp32"), Sharding(64, reshard=8, **mixed), "cuda"),
        Case(seven, 1, 4096, full, Sharding(512, reshard=False, **mixed), "cuda"),
        Case(seventy, 1, 4096, full, Sharding(64, **mixed), "cuda"),
    ]


def print_big() -> None:
    """One line a model as it is measured."""
    for case in big():
        began = time.perf_counter()
        truth, model = case.measured("tracker"), case.predicted()
        off = (model.peak_bytes / seen - 1 for seen in (truth.peak_bytes, truth.tracker))
        print(
            f"{case.name}: {truth.peak_bytes / 1e9:.2f} GB; model {next(off):+.3%} of the ledger, {next(off):+.3%} "
            f"of FSDPMemTracker; {time.perf_counter() - began:.0f} s to measure",
            flush=True,
        )


def main() -> int:
    """Measure, and print the table; the exit code."""
    parser = launching.options(__doc__, cases=CASES, seed=SEED)
    parser.add_argument("--small", action="store_true", help="without the 7B and the 70B, which take minutes")
    options = parser.parse_args()
    if options.smallest:
        options.cases, options.small = 2, True
    if options.cases < 1:
        parser.error(f"--cases must be at least 1, not {options.cases}")
    found: dict[str, list[float]] = {}
    for case in cases(options.cases, options.seed):
        off = errors(case, case.measured())
        for name, error in off.items():
            found.setdefault(name, []).append(error)
        if max(map(abs, off.values())) > TOLERANCE:
            print(f"over 2%: {case.name}: " + ", ".join(f"{name} {error:+.2%}" for name, error in off.items()))
    print(f"{'error of FSDP memory, against torch':<46}{'median':>9}{'worst':>9}   over 2%")
    for name, list_ in found.items():
        print(line({"peak": "the peak", "kind": "worst kind at the peak"}.get(name, name), list_))
    if not options.small:
        print_big()
    return 0


if __name__ == "__main__":
    sys.exit(main())
