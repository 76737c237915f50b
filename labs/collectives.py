"""Rung 10: all-reduce by hand and by the backend, timed at many sizes, with alpha and beta of this machine.

torchrun --nproc-per-node 2 labs/collectives.py
torchrun --nproc-per-node 4 labs/collectives.py --tier cpu --save --plot sweep.svg
accelerate launch --config_file labs/launch/accelerate.yaml --num_processes 2 labs/collectives.py --via accelerate
torchrun --nproc-per-node 2 labs/collectives.py --own "25,12.5"      predict from another link than this one
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from scaleout.lab import collectives as lab_collectives
from scaleout.lab import options, recording, runner, session, verdicts
from scaleout.measure import collectives as measure_collectives
from scaleout.parallel import ring
from scaleout.timing import profile

DTYPES = {
    "int64": torch.int64,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
LENGTHS = (0, 1, 2, 3, 5, 1000, 100_003)  # elements: none, fewer than ranks, what no rank count divides
BACKEND = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
SPREAD = 1.5  # a prediction further off than this factor is explained


@dataclass(frozen=True)
class Options:
    """Which sizes, how often, and what to do with the result."""

    smallest: int = options.number(2**10, "smallest message, bytes", 4, 2**34)
    largest: int = options.number(2**24, "largest message, bytes", 8, 2**34)
    factor: int = options.number(4, "from one size to the next", 2, 1024)
    rounds: int = options.number(15, "samples of each time", 3, 10_000)
    pieces: int | None = options.number(None, "messages that a chunk is sent in (default: by its size)", highest=1024)
    via: str = options.choice("torch", ("torch", "accelerate"), "also time Accelerate's reduce and gather")
    own: str | None = options.word(
        None, "predict from this link too: alpha in microseconds and rate in GB/s", "ALPHA,RATE"
    )
    save: str | None = options.save("collectives")
    plot: str | None = options.word(None, "draw time and bandwidth by size", "FILE.svg")


TIERS = {
    "smoke": Options(),
    "cpu": Options(smallest=2**8, largest=2**26, factor=2, rounds=15),
    "gpu": Options(smallest=2**8, largest=2**30, factor=2, rounds=30),
}


# --- the same sum? ------------------------------------------------------------------------------------------


def by_hand(o):
    """{name: function of a tensor} of the all-reduces by hand, with the pieces asked for."""
    return {
        name: work if name == "naive" else (lambda t, work=work: work(t, pieces=o.pieces))
        for name, work in ring.BY_HAND.items()
    }


def through_accelerate(s):
    """{collective: function of a tensor} of the Accelerate route; asserts that Accelerate sees all the ranks."""
    from accelerate import PartialState  # 0.7 s: only where it is asked for
    from accelerate.utils import gather, reduce

    state = PartialState(cpu=s.device.type == "cpu")
    if state.num_processes != s.world or state.distributed_type.value == "NO" or state.device.type != s.device.type:
        raise RuntimeError(
            f"asked for {s.world} ranks on {s.device.type} by Accelerate, and got {state.num_processes} "
            f"on {state.device.type}, {state.distributed_type.value}"
        )
    return {"all_reduce": lambda t: reduce(t, "sum"), "all_gather": gather}


def worst_error(s, reduce, dtype):
    """Largest difference of any element to the backend's sum, over all LENGTHS; of floats, as a part of the sum of
    their magnitudes. The same on every rank."""
    worst = 0.0
    for length in LENGTHS:
        chance = torch.Generator().manual_seed(length * s.world + s.rank)
        mine = torch.randint(-(2**40), 2**40, (length,), generator=chance)
        if dtype.is_floating_point:
            mine = (torch.randn(length, generator=chance) + 1).to(dtype)
        mine = mine.to(s.device)
        result, wanted, scale = mine.clone(), mine.clone(), mine.double().abs()
        changed = reduce(result)
        result = result if changed is None else changed
        if s.world > 1:
            dist.all_reduce(wanted)
            dist.all_reduce(scale)
        errors = (result - wanted).double().abs()
        if len(errors):
            worst = max(worst, (errors / scale if dtype.is_floating_point else errors).max().item())
    return s.largest(worst)


def equality(lab, works):
    """Check every all-reduce in `works` against the backend's (at world 1: against no change).

    Integers are equal. Floats differ by the order of additions: p-1 roundings of half a unit each on either side,
    relative to the sum of magnitudes, so p units are allowed.
    """
    s = lab.s
    reference = f"{s.backend}'s" if s.world > 1 else "its input"
    for name, reduce in works.items():
        for label, dtype in DTYPES.items():
            tolerance = s.world * torch.finfo(dtype).eps if dtype.is_floating_point and s.world > 1 else 0.0
            lab.check(f"{name} equals {reference}, {label}", worst_error(s, reduce, dtype), tolerance)


# --- the sweep ----------------------------------------------------------------------------------------------


def works_on(s, buffer, hand, accelerate):
    """{(by, collective): (function to time, keywords for measure.collectives.wrong)} on one tensor."""
    works = {(s.backend, "all_reduce"): (measure_collectives.backend("all_reduce", buffer, s.world), {})}
    for name, reduce in hand.items():
        works[name, "all_reduce"] = (lambda reduce=reduce: reduce(buffer), {"reduce": reduce})
    for name in BACKEND[1:]:
        works[s.backend, name] = (measure_collectives.backend(name, buffer, s.world), {})
    if accelerate:
        part = works[s.backend, "all_gather"][0].part
        works["accelerate", "all_reduce"] = (
            lambda: accelerate["all_reduce"](buffer),
            {"reduce": accelerate["all_reduce"]},
        )
        works["accelerate", "all_gather"] = (
            lambda: accelerate["all_gather"](part),
            {"gather": accelerate["all_gather"]},
        )
    return works


def sweep(s, o, sizes, hand, accelerate):
    """[Row, ...]: every collective at every size, its errors counted, its times taken in turn with all others'."""
    works, largest = {}, torch.zeros(sizes[-1] // measure_collectives.ELEMENT, device=s.device)
    for size in sizes:
        size_works = works_on(s, largest[: size // measure_collectives.ELEMENT], hand, accelerate)
        works |= {(size, *key): work for key, work in size_works.items()}
    wrong = {key: measure_collectives.wrong(s, key[2], key[0], **functions) for key, (_, functions) in works.items()}
    times = measure_collectives.alternate(s, {key: work for key, (work, _) in works.items()}, o.rounds, "sweep")
    rows = [
        lab_collectives.Row(maker, name, size, s.world, times[size, maker, name], wrong[size, maker, name])
        for size, maker, name in works
    ]
    order = [key[1:] for key in works]
    return sorted(rows, key=lambda r: order.index((r.by, r.collective)))


def links(s, o, sizes):
    """{label: Wire} measured without any collective: one pair of ranks alone, and all ranks at once round a ring."""
    pair = profile.fit(list(measure_collectives.pair_seconds(s, sizes, o.rounds).items()))
    crowd = profile.fit(list(measure_collectives.crowd_seconds(s, sizes, o.rounds).items()))
    fits = {"one pair": lab_collectives.wire(pair), "all at once": lab_collectives.wire(crowd)}
    return fits | ({"own link": lab_collectives.own(o.own)} if o.own else {}), {"one pair": pair, "all at once": crowd}


# --- what is said and kept ------------------------------------------------------------------------------------


def explain(s, rows, wires):
    """Why the link between one pair predicts badly, in words with their figures; [] where it predicts well, or where a
    link was measured with messages too short to have a rate."""
    longest = [r for r in rows if r.name == "ring all_reduce"][-1]
    pair, crowd = wires["one pair"], wires["all at once"]
    ratio = lab_collectives.from_wire(longest, pair) / longest.median
    if 1 / SPREAD <= ratio <= SPREAD or lab_collectives.flat(pair) or lab_collectives.flat(crowd):
        return []
    lines = [
        f"ring at {longest.size} B: the link measured with one pair of ranks predicts {ratio:.2f} of the time, the "
        "link measured with all ranks at once "
        f"{lab_collectives.from_wire(longest, crowd) / longest.median:.2f}: a rank has {pair.bytes_per_s / 1e9:.2f} "
        f"GB/s while the others are idle, and {crowd.bytes_per_s / 1e9:.2f} GB/s while "
        "all send and receive"
    ]
    if s.device.type == "cpu":
        adding = measure_collectives.add_seconds(s, longest.size * (s.world - 1) // s.world)
        lines.append(
            "on one host a link is a copy in memory: the ranks share its cores and its memory, and adding takes "
            f"time on them too, here {adding * 1e6:,.1f} us of {longest.median * 1e6:,.1f}; the alpha-beta model "
            "gives every rank a link of its own, and assumes that adding takes no time"
        )
    return lines


def predict(lab, rows, fits, wires):
    """Add seconds by each collective's own line, by a line that has not seen the size, and of the all-reduces by every
    link; then by hand over backend."""
    fitted = [p["fitted"] for fit in fits.values() for p in fit["points"]]
    predictions = [(r, "its line", p) for r, p in zip(rows, fitted, strict=True)]
    predictions += [(r, "held out", p) for r, p in lab_collectives.held_out(rows)]
    reduces = [r for r in rows if r.collective == "all_reduce"]
    predictions += [(r, label, lab_collectives.from_wire(r, wire)) for label, wire in wires.items() for r in reduces]
    for r, label, predicted in predictions:
        lab.predict(f"{r.name}, {r.size} B: seconds, {label}", predicted, r.median)
    for size, part in lab_collectives.against(rows, "ring all_reduce", rows[0].name):
        lab.predict(f"ring over {rows[0].by}, {size} B: bandwidth ratio", 1.0, part)


def report(s, rows, fits, link_fits, wires, lines):
    """The tables, on rank 0."""
    reduces = [r for r in rows if r.collective == "all_reduce"]
    s.say(lab_collectives.columns(rows) + "\n")
    s.say(lab_collectives.line_text(fits | link_fits) + "\n")
    s.say(lab_collectives.held_out_text([(r, p) for r, p in lab_collectives.held_out(rows) if r in reduces]) + "\n")
    s.say(lab_collectives.wire_text(reduces, wires))
    for line in lines:
        s.say(line)
    s.say()
    for size, part in lab_collectives.against(rows, "ring all_reduce", rows[0].name):
        s.say(f"ring by hand at {size / 1e6:,.1f} MB: {part:.2f} of {rows[0].by}'s bandwidth")
    for_view = wires | {f"{rows[0].name} read as a ring": lab_collectives.as_ring(fits[rows[0].name], s.world)}
    s.say(
        "for the view, link = own (alpha in microseconds, rate in GB/s): "
        + ", ".join(lab_collectives.view_text(label, link) for label, link in for_view.items())
    )


def record(lab, rows, wires):
    """The Record of this run: it trains nothing, and its steps are the samples of the backend's largest all-reduce."""
    o, largest = lab.o, [r for r in rows if r.name == rows[0].name][-1]
    lab.notes.insert(0, f"step_seconds: {largest.name} of {largest.size} bytes")
    lab.skip(o.via != "accelerate" and "Accelerate: not asked for (--via accelerate)")
    lab.stall(largest.seconds, "sample")
    return lab.record(
        largest.seconds,
        [],
        recipe={name: value for name, value in asdict(o).items() if name not in ("save", "plot")},
        batch=None,
        model={f"{label}: {name}": value for label, wire in wires.items() for name, value in asdict(wire).items()},
        tokens_per_second=None,
        peak_memory={},
    )


def alone(lab):
    """One process: what there is to check, and one line on what is not there."""
    equality(lab, by_hand(lab.o))
    lab.skip(
        "sweep, alpha and beta, predictions: one process sends nothing "
        "(torchrun --nproc-per-node 2 labs/collectives.py)"
    )
    lab.s.say("\n".join(verdicts(lab.checks, lab.skipped)))


def together(lab):
    """Check, time, fit, predict, compare, record."""
    s, o, hand = lab.s, lab.o, by_hand(lab.o)
    accelerate = through_accelerate(s) if o.via == "accelerate" else {}
    equality(lab, hand | ({"accelerate": accelerate["all_reduce"]} if accelerate else {}))
    sizes = measure_collectives.sizes(o.smallest, o.largest, o.factor, s.world)
    rows = sweep(s, o, sizes, hand, accelerate)
    wires, link_fits = links(s, o, sizes)
    fits, lines = lab_collectives.lines(rows), explain(s, rows, wires)
    lab.check("wrong elements, all collectives and sizes", float(sum(r.wrong for r in rows)), 0.0)
    lab.notes += lines
    report(s, rows, fits, link_fits, wires, lines)
    predict(lab, rows, fits, wires)
    lab.report(record(lab, rows, wires), way=o.via)
    reduces = [r for r in rows if r.collective == "all_reduce"]
    title = f"All-reduce, {s.world} ranks, {s.backend}, {s.device.type}"
    lab.write("plot", lambda path: lab_collectives.plot(reduces, fits, path, title))


def refuse(lab):
    """Refuse what could not work, before any work. ValueError, one line."""
    o, world = lab.o, lab.s.world
    lab.refuse(None)
    if o.own:
        lab_collectives.own(o.own)
    if world == 1 and (o.save or o.plot or o.own or o.via == "accelerate"):
        raise ValueError("one process sends nothing: start with torchrun --nproc-per-node 2 labs/collectives.py")
    if len(measure_collectives.sizes(o.smallest, o.largest, o.factor, world)) < 2:
        raise ValueError(
            f"--smallest {o.smallest} to --largest {o.largest} by --factor {o.factor} are fewer than two "
            "sizes, and a line needs two"
        )


def main(s, argv=None):
    """Check, and on more than one process measure."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv)
    refuse(lab)
    s.say(
        f"{recording.device_name(s.device)}, {s.world} process(es) x {torch.get_num_threads()} thread(s), "
        f"backend {s.backend}, {recording.interconnect(s)}\n"
    )
    (alone if s.world == 1 else together)(lab)
    lab.end()


if __name__ == "__main__":
    session.run(main)
