"""Measure this machine: matrix multiplications and copies, a model's kernels, and each collective at this world size.

    python labs/calibrate.py
    torchrun --nproc-per-node 2 labs/calibrate.py --out machine.json

The labs predict times from this profile (`--machine`). All ranks measure at the same time, so the rates hold for a
machine on which every rank is busy. Collectives of fewer ranks are measured too, in groups of every size that divides
the ranks, all groups at once. The kernels are those of a transformer block (linear layers, attention, norms,
activations), with the host's time for each, and the optimizer's update, at sizes near those of the labs. A collective
is timed between two multiplications, as in a step. DDP, ZeRO by hand and `fully_shard` are timed as a whole: what they
add to the step of a small model, the host's work and all copies included.
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import datetime
import statistics
from dataclasses import dataclass

import torch

from scaleout.lab import options, progress, recording, session, table
from scaleout.measure import collectives, kernels, matmul_rate, repeat, units
from scaleout.records import profiles, provenance
from scaleout.spec import MEASURED, Job, Layout, Recipe, Shape, checks, cluster
from scaleout.timing import calibrated, machine, step_on
from scaleout.timing import profile as timing_profile

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SMALLEST_MESSAGE = 4096
COPY_BYTES = 256_000_000  # more than the caches of a CPU or GPU hold
WIDTHS = (10, 40, 100, 140)  # of models that are sharded, in percent of a block's
EMULATED = 0.5  # of the rate in fp32: what is slower is not computed with, and not timed further
MEANING = {
    "all_reduce": "bytes of the tensor each rank holds",
    "broadcast": "bytes of the tensor",
    "all_gather": "bytes of the gathered tensor",
    "reduce_scatter": "bytes of the tensor before the scatter",
}


@dataclass(frozen=True)
class Options:
    """How much to measure. Each number below costs about `seconds` of wall clock."""

    seconds: float = options.number(0.4, "seconds spent on each number", 0.01, 60)
    largest_mb: float = options.number(16, "largest message, in MB (10^6 bytes)", 0.1, 4096)
    largest_matrix: int = options.number(1024, "largest side of a matrix", 64, 32768)
    kernels: bool = options.flag("time a model's kernels one by one", True)
    tokens: int = options.number(
        512, "tokens per micro-batch; kernels are timed at this size and at an eighth", 8, 2**20
    )
    hidden: int = options.number(
        160, "width of a block; kernels are timed at this width and at two fifths of it", 8, 2**16
    )
    seq: int = options.number(128, "tokens per sequence, for attention", 4, 2**20)
    head: int = options.number(32, "width of a head", 4, 1024)
    out: str | None = options.word(None, "file of the profile (default: in your cache folder)")


TIERS = {
    "smoke": Options(),
    "cpu": Options(seconds=2.0, largest_mb=64, largest_matrix=2048, tokens=2048, hidden=256, seq=256),
    "gpu": Options(seconds=1.0, largest_mb=1024, largest_matrix=16384, tokens=8192, hidden=2048, seq=2048, head=128),
}


def copy_rate(s, o):
    """Bytes per second of a copy within the device's memory: bytes read and bytes written, both counted."""
    source = torch.ones(COPY_BYTES // 4, device=s.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / repeat(s, lambda: target.copy_(source), o.seconds)


def sizes(o, world):
    """Message sizes in bytes, by factors of four up to the largest; each splits evenly over the ranks."""
    unit, messages, size = 4 * world, [], SMALLEST_MESSAGE
    while size < o.largest_mb * 1e6:
        messages.append(size // unit * unit)
        size *= 4
    return [*messages, max(unit, int(o.largest_mb * 1e6) // unit * unit)]


def collective_point(s, name, size, o, n, group):
    """(bytes, seconds) of one collective at one size, of a group of n ranks and of its like at once."""
    buffer, x = torch.zeros(size // 4, device=s.device), torch.randn(o.tokens, o.hidden, device=s.device)
    weight, y = torch.randn(o.hidden, 4 * o.hidden, device=s.device), x.new_empty(o.tokens, 4 * o.hidden)
    product = lambda: torch.mm(x, weight, out=y)  # noqa: E731
    return size, collectives.between(s, collectives.backend(name, buffer, n, group), product, o.seconds / 4)


def measure(s, o):
    """The profile (dict) of this machine at this world size; the same on every rank."""
    groups = {n: collectives.neighbours(s, n) if n < s.world else None for n in checks.divisors(s.world)[1:]}
    rates, sides, points = {}, {}, {(n, name): [] for n in groups for name in profiles.COLLECTIVES}
    work = [("matmul", name) for name in DTYPES] + [("copy", "")]
    work += [(key, size) for key in points for size in sizes(o, key[0])]
    copied = 0.0
    for kind, key in progress(work, "calibrate", s.main):
        if kind == "matmul":
            rates[key], sides[key] = matmul_rate(s, DTYPES[key], o)
        elif kind == "copy":
            copied = copy_rate(s, o)
        else:
            n, name = kind
            points[kind].append(collective_point(s, name, key, o, n, groups[n]))
    half = max(("bf16", "fp16"), key=rates.get)  # the one that a model computes with
    timed = {name: DTYPES[name] for name in ("fp32", half) if rates[name] >= EMULATED * rates["fp32"]}
    sizes_of_model = kernels.Sizes(o.tokens, o.hidden, o.seq, o.head)
    sampled = kernels.measure(s, sizes_of_model, timed, o.seconds) if o.kernels else {}
    if o.kernels:
        sampled["units"] = units.measure(s, tuple(max(2, o.hidden * part // 200 * 2) for part in WIDTHS), o.seconds)
    lines = {
        n: {name: {**timing_profile.fit(points[n, name]), "bytes_are": MEANING[name]} for name in profiles.COLLECTIVES}
        for n in groups
    }
    profile = {
        "schema": profiles.SCHEMA,
        "device": recording.device_name(s.device),
        "device_kind": s.device.type,
        "backend": s.backend,
        "interconnect": recording.interconnect(s),
        "world": s.world,
        "nodes": s.nodes,
        "threads": torch.get_num_threads(),
        "versions": recording.versions(),
        "commit": provenance.commit(),
        "measured": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "matmul_flops_per_second": rates,
        "matmul_side": sides,
        "copy_bytes_per_second": copied,
        "kernels": sampled,
        "collectives": lines.pop(s.world, {}),
        "groups": {str(n): fits for n, fits in lines.items()},
    }
    if o.kernels:
        sampled["together"] = together(profile)
    return profile


def together(profile):
    """How many times longer whole models took than what is predicted of them, kernel by kernel: in a model a kernel
    finds less of what it reads in the caches."""
    ratios = []
    for point in profile["kernels"]["whole"]:
        shape = Shape(**{name: point[name] for name in ("layers", "hidden", "heads", "vocab", "max_seq")})
        job = Job(
            shape,
            shape.max_seq,
            machine.device_of(profile),
            cluster(1, 1),
            point["batch"],
            Layout(),
            Recipe("fp32"),
            MEASURED,
        )
        step = step_on(job, machine.from_profiles(job, {1: profile}))
        ratios.append((point["forward"] + point["backward"]) / (step.seconds - step.parts["update"]))
    return statistics.median(ratios)


def fitted(profile):
    """Rows with the constants that the labs predict from, for a machine that was timed kernel by kernel, in fp32."""
    rates = calibrated.profile_rates(profile)
    host, tensor = sum(rates.block_seconds), rates.tensor_seconds
    return [
        ("linear layers, fitted", f"{rates.matmul_flop_per_s / 1e9:,.2f} GFLOP/s"),
        ("fixed time per kernel", f"{rates.kernel_seconds * 1e6:,.1f} us"),
        ("host time per block", f"{host * 1e6:,.1f} us"),
        ("norms and activations, fitted", f"{rates.memory_bytes_per_s / 1e9:,.2f} GB/s"),
        ("AdamW, per tensor", f"{tensor * 1e6:,.1f} us"),
    ]


def show(s, profile):
    """Print the profile: rates, then alpha and beta with the worst residual, then every point."""
    s.say(
        f"{profile['device']}, {profile['world']} process(es) x {profile['threads']} thread(s), "
        f"backend {profile['backend']}"
    )
    rows = [
        (f"matmul {name}, side {profile['matmul_side'][name]}", f"{rate / 1e9:,.2f} GFLOP/s")
        for name, rate in profile["matmul_flops_per_second"].items()
    ]
    rows.append(("copy, read and written", f"{profile['copy_bytes_per_second'] / 1e9:,.2f} GB/s"))
    rows += fitted(profile) if profile["kernels"] else []
    s.say(table(("per process", "measured"), rows))
    if not profile["collectives"]:
        s.say(
            "collectives: skipped, one process has no other to communicate with "
            "(torchrun --nproc-per-node 2 labs/calibrate.py)"
        )
        return
    s.say()
    lines_by_world = {str(profile["world"]): profile["collectives"]} | profile["groups"]
    s.say(
        table(
            ("collective", "ranks", "alpha", "1 / beta", "worst residual"),
            [
                (
                    name,
                    n,
                    f"{line['alpha_seconds'] * 1e3:.3f} ms",
                    f"{1e-9 / line['seconds_per_byte']:.2f} GB/s" if line["seconds_per_byte"] else "-",
                    f"{line['worst_relative_error']:.0%}",
                )
                for n, lines in lines_by_world.items()
                for name, line in lines.items()
            ],
        )
    )
    s.say()
    s.say(
        table(
            ("message", "bytes", "measured", "alpha + bytes * beta", "residual"),
            [
                (
                    name,
                    f"{p['bytes']:,}",
                    f"{p['seconds'] * 1e3:.3f} ms",
                    f"{p['fitted'] * 1e3:.3f} ms",
                    f"{p['relative_error']:+.0%}",
                )
                for name, line in profile["collectives"].items()
                for p in line["points"]
            ],
        )
    )


def main(s, argv=None):
    """Measure, print, save."""
    _, o = options.parse(TIERS, __doc__, argv)
    target = o.out or profiles.default_path(s.device.type, s.world)
    options.check_target(target, ())
    profile = measure(s, o)
    show(s, profile)
    if s.main:
        path = profiles.save(profile, target)
        place = "" if o.out else " in your cache folder, where the labs look"
        s.say(f"\nprofile saved: {path.name}{place}")


if __name__ == "__main__":
    session.run(main)
