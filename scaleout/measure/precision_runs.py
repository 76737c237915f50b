"""Runs of one model in many precisions: the same weights and batches in every way, for several seeds; a reference in
fp32 whose gradients are looked at; one step of every way from the reference's weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from scaleout.lab import precision as lab_precision
from scaleout.lab import session
from scaleout.lab.text import progress
from scaleout.measure.precision import Watch, part, stuck, total, weights
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.octaves import fate
from scaleout.numerics.scaling import Scaler, search
from scaleout.parallel import parity
from scaleout.parallel.precision import WAYS, PrecisionWay

FIRST_SCALE = 2.0**16  # GradScaler's own default


@dataclass
class Run:
    """What one run left. losses: means over ranks; scales: of each step, before it; stuck: (predicted, measured) share
    of the weights that the last update left, where weights are in bf16."""

    built: str = ""
    losses: list = field(default_factory=list)
    seconds: list = field(default_factory=list)
    scales: list = field(default_factory=list)
    skipped: int = 0
    scale: float = 1.0
    stuck: tuple | None = None

    def end(self, last: int) -> float:
        """Mean loss of the last steps; infinity where one is not finite."""
        loss = sum(self.losses[-last:]) / last
        return loss if math.isfinite(loss) else math.inf


@dataclass
class Reference:
    """A run in fp32 with its gradients: tops: the largest of each step; moments: {moment: {kind: {part: Histogram}}};
    state: the weights after it; batch: the one after its last."""

    tops: list = field(default_factory=list)
    moments: dict = field(default_factory=dict)
    state: dict = field(default_factory=dict)
    batch: tuple | None = None


def scaler(o, first: float = FIRST_SCALE) -> dict:
    """What GradScaler is told: it grows sooner than after torch's 2,000 steps, for these runs are shorter."""
    return {"init_scale": first, "growth_interval": o.growth_interval}


def make(s, o, name: str, seed: int | None = None, scale: float = FIRST_SCALE) -> PrecisionWay:
    session.reset_allocator(s)  # what hooks hold of the last way's model goes
    return PrecisionWay(s, o.shape, name, o.lr, o.seed if seed is None else seed, scaler(o, scale))


def train(s, o, name: str, seed: int, batch) -> Run:
    """o.steps steps of a way. batch: of a seed and a step."""
    way, run = make(s, o, name, seed), Run()
    run.built = way.built
    if o.compile:
        torch.compiler.reset()  # else the last way's graphs stay, and after eight nothing is compiled any more
        way.compile()
    for step in progress(range(o.steps), f"{name}, seed {seed}", s.main):
        data = batch(seed, step)
        run.scales.append(way.scale)
        start = s.clock()
        loss = way.gradients(data)
        if WAYS[name].recipe == "bf16" and step == o.steps - 1:
            run.stuck = stuck(way)
        else:
            way.update()
            run.skipped += way.skipped
        run.seconds.append(s.largest(s.clock() - start))
        run.losses.append(s.mean(loss))
    run.scale = way.scale
    return run


def reference(s, o, batch) -> Reference:
    """The run in fp32 of the first seed, with its gradients in octaves at the first and after the last step. Raises
    ValueError, on all ranks, where they do not stay finite."""
    way, result = make(s, o, "fp32"), Reference()
    watch = Watch(way)
    for step in range(o.steps):
        with watch.looking(counting=not step):
            way.gradients(batch(o.seed, step))
        result.tops.append(s.largest(watch.top))
        if not step:
            result.moments["first step"] = _seen(way, watch)
        way.update()
    result.batch = batch(o.seed, o.steps)
    with watch.looking():
        way.gradients(result.batch)
    if not all(map(math.isfinite, [*result.tops, s.largest(watch.top)])):
        raise ValueError(
            f"in fp32 itself gradients are not finite within {o.steps} steps, and there is nothing to "
            f"compare with: --lr {o.lr:g} is too large"
        )
    result.moments["last step"] = _seen(way, watch)
    result.state = {name: w.detach().clone() for name, w in way.model.state_dict().items()}
    return result


def _seen(way: PrecisionWay, watch: Watch) -> dict:
    return {"activations": watch.gradients, "weights": weights(way)}


@torch.no_grad()
def _load(way: PrecisionWay, state: dict) -> None:
    for name, w in way.model.state_dict().items():
        w.copy_(state[name])


def one_step(s, o, name: str, exact: Reference, scale: float = FIRST_SCALE) -> tuple[dict, list]:
    """(gradients of the parameters in fp32, [zeros, numbers] of activations' gradients) of a way on the reference's
    weights and last batch."""
    way = make(s, o, name, scale=scale)
    _load(way, exact.state)
    watch = Watch(way)
    with watch.looking():
        way.gradients(exact.batch)
    return {key: g.float() for key, g in parity.gradients(way.model).items()}, watch.zeros


def errors(gradients: dict, wanted: dict) -> dict[str, float]:
    """{part: root of the mean square of the difference over that of `wanted`}, and "all" parts together; infinity where
    one is not finite."""
    squares, size = {}, {}
    for key, w in wanted.items():
        for name in ("all", part(key)):
            squares[name] = squares.get(name, 0.0) + (gradients[key] - w).double().square().sum().item()
            size[name] = size.get(name, 0.0) + w.double().square().sum().item()
    gradients = {name: math.sqrt(squares[name] / size[name]) for name in squares}
    return {name: error if math.isfinite(error) else math.inf for name, error in gradients.items()}


def compare(s, o, names: list[str], exact: Reference) -> dict:
    """{way: {"errors": of the gradients, by part, "zero": share that is zero, "predicted": by the histogram}}, of one
    step from the same weights. The share is of the gradients of activations, which 16-bit matmuls store in 16 bits, and
    None where not one of them is finite. A loss scale is halved until all of them are, as a scaler would."""
    rows, h = {}, total(exact.moments["last step"]["activations"])
    wanted, _ = one_step(s, o, "fp32", exact)
    for name in names:
        kind, octaves = WAYS[name], round(math.log2(FIRST_SCALE))
        while True:
            gradients, zeros = one_step(s, o, name, exact, 2.0**octaves)
            by_part = {
                key: s.largest(min(error, lab_precision.HUGE)) for key, error in errors(gradients, wanted).items()
            }
            if not kind.scaled or not octaves or by_part["all"] < lab_precision.HUGE:
                break
            octaves -= 1
        flushed = fate(h, FORMATS[kind.cast], octaves if kind.scaled else 0).zero if kind.cast else 0.0
        share = (flushed * sum(h.counts) + h.zeros) / h.total
        rows[name] = {
            "errors": by_part,
            "zero": zeros[0] / zeros[1] if zeros[1] else None,
            "predicted": share if kind.cast else None,
        }
    return rows


def predicted_scales(o, exact: Reference) -> list:
    """What the scaler should do, from the reference's largest gradients: numerics.scaling.Step of each step. A step
    that is left out leaves the weights as they are, and the reference's gradient of that step comes again."""
    return [*search(exact.tops, FORMATS["fp16"], Scaler(FIRST_SCALE, interval=o.growth_interval), repeats=True)]
