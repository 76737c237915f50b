"""Rung 02, the slow link: DDP across hosts whose links have a rate that you choose, and what helps.

    sudo .venv/bin/python labs/slow_link.py                  two hosts, links of 1000, 500 and 200 Mbit/s
    sudo .venv/bin/python labs/slow_link.py --hosts 4 --rates 100 --save
    python labs/slow_link.py                                 without Linux, root, ip and tc: the recorded run

The hosts are network namespaces on this machine; torchrun runs on each, and they meet as nodes of a cluster do.
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import functools
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from scaleout.lab import corpus, fits, launch, nodes, options
from scaleout.lab import hosts as lab_hosts
from scaleout.lab import slow_link as lab_slow_link
from scaleout.records import results
from scaleout.spec import total_parameters

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "labs" / "results" / "slow_link"

number = functools.partial(options.number, highest=10**6)


@dataclass(frozen=True)
class Options(options.Model):
    """The hosts, their links, the model, and what is timed."""

    hosts: int = options.number(2, "network namespaces, one rank each", 2, lab_hosts.MOST_HOSTS)
    rates: str = options.word("1000,500,200", "link rates in Mbit/s", "N,N")
    latency_ms: float = options.number(0.0, "of a link, one way; needs the kernel's netem", 0, 1000)
    layers: int = number(3, "blocks")
    hidden: int = number(128, "width of the residual stream")
    heads: int = number(4, "attention heads")
    seq: int = number(64, "tokens per sequence")
    micro_batch: int = number(4, "sequences per rank and pass")
    bucket_mb: float = options.number(0.5, "cap of DDP's buckets in MiB", 0.01, 1e5)
    factor: int = number(4, "accumulation steps of one case, and the factor of the larger batch in another", highest=64)
    hook_rank: int = number(2, "columns of PowerSGD's matrices", highest=64)
    steps: int = number(3, "steps per case and round", highest=1000)
    rounds: int = number(2, "rounds through all cases", highest=100)
    seed: int = options.seed()
    dataset: str | None = options.dataset()
    save: str | None = options.save("slow_link", "FOLDER", "a Record of each case")


TIERS = {
    "smoke": Options(),
    "cpu": Options(
        rates="2000,1000,500,200,100", layers=4, hidden=192, heads=6, seq=128, steps=3, rounds=6, bucket_mb=1.0
    ),
}


def cases(o):
    """The cases that are timed, in order: plain DDP at each rate, then each remedy at the slowest rate."""
    rates = nodes.rates(o.rates, "--rates")

    def case(rate, hook="none", accumulation=1, factor=1):
        return {
            "rate": rate and rate * 1e6,
            "hook": hook,
            "accumulation": accumulation,
            "sequences": o.micro_batch * factor,
        }

    plain = [case(rate) for rate in (None, *rates)]
    slow = rates[-1]
    return [
        *plain,
        case(slow, accumulation=o.factor),
        case(slow, factor=o.factor),
        case(slow, "bf16"),
        case(slow, "powersgd"),
    ]


# --- run -------------------------------------------------------------------------------------------------


def measure(o, plan):
    """(what the ranks found, whether the latency was applied)."""
    return nodes.run("scaleout.measure.slow_link", plan, o.hosts, ROOT, o.latency_ms / 1e3)


# --- what is said and kept ---------------------------------------------------------------------------------


def record(tier, o, plan, number, measured, model, latency):
    """The Record of one case."""
    case, seen = plan["cases"][number], measured["cases"][number]
    batch = case["sequences"] * case["accumulation"] * o.hosts
    middle = statistics.median(seen["step_seconds"])
    seconds, _ = model.step(case, latency)
    quiet = model.quiet(case)
    spread = measured["spread"][case["hook"]]
    equal = {"value": spread, "tolerance": 0.0, "passed": spread == 0.0}
    return nodes.record(
        "slow_link",
        tier,
        measured["facts"],
        o.hosts,
        nodes.limited(case["rate"]),
        batch,
        o.seq,
        seen,
        model=asdict(o.shape),
        recipe={
            "link Mbit/s": case["rate"] and case["rate"] / 1e6,
            "latency ms": latency * 1e3,
            "hook": case["hook"],
            "hook_rank": o.hook_rank,
            "accumulation": case["accumulation"],
            "batch factor": case["sequences"] // o.micro_batch,
            "bucket MiB": o.bucket_mb,
            "gradient bytes": 4 * total_parameters(o.shape),
        },
        prediction={"seconds per step": seconds, "share of the step that computes": quiet / seconds},
        measurement={"seconds per step": middle, "share of the step that computes": quiet / middle},
        checks={"weights are equal on all hosts": equal},
    )


def path_of(folder, r):
    """Where the Record of a case is kept."""
    words = lab_slow_link.words(r.recipe).lower().replace("mbit/s", "mbit").replace(",", "").replace(" ", "-")
    return Path(folder) / f"{r.tier}-{r.nodes}-hosts-{words}.json"


def recorded(folder=RECORDED):
    """The recorded runs' Records as {(tier, hosts): [Record]}, in the order of the table."""
    by_size = {}
    for path in Path(folder).glob("*.json"):
        r = results.load(path)
        by_size.setdefault((r.tier, r.nodes), []).append(r)
    for rows in by_size.values():
        rows.sort(
            key=lambda r: (
                r.recipe["hook"] == "powersgd",
                r.recipe["hook"] == "bf16",
                r.recipe["batch factor"],
                r.recipe["accumulation"],
                -(r.recipe["link Mbit/s"] or 1e9),
            )
        )
    return dict(sorted(by_size.items()))


