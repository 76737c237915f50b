"""What a run of the training job leaves behind: the peak it is measured against, the sample, the plot, the Record."""

from dataclasses import asdict
from pathlib import Path

from scaleout.lab import recording
from scaleout.measure import peak as measure_peak
from scaleout.parallel.shard import DTYPES
from scaleout.records import results
from scaleout.spec.transformer import flops, total_parameters
from scaleout.train import forecast, mesh_forecast, report, spans
from scaleout.train.metrics import METRICS, PLOT, SAMPLE
from scaleout.train.options import WARMUP
from scaleout.train.trainer import sample


class Effort:
    """How long the peak is looked for, and how far: not for longer than a short run has trained."""

    largest_matrix = 8192

    def __init__(self, steps):
        self.seconds = min(0.3, steps / 1000)


def peak(s, o, steps):
    """(FLOP/s of all ranks together, where it comes from): matmuls in this run's dtype, timed in this run."""
    rate, side = measure_peak.matmul_rate(s, DTYPES[o.precision], Effort(steps))
    return rate * s.world, f"{o.precision} matmuls of size {side} on {s.world} process(es), timed in this run"


def scaling(metrics):
    """What loss scaling did (list of str), for the Record and the screen; nothing without it."""
    scales, left_out = metrics.column("scale"), [row for row in metrics.steps if row["norm"] is None]
    return (
        [
            f"loss scale {scales[0]:,g} to {scales[-1]:,g}, at least {min(scales):,g}: {len(left_out)} of "
            f"{len(scales):,} steps overflowed fp16 and were skipped"
        ]
        if scales
        else []
    )


def record(lab, job, peak_, peak_memory):
    """The Record of this run. peak_: as `peak` gives it. peak_memory: as `forecast.beside` does."""
    s, o, metrics, spent = lab.s, lab.o, job.metrics, job.metrics.column("seconds")
    rate = results.tokens_per_second(spent, WARMUP, o.batch, o.seq)
    work = flops(o.shape, o.batch, o.seq)
    mfu = (work["forward"] + work["backward"]) * rate / job.tokens / peak_[0]
    passes = {"strategy": o.strategy_on(s.world), "accumulation": job.passes, "optimizer": "fused AdamW"}
    setup = job.trainer.setup
    sharding = {"fsdp": setup.sharding, "mesh": setup.layout}.get(passes["strategy"])
    sharding = asdict(sharding) if sharding else {}
    recipe = passes | sharding | {"checkpointing": o.checkpointing, "attention": o.attention, "compile": o.compile}
    failed, changed = metrics.told
    lab.notes += [job.text.words, job.trainer.built, *spans.notes(job.spans), *changed, *scaling(metrics)]
    lab.stalls += report.stalls(metrics, WARMUP)
    lab.series |= metrics.series()
    return lab.record(
        spent,
        metrics.column("loss"),
        recipe,
        o.batch,
        precision=spans.words(job.spans, "--precision"),
        checkpoint_cadence=job.cadence.words,
        tokens_per_second=rate,
        mfu=mfu,
        mfu_peak={"flops_per_second": peak_[0], "source": peak_[1]},
        peak_memory=peak_memory,
        failures=failed,
        **job.began,
    )


def written(job, o):
    """(what the model writes after --prompt, [] or [why there is none]); collective. It costs no Record either."""
    prompt = o.prompt.encode(errors="surrogateescape")  # the bytes that were typed, where they are no UTF-8
    try:
        text = sample(job.trainer, prompt, o.sample, o.temperature, o.seed) if o.sample else b""
    except RuntimeError as error:
        return "", [f"sample: {type(error).__name__}: {' '.join(str(error).split())[:200]}"]
    return report.readable(text), []


def close(lab, job):
    """The Record, the sample, the plot: kept in this order, and only then told, for a screen may be gone."""
    s, o = lab.s, lab.o
    folder = Path(o.folder) if o.folder else None
    wrote, none = written(job, o)
    model = mesh_forecast if o.strategy_on(s.world) == "mesh" else forecast
    peak_, peak_memory = peak(s, o, job.done), forecast.beside(lab, job, model.seconds, model.memory)
    lab.skip(*none)
    if not s.main:  # the steps of earlier attempts are in rank 0's file only
        return
    sound = len(job.metrics.steps) > WARMUP and job.metrics.validations
    r = record(lab, job, peak_, peak_memory) if sound else None
    saved = results.save(r, recording.path(r, o.save, lab.results, o.strategy_on(s.world))) if r and o.save else None
    if folder:
        (folder / SAMPLE).write_text(wrote, encoding="utf-8")
    if folder and r:
        report.plot(
            job.metrics, folder / PLOT, f"{total_parameters(o.shape) / 1e6:,.1f} M parameters on {s.world} process(es)"
        )
    if wrote:
        s.say(f"\n--- {o.sample} bytes at temperature {o.temperature:g} ---\n{wrote}\n---")
    s.say(
        report.closing(r, len(job.text.held_out))
        if r
        else f"no plot and no Record: the steps of this run are not in {METRICS}"
    )
    if saved:
        s.say(f"record saved: {saved.name}")