def show_recorded(lack):
    """Print what is missing here, and the recorded runs."""
    print(f"labs/slow_link.py: {lack}; these runs were recorded elsewhere", flush=True)
    for (tier, hosts), rows in recorded().items():
        r = rows[0]
        print(
            f"\n{hosts} hosts on a {r.device}, size {tier}, {r.recipe['gradient bytes'] / 1e6:.2f} MB of gradients\n"
            f"{lab_slow_link.show(rows)}"
        )


def main(argv=None):
    """Measure, predict, compare; or print the recorded run."""
    tier, o = options.parse(TIERS, __doc__, argv)
    plan = asdict(o) | {"cases": cases(o), "threads": nodes.threads(o.hosts)}
    fits.host(o.shape, o.hosts)  # what is wrong, before the work
    options.check_folder(RECORDED if o.save == "auto" else o.save, "--save")
    corpus.long_enough(corpus.read(o.dataset), o.seq)
    lack = lab_hosts.refused()
    if lack:
        show_recorded(lack)
        return
    size = 4 * total_parameters(o.shape)
    print(
        f"{o.hosts} hosts, one rank each, {size / 1e6:.2f} MB of gradients, {o.micro_batch} x {o.seq} tokens per rank "
        "and pass",
        flush=True,
    )
    measured, applied = measure(o, plan)
    latency = o.latency_ms / 1e3 if applied else 0.0
    if o.latency_ms and not applied:
        print("latency was not applied: this kernel has no netem (module sch_netem)")
    model = lab_slow_link.Model(measured, o.hosts, plan)
    rows = [record(tier, o, plan, i, measured, model, latency) for i in range(len(plan["cases"]))]
    print(lab_slow_link.show(rows))
    if o.save:
        folder = RECORDED if o.save == "auto" else Path(o.save)
        names = [results.save(r, path_of(folder, r)).name for r in rows]
        print(f"{len(names)} records saved: {names[0]} and so on")
    failed = [
        f"FAILED {name}: {lab_slow_link.words(r.recipe)}, off by {check['value']:.2g}"
        for r in rows
        for name, check in r.checks.items()
        if not check["passed"]
    ]
    if failed:
        print("\n".join(failed))
        sys.exit(1)


if __name__ == "__main__":
    launch.command(main, "labs/slow_link.py")
